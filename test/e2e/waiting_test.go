package e2e

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// unschedulable counts a workload's pods that kube-scheduler has refused.
func (f *fixture) unschedulable(app string) int {
	f.Helper()
	return f.unscheduled(app, corev1.PodReasonUnschedulable)
}

// atTheGate counts a workload's pods that wait at the scheduling gate.
func (f *fixture) atTheGate(app string) int {
	f.Helper()
	return f.unscheduled(app, corev1.PodReasonSchedulingGated)
}

// unscheduled counts a workload's pods whose condition PodScheduled is False with the
// given reason.
func (f *fixture) unscheduled(app, reason string) int {
	f.Helper()
	n := 0
	for _, pod := range f.pods(app) {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == reason {
				n++
			}
		}
	}
	return n
}

// TestPodsWaitUntilTheirPolicyExists is scenario 4: pods of a workload whose policy is
// missing wait without a call to the extender, and are placed as soon as the policy
// exists.
func TestPodsWaitUntilTheirPolicyExists(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fixture) {
		f.group("late-a", 1)
		f.create(deployment("app", 3, "comes-later"))
		f.eventually(patience, "three pods wait at the gate", func() error {
			pods := f.pods("app")
			for i := range pods {
				if len(pods[i].Spec.SchedulingGates) != 1 {
					return fmt.Errorf("gates are %v", pods[i].Spec.SchedulingGates)
				}
			}
			if len(pods) != 3 {
				return fmt.Errorf("%d pods", len(pods))
			}
			return nil
		})
		before := f.filterCalls()
		f.always(3*time.Second, "they go on waiting", func() error { return f.spreadIs("app", map[string]int{}) })
		if calls := f.filterCalls() - before; calls > 0 {
			t.Errorf("pods at the gate caused %v filter calls", calls)
		}
		f.create(weights("comes-later", "late-a", 1))
		f.eventually(patience, "all are placed", func() error { return f.spreadIs("app", map[string]int{"late-a": 3}) })
	})
}

// TestOnlyTheRightGroupIsPreempted is scenario 22: a pod of high priority whose group is
// full of pods of low priority preempts one of them, and no pod of another group.
func TestOnlyTheRightGroupIsPreempted(t *testing.T) {
	tier.All(t, "breadth: preemption, in two forms")
	inBothWays(t, func(t *testing.T, f *fixture) {
		for _, group := range []string{"pre-a", "pre-b"} {
			small := corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("4Gi"), "pods": resource.MustParse("20")}
			if err := f.cluster.AddNodes(f.ctx, devcluster.NodeSpec{Name: group + "-0", Capacity: small}); err != nil {
				t.Fatal(err)
			}
			f.Cleanup(func() {
				if err := f.kube.CoreV1().Nodes().Delete(context.Background(), group+"-0", metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			})
			f.nodeGroup(groupOf(group, gm.NodeGroupSpec{Nodes: []string{group + "-0"}}))
			f.eventually(patience, "the group has its node", func() error { return f.contains(group, group+"-0") })
		}
		high := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "e2e-high"}, Value: 1000}
		if err := f.client.Create(f.ctx, high); err != nil {
			t.Fatal(err)
		}
		f.Cleanup(func() {
			if err := f.client.Delete(context.Background(), high); err != nil {
				t.Error(err)
			}
		})
		needs := func(cpu string) func(*appsv1.Deployment) {
			return func(d *appsv1.Deployment) {
				d.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse(cpu)}
			}
		}
		f.create(weights("all", "pre-a", 1, "pre-b", 1), weights("only-a", "pre-a", 1))
		f.create(deployment("low", 4, "all", needs("1")))
		f.eventually(patience, "both groups are full", func() error { return f.spreadIs("low", map[string]int{"pre-a": 2, "pre-b": 2}) })
		kept := map[types.UID]bool{}
		for _, pod := range f.pods("low") {
			if pod.Spec.NodeName == "pre-b-0" {
				kept[pod.UID] = true
			}
		}
		deleted := f.watchDeletions("low")
		f.create(deployment("high", 1, "only-a", needs("1"), func(d *appsv1.Deployment) { d.Spec.Template.Spec.PriorityClassName = "e2e-high" }))
		f.eventually(patience, "the pod of high priority runs in its group", func() error { return f.spreadIs("high", map[string]int{"pre-a": 1}) })
		f.always(2*time.Second, "the other group keeps its pods", func() error {
			n := 0
			for _, pod := range f.pods("low") {
				if kept[pod.UID] {
					n++
				}
			}
			if n != 2 {
				return fmt.Errorf("%d of 2 pods are left", n)
			}
			return nil
		})
		if n := deleted(); n != 1 {
			t.Errorf("%d pods of low priority died, want 1", n)
		}
	})
}

