package nodes

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/controller/hubserving"
	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/machinery/certs"
	"github.com/atoll-k8s/atoll/internal/manager"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// accessRig is a pool of two nodes whose coordinator runs, as processes, on the second one.
type accessRig struct {
	*offRig

	dir     string // of the coordinator's files
	ca      certs.Pair
	address string // of the coordinator's node
	pod     *corev1.Pod
}

// TestPeopleReachPodsOfANodeThatIsCutOff: kubectl logs, exec, cp, attach and port-forward at the coordinator of a pool
// reach a container on a node that the cloud does not reach, by the API server there, the hub and the kubelet of the node.
func TestPeopleReachPodsOfANodeThatIsCutOff(t *testing.T) {
	tier.All(t, "a minute; the tests of internal/hub/access, of internal/hub/kubelet and of internal/controller/hubserving have each promise")
	t.Parallel()
	r := &accessRig{offRig: &offRig{rig: startRig(t, map[string][]string{
		devcluster.ControllerManager: {"--node-monitor-grace-period=8s", "--node-monitor-period=1s"},
	})}}
	gateway, err := atoll.NewHub(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	var specs []devcluster.RealNodeSpec
	for _, name := range edge {
		specs = append(specs, devcluster.RealNodeSpec{
			NodeSpec: devcluster.NodeSpec{Name: name, Labels: map[string]string{apps.NodePoolLabel: "edge"}}, Pool: "edge", Gateway: gateway,
			Kubelet: map[string]any{"nodeLeaseDurationSeconds": 8},
		})
	}
	if err := r.AddRealNodes(t.Context(), specs...); err != nil {
		t.Fatal(err)
	}
	r.startSigner()
	r.startCoordinator()
	for _, name := range edge {
		r.on(name, fmt.Sprintf("echo 'pool: {coordinators: [%q], caFile: %s}' >>/run/node/gateway.yaml", r.address+":10271", r.path("pool.crt")))
		if err := r.RestartOn(t.Context(), name, atoll.Hub); err != nil {
			t.Fatal(err)
		}
	}
	r.pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.PodSpec{
		NodeName: edge[0],
		Volumes:  []corev1.Volume{{Name: "data"}}, // an emptyDir
		Containers: []corev1.Container{{
			Name: "web", Image: devcluster.PauseImage, Args: []string{"serve", ":8080"}, ImagePullPolicy: corev1.PullNever, Stdin: true,
			VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
		}},
	}}
	r.eventually("a pod is created", func() error { // once its ServiceAccount is there
		return r.client.Create(r.Context(), r.pod)
	})
	r.eventually("the pod runs", r.runs(r.pod, 0))
	served := func() error {
		out, err := r.get(edge[0], "http://127.0.0.1:10267/status")
		if err == nil && !strings.Contains(out, `"access":{"address":"[::]:10262"`) {
			_, out, _ = strings.Cut(out, `"coordinator"`)
			err = fmt.Errorf("it says %s", out)
		}
		return err
	}
	r.eventually("the hub has its certificate, and serves the API server of the pool", served)
	r.eventually("people see the pod at the coordinator", func() error {
		_, err := r.people("get", "pod", "web")
		return err
	})
	if out, err := r.people("get", "node", edge[0], "-o", "jsonpath={.status.daemonEndpoints.kubeletEndpoint.Port}"); err != nil || out != fmt.Sprint(governance.HubPort) {
		t.Errorf("the kubelet's port at the coordinator is %s, %v", out, err)
	}
	r.uses("while the cloud is there,")
	if err := r.SetLeg(t.Context(), edge[0], devcluster.Cloud, devcluster.LegState{Cut: true}); err != nil {
		t.Fatal(err)
	}
	r.eventually("the cloud has lost the node", r.ready(edge[0], corev1.ConditionUnknown))
	r.eventually("the hub has lost the cloud", r.hubIs(edge[0], "Offline"))
	r.uses("cut off,")
	for _, program := range []string{atoll.Hub, devcluster.Kubelet} { // nothing of what is shown or allowed is remembered
		if err := r.RestartOn(t.Context(), edge[0], program); err != nil {
			t.Fatal(err)
		}
	}
	r.eventually("the hub serves the API server of the pool again", served)
	r.eventually("the kubelet has synchronised its pods", r.kubeletIsWell)
	r.uses("cut off, after a restart of hub and kubelet,")
	r.refuses()
}

