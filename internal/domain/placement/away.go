package placement

import "slices"

// WithoutAway is the spread while groups are away: they take part with a share
// of nothing, and the others divide it. If every group that could get a pod is
// away, none counts as away: nobody would be there to have the share. away must
// give the same answer each time. The receiver stays as it is and is Home of
// the result.
func (s Spread) WithoutAway(away func(group string) bool) Spread {
	s = s.Home()
	rest := s
	rest.weights, rest.ranges = slices.Clone(s.weights), slices.Clone(s.ranges)
	there := false // some group may get pods
	for i, most := range s.Ceilings(maxReplicas) {
		switch {
		case most == 0: // never gets a pod
			continue
		case !away(s.names[i]):
			there = true
			continue
		case s.ranges != nil:
			rest.ranges[i] = bounds{}
		default:
			rest.weights[i] = 0
		}
		rest.away = append(rest.away, s.names[i])
	}
	if !there || len(rest.away) == 0 {
		return s
	}
	rest.home = &s
	return rest
}

// Home is the spread with every group in its place: what WithoutAway was asked of.
func (s Spread) Home() Spread {
	if s.home != nil {
		return *s.home
	}
	return s
}

// Away are the groups whose share the others divide, sorted. The slice must not
// be changed.
func (s Spread) Away() []string { return s.away }

// NextOnLoan is Next for a pod that no group has a place for, of a workload of n pods:
// groups may have as many as Ceilings says.
func (s Spread) NextOnLoan(n int, current []int, feasible []bool) int {
	ceilings := s.Ceilings(n)
	if s.ranges != nil {
		return s.nextInOrder(ceilings, current, feasible, int64(min(max(n, 0), maxReplicas)))
	}
	return s.Next(ceilings, current, feasible)
}

// Ceilings is the number of pods that each group may hold at most when n are
// divided, on loan from groups that have no place for them: of a range its max,
// by weights n; 0 for a group that never gets a pod.
func (s Spread) Ceilings(n int) []int {
	n = min(max(n, 0), maxReplicas)
	ceilings := make([]int, len(s.names))
	for i := range ceilings {
		switch {
		case s.ranges != nil:
			_, high := s.ranges[i].of(int64(n))
			ceilings[i] = int(min(high, int64(n)))
		case s.weights[i] > 0:
			ceilings[i] = n
		}
	}
	return ceilings
}
