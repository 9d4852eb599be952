package e2e

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// edit replaces the weights of a policy.
func (f *fixture) edit(policy *gm.PropagationPolicy) {
	f.Helper()
	f.patch(&gm.PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: policy.Name}},
		map[string]any{"spec": map[string]any{"staticWeightList": policy.Spec.StaticWeight, "numRange": policy.Spec.NumRange}})
}

// reason tells whether a policy's Ready condition has a reason.
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

// TestPolicyEditConverges is scenario 6: an edit from 3:2 to 1:4 moves pods one
// at a time; a PodDisruptionBudget that allows none stops it, and the policy
// says so.
func TestPolicyEditConverges(t *testing.T) {
	f := newFixture(t)
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
	all := intstr.FromString("100%")
	pdb := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "none"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &all, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "app"}}},
	}
	f.create(pdb)
	f.eventually(patience, "the budget is counted", func() error {
		got, err := f.kube.PolicyV1().PodDisruptionBudgets(f.ns).Get(f.ctx, pdb.Name, metav1.GetOptions{})
		if err == nil && got.Status.CurrentHealthy != 5 {
			err = fmt.Errorf("%d are healthy", got.Status.CurrentHealthy)
		}
		return err
	})
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
}

// TestScalingTakesNoPodFromAGrowingGroup is scenario 12: 5 → 50 → 7 at
// 170:110:60.
func TestScalingTakesNoPodFromAGrowingGroup(t *testing.T) {
	f := newFixture(t)
	for _, g := range []string{"scale-a", "scale-b", "scale-c"} {
		f.group(g, 2)
	}
	f.create(weights("policy", "scale-a", 170, "scale-b", 110, "scale-c", 60))
	f.create(deployment("app", 5, "policy"))
	spreads := func(what string, a, b, c int) {
		f.eventually(patience, what, func() error {
			return f.spreadIs("app", map[string]int{"scale-a": a, "scale-b": b, "scale-c": c})
		})
	}
	spreads("five", 2, 2, 1)
	deleted := f.watchDeletions("app")
	f.scale("app", 50)
	spreads("fifty", 25, 16, 9)
	if n := deleted(); n != 0 {
		t.Errorf("%d pods were deleted while the app grew", n)
	}
	evicted := f.evictions()
	f.scale("app", 7)
	spreads("seven", 4, 2, 1)
	if n := f.evictions() - evicted; n != 0 {
		t.Errorf("%v pods were evicted while the app shrank", n)
	}
}

// TestFastDeletionStaysExact is scenario 39: all pods deleted at once, again
// and again.
func TestFastDeletionStaysExact(t *testing.T) {
	f := newFixture(t)
	f.group("fast-a", 2)
	f.group("fast-b", 2)
	f.create(weights("policy", "fast-a", 3, "fast-b", 2))
	f.create(deployment("app", 20, "policy"))
	for range 20 {
		f.eventually(patience, "12:8", func() error {
			return f.spreadIs("app", map[string]int{"fast-a": 12, "fast-b": 8})
		})
		err := f.kube.CoreV1().Pods(f.ns).DeleteCollection(f.ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app=app"})
		if err != nil {
			t.Fatal(err)
		}
	}
	f.eventually(patience, "12:8 in the end", func() error {
		return f.spreadIs("app", map[string]int{"fast-a": 12, "fast-b": 8})
	})
	if n := f.evictions(); n != 0 {
		t.Logf("%v evictions so far in the whole run", n)
	}
}

// TestMissingGroupComesLater is scenario 34: a group that does not exist is
// left out and named; when it comes its share comes back pod by pod.
func TestMissingGroupComesLater(t *testing.T) {
	f := newFixture(t)
	f.group("later-a", 2)
	f.create(weights("policy", "later-a", 1, "later-b", 1))
	f.create(deployment("app", 4, "policy"))
	f.eventually(patience, "all in the one group", func() error {
		if err := f.spreadIs("app", map[string]int{"later-a": 4}); err != nil {
			return err
		}
		return f.reason("policy", gm.ReasonGroupsMissing)
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
}

// TestNothingMovesWithoutRoom is scenario 46: surplus pods stay where no node
// of the group that lacks pods can take them, and the policy says so; they move
// when there is room.
func TestNothingMovesWithoutRoom(t *testing.T) {
	f := newFixture(t)
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
}

// TestRequiredLabelMoves is scenario 48: an app that requires another policy is
// bound to it and divided anew.
func TestRequiredLabelMoves(t *testing.T) {
	f := newFixture(t)
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
}

// TestNodeGroupTakesOver is scenario 29: a node that two groups select stays
// with the one that has it; when that one goes, the other takes it at once.
func TestNodeGroupTakesOver(t *testing.T) {
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

// TestUnreadyNodesKeepTheirShare is scenario 33: a group whose node falls
// silent keeps its share; nothing is evicted for it.
func TestUnreadyNodesKeepTheirShare(t *testing.T) {
	f := newFixture(t)
	f.group("silent-a", 1)
	f.group("silent-b", 1)
	f.create(weights("policy", "silent-a", 1, "silent-b", 1))
	f.create(deployment("app", 2, "policy"))
	f.eventually(patience, "one and one", func() error { return f.allReady("app", 2) })
	evicted := f.evictions()
	if err := f.cluster.Kill(f.ctx, "silent-a-0"); err != nil {
		t.Fatal(err)
	}
	f.eventually(2*time.Minute, "the node is not Ready, and the group says so", func() error {
		var g gm.NodeGroup
		if err := f.client.Get(f.ctx, types.NamespacedName{Name: "silent-a"}, &g); err != nil {
			return err
		}
		if g.Status.Ready != 0 || g.Status.Total != 1 {
			return fmt.Errorf("status is %+v", g.Status)
		}
		return nil
	})
	f.always(2*time.Second, "the spread stays", func() error {
		return f.spreadIs("app", map[string]int{"silent-a": 1, "silent-b": 1})
	})
	if n := f.evictions() - evicted; n != 0 {
		t.Errorf("%v pods were evicted", n)
	}
	if err := f.cluster.Restart(f.ctx, "silent-a-0"); err != nil {
		t.Fatal(err)
	}
}

// TestSameNameNewWorkload is scenario 53: a Deployment that is made again under
// its name starts from nothing.
func TestSameNameNewWorkload(t *testing.T) {
	f := newFixture(t)
	f.group("again-a", 1)
	f.group("again-b", 1)
	f.create(weights("policy", "again-a", 3, "again-b", 2))
	for range 3 {
		d := deployment("app", 5, "policy")
		f.create(d)
		f.eventually(patience, "3:2", func() error {
			return f.spreadIs("app", map[string]int{"again-a": 3, "again-b": 2})
		})
		if err := f.client.Delete(f.ctx, d); err != nil { // in the background: pods outlive it
			t.Fatal(err)
		}
		f.eventually(patience, "the name is free", func() error {
			pods := f.pods("app")
			_, err := f.kube.AppsV1().Deployments(f.ns).Get(f.ctx, "app", metav1.GetOptions{})
			if err == nil || len(pods) > 0 {
				return fmt.Errorf("%d pods are left: %w", len(pods), err)
			}
			return nil
		})
	}
}

// TestOverridePolicyFollowsItsRules: rules that change reach running pods, and
// a rule that is taken away gives the template's image back.
func TestOverridePolicyFollowsItsRules(t *testing.T) {
	f := newFixture(t)
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
}
