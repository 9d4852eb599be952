package nodes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// poolNodes are the nodes of the pool edge, each behind a hub.
var poolNodes = []string{"pool-0", "pool-1", "pool-2"}

// poolRig is a pool of real nodes with a coordinator.
type poolRig struct {
	*offRig

	kubeconfig string // of people
	on         string // the node of the coordinator
}

// TestTheCoordinatorOnRealNodes: a pool gets its coordinator as docs/pools.md says. While the pool is cut off
// from the cloud, people read and act there. The coordinator moves when its node is drained, is cut off or dies,
// and the hubs find it. After its deletion nothing is left of it.
func TestTheCoordinatorOnRealNodes(t *testing.T) {
	tier.All(t, "four real nodes, and a control plane on one of them: minutes")
	t.Parallel()
	r := &poolRig{offRig: &offRig{rig: startRig(t, map[string][]string{
		devcluster.ControllerManager: {"--node-monitor-grace-period=8s", "--node-monitor-period=1s"},
	}), starts: 1}}
	r.addPool(poolNodes, map[string]any{"nodeLeaseDurationSeconds": 8}) // renewed every 2 s
	r.parts(
		poolPart{"a pool gets its coordinator", (*poolRig).testDeployed},
		poolPart{"people use the coordinator while the pool is cut off", (*poolRig).testPeople},
		poolPart{"the hubs' pool ports are for the coordinator only", (*poolRig).testPoolPorts},
		poolPart{"the cloud gets the state of the pool", (*poolRig).testPulse},
		poolPart{"in the cloud, the manager and nodes have their rights and no others", (*poolRig).testRights},
		poolPart{"two nodes of the pool do not reach each other, and one hub leads", (*poolRig).testPoolLeg},
		poolPart{"its certificate is replaced, and open watches stay", (*poolRig).testNewCertificate},
		poolPart{"the next CA signs, and an older kubeconfig still works", (*poolRig).testNextCA},
		poolPart{"its node is drained", (*poolRig).testDrained},
		poolPart{"its node is cut off from the cloud, and others are not", (*poolRig).testCutNode},
		poolPart{"a node moves to another pool, and back", (*poolRig).testOtherPool},
		poolPart{"its node dies", (*poolRig).testDeadNode},
		poolPart{"nothing is left after its deletion", (*poolRig).testDeleted},
	)
}

// poolPart is a part of a test of a pool.
type poolPart struct {
	name string
	run  func(*poolRig)
}

// parts runs the parts of a test, on the same cluster, until one fails.
func (r *poolRig) parts(all ...poolPart) {
	for _, part := range all {
		if !r.Run(part.name, func(t *testing.T) {
			one := r.in(t)
			part.run(one)
			r.kubeconfig, r.on = one.kubeconfig, one.on
		}) {
			r.Log(r.poolState())
			r.FailNow()
		}
	}
}

// in returns the rig for a subtest.
func (r *poolRig) in(t *testing.T) *poolRig {
	one, off, inner := *r, *r.offRig, *r.rig
	one.offRig, off.rig, inner.T = &off, &inner, t
	return &one
}

// addPool adds a node of the cloud and these nodes of the pool, with hubs, and installs Atoll with coordinators. kubelet is what
// is special in the configuration of the pool's kubelets.
func (r *poolRig) addPool(nodes []string, kubelet map[string]any) {
	r.Helper()
	gateway, err := atoll.NewHub(r.Context(), os.Stderr)
	if err != nil {
		r.Fatal(err)
	}
	specs := []devcluster.RealNodeSpec{{NodeSpec: devcluster.NodeSpec{Name: cloudNode}, Pool: "cloud"}}
	for _, name := range nodes {
		specs = append(specs, devcluster.RealNodeSpec{
			NodeSpec: devcluster.NodeSpec{Name: name, Labels: map[string]string{apps.NodePoolLabel: "edge"}}, Pool: "edge", Gateway: gateway,
			Kubelet: kubelet,
		})
	}
	if err := r.AddRealNodes(r.Context(), specs...); err != nil {
		r.Fatal(err)
	}
	if err := atoll.LoadCoordinator(r.Context(), r.Cluster, os.Stderr, nodes...); err != nil {
		r.Fatal(err)
	}
	hub := map[string]any{"enabled": true, "config": map[string]any{"cloud": map[string]any{"servers": []string{r.AdminConfig().Host}}}}
	if _, err := atoll.Install(r.Context(), r.Cluster, atoll.Options{Values: map[string]any{"hub": hub}, Log: os.Stderr}.WithCoordinators()); err != nil {
		r.Fatal(err)
	}
}