// TestManyWaitingPodsCostLittle is scenario 24: fifty pods without an open seat, while
// another pod changes twenty times a second.
func TestManyWaitingPodsCostLittle(t *testing.T) {
	tier.All(t, "watches many pods that wait for some time: 15 s")
	f := isolated.fixture(t)
	f.group("wait-a", 1)
	f.group("wait-b", 1)
	policy := &gm.PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "policy"}}
	one := intstr.FromInt32(1)
	policy.Spec.NumRange = []gm.NodeGroupNumRange{{NodeGroupNames: []string{"wait-a"}, Max: &one}}
	f.create(policy)
	f.create(deployment("other", 1, ""), deployment("app", 51, "policy"))
	f.eventually(patience, "one pod is placed, fifty wait at the gate", func() error {
		if n := f.atTheGate("app"); n != 50 {
			return fmt.Errorf("%d wait there", n)
		}
		return f.spreadIs("app", map[string]int{"wait-a": 1})
	})
	other := f.pods("other")[0]
	ctx, cancel := context.WithCancel(f.ctx)
	var writer sync.WaitGroup
	writer.Go(func() {
		n := 0
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			n++
			patch := fmt.Sprintf(`{"metadata":{"annotations":{"tick":"%d"}}}`, n)
			_, _ = f.kube.CoreV1().Pods(f.ns).Patch(ctx, other.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		}, 50*time.Millisecond)
	})
	before := f.filterCalls()
	f.always(10*time.Second, "no other pod is placed", func() error { return f.spreadIs("app", map[string]int{"wait-a": 1}) })
	cancel()
	writer.Wait()
	calls := f.filterCalls() - before
	t.Logf("%v filter calls in ten seconds", calls)
	if calls > 50 {
		t.Errorf("fifty waiting pods caused %v filter calls in ten seconds, want at most 50", calls)
	}
}

// TestRangesFillInOrderAndTheRestWaits is scenarios 37 and 55: ranges are filled in their
// order; pods beyond them wait and the policy's status reports it; when a range grows, as
// many pods are tried again as seats have opened.
func TestRangesFillInOrderAndTheRestWaits(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fixture) {
		f.group("range-a", 1)
		f.group("range-b", 1)
		bounds := func(group string, low, high int32) gm.NodeGroupNumRange {
			least, most := intstr.FromInt32(low), intstr.FromInt32(high)
			return gm.NodeGroupNumRange{NodeGroupNames: []string{group}, Min: &least, Max: &most}
		}
		policy := &gm.PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "policy"}}
		policy.Spec.NumRange = []gm.NodeGroupNumRange{bounds("range-a", 2, 4), bounds("range-b", 2, 100)}
		f.create(policy)
		f.create(deployment("app", 5, "policy"))
		f.eventually(patience, "3 and 2", func() error { return f.spreadIs("app", map[string]int{"range-a": 3, "range-b": 2}) })

		tight := &gm.PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "tight"}}
		tight.Spec.NumRange = []gm.NodeGroupNumRange{bounds("range-a", 1, 2), bounds("range-b", 1, 2)}
		f.create(tight)
		f.create(deployment("most", 8, "tight"))
		f.eventually(patience, "four are placed, four wait, and the policy reports it", func() error {
			if err := f.spreadIs("most", map[string]int{"range-a": 2, "range-b": 2}); err != nil {
				return err
			}
			if n := f.atTheGate("most"); n != 4 {
				return fmt.Errorf("%d wait", n)
			}
			return f.reason("tight", gm.ReasonPodsWaiting)
		})
		tight.Spec.NumRange[0] = bounds("range-a", 1, 4)
		f.edit(tight)
		f.eventually(patience, "two more are placed", func() error { return f.spreadIs("most", map[string]int{"range-a": 4, "range-b": 2}) })
		if n := f.atTheGate("most"); n != 2 {
			t.Errorf("2 seats opened, and %d pods of 4 still wait", n)
		}
		f.eventually(patience, "a pod leaves its seat", func() error {
			for _, pod := range f.pods("most") {
				if pod.Spec.NodeName == "range-b-0" && (f.atTheGate("most")+f.unschedulable("most")) == 2 {
					if err := f.client.Delete(f.ctx, &pod); err != nil {
						return err
					}
					return nil
				}
			}
			return errors.New("no pod is to be deleted")
		})
		f.eventually(patience, "six are placed, two wait", func() error {
			if n := f.atTheGate("most"); n != 2 {
				return fmt.Errorf("%d wait", n)
			}
			return f.spreadIs("most", map[string]int{"range-a": 4, "range-b": 2})
		})
	})
}

