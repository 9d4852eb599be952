package policies

import (
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/budget"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// leftOut passes an object through the transform of a cache that has no room for it.
func leftOut[T client.Object](t *testing.T, b *budget.Budget, o, without T) T {
	t.Helper()
	left, err := budget.Transform(b, func(T) int64 { return 100 << 10 }, func(T) T { return without })(o.DeepCopyObject())
	if err != nil {
		t.Fatal(err)
	}
	return left.(T)
}

// TestAPolicyThatWasNotReadIsNotUsed: it is not taken for an empty one, which would divide
// nothing and override nothing, and is used as soon as it is read, at the same generation.
func TestAPolicyThatWasNotReadIsNotUsed(t *testing.T) {
	r := newTestResolver(t, build.Node("n", build.InGroup("a")))
	b := budget.New(64<<10, 1<<20)
	r.SetBudgets(b)
	propagation, rules := build.PropagationPolicy("p", build.Weight(1, "a")), build.OverridePolicy("o")
	spread, err := r.Spread(leftOut(t, b, propagation, &gm.PropagationPolicy{}), "w")
	if err == nil || !strings.Contains(err.Error(), "the object is not read: it takes 100 KiB") {
		t.Errorf("a policy that was not read divides over %v: %v", spread.Groups(), err)
	}
	left := leftOut(t, b, rules, &gm.OverridePolicy{})
	if _, errs := r.Rules(left); len(errs) != 1 || !strings.Contains(errs[0].Error(), "spec: the object is not read: it takes 100 KiB") {
		t.Errorf("a policy that was not read has rules: %v", errs)
	}
	if why, wait := r.Unread(left); why == nil || wait == nil {
		t.Errorf("a policy that was not read does not say so: %v, %v", why, wait)
	}
	if spread, err := r.Spread(propagation, "w"); err != nil || len(spread.Groups()) != 1 {
		t.Errorf("once it is read it divides over %v: %v", spread.Groups(), err)
	}
	if why, wait := r.Unread(propagation); why != nil || wait != nil {
		t.Errorf("a policy that was read is not used: %v, %v", why, wait)
	}
}

// TestUnreadPolicyReturnsAnError: the two functions through which everything reads policies
// return an error for one that was not read.
func TestUnreadPolicyReturnsAnError(t *testing.T) {
	b := budget.New(64<<10, 1<<20)
	r := newTestResolver(t,
		leftOut(t, b, build.PropagationPolicy("p", build.Weight(1, "a")), &gm.PropagationPolicy{}), leftOut(t, b, build.OverridePolicy("o"), &gm.OverridePolicy{}))
	if _, err := r.Propagation(t.Context(), build.Namespace, "p"); !budget.IsUnread(err) {
		t.Errorf("a PropagationPolicy that was not read: %v", err)
	}
	if _, err := r.Override(t.Context(), build.Namespace, "o"); !budget.IsUnread(err) {
		t.Errorf("an OverridePolicy that was not read: %v", err)
	}
}

// TestAPolicyIsReadAgainWhenThereIsRoom: its condition changes then, which makes the API
// server send it again.
func TestAPolicyIsReadAgainWhenThereIsRoom(t *testing.T) {
	r := newTestResolver(t)
	b := budget.New(1<<20, 128<<10)
	r.SetBudgets(b)
	if err := b.Take(build.Namespace, "first", 100<<10); err != nil {
		t.Fatal(err)
	}
	left := leftOut(t, b, build.OverridePolicy("o"), &gm.OverridePolicy{})
	before, _ := r.Unread(left)
	b.Drop("first")
	after, wait := r.Unread(left)
	if before == nil || after == nil || before.Error() == after.Error() || wait == nil {
		t.Errorf("the condition stays: %v, %v, %v", before, after, wait)
	}
}
