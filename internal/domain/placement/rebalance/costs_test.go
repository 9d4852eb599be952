package rebalance

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// TestCostsDue: r-0 to r-2 are in hz, r-3 and r-4 in bj, r-5 waits.
func TestCostsDue(t *testing.T) {
	ofReplicaSet := func(w *Workload) { w.Cohorts[0].OfReplicaSet = true }
	set := func(w *Workload) {
		for _, c := range CostsDue(w) {
			for i := range w.Cohorts[0].Pods {
				if pod := &w.Cohorts[0].Pods[i]; pod.UID == c.Pod {
					pod.DeletionCost, pod.HasCost = c.Cost, true
				}
			}
		}
	}
	byUser := func(w *Workload) {
		pod := &w.Cohorts[0].Pods[1]
		pod.DeletionCost, pod.HasCost, pod.UserCost = 7, true, true
	}
	wrong := func(w *Workload) { w.Cohorts[0].Pods[3].DeletionCost = 7 }
	tests := map[string]struct {
		change []func(*Workload)
		want   []types.UID
	}{
		"each pod with a node":           {[]func(*Workload){ofReplicaSet}, []types.UID{"r-0", "r-1", "r-2", "r-3", "r-4"}},
		"none that has its cost":         {[]func(*Workload){ofReplicaSet, set}, nil},
		"one that has a wrong cost":      {[]func(*Workload){ofReplicaSet, set, wrong}, []types.UID{"r-3"}},
		"none that has a cost of a user": {[]func(*Workload){ofReplicaSet, byUser}, []types.UID{"r-0", "r-2", "r-3", "r-4"}},
		"none that no ReplicaSet owns":   {nil, nil},
		"none of what is not divided":    {[]func(*Workload){ofReplicaSet, func(w *Workload) { w.Divided = false }}, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := seen(append([]func(*Workload){pods(cohort("r", "hz", "hz", "hz", "bj", "bj", "-"))}, tc.change...)...)
			got, distinct := map[types.UID]bool{}, map[int32]bool{}
			for _, c := range CostsDue(&w) {
				got[c.Pod], distinct[c.Cost] = true, true
			}
			if len(got) != len(tc.want) || len(distinct) != len(tc.want) {
				t.Errorf("%d pods get %d costs, want %d", len(got), len(distinct), len(tc.want))
			}
			for _, pod := range tc.want {
				if !got[pod] {
					t.Errorf("%s gets no cost", pod)
				}
			}
		})
	}
}

// TestTheOrderOfLeavingDoesNotDependOnWrittenCosts: pods leave one after the other, each time the first of a new plan.
// Whether the deletion costs are written in between, and when, makes no difference.
func TestTheOrderOfLeavingDoesNotDependOnWrittenCosts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := cohort("r", times(rapid.IntRange(2, 12).Draw(t, "pods"), "hz")...)
		before.OfReplicaSet = true
		for i := range before.Pods {
			if rapid.Bool().Draw(t, "has a cost") {
				before.Pods[i].HasCost, before.Pods[i].DeletionCost = true, threeToTwo().SeatCost("hz", rapid.IntRange(1, 12).Draw(t, "of seat"), 12)
			}
		}
		leave := func(writes func() bool) (left []string) {
			at := before
			at.Pods = slices.Clone(before.Pods)
			for {
				w := seen(pods(at))
				p := NewPlan(&w)
				if len(p.Evict) == 0 {
					return left
				}
				left = append(left, p.Evict[0].Name)
				i := slices.IndexFunc(at.Pods, func(pod Pod) bool { return pod.UID == p.Evict[0].UID })
				moved := at.Pods[i]
				moved.UID, moved.Group, moved.HasCost = moved.UID+"-moved", "bj", false
				at.Pods = append(slices.Delete(at.Pods, i, i+1), moved)
				if writes() {
					w := seen(pods(at))
					for _, c := range CostsDue(&w) {
						i := slices.IndexFunc(at.Pods, func(pod Pod) bool { return pod.UID == c.Pod })
						at.Pods[i].DeletionCost, at.Pods[i].HasCost = c.Cost, true
					}
				}
			}
		}
		w := seen(pods(before))
		planned := names(NewPlan(&w).Evict)
		for what, got := range map[string][]string{
			"never":     leave(func() bool { return false }),
			"always":    leave(func() bool { return true }),
			"sometimes": leave(func() bool { return rapid.Bool().Draw(t, "written") }),
		} {
			if !slices.Equal(got, planned) {
				t.Fatalf("with costs that are written %s %v left, and planned were %v", what, got, planned)
			}
		}
	})
}
