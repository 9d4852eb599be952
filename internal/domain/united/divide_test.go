package united

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
)

// shares parses "3 50% -": a number, a percentage, no share.
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
		"each its own":                        {nil, "3 0 5", []int32{3, 0, 5}},
		"no share and no total is 1":          {nil, "3 -", []int32{3, 1}},
		"a percentage of nothing is none":     {nil, "50% 2", []int32{0, 2}},
		"an even share, the first one more":   {total(8), "- - -", []int32{3, 3, 2}},
		"thirds":                              {total(10), "33% 33% 34%", []int32{3, 3, 4}},
		"half of three":                       {total(3), "50% 50%", []int32{2, 1}},
		"percentages and the rest":            {total(10), "20% - 20%", []int32{2, 6, 2}},
		"numbers first, then percentages":     {total(10), "4 50% -", []int32{4, 5, 1}},
		"what is left of a percentage":        {total(10), "8 50% -", []int32{8, 2, 0}},
		"numbers as far as the total reaches": {total(5), "4 4 -", []int32{4, 1, 0}},
		"no pod at all":                       {total(0), "4 50% -", []int32{0, 0, 0}},
		"0% never has one":                    {total(7), "0% 100%", []int32{0, 7}},
		"the last pool gets the rest":         {total(7), "2 3", []int32{2, 5}},
		"a rest goes to percentages":          {total(10), "2 10% 10%", []int32{2, 4, 4}},
		"no pool":                             {total(7), "", []int32{}},
		"a rest is 90%":                       {total(9), "10% -", []int32{1, 8}},
		"as if it were written":               {total(9), "10% 90%", []int32{1, 8}},
		"a rest of 1%":                        {total(10), "99% -", []int32{10, 0}},
		"two share a rest of 1%":              {total(100), "99% - -", []int32{99, 1, 0}},
		"nothing is left for a rest":          {total(10), "50% 50% -", []int32{5, 5, 0}},
		"many small ones":                     {total(14), "60% 5% 5% 5% 5% 5% 5% 5% 5%", []int32{8, 1, 1, 1, 1, 1, 1, 0, 0}},
		"more than 100%":                      {total(10), "60% 60% -", []int32{6, 4, 0}},
		"a rest before a number":              {total(10), "- 4 50%", []int32{1, 4, 5}},
		"a large rest before a number":        {total(1000), "- 500 10%", []int32{400, 500, 100}},
		"shares that are hard to meet":        {total(51), "19% 1% 3% 77%", []int32{10, 1, 1, 39}},
		"numbers that leave too few":          {total(10), "7 40% 20% -", []int32{7, 2, 1, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Divide(tc.total, shares(tc.shares))); diff != "" {
				t.Errorf("wrong replicas (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTheSumIsTheTotal: the sum is exact for any shares, and no pool has fewer than 0 pods.
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

// drawShares draws percentages whose sum is at most 100, pools without a share and, if
// asked for, numbers between them.
func drawShares(t *rapid.T, numbers bool) []string {
	left, text := 100, []string{}
	for range rapid.IntRange(1, 30).Draw(t, "pools") {
		switch kind := rapid.IntRange(0, 4).Draw(t, "kind"); {
		case kind == 0:
			text = append(text, "-")
		case kind == 1 && numbers:
			text = append(text, fmt.Sprint(rapid.IntRange(0, 20).Draw(t, "number")))
		default:
			p := rapid.IntRange(0, min(left, 60)).Draw(t, "percent")
			text = append(text, fmt.Sprintf("%d%%", p))
			left -= p
		}
	}
	if !slices.Contains(text, "-") { // as the schema wants it
		if left > 0 && !numbers && rapid.Bool().Draw(t, "whole") {
			return append(text, fmt.Sprintf("%d%%", left))
		}
		return append(text, "-")
	}
	return text
}

// TestAPercentageGetsItsShare: it is rounded down or up, for every total, with and without
// pools that have no share. Numbers are served first and may leave too few pods.
func TestAPercentageGetsItsShare(t *testing.T) {
	check := func(t interface{ Fatalf(string, ...any) }, total int32, text []string) {
		fixed, percents := int32(0), int32(0)
		got := Divide(&total, shares(strings.Join(text, " ")))
		for _, share := range shares(strings.Join(text, " ")) {
			if share != nil && share.Type == intstr.Int {
				fixed += share.IntVal
			} else if share != nil {
				percents += (total*int32(percent(share.StrVal)) + 99) / 100
			}
		}
		if fixed > 0 && fixed+percents > total {
			return // what is left is divided in proportion
		}
		for i, share := range shares(strings.Join(text, " ")) {
			if share == nil || share.Type == intstr.Int {
				continue
			}
			p := int32(percent(share.StrVal))
			if down, up := total*p/100, (total*p+99)/100; got[i] < down || got[i] > up {
				t.Fatalf("of %d, %v are %v: pool %d has %d, and its share is between %d and %d", total, text, got, i, got[i], down, up)
			}
		}
	}
	t.Run("one percentage and a rest", func(t *testing.T) {
		for p := range 101 {
			for total := range int32(500) {
				check(t, total, []string{fmt.Sprintf("%d%%", p), "-"})
				check(t, total, []string{"-", fmt.Sprintf("%d%%", p), "-"})
			}
		}
	})
	t.Run("any", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			check(t, rapid.Int32Range(0, 100_000).Draw(t, "total"), drawShares(t, rapid.Bool().Draw(t, "numbers")))
		})
	})
}

// TestPoolWithoutAShareGetsTheRemainder: a pool without a share gets as much as one whose percentage
// is what the others leave of 100.
func TestPoolWithoutAShareGetsTheRemainder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		left, text := 100, []string{}
		for range rapid.IntRange(0, 12).Draw(t, "pools") {
			p := rapid.IntRange(0, left).Draw(t, "percent")
			text = append(text, fmt.Sprintf("%d%%", p))
			left -= p
		}
		at := rapid.IntRange(0, len(text)).Draw(t, "at")
		total := rapid.Int32Range(0, 5000).Draw(t, "total")
		withShare := Divide(&total, shares(strings.Join(slices.Insert(slices.Clone(text), at, fmt.Sprintf("%d%%", left)), " ")))
		withoutShare := Divide(&total, shares(strings.Join(slices.Insert(slices.Clone(text), at, "-"), " ")))
		if !slices.Equal(withShare, withoutShare) {
			t.Fatalf("of %d, %v with the rest at %d are %v, and %v where it is written", total, text, at, withoutShare, withShare)
		}
	})
}

// TestLargerTotalShrinksNoPool: a larger total takes no pod from any pool, for any shares.
func TestLargerTotalShrinksNoPool(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := drawShares(t, rapid.Bool().Draw(t, "numbers"))
		pools := shares(strings.Join(text, " "))
		from := rapid.Int32Range(0, 500).Draw(t, "from")
		last := Divide(&from, pools)
		for total := from + 1; total < from+120; total++ {
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
