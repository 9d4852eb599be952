package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

// The nodes of the NodeGroups of the example in examples/groups, each behind its own hub.
const (
	hangzhou = "hangzhou-0"
	beijing  = "beijing-0"
)

// hollowRig is a cluster with Atoll, whose two kubelets reach the API server by hubs only.
type hollowRig struct {
	*testing.T

	hubs map[string]*rig // by node
	// deleted are the pods that somebody has deleted.
	deleted *deletions
}

// admin is a rig for what no hub takes part in.
func (r *hollowRig) admin() *rig {
	one := *r.hubs[hangzhou]
	one.T = r.T
	return &one
}

// TestHollowKubeletsBehindHubs runs the example in examples/groups with kubelets that have no other
// way to the API server than a hub.
func TestHollowKubeletsBehindHubs(t *testing.T) {
	t.Parallel()
	c := startCluster(t, devcluster.Options{LowIdle: true, ComponentArgs: map[string][]string{
		devcluster.ControllerManager: {"--node-monitor-grace-period=25s", "--node-monitor-period=1s"}, // Leases are renewed every 10 s
	}})
	if _, err := atoll.Install(t.Context(), c, atoll.Options{Log: os.Stderr}); err != nil {
		t.Fatal(err)
	}
	r := &hollowRig{T: t, hubs: map[string]*rig{}}
	for node, site := range map[string]string{hangzhou: "hangzhou", beijing: "beijing"} {
		hub := newRig(t, c, node)
		r.hubs[node] = hub
		through := devcluster.Endpoint{URL: "https://" + hub.address, CAFile: filepath.Join(hub.dir, "state", "serving", "ca.crt")}
		if err := c.AddHollowNodesBehind(t.Context(), through, devcluster.NodeSpec{Name: node, Labels: map[string]string{"location": site}}); err != nil {
			t.Fatal(err)
		}
	}
	r.deleted = watchDeletions(r.admin())
	part := func(name string, run func(*hollowRig)) {
		t.Run(name, func(t *testing.T) {
			one := *r
			one.T = t
			run(&one)
		})
		if t.Failed() {
			t.FailNow()
		}
	}
	part("a kubelet gets a pod once its policies are applied", (*hollowRig).testFirstSight)
	part("kubelet and hub are started again without the cloud", (*hollowRig).testOffline)
	part("the kubelet is down while the hub runs", (*hollowRig).testSilentKubelet)
}

// testFirstSight: groups' scenarios 20 and 21. The policies come after the Deployment that requires
// them.
func (r *hollowRig) testFirstSight() {
	admin := r.admin()
	examples := filepath.Join("..", "..", "examples", "groups")
	labelled := filepath.Join(r.TempDir(), "deployment.yaml")
	text := admin.kubectl("label", "--local", "-f", filepath.Join(examples, "deployment.yaml"), "-o", "yaml",
		gm.RequiredPropagationPolicyLabel+"=nginx-propagationpolicy", gm.RequiredOverridePolicyLabel+"=nginx-overridepolicy")
	if err := os.WriteFile(labelled, []byte(text), 0o600); err != nil {
		r.Fatal(err)
	}
	admin.kubectl("apply", "-f", filepath.Join(examples, "01-nodegroups.yaml"), "-f", labelled)
	admin.eventually("its pods wait", func() error {
		if pods := r.pods(); len(pods) != 5 {
			return fmt.Errorf("there are %d", len(pods))
		}
		return nil
	})
	for _, hub := range r.hubs {
		if seen := r.seen(hub); len(seen) != 0 {
			r.Errorf("the kubelet of %s has %v before the policies are there", hub.node, seen)
		}
	}
	admin.kubectl("apply", "-f", filepath.Join(examples, "02-policies.yaml"))
	r.runs("the policies are there")
	for _, pod := range r.pods() {
		for _, s := range pod.Status.ContainerStatuses {
			if s.RestartCount != 0 || s.LastTerminationState.Terminated != nil {
				r.Errorf("the kubelet of %s has started pod %s before with something else: %+v", pod.Spec.NodeName, pod.Name, s)
			}
		}
	}
}

// pods returns those of the example that are not being deleted.
func (r *hollowRig) pods() []corev1.Pod {
	r.Helper()
	list, err := r.admin().admin.CoreV1().Pods(namespace).List(r.Context(), metav1.ListOptions{LabelSelector: "app=nginx"})
	if err != nil {
		r.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil })
}

// seen returns the names of the pods of the example that a hub gives its kubelet.
func (r *hollowRig) seen(hub *rig) (names []string) {
	r.Helper()
	one := *hub
	one.T = r.T
	a := one.ask(one.over, question{"node", "/api/v1/pods?labelSelector=app%3Dnginx&fieldSelector=spec.nodeName%3D" + hub.node, "application/json"})
	var list corev1.PodList
	if a.err != nil || a.code != http.StatusOK || json.Unmarshal([]byte(a.body), &list) != nil {
		r.Fatalf("the hub of %s answers %+v", hub.node, a)
	}
	for _, pod := range list.Items {
		names = append(names, pod.Name)
	}
	return names
}

