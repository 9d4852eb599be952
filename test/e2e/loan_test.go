package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// pinnedAndRefused counts a workload's pods that got their group at creation and for
// which kube-scheduler has found no node.
func (f *fixture) pinnedAndRefused(app string) int {
	f.Helper()
	n := 0
	for _, pod := range f.pods(app) {
		if pod.Annotations[gm.SeatAnnotation] == "" || pod.Spec.NodeName != "" {
			continue
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
				n++
			}
		}
	}
	return n
}

// TestManyPodsThatWaitForTheirShareCostLittle: fifty pods of a policy of weights
// whose group has no open node, while another pod changes two hundred times.
func TestManyPodsThatWaitForTheirShareCostLittle(t *testing.T) {
	tier.All(t, "200 updates of pods that wait: 50 s")
	f := isolated.fixture(t)
	f.group("cheap-a", 1)
	f.group("cheap-b", 1)
	f.cordon(true, "cheap-a-0")
	policy := weights("policy", "cheap-a", 1, "cheap-b", 1)
	policy.Spec.RescheduleAfterSeconds = new(int32) // they wait, and do not go on loan
	f.create(policy)
	f.create(deployment("other", 1, ""))
	f.eventually(patience, "the other pod runs", func() error { return f.allReady("other", 1) })
	deleted := f.watchDeletions("app")
	f.create(deployment("app", 100, "policy"))
	f.eventually(patience, "fifty are placed, fifty wait for a node of their group", func() error {
		if n := f.pinnedAndRefused("app"); n != 50 {
			return fmt.Errorf("%d wait", n)
		}
		return f.spreadIs("app", map[string]int{"cheap-b": 50})
	})
	before, gone := f.filterCalls(), deleted()
	deleted = f.watchDeletions("app")
	other := f.pods("other")[0]
	ticks := time.NewTicker(50 * time.Millisecond) // twenty a second, as a busy cluster
	defer ticks.Stop()
	for n := range 200 {
		<-ticks.C
		patch := fmt.Sprintf(`{"metadata":{"labels":{"tick":"%d"}}}`, n)
		if _, err := f.kube.CoreV1().Pods(f.ns).Patch(f.ctx, other.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	calls := f.filterCalls() - before
	t.Logf("%v filter calls for 200 updates of one other pod; %d pods were recreated before", calls, gone)
	if calls > 50 {
		t.Errorf("fifty waiting pods caused %v filter calls for 200 updates of one other pod, want at most 50", calls)
	}
	if gone > 50 {
		t.Errorf("%d pods were recreated, want each of the fifty once at most", gone)
	}
	if n := deleted(); n > 0 {
		t.Errorf("%d pods were recreated while they waited", n)
	}
	f.cordon(false, "cheap-a-0")
	f.eventually(patience, "they are bound once their group is open", func() error {
		return f.spreadIs("app", map[string]int{"cheap-a": 50, "cheap-b": 50})
	})
}

// silence stops the kubelets of nodes, and waits until the nodes are not Ready and
// tainted; without the taint kube-scheduler would still place pods there. The returned
// function starts them again.
func (f *fixture) silence(names ...string) (restart func()) {
	f.Helper()
	restart = f.killForNow(names...)
	f.eventually(2*time.Minute, "the nodes are not Ready", func() error {
		for _, name := range names {
			node, err := f.kube.CoreV1().Nodes().Get(f.ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range node.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
					return fmt.Errorf("node %s is Ready", name)
				}
			}
			if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
				return t.Key == corev1.TaintNodeUnreachable && t.Effect == corev1.TaintEffectNoSchedule
			}) {
				return fmt.Errorf("node %s is not tainted: %v", name, node.Spec.Taints)
			}
		}
		return nil
	})
	return restart
}

// TestRolloutCompletesWithoutAnUnreadyGroup: the nodes of one of three groups are not
// Ready, and a Deployment with the default strategy is changed. Pods of the new revision
// that find no node in that group go on loan to the others.
func TestRolloutCompletesWithoutAnUnreadyGroup(t *testing.T) {
	tier.All(t, "waits until a node is not Ready, and a minute more: 1.5 min")
	t.Parallel()
	inBothWays(t, func(t *testing.T, f *fixture) {
		for _, group := range []string{"ends-a", "ends-b", "ends-c"} {
			f.group(group, 1)
		}
		policy := weights("policy", "ends-a", 1, "ends-b", 1, "ends-c", 1)
		policy.Spec.RescheduleAfterSeconds = new(int32(2))
		f.create(policy)
		f.create(deployment("app", 9, "policy"))
		f.eventually(patience, "3:3:3", func() error {
			if err := f.allReady("app", 9); err != nil {
				return err
			}
			return f.spreadIs("app", map[string]int{"ends-a": 3, "ends-b": 3, "ends-c": 3})
		})
		restart := f.silence("ends-c-0")
		f.patch(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: f.ns}}, map[string]any{"spec": map[string]any{"template": map[string]any{
			"metadata": map[string]any{"annotations": map[string]string{"rollout": "2"}},
		}}})
		f.eventually(2*time.Minute, "the rollout is over", func() error {
			d, err := f.kube.AppsV1().Deployments(f.ns).Get(f.ctx, "app", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if s := d.Status; s.ObservedGeneration != d.Generation || s.UpdatedReplicas != 9 || s.AvailableReplicas != 9 || s.Replicas != 9 {
				return fmt.Errorf("of 9 pods %d are of the new revision, %d in all, %d available", s.UpdatedReplicas, s.Replicas, s.AvailableReplicas)
			}
			return nil
		})
		f.eventually(patience, "the policy names what is on loan", func() error {
			policy := &gm.PropagationPolicy{}
			if err := f.client.Get(f.ctx, types.NamespacedName{Namespace: f.ns, Name: "policy"}, policy); err != nil {
				return err
			}
			onLoan := int32(0)
			for _, app := range policy.Status.Apps {
				for _, g := range app.Groups {
					onLoan += g.OnLoan
				}
			}
			if onLoan != 3 {
				return fmt.Errorf("%d pods are on loan: status is %+v", onLoan, policy.Status)
			}
			return nil
		})
		watch := f.watchAvailability("app", 9)
		restart()
		f.eventually(2*time.Minute, "3:3:3 when the group is back", func() error {
			if err := f.allReady("app", 9); err != nil {
				return err
			}
			return f.spreadIs("app", map[string]int{"ends-a": 3, "ends-b": 3, "ends-c": 3})
		})
		if worst, gone := watch(); worst < 8 || gone != 3 {
			t.Errorf("at the worst moment %d of 9 were available, %d were replaced, want 8 and 3", worst, gone)
		}
	})
}

