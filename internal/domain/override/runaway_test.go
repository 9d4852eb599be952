package override

import "testing"

// TestRunaway checks that a workload may lose as many pods as it wants, and ten more,
// before it counts as a runaway.
func TestRunaway(t *testing.T) {
	for _, tc := range []struct {
		givenUp, wants int
		want           bool
	}{{0, 0, false}, {10, 0, false}, {11, 0, true}, {15, 5, false}, {16, 5, true}, {444, 2, true}} {
		if got := IsRunaway(tc.givenUp, tc.wants); got != tc.want {
			t.Errorf("%d pods given up by a workload that wants %d: runaway %t, want %t", tc.givenUp, tc.wants, got, tc.want)
		}
	}
}

// TestFirstRulesOfNone checks First of a nil Rules.
func TestFirstRulesOfNone(t *testing.T) {
	if got := (*Rules)(nil).First(1); got != nil {
		t.Errorf("of no rules %v is the first", got)
	}
}
