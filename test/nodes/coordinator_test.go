package nodes

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
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

// TestTheCoordinatorOnRealNodes: a pool gets its coordinator as docs/pools.md says. Cut off from the cloud, people see
// there what is in the pool. The coordinator moves when its node dies, and its hubs find it. When it is deleted,
// nothing of it is left.
func TestTheCoordinatorOnRealNodes(t *testing.T) {
	tier.All(t, "four real nodes, and a control plane on one of them: minutes")
	t.Parallel()
	r := &poolRig{offRig: &offRig{rig: startRig(t, map[string][]string{
		devcluster.ControllerManager: {"--node-monitor-grace-period=8s", "--node-monitor-period=1s"},
	}), starts: 1}}
	gateway, err := atoll.NewHub(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	specs := []devcluster.RealNodeSpec{{NodeSpec: devcluster.NodeSpec{Name: cloudNode}, Pool: "cloud"}}
	for _, name := range poolNodes {
		specs = append(specs, devcluster.RealNodeSpec{
			NodeSpec: devcluster.NodeSpec{Name: name, Labels: map[string]string{apps.NodePoolLabel: "edge"}}, Pool: "edge", Gateway: gateway,
			Kubelet: map[string]any{"nodeLeaseDurationSeconds": 8}, // renewed every 2 s
		})
	}
	if err := r.AddRealNodes(t.Context(), specs...); err != nil {
		t.Fatal(err)
	}
	values, args, err := atoll.LoadCoordinator(t.Context(), r.Cluster, os.Stderr, poolNodes...)
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(values, map[string]any{"hub": map[string]any{"enabled": true, "config": map[string]any{"cloud": map[string]any{"servers": []string{r.AdminConfig().Host}}}}})
	if _, err := atoll.Install(t.Context(), r.Cluster, atoll.Options{Values: values, ManagerArgs: args, Log: os.Stderr}); err != nil {
		t.Fatal(err)
	}
	for _, part := range []struct {
		name string
		run  func(*poolRig)
	}{
		{"a pool gets its coordinator", (*poolRig).testDeployed},
		{"people see the pool, cut off", (*poolRig).testPeople},
		{"its node dies", (*poolRig).testDeadNode},
		{"nothing is left of it", (*poolRig).testDeleted},
	} {
		if !r.Run(part.name, func(t *testing.T) {
			off, inner := *r.offRig, *r.rig
			off.rig, inner.T = &inner, t
			one := *r
			one.offRig = &off
			part.run(&one)
			r.kubeconfig, r.on = one.kubeconfig, one.on
		}) {
			r.Log(r.poolState())
			t.FailNow()
		}
	}
}

func (r *poolRig) poolState() string {
	var all strings.Builder
	for _, args := range [][]string{
		{"get", "yurtcoordinators,nodepools,uniteddeployments", "-A", "-o", "yaml"}, {"get", "pods,secrets,services", "-n", "atoll-pools", "-o", "wide"}, {"describe", "pods", "-n", "atoll-pools"},
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
	r.eventually("without its NodePool it is Pending", r.pendingFor(apps.ReasonNodePoolMissing))
	r.create(&apps.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "edge"}})
	for _, node := range poolNodes {
		r.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-" + node}, Spec: corev1.PodSpec{
			NodeName: node, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{Name: "web", Image: devcluster.PauseImage, Args: []string{"serve", ":8080"}, ImagePullPolicy: corev1.PullNever}},
		}})
	}
	r.isReady("")
	r.sees(r.other(), poolNodes...)
}

func (r *poolRig) pendingFor(reason string) func() error {
	return func() error {
		c, err := r.coordinator()
		if err != nil {
			return err
		}
		pending := meta.FindStatusCondition(c.Status.Conditions, apps.ConditionPending)
		if pending == nil || pending.Reason != reason {
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
	r.cut(false, poolNodes...)
	for _, node := range poolNodes {
		r.eventually("the node "+node+" is back", r.ready(node, corev1.ConditionTrue))
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
