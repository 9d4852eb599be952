package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// TestFaultMembersFlap is F10: a node changes its group ten times a second, a NodeGroup
// loses its nodes for a moment, and is deleted and created again, while pods run. No pod
// is moved, because a group must be stable before a pod is moved because of it; the final
// division is exact.
func TestFaultMembersFlap(t *testing.T) {
	tier.All(t, "a machine that is busy for seconds shows a flapping node as a stable one")
	f := newFaultyFixture(t)
	f.group("flap-a", 1)
	f.group("flap-b", 1)
	f.group("flap-c", 1)
	f.create(weights("policy", "flap-a", 1, "flap-b", 1))
	f.create(deployment("app", 6, "policy"))
	want := map[string]int{"flap-a": 3, "flap-b": 3}
	f.settled("app", want)
	deleted := f.watchDeletions("app")

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "flap-a-0"}}
	flips := 0
	_ = wait.PollUntilContextTimeout(f.ctx, 100*time.Millisecond, 10*time.Second, true, func(context.Context) (bool, error) {
		flips++
		f.label(node, map[string]any{"test-group": []string{"flap-c", "flap-a"}[flips%2]})
		return false, nil
	})
	f.label(node, map[string]any{"test-group": "flap-a"})
	f.settled("app", want)
	t.Logf("the node was relabelled %d times", flips)

	group := &gm.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "flap-b"}}
	f.patch(group, map[string]any{"spec": map[string]any{"matchLabels": map[string]any{"test-group": "nobody"}}})
	f.eventually(patience, "the group has no nodes", func() error { return f.contains("flap-b") })
	f.patch(group, map[string]any{"spec": map[string]any{"matchLabels": map[string]any{"test-group": "flap-b"}}})
	f.settled("app", want)

	f.deleteNodeGroup("flap-b")
	f.create(groupOf("flap-b", gm.NodeGroupSpec{MatchLabels: map[string]string{"test-group": "flap-b"}}))
	f.settled("app", want)
	f.always(gm.DefaultStabilization+time.Second, "nothing moves afterwards", func() error { return f.spreadIs("app", want) })
	if n := deleted(); n != 0 {
		t.Errorf("%d pods were deleted, want none", n)
	}
	f.scale("app", 10)
	f.settled("app", map[string]int{"flap-a": 5, "flap-b": 5})
}

// TestFaultSharesSwingInARollout is F23, for weights. Shares go from 2:3 to 9:1 and back
// while a rollout is under way and the number of replicas goes up and down. The final
// division is exact, and at most as many pods are evicted as the changes make surplus.
func TestFaultSharesSwingInARollout(t *testing.T) {
	tier.All(t, "the cluster of faults, with relays: a minute and more")
	f := newFaultyFixture(t)
	f.group("swing-a", 3)
	f.group("swing-b", 3)
	swing := func(a, b int) *gm.PropagationPolicy { return restless(weights("policy", "swing-a", a, "swing-b", b)) }
	f.create(swing(2, 3))
	f.create(deployment("app", 10, "policy"))
	f.settled("app", map[string]int{"swing-a": 4, "swing-b": 6})
	evicted := f.evictions()
	image := func(tag string) {
		f.patch(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "app"}}, map[string]any{"spec": map[string]any{
			"template": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "app", "image": "nginx:" + tag}}}},
		}})
	}
	for i, step := range []struct{ a, b, replicas int }{{9, 1, 16}, {2, 3, 10}, {9, 1, 20}} {
		image(fmt.Sprintf("1.%d", 28+i))
		f.edit(weights("policy", "swing-a", step.a, "swing-b", step.b))
		f.scale("app", step.replicas)
		f.eventually(patience, "the rollout is under way", func() error { return f.runs("app", fmt.Sprintf("nginx:1.%d", 28+i), 3) })
	}
	f.edit(weights("policy", "swing-a", 2, "swing-b", 3))
	f.scale("app", 10)
	f.settled("app", map[string]int{"swing-a": 4, "swing-b": 6})
	f.eventually(patience, "the rollout is over", func() error { return f.runs("app", "nginx:1.30", 10) })
	f.eventually(patience, "the policy is satisfied", func() error { return f.reason("policy", gm.ReasonSatisfied) })
	// From 2:3 to 9:1 half of the pods are surplus: 8 of 16, 5 of 10, 10 of 20.
	n := f.evictions() - evicted
	t.Logf("%v pods were evicted in the rollouts", n)
	if n > 8+5+10+5 {
		t.Errorf("%v pods were evicted, more than were surplus", n)
	}

	evicted = f.evictions()
	f.edit(weights("policy", "swing-a", 9, "swing-b", 1))
	f.eventually(patience, "the first pods move", func() error {
		if f.evictions() == evicted {
			return errors.New("none was evicted")
		}
		return nil
	})
	f.scale("app", 14)
	f.edit(weights("policy", "swing-a", 2, "swing-b", 3))
	f.scale("app", 10)
	f.settled("app", map[string]int{"swing-a": 4, "swing-b": 6})
	f.eventually(patience, "the policy is satisfied", func() error { return f.reason("policy", gm.ReasonSatisfied) })
	n = f.evictions() - evicted
	t.Logf("%v pods were evicted for a swing there and back", n)
	if n > 5+5 {
		t.Errorf("%v pods were evicted, more than were surplus", n)
	}
}

