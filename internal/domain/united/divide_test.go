package united

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
)

// shares reads "3 50% -": a number, a percentage, nothing.
func shares(text string) []*intstr.IntOrString {
	var out []*intstr.IntOrString
	for field := range strings.FieldsSeq(text) {
		if field == "-" {
			out = append(out, nil)
			continue
		}
		out = append(out, new(intstr.Parse(field)))
	}
	return out
}

func TestDivide(t *testing.T) {
	total := func(n int32) *int32 { return &n }
	for name, tc := range map[string]struct {
		total  *int32
		shares string
		want   []int32
	}{
		"each its own":                         {nil, "3 0 5", []int32{3, 0, 5}},
		"one that says nothing has one":        {nil, "3 -", []int32{3, 1}},
		"a percentage of nothing is none":      {nil, "50% 2", []int32{0, 2}},
		"an even share, the first one more":    {total(8), "- - -", []int32{3, 3, 2}},
		"thirds":                               {total(10), "33% 33% 34%", []int32{3, 3, 4}},
		"half of three":                        {total(3), "50% 50%", []int32{2, 1}},
		"percentages and the rest":             {total(10), "20% - 20%", []int32{2, 6, 2}},
		"numbers first, then percentages":      {total(10), "4 50% -", []int32{4, 5, 1}},
		"what is left of a percentage":         {total(10), "8 50% -", []int32{8, 2, 0}},
		"numbers as far as the total reaches":  {total(5), "4 4 -", []int32{4, 1, 0}},
		"no pod at all":                        {total(0), "4 50% -", []int32{0, 0, 0}},
		"0% never has one":                     {total(7), "0% 100%", []int32{0, 7}},
		"a rest that nobody takes is the last": {total(7), "2 3", []int32{2, 5}},
		"a rest goes to percentages":           {total(10), "2 10% 10%", []int32{2, 4, 4}},
		"no pool":                              {total(7), "", []int32{}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Divide(tc.total, shares(tc.shares))); diff != "" {
				t.Errorf("wrong replicas (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTheSumIsTheTotal: exactly, whatever the pools say, and nobody has less
// than nothing.
func TestTheSumIsTheTotal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Int32Range(0, 1_000_000).Draw(t, "total")
		var text []string
		for range rapid.IntRange(1, 30).Draw(t, "pools") {
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				text = append(text, fmt.Sprint(rapid.IntRange(0, 1_000_000).Draw(t, "number")))
			case 1:
				text = append(text, fmt.Sprintf("%d%%", rapid.IntRange(0, 100).Draw(t, "percent")))
			default:
				text = append(text, "-")
			}
		}
		var sum int64
		for _, n := range Divide(&total, shares(strings.Join(text, " "))) {
			if n < 0 {
				t.Fatalf("a pool of %v has %d", text, n)
			}
			sum += int64(n)
		}
		if sum != int64(total) {
			t.Fatalf("%v of %d are %d", text, total, sum)
		}
	})
}

// TestGrowthTakesNoPod: percentages that are all grow with the total, and stay
// within one pool's rounding of it.
func TestGrowthTakesNoPod(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		left, text := 100, []string{}
		for left > 0 {
			p := rapid.IntRange(1, left).Draw(t, "percent")
			text = append(text, fmt.Sprintf("%d%%", p))
			left -= p
		}
		pools := shares(strings.Join(text, " "))
		from := rapid.Int32Range(0, 500).Draw(t, "from")
		last := Divide(&from, pools)
		for total := from + 1; total < from+20; total++ {
			next := Divide(&total, pools)
			for i := range next {
				if next[i] < last[i] {
					t.Fatalf("pool %d of %v: %d of %d, then %d of %d", i, text, last[i], total-1, next[i], total)
				}
			}
			last = next
		}
	})
}