// TestAGroupThatIsAwayLeavesItsShareToTheOthers: after the policy's failover time the
// pods of the group are recreated in the others, and when the group is back they return,
// one after the other.
func TestAGroupThatIsAwayLeavesItsShareToTheOthers(t *testing.T) {
	tier.All(t, "waits until nodes are not Ready, and a minute more: 1.5 min")
	t.Parallel()
	inBothWays(t, func(t *testing.T, f *fixture) {
		for _, group := range []string{"gone-x", "gone-y", "gone-z"} {
			f.group(group, 1)
		}
		policy := weights("policy", "gone-x", 1, "gone-y", 1, "gone-z", 1)
		policy.Spec.Failover = &gm.Failover{AfterSeconds: 3}
		f.create(policy)
		f.create(deployment("app", 6, "policy"))
		f.eventually(patience, "2:2:2", func() error {
			if err := f.allReady("app", 6); err != nil {
				return err
			}
			return f.spreadIs("app", map[string]int{"gone-x": 2, "gone-y": 2, "gone-z": 2})
		})
		restart := f.silence("gone-z-0")
		f.eventually(2*time.Minute, "the others have its share, and the policy names it", func() error {
			if err := f.spreadIs("app", map[string]int{"gone-x": 3, "gone-y": 3}); err != nil {
				return err
			}
			if err := f.allReady("app", 6); err != nil {
				return err
			}
			return f.reason("policy", gm.ReasonNodeGroupsAway)
		})
		restart()
		f.eventually(2*time.Minute, "it has its share again", func() error {
			if err := f.allReady("app", 6); err != nil {
				return err
			}
			if err := f.spreadIs("app", map[string]int{"gone-x": 2, "gone-y": 2, "gone-z": 2}); err != nil {
				return err
			}
			return f.reason("policy", gm.ReasonSatisfied)
		})
	})
}

// TestAPausedRolloutIsBalanced: a Deployment is paused with pods of two revisions; when
// the policy changes, its pods are divided again, and here the division of each revision is exact
// too.
func TestAPausedRolloutIsBalanced(t *testing.T) {
	tier.All(t, "waits until a rollout counts as paused, in two forms")
	inBothWays(t, func(t *testing.T, f *fixture) {
		f.group("pause-a", 1)
		f.group("pause-b", 1)
		f.create(weights("policy", "pause-a", 1, "pause-b", 0))
		f.create(deployment("app", 8, "policy"))
		f.eventually(patience, "all are in a", func() error { return f.allReady("app", 8) })
		app := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: f.ns}}
		// The second revision surges by four pods, and none of them is available before
		// the Deployment is paused.
		f.patch(app, map[string]any{"spec": map[string]any{
			"strategy":        map[string]any{"rollingUpdate": map[string]any{"maxSurge": 4, "maxUnavailable": 0}},
			"minReadySeconds": 500,
			"template":        map[string]any{"metadata": map[string]any{"annotations": map[string]string{"rollout": "2"}}},
		}})
		f.eventually(patience, "there are two revisions", func() error { return f.allReady("app", 12) })
		f.patch(app, map[string]any{"spec": map[string]any{"paused": true, "minReadySeconds": 0}})
		f.edit(weights("policy", "pause-a", 1, "pause-b", 1))
		f.eventually(2*time.Minute, "each revision is 1:1", func() error {
			if err := f.allReady("app", 12); err != nil {
				return err
			}
			got := map[string]int{}
			for _, pod := range f.pods("app") {
				got[pod.Annotations["rollout"]+"/"+pod.Labels[gm.NodeGroupLabel]]++
			}
			want := map[string]int{"/pause-a": 4, "/pause-b": 4, "2/pause-a": 2, "2/pause-b": 2}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Errorf("pods by revision and group are %v, want %v", got, want)
			}
			return nil
		})
	})
}
