package placement

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// between makes a rule; "" leaves a bound unset.
func between(low, high string, names ...string) gm.NodeGroupNumRange {
	parse := func(s string) *intstr.IntOrString {
		if s == "" {
			return nil
		}
		value := intstr.Parse(s)
		return &value
	}
	return gm.NodeGroupNumRange{NodeGroupNames: names, Min: parse(low), Max: parse(high)}
}

func TestNumRangeFillsEveryMinAndThenToMaxInListOrder(t *testing.T) {
	tests := map[string]struct {
		rules []gm.NodeGroupNumRange
		want  map[int][]int // by name, not by list order
	}{
		"a{2..4}, b{2..}": {[]gm.NodeGroupNumRange{between("2", "4", "a"), between("2", "", "b")}, map[int][]int{
			0: {0, 0}, 1: {1, 0}, 2: {2, 0}, 3: {2, 1}, 4: {2, 2}, 5: {3, 2}, 6: {4, 2}, 7: {4, 3}, 100: {4, 96},
		}},
		"the order is the list's, not the alphabet's": {[]gm.NodeGroupNumRange{between("2", "", "b"), between("1", "", "a")}, map[int][]int{
			1: {0, 1}, 2: {0, 2}, 3: {1, 2}, 9: {1, 8},
		}},
		"what is above all max waits":              {[]gm.NodeGroupNumRange{between("", "2", "a", "b")}, map[int][]int{5: {2, 2}}},
		"each named group gets the range":          {[]gm.NodeGroupNumRange{between("1", "3", "a", "b")}, map[int][]int{4: {3, 1}, 6: {3, 3}}},
		"percentages are rounded up":               {[]gm.NodeGroupNumRange{between("34%", "", "a"), between("", "", "b")}, map[int][]int{3: {3, 0}, 0: {0, 0}}},
		"a percentage of max is rounded up":        {[]gm.NodeGroupNumRange{between("", "34%", "a"), between("", "", "b")}, map[int][]int{3: {2, 1}, 10: {4, 6}}},
		"a percentage of min":                      {[]gm.NodeGroupNumRange{between("", "", "a"), between("30%", "", "b")}, map[int][]int{10: {7, 3}, 1: {0, 1}}},
		"more min than replicas fills in order":    {[]gm.NodeGroupNumRange{between("3", "", "a"), between("3", "", "b")}, map[int][]int{4: {3, 1}}},
		"of several rules for a group, the first":  {[]gm.NodeGroupNumRange{between("", "1", "a"), between("", "", "b", "a")}, map[int][]int{5: {1, 4}}},
		"max wins over a min in other units":       {[]gm.NodeGroupNumRange{between("3", "50%", "a"), between("", "", "b")}, map[int][]int{4: {2, 2}, 10: {5, 5}}},
		"max 0 is never":                           {[]gm.NodeGroupNumRange{between("", "0", "a"), between("", "", "b")}, map[int][]int{5: {0, 5}}},
		"100% and 0%":                              {[]gm.NodeGroupNumRange{between("0%", "100%", "a"), between("", "", "b")}, map[int][]int{5: {5, 0}}},
		"a bound that cannot be read is not there": {[]gm.NodeGroupNumRange{between("many", "-3", "a")}, map[int][]int{5: {5}}},
		"names are folded":                         {[]gm.NodeGroupNumRange{between("", "1", "A"), between("", "9", "a")}, map[int][]int{5: {1}}},
		"no rule":                                  {nil, map[int][]int{5: {}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := NumRange(tc.rules, nil, ascendingUID)
			for n, want := range tc.want {
				if diff := cmp.Diff(want, s.Divide(n)); diff != "" {
					t.Errorf("Divide(%d): %s", n, diff)
				}
			}
		})
	}
}

func TestNumRangeLeavesMissingGroupsOut(t *testing.T) {
	rules := []gm.NodeGroupNumRange{between("5", "5", "gone", "Empty"), between("", "2", "b"), between("", "", "a")}
	s := NumRange(rules, func(group string) bool { return len(group) == 1 }, ascendingUID)
	if diff := cmp.Diff([]string{"empty", "gone"}, s.Missing()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"Empty"}, s.Folded()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]int{3, 2}, s.Divide(5)); diff != "" {
		t.Error(diff)
	}
	if s.Index("b") != 1 || s.Index("gone") != -1 {
		t.Errorf("Index: b %d, gone %d", s.Index("b"), s.Index("gone"))
	}
}

func genRanges(t *rapid.T, percent bool) Spread {
	values := []string{"", "0", "1", "2", "5", "9"}
	if percent {
		values = append(values, "0%", "10%", "34%", "50%", "100%")
	}
	groups := rapid.Permutation([]string{"a", "b", "c", "d"}).Draw(t, "order")
	var rules []gm.NodeGroupNumRange
	for _, name := range groups[:rapid.IntRange(1, 4).Draw(t, "groups")] {
		rules = append(rules, between(rapid.SampledFrom(values).Draw(t, "min"), rapid.SampledFrom(values).Draw(t, "max"), name))
	}
	return NumRange(rules, nil, ascendingUID)
}

