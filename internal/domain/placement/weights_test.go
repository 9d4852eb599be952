package placement

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// UIDs that break ties in either direction.
const (
	ascendingUID  = types.UID("a")
	descendingUID = types.UID("b")
)

func TestTheUIDsOfTheseTestsBreakTiesBothWays(t *testing.T) {
	if (Spread{}).For(ascendingUID).descending || !(Spread{}).For(descendingUID).descending {
		t.Error("the constants are mixed up")
	}
}

// weighted makes one rule for each of the groups a, b, c, ….
func weighted(weights ...int64) []gm.StaticNodeGroupWeight {
	rules := make([]gm.StaticNodeGroupWeight, 0, len(weights))
	for i, weight := range weights {
		rules = append(rules, gm.StaticNodeGroupWeight{NodeGroupNames: []string{nameOf(i)}, Weight: weight})
	}
	return rules
}

// nameOf returns names in ascending order: a … z, za …
func nameOf(i int) string {
	name := ""
	for ; i >= 26; i -= 26 {
		name += "z"
	}
	return name + string(rune('a'+i))
}

func TestStaticWeightDividesAsWorkedOutByHand(t *testing.T) {
	rule := func(weight int64, names ...string) gm.StaticNodeGroupWeight {
		return gm.StaticNodeGroupWeight{NodeGroupNames: names, Weight: weight}
	}
	tests := map[string]struct {
		rules []gm.StaticNodeGroupWeight
		uid   types.UID
		want  map[int][]int
	}{
		"3:2 from one to seven": {rules: weighted(3, 2), want: map[int][]int{
			0: {0, 0}, 1: {1, 0}, 2: {1, 1}, 3: {2, 1}, 4: {2, 2}, 5: {3, 2}, 6: {4, 2}, 7: {4, 3}, 10: {6, 4}, 50: {30, 20},
		}},
		"170:110:60 where other methods take a pod away": {rules: weighted(170, 110, 60), want: map[int][]int{5: {2, 2, 1}, 6: {3, 2, 1}}},
		"3:2:1": {rules: weighted(3, 2, 1), want: map[int][]int{12: {6, 4, 2}, 13: {7, 4, 2}, 14: {7, 5, 2}}},
		"1:3":   {rules: weighted(1, 3), want: map[int][]int{9: {2, 7}}},
		"2:1":   {rules: weighted(2, 1), want: map[int][]int{1: {1, 0}, 2: {1, 1}, 3: {2, 1}}},
		"3:1 of two: of equal quotients the group with fewer seats wins": {rules: weighted(3, 1), want: map[int][]int{2: {1, 1}}},
		"equal weights, ties by name":                                    {rules: weighted(1, 1), want: map[int][]int{5: {3, 2}}},
		"equal weights, ties by name backwards":                          {rules: weighted(1, 1), uid: descendingUID, want: map[int][]int{5: {2, 3}}},
		"three equal weights":                                            {rules: weighted(1, 1, 1), want: map[int][]int{10: {4, 3, 3}}},
		"99:1":                                                           {rules: weighted(99, 1), want: map[int][]int{10: {10, 0}, 51: {50, 1}}},
		"weight 0 is never":                                              {rules: weighted(1, 0), want: map[int][]int{5: {5, 0}, 1000: {1000, 0}}},
		"all weights 0 are equal":                                        {rules: weighted(0, 0), want: map[int][]int{5: {3, 2}}},
		"6:6:2":                                                          {rules: weighted(6, 6, 2), want: map[int][]int{10: {4, 4, 2}, 11: {5, 4, 2}}},
		"of several rules for one group the largest weight counts": {
			rules: []gm.StaticNodeGroupWeight{rule(1, "a"), rule(1, "b"), rule(2, "a")}, want: map[int][]int{3: {2, 1}},
		},
		"a rule for two groups gives each the full weight": {
			rules: []gm.StaticNodeGroupWeight{rule(2, "a", "b"), rule(1, "c")}, want: map[int][]int{5: {2, 2, 1}},
		},
		"names are folded before they are compared": {
			rules: []gm.StaticNodeGroupWeight{rule(2, "Beijing"), rule(3, "Hangzhou"), rule(1, "hangzhou")}, want: map[int][]int{5: {2, 3}},
		},
		"no rule, no group":           {want: map[int][]int{5: {}}},
		"a negative number is none":   {rules: weighted(1, 1), want: map[int][]int{-1: {0, 0}}},
		"negative weights count as 0": {rules: weighted(-5, 1), want: map[int][]int{4: {0, 4}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			uid := tc.uid
			if uid == "" {
				uid = ascendingUID
			}
			spread := StaticWeight(tc.rules, nil, uid)
			for n, want := range tc.want {
				if diff := cmp.Diff(want, spread.Divide(n)); diff != "" {
					t.Errorf("Divide(%d): %s", n, diff)
				}
			}
		})
	}
}

