// Package seats holds the ledger: which pod has a seat in which group. It is the only
// state that all decisions about the place of a pod share.
//
// A seat belongs to a cohort, which is the pods of one revision of one owner, and is in
// one group. A seat is reserved when a decision hands it out, and observed when the watch
// shows the pod on a node of the group:
//
//	          Reserve                 watch: pod on a node
//	no seat ───────────► reserved ──────────────────────► observed
//	   │ ▲                  │                                 │ ▲
//	   │ └──────────────────┴─────────────────────────────────┘ │
//	   │   pod deleted, finished or terminating; a reservation  │
//	   │   also ends with the next Reserve, or when it expires  │
//	   └── Take, for a pod that is not created yet ─────────────┘
//	                        watch: pod with the seat's token
//
// If a policy limits the number of pods, Admit keeps pods above that limit from
// kube-scheduler.
//
// The ledger is derived: it is computed from the pods and from reservations that live for
// seconds. After a restart, a list of all pods is enough to compute it again. Package
// placement decides which group is next. This package must not depend on policies, on HTTP,
// or, except for the Informer that fills the ledger, on clients of the API server.
//
// # Structure
//
// Four types own the state. The state of each is changed by its own methods only:
//
//   - nodes: the nodes, the members of the groups, the classes of the nodes, and what the
//     pods on each node use. It refers to no other type.
//   - disruptions: the available pods of each owner, and the pods that are about to be
//     evicted or restarted. It refers to no other type.
//   - waiting: the groups that an owner avoids, and when waiting pods of an owner may be
//     replaced. It refers to no other type.
//   - cohorts: the entries of the pods, and their seats in groups and classes. It reads the
//     group and the class of a node from nodes.
//
// Ledger composes them under one mutex. One mutex is right: a decision reads several of them
// and they must be of the same moment, and an event of a pod or node changes several of them.
// The methods of the four types expect that the caller holds it.
package seats

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
)

// ReservationTTL is how long a seat is reserved for a pod that was sent to a group and is
// not bound yet. A pod that is bound later gets its seat from Confirm.
const ReservationTTL = 30 * time.Second

// boundTTL is how long a seat is reserved for a pod that was bound and that the watch has not
// shown on its node. A watch without events is started again within ten minutes, and a pod
// that was created and deleted in between is never shown.
const boundTTL = 15 * time.Minute

// Cohort identifies the pods that are divided together: those of one revision of one owner.
type Cohort struct {
	// Owner is the UID of the pods' direct owner, or of the pod itself if it has none.
	Owner types.UID
	// Revision is ownership.Revision of the pods.
	Revision string
}

// Handler is called after the ledger has recorded a change of a pod. old is nil for a new
// pod, new is nil for a deleted one. It is called without the ledger's mutex, and it must
// not block.
type Handler func(old, new *Pod)

// Ledger holds all pods and seats. It is safe for concurrent use.
//
// The methods hold the mutex, except those that add handlers or set classes. What a call
// costs grows with
//
//   - nothing (constant): Observe and Forget (but for a pod that leaves its node also the cohorts that
//     avoid the node's group), Pod, KeepSeat, Release, SeatNumber, Undisrupt, Avoid,
//     Refused, ExtendRefused, MayRecreateUnschedulable, CancelRecreation, HasMembers,
//     GroupsEpoch, NodeGroup, OpenOfClass, EmptyClass;
//   - the names in the call: NodeGroups, MovedAt;
//   - the groups of the spread and the reservations of the cohort, which live for seconds:
//     Confirm, Admit, CanUngate, Open, Scores, MayRecreateGated, Reserve (also the nodes of the
//     request, and the workload's revisions), Take and Place (also these, and the nodes of these
//     groups if Request.Check is set, for which the mutex is released between every reachSlice nodes;
//     the pods of the workload if the check has anti-affinity);
//   - the revisions of the owners in the call, and the reservations of these: TakeClass,
//     PlaceClass, ReservedOfClass, Behind (without the reservations);
//   - the owners in the call: Disrupt (and the announcements that have expired since the last
//     call, each of them once);
//   - the nodes of one group: NotReadySince, CanReturn, CanTake and Places.Take (all nodes, and the
//     pods of the workload, if the pod has anti-affinity or topology spread);
//   - all nodes: ClassOfVolumes, ClassCanTake (also the pods of the owners in the call if the pod
//     has anti-affinity or topology spread);
//   - the pods on one node: PodsOnNode, and ObserveNode and ForgetNode if the group or the class
//     of the node changes. ObserveNode also looks at all avoided groups if the node has more room
//     than before;
//   - the pods of the owners in the call: View. It sorts them without the mutex;
//   - the pods in the call: RecordLookup;
//   - all cohorts and reservations: Overdue, Lapse (also all else that it may drop);
//   - all pods: Gated.
//
// A division of a cohort is computed once for the same total and spread; a new one costs what
// placement.Spread.Divide does.
type Ledger struct {
	handlers        []Handler
	groupsHandlers  []GroupsHandler
	classesHandlers []ClassesHandler
	// classes defines the capacity classes of nodes and pods; nil if none are configured.
	classes *capacity.Classes

	// mu guards the four below, and what they refer to.
	mu          sync.Mutex
	nodes       *nodes
	disruptions *disruptions
	waiting     *waiting
	cohorts     *cohorts
}