// runs returns an error unless a workload has at least n active pods with an image.
func (f *fixture) runs(app, image string, n int) error {
	count := 0
	for _, pod := range f.pods(app) {
		if pod.Spec.Containers[0].Image == image {
			count++
		}
	}
	if count < n {
		return fmt.Errorf("%d pods of %s run %s, want %d", count, app, image, n)
	}
	return nil
}

// TestFaultLimits is F24: a thousand nodes, two hundred NodeGroups, a policy of 500
// kB, a hundred owners one above the other, and owners in a circle. Every request is
// still answered in bounded time, and other workloads are not affected. F24 names five
// thousand nodes and a thousand groups, which takes too long for a test: benchmark filter
// has as many nodes, and benchmark pools as many NodePools.
func TestFaultLimits(t *testing.T) {
	tier.All(t, "1,000 nodes and 200 NodeGroups: 2.5 min")
	f := newFixtureOfItsOwn(t, atoll.Options{Form: atoll.Isolated})
	const groups, perGroup = 200, 5 // the first node of each group is its member
	f.group("limit-a", 1)
	f.group("limit-b", 1)
	f.create(weights("small", "limit-a", 1, "limit-b", 1))
	f.create(deployment("small", 4, "small"))
	f.settled("small", map[string]int{"limit-a": 2, "limit-b": 2})

	began := time.Now()
	f.manyNodes(groups, perGroup)
	t.Logf("%d NodeGroups have their members among %d nodes after %s", groups, groups*perGroup, time.Since(began))

	big := weights("big", "limit-a", 3, "limit-b", 2)
	for i := range 98 {
		rule := gm.StaticNodeGroupWeight{Weight: 0}
		for j := range 90 {
			rule.NodeGroupNames = append(rule.NodeGroupNames, fmt.Sprintf("nobody-%02d-%02d-%s", i, j, strings.Repeat("x", 47)))
		}
		big.Spec.StaticWeight = append(big.Spec.StaticWeight, rule)
	}
	if size := len(fmt.Sprint(big.Spec)); size < 500_000 {
		t.Errorf("the policy has %d bytes, want 500 kB", size)
	}
	f.create(big)
	f.create(deployment("big", 10, "big"))
	f.settled("big", map[string]int{"limit-a": 6, "limit-b": 4})

	top := f.chain("deep", 100)
	f.label(top, map[string]any{gm.RequiredPropagationPolicyLabel: "small"})
	circle := f.chain("circle", 3)
	bottom := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "circle-0"}}
	if err := f.client.Get(f.ctx, types.NamespacedName{Namespace: f.ns, Name: "circle-0"}, bottom); err != nil {
		t.Fatal(err)
	}
	f.patch(circle, map[string]any{"metadata": map[string]any{"ownerReferences": []any{controllerOf(bottom)}}})
	for _, name := range []string{"deep-0", "circle-0"} {
		f.patch(&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: name}}, map[string]any{"spec": map[string]any{"replicas": 2}})
	}
	f.eventually(patience, "the pods of the chain and of the circle are created", func() error {
		if deep, circle := len(f.pods("deep-0")), len(f.pods("circle-0")); deep != 2 || circle != 2 {
			return fmt.Errorf("%d and %d pods", deep, circle)
		}
		return nil
	})
	began = time.Now()
	f.scale("small", 8)
	f.settled("small", map[string]int{"limit-a": 4, "limit-b": 4})
	t.Logf("others were placed after %s; chain %v, circle %v", time.Since(began), f.spread("deep-0"), f.spread("circle-0"))

	f.restart(atoll.Manager)
	f.scale("small", 2)
	f.scale("big", 5)
	f.settled("small", map[string]int{"limit-a": 1, "limit-b": 1})
	f.settled("big", map[string]int{"limit-a": 3, "limit-b": 2})
}

