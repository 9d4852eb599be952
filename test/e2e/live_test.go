package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// edit replaces the weights of a policy.
func (f *fixture) edit(policy *gm.PropagationPolicy) {
	f.Helper()
	f.patch(&gm.PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: policy.Name}},
		map[string]any{"spec": map[string]any{"staticWeightList": policy.Spec.StaticWeight, "numRange": policy.Spec.NumRange}})
}

// reason returns an error unless a policy's Ready condition has a reason.
func (f *fixture) reason(policy, want string) error {
	var p gm.PropagationPolicy
	if err := f.client.Get(f.ctx, types.NamespacedName{Namespace: f.ns, Name: policy}, &p); err != nil {
		return err
	}
	for _, c := range p.Status.Conditions {
		if c.Type == gm.ConditionReady && c.Reason == want && c.ObservedGeneration == p.Generation {
			return nil
		}
	}
	return fmt.Errorf("conditions are %+v", p.Status.Conditions)
}

// budget creates a PodDisruptionBudget for a workload, and waits until its status counts
// all its pods.
func (f *fixture) budget(name, app, minAvailable string, healthy int32) *policyv1.PodDisruptionBudget {
	f.Helper()
	least := intstr.Parse(minAvailable)
	pdb := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &least, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
	}
	f.create(pdb)
	f.eventually(patience, "the budget is counted", func() error {
		got, err := f.kube.PolicyV1().PodDisruptionBudgets(f.ns).Get(f.ctx, name, metav1.GetOptions{})
		if err == nil && (got.Status.ObservedGeneration != got.Generation || got.Status.CurrentHealthy != healthy) {
			err = fmt.Errorf("%d are healthy", got.Status.CurrentHealthy)
		}
		return err
	})
	return pdb
}

// TestPolicyEditConverges is scenario 6: an edit from 3:2 to 1:4 moves pods one at a
// time; a PodDisruptionBudget that allows no eviction stops the moves, and the policy's
// status reports it.
func TestPolicyEditConverges(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fixture) {
		f.group("edit-a", 2)
		f.group("edit-b", 2)
		f.create(weights("policy", "edit-a", 3, "edit-b", 2))
		f.create(deployment("app", 5, "policy"))
		f.eventually(patience, "3:2", func() error {
			if err := f.allReady("app", 5); err != nil {
				return err
			}
			return f.spreadIs("app", map[string]int{"edit-a": 3, "edit-b": 2})
		})
		pdb := f.budget("none", "app", "100%", 5)
		watch := f.watchAvailability("app", 5)
		f.edit(weights("policy", "edit-a", 1, "edit-b", 4))
		f.eventually(patience, "the policy says that the budget is in the way", func() error { return f.reason("policy", gm.ReasonBlockedByPDB) })
		f.always(2*time.Second, "nothing moves", func() error {
			return f.spreadIs("app", map[string]int{"edit-a": 3, "edit-b": 2})
		})
		if err := f.kube.PolicyV1().PodDisruptionBudgets(f.ns).Delete(f.ctx, pdb.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		f.eventually(patience, "1:4", func() error {
			if err := f.spreadIs("app", map[string]int{"edit-a": 1, "edit-b": 4}); err != nil {
				return err
			}
			return f.reason("policy", gm.ReasonSatisfied)
		})
		if worst, deleted := watch(); worst < 4 || deleted != 2 {
			t.Errorf("at the worst moment %d of 5 were available, %d were evicted, want 4 and 2", worst, deleted)
		}
	})
}

