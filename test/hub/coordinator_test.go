package hub

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/machinery/certs"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// coordinator is that of a pool: the programs of its pod, as processes.
type coordinator struct {
	*testing.T

	cluster *devcluster.Cluster
	dir     string // short: sockets are in it
	program string
	ca      certs.Pair // of the pool
	server  string     // the address of its API server
	writer  string     // that of the writer
	usage   string     // that at which the API server asks for metrics.k8s.io
	running map[string]*exec.Cmd
}

// poolRig is a node behind a hub, in a pool with a coordinator.
type poolRig struct {
	*rig

	coordinator *coordinator
	people      kubernetes.Interface // at the coordinator
}

// TestCoordinator shows that a pool's coordinator has what the hub of a node has, with the real etcd, kube-apiserver
// and kubelet.
func TestCoordinator(t *testing.T) {
	tier.All(t, "its cluster and its coordinator take the time of two others, and the tests of internal/coordinator and internal/hub/pool have each promise")
	t.Parallel()
	cluster := startCluster(t, devcluster.Options{LowIdle: true})
	r := &poolRig{rig: newRig(t, cluster, nodeName), coordinator: newCoordinator(t, cluster)}
	t.Cleanup(r.coordinator.stop)
	r.coordinator.start()
	r.governed()
	through := devcluster.Endpoint{URL: "https://" + r.address, CAFile: filepath.Join(r.dir, "state", "serving", "ca.crt")}
	if err := cluster.AddHollowNodesBehind(t.Context(), through, devcluster.NodeSpec{
		Name: nodeName, Labels: map[string]string{"apps.openyurt.io/nodepool": "edge"}, Capacity: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("300")},
	}); err != nil {
		t.Fatal(err)
	}
	r.people = r.coordinator.client("alice", "openyurt:coordinators")
	r.createConfigMap("settings-00")
	r.createConfigMap("settings-01")
	for i := range 3 {
		r.createPod(fmt.Sprint("pod-", i), "settings-00")
	}
	for _, part := range []struct {
		name string
		run  func(*poolRig)
	}{
		{"people read the cloud's objects, byte for byte", (*poolRig).testSame},
		{"changes and deletions in the cloud arrive", (*poolRig).testChanges},
		{"objects of the pool are there too", (*poolRig).testPool},
		{"people can read, and cannot write", (*poolRig).testReadOnly},
		{"each identity has its rights at the API server, and no others", (*poolRig).testRights},
		{"nodes can upload their own objects only", (*poolRig).testForeignUploads},
		{"the writer's ports are for nodes and for the API server", (*poolRig).testWriterPort},
		{"without metrics.k8s.io all else works", (*poolRig).testWithoutUsage},
		{"each program may be killed, or hang", (*poolRig).testKills},
		{"a coordinator that starts empty is full again, also without the cloud", (*poolRig).testEmpty},
		{"objects of the pool are there again once a hub has the cloud", (*poolRig).poolIsTheSame},
		{"Secrets are there while they are requested", (*poolRig).testSecrets},
		{"200 objects of each kind are the same, byte for byte", (*poolRig).testObjects},
		{"etcd is full for a while", (*poolRig).testFull},
	} {
		t.Run(part.name, func(t *testing.T) {
			one, hub, c := *r, *r.rig, *r.coordinator
			one.rig, one.coordinator = &hub, &c
			hub.T, c.T = t, t
			part.run(&one)
			r.hub = one.hub
		})
	}
}

func (r *poolRig) createPod(name, settings string) {
	r.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}}, Spec: corev1.PodSpec{
		NodeName: nodeName, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Containers: []corev1.Container{{Name: "c", Image: "nginx", EnvFrom: []corev1.EnvFromSource{{
			ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: settings}},
		}}}},
	}}
	r.eventually("a pod is created", func() error { // once its ServiceAccount is there
		_, err := r.admin.CoreV1().Pods(namespace).Create(r.Context(), pod, metav1.CreateOptions{})
		return err
	})
}

// governed gives the pool its YurtCoordinator, as atoll-manager does, which the hub finds.
func (r *poolRig) governed() {
	r.Helper()
	for _, kind := range []string{"yurtcoordinators", "nodepools"} {
		r.kubectl("apply", "--server-side", "-f", filepath.Join("..", "..", "charts", "atoll", "files", "crds", "apps.openyurt.io_"+kind+".yaml"))
		r.kubectl("wait", "--for=condition=Established", "crd/"+kind+".apps.openyurt.io")
	}
	r.kubectl("create", "clusterrole", "hubs", "--verb=get,list,watch", "--resource=yurtcoordinators.apps.openyurt.io,nodepools.apps.openyurt.io,endpointslices.discovery.k8s.io,namespaces")
	r.kubectl("create", "clusterrolebinding", "hubs", "--clusterrole=hubs", "--group=system:nodes")
	file := filepath.Join(r.dir, "coordinator.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: apps.openyurt.io/v1alpha1\nkind: YurtCoordinator\nmetadata: {name: edge}\nspec: {nodePool: edge}\n"+
		"---\napiVersion: apps.openyurt.io/v1alpha1\nkind: NodePool\nmetadata: {name: edge}\nspec: {type: Edge, annotations: {quotes: '\"a\"'}}\n"+
		"---\napiVersion: apps.openyurt.io/v1alpha1\nkind: NodePool\nmetadata: {name: site}\n"), 0o600); err != nil {
		r.Fatal(err)
	}
	r.kubectl("create", "-f", file)
	status, err := json.Marshal(map[string]any{"status": map[string]any{"addresses": []string{loopback(2), loopback(1)}, "caBundle": r.coordinator.ca.Cert}})
	if err != nil {
		r.Fatal(err)
	}
	r.kubectl("patch", "yurtcoordinator", "edge", "--subresource=status", "--type=merge", "-p", string(status))
}

