package placement

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Candidate is what the order in which pods leave depends on.
type Candidate struct {
	UID types.UID
	// Node is the name of the node that the pod is on; "" if none.
	Node string
	// Ready is the pod's own Ready condition.
	Ready bool
	// Bound is set once the pod has a node.
	Bound bool
	// DeletionCost is the value of the pod's deletion cost annotation, 0
	// without: lower leaves first.
	DeletionCost int32
	// Created is the pod's creation; the younger leaves first.
	Created time.Time
	// DoNotDisrupt pods never leave on our demand; they count as company on
	// their node all the same.
	DoNotDisrupt bool
}

// Victims is the order in which pods leave a group that has too many: indexes
// into pods, without those that may not be disrupted. First go pods that are
// not bound, then not ready, then of lower deletion cost, then those with
// better company of the same workload on their node, the more the sooner, then
// the younger; the UID decides what is still open. The order of pods does not
// matter.
func Victims(pods []Candidate) []int {
	company := companyOf(pods)
	leaving := make([]int, 0, len(pods))
	for i := range pods {
		if !pods[i].DoNotDisrupt {
			leaving = append(leaving, i)
		}
	}
	slices.SortFunc(leaving, func(a, b int) int {
		return cmp.Or(
			compareWorth(&pods[a], &pods[b]),
			cmp.Compare(company[b], company[a]),
			compareAge(&pods[a], &pods[b]),
		)
	})
	return leaving
}

// companyOf counts, for each pod, the pods on its node that would leave after
// it: the last one of each node is not doubled, however many there were.
func companyOf(pods []Candidate) []int32 {
	byNode := make([]int, 0, len(pods))
	for i := range pods {
		if pods[i].Node != "" {
			byNode = append(byNode, i)
		}
	}
	slices.SortFunc(byNode, func(a, b int) int { // the last to leave a node comes first
		return cmp.Or(
			cmp.Compare(pods[a].Node, pods[b].Node),
			compareBool(pods[b].DoNotDisrupt, pods[a].DoNotDisrupt),
			compareWorth(&pods[b], &pods[a]),
			compareAge(&pods[b], &pods[a]),
		)
	})
	company := make([]int32, len(pods))
	for at := 1; at < len(byNode); at++ {
		if pods[byNode[at]].Node == pods[byNode[at-1]].Node {
			company[byNode[at]] = company[byNode[at-1]] + 1
		}
	}
	return company
}

// compareWorth is negative when a leaves before b whatever their nodes and ages.
func compareWorth(a, b *Candidate) int {
	return cmp.Or(
		compareBool(a.Bound, b.Bound),
		compareBool(a.Ready, b.Ready),
		cmp.Compare(a.DeletionCost, b.DeletionCost),
	)
}

// compareAge is negative when a leaves before b, everything else being equal.
func compareAge(a, b *Candidate) int {
	return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.UID, b.UID))
}

// compareBool puts false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

const (
	// topDeletionCost is above every cost that DeletionCosts gives.
	topDeletionCost = 1_000_000_000
	// OutsideDeletionCost is for pods in groups that take no part: they leave
	// before all others.
	OutsideDeletionCost int32 = -topDeletionCost
)

// DeletionCosts gives every pod the value of the annotation
// controller.kubernetes.io/pod-deletion-cost that makes a shrinking ReplicaSet
// end on Divide of its new size. pods holds, by group index, the active pods
// of one revision in that group.
//
// In each group the pods are numbered from the one that should stay longest:
// bound, ready, older, UID. The cost of the k-th is 1,000,000,000 minus the
// place that the group's k-th seat has when seats are given one by one. By
// weights, costs are in the order of weight/(2k−1), ties decided as Divide
// does, and depend on nothing but weights, group and k; by ranges the order is
// that of filling backwards, and only percentages depend on the total. Pods
// that no number of replicas would put where they are get −k: they leave first,
// though after pods outside all groups. A pod without the annotation, of cost
// 0, is new: it leaves before all that have a seat.
func (s Spread) DeletionCosts(pods [][]Candidate) [][]int32 {
	costs := make([][]int32, len(pods))
	total := int64(0)
	for _, group := range pods {
		total += int64(len(group))
	}
	for i, group := range pods {
		costs[i] = make([]int32, len(group))
		stay := make([]int, len(group))
		for at := range stay {
			stay[at] = at
		}
		slices.SortFunc(stay, func(a, b int) int {
			return -cmp.Or(
				compareBool(group[a].Bound, group[b].Bound),
				compareBool(group[a].Ready, group[b].Ready),
				compareAge(&group[a], &group[b]),
			)
		})
		for at, pod := range stay {
			costs[i][pod] = s.seatCost(i, int64(at)+1, total)
		}
	}
	return costs
}

// seatCost is the deletion cost of the k-th pod of group i.
func (s Spread) seatCost(i int, k, total int64) int32 {
	if i >= len(s.names) {
		return OutsideDeletionCost
	}
	var rank int64
	if s.ranges != nil {
		rank = s.rangeRank(i, k, total, topDeletionCost-1)
	} else {
		rank = s.websterRank(i, k, topDeletionCost-1)
	}
	if rank <= 0 {
		return int32(max(-k, -topDeletionCost+1))
	}
	return int32(topDeletionCost - rank)
}