func TestMissingGroupsAreLeftOutAndTheOthersShare(t *testing.T) {
	tests := map[string]struct {
		weights     []int64
		absent      string
		n           int
		wantGroups  []string
		wantMissing []string
		want        []int
	}{
		"nothing is missing":                {weights: []int64{3, 2, 1}, n: 12, wantGroups: []string{"a", "b", "c"}, want: []int{6, 4, 2}},
		"one is missing":                    {weights: []int64{3, 2, 1}, absent: "b", n: 12, wantGroups: []string{"a", "c"}, wantMissing: []string{"b"}, want: []int{9, 3}},
		"all are missing":                   {weights: []int64{3, 2}, absent: "ab", n: 12, wantMissing: []string{"a", "b"}, want: []int{}},
		"only a weight of 0 remains":        {weights: []int64{0, 5}, absent: "b", n: 4, wantGroups: []string{"a"}, wantMissing: []string{"b"}, want: []int{0}},
		"all weights are 0, one is missing": {weights: []int64{0, 0}, absent: "b", n: 4, wantGroups: []string{"a"}, wantMissing: []string{"b"}, want: []int{4}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			present := func(group string) bool { return !slices.Contains([]byte(tc.absent), group[0]) }
			s := StaticWeight(weighted(tc.weights...), present, ascendingUID)
			if diff := cmp.Diff(tc.wantGroups, s.Groups()); diff != "" {
				t.Errorf("groups: %s", diff)
			}
			if diff := cmp.Diff(tc.wantMissing, s.Missing()); diff != "" {
				t.Errorf("missing: %s", diff)
			}
			if diff := cmp.Diff(tc.want, s.Divide(tc.n)); diff != "" {
				t.Errorf("division: %s", diff)
			}
		})
	}
}

func TestWebsterIsMonotoneAndExactOverRandomWeights(t *testing.T) {
	random := rand.New(rand.NewPCG(36, 20000))
	for set := range 20_000 {
		weights := make([]int64, 1+random.IntN(6))
		positive := false
		for i := range weights {
			weights[i] = random.Int64N(8) * random.Int64N(60)
			positive = positive || weights[i] > 0
		}
		uid := types.UID(fmt.Sprint(set))
		spread, again := StaticWeight(weighted(weights...), nil, uid), StaticWeight(weighted(weights...), nil, uid)
		previous := make([]int, len(weights))
		for n := 1; n <= 30; n++ {
			seats := spread.Divide(n)
			if !slices.Equal(seats, again.Divide(n)) {
				t.Fatalf("weights %v n=%d: two answers", weights, n)
			}
			sum := 0
			for i, got := range seats {
				sum += got
				if got < previous[i] {
					t.Fatalf("weights %v: group %d lost a seat when %v grew to %v", weights, i, previous, seats)
				}
				if weights[i] == 0 && positive && got != 0 {
					t.Fatalf("weights %v n=%d: group %d of weight 0 got %d", weights, n, i, got)
				}
			}
			if sum != n {
				t.Fatalf("weights %v n=%d: %v sums to %d", weights, n, seats, sum)
			}
			previous = seats
		}
	}
}

func genSpread(t *rapid.T) Spread {
	weight := rapid.OneOf(rapid.Int64Range(0, 6), rapid.Int64Range(0, maxCount), rapid.SampledFrom([]int64{1, 2, 3, 6, maxCount}))
	weights := rapid.SliceOfN(weight, 1, 12).Draw(t, "weights")
	uid := rapid.SampledFrom([]types.UID{ascendingUID, descendingUID}).Draw(t, "uid")
	return StaticWeight(weighted(weights...), nil, uid)
}

func TestExtremesNeitherOverflowNorStall(t *testing.T) {
	s := StaticWeight(weighted(maxCount, 1, 0), nil, ascendingUID)
	for _, n := range []int{maxReplicas, 1 << 62} {
		seats := s.Divide(n)
		if seats[0]+seats[1] != maxReplicas || seats[1] < 2000 || seats[2] != 0 {
			t.Errorf("Divide(%d) = %v", n, seats)
		}
	}
	if got := s.Next([]int{1 << 62, 1}, []int{1 << 61}, nil); got != 1 {
		t.Errorf("Next = %d", got)
	}
}