// loopback returns an address of this machine that other runs of the test do not use: hubs know one port only.
func loopback(n int) string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 64+pid>>16&63, pid>>8&255, pid&254|n&1)
}

func newCoordinator(t *testing.T, cluster *devcluster.Cluster) *coordinator {
	t.Helper()
	dir, err := os.MkdirTemp("", "coordinator")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := &coordinator{T: t, cluster: cluster, dir: dir, server: freeAddress(t), usage: freeAddress(t), writer: loopback(1) + ":10271", running: map[string]*exec.Cmd{}}
	c.program = c.path("atoll-coordinator")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", c.program, "github.com/atoll-k8s/atoll/cmd/atoll-coordinator")
	build.Dir, build.Env = filepath.Join("..", ".."), append(os.Environ(), "CGO_ENABLED=0") // its module has the client of etcd
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	now := time.Now()
	if c.ca, err = certs.NewCA(now); err != nil {
		t.Fatal(err)
	}
	server, err := certs.Issue(c.ca, certs.Leaf{CommonName: "coordinator", Names: []string{governance.ServerName, governance.UsageServer, "127.0.0.1"}}, now)
	if err != nil {
		t.Fatal(err)
	}
	own, err := certs.Issue(c.ca, certs.Leaf{CommonName: "atoll:coordinator-edge", Groups: []string{governance.APIServerGroup}}, now)
	if err != nil {
		t.Fatal(err)
	}
	admin := cluster.AdminConfig()
	for name, content := range map[string][]byte{
		"pool.crt": c.ca.Cert, "server.crt": server.Cert, "server.key": server.Key, "apiserver.crt": own.Cert, "apiserver.key": own.Key, "nodes.crt": admin.CAData, "nodes": []byte(nodeName + "\nother\n"),
	} {
		c.write(name, content)
	}
	return c
}

func (c *coordinator) path(name string) string { return filepath.Join(c.dir, name) }

func (c *coordinator) write(name string, content []byte) {
	c.Helper()
	if err := os.WriteFile(c.path(name), content, 0o600); err != nil {
		c.Fatal(err)
	}
}

// start starts all programs of the pod, and waits until people can read.
func (c *coordinator) start() {
	c.Helper()
	prepare := exec.CommandContext(c.Context(), c.program, "prepare", "--directory="+c.dir, "--pool-ca="+c.path("pool.crt"), "--server=https://"+c.server)
	if out, err := prepare.CombinedOutput(); err != nil {
		c.Fatalf("%v: %s", err, out)
	}
	c.run("etcd")
	c.run("kube-apiserver")
	c.run("write")
}

// args are the arguments of the programs.
func (c *coordinator) args(name string) (path string, args []string) {
	_, port, _ := strings.Cut(c.server, ":")
	switch name {
	case "etcd":
		return c.cluster.BinaryPath("etcd"), []string{
			"--name=coordinator", "--data-dir=data", "--unsafe-no-fsync", "--quota-backend-bytes=33554432", "--log-level=warn",
			"--listen-client-urls=unix://etcd.sock:0", "--advertise-client-urls=unix://etcd.sock:0",
			"--listen-peer-urls=unix://peer.sock:0", "--initial-advertise-peer-urls=unix://peer.sock:0", "--initial-cluster=coordinator=unix://peer.sock:0",
		}
	case "kube-apiserver":
		return c.cluster.BinaryPath("kube-apiserver"), []string{
			"--secure-port=" + port, "--bind-address=127.0.0.1", "--etcd-servers=unix://" + c.path("etcd.sock:0"), "--etcd-compaction-interval=1m",
			"--tls-cert-file=" + c.path("server.crt"), "--tls-private-key-file=" + c.path("server.key"), "--client-ca-file=" + c.path("clients.crt"),
			"--service-account-issuer=https://coordinator.atoll-pools.svc", "--service-account-key-file=" + c.path("service-account.crt"),
			"--service-account-signing-key-file=" + c.path("service-account.key"), "--service-cluster-ip-range=10.0.0.0/24",
			"--authorization-mode=RBAC", "--authentication-config=" + c.path("authentication.yaml"), "--endpoint-reconciler-type=none", "--kubelet-preferred-address-types=InternalIP",
			"--disable-admission-plugins=ServiceAccount", "--enable-priority-and-fairness=false", "--profiling=false",
			"--kubelet-client-certificate=" + c.path("apiserver.crt"), "--kubelet-client-key=" + c.path("apiserver.key"), "--kubelet-certificate-authority=" + c.path("pool.crt"),
			"--proxy-client-cert-file=" + c.path("front-proxy.crt"), "--proxy-client-key-file=" + c.path("front-proxy.key"),
		}
	default:
		return c.program, []string{
			name, "--listen=" + c.writer, "--etcd=unix://" + c.path("etcd.sock:0"), "--kubeconfig=" + c.path("kubeconfig"), "--zap-log-level=2",
			"--tls-cert-file=" + c.path("server.crt"), "--tls-private-key-file=" + c.path("server.key"),
			"--client-ca-file=" + c.path("nodes.crt"), "--nodes-file=" + c.path("nodes"), "--upload-file=" + c.path("upload"),
			"--usage-listen=" + c.usage, "--front-proxy-ca-file=" + c.path("front-proxy-ca.crt"),
			"--hub-client-certificate=" + c.path("apiserver.crt"), "--hub-client-key=" + c.path("apiserver.key"), "--pool-ca-file=" + c.path("pool.crt"),
		}
	}
}