func TestNumRangeKeepsItsBoundsAndNextFillsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genRanges(t, true)
		n := rapid.IntRange(0, 60).Draw(t, "n")
		desired := s.Divide(n)
		sum, full, minsDone := 0, true, true
		for i, got := range desired {
			low, high := s.ranges[i].of(int64(n))
			sum += got
			if int64(got) > high {
				t.Fatalf("group %d has %d and max %d", i, got, high)
			}
			full = full && int64(got) == high
			minsDone = minsDone && int64(got) >= low
		}
		if sum > n || sum < n && !full {
			t.Fatalf("%d of %d divided and not every group is full: %v", sum, n, desired)
		}
		for i, got := range desired {
			if low, _ := s.ranges[i].of(int64(n)); !minsDone && int64(got) > low {
				t.Fatalf("group %d is above its min while another is below: %v", i, desired)
			}
		}
		current := make([]int, len(desired))
		for range sum {
			i := s.Next(desired, current, nil)
			if i < 0 {
				t.Fatalf("no turn at %v of %v", current, desired)
			}
			current[i]++
		}
		if !slices.Equal(current, desired) || s.Next(desired, current, nil) != -1 {
			t.Fatalf("Next ended at %v, not %v", current, desired)
		}
	})
}

func TestNumRangeNextFollowsDivideForNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genRanges(t, false)
		to := rapid.IntRange(0, 40).Draw(t, "to")
		current, desired := s.Divide(0), s.Divide(to)
		for n := 1; n <= to; n++ {
			i := s.Next(desired, current, nil)
			if i < 0 {
				break
			}
			current[i]++
			if diff := cmp.Diff(s.Divide(n), current); diff != "" {
				t.Fatalf("at %d: %s", n, diff)
			}
		}
	})
}

func TestNumRangeNextPassesOverWhatIsNotFeasible(t *testing.T) {
	s := NumRange([]gm.NodeGroupNumRange{between("1", "", "a"), between("1", "", "b")}, nil, ascendingUID)
	if got := s.Next([]int{4, 1}, []int{0, 0}, []bool{false, true}); got != 1 {
		t.Errorf("Next = %d, want 1", got)
	}
	if got := s.Next([]int{4, 1}, []int{0, 1}, []bool{false, true}); got != -1 {
		t.Errorf("Next = %d, want -1", got)
	}
	if got := s.Next([]int{4, 1}, []int{1, 0}, nil); got != 1 {
		t.Errorf("a min comes before a rest: Next = %d, want 1", got)
	}
}

