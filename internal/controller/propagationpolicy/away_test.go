package propagationpolicy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

func TestANodeThatFallsSilentWakesThePoliciesThatFailOver(t *testing.T) {
	fails := build.With(func(p *gm.PropagationPolicy) { p.Spec.Failover = &gm.Failover{AfterSeconds: 60} })
	s := newSite(t,
		build.PropagationPolicy("p", build.Weight(1, "HZ", "bj"), fails), build.PropagationPolicy("stays", build.Weight(1, "hz")),
		build.PropagationPolicy("others", build.Weight(1, "bj"), fails), build.PropagationPolicy("invalid", fails))
	var woken []string
	for _, request := range s.failingOver(t.Context(), build.Node("n", build.InGroup("hz"))) {
		woken = append(woken, request.Name)
	}
	if diff := cmp.Diff([]string{"p"}, woken); diff != "" {
		t.Errorf("wrong policies (-want +got):\n%s", diff)
	}
	if got := s.failingOver(t.Context(), build.Node("n")); got != nil {
		t.Errorf("a node of no group wakes %v", got)
	}
	ready, silent := build.Node("n"), build.Node("n", build.With(func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }))
	for what, tc := range map[string]struct {
		before, after *corev1.Node
		want          bool
	}{
		"falls silent": {ready, silent, true}, "comes back": {silent, ready, true}, "stays Ready": {ready, ready, false}, "stays silent": {silent, silent, false},
	} {
		if got := readinessChanged.Update(event.UpdateEvent{ObjectOld: tc.before, ObjectNew: tc.after}); got != tc.want {
			t.Errorf("a node that %s: %t, want %t", what, got, tc.want)
		}
	}
}