func (c *coordinator) run(name string) {
	c.Helper()
	log, err := os.OpenFile(c.path(name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.Fatal(err)
	}
	defer log.Close()
	path, args := c.args(name)
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.dir, log, log
	if err := cmd.Start(); err != nil {
		c.Fatal(err)
	}
	c.running[name] = cmd
}

func (c *coordinator) kill(name string) {
	cmd := c.running[name]
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	delete(c.running, name)
}

func (c *coordinator) stop() {
	for name := range c.running {
		c.kill(name)
		if c.Failed() {
			log, _ := os.ReadFile(c.path(name + ".log"))
			c.Logf("the log of %s ends with:\n%s", name, log[max(0, len(log)-8000):])
		}
	}
}

// kubeconfig returns the path of a kubeconfig with a certificate of the pool.
func (c *coordinator) kubeconfig(user string, groups ...string) string {
	c.Helper()
	pair, err := certs.Issue(c.ca, certs.Leaf{CommonName: user, Groups: groups}, time.Now())
	if err != nil {
		c.Fatal(err)
	}
	config := api.NewConfig()
	config.Clusters["pool"] = &api.Cluster{Server: "https://" + c.server, CertificateAuthority: c.path("pool.crt")}
	config.AuthInfos[user] = &api.AuthInfo{ClientCertificateData: pair.Cert, ClientKeyData: pair.Key}
	config.Contexts["pool"] = &api.Context{Cluster: "pool", AuthInfo: user}
	config.CurrentContext = "pool"
	path := c.path(user + ".kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		c.Fatal(err)
	}
	return path
}

func (c *coordinator) client(user string, groups ...string) kubernetes.Interface {
	c.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig(user, groups...))
	if err != nil {
		c.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		c.Fatal(err)
	}
	return client
}

// versions are the lines that differ between the cloud and a coordinator.
var versions = regexp.MustCompile(`(?m)^ *resourceVersion: .*\n`)

// hubPort is the other field that differs, of a Node; both as JSON.
var (
	resourceVersion = regexp.MustCompile(`"resourceVersion": "\d+"`)
	hubPort         = regexp.MustCompile(`("kubeletEndpoint": \{\s*"Port": )(\d+)`)
)

// nodeIsTheSame waits until the coordinator has the Node as the cloud has it, but for the port of its kubelet.
func (r *poolRig) nodeIsTheSame() {
	r.Helper()
	r.eventually("the Node is the same", func() error {
		args := []string{"get", "nodes", nodeName, "-o", "json"}
		here, there := resourceVersion.ReplaceAllString(r.here(args...), ""), resourceVersion.ReplaceAllString(r.there(args...), "")
		was, is := hubPort.FindStringSubmatch(here), hubPort.FindStringSubmatch(there)
		if was == nil || is == nil || is[2] != fmt.Sprint(governance.HubPort) || was[2] == is[2] {
			return fmt.Errorf("the port of its kubelet is %q, and in the cloud %q", is, was)
		}
		if there = hubPort.ReplaceAllString(there, "${1}"+was[2]); here != there {
			return fmt.Errorf("the cloud has\n%s\nand the coordinator\n%s", short(here), short(there))
		}
		return nil
	})
}

// here and there return what kubectl prints in the cloud, and at the coordinator.
func (r *poolRig) here(args ...string) string {
	return r.print(r.KubeconfigPath(), args...)
}

func (r *poolRig) there(args ...string) string {
	return r.print(r.coordinator.path("alice.kubeconfig"), args...)
}

func (r *poolRig) print(kubeconfig string, args ...string) string {
	ctx, cancel := context.WithTimeout(r.Context(), 30*time.Second)
	defer cancel()
	out, _ := exec.CommandContext(ctx, r.BinaryPath("kubectl"), append([]string{"--kubeconfig=" + kubeconfig}, args...)...).CombinedOutput()
	return string(out)
}

// same waits until the coordinator has what the cloud has.
func (r *poolRig) same(args ...string) string {
	r.Helper()
	var is string
	r.eventually(fmt.Sprintf("kubectl %s prints the same", strings.Join(args, " ")), func() error {
		want := versions.ReplaceAllString(r.here(args...), "")
		is = versions.ReplaceAllString(r.there(args...), "")
		if is != want || is == "" {
			return fmt.Errorf("the cloud has\n%s\nand the coordinator\n%s", short(want), short(is))
		}
		return nil
	})
	return is
}

func (r *poolRig) podsAreTheSame() string {
	r.Helper()
	return r.same("get", "pods", "-A", "-o", "yaml", "--field-selector=spec.nodeName="+nodeName)
}

