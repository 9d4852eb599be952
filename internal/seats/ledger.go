// Package seats is the ledger of who sits where: the one shared state of all
// decisions that put a pod somewhere.
//
// A seat belongs to a cohort, the pods of one revision of one owner, and is in
// one group. It is reserved when a decision hands it out, and observed when
// the pod is seen on a node of the group:
//
//	          Reserve                 pod seen on a node
//	no seat ───────────► reserved ──────────────────────► observed
//	   │ ▲                  │                                 │ ▲
//	   │ └──────────────────┴─────────────────────────────────┘ │
//	   │   deleted, finished, terminating; reservations also:   │
//	   │   asked again, lapsed                                  │
//	   └── Take, for a pod that is not created yet ─────────────┘
//	                                pod seen with the seat's token
//
// Where a policy bounds how many pods there are, Admit keeps those beyond it
// from the scheduler.
//
// The ledger is derived: it is a function of the pods and of reservations that
// live for seconds, so a restart lists pods and is right. It asks placement
// whose turn it is and knows neither policies nor HTTP nor the API server's
// clients (the informer that fills it does).
package seats

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
)

// ReservationTTL is how long a seat is kept for a pod that was sent to a group
// and has not been bound. A pod that comes to be bound later is seated anew.
const ReservationTTL = 30 * time.Second

// boundTTL is how long a seat is kept for a pod that was bound and has not been
// seen on its node. A watch that brings nothing begins anew within ten minutes;
// what came and went in the meantime is never seen.
const boundTTL = 15 * time.Minute

// Cohort is what is divided as one: the pods of one revision of one owner.
type Cohort struct {
	// Owner is the UID of the pods' direct owner, or of the pod itself.
	Owner types.UID
	// Revision is ownership.Revision of the pods.
	Revision string
}

// Handler is told of every change of a pod that the ledger has seen: old is
// nil for a new pod, new is nil for one that is gone. It must not block.
type Handler func(old, new *Pod)

// Ledger holds all pods and seats. Safe for concurrent use; every operation
// but View and Gated takes time that does not grow with the number of pods.
type Ledger struct {
	clock    clock.PassiveClock
	handlers []Handler
	// groupsHandlers are told of groups.
	groupsHandlers []GroupsHandler
	// classesHandlers are told of classes of capacity.
	classesHandlers []ClassesHandler
	// classes tell nodes and pods of the classes of capacity; nil where nobody asks.
	classes *capacity.Classes
	// held counts seats: under true those that are reserved, under false those
	// that are observed.
	held map[bool]prometheus.Gauge

	mu      sync.Mutex
	seats   map[types.UID]*seat
	cohorts map[Cohort]*cohort
	owners  map[types.UID]*owner
	nodes   map[string]*node
	// members are the nodes of each group, by name; epoch moves when a group gets its
	// first node or loses its last.
	members map[string]map[string]*node
	// moved is when a node joined or left the group, or came to be open, last.
	moved map[string]time.Time
	epoch uint64
	// ready counts the Ready nodes of each group.
	ready map[string]int
	// openOfClass counts the open nodes of each class of capacity.
	openOfClass [3]int
	// emptySince is when a class was seen to have none first; the zero time where it
	// has some, or nobody asked.
	emptySince [3]time.Time
	// avoided are groups that the pods of an owner do not get at creation.
	avoided map[avoidance]penalty
	// refused is until when new pods of an owner get their group at creation,
	// and remade when its waiting pods were made anew last: see waiting.go.
	refused, remade map[types.UID]time.Time
	// rounds are when pods of an owner at our gate were made anew: see renew.go.
	rounds map[types.UID]round
	// disrupted are pods that we are about to evict or restart, until that is
	// seen. announced are the same, oldest first, and some that are not any more.
	disrupted map[types.UID]time.Time
	announced []announcement
}

// seat is a pod's entry: with a group it holds a seat there.
type seat struct {
	uid    types.UID
	pod    *Pod // nil while only the scheduler has told us of the pod
	cohort *cohort
	// seated: the pod counts in group. A bound pod on a node of no group is
	// seated in "".
	seated    bool
	group     string
	reserved  bool
	binding   bool           // reserved, and being bound to a node of group: see Confirm
	number    int            // the group's seats when this one was taken, itself included
	lapses    time.Time      // when a reservation does
	namespace string         // where a list shows whether a reservation's pod was written: see lost.go; "" if nobody looks
	active    bool           // counts in its cohort's active
	token     bool           // counts in its cohort's unseen
	gated     bool           // counts in its cohort's gated
	available bool           // counts in its owner's available
	granted   capacity.Class // reserved for a pod that is not seen with it yet
	class     capacity.Class // counts in its cohort's classes under this
}

