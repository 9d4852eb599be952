// Package replacement decides which pods of one workload are replaced, because they were
// not created as the rules of an OverridePolicy want them (docs/sources.md, G16 to G20):
// most fields of a pod cannot change once the pod exists.
//
// Every result is a function of what was observed. The package must not depend on rules,
// nor on how pods are read and evicted.
package replacement

import (
	"errors"
	"sort"
	"time"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// MissedTime is how long a pod that did not pass the pod webhook waits before it is
// replaced: its successor may not pass the webhook either.
const MissedTime = 10 * time.Second

// Why no pod of a workload is replaced for now.
var (
	// ErrBypassed: a successor would lack its overrides, and would be replaced again.
	ErrBypassed = errors.New("new pods do not pass the webhook of atoll-manager")
	// ErrNotPlaced: a successor would not be different, or would wait at the gate.
	ErrNotPlaced = errors.New("the workload is not bound to its PropagationPolicy")
	// ErrUntried: the API server may refuse the successor of a running pod.
	ErrUntried = errors.New("it is not known yet whether the API server accepts the pods that the rules make")
	// ErrRefused: a pod that is evicted would get no successor.
	ErrRefused = errors.New("the API server creates no pods")
)

// Workload is what was observed of one workload.
type Workload struct {
	// Stale are the active pods that were not created as the rules want them.
	Stale []Pod
	// Mode is spec.rescheduling.mode of the workload's PropagationPolicy, and Evict
	// without one.
	Mode gm.ReschedulingMode
	// Bound: the workload is bound to the OverridePolicy, whose rules can be used for it.
	Bound bool
	// Placed: the NodeGroup of a new pod is known at its creation, if the rules need it.
	Placed bool
	// Refused: the API server creates no pods of the workload.
	Refused bool
	// Untried: it is not known whether the API server accepts pods that the rules change.
	Untried bool
	// BypassedFor is how long no pod is replaced because new pods do not pass the pod
	// webhook (see Bypass).
	BypassedFor time.Duration
}

// Pod is a pod that was not created as the rules want it.
type Pod struct {
	// Bound: the pod has a node. Available: it is also Ready.
	Bound, Available bool
	// Pinned: the pod got its seat at creation.
	Pinned bool
	// GetsSuccessor: the pod's owner creates a successor when the pod is evicted, and the pod
	// is not of a Job, whose work would be lost.
	GetsSuccessor bool
	Created       time.Time
}

// Plan is what is to be done about one workload.
type Plan struct {
	// Replace are the pods to replace, as indexes of Workload.Stale in the order of
	// replacement. The caller replaces as many of them as may be disturbed now.
	Replace []int
	// Blocked is why no pod is replaced for now, or nil.
	Blocked error
	// Wait is after how long Blocked ends; 0 if only a change of an object ends it.
	Wait time.Duration
}

// NewPlan plans for one workload.
func NewPlan(w *Workload) Plan {
	pods := w.replaceable()
	switch {
	case len(pods) == 0 || !w.Bound:
		return Plan{}
	case w.Refused:
		return Plan{Blocked: ErrRefused}
	case !w.Placed:
		return Plan{Blocked: ErrNotPlaced}
	case w.Untried:
		return Plan{Blocked: ErrUntried}
	case w.BypassedFor > 0:
		return Plan{Blocked: ErrBypassed, Wait: w.BypassedFor}
	}
	var p Plan
	for _, i := range pods {
		if w.Stale[i].GetsSuccessor {
			p.Replace = append(p.Replace, i)
		}
	}
	return p
}

// replaceable returns the indexes of the pods that the mode allows to replace, those that
// are not available first, because nothing is lost with them. Modes other than Evict
// allow pods without a node only: those do no work, and the extender refuses to bind them.
func (w *Workload) replaceable() []int {
	var pods []int
	for i, pod := range w.Stale {
		if w.Mode == gm.ReschedulingEvict || !pod.Bound {
			pods = append(pods, i)
		}
	}
	sort.SliceStable(pods, func(i, j int) bool { return !w.Stale[pods[i]].Available && w.Stale[pods[j]].Available })
	return pods
}

// SettlesAt returns when a pod may be replaced: once the nodes of its group have stayed
// the same for the time stabilization since movedAt, or, for a pod that has no group
// because it did not pass the pod webhook, some seconds after its creation.
func (p *Pod) SettlesAt(movedAt time.Time, stabilization time.Duration) time.Time {
	if !p.Bound && !p.Pinned {
		return p.Created.Add(MissedTime)
	}
	return movedAt.Add(stabilization)
}
