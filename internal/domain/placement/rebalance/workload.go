// Package rebalance decides which pods of one workload leave their NodeGroup, so that
// the workload reaches the division of its policy, which deletion costs its pods
// should have, and what the policy's status shows of it (docs/sources.md, G13 to G15).
//
// Every result is a function of what was observed. The package must not depend on how
// pods are read, evicted or annotated.
package rebalance

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
)

// Workload is what was observed of one workload.
type Workload struct {
	// Ref names the workload in the policy's status.
	Ref gm.WorkloadReference
	// Spread is the division of the policy for this workload.
	Spread placement.Spread
	// Replicas is the number of pods that the workload wants, over all parts.
	Replicas int
	// Cohorts are the cohorts with active pods, sorted by owner and revision.
	Cohorts []Cohort
	// Evictable: the owner of an evicted pod creates a successor, which may run in
	// another group. It is false for pods of Jobs and DaemonSets, and without an owner.
	Evictable bool
	// Divided is false for a DaemonSet, which has one pod on each node.
	Divided bool
	// Complete: every owner has as many pods as it wants.
	Complete bool
	// Refused is the error with which the API server refuses new pods of the workload,
	// as the pods' owner reports it; "" if there is none.
	Refused string
	// Held is why pods at the scheduling gate cannot leave it; "" if they can.
	Held string
	// Balanced: there is one revision, or the rollout stands still (see Rollout).
	Balanced bool
	// Sticky: the owner creates no successor of a pod before the pod's node is back, if
	// that node is away. StatefulSets do so.
	Sticky bool
	// Mode is spec.rescheduling.mode of the policy, never "".
	Mode gm.ReschedulingMode
	// CanTake returns whether a group has a node for the successor of a pod, and
	// otherwise why not. It reserves the node's room for the rest of the plan: the room
	// that it finds for one pod is not there for the next.
	CanTake func(group string, pod *Pod) (bool, Obstacle)
	// Further returns the obstacle of the two that belongs to the later check of a node.
	// Messages name that one.
	Further func(a, b Obstacle) Obstacle
}

// Cohort is the set of active pods of one revision of one owner.
type Cohort struct {
	CohortKey
	// Pods are sorted by creation, then UID.
	Pods []Pod
	// OfReplicaSet: the owner is a ReplicaSet. Only ReplicaSets read deletion costs.
	OfReplicaSet bool
	// Part is the owner whose pods are divided together, those of all its revisions
	// (ownership.Divided), and Wanted the number of pods that it wants. A workload of several
	// StatefulSets has several parts.
	Part   types.UID
	Wanted int
}

// CohortKey identifies a cohort.
type CohortKey struct {
	// Owner is the UID of the pods' direct owner, or of the pod itself without one.
	Owner types.UID
	// Revision is the revision of the owner's pod template.
	Revision string
}

// Pod is one active pod and its seat.
type Pod struct {
	placement.Candidate
	Name string
	// Group is the NodeGroup of the seat; "" without one, and on a node of no group.
	Group string
	// Seated: the pod has a seat in Group, reserved or observed.
	Seated bool
	// Pinned: the pod got its seat at creation, so it can run in no other group.
	Pinned bool
	// Gated: a scheduling gate of atoll-manager holds the pod back. OtherGate is the gate of
	// another program, "" if there is none.
	Gated     bool
	OtherGate string
	// Available: the pod is on a node and Ready, and no container waits for the restart
	// that follows a change of its image.
	Available bool
	// NamesNode: the owner names the pod's node, so its successor comes to the same node.
	NamesNode bool
	// Lost: the pod's node was deleted.
	Lost bool
	// HasCost: the pod has a deletion cost. UserCost: a user wrote it.
	HasCost, UserCost bool
}

// Obstacle is why a group cannot take the successor of a pod. The zero value is none.
type Obstacle struct {
	// Reason is the text for messages.
	Reason string
	// OutOfReach: no open node of the group reaches the pod's volumes.
	OutOfReach bool
	// Unwanted: no open node of the group matches the pod's own node selector and affinity.
	Unwanted bool
	// Unread: the pod's volumes have not been read yet, so where they can be used is not
	// known.
	Unread bool
}

// Movable returns whether surplus pods of the workload are evicted.
func (w *Workload) Movable() bool { return w.Evictable && w.Mode == gm.ReschedulingEvict }

