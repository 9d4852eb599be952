package placement

import "slices"

// WithoutAway returns the spread while some groups are away: those still take part, with
// a share of 0, and the other groups divide their pods. If every group that can get a pod
// is away, none counts as away, because no group would be left for the pods. away reports
// whether a group is away, and must give the same result each time. Home of the result is
// Home of the receiver.
func (s Spread) WithoutAway(away func(group string) bool) Spread {
	s = s.Home()
	rest := s
	rest.weights, rest.ranges = slices.Clone(s.weights), slices.Clone(s.ranges)
	remaining := false // some group that can get pods is not away
	for i, most := range s.Ceilings(maxReplicas) {
		switch {
		case most == 0: // never gets a pod
			continue
		case !away(s.names[i]):
			remaining = true
			continue
		case s.ranges != nil:
			rest.ranges[i] = bounds{}
		default:
			rest.weights[i] = 0
		}
		rest.away = append(rest.away, s.names[i])
	}
	if !remaining || len(rest.away) == 0 {
		return s
	}
	rest.home = &s
	return rest
}

// Home returns the spread with no group away: what it was before WithoutAway.
func (s Spread) Home() Spread {
	if s.home != nil {
		return *s.home
	}
	return s
}

// Away returns the groups that WithoutAway counts as away, sorted. The slice must not be
// changed.
func (s Spread) Away() []string { return s.away }

// NextOnLoan returns the index of the group that gets a pod on loan: a pod beyond the group's
// share, because the groups below their share cannot take it. It is Next with Ceilings(n)
// as the desired numbers, where n is the number of the workload's pods.
func (s Spread) NextOnLoan(n int, current []int, feasible []bool) int {
	ceilings := s.Ceilings(n)
	if s.ranges != nil {
		return s.nextInOrder(ceilings, current, feasible, int64(min(max(n, 0), maxReplicas)))
	}
	return s.Next(ceilings, current, feasible)
}

// Ceilings returns the number of pods that each group may have at most when n pods are
// divided: its share, and pods on loan from groups that cannot take them. By ranges it is the
// max of the range and at most n, by weights n; 0 for a group that never gets a pod.
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
