package e2e

import (
	"testing"
)

// TestBurstIsExact is scenario 2: a Deployment of 50 at 3:2, created at once,
// is 30:20 each of 20 times, and nothing was evicted for it.
func TestBurstIsExact(t *testing.T) {
	f := newFixture(t)
	f.group("burst-hz", 2)
	f.group("burst-bj", 3)
	f.create(weights("policy", "burst-hz", 3, "burst-bj", 2))
	for range 20 {
		deleted := f.watchDeletions("burst")
		d := deployment("burst", 50, "policy")
		f.create(d)
		f.eventually(patience, "all 50 pods are bound", func() error {
			return f.spreadIs("burst", map[string]int{"burst-hz": 30, "burst-bj": 20})
		})
		if n := deleted(); n != 0 {
			t.Fatalf("%d pods were deleted on the way", n)
		}
		f.remove(d)
	}
}

// TestWeightsTable is scenario 35 on the real thing: growth from 12 to 14 at
// 3:2:1 takes no pod from any group.
func TestWeightsTable(t *testing.T) {
	f := newFixture(t)
	for _, g := range []string{"table-a", "table-b", "table-c", "table-d"} {
		f.group(g, 1)
	}
	f.create(weights("policy", "table-a", 3, "table-b", 2, "table-c", 1))
	f.create(deployment("table", 12, "policy"))
	deleted := f.watchDeletions("table")
	for _, step := range []struct{ replicas, a, b, c int }{{12, 6, 4, 2}, {13, 7, 4, 2}, {14, 7, 5, 2}} {
		f.scale("table", step.replicas)
		f.eventually(patience, "the pods are spread", func() error {
			return f.spreadIs("table", map[string]int{"table-a": step.a, "table-b": step.b, "table-c": step.c})
		})
	}
	if n := deleted(); n != 0 {
		t.Errorf("%d pods were deleted on the way", n)
	}
}
