package rebalance

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Cost is the deletion cost that a pod should have.
type Cost struct {
	Pod  types.UID
	Cost int32
}

// CostsDue returns the pods with a node whose deletion cost is missing or wrong, by
// cohort and group. Costs that a user wrote stay as they are.
func CostsDue(w *Workload) []Cost {
	if !w.Divided {
		return nil
	}
	var due []Cost
	for _, c := range w.Cohorts {
		if !c.OfReplicaSet {
			continue
		}
		byGroup := map[string][]*Pod{}
		for i := range c.Pods {
			if pod := &c.Pods[i]; pod.Node != "" && !pod.UserCost {
				byGroup[pod.Group] = append(byGroup[pod.Group], pod)
			}
		}
		for _, group := range slices.Sorted(maps.Keys(byGroup)) {
			pods := byGroup[group]
			current := make([]*int32, len(pods))
			for i, pod := range pods {
				if pod.HasCost {
					current[i] = &pod.DeletionCost
				}
			}
			for i, cost := range w.Spread.Recost(group, current, len(c.Pods)) {
				if current[i] == nil || *current[i] != cost {
					due = append(due, Cost{pods[i].UID, cost})
				}
			}
		}
	}
	return due
}
