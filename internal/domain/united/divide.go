package united

import (
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/atoll-k8s/atoll/internal/domain/webster"
)

// Divide returns the number of pods of each pool, in the order of shares. A share is the
// pool's replicas: a number, a percentage, or nil.
//
// Without a total (nil) each pool gets its number, and a pool without one gets 1 pod.
//
// With a total the sum of the result is the total, in three steps:
//
//  1. Numbers are served first, in order, as far as the total reaches.
//  2. Percentages are of the total. The pools without a share together have the weight
//     that is left of 100. Each weight gets its part of the total, rounded up or down, as
//     far as step 1 left pods.
//  3. The pools without a share divide the rest evenly. The first of them get one more.
//
// Invalid input that the schema refuses is divided too: percentages count until their sum
// is 100. If every pool has a share, the rest goes to the percentages in proportion, or
// to the last pool if there are none.
//
// A larger total takes no pod from any pool.
func Divide(total *int32, shares []*intstr.IntOrString) []int32 {
	out := make([]int32, len(shares))
	if total == nil {
		for i, share := range shares {
			switch {
			case share == nil:
				out[i] = 1
			case share.Type == intstr.Int:
				out[i] = max(0, share.IntVal)
			}
		}
		return out
	}
	left := max(0, *total)
	weights := make([]int, len(shares))
	hundred := 100
	var open []int
	for i, share := range shares {
		switch {
		case share == nil:
			open = append(open, i)
		case share.Type == intstr.Int:
			out[i] = min(left, max(0, share.IntVal))
			left -= out[i]
		default:
			weights[i] = min(hundred, percent(share.StrVal))
			hundred -= weights[i]
		}
	}
	rest := -1 // the index of the weight of all pools without a share
	if len(open) > 0 {
		rest = open[0]
		weights[rest] = hundred
	}
	left -= apportion(weights, rest, max(0, int(*total)), left, out)
	for n, i := range open {
		share := left / int32(len(open)-n)
		if left%int32(len(open)-n) > 0 {
			share++
		}
		out[i] += share
		left -= share
	}
	if left > 0 && len(out) > 0 {
		out[len(out)-1] += left
	}
	return out
}

// percent parses "30%", bounded to 0 to 100. An invalid text is 0.
func percent(s string) int {
	n, err := strconv.Atoi(strings.TrimSuffix(s, "%"))
	if err != nil {
		return 0
	}
	return min(max(0, n), 100)
}

// apportion divides a total over the weights. It adds the pods of each weight to out,
// except those of the weight at index rest, and adds at most limit pods in all. It returns
// the number of added pods. If rest is -1, it divides the limit instead of the total.
//
// Pods are handed out in an order that does not depend on the total. So a larger total or
// a larger limit takes no pod from a weight.
func apportion(weights []int, rest, total int, limit int32, out []int32) (given int32) {
	turns := order(weights)
	if len(turns) == 0 {
		return 0
	}
	if rest < 0 {
		total = int(limit)
	}
	got := make([]int, len(weights))
	add := func(i, n int) {
		if i != rest && n > 0 {
			n = min(n, int(limit-given))
			got[i] += n
			given += int32(n)
		}
	}
	// The order is repeated until the total is reached. The limit cuts off its end.
	// counted is how many turns of one round count against the limit.
	counted := len(turns)
	if rest >= 0 {
		counted -= weights[rest]
	}
	rounds, more := total/len(turns), total%len(turns)
	if counted > 0 && rounds > int(limit)/counted {
		rounds, more = int(limit)/counted, len(turns)
	}
	for i, w := range weights {
		add(i, rounds*w)
	}
	for _, i := range turns[:more] {
		add(i, 1)
	}
	for i := range got {
		out[i] += int32(got[i])
	}
	return given
}

// order returns the order in which pods are handed out: one index into weights for each
// of the sum of the weights. After any number of turns every weight has its share of
// them, rounded up or down.
//
// The next pod goes to the weight with the largest weight/(2·had+1), had being the pods
// that it has; of equal ones to the first. This is Webster's method. Two conditions
// restrict the choice: no weight may exceed its share rounded up, and no pod may be given
// away if then too few turns are left to give all weights their share rounded down at
// some later turn. (J. W. Still, A Class of New Methods for Congressional Apportionment,
// 1979, proves that at least one weight always satisfies both.)
func order(weights []int) []int {
	sum := 0
	for _, w := range weights {
		sum += w
	}
	// owed[t] is the number of turns that must have happened after t turns: for each
	// weight the turns that it had, or its share rounded down if that is more.
	owed := make([]int, sum+1)
	for turn := range owed {
		for _, w := range weights {
			if w > 0 {
				owed[turn] += turn * w / sum
			}
		}
	}
	turns := make([]int, 0, sum)
	had := make([]int, len(weights))
	for turn := 1; turn <= sum; turn++ {
		// full is the first turn by which all turns are owed. Until then only weights that
		// are owed a turn by then may have one.
		full := turn
		for owed[full] < full {
			full++
		}
		next, due := -1, 0
		for i, w := range weights {
			if had[i]*sum >= turn*w {
				continue
			}
			by := ((had[i]+1)*sum + w - 1) / w // the turn by which it is owed its next pod
			if by <= full && (next < 0 || webster.Compare(int64(w), int64(had[i]), int64(weights[next]), int64(had[next])) > 0) {
				next, due = i, by
			}
		}
		if next < 0 {
			break // impossible, see above
		}
		for t := turn; t < due; t++ {
			owed[t]++
		}
		had[next]++
		turns = append(turns, next)
	}
	return slices.Clip(turns)
}