func (r *accessRig) path(name string) string { return filepath.Join(r.dir, name) }

func (r *accessRig) write(name string, content []byte) {
	r.Helper()
	if err := os.WriteFile(r.path(name), content, 0o600); err != nil {
		r.Fatal(err)
	}
}

func (r *accessRig) issue(leaf certs.Leaf) certs.Pair {
	r.Helper()
	pair, err := certs.Issue(r.ca, leaf, time.Now())
	if err != nil {
		r.Fatal(err)
	}
	return pair
}

// startSigner makes the CA of the pool, and runs the manager's controller that signs with it.
func (r *accessRig) startSigner() {
	r.Helper()
	var err error
	if r.ca, err = certs.NewCA(time.Now()); err != nil {
		r.Fatal(err)
	}
	r.create(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: governance.Namespace}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: governance.Namespace, Name: governance.CASecret("edge")}, Data: map[string][]byte{"ca.crt": r.ca.Cert, "ca.key": r.ca.Key}},
	)
	// With the rights of the controller's markers, and no others.
	meta, subjects := metav1.ObjectMeta{Namespace: governance.Namespace, Name: "signer"}, []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "signer"}}
	const certificates = "certificates.k8s.io"
	r.create(
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "signer"}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{certificates}, Resources: []string{"certificatesigningrequests"}, Verbs: []string{"get", "list", "watch"}},
			{APIGroups: []string{certificates}, Resources: []string{"certificatesigningrequests/approval", "certificatesigningrequests/status"}, Verbs: []string{"update"}},
			{APIGroups: []string{certificates}, Resources: []string{"signers"}, ResourceNames: []string{governance.HubSigner}, Verbs: []string{"approve", "sign"}},
			{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list"}},
		}},
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}}}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "signer"}, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "signer"}},
		&rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "signer"}},
	)
	config := rest.CopyConfig(r.AdminConfig())
	config.Impersonate.UserName = "signer"
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: manager.Scheme(), Metrics: server.Options{BindAddress: "0"},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&certificatesv1.CertificateSigningRequest{}: {Field: fields.OneTermEqualSelector("spec.signerName", governance.HubSigner)},
		}},
	})
	if err == nil {
		err = (&hubserving.Reconciler{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: clock.RealClock{}}).SetupWithManager(mgr)
	}
	if err != nil {
		r.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(r.Context()) }()
	r.Cleanup(func() {
		if err := <-ended; err != nil {
			r.Error(err)
		}
	})
}