// TestScalingTakesNoPodFromAGrowingGroup is scenario 12: an autoscaler takes an app from
// 5 to 50 and down to 7 at 170:110:60, in many steps, through the scale subresource.
// While the workload grows, a step does not wait for the one before, and no group loses a
// pod; when it shrinks, each step ends with the division of Webster's method, without an
// eviction.
func TestScalingTakesNoPodFromAGrowingGroup(t *testing.T) {
	tier.All(t, "twelve steps of an autoscaler: 20 s")
	inBothWays(t, func(t *testing.T, f *fixture) {
		weight := map[string]int{"scale-a": 170, "scale-b": 110, "scale-c": 60}
		for g := range weight {
			f.group(g, 2)
		}
		f.create(weights("policy", "scale-a", 170, "scale-b", 110, "scale-c", 60))
		f.create(deployment("app", 5, "policy"))
		is := func(n int) func() error {
			return func() error {
				if err := f.allReady("app", n); err != nil {
					return err
				}
				return f.spreadIs("app", webster(n, weight))
			}
		}
		f.eventually(patience, "five", is(5))
		deleted, evicted := f.watchDeletions("app"), f.watchEvictions("app")
		for _, n := range []int{6, 8, 11, 13, 17, 22, 27, 33, 34, 41, 46, 50} {
			f.autoscale("app", n)
			f.eventually(patience, "the pods of the step are created", func() error {
				if now := len(f.pods("app")); now != n {
					return fmt.Errorf("%d pods, want %d", now, n)
				}
				return nil
			})
		}
		f.eventually(patience, "fifty", is(50))
		if n := deleted(); n != 0 {
			t.Errorf("%d pods were deleted while the app grew", n)
		}
		for _, n := range []int{47, 40, 39, 31, 24, 19, 14, 10, 7} {
			f.autoscale("app", n)
			f.eventually(patience, fmt.Sprintf("%d, exactly divided", n), is(n))
		}
		if n := evicted(); n != 0 {
			t.Errorf("%d pods were evicted while the app grew and shrank", n)
		}
		if got, want := f.spread("app"), map[string]int{"scale-a": 4, "scale-b": 2, "scale-c": 1}; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("seven are spread %v, want %v", got, want)
		}
	})
}

