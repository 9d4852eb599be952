package united

import (
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"
)

// Divide says how many pods each pool has, in the order of the pools.
//
// Without a total every pool has its number; one that says none has one pod,
// as any workload. With a total the sum is the total: numbers come first, in
// order and as far as the total reaches; percentages are of the total; pools
// that say nothing share evenly what is left, the first of them one more. Where
// no pool says nothing, the rest goes to the percentages in proportion, and to
// the last pool where there are none. Growth takes no pod from a percentage.
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
	percents := make([]int64, len(shares))
	var sum int64
	var open []int
	for i, share := range shares {
		switch {
		case share == nil:
			open = append(open, i)
		case share.Type == intstr.Int:
			out[i] = min(left, max(0, share.IntVal))
			left -= out[i]
		default:
			percents[i] = percent(share.StrVal)
			sum += percents[i]
		}
	}
	if sum > 0 {
		given := left
		if len(open) > 0 {
			given = min(left, int32(min(int64(*total)*sum/100, int64(*total))))
		}
		apportion(percents, given, out)
		left -= given
	}
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
func percent(s string) int64 {
	n, err := strconv.ParseInt(strings.TrimSuffix(s, "%"), 10, 64)
	if err != nil {
		return 0
	}
	return min(max(0, n), 100)
}

// apportion adds n to out in proportion to weights, by Webster's method: the
// next goes to the largest weight/(2·has+1), of equals to the first. Most are
// given at once; a pool never ends below its share by more than there are pools.
func apportion(weights []int64, n int32, out []int32) {
	var sum int64
	for _, w := range weights {
		sum += w
	}
	got := make([]int64, len(weights))
	left := int64(n)
	for i, w := range weights {
		got[i] = max(0, w*int64(n)/sum-int64(len(weights)))
		left -= got[i]
	}
	for ; left > 0; left-- {
		best := -1
		for i, w := range weights {
			if w > 0 && (best < 0 || w*(2*got[best]+1) > weights[best]*(2*got[i]+1)) {
				best = i
			}
		}
		got[best]++
	}
	for i := range got {
		out[i] += int32(got[i])
	}
}