// startCoordinator starts the programs of a coordinator's pod on the second node.
func (r *accessRig) startCoordinator() {
	r.Helper()
	on := edge[1]
	var node corev1.Node
	if err := r.client.Get(r.Context(), client.ObjectKey{Name: on}, &node); err != nil {
		r.Fatal(err)
	}
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			r.address = a.Address
		}
	}
	var err error
	if r.dir, err = os.MkdirTemp("", "pool"); err != nil { // short: sockets are in it
		r.Fatal(err)
	}
	r.Cleanup(func() {
		if r.Failed() {
			for _, name := range []string{"etcd", "kube-apiserver", "write"} {
				text, _ := os.ReadFile(r.path(name + ".log"))
				r.Logf("the log of %s ends with:\n%s", name, text[max(0, len(text)-3000):])
			}
		}
		_ = os.RemoveAll(r.dir)
	})
	program := r.path("atoll-coordinator")
	build := exec.CommandContext(r.Context(), "go", "build", "-o", program, "github.com/atoll-k8s/atoll/cmd/atoll-coordinator")
	build.Dir, build.Env = filepath.Join("..", ".."), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		r.Fatalf("%v: %s", err, out)
	}
	serving := r.issue(certs.Leaf{CommonName: "coordinator", Names: []string{governance.ServerName, "127.0.0.1", r.address}})
	asks := r.issue(certs.Leaf{CommonName: "kube-apiserver", Groups: []string{governance.APIServerGroup}})
	for name, content := range map[string][]byte{
		"pool.crt": r.ca.Cert, "server.crt": serving.Cert, "server.key": serving.Key, "asks.crt": asks.Cert, "asks.key": asks.Key,
		"nodes.crt": r.AdminConfig().CAData, "nodes": []byte(strings.Join(edge, "\n")),
	} {
		r.write(name, content)
	}
	person := r.issue(certs.Leaf{CommonName: "alice", Groups: []string{governance.PeopleGroup}})
	config := api.NewConfig()
	config.Clusters["pool"] = &api.Cluster{Server: "https://" + r.address + ":10270", CertificateAuthority: r.path("pool.crt"), TLSServerName: governance.ServerName}
	config.AuthInfos["alice"] = &api.AuthInfo{ClientCertificateData: person.Cert, ClientKeyData: person.Key}
	config.Contexts["pool"] = &api.Context{Cluster: "pool", AuthInfo: "alice"}
	config.CurrentContext = "pool"
	if err := clientcmd.WriteToFile(*config, r.path("alice")); err != nil {
		r.Fatal(err)
	}
	r.on(on, fmt.Sprintf("%s prepare --directory=%s --pool-ca=%s --server=https://%s:10270", program, r.dir, r.path("pool.crt"), r.address))
	socket := "unix://" + r.path("etcd.sock:0")
	for _, command := range [][]string{
		{"etcd", r.BinaryPath("etcd"), "--name=c", "--data-dir=data", "--unsafe-no-fsync", "--log-level=warn", "--listen-client-urls=unix://etcd.sock:0", "--advertise-client-urls=unix://etcd.sock:0",
			"--listen-peer-urls=unix://peer.sock:0", "--initial-advertise-peer-urls=unix://peer.sock:0", "--initial-cluster=c=unix://peer.sock:0"},
		{"kube-apiserver", r.BinaryPath("kube-apiserver"), "--secure-port=10270", "--etcd-servers=" + socket, "--tls-cert-file=server.crt", "--tls-private-key-file=server.key", "--client-ca-file=clients.crt",
			"--service-account-issuer=https://coordinator.atoll-pools.svc", "--service-account-key-file=service-account.crt", "--service-account-signing-key-file=service-account.key", "--service-cluster-ip-range=10.0.0.0/24",
			"--authorization-mode=RBAC", "--anonymous-auth=false", "--endpoint-reconciler-type=none", "--disable-admission-plugins=ServiceAccount", "--enable-priority-and-fairness=false",
			"--kubelet-preferred-address-types=InternalIP", "--kubelet-certificate-authority=pool.crt", "--kubelet-client-certificate=asks.crt", "--kubelet-client-key=asks.key"},
		{"write", program, "write", "--listen=:10271", "--etcd=" + socket, "--kubeconfig=kubeconfig", "--tls-cert-file=server.crt", "--tls-private-key-file=server.key", "--client-ca-file=nodes.crt", "--nodes-file=nodes"},
	} {
		// They end with the node.
		r.on(on, fmt.Sprintf("cd %s; setsid %s </dev/null >%s.log 2>&1 &", r.dir, strings.Join(command[1:], " "), command[0]))
	}
}

// people runs kubectl at the coordinator, as a person on its node.
func (r *accessRig) people(args ...string) (string, error) {
	return r.RunOn(r.Context(), edge[1], "/usr/bin/timeout", append([]string{"60", r.BinaryPath("kubectl"), "--kubeconfig=" + r.path("alice")}, args...)...)
}