func TestValidateReturnsEveryFault(t *testing.T) {
	weights := []gm.StaticNodeGroupWeight{{Weight: -1}, {NodeGroupNames: []string{"a", "b c", ""}, Weight: 1_000_001}}
	ranges := []gm.NodeGroupNumRange{between("few", "101%", "a"), between("9%", "5%")}
	ofWeights := []string{
		"spec.staticWeightList[0].nodeGroupNames", "spec.staticWeightList[0].weight",
		"spec.staticWeightList[1].nodeGroupNames[1]", "spec.staticWeightList[1].nodeGroupNames[2]", "spec.staticWeightList[1].weight",
	}
	ofRanges := []string{"spec.numRange[0].min", "spec.numRange[0].max", "spec.numRange[1].nodeGroupNames", "spec.numRange[1].min"}
	for name, tc := range map[string]struct {
		strategy gm.PropagationStrategy
		want     []string
	}{
		"weights":                 {gm.StaticWeightPropagationStrategy, ofWeights},
		"ranges":                  {gm.NumRangePropagationStrategy, ofRanges},
		"no strategy: both lists": {"", slices.Concat([]string{"spec.propagationStrategy"}, ofWeights, ofRanges)},
	} {
		t.Run(name, func(t *testing.T) {
			spec := gm.PropagationSpec{PropagationStrategy: tc.strategy, StaticWeight: weights, NumRange: ranges}
			var got []string
			for _, fault := range Validate(&spec) {
				got = append(got, fault.Field)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			if _, err := New(spec, nil, ""); err == nil || !strings.HasPrefix(err.Error(), tc.want[0]+": ") {
				t.Errorf("New returns %v, want the first of these faults", err)
			}
		})
	}
}

func TestNew(t *testing.T) {
	weights := []gm.StaticNodeGroupWeight{{NodeGroupNames: []string{"Beijing"}, Weight: 2}, {NodeGroupNames: []string{"Hangzhou"}, Weight: 3}}
	ranges := []gm.NodeGroupNumRange{between("1", "2", "a")}
	named := func(name string) []gm.StaticNodeGroupWeight {
		return []gm.StaticNodeGroupWeight{weights[0], {NodeGroupNames: []string{"a", name}}}
	}
	tests := map[string]struct {
		spec       gm.PropagationSpec
		wantErr    string
		wantGroups []string
		want       []int // of 5
	}{
		"the example":                    {spec: gm.PropagationSpec{PropagationStrategy: "StaticWeight", StaticWeight: weights}, wantGroups: []string{"beijing", "hangzhou"}, want: []int{2, 3}},
		"weights without a strategy":     {spec: gm.PropagationSpec{StaticWeight: weights}, wantGroups: []string{"beijing", "hangzhou"}, want: []int{2, 3}},
		"ranges without a strategy":      {spec: gm.PropagationSpec{NumRange: ranges}, wantGroups: []string{"a"}, want: []int{2}},
		"the other list is ignored":      {spec: gm.PropagationSpec{PropagationStrategy: "NumRange", StaticWeight: named(""), NumRange: ranges}, wantGroups: []string{"a"}, want: []int{2}},
		"both lists and no strategy":     {spec: gm.PropagationSpec{StaticWeight: weights, NumRange: ranges}, wantErr: "spec.propagationStrategy: "},
		"nothing":                        {wantErr: "spec: "},
		"a strategy without its list":    {spec: gm.PropagationSpec{PropagationStrategy: "StaticWeight", NumRange: ranges}, wantErr: "spec.propagationStrategy: "},
		"the other strategy without it":  {spec: gm.PropagationSpec{PropagationStrategy: "NumRange", StaticWeight: weights}, wantErr: "spec.propagationStrategy: "},
		"an unknown strategy":            {spec: gm.PropagationSpec{PropagationStrategy: "Random", StaticWeight: weights}, wantErr: "spec.propagationStrategy: "},
		"an empty name":                  {spec: gm.PropagationSpec{StaticWeight: named("")}, wantErr: "spec.staticWeightList[1].nodeGroupNames[1]: "},
		"a name with a slash":            {spec: gm.PropagationSpec{StaticWeight: named("a/b")}, wantErr: "spec.staticWeightList[1].nodeGroupNames[1]: "},
		"a name of 64 characters":        {spec: gm.PropagationSpec{StaticWeight: named(strings.Repeat("a", 64))}, wantErr: "spec.staticWeightList[1].nodeGroupNames[1]: "},
		"a rule without names":           {spec: gm.PropagationSpec{StaticWeight: []gm.StaticNodeGroupWeight{{Weight: 1}}}, wantErr: "spec.staticWeightList[0].nodeGroupNames: "},
		"a negative weight":              {spec: gm.PropagationSpec{StaticWeight: weighted(1, -1)}, wantErr: "spec.staticWeightList[1].weight: "},
		"a weight above the bound":       {spec: gm.PropagationSpec{StaticWeight: weighted(1_000_001)}, wantErr: "spec.staticWeightList[0].weight: "},
		"min above max":                  {spec: gm.PropagationSpec{NumRange: []gm.NodeGroupNumRange{between("3", "2", "a")}}, wantErr: "spec.numRange[0].min: "},
		"min above max in percent":       {spec: gm.PropagationSpec{NumRange: []gm.NodeGroupNumRange{between("9%", "5%", "a")}}, wantErr: "spec.numRange[0].min: "},
		"min and max in different units": {spec: gm.PropagationSpec{NumRange: []gm.NodeGroupNumRange{between("3", "50%", "a")}}, wantGroups: []string{"a"}, want: []int{3}},
		"a percentage above 100":         {spec: gm.PropagationSpec{NumRange: []gm.NodeGroupNumRange{between("", "101%", "a")}}, wantErr: "spec.numRange[0].max: "},
		"a signed percentage":            {spec: gm.PropagationSpec{NumRange: []gm.NodeGroupNumRange{between("+5%", "", "a")}}, wantErr: "spec.numRange[0].min: "},
		"a bound that is a word":         {spec: gm.PropagationSpec{NumRange: []gm.NodeGroupNumRange{ranges[0], between("few", "", "a")}}, wantErr: "spec.numRange[1].min: "},
		"a negative bound":               {spec: gm.PropagationSpec{NumRange: []gm.NodeGroupNumRange{between("-1", "", "a")}}, wantErr: "spec.numRange[0].min: "},
		"a range without names":          {spec: gm.PropagationSpec{NumRange: []gm.NodeGroupNumRange{between("1", "")}}, wantErr: "spec.numRange[0].nodeGroupNames: "},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s, err := New(tc.spec, nil, ascendingUID)
			if tc.wantErr != "" {
				if err == nil || !strings.HasPrefix(err.Error(), tc.wantErr) {
					t.Fatalf("error %v does not begin with %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.wantGroups, s.Groups()); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tc.want, s.Divide(5)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
