package propagationpolicy

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestANodeGroupThatIsCutOffKeepsItsPods: it is not away, so that nothing fails over, no waiting pod goes on loan, and no
// surplus pod of it is evicted. When its nodes are known to be dead all that happens.
func TestANodeGroupThatIsCutOffKeepsItsPods(t *testing.T) {
	failover := build.With(func(p *gm.PropagationPolicy) { p.Spec.Failover = &gm.Failover{AfterSeconds: 60} })
	loans := build.ReplicaSet("web-1", build.Bound("p", ""), build.Replicas(1))
	for what, tc := range map[string]struct {
		objects []build.Object
		lost    []string
	}{
		"failover":    {append(base(failover, build.Weight(1, "hz")), web("hz", "hz", "hz", "bj", "bj")...), []string{"web-1-2"}},
		"a loan":      {append(base(), loans, stuck("a", "hz", time.Hour, loans)), []string{"a"}},
		"surplus pod": {append(base(), web("hz", "hz", "hz", "hz", "bj")...), []string{"web-1-3"}},
	} {
		t.Run(what, func(t *testing.T) {
			for _, state := range []string{"held", "lost"} {
				s := newFixture(t, tc.objects...)
				s.Evictor.Held = s.World.Ledger.IsHeld
				is := build.Held()
				if state == "lost" {
					is = build.Lost()
				}
				s.World.Ledger.ObserveNode(seats.SlimNode(build.Node("node-hz", build.InGroup("hz"), is)))
				s.reconcile()
				want := []string(nil)
				if state == "lost" {
					want = tc.lost
				}
				slices.Sort(s.Evicted)
				if diff := cmp.Diff(want, s.Evicted); diff != "" {
					t.Errorf("%s: %s", state, diff)
				}
			}
		})
	}
}

// TestSurplusPodsBesideOneOnAHeldNodeAreEvicted: it does not keep them waiting.
func TestSurplusPodsBesideOneOnAHeldNodeAreEvicted(t *testing.T) {
	s := newFixture(t, append(base(maxUnavailable(1)), web("hz", "bj", "bj", "bj", "bj")...)...)
	s.reconcile()
	first := s.Evicted
	s = newFixture(t, append(base(maxUnavailable(1)), web("hz", "bj", "bj", "bj", "bj")...)...)
	s.World.Add(t, build.Node("edge", build.InGroup("bj"), build.Held()))
	owner := build.ReplicaSet("web-1")
	for _, name := range first {
		s.World.See(runningPod(name, "bj", 9, build.OwnedBy(owner), build.On("edge")))
	}
	s.Evictor.Held = s.World.Ledger.IsHeld
	s.reconcile()
	if len(first) != 1 || len(s.Evicted) != 1 || s.Evicted[0] == first[0] {
		t.Errorf("evicted is %v, and %v while the node of that one is held", first, s.Evicted)
	}
}