// owner is the direct owner of pods.
type owner struct {
	cohorts map[Cohort]*cohort
	// available is the number of its pods that do their work and are not about
	// to be evicted or restarted.
	available int
}

type cohort struct {
	key     Cohort
	owner   *owner
	counts  map[string]int // seats by group, reserved ones included
	seats   map[types.UID]*seat
	like    *Pod   // the pod seen last, for the next to share with
	active  int    // entries of pods that are active, or not seen yet
	seated  int    // entries with a seat
	gated   int    // entries of pods that wait at our gate for a seat
	classes [3]int // active entries by class of capacity
	unseen  int    // seats that were taken for pods which nobody has seen yet
	// coming are until when the successors of pods at our gate are on their way.
	coming []time.Time
	// reservations of the cohort, to drop those that lapsed.
	reservations map[types.UID]*seat
	// The last division: most calls of a burst ask for the same one.
	divided      placement.Spread
	dividedTotal int
	desired      []int
	current      []int  // scratch
	feasible     []bool // scratch
}

type node struct {
	Node
	// exists is false for a node that is gone, or not seen yet, and has pods.
	exists bool
	pods   map[types.UID]*seat
	class  capacity.Class
	// used is the sum of what those pods hold.
	used fit.Use
}

// NewLedger makes an empty ledger.
func NewLedger(clock clock.PassiveClock) *Ledger {
	return &Ledger{
		held:      map[bool]prometheus.Gauge{true: seatsGauge.WithLabelValues("reserved"), false: seatsGauge.WithLabelValues("observed")},
		clock:     clock,
		seats:     map[types.UID]*seat{},
		cohorts:   map[Cohort]*cohort{},
		owners:    map[types.UID]*owner{},
		nodes:     map[string]*node{},
		members:   map[string]map[string]*node{},
		moved:     map[string]time.Time{},
		ready:     map[string]int{},
		avoided:   map[avoidance]penalty{},
		refused:   map[types.UID]time.Time{},
		remade:    map[types.UID]time.Time{},
		rounds:    map[types.UID]round{},
		disrupted: map[types.UID]time.Time{},
	}
}

// OnChange adds a handler. Call before the ledger is fed.
func (l *Ledger) OnChange(h Handler) { l.handlers = append(l.handlers, h) }

// Observe records what a pod is now. The pod is the ledger's from here on.
func (l *Ledger) Observe(pod *Pod) {
	l.mu.Lock()
	old := l.observeLocked(pod)
	l.mu.Unlock()
	l.notify(old, pod)
}

