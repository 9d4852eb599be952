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

// observed is what was seen of one workload.
type observed struct {
	replicas int
	// count is the one in force, and asked the one that the workload asks for: they differ
	// while pods fall back.
	count, asked int
	// ofOrdinal is the class of a StatefulSet's pod by its name; nil for workloads
	// whose pods are counted.
	ofOrdinal func(pod string) capacity.Class
	pods      []seats.SeatView
	// fellBack is the class without nodes that is done without; None if there is none.
	fellBack capacity.Class
	// rollout: pods of several revisions are there. still: nothing happens to them.
	rollout, still bool
	// next is the class that the successor of a pod would get, where several
	// revisions are there.
	next func(pod seats.SeatView) capacity.Class
	// reserved are seats of pods that nobody has seen yet, and open the nodes of
	// each class that are Ready and not cordoned.
	reserved, open [3]int
	// canTake tells whether a node of a class could run the successor of a pod.
	canTake func(class capacity.Class, pod *seats.Pod) (bool, fit.Reason)
	// tied is the class of the only nodes that a pod's volumes can be used on; None if
	// there are others, or if that is not known. It is asked about pods with claims.
	tied func(pod *seats.Pod) capacity.Class
	// inVain is the reason why moves help nothing, or "", and refused what the API
	// server says about pods that it does not let be created.
	inVain, refused string
}

// plan is what is to be done about one workload, and what is to be said of it.
type plan struct {
	// evict are pods of the wrong class in the order in which they are to leave.
	evict []*seats.Pod
	// want, have and waiting count pods by class: to be, with a node, and without one.
	want, have, waiting [3]int
	// gated are those of waiting that a scheduling gate of ours holds back.
	gated [3]int
	// closed is why other pods of the wrong class stay: their successors would find no node.
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
	if o.misses() { // what runs of it stays
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

// misplaced are the pods of the wrong class whose successors would get the right
// one and find a node; pinned are those whose own demands leave them no other
// class, and closed is why other successors would find none.
func (o *observed) misplaced(p plan) (leave []*seats.Pod, pinned int, closed fit.Reason) {
	lacks, surplus := [3]int{}, [3]int{} // pods that nobody has seen fill a class, and are surplus in none
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
		if can, why := o.canTake(right, pod.Pod); !can && (pod.Node != "" || !crowded(why)) {
			closed = fit.Further(why, closed)
			continue
		}
		lacks[right]--
		surplus[pod.Class]--
		leave = append(leave, pod.Pod)
	}
	return leave, pinned, closed
}

// right is the class that a pod is to have and has not; None for a pod that stays.
func (o *observed) right(pod seats.SeatView, surplus, lacks [3]int) capacity.Class {
	switch other := pod.Class.Other(); {
	case pod.Gated: // it gets its class there
	case o.rolls():
	case o.misses() && pod.Node != "": // it runs
	case o.ofOrdinal != nil:
		if right := o.ofOrdinal(pod.Name); right != pod.Class {
			return right
		}
	case pod.Class == capacity.None && lacks[capacity.OnDemand] > 0: // on a node of neither class, or it waits for any
		return capacity.OnDemand
	case pod.Class == capacity.None && lacks[capacity.Spot] > 0:
		return capacity.Spot
	case surplus[pod.Class] > 0 && lacks[other] > 0:
		return other
	}
	return capacity.None
}

// stuck tells whether a pod waits for nodes of its class that it does not get, while its
// successor would be of the other class: pods fall back, or its volumes are there. A
// rollout would wait for such a pod for ever.
func (o *observed) stuck(pod seats.SeatView) bool {
	if pod.Gated || pod.Node != "" || pod.Class == capacity.None {
		return false
	}
	return pod.Class == o.fellBack ||
		pod.Unschedulable && pod.ClassStamp != capacity.None && pod.Demand != nil && pod.Demand.Claims && o.tied(pod.Pod) == pod.Class.Other()
}

// rolls: a rollout goes on.
func (o *observed) rolls() bool { return o.rollout && !o.still }

// misses tells whether the workload does without a class that it is to have pods of.
func (o *observed) misses() bool { return capacity.Wants(o.fellBack, o.replicas, o.asked) }

// crowded: nodes would do if there were more room, which a cluster autoscaler makes for
// pods that wait. A pod that has no node loses nothing by waiting for that instead.
func crowded(why fit.Reason) bool {
	return why == fit.NoRoom || why == fit.PortTaken || why == fit.TooClose
}

// candidates are the pods in the order in which they would leave: first those that
// do no work, then the cheapest, then the youngest; of a StatefulSet the highest
// ordinal first.
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

// explain sums up, the first problem first. Messages hold no number that moves.
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
		set(api.ReasonPinned, "pods of the wrong class stay: one that was made anew is of the same class again")
	case len(p.evict) > 0 && o.inVain != "":
		set(api.ReasonNotAdmitted, "pods of the wrong class stay: the last ones that were made anew did not pass the webhook of atoll-manager")
	case len(p.evict) > 0:
		set(api.ReasonConverging, "pods are moved to the class that they are to have")
	case len(o.pods) < o.replicas && o.refused != "":
		set(api.ReasonPodsRefused, "the API server refuses pods: %s", o.refused)
	case o.rolls() && o.misses():
		p.fellBack(o)
	case o.rolls():
		set(api.ReasonConverging, "a rollout is in progress")
	case p.waiting != p.gated:
		set(api.ReasonPodsWaiting, "pods wait for a node%s", p.waitingFor())
	case p.waiting != [3]int{}:
		set(api.ReasonPodsWaiting, "pods wait at the scheduling gate of atoll-manager")
	case p.closed != fit.Fits:
		set(api.ReasonNoRoom, "pods of the wrong class stay: of the other class, %s", p.closed)
	case pinned > 0:
		set(api.ReasonPinned, "pods of the wrong class stay: their own node selector, affinity or volumes leave them no other")
	case p.have[capacity.OnDemand] != p.want[capacity.OnDemand] || p.have[capacity.Spot] != p.want[capacity.Spot]:
		set(api.ReasonConverging, "pods are created or on their way out")
	case o.misses():
		p.fellBack(o)
	default:
		set(api.ReasonSatisfied, "each class has as many pods as it is to have")
	}
}

func (p *plan) fellBack(o observed) {
	p.reason, p.message = api.ReasonFellBack, fmt.Sprintf("class %s has no nodes: pods are of the other class until it has some", o.fellBack)
}

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
