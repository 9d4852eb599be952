package united

import (
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/atoll-k8s/atoll/internal/domain/webster"
)

// Divide says how many pods each pool has, in the order of the pools.
//
// Without a total every pool has its number; one that says none has one pod,
// as any workload. With a total the sum is the total: numbers come first, in
// order and as far as the total reaches. Percentages are of the total, and the
// pools that say nothing have, together, what is left of 100. Each percentage
// gets its share, rounded down or up, as far as the numbers leave pods. The
// pools that say nothing share evenly, the first of them one more.
//
// What the schema refuses is divided too: a percentage counts as far as 100
// reaches; where no pool says nothing, the rest goes to the percentages in
// proportion, and to the last pool where there are none.
//
// Growth takes no pod from any pool.
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
	rest := -1 // the weight of the pools that say nothing
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

// percent reads "30%"; what is none is 0.
func percent(s string) int {
	n, err := strconv.Atoi(strings.TrimSuffix(s, "%"))
	if err != nil {
		return 0
	}
	return min(max(0, n), 100)
}

// apportion adds to out what each weight but the rest's gets of a total, and at
// most limit of them together. It returns how many those are. Without a rest
// (-1) the limit is divided.
//
// Pods are handed out in one order, whatever the total: so growth takes no pod
// from a weight, and neither does a limit that grows.
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
	// The order begins anew each time it is through. What is cut off by the
	// limit is cut off at its end.
	ours := len(turns)
	if rest >= 0 {
		ours -= weights[rest]
	}
	rounds, more := total/len(turns), total%len(turns)
	if ours > 0 && rounds > int(limit)/ours {
		rounds, more = int(limit)/ours, len(turns)
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

// order says whose turn it is to get a pod, once for each of the sum of the
// weights. After any number of turns every weight has had its share of them,
// rounded down or up.
//
// Of those that may have the next, it is the turn of the largest weight/(2·has+1),
// of equals of the first: Webster's method. A weight may have no more than its
// share rounded up; and none may have one that leaves too few turns for what
// others have to have by some later turn. (J. W. Still, A Class of New Methods
// for Congressional Apportionment, 1979, shows that one always may.)
func order(weights []int) []int {
	sum := 0
	for _, w := range weights {
		sum += w
	}
	// owed is how many turns there have to have been by each turn: of every
	// weight what it has had, or its share rounded down if that is more.
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
		// Up to the first turn by which all are owed, only what is owed by then.
		full := turn
		for owed[full] < full {
			full++
		}
		next, due := -1, 0
		for i, w := range weights {
			if had[i]*sum >= turn*w {
				continue
			}
			by := ((had[i]+1)*sum + w - 1) / w // the turn by which it is owed one more
			if by <= full && (next < 0 || webster.Compare(int64(w), int64(had[i]), int64(weights[next]), int64(had[next])) > 0) {
				next, due = i, by
			}
		}
		if next < 0 {
			break // cannot be
		}
		for t := turn; t < due; t++ {
			owed[t]++
		}
		had[next]++
		turns = append(turns, next)
	}
	return slices.Clip(turns)
}
