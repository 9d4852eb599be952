package policies

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestAnEntryThatIsWrittenAgainDropsNoOther: values are dropped for new keys only.
func TestAnEntryThatIsWrittenAgainDropsNoOther(t *testing.T) {
	l := newTestResolver(t, build.Node("n", build.InGroup("a")))
	propagation, rules := build.PropagationPolicy("p", build.Weight(1, "a")), build.OverridePolicy("o")
	for i := range maxKept {
		workload := types.UID(fmt.Sprint(i))
		l.SetTrial(workload, Trial{})
		rules.UID = workload
		l.Rules(rules)
		if _, err := l.Spread(propagation, workload); err != nil {
			t.Fatal(err)
		}
	}
	propagation.Generation++
	rules.Generation++
	l.SetTrial("0", Trial{Key: "again"})
	l.Rules(rules)
	if _, err := l.Spread(propagation, "0"); err != nil {
		t.Fatal(err)
	}
	if len(l.trials) != maxKept {
		t.Errorf("%d of %d trials are left", len(l.trials), maxKept)
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
	if len(l.trials) > maxKept {
		t.Errorf("%d trials are kept, want %d at most", len(l.trials), maxKept)
	}
}
