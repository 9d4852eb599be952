package rebalance

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
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