func (r *poolRig) poolState() string {
	var all strings.Builder
	for _, args := range [][]string{
		{"get", "yurtcoordinators,nodepools,uniteddeployments,nodes,leases", "-A", "-o", "yaml"}, {"get", "events", "-A"}, {"get", "pods,secrets,services", "-n", "atoll-pools", "-o", "wide"}, {"describe", "pods", "-n", "atoll-pools"},
		{"logs", "-n", "atoll-pools", "-l", "app.kubernetes.io/name=atoll-coordinator", "--all-containers", "--prefix", "--tail=40"},
	} {
		out, err := r.tryKubectl(args...)
		fmt.Fprintf(&all, "kubectl %s: %v\n%s\n", strings.Join(args, " "), err, out)
	}
	return all.String()
}

func (r *poolRig) coordinator() (*apps.YurtCoordinator, error) {
	c := &apps.YurtCoordinator{}
	return c, r.client.Get(r.Context(), client.ObjectKey{Name: "edge"}, c)
}

// isReady waits until the coordinator is Ready, on a node that is not one of these.
func (r *poolRig) isReady(not string) {
	r.Helper()
	began := time.Now()
	r.eventually("the coordinator is Ready", func() error {
		c, err := r.coordinator()
		if err != nil {
			return err
		}
		if ready := meta.FindStatusCondition(c.Status.Conditions, apps.ConditionReady); ready == nil || ready.Status != metav1.ConditionTrue || c.Status.NodeName == not {
			return fmt.Errorf("its status is %+v", c.Status.Conditions)
		}
		r.on = c.Status.NodeName
		return nil
	})
	r.Logf("the coordinator is Ready on %s after %s", r.on, time.Since(began).Round(100*time.Millisecond))
	var secret corev1.Secret
	if err := r.client.Get(r.Context(), client.ObjectKey{Namespace: "atoll-pools", Name: "kubeconfig-edge"}, &secret); err != nil {
		r.Fatal(err)
	}
	r.kubeconfig = filepath.Join(r.Dir(), "people.kubeconfig")
	if err := os.WriteFile(r.kubeconfig, secret.Data["kubeconfig"], 0o600); err != nil {
		r.Fatal(err)
	}
}

// people runs kubectl on a node of the pool, as people do there.
func (r *poolRig) people(node string, args ...string) (string, error) {
	return r.RunOn(r.Context(), node, r.BinaryPath("kubectl"), append([]string{"--kubeconfig=" + r.kubeconfig}, args...)...)
}

// other returns a node of the pool on which the coordinator is not.
func (r *poolRig) other() string {
	for _, node := range poolNodes {
		if node != r.on {
			return node
		}
	}
	return ""
}

func (r *poolRig) testDeployed() {
	r.create(&apps.YurtCoordinator{ObjectMeta: metav1.ObjectMeta{Name: "edge"}, Spec: apps.YurtCoordinatorSpec{NodePool: "edge"}})
	r.eventually("without its NodePool it is Pending", r.pending("edge", apps.ReasonNodePoolMissing))
	r.kubectl("label", "node", poolNodes[0], apps.NodePoolLabel+"-")
	r.create(&apps.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "edge"}})
	r.eventually("with two nodes it is Pending", r.pending("edge", apps.ReasonFewNodes))
	const kind = "uniteddeployments.apps.openyurt.io"
	r.kubectl("delete", "customresourcedefinition", kind)
	r.kubectl("label", "node", poolNodes[0], apps.NodePoolLabel+"=edge")
	r.eventually("without the kind of its workload it is Pending", r.pending("edge", apps.ReasonUnitedDeploymentMissing))
	r.kubectl("apply", "--server-side", "-f", filepath.Join("..", "..", "charts", "atoll", "files", "crds", "apps.openyurt.io_uniteddeployments.yaml"))
	for _, node := range poolNodes {
		r.createWeb(node)
	}
	r.isReady("")
	r.create(&apps.YurtCoordinator{ObjectMeta: metav1.ObjectMeta{Name: "second"}, Spec: apps.YurtCoordinatorSpec{NodePool: "edge"}})
	r.eventually("a second one for the pool is Pending", r.pending("second", apps.ReasonAnotherCoordinator))
	r.kubectl("delete", "yurtcoordinator", "second")
	r.sees(r.other(), poolNodes...)
	for _, node := range poolNodes {
		r.eventually("the hub of "+node+" has its certificate, and serves the coordinator", func() error {
			out, err := r.get(node, "http://127.0.0.1:10267/status")
			if err == nil && !strings.Contains(out, `"access":{"address":"[::]:10262"`) {
				_, out, _ = strings.Cut(out, `"coordinator"`)
				err = fmt.Errorf("it says %s", out)
			}
			return err
		})
	}
}

