package placement

import (
	"math"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// unlimited is the max of a group that has none. It is above every number of
// replicas, and a sum of two does not overflow.
const unlimited = math.MaxInt64 / 4

// bound is one end of a range: a number of pods, or a percentage of replicas.
type bound struct {
	value   int64
	percent bool
}

// of is the bound in pods for n replicas; percentages are rounded up.
func (b bound) of(n int64) int64 {
	if !b.percent {
		return b.value
	}
	return (b.value*n + 99) / 100
}

// bounds is the range of one group.
type bounds struct{ min, max bound }

// of gives both ends in pods for n replicas, min never above max.
func (b bounds) of(n int64) (low, high int64) {
	high = b.max.of(n)
	return min(b.min.of(n), high), high
}

func boundsOf(rule *gm.NodeGroupNumRange) bounds {
	b := bounds{max: bound{value: unlimited}}
	if low, ok := parseBound(rule.Min); ok {
		b.min = low
	}
	if high, ok := parseBound(rule.Max); ok {
		b.max = high
	}
	return b
}

// parseBound reads a number from 0 to 1,000,000 or a percentage from 0% to
// 100%. ok is false when value is unset or neither.
func parseBound(value *intstr.IntOrString) (b bound, ok bool) {
	if value == nil {
		return bound{}, false
	}
	if value.Type == intstr.Int {
		return bound{value: int64(value.IntVal)}, value.IntVal >= 0 && value.IntVal <= maxCount
	}
	digits, found := strings.CutSuffix(value.StrVal, "%")
	if !found || len(digits) > 3 || strings.ContainsAny(digits, "+-") {
		return bound{}, false
	}
	percent, err := strconv.Atoi(digits)
	return bound{value: int64(percent), percent: true}, err == nil && percent <= 100
}

// fill puts up to k of n seats into seats, which is all zero.
func (s Spread) fill(seats []int, k, n int) {
	left, total := int64(k), int64(n)
	for _, i := range s.order {
		low, _ := s.ranges[i].of(total)
		given := min(low, left)
		seats[i] = int(given)
		left -= given
	}
	for _, i := range s.order {
		if left == 0 {
			return
		}
		_, high := s.ranges[i].of(total)
		given := min(high-int64(seats[i]), left)
		seats[i] += int(given)
		left -= given
	}
}

// nextInOrder is Next by ranges: the first group below its min, then the first
// below what it should have. Percentages of min are taken of total. Next takes the
// sum of desired for it, which is the number of replicas unless all groups are at
// their max, when the order no longer changes where pods end.
func (s Spread) nextInOrder(desired, current []int, feasible []bool, total int64) int {
	open := -1
	for _, i := range s.order {
		index := int(i)
		if index >= len(desired) || feasible != nil && (index >= len(feasible) || !feasible[index]) {
			continue
		}
		seats, want := seatsAt(current, index), int64(desired[index])
		if seats >= want {
			continue
		}
		if low, _ := s.ranges[i].of(total); seats < low {
			return index
		}
		if open < 0 {
			open = index
		}
	}
	return open
}

// rangeRank is the place, from 1, of group i's k-th seat in the order in which
// n replicas fill the groups; 0 if the group never gets it or it comes after
// limit.
func (s Spread) rangeRank(i int, k, n, limit int64) int64 {
	ownLow, ownHigh := s.ranges[i].of(n)
	if k > ownHigh {
		return 0
	}
	inMin := k <= ownLow
	before, lows := int64(0), int64(0) // seats of the groups before i in this pass; all seats of the min pass
	reached := false
	for _, j := range s.order {
		if int(j) == i {
			reached = true
		}
		low, high := s.ranges[j].of(n)
		lows += low
		if reached {
			continue
		}
		if inMin {
			before += low
		} else {
			before = min(before+high-low, unlimited)
		}
	}
	rank := before + k
	if !inMin {
		rank += lows - ownLow
	}
	if rank > limit {
		return 0
	}
	return rank
}
