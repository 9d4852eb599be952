package capacity

import (
	"cmp"
	"fmt"
	"slices"

	api "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// observed is the observed state of one workload.
type observed struct {
	replicas int
	// count is the count in force, and asked the one that the workload asks for. They
	// differ while pods fall back.
	count, asked int
	// ofOrdinal returns the class of a pod of a StatefulSet by its name; nil for workloads
	// whose classes depend on counts.
	ofOrdinal func(pod string) capacity.Class
	pods      []seats.SeatView
	// fellBack is the class without nodes whose pods fall back to the other class; None if
	// there is none.
	fellBack capacity.Class
	// rollout: pods of several revisions exist. still: the rollout is paused (isPaused).
	rollout, still bool
	// next returns the class that the successor of a pod would get. Set if rollout is.
	next func(pod seats.SeatView) capacity.Class
	// reserved counts the reserved seats of each class, and open its nodes that are Ready
	// and not cordoned.
	reserved, open [3]int
	// canTake reports whether a node of a class could run the successor of a pod.
	canTake func(class capacity.Class, pod *seats.Pod) (bool, fit.Reason)
	// tied returns the class of all nodes that can use the volumes of a pod; None if nodes
	// of both classes can, or if that is not known. It is called for pods with claims only.
	tied func(pod *seats.Pod) capacity.Class
	// inVain is the reason why moves would not help, or "". refused is the message of the
	// API server about pods that cannot be created, or "".
	inVain, refused string
}

// plan is what has to be done about one workload, and the condition to report.
type plan struct {
	// evict are pods of the wrong class, in the order of their eviction.
	evict []*seats.Pod
	// want, have and waiting count pods by class: the target, those with a node, and those
	// without one.
	want, have, waiting [3]int
	// gated counts those of waiting that wait at the gate.
	gated [3]int
	// closed is why no node could run the successors of other pods of the wrong class,
	// which therefore stay; fit.Fits if there are none.
	closed          fit.Reason
	reason, message string
}

// planFor decides for one workload. It is a pure function.
func planFor(o observed) plan {
	p := plan{reason: api.ReasonSatisfied}
	total := o.replicas
	if o.rollout && o.still {
		total = len(o.pods)
	}
	p.want[capacity.OnDemand], p.want[capacity.Spot] = capacity.Divide(total, o.count)
	for _, pod := range o.pods {
		if pod.Node == "" {
			p.waiting[pod.Class]++
			if pod.Gated {
				p.gated[pod.Class]++
			}
		} else {
			p.have[pod.Class]++
		}
	}
	if o.hasFallenBack() { // pods of the class that have a node stay
		p.want[o.fellBack] = min(p.have[o.fellBack], total)
		p.want[o.fellBack.Other()] = total - p.want[o.fellBack]
	}
	evict, pinned, closed := o.misplaced(p)
	p.evict, p.closed = evict, closed
	p.explain(o, pinned)
	if o.inVain != "" {
		p.evict = nil
	}
	return p
}

// misplaced returns the pods of the wrong class whose successors would get the right class
// and find a node. pinned counts the others that can have no other class, because of their
// own node selector, affinity or volumes. closed is why other successors would find no
// node.
func (o *observed) misplaced(p plan) (leave []*seats.Pod, pinned int, closed fit.Reason) {
	lacks, surplus := [3]int{}, [3]int{} // a reserved seat reduces lacks, but does not add to surplus
	for _, class := range []capacity.Class{capacity.OnDemand, capacity.Spot} {
		surplus[class] = p.have[class] + p.waiting[class] - p.want[class]
		lacks[class] = -surplus[class] - o.reserved[class]
	}
	for _, pod := range o.candidates() {
		stuck := o.stuck(pod)
		right := pod.Class.Other()
		if !stuck {
			right = o.right(pod, surplus, lacks)
		}
		if right == capacity.None {
			continue
		}
		if pod.NamesNode || pod.ClassStamp == capacity.None && pod.Pod.Class != capacity.None {
			pinned++
			continue
		}
		if o.rollout && !stuck && o.next(pod) != right {
			continue
		}
		if can, why := o.canTake(right, pod.Pod); !can && (pod.Node != "" || !isCrowded(why)) {
			closed = fit.Further(why, closed)
			continue
		}
		lacks[right]--
		surplus[pod.Class]--
		leave = append(leave, pod.Pod)
	}
	return leave, pinned, closed
}

// right returns the class that a pod should have instead of its own; None for a pod that
// stays.
func (o *observed) right(pod seats.SeatView, surplus, lacks [3]int) capacity.Class {
	switch other := pod.Class.Other(); {
	case pod.Gated: // it gets its class at the gate
	case o.isRollingOut():
	case o.hasFallenBack() && pod.Node != "": // it runs
	case o.ofOrdinal != nil:
		if right := o.ofOrdinal(pod.Name); right != pod.Class {
			return right
		}
	case pod.Class == capacity.None && lacks[capacity.OnDemand] > 0: // on a node of neither class, or Pending without a class
		return capacity.OnDemand
	case pod.Class == capacity.None && lacks[capacity.Spot] > 0:
		return capacity.Spot
	case surplus[pod.Class] > 0 && lacks[other] > 0:
		return other
	}
	return capacity.None
}

// stuck reports whether a pod waits in vain for a node of its class, and its successor
// would get the other class: pods fall back, its volumes are on nodes of that class, or the
// count changed since. A rollout would wait for such a pod for ever.
func (o *observed) stuck(pod seats.SeatView) bool {
	switch {
	case pod.Gated || pod.Node != "" || pod.Class == capacity.None:
		return false
	case pod.Class == o.fellBack:
		return true
	case !pod.Unschedulable || pod.ClassStamp == capacity.None:
		return false
	case pod.Demand != nil && pod.Demand.Claims && o.tied(pod.Pod) == pod.Class.Other():
		return true
	}
	return o.isRollingOut() && o.next(pod) == pod.Class.Other()
}

// isRollingOut reports whether a rollout is in progress and not paused.
func (o *observed) isRollingOut() bool { return o.rollout && !o.still }

// hasFallenBack reports whether pods of the workload fall back from a class that it asks for.
func (o *observed) hasFallenBack() bool { return capacity.Wants(o.fellBack, o.replicas, o.asked) }

// isCrowded reports whether nodes would fit but are full. A cluster autoscaler adds nodes
// for Pending pods. So a pod without a node may be replaced: its successor waits for those.
func isCrowded(why fit.Reason) bool {
	return why == fit.NoRoom || why == fit.PortTaken || why == fit.TooClose
}

// candidates returns the pods in the order of their eviction: first those without a node,
// then those that are not Ready, then by ascending deletion cost, then the youngest. Pods
// of a StatefulSet are ordered by descending ordinal.
func (o *observed) candidates() []seats.SeatView {
	pods := slices.Clone(o.pods)
	rank := func(pod seats.SeatView) int {
		switch {
		case pod.Node == "":
			return 0
		case !pod.Ready:
			return 1
		default:
			return 2
		}
	}
	slices.SortStableFunc(pods, func(a, b seats.SeatView) int {
		if o.ofOrdinal != nil {
			i, _ := capacity.Ordinal(a.Name)
			j, _ := capacity.Ordinal(b.Name)
			return cmp.Compare(j, i)
		}
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.DeletionCost, b.DeletionCost), b.Created.Compare(a.Created), cmp.Compare(a.UID, b.UID))
	})
	return pods
}

