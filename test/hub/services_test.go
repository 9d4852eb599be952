package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/hub/endpoints"
)

// slicesPath are the EndpointSlices of the Service web.
const slicesPath = "/apis/discovery.k8s.io/v1/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dweb"

// testServices: kube-proxy has the endpoints that the topology of a Service allows, and the addresses
// that the kubelet writes, online and offline.
func (r *rig) testServices() {
	r.kubeProxy()
	r.kubectl("label", "node", nodeName, appsv1alpha1.NodePoolLabel+"=site")
	pod, err := r.admin.CoreV1().Pods(namespace).Get(r.Context(), "pod-0", metav1.GetOptions{})
	if err != nil {
		r.Fatal(err)
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: map[string]string{endpoints.TopologyAnnotation: "openyurt.io/nodepool"}},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if _, err := r.admin.CoreV1().Services(namespace).Create(r.Context(), service, metav1.CreateOptions{}); err != nil {
		r.Fatal(err)
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.0.0.1"}, NodeName: new(nodeName), TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: pod.Name, UID: pod.UID}},
			{Addresses: []string{"10.0.0.2"}, NodeName: new("neighbour")},
			{Addresses: []string{"10.0.0.3"}, NodeName: new("elsewhere")},
		},
	}
	if _, err := r.admin.DiscoveryV1().EndpointSlices(namespace).Create(r.Context(), slice, metav1.CreateOptions{}); err != nil {
		r.Fatal(err)
	}
	r.hasEndpoints("while nodes may not read pools,", "10.0.0.1", "10.0.0.2", "10.0.0.3")
	r.eventually("the status says why", func() error {
		out, err := exec.CommandContext(r.Context(), r.program, "--config="+filepath.Join(r.dir, "hub.yaml"), "status").CombinedOutput()
		s := string(out)
		if err == nil && !strings.Contains(s, "allow the group system:nodes to get, list and watch nodepools") {
			err = fmt.Errorf("it is %s", s)
		}
		return err
	})
	q := question{"kube-proxy", slicesPath, "application/json"}
	watch := r.openWatchAs("kube-proxy", slicesPath+"&watch=1&allowWatchBookmarks=true&resourceVersion="+version(r.T, r.ask(r.over, q).body))
	changes := func() {
		r.Helper()
		watch.names = nil
		watch.until("MODIFIED web-1")
	}
	changes() // the first, because it goes on from a version
	r.pool()
	changes()
	r.hasEndpoints("in the pool", "10.0.0.1", "10.0.0.2")
	if a := r.ask(r.over, question{"reader", slicesPath, "application/json"}); !strings.Contains(a.body, "10.0.0.3") {
		r.Errorf("who routes no traffic gets %s", short(a.body))
	}
	if a := r.ask(r.over, question{"kube-proxy", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/web-1", "application/json"}); !strings.Contains(a.body, "10.0.0.3") {
		r.Errorf("the slice alone is %s", short(a.body))
	}
	podPath := "/api/v1/namespaces/default/pods/pod-0"
	r.ask(r.over, question{"node", podPath, "application/json"}) // as a kubelet does before it writes

	r.cutOff(q)
	r.hasEndpoints("offline", "10.0.0.1", "10.0.0.2")
	r.ask(r.over, question{"node", podPath, "application/json"})
	r.patchStatus(podPath, fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"podIP":"10.0.0.9","podIPs":[{"ip":"10.0.0.9"}]}}`, pod.UID))
	changes()
	r.hasEndpoints("after a restart of the node", "10.0.0.2", "10.0.0.9")
	r.killHub()
	r.startHub()
	r.hasEndpoints("after a restart of the hub", "10.0.0.2", "10.0.0.9")
	r.comeBack(q)
	r.kubectl("annotate", "service", "web", "--overwrite", endpoints.TopologyAnnotation+"=kubernetes.io/hostname")
	r.hasEndpoints("on the node", "10.0.0.9")
	r.kubectl("delete", "service", "web")
	r.kubectl("delete", "endpointslice", "web-1", "--ignore-not-found")
}

// kubeProxy adds clients of the ServiceAccount of kube-proxy.
func (r *rig) kubeProxy() {
	r.Helper()
	const account, in = "kube-proxy", "kube-system"
	if _, err := r.admin.CoreV1().ServiceAccounts(in).Create(r.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{}); err != nil {
		r.Fatal(err)
	}
	r.kubectl("create", "clusterrolebinding", account, "--clusterrole=system:node-proxier", "--serviceaccount="+in+":"+account)
	r.kubectl("create", "clusterrolebinding", account+"-view", "--clusterrole=view", "--serviceaccount="+in+":"+account) // to read one object
	r.clients(account, strings.TrimSpace(r.kubectl("create", "token", "-n", in, account)))
}

// pool makes the kind NodePool and the pool of the node, and lets nodes read it as the chart does.
func (r *rig) pool() {
	r.Helper()
	r.kubectl("apply", "--server-side", "-f", "../../charts/atoll/files/crds/apps.openyurt.io_nodepools.yaml")
	r.kubectl("wait", "--for=condition=Established", "crd/nodepools.apps.openyurt.io")
	r.kubectl("create", "clusterrole", "atoll-hub", "--verb=get,list,watch", "--resource=nodepools.apps.openyurt.io")
	r.kubectl("create", "clusterrolebinding", "atoll-hub", "--clusterrole=atoll-hub", "--group=system:nodes")
	pool := appsv1alpha1.NodePool{TypeMeta: metav1.TypeMeta{APIVersion: "apps.openyurt.io/v1alpha1", Kind: "NodePool"}, ObjectMeta: metav1.ObjectMeta{Name: "site"}}
	text, err := json.Marshal(pool)
	if err != nil {
		r.Fatal(err)
	}
	file := filepath.Join(r.dir, "pool.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		r.Fatal(err)
	}
	r.kubectl("create", "-f", file)
	r.kubectl("patch", "nodepool", "site", "--subresource=status", "--type=merge", "-p", `{"status":{"nodes":["`+nodeName+`","neighbour"],"readyNode":0,"notReadyNode":2}}`)
}

// hasEndpoints waits until kube-proxy gets these endpoints, in each encoding that a client may ask for.
func (r *rig) hasEndpoints(when string, want ...string) {
	r.Helper()
	for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		r.eventually(when+" kube-proxy has the right endpoints in "+accept, func() error {
			a := r.ask(r.over, question{"kube-proxy", slicesPath, accept})
			var got []string
			for i := range 10 {
				if address := fmt.Sprint("10.0.0.", i); strings.Contains(a.body, address) {
					got = append(got, address)
				}
			}
			if a.code != http.StatusOK || !slices.Equal(got, want) {
				return fmt.Errorf("it has %v, want %v: %d", got, want, a.code)
			}
			return nil
		})
	}
}

// patchStatus writes the status of a pod as the kubelet. Whether the cloud has it makes no difference.
func (r *rig) patchStatus(path, body string) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPatch, "https://"+r.address+path+"/status", bytes.NewReader([]byte(body)))
	if err != nil {
		r.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/strategic-merge-patch+json")
	response, err := r.over["node"].Do(request)
	if err != nil {
		r.Fatal(err)
	}
	_ = response.Body.Close()
}