// createWeb creates the pod of a node.
func (r *poolRig) createWeb(node string) {
	r.Helper()
	r.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-" + node}, Spec: corev1.PodSpec{
		NodeName: node, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Volumes: []corev1.Volume{{Name: "data"}}, // an emptyDir
		Containers: []corev1.Container{{
			Name: "web", Image: devcluster.PauseImage, Args: []string{"serve", ":8080"}, ImagePullPolicy: corev1.PullNever, Stdin: true,
			VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
		}},
	}})
}

// pending returns a check that a YurtCoordinator waits for a reason.
func (r *poolRig) pending(name, reason string) func() error {
	return func() error {
		c := &apps.YurtCoordinator{}
		if err := r.client.Get(r.Context(), client.ObjectKey{Name: name}, c); err != nil {
			return err
		}
		if pending := meta.FindStatusCondition(c.Status.Conditions, apps.ConditionPending); pending == nil || pending.Status != metav1.ConditionTrue || pending.Reason != reason {
			return fmt.Errorf("the condition is %+v", pending)
		}
		return nil
	}
}

// sees waits until people on a node see these nodes of the pool, and their pods that run.
func (r *poolRig) sees(from string, nodes ...string) {
	r.Helper()
	began := time.Now()
	r.eventually("people see the pool", func() error {
		out, err := r.people(from, "get", "nodes,pods", "-A")
		for _, node := range nodes {
			if err == nil && !strings.Contains(out, "node/"+node+" ") {
				err = errors.New("the node " + node + " is missing in " + out)
			}
			if err == nil && !strings.Contains(out, "pod/web-"+node+" ") {
				err = errors.New("the pod of " + node + " is missing in " + out)
			}
		}
		return err
	})
	r.Logf("people on %s see %v after %s", from, nodes, time.Since(began).Round(100*time.Millisecond))
}

func (r *poolRig) cut(is bool, nodes ...string) {
	r.Helper()
	for _, node := range nodes {
		if err := r.SetLeg(r.Context(), node, devcluster.Cloud, devcluster.LegState{Cut: is}); err != nil {
			r.Fatal(err)
		}
	}
}

func (r *poolRig) testPeople() {
	r.cut(true, poolNodes...)
	r.eventually("the cloud has lost the pool", func() error {
		for _, node := range poolNodes {
			if err := r.ready(node, corev1.ConditionUnknown)(); err != nil {
				return err
			}
		}
		return nil
	})
	from := r.other()
	r.sees(from, poolNodes...)
	for verb, args := range map[string][]string{
		"describe": {"describe", "pod", "web-" + from}, "version": {"version"}, "api-resources": {"api-resources"}, "yaml": {"get", "node", from, "-o", "yaml"},
	} {
		if out, err := r.people(from, args...); err != nil || len(out) < 50 {
			r.Errorf("%s: %v: %s", verb, err, out)
		}
	}
	for _, args := range [][]string{{"delete", "pod", "web-" + from}, {"label", "node", from, "a=b"}, {"taint", "node", from, "a=b:NoSchedule"}} {
		if out, err := r.people(from, args...); err == nil || !strings.Contains(err.Error(), "Make them at the cloud's API server") {
			r.Errorf("kubectl %s: %v %s, want the way to the cloud", strings.Join(args, " "), err, out)
		}
	}
	r.tops("cut off,", from)
	for _, on := range poolNodes {
		r.use("cut off,", from, on)
	}
	for _, program := range []string{atoll.Hub, devcluster.Kubelet} { // nothing of what is shown or allowed is remembered
		if err := r.RestartOn(r.Context(), from, program); err != nil {
			r.Fatal(err)
		}
	}
	r.use("after a restart of hub and kubelet,", from, from)
	r.cut(false, poolNodes...)
	for _, node := range poolNodes {
		r.eventually("the node "+node+" is back", r.ready(node, corev1.ConditionTrue))
	}
	r.settled(poolNodes...)
}