// explain sets reason and message to the first problem that applies. Messages hold no
// number that changes, so that the condition stays the same.
func (p *plan) explain(o observed, pinned int) {
	set := func(reason, message string, args ...any) { p.reason, p.message = reason, fmt.Sprintf(message, args...) }
	for _, class := range []capacity.Class{capacity.OnDemand, capacity.Spot} {
		stay := p.waiting[class] > 0 && len(p.evict) == 0 && class != o.fellBack
		if o.open[class] == 0 && (stay || p.want[class] > p.have[class]) {
			set(api.ReasonNoNodes, "no node of class %s is Ready and not cordoned", class)
			return
		}
	}
	switch {
	case len(p.evict) > 0 && o.inVain == api.ReasonPinned:
		set(api.ReasonPinned, "pods of the wrong class stay: the successor of an evicted pod has the same class again")
	case len(p.evict) > 0 && o.inVain != "":
		set(api.ReasonNotAdmitted, "pods of the wrong class stay: the successors of evicted pods did not pass the webhook of atoll-manager")
	case len(p.evict) > 0:
		set(api.ReasonConverging, "pods of the wrong class are being moved to the other class")
	case len(o.pods) < o.replicas && o.refused != "":
		set(api.ReasonPodsRefused, "the API server refuses pods: %s", o.refused)
	case o.isRollingOut() && o.hasFallenBack():
		p.setFellBack(o)
	case o.isRollingOut() && p.waiting != p.gated:
		set(api.ReasonConverging, "a rollout is in progress, and pods wait for a node%s", p.waitingFor())
	case o.isRollingOut():
		set(api.ReasonConverging, "a rollout is in progress")
	case p.waiting != p.gated:
		set(api.ReasonPodsWaiting, "pods wait for a node%s", p.waitingFor())
	case p.waiting != [3]int{}:
		set(api.ReasonPodsWaiting, "pods wait at the scheduling gate of atoll-manager")
	case p.closed != fit.Fits:
		set(api.ReasonNoRoom, "pods of the wrong class stay. The other class: %s", p.closed)
	case pinned > 0:
		set(api.ReasonPinned, "pods of the wrong class stay: their own node selector, affinity or volumes leave no other class")
	case p.have[capacity.OnDemand] != p.want[capacity.OnDemand] || p.have[capacity.Spot] != p.want[capacity.Spot]:
		set(api.ReasonConverging, "pods are being created or deleted")
	case o.hasFallenBack():
		p.setFellBack(o)
	default:
		set(api.ReasonSatisfied, "each class has the number of pods that it should have")
	}
}

func (p *plan) setFellBack(o observed) {
	p.reason, p.message = api.ReasonFellBack, fmt.Sprintf("class %s has no nodes: its pods get the other class until it has one", o.fellBack)
}

// waitingFor names the classes that pods without a node, which are not at the gate, wait
// for.
func (p *plan) waitingFor() string {
	waits := func(class capacity.Class) bool { return p.waiting[class] > p.gated[class] }
	switch {
	case waits(capacity.OnDemand) && waits(capacity.Spot):
		return " of both classes"
	case waits(capacity.OnDemand):
		return " of class on-demand"
	case waits(capacity.Spot):
		return " of class spot"
	default:
		return ""
	}
}