func (r *poolRig) testSame() {
	if pods := r.podsAreTheSame(); strings.Count(pods, "kind: Pod\n") != 3 {
		r.Errorf("the pods are\n%s", pods)
	}
	r.nodeIsTheSame()
	if settings := r.same("get", "configmaps", "-n", namespace, "settings-00", "-o", "yaml"); !strings.Contains(settings, "name: settings-00") {
		r.Errorf("the ConfigMap of the pods is\n%s", settings)
	}
	if other := r.there("get", "configmaps", "-n", namespace, "settings-01"); !strings.Contains(other, "NotFound") {
		r.Errorf("a ConfigMap that no pod names is there: %s", other)
	}
	for _, args := range [][]string{{"get", "nodes"}, {"get", "pods", "-A"}, {"describe", "pod", "-n", namespace, "pod-0"}, {"describe", "node", nodeName}, {"version"}, {"api-resources"}} {
		if out := r.there(args...); strings.Contains(out, "rror") || out == "" {
			r.Errorf("kubectl %s: %s", strings.Join(args, " "), out)
		}
	}
	r.eventually("the node's Lease is there", func() error {
		_, err := r.people.CoordinationV1().Leases("kube-node-lease").Get(r.Context(), nodeName, metav1.GetOptions{})
		return err
	})
	r.eventually("the hub tells of the coordinator", func() error {
		out, err := exec.CommandContext(r.Context(), r.program, "--config="+filepath.Join(r.dir, "hub.yaml"), "status").Output()
		if err == nil && !strings.Contains(string(out), "coordinator of the pool: "+r.coordinator.writer) {
			err = fmt.Errorf("it prints %s", short(string(out)))
		}
		return err
	})
}

func (r *poolRig) testChanges() {
	began := time.Now()
	watched, err := r.people.CoreV1().Pods(namespace).Watch(r.Context(), metav1.ListOptions{LabelSelector: "changed=yes"})
	if err != nil {
		r.Fatal(err)
	}
	defer watched.Stop()
	r.kubectl("label", "pod", "-n", namespace, "pod-0", "changed=yes")
	select {
	case e := <-watched.ResultChan():
		if pod, is := e.Object.(*corev1.Pod); !is || pod.Name != "pod-0" {
			r.Errorf("the event is %+v", e)
		}
		r.Logf("an open watch at the coordinator has a change of the cloud after %s", time.Since(began).Round(100*time.Millisecond))
	case <-time.After(patience):
		r.Fatal("a watch at the coordinator does not see a change of the cloud")
	}
	r.kubectl("delete", "pod", "-n", namespace, "pod-1", "--grace-period=0", "--force")
	r.createPod("pod-3", "settings-01")
	r.same("get", "configmaps", "-n", namespace, "settings-01", "-o", "yaml")
	r.podsAreTheSame()
	r.kubectl("delete", "pod", "-n", namespace, "pod-3", "--grace-period=0", "--force")
	r.podsAreTheSame()
	r.eventually("the ConfigMap of a pod that is gone is gone", func() error {
		_, err := r.people.CoreV1().ConfigMaps(namespace).Get(r.Context(), "settings-01", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("reading it ends with %s", fmt.Sprint(err))
		}
		return nil
	})
}

// poolIsTheSame waits until the coordinator has what belongs to the whole pool as the cloud has it.
func (r *poolRig) poolIsTheSame() {
	r.Helper()
	// The coordinator has a Service of its own, which leads to metrics.k8s.io.
	r.same("get", "services,endpointslices", "-A", "-o", "yaml", "--field-selector=metadata.namespace!=atoll-coordinator")
	r.same("get", "namespaces", "-o", "yaml", "--field-selector=metadata.name!=atoll-coordinator")
	r.same("get", "nodepools", "edge", "-o", "yaml")
}