// autoscale sets a workload's replicas as a HorizontalPodAutoscaler does.
func (f *fixture) autoscale(app string, replicas int) {
	f.Helper()
	deployments := f.kube.AppsV1().Deployments(f.ns)
	// It tries again after a conflict, like an autoscaler, because other clients write
	// the same Deployment.
	err := retry.RetryOnConflict(wait.Backoff{Steps: 20, Duration: 10 * time.Millisecond, Factor: 1.5}, func() error {
		scale, err := deployments.GetScale(f.ctx, app, metav1.GetOptions{})
		if err != nil {
			return err
		}
		scale.Spec.Replicas = int32(replicas)
		_, err = deployments.UpdateScale(f.ctx, app, scale, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		f.Fatal(err)
	}
}

// webster divides n pods independently of Atoll's code: each goes to the group with the
// largest weight ÷ (2 · pods + 1). Groups must not tie.
func webster(n int, weight map[string]int) map[string]int {
	pods := map[string]int{}
	for range n {
		next := ""
		for g := range weight {
			if next == "" || weight[g]*(2*pods[next]+1) > weight[next]*(2*pods[g]+1) {
				next = g
			}
		}
		pods[next]++
	}
	return pods
}

// TestFastDeletionStaysExact is scenario 39: all pods are deleted at once, again and
// again. Each time the same number comes back, exactly divided and Ready, without an
// eviction.
func TestFastDeletionStaysExact(t *testing.T) {
	tier.All(t, "repeats a race, as TestBurstIsExact and TestScaleInIsExact do: 1.5 min")
	inBothWays(t, func(t *testing.T, f *fixture) {
		f.group("fast-a", 2)
		f.group("fast-b", 2)
		f.create(weights("policy", "fast-a", 3, "fast-b", 2))
		f.create(deployment("app", 20, "policy"))
		share := map[string]int{"fast-a": 12, "fast-b": 8}
		exact := func() error {
			if err := f.allReady("app", 20); err != nil {
				return err
			}
			return f.spreadIs("app", share)
		}
		f.eventually(patience, "12:8", exact)
		evicted, deleted, most := f.watchEvictions("app"), f.watchDeletions("app"), f.watchGroups("app")
		for range f.often() {
			err := f.kube.CoreV1().Pods(f.ns).DeleteCollection(f.ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app=app"})
			if err != nil {
				t.Fatal(err)
			}
			f.eventually(patience, "12:8", exact)
		}
		if n := evicted(); n != 0 {
			t.Errorf("%d pods were evicted", n)
		}
		if n, want := deleted(), 20*f.often(); n != want {
			t.Errorf("%d pods were deleted, the test deletes %d", n, want)
		}
		for group, n := range most() {
			if n > share[group] {
				t.Errorf("at one moment %d pods were in NodeGroup %q, whose share is %d", n, group, share[group])
			}
		}
	})
}

// TestMissingGroupComesLater is scenario 34: a group that does not exist is left out and
// named; when it is created it gets its share pod by pod.
func TestMissingGroupComesLater(t *testing.T) {
	tier.All(t, "pods move one by one to a new group, in two forms: 15 s")
	inBothWays(t, func(t *testing.T, f *fixture) {
		f.group("later-a", 2)
		f.create(weights("policy", "later-a", 1, "later-b", 1))
		f.create(deployment("app", 4, "policy"))
		f.eventually(patience, "all in the one group", func() error {
			if err := f.spreadIs("app", map[string]int{"later-a": 4}); err != nil {
				return err
			}
			return f.reason("policy", gm.ReasonNodeGroupsMissing)
		})
		f.eventually(patience, "Ready", func() error { return f.allReady("app", 4) })
		watch := f.watchAvailability("app", 4)
		f.group("later-b", 2)
		f.eventually(patience, "two and two", func() error {
			if err := f.spreadIs("app", map[string]int{"later-a": 2, "later-b": 2}); err != nil {
				return err
			}
			return f.reason("policy", gm.ReasonSatisfied)
		})
		if worst, deleted := watch(); worst < 3 || deleted != 2 {
			t.Errorf("at the worst moment %d of 4 were available, %d were evicted, want 3 and 2", worst, deleted)
		}
	})
}

// TestNothingMovesWithoutRoom is scenario 46: surplus pods stay while no node of the
// group that lacks pods can take them, and the policy's status reports it; they move when
// there is room.
func TestNothingMovesWithoutRoom(t *testing.T) {
	tier.All(t, "breadth: groups without room, in two forms: 20 s")
	inBothWays(t, func(t *testing.T, f *fixture) {
		f.group("room-a", 1)
		f.group("room-b", 1)
		f.create(weights("policy", "room-a", 1))
		f.create(deployment("app", 2, "policy"))
		f.eventually(patience, "both in a", func() error { return f.allReady("app", 2) })
		f.cordon(true, "room-b-0")
		deleted := f.watchDeletions("app")
		f.edit(weights("policy", "room-a", 1, "room-b", 1))
		f.eventually(patience, "the policy says that there is no room", func() error { return f.reason("policy", gm.ReasonNoFeasibleTarget) })
		f.always(gm.DefaultStabilization+2*time.Second, "nothing moves", func() error {
			return f.spreadIs("app", map[string]int{"room-a": 2})
		})
		if n := deleted(); n != 0 {
			t.Errorf("%d pods were deleted", n)
		}
		f.cordon(false, "room-b-0")
		f.eventually(patience, "one and one", func() error {
			return f.spreadIs("app", map[string]int{"room-a": 1, "room-b": 1})
		})
	})
}

// TestChangedPolicyLabelRebindsTheWorkload is scenario 48: a workload that requires another policy is bound
// to it and divided again.
func TestChangedPolicyLabelRebindsTheWorkload(t *testing.T) {
	tier.All(t, "pods move one by one, in two forms, as in TestPolicyEditConverges")
	inBothWays(t, func(t *testing.T, f *fixture) {
		f.group("moves-a", 1)
		f.group("moves-b", 1)
		f.create(weights("first", "moves-a", 1), weights("second", "moves-b", 1))
		f.create(deployment("app", 2, "first"))
		f.eventually(patience, "both in a", func() error { return f.allReady("app", 2) })
		f.label(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "app"}}, map[string]any{gm.RequiredPropagationPolicyLabel: "second"})
		f.eventually(patience, "both in b", func() error {
			if err := f.spreadIs("app", map[string]int{"moves-b": 2}); err != nil {
				return err
			}
			d, err := f.kube.AppsV1().Deployments(f.ns).Get(f.ctx, "app", metav1.GetOptions{})
			if err == nil && d.Labels[gm.BindingPropagationPolicyLabel] != "second" {
				err = fmt.Errorf("labels are %v", d.Labels)
			}
			return err
		})
	})
}

// TestNodeJoinsTheNextGroupAfterDeletion is scenario 29: a node that two groups select stays in the group
// that has it; when that group is deleted, the node joins the other at once.
func TestNodeJoinsTheNextGroupAfterDeletion(t *testing.T) {
	f := newFixture(t)
	f.nodes(map[string]string{"site": "contest"}, "contest-a")
	selects := gm.NodeGroupSpec{MatchLabels: map[string]string{"site": "contest"}}
	f.nodeGroup(groupOf("contest-one", selects))
	f.eventually(patience, "the first group has the node", func() error { return f.contains("contest-one", "contest-a") })
	f.nodeGroup(groupOf("contest-two", selects))
	f.eventually(patience, "the second group says who has it", func() error {
		var g gm.NodeGroup
		if err := f.client.Get(f.ctx, types.NamespacedName{Name: "contest-two"}, &g); err != nil {
			return err
		}
		if len(g.Status.NodeStatuses) != 1 || g.Status.NodeStatuses[0].SelectionStatus != gm.SelectionFailed || g.Status.Total != 0 {
			return fmt.Errorf("status is %+v", g.Status)
		}
		return nil
	})
	f.deleteNodeGroup("contest-one")
	f.eventually(patience, "the second group takes the node", func() error { return f.contains("contest-two", "contest-a") })
}

// TestUnreadyNodesKeepTheirShare is scenario 33: a group whose node becomes NotReady
// keeps its share. New pods are divided as before: the other group gets only its own
// share, and the next pod of the NotReady group waits for its node. No pod that has a
// node is evicted, although the policy's maxUnavailable would allow it, for longer than
// the time after which surplus pods would be evicted.
func TestUnreadyNodesKeepTheirShare(t *testing.T) {
	tier.All(t, "waits until a node is not Ready, and is silent for longer: 1.5 min")
	t.Parallel()
	inBothWays(t, func(t *testing.T, f *fixture) {
		began := time.Now()
		f.group("silent-a", 1)
		f.group("silent-b", 1)
		policy := weights("policy", "silent-a", 1, "silent-b", 1)
		policy.Spec.Rescheduling.MaxUnavailable = 100 // pods that are not Ready do not block evictions
		f.create(policy)
		f.create(deployment("app", 4, "policy"))
		f.eventually(patience, "two and two", func() error {
			if err := f.allReady("app", 4); err != nil {
				return err
			}
			return f.spreadIs("app", map[string]int{"silent-a": 2, "silent-b": 2})
		})
		running, evicted, deleted := f.uids("app"), f.watchEvictions("app"), f.watchDeletions("app")
		restart := f.silence("silent-a-0")
		f.eventually(2*time.Minute, "the node is not Ready, and the group reports it", func() error {
			var g gm.NodeGroup
			if err := f.client.Get(f.ctx, types.NamespacedName{Name: "silent-a"}, &g); err != nil {
				return err
			}
			if g.Status.Ready != 0 || g.Status.Total != 1 {
				return fmt.Errorf("status is %+v", g.Status)
			}
			return nil
		})
		f.scale("app", 6)
		waits := func() error {
			if err := f.spreadIs("app", map[string]int{"silent-a": 2, "silent-b": 3}); err != nil {
				return err
			}
			if n := len(f.pods("app")); n != 6 {
				return fmt.Errorf("%d pods, want 6", n)
			}
			return nil
		}
		f.eventually(patience, "one more in the other group, one waits and knows its group", func() error {
			know := 0
			for _, pod := range f.pods("app") {
				if pod.Spec.NodeName == "" && pod.Annotations[gm.SeatAnnotation] != "" {
					know++
				}
			}
			if know != 1 {
				return fmt.Errorf("%d pods wait and know their group", know)
			}
			return waits()
		})
		f.eventually(patience, "the policy reports it", func() error { return f.reason("policy", gm.ReasonPodsWaiting) })
		f.always(gm.DefaultStabilization+3*time.Second, "the division stays", waits)
		restart()
		f.eventually(patience, "the pod that waited has its node and is Ready there", func() error {
			if err := f.spreadIs("app", map[string]int{"silent-a": 3, "silent-b": 3}); err != nil {
				return err
			}
			for _, pod := range f.pods("app") {
				if !podReady(&pod) && !slices.Contains(running, string(pod.UID)) {
					return fmt.Errorf("pod %s is not Ready", pod.Name)
				}
			}
			return nil
		})
		// Pods that ran before become Ready again when the kubelet reports them.
		for _, pod := range f.pods("app") {
			if !podReady(&pod) {
				t.Logf("pod %s, which ran before, is not Ready: %+v", pod.Name, pod.Status.Conditions)
				f.showLog("silent-a-0", began)
				break
			}
		}
		now := f.uids("app")
		for _, uid := range running {
			if !slices.Contains(now, uid) {
				t.Errorf("pod %s ran and is gone", uid)
			}
		}
		// The pod that waits is recreated once, with its group.
		if e, d := evicted(), deleted(); e > 1 || d > 1 {
			t.Errorf("%d pods were evicted and %d deleted", e, d)
		}
	})
}

// TestRecreatedWorkloadIsDividedAtOnce is scenario 53: a Deployment that is created again under its
// name is divided from the start, while pods of the previous one still exist: they
// terminate, and hold no seat.
func TestRecreatedWorkloadIsDividedAtOnce(t *testing.T) {
	tier.All(t, "three workloads one after the other, in two forms")
	inBothWays(t, func(t *testing.T, f *fixture) {
		const stays = "e2e.example.com/stays"
		f.group("again-a", 1)
		f.group("again-b", 1)
		f.create(weights("policy", "again-a", 1, "again-b", 1))
		all := func() []corev1.Pod {
			list, err := f.kube.CoreV1().Pods(f.ns).List(f.ctx, metav1.ListOptions{LabelSelector: "app=app"})
			if err != nil {
				f.Fatal(err)
			}
			return list.Items
		}
		defer func() {
			for _, pod := range all() {
				f.patch(&pod, map[string]any{"metadata": map[string]any{"finalizers": nil}})
			}
		}()
		old := 0
		// The shares change each time, so that seats of the previous pods would be
		// visible.
		for _, next := range []struct{ a, b int }{{2, 8}, {3, 2}, {1, 4}} {
			f.edit(weights("policy", "again-a", next.a, "again-b", next.b))
			f.eventually(patience, "the weights are in force", func() error { return f.reason("policy", gm.ReasonNotUsed) })
			n := next.a + next.b
			d := deployment("app", int32(n), "policy", func(d *appsv1.Deployment) { d.Spec.Template.Finalizers = []string{stays} })
			f.create(d)
			f.eventually(patience, "as many as the weights are", func() error {
				if err := f.allReady("app", n); err != nil {
					return err
				}
				return f.spreadIs("app", map[string]int{"again-a": next.a, "again-b": next.b})
			})
			if got := len(all()) - n; got != old {
				t.Fatalf("%d pods of the last Deployment are still there, want %d", got, old)
			}
			if err := f.client.Delete(f.ctx, d); err != nil { // in the background: its pods outlive it
				t.Fatal(err)
			}
			old += n
			f.eventually(patience, "the name is free, and the pods terminate", func() error {
				_, err := f.kube.AppsV1().Deployments(f.ns).Get(f.ctx, "app", metav1.GetOptions{})
				if active := len(f.pods("app")); err == nil || active > 0 {
					return fmt.Errorf("%d pods are active, the Deployment: %w", active, err)
				}
				return nil
			})
		}
	})
}

// TestOverridePolicyFollowsItsRules: changed rules apply to running pods, and when a rule
// is removed the template's image returns.
func TestOverridePolicyFollowsItsRules(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fixture) {
		f.group("rules", 1)
		f.create(weights("policy", "rules", 1))
		registry := func(value string) []gm.RuleWithNodeGroup {
			return []gm.RuleWithNodeGroup{{InlineOverriders: gm.InlineOverriders{ImageOverrider: []gm.ImageOverrider{
				{Component: gm.Registry, Operator: gm.OverriderOpReplace, Value: value},
			}}}}
		}
		f.create(&gm.OverridePolicy{ObjectMeta: metav1.ObjectMeta{Name: "images"}, Spec: gm.OverrideSpec{OverrideRules: registry("one.io")}})
		f.create(deployment("app", 2, "policy", func(d *appsv1.Deployment) {
			d.Labels[gm.RequiredOverridePolicyLabel] = "images"
			d.Spec.Template.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "busybox"}}
		}))
		is := func(image, init string) func() error {
			return func() error {
				for _, pod := range f.pods("app") {
					if got := pod.Spec.Containers[0].Image; got != image {
						return fmt.Errorf("pod %s has %s, want %s", pod.Name, got, image)
					}
					if got := pod.Spec.InitContainers[0].Image; got != init {
						return fmt.Errorf("pod %s has init image %s, want %s", pod.Name, got, init)
					}
				}
				return f.allReady("app", 2)
			}
		}
		f.eventually(patience, "the first registry, from the start", is("one.io/nginx:1.27", "one.io/busybox"))
		for _, pod := range f.pods("app") {
			if n := pod.Status.ContainerStatuses[0].RestartCount; n != 0 {
				t.Errorf("pod %s was restarted %d times: it was bound with another image", pod.Name, n)
			}
		}
		rules := func(r []gm.RuleWithNodeGroup) {
			f.patch(&gm.OverridePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "images"}}, map[string]any{"spec": map[string]any{"overrideRules": r}})
		}
		deleted := f.watchDeletions("app")
		rules(registry("two.io"))
		f.eventually(patience, "the second registry", is("two.io/nginx:1.27", "two.io/busybox"))
		rules(nil)
		f.eventually(patience, "the template's image", is("nginx:1.27", "busybox"))
		if n := deleted(); n != 0 {
			t.Errorf("%d pods were deleted: images change in place", n)
		}
	})
}
