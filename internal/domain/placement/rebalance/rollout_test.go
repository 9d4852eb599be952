package rebalance

import (
	"testing"
	"time"
)

// TestARolloutSettles plays what is seen of a rollout, second by second. It is settled
// once nothing has changed for five seconds.
func TestARolloutSettles(t *testing.T) {
	const stabilization = 5 * time.Second
	start := time.Unix(1_000_000, 0)
	two := func(change ...func(*Workload)) Workload {
		return seen(append([]func(*Workload){pods(cohort("old", "hz", "hz", "bj"), cohort("new", "hz", "bj")), func(w *Workload) { w.Complete = true }}, change...)...)
	}
	unavailable := func(w *Workload) { w.Cohorts[0].Pods[2].Available = false }
	away := func(w *Workload) { w.Spread = w.Spread.WithoutAway(func(group string) bool { return group == "bj" }) }
	r := &Rollout{}
	for _, step := range []struct {
		name     string
		after    time.Duration
		workload Workload
		settled  bool
		left     time.Duration
	}{
		{"seen for the first time", 0, two(), false, 5 * time.Second},
		{"nothing has changed", 3 * time.Second, two(), false, 2 * time.Second},
		{"an owner lacks a pod", 4 * time.Second, two(func(w *Workload) { w.Complete = false }), false, 0},
		{"nothing has changed for long enough", 5 * time.Second, two(), true, 0},
		{"a pod is not available", 6 * time.Second, two(unavailable), false, 0},
		{"its group is away", 7 * time.Second, two(unavailable, away), true, -2 * time.Second},
		{"another pod", 8 * time.Second, two(func(w *Workload) { w.Cohorts[1].Pods[0].UID = "another" }), false, 5 * time.Second},
	} {
		ok, left := r.Settled(&step.workload, start.Add(step.after), stabilization)
		if ok != step.settled || left != step.left {
			t.Errorf("%s: settled %t, %s left; want %t and %s", step.name, ok, left, step.settled, step.left)
		}
	}
}

func TestAnEvictionOfARolloutFailsOnce(t *testing.T) {
	r := &Rollout{}
	if r.Failed(3) {
		t.Error("failed before there was an eviction")
	}
	r.Evicted(3)
	if r.Failed(2) || r.Failed(3) {
		t.Error("failed, and the surplus was smaller when it was looked at first")
	}
	r.Evicted(3)
	if !r.Failed(3) || r.Failed(3) {
		t.Error("a surplus that stays is one failure")
	}
}