func (r *poolRig) testPool() {
	r.poolIsTheSame()
	services, slices := r.admin.CoreV1().Services(namespace), r.admin.DiscoveryV1().EndpointSlices(namespace)
	meta := metav1.ObjectMeta{Name: "web", Labels: map[string]string{"kubernetes.io/service-name": "web"}}
	port := int32(8080)
	_, err := services.Create(r.Context(), &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	if err == nil {
		_, err = slices.Create(r.Context(), &discoveryv1.EndpointSlice{
			ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.2.3"}}}, Ports: []discoveryv1.EndpointPort{{Port: &port}},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		r.Fatal(err)
	}
	if out := r.same("get", "nodepools", "edge", "-o", "wide"); !strings.Contains(out, "READYNODES") {
		r.Errorf("the table of the NodePool is %s", out)
	}
	if out := r.there("get", "nodepools"); !strings.Contains(out, "edge") || strings.Contains(out, "site") {
		r.Errorf("of NodePools there are\n%s", out)
	}
	if out := r.there("delete", "nodepool", "edge"); !strings.Contains(out, "Make them at the cloud's API server") {
		r.Errorf("the deletion of a NodePool is answered with %s", out)
	}
	r.kubectl("patch", "nodepool", "edge", "--type=merge", "-p", `{"spec":{"labels":{"changed":"yes"}}}`)
	if out := r.same("get", "nodepools", "edge", "-o", "yaml"); !strings.Contains(out, "changed:") {
		r.Errorf("the NodePool is %s", out)
	}
	began := time.Now()
	r.poolIsTheSame()
	r.Logf("a new Service is at the coordinator after %s", time.Since(began).Round(100*time.Millisecond))
	r.kubectl("create", "namespace", "short")
	r.kubectl("label", "service", "-n", namespace, "web", "changed=yes")
	if out := r.same("get", "services", "-n", namespace, "web", "-o", "yaml"); !strings.Contains(out, "changed: \"yes\"") {
		r.Errorf("the Service is %s", out)
	}
	r.poolIsTheSame()
	r.kubectl("delete", "namespace", "short")
	r.kubectl("delete", "endpointslice", "-n", namespace, "web")
	r.poolIsTheSame()
	if _, err := r.people.DiscoveryV1().EndpointSlices(namespace).Get(r.Context(), "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		r.Errorf("an EndpointSlice that is gone is read: %v", err)
	}
	if out := r.there("get", "events", "-A"); !strings.Contains(out, "No resources found") {
		r.Errorf("there are events that the cloud does not have:\n%s", out)
	}
}

func (r *poolRig) testReadOnly() {
	masters := r.coordinator.client("root", "system:masters")
	for name, client := range map[string]kubernetes.Interface{"people": r.people, "system:masters": masters} {
		pods := client.CoreV1().Pods(namespace)
		_, createErr := pods.Create(r.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "new"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "nginx"}}}}, metav1.CreateOptions{})
		_, patchErr := pods.Patch(r.Context(), "pod-0", "application/merge-patch+json", []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
		_, statusErr := client.CoreV1().Nodes().Patch(r.Context(), nodeName, "application/merge-patch+json", []byte(`{"status":{"phase":"Terminated"}}`), metav1.PatchOptions{}, "status")
		for verb, err := range map[string]error{
			"create": createErr, "patch": patchErr, "delete": pods.Delete(r.Context(), "pod-0", metav1.DeleteOptions{}),
			"delete a Service": client.CoreV1().Services(namespace).Delete(r.Context(), "web", metav1.DeleteOptions{}),
			"deletecollection": pods.DeleteCollection(r.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}),
		} {
			if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "Make them at the cloud's API server") {
				r.Errorf("%s: %s is answered with %v, want the way to the cloud", name, verb, err)
			}
		}
		if !apierrors.IsForbidden(statusErr) {
			r.Errorf("%s: a change of a node's status is answered with %v", name, statusErr)
		}
	}
	policies := masters.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	policy, err := policies.Get(r.Context(), "no-changes.atoll.dev", metav1.GetOptions{})
	if err == nil {
		err = policies.Delete(r.Context(), policy.Name, metav1.DeleteOptions{})
	}
	if err != nil {
		r.Fatal(err) // an API server has no policy for policies
	}
	r.eventually("the policy is back", func() error {
		now, err := policies.Get(r.Context(), policy.Name, metav1.GetOptions{})
		if err == nil && now.UID == policy.UID {
			err = errors.New("it is not gone yet")
		}
		return err
	})
	r.eventually("it refuses changes again", func() error {
		err := masters.CoreV1().Pods(namespace).Delete(r.Context(), "pod-0", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsForbidden(err) {
			return fmt.Errorf("a pod's deletion is answered with %s", fmt.Sprint(err))
		}
		return nil
	})
	if out := r.there("auth", "can-i", "get", "pods"); !strings.Contains(out, "yes") {
		r.Errorf("kubectl auth can-i: %s", out)
	}
	stranger := r.coordinator.client("mallory")
	if _, err := stranger.CoreV1().Pods(namespace).List(r.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		r.Errorf("who is in no group reads pods: %v", err)
	}
	if _, err := r.people.CoreV1().Secrets(namespace).List(r.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		r.Errorf("people read Secrets: %v", err)
	}
	r.podsAreTheSame()
}

// put uploads an object under a name, and returns the code and the reason of its result.
func (r *poolRig) put(send func(method, path string, body any) (int, string), name string, object any) (code int, reason string) {
	r.Helper()
	body, is := object.([]byte)
	if !is {
		var err error
		if body, err = json.Marshal(object); err != nil {
			r.Fatal(err)
		}
	}
	contentType, form, err := governance.EncodeUploads([]governance.Upload{{Ref: governance.ParseRef(name), Body: body}})
	if err != nil {
		r.Fatal(err)
	}
	code, answer := send("POST", governance.UploadPath, uploadForm{contentType, form})
	var results governance.UploadAnswer
	if code != http.StatusOK || json.Unmarshal([]byte(answer), &results) != nil || len(results.Results) != 1 {
		return code, answer
	}
	return results.Results[0].Code, results.Results[0].Reason
}

type uploadForm struct {
	contentType string
	body        []byte
}

// uploader returns what asks the writer as a user of the cluster, or without a certificate.
func (r *poolRig) uploader(user string, groups ...string) func(method, path string, body any) (int, string) {
	r.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.coordinator.ca.Cert)
	config := &tls.Config{RootCAs: roots, ServerName: governance.ServerName}
	if user != "" {
		path, err := r.Kubeconfig(r.Context(), user, groups...)
		if err != nil {
			r.Fatal(err)
		}
		file, err := clientcmd.LoadFromFile(path)
		if err != nil {
			r.Fatal(err)
		}
		for _, info := range file.AuthInfos {
			pair, err := tls.X509KeyPair(info.ClientCertificateData, info.ClientKeyData)
			if err != nil {
				r.Fatal(err)
			}
			config.Certificates = []tls.Certificate{pair}
		}
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}, Timeout: time.Minute}
	r.Cleanup(client.CloseIdleConnections)
	return func(method, path string, body any) (int, string) {
		contentType := "application/json"
		text, is := body.([]byte)
		if form, isForm := body.(uploadForm); isForm {
			contentType, text = form.contentType, form.body
		} else if !is {
			var err error
			if text, err = json.Marshal(body); err != nil {
				r.Fatal(err)
			}
		}
		request, err := http.NewRequestWithContext(r.Context(), method, "https://"+r.coordinator.writer+path, bytes.NewReader(text))
		if err != nil {
			r.Fatal(err)
		}
		request.Header.Set("Content-Type", contentType)
		response, err := client.Do(request)
		if err != nil {
			return 0, err.Error()
		}
		defer response.Body.Close()
		answer, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(answer)
	}
}

