package placement

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/intstr"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// TestEqualSpreads: whatever decides how pods are divided makes two spreads differ.
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

// TestRulesThatSayNothing: a rule without a group has no say in whether all weights are 0,
// and a name that comes twice hides none after it.
func TestRulesThatSayNothing(t *testing.T) {
	weights := StaticWeight([]gm.StaticNodeGroupWeight{{Weight: 5}, {NodeGroupNames: []string{"a", "b"}}}, nil, "")
	if diff := cmp.Diff([]int{2, 2}, weights.Divide(4)); diff != "" {
		t.Errorf("wrong division (-want +got):\n%s", diff)
	}
	ranges := NumRange([]gm.NodeGroupNumRange{{NodeGroupNames: []string{"a"}}, {NodeGroupNames: []string{"a", "b"}}}, nil, "")
	if diff := cmp.Diff([]string{"a", "b"}, ranges.Groups()); diff != "" {
		t.Errorf("wrong groups (-want +got):\n%s", diff)
	}
}

// TestGroupsThatTakePods are those that have a share of something.
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

// TestNextOfFewerGroups: a group of which nobody says that it is feasible is not.
func TestNextOfFewerGroups(t *testing.T) {
	s := StaticWeight([]gm.StaticNodeGroupWeight{{NodeGroupNames: []string{"a", "b", "c"}, Weight: 1}}, nil, "")
	for _, feasible := range [][]bool{{}, {false}, {false, false}} {
		if got := s.Next([]int{1, 1, 1}, []int{0, 0, 0}, feasible); got != -1 {
			t.Errorf("%v: the turn is of %d, want none", feasible, got)
		}
	}
}

// TestPercentagesCostByAllPods: a percentage is of the pods of all groups.
func TestPercentagesCostByAllPods(t *testing.T) {
	half := intstr.FromString("50%")
	s := NumRange([]gm.NodeGroupNumRange{{NodeGroupNames: []string{"a"}, Max: &half}, {NodeGroupNames: []string{"b"}}}, nil, "")
	pods := func(n int) []Candidate { return make([]Candidate, n) }
	costs := s.DeletionCosts([][]Candidate{pods(2), pods(2)})
	for _, cost := range slices.Concat(costs...) {
		if cost <= 0 {
			t.Errorf("costs are %v: each of the four has a place, two in each group", costs)
		}
	}
}
