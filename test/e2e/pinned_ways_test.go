package e2e

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// Events after the webhook has given a pod its group, and their effect on the next pods.

// TestPodsThatAreRefusedAfterTheyGotTheirGroup: a quota refuses pods that the webhook has
// pinned already. Their seats become free, and once the quota is removed the division is
// exact.
func TestPodsThatAreRefusedAfterTheyGotTheirGroup(t *testing.T) {
	tier.All(t, "waits until reservations end: 20 s")
	f := newFixture(t)
	f.group("quota-a", 1)
	f.group("quota-b", 1)
	f.create(weights("policy", "quota-a", 1, "quota-b", 1))
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "three"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("3")}},
	}
	f.create(quota)
	f.eventually(patience, "the quota counts", func() error {
		if err := f.client.Get(f.ctx, client.ObjectKeyFromObject(quota), quota); err != nil || len(quota.Status.Hard) == 0 {
			return fmt.Errorf("its status is %+v: %w", quota.Status, err)
		}
		return nil
	})
	f.create(deployment("app", 8, "policy"))
	f.eventually(patience, "three run, and the policy says why the others do not", func() error {
		if err := f.allReady("app", 3); err != nil {
			return err
		}
		return f.reason("policy", gm.ReasonPodsRefused)
	})
	if got := f.spread("app"); got["quota-a"] == 0 || got["quota-b"] == 0 {
		t.Errorf("three pods at 1:1 are %v", got)
	}
	if err := f.client.Delete(f.ctx, quota); err != nil {
		t.Fatal(err)
	}
	// An edit wakes the ReplicaSet controller, which otherwise waits ever longer after refusals.
	f.annotate("app", map[string]any{"quota": "gone"})
	f.settled("app", map[string]int{"quota-a": 4, "quota-b": 4})
	f.eventually(patience, "no seat stays reserved for a pod that is never created", func() error {
		if n := f.metric("atoll_seats_held", `state="reserved"`); n != 0 {
			return fmt.Errorf("%v are", n)
		}
		return nil
	})
}

// TestDryRunsTakeNoSeat: dry runs show the group that a pod would get, and change
// nothing.
func TestDryRunsTakeNoSeat(t *testing.T) {
	f := newFixture(t)
	f.group("dry-a", 1)
	f.group("dry-b", 1)
	f.create(weights("policy", "dry-a", 1, "dry-b", 1))
	f.create(deployment("app", 2, "policy"))
	f.settled("app", map[string]int{"dry-a": 1, "dry-b": 1})
	sets, err := f.kube.AppsV1().ReplicaSets(f.ns).List(f.ctx, metav1.ListOptions{LabelSelector: "app=app"})
	if err != nil || len(sets.Items) != 1 {
		t.Fatalf("there are %d ReplicaSets (%v)", len(sets.Items), err)
	}
	set := &sets.Items[0]
	shown := map[string]bool{}
	for range 30 {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: f.ns, GenerateName: "app-", Labels: set.Spec.Template.Labels,
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))},
			},
			Spec: *set.Spec.Template.Spec.DeepCopy(),
		}
		if err := f.client.Create(f.ctx, pod, client.DryRunAll); err != nil {
			t.Fatal(err)
		}
		shown[pod.Labels[gm.NodeGroupLabel]] = true
	}
	if len(shown) != 1 || shown[""] {
		t.Errorf("thirty dry runs of the same pod show the groups %v, want one and the same", shown)
	}
	f.eventually(patience, "no seat is reserved", func() error { // other tests' pods may have some
		if n := f.metric("atoll_seats_held", `state="reserved"`); n != 0 {
			return fmt.Errorf("%v are", n)
		}
		return nil
	})
	deleted := f.watchDeletions("app")
	f.scale("app", 6)
	f.settled("app", map[string]int{"dry-a": 3, "dry-b": 3})
	if n := deleted(); n != 0 {
		t.Errorf("%d pods were deleted", n)
	}
}