func (r *poolRig) testForeignUploads() {
	own, err := r.admin.CoreV1().Pods(namespace).Get(r.Context(), "pod-0", metav1.GetOptions{})
	if err != nil {
		r.Fatal(err)
	}
	own.APIVersion, own.Kind = "v1", "Pod"
	changed := func(change func(*corev1.Pod)) *corev1.Pod {
		pod := own.DeepCopy()
		pod.ResourceVersion = "999999999"
		change(pod)
		return pod
	}
	node := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "1", ResourceVersion: "999999999"}}
	pod, edge, other := "pods/default/pod-0", r.uploader("system:node:"+nodeName, "system:nodes"), r.uploader("system:node:other", "system:nodes")
	for name, tc := range map[string]struct {
		send   func(method, path string, body any) (int, string)
		method string // "": an upload, under the name path
		path   string
		body   any
		want   int // 0: no connection
		says   string
	}{
		"without a certificate":           {r.uploader(""), "", pod, own, 0, ""},
		"a person":                        {r.uploader("alice", "system:masters"), "", pod, own, 403, "not the certificate of a node"},
		"a node's name without its group": {r.uploader("system:node:" + nodeName), "", pod, own, 403, "not the certificate of a node"},
		"a node of another pool":          {r.uploader("system:node:foreign", "system:nodes"), "", pod, own, 403, "is not in the pool"},
		"another node's pod":              {other, "", pod, changed(func(*corev1.Pod) {}), 403, "is not bound to the node other"},
		"another node's pod, as its own":  {other, "", pod, changed(func(p *corev1.Pod) { p.Spec.NodeName = "other" }), 403, "is of the node edge"},
		"another node's pod, made anew":   {other, "", pod, changed(func(p *corev1.Pod) { p.UID, p.Spec.NodeName = "2", "other" }), 403, "is of the node edge"},
		"another node":                    {other, "", "nodes/" + nodeName, node, 403, "is not the node other"},
		"a Service, and the hub does not lead": {other, "", "services/default/web", &corev1.Service{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web", UID: "1", ResourceVersion: "999999999"},
		}, 403, "does not lead"},
		"what is of the pool, and the hub does not lead": {other, "POST", governance.PoolInventoryPath, governance.Inventory{}, 403, "does not lead"},
		"an event": {edge, "", "events/default/s", own, 422, "is not one that hubs upload"},
		"a Secret that nobody asks for": {edge, "", "secrets/default/settings", &corev1.Secret{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "settings", UID: "1", ResourceVersion: "1"},
		}, 403, "settings"},
		"a path out of the API's keys":    {edge, "", "pods/default/../../minions/edge", own, 422, "is not one that hubs upload"},
		"a name out of the API's keys":    {edge, "", "pods/default/..", own, 422, "is not the name of an object"},
		"an old version":                  {edge, "", pod, changed(func(p *corev1.Pod) { p.ResourceVersion = "1" }), 409, "is stored"},
		"a list":                          {edge, "", pod, []byte(`{"apiVersion":"v1","kind":"PodList","items":[]}`), 422, "is a PodList"},
		"no object at all":                {edge, "", pod, []byte("\x00\x01"), 422, "neither JSON nor protobuf"},
		"two megabytes":                   {edge, "", pod, bytes.Repeat([]byte("a"), governance.MaxObject+1), 422, "too large"},
		"an inventory that is none":       {edge, "POST", governance.InventoryPath, []byte("["), 422, "reading the request"},
		"an inventory of others' objects": {other, "POST", governance.InventoryPath, governance.Inventory{Items: []governance.Item{{Ref: governance.Ref{Resource: "pods", Namespace: namespace, Name: "pod-0"}, UID: "2", Version: "999999999"}}}, 200, `"missing":null`},
		"another path":                    {edge, "GET", "/", nil, 404, ""},
	} {
		send := func() (int, string) { return tc.send(tc.method, tc.path, tc.body) }
		if tc.method == "" {
			send = func() (int, string) { return r.put(tc.send, tc.path, tc.body) }
		}
		if code, says := send(); code != tc.want || !strings.Contains(says, tc.says) {
			r.Errorf("%s: the answer is %d %s, want %d %q", name, code, says, tc.want, tc.says)
		}
	}
	r.podsAreTheSame()
	r.nodeIsTheSame()
	r.poolIsTheSame()
}

