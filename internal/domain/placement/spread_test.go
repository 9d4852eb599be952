package placement

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// TestEqualSpreads: spreads with a difference in any field that decides about the division
// are not equal.
func TestEqualSpreads(t *testing.T) {
	whole := func() Spread {
		return Spread{
			names: []string{"a", "b"}, away: []string{"a"}, weights: []int64{1, 2}, ranges: []bounds{{}, {}}, order: []int32{0, 1},
		}
	}
	if !whole().Equal(whole()) {
		t.Error("two that are alike are not equal")
	}
	for name, change := range map[string]func(*Spread){
		"the order of equal groups": func(s *Spread) { s.descending = true },
		"names":                     func(s *Spread) { s.names = []string{"a", "c"} },
		"groups that are away":      func(s *Spread) { s.away = nil },
		"weights":                   func(s *Spread) { s.weights = []int64{2, 1} },
		"ranges":                    func(s *Spread) { s.ranges = nil },
		"the order of the list":     func(s *Spread) { s.order = []int32{1, 0} },
	} {
		other := whole()
		if change(&other); whole().Equal(other) || other.Equal(whole()) {
			t.Errorf("%s: they are equal", name)
		}
	}
}

// TestEmptyAndRepeatedRulesHideNoGroup: a rule without a group does not count when all other weights
// are 0, and a name that is repeated does not hide the names after it.
func TestEmptyAndRepeatedRulesHideNoGroup(t *testing.T) {
	weights := StaticWeight([]gm.StaticNodeGroupWeight{{Weight: 5}, {NodeGroupNames: []string{"a", "b"}}}, nil, "")
	if diff := cmp.Diff([]int{2, 2}, weights.Divide(4)); diff != "" {
		t.Errorf("wrong division (-want +got):\n%s", diff)
	}
	ranges := NumRange([]gm.NodeGroupNumRange{{NodeGroupNames: []string{"a"}}, {NodeGroupNames: []string{"a", "b"}}}, nil, "")
	if diff := cmp.Diff([]string{"a", "b"}, ranges.Groups()); diff != "" {
		t.Errorf("wrong groups (-want +got):\n%s", diff)
	}
}

// TestGroupsThatTakePods: Taking leaves out groups that never get a pod.
func TestGroupsThatTakePods(t *testing.T) {
	none := intstr.FromInt32(0)
	weights := StaticWeight([]gm.StaticNodeGroupWeight{{NodeGroupNames: []string{"a", "b"}, Weight: 1}, {NodeGroupNames: []string{"c"}}}, nil, "")
	ranges := NumRange([]gm.NodeGroupNumRange{{NodeGroupNames: []string{"b"}}, {NodeGroupNames: []string{"a"}, Max: &none}}, nil, "")
	if got := weights.Taking(); !slices.Equal(got, []string{"a", "b"}) || weights.Bounded() {
		t.Errorf("by weights %v take pods, bounded: %t", got, weights.Bounded())
	}
	if got := ranges.Taking(); !slices.Equal(got, []string{"b"}) || !ranges.Bounded() {
		t.Errorf("by ranges %v take pods, bounded: %t", got, ranges.Bounded())
	}
}

// TestNextTreatsMissingEntriesAsNotFeasible: a group beyond the end of a list counts as not feasible, and as
// without a desired pod.
func TestNextTreatsMissingEntriesAsNotFeasible(t *testing.T) {
	s := StaticWeight([]gm.StaticNodeGroupWeight{{NodeGroupNames: []string{"a", "b", "c"}, Weight: 1}}, nil, "")
	for _, feasible := range [][]bool{{}, {false}, {false, false}} {
		if got := s.Next([]int{1, 1, 1}, []int{0, 0, 0}, feasible); got != -1 {
			t.Errorf("%v: the turn is of %d, want none", feasible, got)
		}
	}
	ranges := NumRange([]gm.NodeGroupNumRange{between("", "", "a", "b", "c")}, nil, "")
	for i, got := range []int{ranges.Next([]int{1, 1, 1}, []int{0, 0, 0}, []bool{false, false}), ranges.Next(nil, nil, nil), ranges.Next([]int{0}, []int{0}, nil)} {
		if got != -1 {
			t.Errorf("%d by ranges: the turn is of %d, want none", i, got)
		}
	}
}

// TestPercentagesCostByAllPods checks that percentages are of the pods of all groups.
func TestPercentagesCostByAllPods(t *testing.T) {
	half := intstr.FromString("50%")
	s := NumRange([]gm.NodeGroupNumRange{{NodeGroupNames: []string{"a"}, Max: &half}, {NodeGroupNames: []string{"b"}}}, nil, "")
	costs := costsOf(s, 2, 2)
	for _, cost := range slices.Concat(costs...) {
		if cost <= 0 {
			t.Errorf("costs are %v: each of the four has a place, two in each group", costs)
		}
	}
}

