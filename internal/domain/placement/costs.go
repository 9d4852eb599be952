package placement

import "slices"

// SeatCost is the deletion cost of a group's k-th seat, k from 1, of total
// seats in all groups: see DeletionCosts. It is what a pod can be given when it
// takes the seat.
func (s Spread) SeatCost(group string, k, total int) int32 {
	i := s.Index(group)
	if i < 0 {
		return OutsideDeletionCost
	}
	return s.seatCost(i, int64(max(k, 1)), int64(total))
}

// Recost gives the pods of one group the costs of the group's first
// len(current) seats, one each, and changes as few as it can: a pod keeps a
// cost that is among them and that no pod before it keeps. current[i] is nil
// for a pod without a cost.
func (s Spread) Recost(group string, current []*int32, total int) []int32 {
	costs := make([]int32, len(current))
	if s.Index(group) < 0 {
		for i := range costs {
			costs[i] = OutsideDeletionCost
		}
		return costs
	}
	free := make(map[int32]bool, len(current))
	for k := range current {
		free[s.SeatCost(group, k+1, total)] = true
	}
	var anew []int
	for i, cost := range current {
		if cost != nil && free[*cost] {
			free[*cost] = false
			costs[i] = *cost
			continue
		}
		anew = append(anew, i)
	}
	left := make([]int32, 0, len(anew))
	for cost, is := range free {
		if is {
			left = append(left, cost)
		}
	}
	slices.Sort(left)
	slices.Reverse(left)
	for at, i := range anew {
		costs[i] = left[at]
	}
	return costs
}
