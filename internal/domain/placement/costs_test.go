package placement

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

func threeToTwo() Spread {
	return StaticWeight([]gm.StaticNodeGroupWeight{
		{NodeGroupNames: []string{"bj"}, Weight: 2}, {NodeGroupNames: []string{"hz"}, Weight: 3},
	}, nil, "app")
}

func TestRecostKeepsWhatFits(t *testing.T) {
	s := threeToTwo()
	ideal := []int32{s.SeatCost("hz", 1, 5), s.SeatCost("hz", 2, 5), s.SeatCost("hz", 3, 5)}
	beyond := s.SeatCost("hz", 4, 5)
	for name, tc := range map[string]struct {
		current []*int32
		want    []int32
	}{
		"nothing is set":                       {[]*int32{nil, nil, nil}, ideal},
		"all is as it should be, in any order": {[]*int32{&ideal[2], &ideal[0], &ideal[1]}, []int32{ideal[2], ideal[0], ideal[1]}},
		"a pod left: the last seat's moves up": {[]*int32{&ideal[0], &beyond, &ideal[2]}, []int32{ideal[0], ideal[1], ideal[2]}},
		"two have the same":                    {[]*int32{&ideal[0], &ideal[0], &ideal[1]}, []int32{ideal[0], ideal[2], ideal[1]}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := s.Recost("hz", tc.current, 5); !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
	if got := s.Recost("nowhere", []*int32{nil}, 5); got[0] != outsideDeletionCost {
		t.Errorf("a pod outside all groups costs %d", got[0])
	}
}

// TestRecostedPodsShrinkAlongTheDivision checks that pods with costs from Recost, removed
// from the lowest cost on, always leave what Divide returns, whatever costs they had
// before.
func TestRecostedPodsShrinkAlongTheDivision(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := StaticWeight([]gm.StaticNodeGroupWeight{
			{NodeGroupNames: []string{"a"}, Weight: rapid.Int64Range(1, 9).Draw(t, "a")},
			{NodeGroupNames: []string{"b"}, Weight: rapid.Int64Range(1, 9).Draw(t, "b")},
			{NodeGroupNames: []string{"c"}, Weight: rapid.Int64Range(0, 9).Draw(t, "c")},
		}, nil, "app")
		n := rapid.IntRange(1, 30).Draw(t, "n")
		type pod struct {
			group int
			cost  int32
		}
		var pods []pod
		for i, count := range s.Divide(n) {
			current := make([]*int32, count)
			for k := range current {
				if rapid.Bool().Draw(t, "has one") {
					cost := s.SeatCost(s.Groups()[i], rapid.IntRange(1, 40).Draw(t, "k"), n)
					current[k] = &cost
				}
			}
			for _, cost := range s.Recost(s.Groups()[i], current, n) {
				pods = append(pods, pod{i, cost})
			}
		}
		slices.SortFunc(pods, func(a, b pod) int { return int(b.cost) - int(a.cost) })
		for left := n; left >= 0; left-- {
			got := make([]int, len(s.Groups()))
			for _, p := range pods[:left] {
				got[p.group]++
			}
			if fmt.Sprint(got) != fmt.Sprint(s.Divide(left)) {
				t.Fatalf("of %d pods %d are left, as %v, want %v", n, left, got, s.Divide(left))
			}
		}
	})
}
