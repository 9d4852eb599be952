package policies

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestAnEntryThatIsWrittenAgainDropsNoOther: a full map is emptied for new keys only.
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
	if len(l.trials) != maxKept || len(l.rules) != maxKept || len(l.spreads) != maxKept {
		t.Errorf("of %d entries %d trials, %d rules and %d spreads are left", maxKept, len(l.trials), len(l.rules), len(l.spreads))
	}
	l.SetTrial("new", Trial{})
	if len(l.trials) > maxKept {
		t.Errorf("%d trials are kept, want %d at most", len(l.trials), maxKept)
	}
}