// manyNodes adds NodeGroups of one cordoned node each, and further nodes without a group.
// It returns when every member has its group. They stay until the cluster ends, because to
// remove thousands takes longer than to start another cluster: the test has one of its own.
func (f *fixture) manyNodes(groups, perGroup int) {
	f.Helper()
	const workers = 16
	errs := make([]error, groups)
	create := func(g int) error {
		for i := range perGroup {
			node := &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("many-%d-%d", g, i), Labels: map[string]string{}},
				Spec:       corev1.NodeSpec{Unschedulable: true},
			}
			if i == 0 {
				node.Labels["test-many"] = fmt.Sprint(g)
			}
			if err := f.client.Create(f.ctx, node); err != nil {
				return err
			}
		}
		return f.client.Create(f.ctx, groupOf(fmt.Sprintf("many-%d", g), gm.NodeGroupSpec{MatchLabels: map[string]string{"test-many": fmt.Sprint(g)}}))
	}
	workqueue.ParallelizeUntil(f.ctx, workers, groups, func(g int) { errs[g] = create(g) })
	if err := errors.Join(errs...); err != nil {
		f.Fatal(err)
	}
	f.eventually(3*patience, "every member has its group", func() error {
		list, err := f.kube.CoreV1().Nodes().List(f.ctx, metav1.ListOptions{LabelSelector: "test-many"})
		if err != nil {
			return err
		}
		for _, node := range list.Items {
			if want := "many-" + node.Labels["test-many"]; node.Labels[gm.NodeGroupLabel] != want {
				return fmt.Errorf("node %s is in NodeGroup %q, want %q", node.Name, node.Labels[gm.NodeGroupLabel], want)
			}
		}
		if len(list.Items) != groups {
			return fmt.Errorf("%d nodes", len(list.Items))
		}
		return nil
	})
}

// chain creates ReplicaSets without pods, each owned by the next, and returns the
// topmost.
func (f *fixture) chain(name string, n int) *appsv1.ReplicaSet {
	f.Helper()
	var top, above *appsv1.ReplicaSet
	for i := n - 1; i >= 0; i-- {
		d := deployment(fmt.Sprintf("%s-%d", name, i), 0, "")
		rs := &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Name: d.Name},
			Spec:       appsv1.ReplicaSetSpec{Replicas: new(int32), Selector: d.Spec.Selector, Template: d.Spec.Template},
		}
		if above != nil {
			rs.OwnerReferences = []metav1.OwnerReference{controllerOf(above)}
		}
		f.create(rs)
		if above = rs; top == nil {
			top = rs
		}
	}
	return top
}

func controllerOf(rs *appsv1.ReplicaSet) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: rs.Name, UID: rs.UID, Controller: new(true)}
}
