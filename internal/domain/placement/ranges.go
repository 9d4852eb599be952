package placement

import (
	"math"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// unlimited is the max of a group that has none. It is above every number of replicas, and
// the sum of two does not overflow.
const unlimited = math.MaxInt64 / 4

// bound is one end of a range: a number of pods, or a percentage of replicas.
type bound struct {
	value   int64
	percent bool
}

// of returns the bound as a number of pods, for n replicas. Percentages are rounded up.
func (b bound) of(n int64) int64 {
	if !b.percent {
		return b.value
	}
	return (b.value*n + 99) / 100
}

// bounds is the range of one group.
type bounds struct{ min, max bound }

// of returns both bounds as numbers of pods, for n replicas. low is never above high.
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

// parseBound parses a number from 0 to 1,000,000 or a percentage from 0% to 100%. ok is
// false if value is nil or anything else.
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

// fill places the first k of n replicas. seats must be all zero; percentages are of n.
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

// nextInOrder is Next by ranges: the first group in the policy's order that is below its
// min, else the first that is below its desired number. Percentages are of total. Next
// passes the sum of desired. That is the number of replicas unless all groups are at their
// max; then each group gets its max in any order.
func (s Spread) nextInOrder(desired, current []int, feasible []bool, total int64) int {
	first := -1 // the first group below desired
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
		if first < 0 {
			first = index
		}
	}
	return first
}

// rangeRank returns the place, from 1, of the k-th seat of group i in the order in which n
// replicas fill the groups. It returns 0 if the group never gets k seats, or if the place is
// above limit.
func (s Spread) rangeRank(i int, k, n, limit int64) int64 {
	ownLow, ownHigh := s.ranges[i].of(n)
	if k > ownHigh {
		return 0
	}
	inMin := k <= ownLow
	// before counts the seats of groups before i, up to their min if the seat is within
	// the min of group i, else between min and max. lows is the sum of all min.
	before, lows := int64(0), int64(0)
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
