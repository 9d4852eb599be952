package placement

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Candidate is a pod, as far as Victims needs it.
type Candidate struct {
	UID types.UID
	// Node is the name of the pod's node; "" if it has none.
	Node string
	// Ready is the pod's own Ready condition.
	Ready bool
	// Bound is true if the pod has a node.
	Bound bool
	// DeletionCost is the value of the annotation
	// controller.kubernetes.io/pod-deletion-cost, 0 without it.
	DeletionCost int32
	// Created is the pod's creationTimestamp.
	Created time.Time
}

// Victims returns the order in which pods leave a group that has too many, as indexes
// into pods. As in a ReplicaSet that shrinks, the first to leave are
//
//  1. pods that are not bound, then pods that are not ready,
//  2. pods of lower deletion cost,
//  3. pods that share their node with more of the given pods that rank after them,
//  4. younger pods.
//
// The UID breaks ties, so the result does not depend on the order of pods.
func Victims(pods []Candidate) []int {
	sharing := countSharing(pods)
	leaving := make([]int, len(pods))
	for i := range leaving {
		leaving[i] = i
	}
	slices.SortFunc(leaving, func(a, b int) int {
		return cmp.Or(
			compareWorth(&pods[a], &pods[b]),
			cmp.Compare(sharing[b], sharing[a]),
			compareAge(&pods[a], &pods[b]),
		)
	})
	return leaving
}

// countSharing counts, for each pod, the pods on its node that would leave after it. So the
// last pod of each node has 0, however many there were.
func countSharing(pods []Candidate) []int32 {
	byNode := make([]int, 0, len(pods))
	for i := range pods {
		if pods[i].Node != "" {
			byNode = append(byNode, i)
		}
	}
	slices.SortFunc(byNode, func(a, b int) int { // on each node, the last to leave first
		return cmp.Or(
			cmp.Compare(pods[a].Node, pods[b].Node),
			compareWorth(&pods[b], &pods[a]),
			compareAge(&pods[b], &pods[a]),
		)
	})
	sharing := make([]int32, len(pods))
	for at := 1; at < len(byNode); at++ {
		if pods[byNode[at]].Node == pods[byNode[at-1]].Node {
			sharing[byNode[at]] = sharing[byNode[at-1]] + 1
		}
	}
	return sharing
}

// compareWorth is negative if a leaves before b, whatever their nodes and ages are.
func compareWorth(a, b *Candidate) int {
	return cmp.Or(
		compareBool(a.Bound, b.Bound),
		compareBool(a.Ready, b.Ready),
		cmp.Compare(a.DeletionCost, b.DeletionCost),
	)
}

// compareAge is negative if a leaves before b when all else is equal.
func compareAge(a, b *Candidate) int {
	return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.UID, b.UID))
}

// compareBool orders false before true.
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
