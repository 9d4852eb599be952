package policies

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestCompiledCacheEvictsWithinItsNamespace: a namespace that compiles more and more loses what it
// compiled before, and no other namespace loses anything.
func TestCompiledCacheEvictsWithinItsNamespace(t *testing.T) {
	c := newCompiled[string](100, 1000)
	c.put("quiet", "0", "kept", 50)
	for i := range 1000 {
		c.put("crowd", types.UID(fmt.Sprint(i)), "", 30)
	}
	if v, found := c.get("quiet", "0"); !found || v != "kept" {
		t.Errorf("another namespace lost its value: %q, %t", v, found)
	}
	if _, found := c.get("crowd", "999"); !found {
		t.Error("the last value is not kept")
	}
	if n := len(c.namespaces["crowd"].values); n > 3 {
		t.Errorf("%d values of weight 30 are kept, and 100 are allowed", n)
	}
}

// TestCompiledCacheEvictsUnusedEntries: what is used stays, however many namespaces compile
// more than all may keep together.
func TestCompiledCacheEvictsUnusedEntries(t *testing.T) {
	c := newCompiled[string](100, 1000)
	c.put("quiet", "0", "kept", 50)
	c.put("deleted", "0", "", 50)
	for i := range 1000 {
		c.put(fmt.Sprint("crowd-", i), "0", "", 90)
		if _, found := c.get("quiet", "0"); !found {
			t.Fatalf("after %d other namespaces a value in use is forgotten", i+1)
		}
	}
	if _, found := c.get("deleted", "0"); found {
		t.Error("a value that nobody uses is kept")
	}
	if n := len(c.namespaces); n > 12 {
		t.Errorf("%d namespaces are remembered", n)
	}
}

// TestConcurrentCallersCompileOnce: what is forgotten while a policy is compiled does
// not let another caller compile it at the same time.
func TestConcurrentCallersCompileOnce(t *testing.T) {
	c := newCompiled[string](100, 200)
	c.put("large", "kept", "", 90)
	var times, ended atomic.Int64
	begun, end := make(chan struct{}, 2), make(chan struct{})
	compile := func() {
		c.value("large", "new", func(string) bool { return true }, func() (string, int64) {
			times.Add(1)
			begun <- struct{}{}
			<-end
			return "", 1
		})
		ended.Add(1)
	}
	go compile()
	<-begun
	for i := range 20 {
		c.put(fmt.Sprint("crowd-", i), "0", "", 90)
	}
	if _, found := c.get("large", "kept"); found {
		t.Error("nothing of the namespace was forgotten")
	}
	go compile()
	build.Eventually(t, "a second caller waits, or compiles", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.namespaces["large"].callers == 2 || len(begun) > 0
	})
	close(end)
	build.Eventually(t, "both have the value", func() bool { return ended.Load() == 2 })
	if n := times.Load(); n != 1 {
		t.Errorf("it was compiled %d times", n)
	}
}

// TestEvictedSpreadKeepsItsStabilizationTime: with more policies than are kept, each pass compiles
// all of them again. They divide pods as before, so the stabilization time ends.
func TestEvictedSpreadKeepsItsStabilizationTime(t *testing.T) {
	r := newTestResolver(t, build.Node("n", build.InGroup("a")))
	r.spreads = newCompiled[spreadEntry](10, 10)
	policy := build.PropagationPolicy("p", build.Weight(1, "a"))
	settles := func(i int) time.Time {
		policy.UID = types.UID(fmt.Sprint(i))
		return r.SettlesAt(policy)
	}
	var first [100]time.Time
	for round := range 3 {
		for i := range first {
			at := settles(i)
			if round == 0 {
				first[i] = at
			}
			if !at.Equal(first[i]) {
				t.Fatalf("round %d: policy %d settles at %s, before at %s", round, i, at, first[i])
			}
		}
		r.clock.Step(time.Hour)
	}
}

// TestLostStabilizationTimeStartsAgain: pods are not moved at once because it is unknown since
// when the policy divides them as it does.
func TestLostStabilizationTimeStartsAgain(t *testing.T) {
	r := newTestResolver(t, build.Node("n", build.InGroup("a")))
	policy := build.PropagationPolicy("p", build.Weight(1, "a"))
	r.SettlesAt(policy)
	r.clock.Step(time.Hour)
	r.since.drop(policy.UID)
	if at := r.SettlesAt(policy); !at.Equal(r.clock.Now().Add(gm.DefaultStabilization)) {
		t.Errorf("settles at %s, and it is %s", at, r.clock.Now())
	}
}

// TestCompiledIsBounded: whatever is put, sums are right and bounds hold, unless one value
// alone exceeds them.
func TestCompiledIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCompiled[int](100, 250)
		for i := range rapid.IntRange(1, 200).Draw(t, "puts") {
			namespace := fmt.Sprint(rapid.IntRange(0, 4).Draw(t, "namespace"))
			key := types.UID(fmt.Sprint(rapid.IntRange(0, 5).Draw(t, "key")))
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

// TestALargePolicyDelaysItsOwnNamespaceOnly: while a policy is compiled, policies of other
// namespaces are compiled too, kept ones of its own are used, and nobody compiles it twice.
func TestALargePolicyDelaysItsOwnNamespaceOnly(t *testing.T) {
	c := newCompiled[string](100, 1000)
	valid := func(string) bool { return true }
	at := func(namespace string, policy types.UID, compile func()) string {
		return c.value(namespace, policy, valid, func() (string, int64) {
			compile()
			return string(policy), 1
		})
	}
	at("crowd", "kept", func() {})
	var times atomic.Int64
	begun, end := make(chan struct{}, 10), make(chan struct{})
	var callers sync.WaitGroup
	for range 10 {
		callers.Go(func() {
			got := at("crowd", "large", func() {
				times.Add(1)
				begun <- struct{}{}
				<-end
			})
			if got != "large" {
				t.Errorf("got %q", got)
			}
		})
	}
	<-begun
	others := make(chan struct{})
	go func() {
		defer close(others)
		at("quiet", "small", func() {})
		at("crowd", "kept", func() { t.Error("a policy that is kept was compiled again") })
	}()
	select {
	case <-others:
	case <-time.After(time.Minute):
		t.Error("other policies wait for one that is compiled")
	}
	close(end)
	callers.Wait()
	if n := times.Load(); n != 1 {
		t.Errorf("the policy was compiled %d times", n)
	}
}