// testWithoutUsage kills the server of metrics.k8s.io, which kube-apiserver aggregates.
func (r *poolRig) testWithoutUsage() {
	available := func(want string) {
		r.Helper()
		began := time.Now()
		r.eventually("metrics.k8s.io is "+want, func() error {
			if out := r.there("get", "--raw", "/apis/metrics.k8s.io/v1beta1"); strings.Contains(out, "PodMetrics") != (want == "available") {
				return errors.New(short(out))
			}
			return nil
		})
		r.Logf("metrics.k8s.io is %s after %s", want, time.Since(began).Round(100*time.Millisecond))
	}
	works := func(when string) {
		r.Helper()
		for command, want := range map[string]string{"get pods -A": "pod-0", "get nodes": nodeName, "get namespaces": "kube-system", "api-resources": "configmaps", "version": "Server Version"} {
			began := time.Now()
			out := r.there(strings.Fields(command)...)
			if !strings.Contains(out, want) {
				r.Errorf("%s, kubectl %s prints %s", when, command, out)
			}
			r.Logf("%s, kubectl %s takes %s, and complains %q", when, command, time.Since(began).Round(time.Millisecond), regexp.MustCompile(`(?m)^.*([Ee]rror|[Ww]arning):.*$`).FindAllString(out, -1))
		}
		began := time.Now()
		out := r.there("top", "nodes")
		r.Logf("%s, kubectl top nodes prints after %s: %s", when, time.Since(began).Round(100*time.Millisecond), short(out))
	}
	available("available")
	works("with metrics.k8s.io")
	if out, err := exec.CommandContext(r.Context(), "curl", "--silent", "--insecure", "--max-time", "5", "https://"+r.coordinator.usage+"/apis/metrics.k8s.io/v1beta1").Output(); err == nil {
		r.Errorf("a client without a certificate is answered with %s", out)
	}
	r.coordinator.kill("write")
	works("just killed")
	r.eventually("kube-apiserver knows", func() error {
		out := r.print(r.coordinator.kubeconfig("root", "system:masters"), "get", "apiservice", "v1beta1.metrics.k8s.io")
		if !strings.Contains(out, "False") {
			return errors.New(out)
		}
		return nil
	})
	works("without metrics.k8s.io")
	r.coordinator.run("write")
	available("available")
}

func (r *poolRig) testKills() {
	c := r.coordinator
	for n, name := range []string{"write", "kube-apiserver", "etcd"} {
		c.kill(name)
		r.kubectl("label", "pod", "-n", namespace, "pod-0", fmt.Sprintf("killed=%d", n), "--overwrite")
		c.run(name)
		r.podsAreTheSame()
		r.Logf("%s was killed, and all is the same again", name)
	}
	for n, name := range []string{"write", "etcd"} {
		process := c.running[name].Process
		if err := process.Signal(syscall.SIGSTOP); err != nil {
			r.Fatal(err)
		}
		r.kubectl("label", "pod", "-n", namespace, "pod-0", fmt.Sprintf("hung=%d", n), "--overwrite")
		r.eventually("the hub notices", func() error {
			out, err := exec.CommandContext(r.Context(), r.program, "--config="+filepath.Join(r.dir, "hub.yaml"), "status").Output()
			if err == nil && !strings.Contains(string(out), "coordinator of the pool: not up to date") {
				err = errors.New("its status does not tell")
			}
			return err
		})
		if a := r.ask(r.over, question{"node", "/api/v1/nodes/" + nodeName, "application/json"}); a.code != http.StatusOK || a.asOf != "" {
			r.Errorf("while %s hangs, the hub answers the node with %+v", name, a)
		}
		if err := process.Signal(syscall.SIGCONT); err != nil {
			r.Fatal(err)
		}
		r.podsAreTheSame()
		r.Logf("%s hung, and all is the same again", name)
	}
}

func (r *poolRig) testEmpty() {
	c := r.coordinator
	r.kubectl("create", "namespace", "elsewhere")
	r.eventually("a pod is created in another namespace", func() error { // once its ServiceAccount is there
		_, err := r.admin.CoreV1().Pods("elsewhere").Create(r.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "away"}, Spec: corev1.PodSpec{
			NodeName: nodeName, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, Containers: []corev1.Container{{Name: "c", Image: "nginx"}},
		}}, metav1.CreateOptions{})
		return err
	})
	before := r.podsAreTheSame()
	online := question{"node", "/api/v1/nodes/" + nodeName, "application/json"}
	r.cutOff(online)
	defer r.comeBack(online)
	r.killHub() // what it knows is on its disk only
	r.startHub()
	for _, name := range []string{"write", "kube-apiserver", "etcd"} {
		c.kill(name)
	}
	if err := os.RemoveAll(c.path("data")); err != nil {
		r.Fatal(err)
	}
	began := time.Now()
	c.start()
	r.eventually("a person sees the pods again", func() error {
		if now := versions.ReplaceAllString(r.there("get", "pods", "-A", "-o", "yaml", "--field-selector=spec.nodeName="+nodeName), ""); now != before {
			return fmt.Errorf("kubectl prints %s", short(now))
		}
		return nil
	})
	if _, err := r.people.CoreV1().Nodes().Get(r.Context(), nodeName, metav1.GetOptions{}); err != nil {
		r.Errorf("the Node is not there: %v", err)
	}
	if _, err := r.people.CoreV1().Services(namespace).Get(r.Context(), "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		r.Errorf("without the cloud nobody leads, and a Service is there: %v", err)
	}
	// Its Namespace is not there, which the API server looks for before it asks the policy.
	if err := r.people.CoreV1().Pods("elsewhere").Delete(r.Context(), "away", metav1.DeleteOptions{}); err == nil {
		r.Error("a pod whose Namespace is not there can be deleted")
	}
	if _, err := r.people.CoreV1().Pods("elsewhere").Get(r.Context(), "away", metav1.GetOptions{}); err != nil {
		r.Errorf("after a refused deletion, the pod is read: %v", err)
	}
	r.Logf("empty, started, and full again after %s, without the cloud", time.Since(began).Round(100*time.Millisecond))
}