// runs waits until the pods of the example run where and with what its policies say.
func (r *hollowRig) runs(when string) {
	r.Helper()
	r.admin().eventually("the example runs once "+when, func() error {
		missing := map[string]int{hangzhou: 3, beijing: 2}
		for _, pod := range r.pods() {
			image := r.siteOf(pod.Spec.NodeName) + ".registry.io/nginx:1.27"
			if s := pod.Status.ContainerStatuses; len(s) == 0 || !s[0].Ready || s[0].Image != image {
				return fmt.Errorf("pod %s on %q is not ready with the image %s: %+v", pod.Name, pod.Spec.NodeName, image, s)
			}
			missing[pod.Spec.NodeName]--
		}
		for node, n := range missing {
			if n != 0 {
				return fmt.Errorf("%d pods are missing on %s", n, node)
			}
		}
		return nil
	})
}

func (r *hollowRig) siteOf(node string) string {
	if node == beijing {
		return "beijing"
	}
	return "hangzhou"
}

// testOffline: scenario 62 with hollow kubelets. A kubelet that is started without the cloud starts
// its pods from what the hub has, nobody deletes them, and afterwards all is as before.
func (r *hollowRig) testOffline() {
	hub, before := r.hubs[hangzhou], uids(r.pods())
	one := *hub
	one.T = r.T
	pods := question{"node", "/api/v1/pods?fieldSelector=spec.nodeName%3D" + hangzhou, "application/json"}
	if a := one.ask(one.over, pods); a.code != http.StatusOK { // so that it is kept in this form
		r.Fatalf("the hub answers %+v", a)
	}
	one.cutOff(pods)
	if err := one.Kill(r.Context(), hangzhou); err != nil {
		r.Fatal(err)
	}
	one.killHub()
	one.startHub()
	hub.hub = one.hub
	if err := one.Restart(r.Context(), hangzhou); err != nil {
		r.Fatal(err)
	}
	r.ready(hangzhou, corev1.ConditionUnknown)
	r.ready(beijing, corev1.ConditionTrue)
	one.comeBack(pods)
	r.ready(hangzhou, corev1.ConditionTrue)
	r.runs("the cloud is back")
	if after := uids(r.pods()); !slices.Equal(after, before) {
		r.Errorf("the pods are %v, and were %v", after, before)
	}
	if deleted := r.deleted.names(); len(deleted) != 0 {
		r.Errorf("somebody has deleted %v", deleted)
	}
}

// testSilentKubelet: scenario 9. The hub renews nothing in the place of a kubelet.
func (r *hollowRig) testSilentKubelet() {
	hub := r.hubs[beijing]
	if err := hub.Kill(r.Context(), beijing); err != nil {
		r.Fatal(err)
	}
	r.ready(beijing, corev1.ConditionUnknown)
	one := *hub
	one.T = r.T
	if a := one.ask(one.over, question{"node", "/api/v1/nodes/" + beijing, "application/json"}); a.code != http.StatusOK || a.asOf != "" {
		r.Errorf("the hub does not answer from the cloud: %+v", a)
	}
	if err := hub.Restart(r.Context(), beijing); err != nil {
		r.Fatal(err)
	}
	r.ready(beijing, corev1.ConditionTrue)
	r.runs("the kubelet is back")
}

// ready waits until the condition Ready of a node has this status.
func (r *hollowRig) ready(node string, want corev1.ConditionStatus) {
	r.Helper()
	admin := r.admin()
	admin.eventually(fmt.Sprintf("the condition Ready of %s is %s", node, want), func() error {
		n, err := admin.admin.CoreV1().Nodes().Get(r.Context(), node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != want {
				return fmt.Errorf("it is %s: %s", c.Status, c.Message)
			}
			if c.Type == corev1.NodeReady {
				return nil
			}
		}
		return errors.New("there is none")
	})
}

func uids(pods []corev1.Pod) (all []types.UID) {
	for _, pod := range pods {
		all = append(all, pod.UID)
	}
	slices.Sort(all)
	return all
}

// deletions are the names of pods that somebody has deleted.
type deletions struct {
	mu  sync.Mutex
	all []string
}

func (d *deletions) names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.all)
}

// watchDeletions records, until the test ends, which pods of the example are deleted from now on.
func watchDeletions(r *rig) *deletions {
	r.Helper()
	ctx, cancel := context.WithCancel(r.Context())
	watcher, err := r.admin.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{LabelSelector: "app=nginx", TimeoutSeconds: new(int64(time.Hour / time.Second))})
	if err != nil {
		cancel()
		r.Fatal(err)
	}
	d, done := &deletions{}, make(chan struct{})
	r.Cleanup(func() { cancel(); watcher.Stop(); <-done })
	go func() {
		defer close(done)
		for event := range watcher.ResultChan() {
			if pod, is := event.Object.(*corev1.Pod); is && (event.Type == watch.Deleted || pod.DeletionTimestamp != nil) {
				d.mu.Lock()
				d.all = append(d.all, pod.Name)
				d.mu.Unlock()
			}
		}
	}()
	return d
}
