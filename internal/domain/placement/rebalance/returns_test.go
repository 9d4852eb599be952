package rebalance

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// TestReturns plays evictions from bj, where all five pods run and two should. The last
// pod of the cohort is evicted, again and again.
func TestReturns(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	r := &Returns{}
	evictions := 0
	last := func() types.UID { return types.UID(fmt.Sprint("last-", evictions)) }
	at := func(group string) *Workload {
		w := seen(pods(cohort("r", "bj", "bj", "bj", "bj", group)))
		w.Cohorts[0].Pods[4].UID = last()
		return &w
	}
	expect := func(what string, left time.Duration, underWay, cameBack bool) {
		t.Helper()
		gotLeft, gotUnderWay, gotCameBack := r.Pause(now)
		if max(0, gotLeft) != left || gotUnderWay != underWay || gotCameBack != cameBack {
			t.Errorf("%s: %s left, under way %t, came back %t; want %s, %t, %t", what, gotLeft, gotUnderWay, gotCameBack, left, underWay, cameBack)
		}
	}
	// evict evicts the last pod. Its successor has no node.
	evict := func() {
		r.Evicted(at("bj"), last())
		evictions++
		r.See(at("-"), now)
	}
	r.See(at("bj"), now)
	expect("before any eviction", 0, false, false)
	evict()
	expect("the successor has no node yet", 0, true, false)
	r.See(at("bj"), now)
	expect("it came back", firstPause, false, true)
	now = now.Add(firstPause)
	expect("the pause is over", 0, false, true)
	for pause := 2 * firstPause; pause < longestPause; pause *= 2 {
		evict()
		r.See(at("bj"), now)
		expect("another one came back", pause, false, true)
		now = now.Add(pause)
	}
	for range 2 {
		evict()
		r.See(at("bj"), now)
		expect("no pause is longer", longestPause, false, true)
		now = now.Add(longestPause)
	}
	evict()
	r.See(at("hz"), now)
	expect("one came where it is wanted", 0, false, false)
	if r.IsZero() {
		t.Error("forgotten before every pod is where it is wanted")
	}
	exact := seen(pods(cohort("r", "hz", "hz", "hz", "bj", "bj")))
	if r.See(&exact, now); !r.IsZero() {
		t.Error("not forgotten, and every pod is where it is wanted")
	}
}

// TestReturnCountResetsWithTheDivision: what was seen of one division is no evidence about
// another.
func TestReturnCountResetsWithTheDivision(t *testing.T) {
	tests := map[string]struct {
		then Workload
		zero bool
	}{
		"the same workload": {seen(pods(cohort("r", times(5, "bj")...))), false},
		"no pods":           {seen(), false},
		"another revision":  {seen(pods(cohort("s", times(5, "bj")...))), true},
		"two revisions":     {seen(pods(cohort("r", "bj"), cohort("s", "bj"))), true},
		"another division":  {seen(pods(cohort("r", times(5, "bj")...)), func(w *Workload) { w.Spread = threeToTwo("hz") }), true},
		"another size":      {seen(pods(cohort("r", times(5, "bj")...)), func(w *Workload) { w.Replicas = 7 }), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r, w := &Returns{}, seen(pods(cohort("r", times(5, "bj")...)))
			r.Evicted(&w, "r-4")
			if r.See(&tc.then, time.Unix(0, 0)); r.IsZero() != tc.zero {
				t.Errorf("forgotten: %t, want %t", r.IsZero(), tc.zero)
			}
		})
	}
	r, two := &Returns{}, seen(pods(cohort("r", "bj"), cohort("s", "bj")))
	if r.Evicted(&two, "r-0"); !r.IsZero() {
		t.Error("an eviction of a workload of two revisions is recorded")
	}
}
