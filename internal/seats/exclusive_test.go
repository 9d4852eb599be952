package seats

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// classNodes makes the ledger observe nodes for one pod each, by group and class, and returns the
// weights by which every node gets a pod.
func classNodes(l *Ledger, nodes map[string][2]int) placement.Spread {
	var pairs []any
	for _, group := range slices.Sorted(maps.Keys(nodes)) {
		n := nodes[group]
		for class, count := range map[string]int{"on-demand": n[0], "spot": n[1]} {
			for i := range count {
				name := fmt.Sprintf("%s-%s-%d", group, class, i)
				labels := build.Label("node.kubernetes.io/capacity", class)
				slim := SlimNode(build.Node(name, labels, build.Label(corev1.LabelHostname, name)))
				slim.Group, slim.Open = group, true
				l.ObserveNode(slim)
			}
		}
		pairs = append(pairs, group, n[0]+n[1])
	}
	return weights(pairs...)
}

// alone is the demand of a pod that needs a node for itself.
func (r *classFixture) alone(class capacity.Class) *fit.Demand {
	pod := build.Pod("p")
	r.classes.Restrict(&pod.Spec, class)
	return &fit.Demand{Affinity: pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution, Ports: []fit.Port{{Protocol: "TCP", Number: 80}}}
}

// TestPodsOfAClassGetTheNodesOfThatClass: of pods that need a node each, no more get a group than
// it has nodes of their class, in any order and although none of them has a node yet.
func TestPodsOfAClassGetTheNodesOfThatClass(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := newClassFixture(t)
		nodes, left := map[string][2]int{}, map[string][2]int{}
		var pods []capacity.Class
		for _, group := range []string{"a", "b", "c"} {
			n := [2]int{rapid.IntRange(0, 3).Draw(rt, "on-demand"), rapid.IntRange(0, 3).Draw(rt, "spot")}
			if n[0]+n[1] == 0 {
				n[0] = 1
			}
			nodes[group], left[group] = n, n
			pods = append(append(pods, slices.Repeat([]capacity.Class{capacity.OnDemand}, n[0])...), slices.Repeat([]capacity.Class{capacity.Spot}, n[1])...)
		}
		spread := classNodes(r.Ledger, nodes)
		for i, class := range rapid.Permutation(pods).Draw(rt, "order") {
			ask := request(fmt.Sprint("t", i), len(pods), spread)
			ask.Check = fit.NewCheck(r.alone(class), nil)
			group, why := r.Take(ask, false)
			n := left[group]
			if n[class-1]--; why != Seated || n[class-1] < 0 {
				rt.Fatalf("pod %d, %s, got group %q (%s), which has no node left for it: %v of %v", i, class, group, why, left, nodes)
			}
			left[group] = n
		}
	})
}

// TestARolloutGoesWhereANodeIsFree: a group with fewer nodes than its share is filled by pods that
// stay. The successor of a pod on loan goes on loan again, at once.
func TestARolloutGoesWhereANodeIsFree(t *testing.T) {
	l, _ := newTestLedger()
	for group, n := range map[string]int{"a": 2, "b": 3} {
		for i := range n {
			l.ObserveNode(openNode(fmt.Sprint(group, i), group))
		}
	}
	demand := &fit.Demand{Ports: []fit.Port{{Protocol: "TCP", Number: 80}}}
	for _, node := range []string{"a0", "a1", "b0", "b1"} { // b2 was left by the pod that is replaced
		old := podIn("old-"+node, node)
		old.Revision, old.Demand = "r0", demand
		l.Observe(old)
	}
	ask := func(token string) Request {
		r := request(token, 5, weights("a", 4, "b", 1))
		r.Check = fit.NewCheck(demand, nil)
		return r
	}
	for i, node := range []string{"b2", "b1", "a1", "b0"} {
		token := fmt.Sprint("t", i)
		group, why := l.Take(ask(token), false)
		if want := node[:1]; group != want || why != Seated {
			t.Fatalf("with node %s free, the next pod gets group %q (%s)", node, group, why)
		}
		p := pinned("new-"+node, token, group, node)
		p.Demand = demand
		l.Observe(p)
		l.Forget(types.UID("old-" + []string{"b1", "a1", "b0", "a0"}[i]))
	}
}

// TestAGroupIsAvoidedByPodsOfOneClass: that an on-demand pod found no node in a group says nothing
// about its spot nodes.
func TestAGroupIsAvoidedByPodsOfOneClass(t *testing.T) {
	r := newClassFixture(t)
	spread := classNodes(r.Ledger, map[string][2]int{"a": {1, 1}, "b": {1, 1}})
	waits := podIn("w", "")
	waits.Class = capacity.OnDemand
	r.Avoid(waits, "a")
	for class, want := range map[capacity.Class]string{capacity.OnDemand: "b", capacity.Spot: "a"} {
		ask := request("t"+class.String(), 1, spread)
		ask.Check = fit.NewCheck(r.alone(class), nil)
		if group, why := r.Take(ask, true); group != want {
			t.Errorf("a pod of class %s gets group %q (%s), want %q", class, group, why, want)
		}
	}
}