// parts returns a Workload for each part, with the part's cohorts and replicas.
func (w *Workload) parts() (parts []*Workload) {
	at := map[types.UID]*Workload{}
	for _, c := range w.Cohorts {
		p := at[c.Part]
		if p == nil {
			p = new(*w)
			p.Cohorts, p.Replicas = nil, c.Wanted
			at[c.Part], parts = p, append(parts, p)
		}
		p.Cohorts = append(p.Cohorts, c)
	}
	if len(parts) <= 1 {
		return []*Workload{w}
	}
	return parts
}

// partOf returns the part of a cohort.
func (w *Workload) partOf(c *Cohort) *Workload {
	parts := w.parts()
	return parts[slices.IndexFunc(parts, func(p *Workload) bool { return p.Cohorts[0].Part == c.Part })]
}

// CanBorrow returns whether a group other than the pod's may have one more pod of the
// cohort, on loan, and has room for it. A pod that waits for pods of another revision may go
// to any group that gets pods.
func (w *Workload) CanBorrow(c *Cohort, pod *Pod) bool {
	current, behind := map[string]int{}, w.BehindOthers(c, pod.Group)
	for i := range c.Pods {
		if c.Pods[i].Seated {
			current[c.Pods[i].Group]++
		}
	}
	for i, most := range w.Spread.Ceilings(max(len(c.Pods), w.partOf(c).Replicas)) {
		group := w.Spread.Groups()[i]
		if group == pod.Group || most == 0 || current[group] >= most && !behind {
			continue
		}
		if can, _ := w.CanTake(group, pod); can {
			return true
		}
	}
	return false
}

// BehindOthers returns whether pods of a cohort that wait for a node in a group wait for pods of
// another revision to leave it: a rollout is in progress, and the group has more than its share.
// The rollout may wait for them in turn, so they must not wait if another group has room.
func (w *Workload) BehindOthers(c *Cohort, group string) bool {
	part := w.partOf(c)
	if w.Balanced || len(part.Cohorts) < 2 {
		return false
	}
	n := 0
	for i := range part.Cohorts {
		for j := range part.Cohorts[i].Pods {
			if pod := &part.Cohorts[i].Pods[j]; pod.Seated && pod.Group == group {
				n++
			}
		}
	}
	at := w.Spread.Index(group)
	return at >= 0 && n > w.Spread.Divide(part.Replicas)[at]
}

// Lacking returns the groups that have fewer pods than the division.
func (w *Workload) Lacking() []string {
	current := map[string]int{}
	for i := range w.Cohorts {
		for j := range w.Cohorts[i].Pods {
			current[w.Cohorts[i].Pods[j].Group]++
		}
	}
	var lacking []string
	for i, n := range w.desired() {
		if group := w.Spread.Groups()[i]; current[group] < n {
			lacking = append(lacking, group)
		}
	}
	return lacking
}

// pods returns the number of active pods.
func (w *Workload) pods() int {
	n := 0
	for i := range w.Cohorts {
		n += len(w.Cohorts[i].Pods)
	}
	return n
}

// total returns the number of pods of a part that are divided: those that it wants, or those
// that exist, if they are more.
func (w *Workload) total() int { return max(w.pods(), w.Replicas) }

// desired returns the number of pods that each group should have. The revisions of a part are
// divided together: their rounding would add up, and in a rollout the successor of a pod goes
// where the pod was.
func (w *Workload) desired() []int {
	sum := make([]int, len(w.Spread.Groups()))
	for _, part := range w.parts() {
		for i, n := range w.Spread.Divide(part.total()) {
			sum[i] += n
		}
	}
	return sum
}

// share returns the number of pods of one cohort of a part that each group should have, as far
// as the division of the whole part allows it.
func (w *Workload) share(c *Cohort) []int { return w.Spread.First(len(c.Pods), w.total()) }

// working returns whether every pod is available, or is in a group that is away.
func (w *Workload) working() bool {
	for i := range w.Cohorts {
		for j := range w.Cohorts[i].Pods {
			pod := &w.Cohorts[i].Pods[j]
			if !pod.Available && (pod.Node == "" || !slices.Contains(w.Spread.Away(), pod.Group)) {
				return false
			}
		}
	}
	return true
}
