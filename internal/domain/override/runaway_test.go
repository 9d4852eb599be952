package override

import "testing"

// TestRunaway: as many pods as a workload wants, and ten more, may have been taken
// out of it by a person.
func TestRunaway(t *testing.T) {
	for _, tc := range []struct {
		givenUp, wants int
		want           bool
	}{{0, 0, false}, {10, 0, false}, {11, 0, true}, {15, 5, false}, {16, 5, true}, {444, 2, true}} {
		if got := Runaway(tc.givenUp, tc.wants); got != tc.want {
			t.Errorf("%d pods given up by a workload that wants %d: runaway %t, want %t", tc.givenUp, tc.wants, got, tc.want)
		}
	}
}

// TestFirstRulesOfNone: where no rule is in force, none is the first.
func TestFirstRulesOfNone(t *testing.T) {
	if got := (*Rules)(nil).First(1); got != nil {
		t.Errorf("of no rules %v is the first", got)
	}
}