// TestTheBoundsOfAPolicy checks the last valid value and the first invalid value of each
// field.
func TestTheBoundsOfAPolicy(t *testing.T) {
	weight := func(weight int64, names ...string) gm.PropagationSpec {
		return gm.PropagationSpec{StaticWeight: []gm.StaticNodeGroupWeight{{NodeGroupNames: names, Weight: weight}}}
	}
	ranges := func(low, high string) gm.PropagationSpec {
		return gm.PropagationSpec{NumRange: []gm.NodeGroupNumRange{between(low, high, "a")}}
	}
	text := func(value string) gm.PropagationSpec {
		is := intstr.FromString(value)
		return gm.PropagationSpec{NumRange: []gm.NodeGroupNumRange{{NodeGroupNames: []string{"a"}, Min: &is}}}
	}
	for want, specs := range map[string][]gm.PropagationSpec{
		"": {
			weight(0, "a"), weight(1_000_000, "a"), weight(1, strings.Repeat("a", 63)),
			ranges("", "0"), ranges("0", ""), ranges("5", ""), ranges("1000000", "1000000"), ranges("5", "5"), ranges("0%", "100%"), ranges("50%", "50%"), ranges("60%", "5"), ranges("60", "5%"),
		},
		"spec.staticWeightList[0].weight: -1 is not in":           {weight(-1, "a")},
		"spec.staticWeightList[0].weight: 1000001 is not in":      {weight(1_000_001, "a")},
		"spec.staticWeightList[0].nodeGroupNames: names no group": {weight(1)},
		"spec.staticWeightList[0].nodeGroupNames[1]: ":            {weight(1, "a", strings.Repeat("a", 64)), weight(1, "a", "-")},
		"spec.numRange[0].min: 6 is greater than max, 5":          {ranges("6", "5")},
		"spec.numRange[0].min: 60% is greater than max, 50%":      {ranges("60%", "50%")},
		"spec.numRange[0].max: \"1000001\" is neither":            {ranges("", "1000001")},
		"spec.numRange[0].max: \"-1\" is neither":                 {ranges("", "-1")},
		"spec.numRange[0].max: \"101%\" is neither":               {ranges("", "101%")},
		"spec.numRange[0].min: \"50\" is neither":                 {text("50")},
		"spec.numRange[0].min: \"0050%\" is neither":              {text("0050%")},
		"spec.numRange[0].min: \"+5%\" is neither":                {text("+5%")},
		"spec.numRange[0].min: \"5a%\" is neither":                {text("5a%")},
		"spec: neither staticWeightList nor numRange is set":      {{}},
	} {
		for _, spec := range specs {
			_, err := New(spec, nil, "")
			if want == "" && err != nil {
				t.Errorf("%+v: %v", spec, err)
			} else if want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
				t.Errorf("%+v: the error is %v, want %s…", spec, err, want)
			}
		}
	}
}

// TestCostsOfRanges: costs fall in the order in which seats are given: first to the min of
// each group, then to its max. No two seats cost the same.
func TestCostsOfRanges(t *testing.T) {
	s := NumRange([]gm.NodeGroupNumRange{between("1", "3", "a", "b")}, nil, "")
	want := [][]int32{{topDeletionCost - 1, topDeletionCost - 3, topDeletionCost - 4}, {topDeletionCost - 2, topDeletionCost - 5, topDeletionCost - 6}}
	if diff := cmp.Diff(want, costsOf(s, 3, 3)); diff != "" {
		t.Errorf("wrong costs (-want +got):\n%s", diff)
	}
}

// TestEqualGroupsCostInTurns: the seats of two groups of the same weight take turns, and no
// two cost the same, whichever group comes first.
func TestEqualGroupsCostInTurns(t *testing.T) {
	for uid, want := range map[types.UID][][]int32{
		ascendingUID:  {{topDeletionCost - 1, topDeletionCost - 3}, {topDeletionCost - 2, topDeletionCost - 4}},
		descendingUID: {{topDeletionCost - 2, topDeletionCost - 4}, {topDeletionCost - 1, topDeletionCost - 3}},
	} {
		s := StaticWeight(weighted(1, 1), nil, uid)
		if diff := cmp.Diff(want, costsOf(s, 2, 2)); diff != "" {
			t.Errorf("UID %s: wrong costs (-want +got):\n%s", uid, diff)
		}
	}
}
