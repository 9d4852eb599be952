package placement

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

func at(second int64) time.Time { return time.Unix(second, 0) }

// running makes a Ready pod on a node of its own.
func running(uid types.UID, modify ...func(*Candidate)) Candidate {
	c := Candidate{UID: uid, Node: "node-" + string(uid), Ready: true, Bound: true, Created: at(100)}
	for _, m := range modify {
		m(&c)
	}
	return c
}

func TestVictimsLeaveInThisOrder(t *testing.T) {
	on := func(node string) func(*Candidate) { return func(c *Candidate) { c.Node = node } }
	notReady := func(c *Candidate) { c.Ready = false }
	unbound := func(c *Candidate) { c.Bound, c.Node, c.Ready = false, "", false }
	cost := func(n int32) func(*Candidate) { return func(c *Candidate) { c.DeletionCost = n } }
	born := func(second int64) func(*Candidate) { return func(c *Candidate) { c.Created = at(second) } }
	tests := map[string]struct {
		pods []Candidate
		want []types.UID
	}{
		"no pods":                       {nil, nil},
		"not bound before not ready":    {[]Candidate{running("a"), running("b", notReady), running("c", unbound)}, []types.UID{"c", "b", "a"}},
		"not ready before a lower cost": {[]Candidate{running("a", cost(-5)), running("b", notReady, cost(5))}, []types.UID{"b", "a"}},
		"a lower cost before doubled on a node": {
			[]Candidate{running("a", on("x")), running("b", on("x")), running("c", cost(-1))}, []types.UID{"c", "a", "b"},
		},
		"doubled before young": {
			[]Candidate{running("a", born(900)), running("b", on("x"), born(1)), running("c", on("x"), born(2))}, []types.UID{"c", "a", "b"},
		},
		"of three on one node two are too many": {
			[]Candidate{running("a", on("x"), born(1)), running("b", on("x"), born(2)), running("c", on("x"), born(3)), running("d", born(9))},
			[]types.UID{"c", "b", "d", "a"},
		},
		"young before old, then the UID": {[]Candidate{running("b", born(1)), running("a", born(1)), running("c", born(2))}, []types.UID{"c", "a", "b"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got []types.UID
			for _, i := range Victims(tc.pods) {
				got = append(got, tc.pods[i].UID)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func genCandidates(t *rapid.T, count int) []Candidate {
	pods := make([]Candidate, count)
	for i := range pods {
		pods[i] = Candidate{
			UID:          types.UID(fmt.Sprintf("uid-%03d", i)),
			Node:         rapid.SampledFrom([]string{"", "x", "y", "z"}).Draw(t, "node"),
			Ready:        rapid.Bool().Draw(t, "ready"),
			DeletionCost: rapid.Int32Range(-1, 1).Draw(t, "cost"),
			Created:      at(rapid.Int64Range(0, 3).Draw(t, "created")),
		}
		pods[i].Bound = pods[i].Node != ""
	}
	return pods
}

func TestTheOrderOfVictimsDoesNotDependOnTheOrderOfPods(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pods := genCandidates(t, rapid.IntRange(0, 12).Draw(t, "pods"))
		shuffled := rapid.Permutation(pods).Draw(t, "shuffled")
		order := func(pods []Candidate) []types.UID {
			uids := []types.UID{}
			for _, i := range Victims(pods) {
				uids = append(uids, pods[i].UID)
			}
			return uids
		}
		if diff := cmp.Diff(order(pods), order(shuffled)); diff != "" {
			t.Fatal(diff)
		}
	})
}

// shrink removes the m pods of the lowest costs and returns the number of the others by
// group.
func shrink(t *rapid.T, costs [][]int32, m int) []int {
	type pod struct {
		group int
		cost  int32
	}
	var all []pod
	left := make([]int, len(costs))
	for i, group := range costs {
		left[i] = len(group)
		for _, cost := range group {
			all = append(all, pod{i, cost})
		}
	}
	slices.SortFunc(all, func(a, b pod) int { return int(a.cost) - int(b.cost) })
	for at, p := range all {
		if at > 0 && p.cost == all[at-1].cost {
			t.Fatalf("two pods cost %d", p.cost)
		}
		if at < m {
			left[p.group]--
		}
	}
	return left
}

// costsOf returns the costs of the seats of each group, from the first seat on.
func costsOf(s Spread, seats ...int) [][]int32 {
	total := 0
	for _, count := range seats {
		total += count
	}
	costs := make([][]int32, len(seats))
	for i, count := range seats {
		costs[i] = []int32{}
		for k := range count {
			costs[i] = append(costs[i], s.SeatCost(s.Groups()[i], k+1, total))
		}
	}
	return costs
}

func TestRemovingTheCheapestPodsWalksTheDivisionsDownwards(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genSpread(t)
		if rapid.Bool().Draw(t, "by ranges") {
			s = genRanges(t, false)
		}
		seats := s.Divide(rapid.IntRange(0, 80).Draw(t, "n"))
		n := 0
		for _, count := range seats {
			n += count
		}
		costs := costsOf(s, seats...)
		for m := range n + 1 {
			if diff := cmp.Diff(s.Divide(n-m), shrink(t, costs, m)); diff != "" {
				t.Fatalf("%d of %d removed: %s", m, n, diff)
			}
		}
	})
}

func TestSeatCost(t *testing.T) {
	t.Run("ten pods at 3:2 go down to five at 3:2", func(t *testing.T) {
		s := StaticWeight(weighted(3, 2), nil, ascendingUID)
		got := costsOf(s, 6, 4)
		const top = topDeletionCost
		want := [][]int32{
			{top - 1, top - 3, top - 5, top - 6, top - 8, top - 10},
			{top - 2, top - 4, top - 7, top - 9},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("they do not depend on what other groups have", func(t *testing.T) {
		s := StaticWeight(weighted(3, 2), nil, ascendingUID)
		one, other := costsOf(s, 6, 4), costsOf(s, 6, 9)
		if diff := cmp.Diff(one[0], other[0]); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("pods that no size would put there come first, the last of them before the others", func(t *testing.T) {
		byWeight := costsOf(StaticWeight(weighted(1, 0), nil, ascendingUID), 1, 2)
		byRange := costsOf(NumRange([]gm.NodeGroupNumRange{between("", "", "a"), between("", "", "b")}, nil, ascendingUID), 1, 2)
		for _, costs := range [][][]int32{byWeight, byRange} {
			if diff := cmp.Diff([]int32{-1, -2}, costs[1]); diff != "" {
				t.Error(diff)
			}
			if costs[0][0] <= 0 {
				t.Errorf("the pod that has its seat costs %d", costs[0][0])
			}
		}
	})
	t.Run("a group that takes no part", func(t *testing.T) {
		if cost := (Spread{}).SeatCost("a", 1, 1); cost != outsideDeletionCost {
			t.Errorf("its pod costs %d", cost)
		}
	})
}

func BenchmarkSeatCost(b *testing.B) {
	s := StaticWeight(benchmarkWeights(10), nil, ascendingUID)
	seats := s.Divide(1000)
	b.ReportAllocs()
	for b.Loop() {
		costsOf(s, seats...)
	}
}