func TestNextWalksTheWebsterSequence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genSpread(t)
		from := rapid.IntRange(0, 60).Draw(t, "from")
		to := from + rapid.IntRange(0, 40).Draw(t, "more")
		current, desired := s.Divide(from), s.Divide(to)
		for n := from + 1; n <= to; n++ {
			i := s.Next(desired, current, nil)
			if i < 0 {
				break // no group takes any
			}
			current[i]++
			if diff := cmp.Diff(s.Divide(n), current); diff != "" {
				t.Fatalf("at %d: %s", n, diff)
			}
		}
		if i := s.Next(desired, current, nil); i != -1 {
			t.Fatalf("all seats are taken and group %d gets another", i)
		}
	})
}

func TestNext(t *testing.T) {
	s := StaticWeight(weighted(3, 2, 1), nil, ascendingUID)
	tests := map[string]struct {
		desired, current []int
		feasible         []bool
		want             int
	}{
		"the first pod":                             {desired: []int{3, 2, 1}, current: []int{0, 0, 0}, want: 0},
		"the second goes to the second":             {desired: []int{3, 2, 1}, current: []int{1, 0, 0}, want: 1},
		"a group that is full is passed over":       {desired: []int{1, 2, 1}, current: []int{1, 1, 0}, want: 2},
		"a group that is not feasible too":          {desired: []int{3, 2, 1}, current: []int{0, 0, 0}, feasible: []bool{false, true, true}, want: 1},
		"no group lacks a pod":                      {desired: []int{3, 2, 1}, current: []int{3, 2, 1}, want: -1},
		"a surplus in another group":                {desired: []int{3, 2, 1}, current: []int{3, 2, 5}, want: -1},
		"no group is feasible":                      {desired: []int{3, 2, 1}, current: []int{0, 0, 0}, feasible: []bool{false, false, false}, want: -1},
		"a short feasible list leaves the rest out": {desired: []int{3, 2, 1}, current: []int{3, 2, 0}, feasible: []bool{true}, want: -1},
		"a short current list counts as no pods":    {desired: []int{0, 0, 1}, want: 2},
		"nothing desired":                           {want: -1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := s.Next(tc.desired, tc.current, tc.feasible); got != tc.want {
				t.Errorf("Next = %d, want %d", got, tc.want)
			}
		})
	}
}

func TestManySmallWorkloadsUseBothOfTwoEqualGroups(t *testing.T) {
	policy := StaticWeight(weighted(1, 1), nil, "")
	var total [2]int
	for workload := range 100 {
		uid := types.UID(fmt.Sprintf("5f0e3c62-6d3f-4d3c-9a5b-%012d", workload))
		seats := policy.For(uid).Divide(1)
		if diff := cmp.Diff(StaticWeight(weighted(1, 1), nil, uid).Divide(1), seats); diff != "" {
			t.Fatalf("For differs from a new StaticWeight: %s", diff)
		}
		total[0] += seats[0]
		total[1] += seats[1]
	}
	if total[0] < 30 || total[1] < 30 {
		t.Errorf("100 workloads of one pod: %v", total)
	}
}

func BenchmarkDivide(b *testing.B) {
	for _, size := range []struct{ n, groups int }{{5, 2}, {50, 10}, {1000, 100}, {100_000, 100}, {100_000, 1000}} {
		b.Run(fmt.Sprintf("n=%d/groups=%d", size.n, size.groups), func(b *testing.B) {
			s := StaticWeight(benchmarkWeights(size.groups), nil, ascendingUID)
			b.ReportAllocs()
			for b.Loop() {
				s.Divide(size.n)
			}
		})
	}
}

func BenchmarkNext(b *testing.B) {
	for _, groups := range []int{2, 10, 100} {
		b.Run(fmt.Sprintf("groups=%d", groups), func(b *testing.B) {
			s := StaticWeight(benchmarkWeights(groups), nil, ascendingUID)
			desired, current := s.Divide(1000), s.Divide(990)
			feasible := slices.Repeat([]bool{true}, groups)
			b.ReportAllocs()
			for b.Loop() {
				s.Next(desired, current, feasible)
			}
		})
	}
}

func benchmarkWeights(groups int) []gm.StaticNodeGroupWeight {
	weights := make([]int64, groups)
	for i := range weights {
		weights[i] = int64(1 + i*i%97)
	}
	return weighted(weights...)
}