// settled waits until the coordinator is Ready, shows these nodes, and will not be started anew. After a long cut of the whole pool it is:
// the cloud has taken it for dead.
func (r *poolRig) settled(nodes ...string) {
	r.Helper()
	r.eventually("the coordinator has one pod, which stays", func() error {
		var pods corev1.PodList
		if err := r.client.List(r.Context(), &pods, client.InNamespace("atoll-pools")); err != nil {
			return err
		}
		if len(pods.Items) != 1 || pods.Items[0].DeletionTimestamp != nil {
			return fmt.Errorf("there are %d pods; the first is being deleted: %t", len(pods.Items), len(pods.Items) > 0 && pods.Items[0].DeletionTimestamp != nil)
		}
		return nil
	})
	r.isReady("")
	r.sees(r.other(), nodes...)
}

// tops waits for what kubectl top prints on a node: all nodes and pods of the pool, and what selectors choose of them.
func (r *poolRig) tops(when, from string) {
	r.Helper()
	top := func(want, unwanted []string, args ...string) {
		r.Helper()
		began := time.Now()
		out, calls := "", 0
		r.eventually(when+" kubectl top "+strings.Join(args, " ")+" works", func() (err error) {
			calls++
			out, err = r.people(from, append([]string{"top"}, args...)...)
			for _, name := range want {
				if err == nil && !regexp.MustCompile(`(?m)^(\S+ +)*`+name+` .*\b\d+m +([\d.]+% +)?\d+Mi`).MatchString(out) {
					err = fmt.Errorf("%s is missing in\n%s", name, out)
				}
			}
			for _, name := range unwanted {
				if err == nil && strings.Contains(out, name) {
					err = fmt.Errorf("%s is in\n%s", name, out)
				}
			}
			return err
		})
		r.Logf("%s kubectl top %s works on %s after %s and %d calls:\n%s", when, strings.Join(args, " "), from, time.Since(began).Round(100*time.Millisecond), calls, out)
	}
	var pods []string
	for _, node := range poolNodes {
		pods = append(pods, "web-"+node)
	}
	top(poolNodes, []string{cloudNode}, "nodes")
	top(pods, nil, "pods", "-A")
	top(pods, []string{"atoll-pools"}, "pods", "-n", "default")
	top([]string{"web-" + from + " +web"}, nil, "pods", "-A", "--containers")
	top([]string{"kube-apiserver", "etcd", "writer"}, pods, "pods", "-A", "--containers", "-l", "app.kubernetes.io/name=atoll-coordinator")
	top([]string{from}, []string{r.on + " "}, "nodes", "-l", "kubernetes.io/hostname="+from)
	top([]string{"web-" + from}, nil, "pod", "web-"+from)
}

// use runs, on a node, what people use in the pod of another one.
func (r *poolRig) use(when, from, on string) {
	r.Helper()
	pod := "web-" + on
	for what, tc := range map[string]struct {
		args []string
		want string
	}{
		"logs": {[]string{"logs", pod}, "serving as " + pod},
		"exec": {[]string{"exec", pod, "--", "/pause", "get", "http://127.0.0.1:8080"}, pod},
	} {
		r.eventually(when+" "+what+" works", func() error {
			out, err := r.people(from, tc.args...)
			if err == nil && !strings.Contains(out, tc.want) {
				err = fmt.Errorf("it prints %q", out)
			}
			return err
		})
	}
	shell := func(what, script, want string) {
		r.Helper()
		kubectl := r.BinaryPath("kubectl") + " --kubeconfig=" + r.kubeconfig
		out, err := r.RunOn(r.Context(), from, "/bin/sh", "-c", "cd "+r.T.TempDir()+" && "+strings.NewReplacer("KUBECTL", kubectl, "POD", pod).Replace(script))
		if err != nil || !strings.Contains(out, want) {
			r.Errorf("%s %s prints %q, %v", when, what, out, err)
		}
	}
	shell("exec with input", "echo hello | timeout 60 KUBECTL exec -i POD -- /pause echo", "hello")
	shell("cp", "echo copied >there && timeout 60 KUBECTL cp there POD:/data/here && timeout 60 KUBECTL cp POD:/data/here back && cat back", "copied")
	shell("attach", "timeout 3 KUBECTL attach POD -i </dev/null; test $? -eq 0 -o $? -eq 124 && echo attached", "attached")
	shell("port-forward", "KUBECTL port-forward POD 18080:8080 >log 2>&1 & forward=$!; for n in 1 2 3 4 5 6 7 8 9 10; do sleep 1; "+
		filepath.Join(r.Dir(), "bin", "devcluster-pause")+" get http://127.0.0.1:18080 && break; done; kill $forward", pod)
	r.Logf("%s logs, exec, cp, attach and port-forward work on %s for people on %s", when, on, from)
}

