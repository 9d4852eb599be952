package replacement

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

func TestNewPlan(t *testing.T) {
	runs := Pod{Bound: true, Available: true, Pinned: true, GetsSuccessor: true}
	notReady := Pod{Bound: true, Pinned: true, GetsSuccessor: true}
	waits := Pod{GetsSuccessor: true}
	ofJob := Pod{Bound: true, Available: true}
	seen := func(change func(*Workload), pods ...Pod) Workload {
		w := Workload{Stale: pods, Mode: gm.ReschedulingEvict, Bound: true, Placed: true}
		change(&w)
		return w
	}
	nothing := func(*Workload) {}
	tests := map[string]struct {
		workload Workload
		want     Plan
	}{
		"no pod is stale":                   {seen(nothing), Plan{}},
		"pods that are not available first": {seen(nothing, runs, waits, runs, notReady), Plan{Replace: []int{1, 3, 0, 2}}},
		"no pod without a successor":        {seen(nothing, ofJob, runs), Plan{Replace: []int{1}}},
		"only pods that wait in another mode": {
			seen(func(w *Workload) { w.Mode = gm.ReschedulingNever }, runs, waits, notReady), Plan{Replace: []int{1}},
		},
		"the workload is not bound": {seen(func(w *Workload) { w.Bound = false }, runs), Plan{}},
		"the API server refuses pods": {
			seen(func(w *Workload) { w.Refused, w.Placed, w.Untried = true, false, true }, runs), Plan{Blocked: ErrRefused},
		},
		"the NodeGroup of a new pod is not known": {
			seen(func(w *Workload) { w.Placed, w.Untried = false, true }, runs), Plan{Blocked: ErrNotPlaced},
		},
		"the rules are not tried": {
			seen(func(w *Workload) { w.Untried, w.BypassedFor = true, time.Second }, runs), Plan{Blocked: ErrUntried},
		},
		"new pods bypass the webhook": {
			seen(func(w *Workload) { w.BypassedFor = time.Second }, runs), Plan{Blocked: ErrBypassed, Wait: time.Second},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, NewPlan(&tc.workload), cmpopts.EquateErrors()); diff != "" {
				t.Errorf("wrong plan (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSettlesAt(t *testing.T) {
	created, movedAt := time.Unix(100, 0), time.Unix(200, 0)
	tests := map[string]struct {
		pod  Pod
		want time.Time
	}{
		"a pod without a group":         {Pod{Created: created}, created.Add(MissedTime)},
		"a pod that waits in its group": {Pod{Created: created, Pinned: true}, movedAt.Add(time.Minute)},
		"a pod with a node":             {Pod{Created: created, Bound: true}, movedAt.Add(time.Minute)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.pod.SettlesAt(movedAt, time.Minute); !got.Equal(tc.want) {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// TestBypass plays what is seen of new pods, second by second.
func TestBypass(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	b := &Bypass{}
	expect := func(what string, now int, onlyOne bool, left time.Duration) {
		t.Helper()
		if gotOne, gotLeft := b.Pause(at(now)); gotOne != onlyOne || gotLeft != left {
			t.Errorf("%s: only one %t, %s left; want %t and %s", what, gotOne, gotLeft, onlyOne, left)
		}
	}
	b.See(at(5), time.Time{})
	expect("pods from before the webhook are no evidence", 10, false, 0)
	b.Replaced(at(5), time.Time{}, at(10))
	b.See(at(5), time.Time{})
	expect("its successor is not there yet", 11, false, 0)
	b.See(at(12), time.Time{})
	expect("its successor did not pass", 12, true, TryTime-2*time.Second)
	expect("one more after a while", 10+int(TryTime/time.Second), true, 0)
	b.Replaced(at(12), time.Time{}, at(400))
	b.See(at(12), at(401))
	expect("the next one passed", 401, false, 0)
	b.See(at(402), at(401))
	expect("one that did not pass, long after the last replacement", 500, true, 0)
}

// TestAWorkloadWhoseNewPodsPassIsNeverPaused whatever its older pods did.
func TestAWorkloadWhoseNewPodsPassIsNeverPaused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := &Bypass{}
		missed := time.Unix(rapid.Int64Range(0, 1000).Draw(t, "newest older pod"), 0)
		admitted := time.Time{}
		now := int64(1000)
		for range rapid.IntRange(1, 20).Draw(t, "replacements") {
			now += rapid.Int64Range(1, 1000).Draw(t, "later")
			b.See(missed, admitted)
			if onlyOne, left := b.Pause(time.Unix(now, 0)); onlyOne || left > 0 {
				t.Fatalf("paused for %s", left)
			}
			b.Replaced(missed, admitted, time.Unix(now, 0))
			admitted = time.Unix(now, 0)
		}
	})
}
