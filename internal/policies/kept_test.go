package policies

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestRewrittenEntryEvictsNoOther: values are dropped for new keys only.
func TestRewrittenEntryEvictsNoOther(t *testing.T) {
	l := newTestResolver(t, build.Node("n", build.InGroup("a")))
	propagation, rules := build.PropagationPolicy("p", build.Weight(1, "a")), build.OverridePolicy("o")
	for i := range maxKept {
		workload := types.UID(fmt.Sprint(i))
		l.SetTrial(workload, Trial{})
		rules.UID, propagation.UID = workload, workload
		l.Rules(rules)
		if _, err := l.Spread(propagation, "w"); err != nil {
			t.Fatal(err)
		}
	}
	propagation.UID = "0"
	propagation.Generation++
	rules.Generation++
	l.SetTrial("0", Trial{Key: "again"})
	l.Rules(rules)
	if _, err := l.Spread(propagation, "w"); err != nil {
		t.Fatal(err)
	}
	if len(l.trials.values) != maxKept {
		t.Errorf("%d of %d trials are left", len(l.trials.values), maxKept)
	}
	namespace := rules.Namespace
	if l.rules.weight > maxRules || l.spreads.weight > maxSpreads {
		t.Errorf("rules of %d bytes and spreads over %d groups are kept", l.rules.weight, l.spreads.weight)
	}
	if _, found := l.rules.get(namespace, "0"); !found {
		t.Error("the rules that were compiled last are not kept")
	}
	if n := len(l.spreads.namespaces[namespace].values); n != maxKept {
		t.Errorf("%d of %d spreads are left", n, maxKept)
	}
	l.SetTrial("new", Trial{})
	if len(l.trials.values) > maxKept {
		t.Errorf("%d trials are kept, want %d at most", len(l.trials.values), maxKept)
	}
}

// TestTrialsAreEvictedWithinTheirNamespace: a namespace with more workloads than are kept loses its
// own trials only.
func TestTrialsAreEvictedWithinTheirNamespace(t *testing.T) {
	quiet := build.Deployment("quiet", build.With(func(d *appsv1.Deployment) { d.Namespace = "quiet" }))
	l := newTestResolver(t, quiet)
	l.SetTrial(quiet.UID, Trial{Key: "kept"})
	for i := range maxKept + 1 {
		l.SetTrial(types.UID(fmt.Sprint(i)), Trial{})
	}
	if trial, found := l.Trial(quiet.UID); !found || trial.Key != "kept" {
		t.Errorf("the trial of another namespace is %+v, %t", trial, found)
	}
	if n := len(l.trials.values); n != 2 {
		t.Errorf("%d trials are kept, want those of %q and the last one", n, "quiet")
	}
	l.DropTrial(quiet.UID)
	l.DropTrial(quiet.UID)
	l.DropTrial(types.UID(fmt.Sprint(maxKept)))
	if len(l.trials.values) != 0 || len(l.trials.namespaces) != 0 {
		t.Errorf("%d trials are left, of namespaces %v", len(l.trials.values), l.trials.namespaces)
	}
}