// NewLedger returns an empty ledger.
func NewLedger(clock clock.PassiveClock) *Ledger {
	nodes := newNodes(clock)
	return &Ledger{
		nodes:       nodes,
		disruptions: newDisruptions(clock),
		waiting:     newWaiting(clock),
		cohorts:     newCohorts(clock, nodes),
	}
}

// OnChange adds a handler. Call it before the first Observe.
func (l *Ledger) OnChange(h Handler) { l.handlers = append(l.handlers, h) }

// Observe records the current state of a pod. The caller must not change or read the pod
// afterwards: the ledger replaces parts of it by equal ones that it has stored already.
func (l *Ledger) Observe(pod *Pod) {
	l.mu.Lock()
	old := l.observeLocked(pod)
	l.mu.Unlock()
	l.notify(old, pod)
}

// Forget records that a pod is deleted.
func (l *Ledger) Forget(uid types.UID) {
	l.mu.Lock()
	old := l.cohorts.pod(uid)
	if s := l.cohorts.entry(uid); s != nil {
		l.dropLocked(s)
	}
	l.disruptions.forget(uid)
	l.mu.Unlock()
	if old != nil {
		l.notify(old, nil)
	}
}

func (l *Ledger) notify(old, new *Pod) {
	for _, h := range l.handlers {
		h(old, new)
	}
}

// observeLocked returns the state of the pod that was recorded before, or nil.
func (l *Ledger) observeLocked(pod *Pod) (old *Pod) {
	l.cohorts.dropTokens(pod)
	old = l.cohorts.pod(pod.UID)
	s := l.entryLocked(pod.UID, Cohort{Owner: pod.Owner(), Revision: pod.Revision})
	pod.Node = l.nodes.intern(pod.Node)
	s.cohort.intern(pod)
	l.classifyLocked(pod)
	l.waiting.observe(pod)
	l.replacePodLocked(s.pod, pod)
	l.cohorts.observe(s, pod)
	return old
}

// entryLocked returns the pod's entry in the cohort. An entry in another cohort is dropped:
// the pod has another owner or revision now.
func (l *Ledger) entryLocked(uid types.UID, key Cohort) *seat {
	if s := l.cohorts.entry(uid); s != nil {
		if s.cohort.key == key {
			return s
		}
		l.dropLocked(s)
	}
	return l.cohorts.enter(uid, key)
}

// dropLocked removes all that is recorded of a pod, except an announced disruption.
func (l *Ledger) dropLocked(s *seat) {
	l.replacePodLocked(s.pod, nil)
	l.cohorts.drop(s)
}

// replacePodLocked records that before is after now, as nodes.replacePod takes them.
func (l *Ledger) replacePodLocked(before, after *Pod) {
	l.nodes.replacePod(before, after)
	l.disruptions.replacePod(before, after)
	if before == nil || !before.Active || before.Node == "" || after != nil && after.Active {
		return
	}
	n := l.nodes.byName[before.Node]
	if n == nil || n.Group == "" || len(l.waiting.avoided[n.Group]) == 0 {
		return
	}
	with := &fit.Use{}
	with.Add(before.demand())
	l.waiting.left(before, n.Group, func(demand *fit.Demand) bool {
		check := fit.NewCheck(demand, nil)
		return n.Open && check.Of(&n.Offer, &n.used, &n.leaving) == fit.Fits && check.Of(&n.Offer, &n.used, &n.leaving, with) != fit.Fits
	})
}

// Pod returns the last observed state of a pod, or nil.
func (l *Ledger) Pod(uid types.UID) *Pod {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cohorts.pod(uid)
}

// Lapse drops every reservation that has expired, and everything else that is out of date.
// Other calls drop only what belongs to the cohort in the call. The Informer calls Lapse
// every takeTTL.
func (l *Ledger) Lapse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cohorts.lapseAll()
	l.waiting.forget()
	l.nodes.forgetMoved()
	l.disruptions.expire(l.cohorts.pod)
}
