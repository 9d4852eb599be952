package placement

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

func among(names ...string) func(string) bool {
	return func(group string) bool { return slices.Contains(names, group) }
}

func TestTheShareOfGroupsThatAreAwayIsDividedAmongTheOthers(t *testing.T) {
	weigh := func(name string, weight int64) gm.StaticNodeGroupWeight {
		return gm.StaticNodeGroupWeight{NodeGroupNames: []string{name}, Weight: weight}
	}
	weights := StaticWeight([]gm.StaticNodeGroupWeight{weigh("a", 2), weigh("b", 1), weigh("c", 1), weigh("never", 0)}, nil, ascendingUID)
	ranges := NumRange([]gm.NodeGroupNumRange{between("1", "", "a"), between("1", "3", "b"), between("", "0", "never")}, nil, ascendingUID)
	tests := map[string]struct {
		spread Spread
		away   []string
		want   []int // of 8
		named  []string
	}{
		"none":                                  {weights, nil, []int{4, 2, 2, 0}, nil},
		"one of three":                          {weights, []string{"a"}, []int{0, 4, 4, 0}, []string{"a"}},
		"two of three":                          {weights, []string{"a", "c"}, []int{0, 8, 0, 0}, []string{"a", "c"}},
		"all: no other group remains":           {weights, []string{"a", "b", "c"}, []int{4, 2, 2, 0}, nil},
		"one of weight 0":                       {weights, []string{"never"}, []int{4, 2, 2, 0}, nil},
		"one that no rule names":                {weights, []string{"x"}, []int{4, 2, 2, 0}, nil},
		"ranges":                                {ranges, nil, []int{7, 1, 0}, nil},
		"ranges: the others fill to their max":  {ranges, []string{"a"}, []int{0, 3, 0}, []string{"a"}},
		"ranges: the one that would get nearly": {ranges, []string{"b"}, []int{8, 0, 0}, []string{"b"}},
		"ranges: all that could get a pod":      {ranges, []string{"a", "b"}, []int{7, 1, 0}, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := tc.spread.WithoutAway(among(tc.away...))
			if diff := cmp.Diff(tc.want, s.Divide(8)); diff != "" {
				t.Errorf("wrong division (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.named, s.Away()); diff != "" {
				t.Errorf("wrong groups are away (-want +got):\n%s", diff)
			}
			if !s.Home().Equal(tc.spread) || s.Equal(tc.spread) != (len(tc.named) == 0) {
				t.Error("the spread is not what it was with every group in its place")
			}
			if diff := cmp.Diff(tc.spread.Groups(), s.Groups()); diff != "" {
				t.Errorf("other groups take part (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAwayGroupsGetNothingAndTheOthersLoseNothing checks over random weights that the sum
// stays the same and that no other group gets fewer pods than before.
func TestAwayGroupsGetNothingAndTheOthersLoseNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genSpread(t)
		n := rapid.IntRange(0, 200).Draw(t, "n")
		away := make([]bool, len(s.Groups()))
		for i := range away {
			away[i] = rapid.Bool().Draw(t, "away")
		}
		without := s.WithoutAway(func(group string) bool { return away[s.Index(group)] })
		before, after := s.Divide(n), without.Divide(n)
		sum := 0
		for i := range after {
			sum += after[i]
			switch gone := slices.Contains(without.Away(), s.Groups()[i]); {
			case gone && after[i] != 0:
				t.Fatalf("group %d is away and gets %d pods", i, after[i])
			case !gone && after[i] < before[i]:
				t.Fatalf("group %d gets %d pods, and %d when others are away", i, before[i], after[i])
			}
		}
		total := 0
		for _, seats := range before {
			total += seats
		}
		if sum != total {
			t.Fatalf("%d pods are divided to %d", total, sum)
		}
		back := without.WithoutAway(func(string) bool { return false })
		if !back.Equal(s) {
			t.Fatal("when all are back the division is not what it was")
		}
	})
}

// TestFirstAgreesWithNext checks over random weights and ranges that First agrees
// with Next.
func TestFirstAgreesWithNext(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genSpread(t)
		if rapid.Bool().Draw(t, "ranges") {
			var rules []gm.NodeGroupNumRange
			bound := rapid.SampledFrom([]string{"", "0", "1", "2", "5", "10%", "34%", "50%", "100%"})
			for _, name := range []string{"a", "b", "c"} {
				rules = append(rules, between(bound.Draw(t, "min"), bound.Draw(t, "max"), name))
			}
			s = NumRange(rules, nil, ascendingUID)
		}
		n := rapid.IntRange(0, 40).Draw(t, "n")
		desired := s.Divide(n)
		sum := 0
		for _, seats := range desired {
			sum += seats
		}
		if s.ranges != nil && sum < n {
			return // some wait, and the order no longer changes where pods end
		}
		current := make([]int, len(desired))
		for k := range n + 1 {
			if diff := cmp.Diff(current, s.First(k, n)); diff != "" {
				t.Fatalf("the first %d of %d (-one by one +First):\n%s", k, n, diff)
			}
			if i := s.Next(desired, current, nil); i >= 0 {
				current[i]++
			}
		}
	})
}

// TestLoanPercentagesApplyToReplicas checks that percentages are of the replicas, not
// of the sum of the ceilings.
func TestLoanPercentagesApplyToReplicas(t *testing.T) {
	for _, low := range []string{"2", "50%"} {
		s := NumRange([]gm.NodeGroupNumRange{between("", "", "x"), between("1", "", "b"), between(low, "", "c")}, nil, ascendingUID)
		current, feasible := make([]int, 3), make([]bool, 3)
		b, c, x := slices.Index(s.Groups(), "b"), slices.Index(s.Groups(), "c"), slices.Index(s.Groups(), "x")
		feasible[c], feasible[x] = true, true
		for range 4 {
			current[s.NextOnLoan(4, current, feasible)]++
		}
		if current[c] != 2 || current[x] != 2 || current[b] != 0 {
			t.Errorf("4 pods, of which c has at least %s: %v of %v", low, current, s.Groups())
		}
	}
}

// TestCeilingsAreNeverBelowTheShare checks that a ceiling includes the share of the group
// itself.
func TestCeilingsAreNeverBelowTheShare(t *testing.T) {
	ranges := NumRange([]gm.NodeGroupNumRange{between("1", "2", "a"), between("1", "50%", "b"), between("", "0", "c")}, nil, ascendingUID)
	if diff := cmp.Diff([]int{2, 4, 0}, ranges.Ceilings(8)); diff != "" {
		t.Errorf("ranges (-want +got):\n%s", diff)
	}
	rapid.Check(t, func(t *rapid.T) {
		s := genSpread(t)
		n := rapid.IntRange(-1, 200).Draw(t, "n")
		ceilings := s.Ceilings(n)
		for i, share := range s.Divide(n) {
			if ceilings[i] < share {
				t.Fatalf("group %d has a share of %d and a ceiling of %d", i, share, ceilings[i])
			}
		}
	})
}

// TestSpreadForAWorkloadEqualsACompiledOne: with and without groups that are away.
func TestSpreadForAWorkloadEqualsACompiledOne(t *testing.T) {
	rules := []gm.StaticNodeGroupWeight{{NodeGroupNames: []string{"a", "b", "c"}, Weight: 1}}
	away := func(group string) bool { return group == "c" }
	for _, workload := range []types.UID{"w", "x", "y", "z"} {
		compiled := StaticWeight(rules, nil, workload)
		if got := StaticWeight(rules, nil, "").For(workload); !got.Equal(compiled) {
			t.Errorf("%s: %v, want %v", workload, got, compiled)
		}
		got, want := StaticWeight(rules, nil, "").WithoutAway(away).For(workload), compiled.WithoutAway(away)
		if !got.Equal(want) || !got.Home().Equal(want.Home()) {
			t.Errorf("%s: %v, want %v", workload, got, want)
		}
	}
}
