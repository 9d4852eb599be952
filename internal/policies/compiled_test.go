package policies

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestOneNamespaceForgetsItsOwnOnly: a namespace that compiles more and more loses what it
// compiled before, and no other namespace loses anything.
func TestOneNamespaceForgetsItsOwnOnly(t *testing.T) {
	c := newCompiled[int, string](100, 1000)
	c.put("quiet", 0, "kept", 50)
	for i := range 1000 {
		c.put("crowd", i, "", 30)
	}
	if v, found := c.get("quiet", 0); !found || v != "kept" {
		t.Errorf("another namespace lost its value: %q, %t", v, found)
	}
	if _, found := c.get("crowd", 999); !found {
		t.Error("the last value is not kept")
	}
	if n := len(c.namespaces["crowd"].values); n > 3 {
		t.Errorf("%d values of weight 30 are kept, and 100 are allowed", n)
	}
}

// TestASpreadThatIsForgottenKeepsItsTime: with more workloads than spreads are kept, each pass
// compiles all of them again. They divide pods as before, so the stabilization time ends.
func TestASpreadThatIsForgottenKeepsItsTime(t *testing.T) {
	r := newTestResolver(t, build.Node("n", build.InGroup("a")))
	r.spreads = newCompiled[spreadKey, spreadEntry](10, 10)
	policy := build.PropagationPolicy("p", build.Weight(1, "a"))
	settles := func(workload int) time.Time { return r.SettlesAt(policy, types.UID(fmt.Sprint(workload))) }
	var first [100]time.Time
	for round := range 3 {
		for i := range first {
			at := settles(i)
			if round == 0 {
				first[i] = at
			}
			if !at.Equal(first[i]) {
				t.Fatalf("round %d: workload %d settles at %s, before at %s", round, i, at, first[i])
			}
		}
		r.clock.Step(time.Hour)
	}
}

// TestCompiledIsBounded: whatever is put, sums are right and bounds hold, unless one value
// alone exceeds them.
func TestCompiledIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCompiled[int, int](100, 250)
		for i := range rapid.IntRange(1, 200).Draw(t, "puts") {
			namespace := fmt.Sprint(rapid.IntRange(0, 4).Draw(t, "namespace"))
			key := rapid.IntRange(0, 5).Draw(t, "key")
			c.put(namespace, key, i, rapid.Int64Range(0, 60).Draw(t, "weight"))
			if v, found := c.get(namespace, key); !found || v != i {
				t.Fatalf("got %d, %t right after %d was put", v, found, i)
			}
			all := int64(0)
			for name, of := range c.namespaces {
				sum := int64(0)
				for _, w := range of.values {
					sum += w.weight
				}
				if sum != of.weight || sum > 100 {
					t.Fatalf("namespace %s: %d is counted as %d, and 100 are allowed", name, sum, of.weight)
				}
				all += sum
			}
			if all != c.weight || all > 250 {
				t.Fatalf("%d is counted as %d, and 250 are allowed", all, c.weight)
			}
		}
	})
}