// TestReservationsOfUnboundPodsExpire is scenario 44: the seats of pods that are filtered
// and never bound become free.
func TestReservationsOfUnboundPodsExpire(t *testing.T) {
	tier.All(t, "waits until reservations end: 40 s")
	f := isolated.fixture(t)
	c := newCaller(f)
	f.group("leak-a", 1)
	f.create(weights("policy", "leak-a", 1))
	c.pausedApp("app", 3, "policy")
	c.waitBound("app", "policy", "leak-a-0")
	for range 3 {
		c.filter(c.podOf("app"), "leak-a-0")
	}
	if n := f.metric("atoll_seats_held", `state="reserved"`); n < 1 {
		t.Fatalf("%v seats are reserved", n)
	}
	f.eventually(patience, "no seat is reserved", func() error {
		if n := f.metric("atoll_seats_held", `state="reserved"`); n != 0 {
			return fmt.Errorf("%v are", n)
		}
		return nil
	})
}

// TestPolicyDeleted is scenario 47: running pods stay, new ones wait; kube-scheduler
// alone places those of a workload that ignores missing policies.
// TestPodsWaitUntilTheirPolicyExists tests the reverse direction.
func TestPolicyDeleted(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fixture) {
		f.group("gone-a", 1)
		f.create(weights("policy", "gone-a", 1))
		ignoring := deployment("ignores", 1, "policy")
		ignoring.Annotations = map[string]string{gm.MissingPolicyAnnotation: gm.MissingPolicyIgnore}
		f.create(deployment("waits", 1, "policy"), ignoring)
		for _, app := range []string{"waits", "ignores"} {
			f.eventually(patience, "its pod runs", func() error { return f.allReady(app, 1) })
		}
		deletedWaits, deletedIgnores := f.watchDeletions("waits"), f.watchDeletions("ignores")
		gone := weights("policy")
		gone.Namespace = f.ns
		if err := f.client.Delete(f.ctx, gone); err != nil {
			t.Fatal(err)
		}
		f.eventually(patience, "the binding label goes", func() error {
			d, err := f.kube.AppsV1().Deployments(f.ns).Get(f.ctx, "waits", metav1.GetOptions{})
			if err == nil && d.Labels[gm.BindingPropagationPolicyLabel] != "" {
				err = fmt.Errorf("labels are %v", d.Labels)
			}
			return err
		})
		f.scale("waits", 2)
		f.scale("ignores", 2)
		f.eventually(patience, "the one that ignores grows", func() error { return f.allReady("ignores", 2) })
		f.always(2*time.Second, "the other waits", func() error {
			if n := f.bound("waits"); n != 1 {
				return fmt.Errorf("%d pods are bound", n)
			}
			return nil
		})
		if n := deletedWaits() + deletedIgnores(); n != 0 {
			t.Errorf("%d running pods were deleted", n)
		}
	})
}

// TestAPolicyOfAnotherNamespaceIsNotUsed is scenario 49.
func TestAPolicyOfAnotherNamespaceIsNotUsed(t *testing.T) {
	elsewhere, f := newFixture(t), newFixture(t)
	f.group("ns-a", 1)
	elsewhere.create(weights("policy", "ns-a", 1))
	f.create(deployment("app", 1, "policy"))
	f.always(3*time.Second, "its pod waits", func() error {
		if n := f.bound("app"); n != 0 {
			return fmt.Errorf("%d pods are bound", n)
		}
		return nil
	})
}

// TestWideFilterIsExactInTheEnd: docs/sources.md, G10 and G11, literally: the filter
// keeps and ranks every open group, and the bind call corrects the result.
func TestWideFilterIsExactInTheEnd(t *testing.T) {
	tier.All(t, "a cluster of its own: a minute")
	f := newFixtureOfItsOwn(t, atoll.Options{Form: atoll.Isolated, ManagerArgs: []string{"--filter=Wide"}, Values: map[string]any{
		"scheduler": map[string]any{"filter": "Wide"},
	}})
	f.group("wide-a", 3)
	f.group("wide-b", 3)
	f.create(weights("policy", "wide-a", 3, "wide-b", 2))
	f.create(deployment("app", 50, "policy"))
	f.eventually(2*time.Minute, "30:20", func() error { return f.spreadIs("app", map[string]int{"wide-a": 30, "wide-b": 20}) })
	if n := f.evictions(); n != 0 {
		t.Errorf("%v pods were evicted", n)
	}
}