// testPoolPorts: whoever is not the API server of the pool is refused at the ports of the hubs, on whichever node.
func (r *poolRig) testPoolPorts() {
	from, dir := r.other(), r.T.TempDir()
	for secret, fields := range map[string][]string{"coordinator-edge": {"apiserver.crt", "apiserver.key", "ca.crt"}, "kubeconfig-edge": {"tls.crt", "tls.key"}} {
		var s corev1.Secret
		if err := r.client.Get(r.Context(), client.ObjectKey{Namespace: "atoll-pools", Name: secret}, &s); err != nil {
			r.Fatal(err)
		}
		for _, field := range fields {
			if err := os.WriteFile(filepath.Join(dir, field), s.Data[field], 0o600); err != nil {
				r.Fatal(err)
			}
		}
	}
	c, err := r.coordinator()
	if err != nil {
		r.Fatal(err)
	}
	if _, err := os.Stat("/usr/bin/curl"); err != nil {
		r.Skip("this needs curl: ", err)
	}
	asks := func(cert, key, path string) error {
		args := []string{"--silent", "--show-error", "--fail", "--max-time", "20", "--cacert", filepath.Join(dir, "ca.crt"), fmt.Sprintf("https://%s:10262%s", c.Status.Addresses[0], path)}
		if cert != "" {
			args = append(args, "--cert", cert, "--key", key)
		}
		_, err := r.RunOn(r.Context(), from, "/usr/bin/curl", args...)
		return err
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	if err := asks(file("apiserver.crt"), file("apiserver.key"), "/metrics/resource"); err != nil {
		r.Errorf("the API server of the pool is refused: %v", err)
	}
	for what, err := range map[string]error{
		"a pod with hostNetwork": asks("", "", "/metrics/resource"),
		"a person":               asks(file("tls.crt"), file("tls.key"), "/metrics/resource"),
		"a node":                 asks("/run/node/node.pem", "/run/node/node.pem", "/metrics/resource"),
		"another path":           asks(file("apiserver.crt"), file("apiserver.key"), "/pods"),
	} {
		if err == nil {
			r.Errorf("%s is not refused", what)
		}
	}
	if out, err := r.people(from, "get", "--raw", "/api/v1/nodes/"+from+"/proxy/pods"); err == nil || !strings.Contains(err.Error(), "orbidden") {
		r.Errorf("a person uses the proxy to a node: %s, %v", out, err)
	}
}

func (r *poolRig) testDeadNode() {
	dead := r.on
	if err := r.Kill(r.Context(), dead); err != nil {
		r.Fatal(err)
	}
	r.isReady(dead)
	var alive []string
	for _, node := range poolNodes {
		if node != dead {
			alive = append(alive, node)
		}
	}
	r.sees(r.on, alive...)
	if err := r.Restart(r.Context(), dead); err != nil {
		r.Fatal(err)
	}
	r.eventually("the node "+dead+" is back", r.ready(dead, corev1.ConditionTrue))
	r.sees(dead, poolNodes...)
}

func (r *poolRig) testDeleted() {
	r.kubectl("delete", "yurtcoordinator", "edge")
	r.eventually("nothing is left", func() error {
		out, err := r.tryKubectl("get", "uniteddeployments,deployments,pods,services,secrets,controllerrevisions", "-n", "atoll-pools", "-o", "name")
		if err == nil && strings.TrimSpace(out) != "" {
			err = errors.New(out)
		}
		return err
	})
	r.eventually("the hubs know of none", func() error {
		for _, node := range poolNodes {
			out, err := r.get(node, "http://127.0.0.1:10267/status")
			if err != nil {
				return err
			}
			if strings.Contains(out, `"coordinator":`) {
				return fmt.Errorf("that of %s says %s", node, out)
			}
		}
		return nil
	})
}