// uses runs what people use.
func (r *accessRig) uses(when string) {
	r.Helper()
	for what, tc := range map[string]struct {
		args []string
		want string
	}{
		"logs": {[]string{"logs", "web"}, "serving as web"},
		"exec": {[]string{"exec", "web", "--", "/pause", "get", "http://127.0.0.1:8080"}, "web"},
	} {
		r.eventually(when+" "+what+" works", func() error {
			out, err := r.people(tc.args...)
			if err == nil && !strings.Contains(out, tc.want) {
				err = fmt.Errorf("it prints %q", out)
			}
			return err
		})
	}
	shell := func(what, script, want string) {
		r.Helper()
		kubectl := r.BinaryPath("kubectl") + " --kubeconfig=" + r.path("alice")
		out, err := r.RunOn(r.Context(), edge[1], "/bin/sh", "-c", strings.ReplaceAll(script, "KUBECTL", kubectl))
		if err != nil || !strings.Contains(out, want) {
			r.Errorf("%s %s prints %q, %v", when, what, out, err)
		}
	}
	shell("exec with input", "echo hello | timeout 60 KUBECTL exec -i web -- /pause echo", "hello")
	shell("cp", fmt.Sprintf("cd %s && echo copied >there && timeout 60 KUBECTL cp there web:/data/here && timeout 60 KUBECTL cp web:/data/here back && cat back", r.dir), "copied")
	shell("attach", "timeout 3 KUBECTL attach web -i </dev/null; test $? -eq 0 -o $? -eq 124 && echo attached", "attached")
	shell("port-forward", fmt.Sprintf("KUBECTL port-forward web 18080:8080 >%[1]s/forward.log 2>&1 & forward=$!; for n in 1 2 3 4 5 6 7 8 9 10; do sleep 1; %[2]s get http://127.0.0.1:18080 && break; done; kill $forward", r.dir, filepath.Join(r.Dir(), "bin", "devcluster-pause")), "web")
	r.T.Logf("%s logs, exec, cp, attach and port-forward work", when)
}

// refuses shows who is refused at the port of the hub of the node that is cut off, by a program on another one.
func (r *accessRig) refuses() {
	r.Helper()
	var node corev1.Node
	if err := r.client.Get(r.Context(), client.ObjectKey{Name: edge[0]}, &node); err != nil {
		r.Fatal(err)
	}
	address := ""
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			address = a.Address
		}
	}
	asks := func(cert, key, path string) error {
		args := []string{"--silent", "--show-error", "--fail", "--max-time", "20", "--cacert", r.path("pool.crt"), fmt.Sprintf("https://%s:%d%s", address, governance.HubPort, path)}
		if cert != "" {
			args = append(args, "--cert", cert, "--key", key)
		}
		_, err := r.RunOn(r.Context(), edge[1], "/usr/bin/curl", args...)
		return err
	}
	if _, err := os.Stat("/usr/bin/curl"); err != nil {
		r.T.Log("without curl, nobody is refused:", err)
		return
	}
	person := r.issue(certs.Leaf{CommonName: "alice", Groups: []string{governance.PeopleGroup}})
	r.write("person.crt", person.Cert)
	r.write("person.key", person.Key)
	if err := asks(r.path("asks.crt"), r.path("asks.key"), "/metrics/resource"); err != nil {
		r.Errorf("the API server of the pool is refused: %v", err)
	}
	for what, err := range map[string]error{
		"a pod with hostNetwork": asks("", "", "/metrics/resource"),
		"a person":               asks(r.path("person.crt"), r.path("person.key"), "/metrics/resource"),
		"a node":                 asks("/run/node/node.pem", "/run/node/node.pem", "/metrics/resource"),
		"another path":           asks(r.path("asks.crt"), r.path("asks.key"), "/pods"),
	} {
		if err == nil {
			r.Errorf("%s is not refused", what)
		}
	}
	if out, err := r.people("get", "--raw", "/api/v1/nodes/"+edge[0]+"/proxy/pods"); err == nil || !strings.Contains(err.Error(), "orbidden") {
		r.Errorf("a person uses the proxy to a node: %s, %v", out, err)
	}
}
