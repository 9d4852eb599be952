package placement

import "slices"

const (
	// topDeletionCost is above every cost of a seat.
	topDeletionCost = 1_000_000_000
	// outsideDeletionCost is for pods in groups that take no part: they leave before all
	// others.
	outsideDeletionCost int32 = -topDeletionCost
)

// SeatCost returns the deletion cost of the k-th seat of a group, k from 1, when all
// groups together have total seats: the value of the annotation
// controller.kubernetes.io/pod-deletion-cost for the pod in that seat. A ReplicaSet
// removes pods of lower cost first, so with these costs a ReplicaSet that shrinks to n
// pods ends on Divide(n).
//
// The cost is 1,000,000,000 minus the place of the seat, from 1, in the order in which
// Next gives seats. By weights the place depends only on the weights, the group and k. By
// ranges, percentages are of total.
//
// A seat that no number of replicas gives the group has the cost −k: its pod leaves
// before the pods above, and so does a pod without the annotation, whose cost is 0. Pods
// of a group that takes no part leave first of all.
func (s Spread) SeatCost(group string, k, total int) int32 {
	i := s.Index(group)
	if i < 0 {
		return outsideDeletionCost
	}
	return s.seatCost(i, int64(max(k, 1)), int64(total))
}

// seatCost is SeatCost by the index of the group.
func (s Spread) seatCost(i int, k, total int64) int32 {
	var rank int64
	if s.ranges != nil {
		rank = s.rangeRank(i, k, total, topDeletionCost-1)
	} else {
		rank = s.webster().Rank(i, k, topDeletionCost-1)
	}
	if rank <= 0 {
		return int32(max(-k, -topDeletionCost+1))
	}
	return int32(topDeletionCost - rank)
}

// Recost returns a deletion cost for each pod of one group, so that together they have the
// costs of the group's first len(current) seats. It changes as few costs as possible, as
// each is a write to the API server: a pod keeps its cost if that is one of them and no
// earlier pod has it. current has the present costs, nil for a pod without one; total is
// as for SeatCost.
func (s Spread) Recost(group string, current []*int32, total int) []int32 {
	costs := make([]int32, len(current))
	if s.Index(group) < 0 {
		for i := range costs {
			costs[i] = outsideDeletionCost
		}
		return costs
	}
	free := make(map[int32]bool, len(current))
	for k := range current {
		free[s.SeatCost(group, k+1, total)] = true
	}
	var changing []int
	for i, cost := range current {
		if cost != nil && free[*cost] {
			free[*cost] = false
			costs[i] = *cost
			continue
		}
		changing = append(changing, i)
	}
	left := make([]int32, 0, len(changing))
	for cost, isFree := range free {
		if isFree {
			left = append(left, cost)
		}
	}
	slices.Sort(left)
	slices.Reverse(left)
	for at, i := range changing {
		costs[i] = left[at]
	}
	return costs
}