// Forget records that a pod is gone.
func (l *Ledger) Forget(uid types.UID) {
	l.mu.Lock()
	s := l.seats[uid]
	var old *Pod
	if s != nil {
		old = s.pod
		l.dropLocked(s)
	}
	delete(l.disrupted, uid)
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

func (l *Ledger) observeLocked(pod *Pod) (old *Pod) {
	key := Cohort{Owner: pod.Owner(), Revision: pod.Revision}
	for _, token := range []types.UID{pod.Seat, pod.Admission} {
		if taken := l.seats[token]; token != "" && taken != nil && taken.pod == nil {
			l.dropLocked(taken) // the pod counts under its UID from here on
		}
	}
	s := l.seats[pod.UID]
	if s != nil && s.cohort.key != key { // adopted by another owner
		old = s.pod
		l.dropLocked(s)
		s = nil
	}
	if s == nil {
		s = l.enterLocked(pod.UID, key)
	}
	l.shareLocked(pod, s.cohort)
	l.classifyLocked(pod)
	if s.pod != nil {
		old = s.pod
	}
	l.noteRefusalLocked(pod)
	l.seatedAnewLocked(pod)
	if s.pod == nil && pod.Gated && !pod.Pinned() {
		s.cohort.arrived()
	}
	l.placeLocked(s, pod)
	s.setActive(pod.Active)
	s.setGated(pod.Active && pod.Gated && !pod.Pinned())
	switch {
	case !pod.Active:
		l.unseatLocked(s)
	case pod.Node != "" || pod.Class != capacity.None:
		s.granted = capacity.None
		if !s.seated {
			l.settleLocked(s) // the class was all that was reserved
		}
	}
	switch {
	case !pod.Active:
	case pod.Node != "" && l.newcomerLocked(pod, l.nodeLocked(pod.Node)):
		l.seatLocked(s, pod.GroupStamp)
		l.reserveLocked(s, newcomerTTL) // until the node is labelled
	case pod.Node != "":
		l.seatLocked(s, l.nodeLocked(pod.Node).Group)
		l.settleLocked(s)
	case pod.Pinned():
		l.seatLocked(s, pod.GroupStamp)
		l.settleLocked(s)
	}
	if !pod.Active || pod.Restarting() {
		delete(l.disrupted, pod.UID) // the effect is seen on the pod itself from here on
	}
	l.countAvailableLocked(s)
	l.countClassLocked(s)
	return old
}

// placeLocked makes pod what is known of a seat's pod, nil for one that is gone,
// and keeps the books of the nodes where it was and where it is.
func (l *Ledger) placeLocked(s *seat, pod *Pod) {
	before := s.pod
	s.pod = pod
	if before != nil && pod != nil && before.Node == pod.Node && before.Finished == pod.Finished && before.demand() == pod.demand() {
		return
	}
	if before != nil && before.Node != "" {
		n := l.nodeLocked(before.Node)
		delete(n.pods, s.uid)
		if !before.Finished {
			n.used.Remove(before.demand())
		}
		if pod == nil || pod.Node != before.Node {
			l.leaveLocked(n)
		}
	}
	if pod != nil && pod.Node != "" {
		n := l.nodeLocked(pod.Node)
		n.pods[s.uid] = s
		if !pod.Finished {
			n.used.Add(pod.demand())
		}
	}
}

// Pod returns what was last seen of a pod, or nil.
func (l *Ledger) Pod(uid types.UID) *Pod {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.seats[uid]; s != nil {
		return s.pod
	}
	return nil
}

func (l *Ledger) nodeLocked(name string) *node {
	n := l.nodes[name]
	if n == nil {
		n = &node{Node: Node{Name: name}, pods: map[types.UID]*seat{}}
		l.nodes[name] = n
	}
	return n
}

func (l *Ledger) enterLocked(uid types.UID, key Cohort) *seat {
	c := l.cohorts[key]
	if c == nil {
		o := l.owners[key.Owner]
		if o == nil {
			o = &owner{cohorts: map[Cohort]*cohort{}}
			l.owners[key.Owner] = o
		}
		c = &cohort{key: key, owner: o, counts: map[string]int{}, seats: map[types.UID]*seat{}, reservations: map[types.UID]*seat{}}
		l.cohorts[key], o.cohorts[key] = c, c
	}
	s := &seat{uid: uid, cohort: c}
	l.seats[uid] = s
	c.seats[uid] = s
	s.setActive(true)
	return s
}

func (l *Ledger) dropLocked(s *seat) {
	l.unseatLocked(s)
	l.placeLocked(s, nil)
	l.countAvailableLocked(s)
	s.setActive(false)
	s.setGated(false)
	l.countClassLocked(s)
	if s.token {
		s.token = false
		s.cohort.unseen--
	}
	delete(l.seats, s.uid)
	delete(s.cohort.seats, s.uid)
	if len(s.cohort.seats) == 0 {
		key := s.cohort.key
		delete(l.cohorts, key)
		delete(s.cohort.owner.cohorts, key)
		if len(s.cohort.owner.cohorts) == 0 {
			delete(l.owners, key.Owner)
		}
	}
}

func (l *Ledger) seatLocked(s *seat, group string) {
	if s.seated {
		if s.group == group {
			return
		}
		l.unseatLocked(s)
	}
	s.seated, s.group = true, group
	l.held[s.reserved].Inc()
	s.cohort.seated++
	s.cohort.counts[group]++
	s.number = s.cohort.counts[group]
}

func (l *Ledger) unseatLocked(s *seat) {
	if s.seated {
		l.held[s.reserved].Dec()
		s.cohort.seated--
		s.cohort.counts[s.group]--
		if s.cohort.counts[s.group] == 0 {
			delete(s.cohort.counts, s.group)
		}
	}
	s.seated, s.group, s.reserved, s.binding = false, "", false, false
	delete(s.cohort.reservations, s.uid)
}

func (s *seat) setActive(active bool) {
	if active && !s.active {
		s.cohort.active++
	} else if !active && s.active {
		s.cohort.active--
	}
	s.active = active
}

func (s *seat) setGated(gated bool) {
	if gated && !s.gated {
		s.cohort.gated++
	} else if !gated && s.gated {
		s.cohort.gated--
	}
	s.gated = gated
}

// settleLocked ends a reservation without touching the seat.
func (l *Ledger) settleLocked(s *seat) {
	if s.seated && s.reserved {
		l.held[true].Dec()
		l.held[false].Inc()
	}
	s.reserved, s.binding = false, false
	delete(s.cohort.reservations, s.uid)
}