// TestAFailedRolloutIsTakenBack: pods of a new revision never become Ready. Each revision
// is divided on its own, and the rollback moves no running pod.
func TestAFailedRolloutIsTakenBack(t *testing.T) {
	tier.All(t, "breadth: a stuck rollout that is rolled back, in two forms: 15 s")
	inBothWays(t, func(t *testing.T, f *fixture) {
		f.group("back-a", 1)
		f.group("back-b", 1)
		f.create(weights("policy", "back-a", 3, "back-b", 2))
		f.create(deployment("app", 10, "policy"))
		f.settled("app", map[string]int{"back-a": 6, "back-b": 4})
		app := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: f.ns}}
		template := func(annotations map[string]any) {
			f.patch(app, map[string]any{"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{"annotations": annotations}}}})
		}
		evicted := f.watchEvictions("app")
		template(map[string]any{devcluster.StartDelayAnnotation: "1h"})
		f.eventually(patience, "the rollout is stuck: 8 of the old revision run, 5 of the new do not", func() error {
			old, young := 0, 0
			for _, pod := range f.pods("app") {
				switch {
				case podReady(&pod):
					old++
				case pod.Spec.NodeName != "":
					young++
				}
			}
			if old != 8 || young != 5 {
				return fmt.Errorf("%d run, %d are bound and do not", old, young)
			}
			return nil
		})
		template(map[string]any{devcluster.StartDelayAnnotation: nil})
		f.settled("app", map[string]int{"back-a": 6, "back-b": 4})
		f.eventually(patience, "the policy is satisfied", func() error { return f.reason("policy", gm.ReasonSatisfied) })
		if n := evicted(); n != 0 {
			t.Errorf("%d pods were evicted", n)
		}
	})
}

// TestPendingPodsLeaveADeletedGroup: pods that are pinned to a group that is
// deleted go to the others.
func TestPendingPodsLeaveADeletedGroup(t *testing.T) {
	tier.All(t, "breadth: pods that wait for a group that is deleted")
	f := newFixture(t)
	f.group("ends-a", 1)
	f.group("ends-b", 1)
	f.cordon(true, "ends-b-0")
	policy := weights("policy", "ends-a", 1, "ends-b", 1)
	policy.Spec.RescheduleAfterSeconds = new(int32) // they do not go on loan
	f.create(policy)
	f.create(deployment("app", 6, "policy"))
	f.eventually(patience, "half of them wait for their group", func() error {
		if n := f.pinnedAndRefused("app"); n != 3 {
			return fmt.Errorf("%d wait", n)
		}
		return f.spreadIs("app", map[string]int{"ends-a": 3})
	})
	f.deleteNodeGroup("ends-b")
	f.settled("app", map[string]int{"ends-a": 6})
}

// TestOwnerlessPodsCountInTheirGroup: each is a workload of one pod, and of two
// equal groups either is right. They are in the group that they got, at creation or at
// the gate, and the policy's status reports it.
func TestOwnerlessPodsCountInTheirGroup(t *testing.T) {
	tier.All(t, "breadth: pods without an owner, in two forms: 15 s")
	inBothWays(t, func(_ *testing.T, f *fixture) {
		f.group("own-a", 1)
		f.group("own-b", 1)
		bare := func(app string) {
			for i := range 12 {
				pod := &corev1.Pod{ObjectMeta: requiring(fmt.Sprint(app, "-", i)), Spec: restarted(template(app)).Spec}
				pod.Labels["app"] = app
				f.create(pod)
			}
		}
		bare("early")
		f.eventually(patience, "they wait for the policy", func() error {
			if n := f.atTheGate("early"); n != 12 {
				return fmt.Errorf("%d do", n)
			}
			return nil
		})
		f.create(weights("policy", "own-a", 1, "own-b", 1))
		bare("late")
		for _, app := range []string{"early", "late"} {
			f.eventually(patience, "all run", func() error { return f.allReady(app, 12) })
		}
		f.eventually(patience, "the policy is satisfied", func() error { return f.reason("policy", gm.ReasonSatisfied) })
	})
}