// asksForSecrets writes what the YurtCoordinator asks for, for the hub and for the writer.
func (r *poolRig) asksForSecrets(asks bool) {
	r.Helper()
	kinds := map[bool]string{true: "Secrets"}[asks]
	r.kubectl("patch", "yurtcoordinator", "edge", "--type=json", "-p", fmt.Sprintf(`[{"op":"add","path":"/spec/upload","value":[%s]}]`, map[bool]string{true: `"Secrets"`}[asks]))
	r.coordinator.write("upload", []byte(kinds))
}

func (r *poolRig) testSecrets() {
	secrets, kept := r.admin.CoreV1().Secrets(namespace), []string{"in-env", "to-pull", "of-nobody"}
	for _, name := range kept {
		if _, err := secrets.Create(r.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{"password": []byte("correct horse")}}, metav1.CreateOptions{}); err != nil {
			r.Fatal(err)
		}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "with-secrets"}, Spec: corev1.PodSpec{
		NodeName: nodeName, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "to-pull"}},
		Containers: []corev1.Container{{Name: "c", Image: "nginx", Env: []corev1.EnvVar{{Name: "P", ValueFrom: &corev1.EnvVarSource{
			SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "in-env"}, Key: "password"},
		}}}}},
	}}
	if _, err := r.admin.CoreV1().Pods(namespace).Create(r.Context(), pod, metav1.CreateOptions{}); err != nil {
		r.Fatal(err)
	}
	r.podsAreTheSame()
	masters := r.coordinator.kubeconfig("root", "system:masters")
	has := func(want ...string) {
		r.Helper()
		r.eventually(fmt.Sprintf("the coordinator has the Secrets %q", want), func() error {
			if got := strings.Fields(r.print(masters, "get", "secrets", "-A", "-o", "jsonpath={.items[*].metadata.name}")); !slices.Equal(got, want) {
				return fmt.Errorf("it has %q", got)
			}
			return nil
		})
	}
	canRead := func(want string) {
		r.Helper()
		r.eventually("whether people may read Secrets: "+want, func() error {
			if out := r.there("auth", "can-i", "list", "secrets"); strings.TrimSpace(out) != want {
				return errors.New(out)
			}
			return nil
		})
	}
	has()
	canRead("no")
	r.asksForSecrets(true)
	has("in-env", "to-pull")
	canRead("yes")
	for _, name := range []string{"in-env", "to-pull"} {
		r.same("get", "secret", "-n", namespace, name, "-o", "yaml")
	}
	if out := r.there("get", "secrets", "-n", namespace); !strings.Contains(out, "TYPE") || !regexp.MustCompile(`in-env +Opaque +1 `).MatchString(out) {
		r.Errorf("the table of Secrets is\n%s", out)
	}
	for _, args := range [][]string{{"delete", "secret", "in-env"}, {"create", "secret", "generic", "new"}, {"label", "secret", "in-env", "a=b"}} {
		if out := r.there(append(args, "-n", namespace)...); !strings.Contains(out, "Make them at the cloud's API server") {
			r.Errorf("kubectl %s: %s", strings.Join(args, " "), out)
		}
	}
	r.coordinator.write("upload", nil) // the hub still lists them
	began := time.Now()
	has()
	r.Logf("Secrets are gone %s after the file says so", time.Since(began).Round(100*time.Millisecond))
	canRead("no")
	r.asksForSecrets(false)
	r.kubectl("delete", "pod", "-n", namespace, "with-secrets", "--grace-period=0", "--force")
	r.podsAreTheSame()
	for _, log := range []string{filepath.Join(r.dir, "hub.log"), r.coordinator.path("write.log")} {
		text, err := os.ReadFile(log)
		if err != nil || bytes.Contains(text, []byte("correct horse")) || bytes.Contains(text, []byte(base64.StdEncoding.EncodeToString([]byte("correct horse")))) {
			r.Errorf("%s has the content of a Secret, or cannot be read: %v", log, err)
		}
	}
}

// testFull fills etcd, whose quota are 32 MiB, with versions of an object that were there before.
func (r *poolRig) testFull() {
	other := r.uploader("system:node:other", "system:nodes")
	upload := func(version int) (int, string) {
		pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, Spec: corev1.PodSpec{NodeName: "other"}}
		pod.ObjectMeta = metav1.ObjectMeta{
			Namespace: namespace, Name: "large", UID: "large", ResourceVersion: fmt.Sprint(version), Annotations: map[string]string{"large": strings.Repeat("a", 500<<10)},
		}
		return r.put(other, "pods/default/large", pod)
	}
	full, version := 0, 0
	for after := 0; after < 20; { // uploads once it was full
		version++
		code, says := upload(version)
		switch {
		case code == http.StatusInsufficientStorage && strings.Contains(says, "etcd was full"):
			full++
		case code != http.StatusOK:
			r.Fatalf("version %d of an object: the answer is %d %s", version, code, says)
		case full > 0:
			after++
		case version > 500:
			r.Fatal("etcd is never full")
		}
	}
	r.Logf("%d versions of half a megabyte were uploaded into etcd, which was full %d times", version, full)
	r.kubectl("label", "pod", "-n", namespace, "pod-0", "full=no")
	r.podsAreTheSame()
	if code, says := other("POST", governance.InventoryPath, governance.Inventory{}); code != http.StatusOK {
		r.Errorf("an inventory without the object: the answer is %d %s", code, says)
	}
	if pods := r.there("get", "pods", "-A"); strings.Contains(pods, "large") {
		r.Errorf("what a node does not have any more is there: %s", pods)
	}
}
