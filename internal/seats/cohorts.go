package seats

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
)

// cohorts holds the entries of all pods and their seats, and divides the seats of each cohort
// over groups and capacity classes. The Ledger's mutex guards it.
//
// Invariants: an entry is in byPod and in the seats of its cohort. A cohort has at least one
// entry, an owner at least one cohort. The numbers in a cohort are those of its entries.
type cohorts struct {
	clock clock.PassiveClock
	// nodes is read only: the group and the class of a node.
	nodes *nodes
	// held counts seats: under true the reserved ones, under false the observed ones.
	held    map[bool]prometheus.Gauge
	byPod   map[types.UID]*seat
	byKey   map[Cohort]*cohort
	byOwner map[types.UID]*owner
}

// seat is the entry of a pod. While seated is true it holds a seat in group.
type seat struct {
	uid    types.UID // of the pod, or the token of a pod that is not created yet
	pod    *Pod      // last observed state; nil until the watch has shown the pod
	cohort *cohort
	// seated: the entry counts in group. A bound pod on a node without a group is
	// seated in "".
	seated   bool
	group    string
	reserved bool
	binding  bool      // reserved, and being bound to a node of group: see Confirm
	number   int       // number of seats in the group when this one was taken, itself included
	lapses   time.Time // when a reservation expires
	// namespace is the one in which the Informer looks for the pod when the reservation has
	// expired (see lost.go); "" if it does not look.
	namespace string
	active    bool           // counts in its cohort's active
	token     bool           // counts in its cohort's unseen
	gated     bool           // counts in its cohort's gated
	granted   capacity.Class // reserved for a pod that the watch has not shown with it yet
	class     capacity.Class // counts in its cohort's classes under this
	// only is the class to which the pod was restricted before it requested a seat: that of a
	// StatefulSet's pod follows from its name.
	only capacity.Class
}

// ofNodes is the class of the nodes that the pod is for; None if it may go to all.
func (s *seat) ofNodes() capacity.Class { return max(s.class, s.only) }

// owner is a direct owner of pods.
type owner struct {
	cohorts map[Cohort]*cohort
}

type cohort struct {
	key     Cohort
	owner   *owner
	counts  map[string]int // seats by group, reserved ones included
	seats   map[types.UID]*seat
	like    *Pod   // last observed pod of the cohort: see intern
	active  int    // entries of pods that are active, or not observed yet
	seated  int    // entries with a seat
	gated   int    // entries of pods that wait at our gate for a seat
	classes [3]int // active entries by class of capacity
	unseen  int    // entries of pods in creation, which the watch has not shown yet
	// coming holds, for each successor of a deleted pod that had waited at our gate, until
	// when it is expected. Oldest first.
	coming []time.Time
	// reservations are the entries with reserved set.
	reservations map[types.UID]*seat
	// divided, dividedTotal and desired are the last division: most calls of a burst need the
	// same one.
	divided      placement.Spread
	dividedTotal int
	desired      []int
	current      []int  // scratch, as long as desired
	feasible     []bool // scratch, as long as desired
}

func newCohorts(clock clock.PassiveClock, nodes *nodes) *cohorts {
	return &cohorts{
		clock: clock, nodes: nodes,
		held:    map[bool]prometheus.Gauge{true: seatsGauge.WithLabelValues("reserved"), false: seatsGauge.WithLabelValues("observed")},
		byPod:   map[types.UID]*seat{},
		byKey:   map[Cohort]*cohort{},
		byOwner: map[types.UID]*owner{},
	}
}

// entry returns the entry of a pod, or of a token; nil if there is none.
func (cs *cohorts) entry(uid types.UID) *seat { return cs.byPod[uid] }

// pod returns the last observed state of a pod, or nil.
func (cs *cohorts) pod(uid types.UID) *Pod {
	if s := cs.byPod[uid]; s != nil {
		return s.pod
	}
	return nil
}

// enter adds an entry for a pod that has none.
func (cs *cohorts) enter(uid types.UID, key Cohort) *seat {
	c := cs.byKey[key]
	if c == nil {
		o := cs.byOwner[key.Owner]
		if o == nil {
			o = &owner{cohorts: map[Cohort]*cohort{}}
			cs.byOwner[key.Owner] = o
		}
		c = &cohort{key: key, owner: o, counts: map[string]int{}, seats: map[types.UID]*seat{}, reservations: map[types.UID]*seat{}}
		cs.byKey[key], o.cohorts[key] = c, c
	}
	s := &seat{uid: uid, cohort: c}
	cs.byPod[uid] = s
	c.seats[uid] = s
	s.setActive(true)
	return s
}

// drop removes an entry, and with it a cohort and an owner that have no other. The entry of
// a pod that was observed is dropped by Ledger.dropLocked, which also updates nodes and
// disruptions.
func (cs *cohorts) drop(s *seat) {
	cs.unseat(s)
	s.pod = nil
	s.setActive(false)
	s.setGated(false)
	cs.countClass(s)
	if s.token {
		s.token = false
		s.cohort.unseen--
	}
	delete(cs.byPod, s.uid)
	delete(s.cohort.seats, s.uid)
	if len(s.cohort.seats) == 0 {
		key := s.cohort.key
		delete(cs.byKey, key)
		delete(s.cohort.owner.cohorts, key)
		if len(s.cohort.owner.cohorts) == 0 {
			delete(cs.byOwner, key.Owner)
		}
	}
}

// dropTokens drops the entries under which a pod was counted while it was being created. From
// now on it is counted under its UID.
func (cs *cohorts) dropTokens(pod *Pod) {
	for _, token := range []types.UID{pod.Seat, pod.Admission} {
		if taken := cs.byPod[token]; token != "" && taken != nil && taken.pod == nil {
			cs.drop(taken)
		}
	}
}

// observe records the observed state of a pod in its entry. The pod is on its node in nodes
// already.
func (cs *cohorts) observe(s *seat, pod *Pod) {
	if s.pod == nil && pod.Gated && !pod.Pinned() {
		s.cohort.arrived()
	}
	s.pod = pod
	s.setActive(pod.Active)
	s.setGated(pod.Active && pod.Gated && !pod.Pinned())
	switch {
	case !pod.Active:
		cs.unseat(s)
	case pod.Node != "" || pod.Class != capacity.None:
		s.granted = capacity.None
		if !s.seated {
			cs.settle(s) // only the class was reserved
		}
	}
	switch {
	case !pod.Active:
	case pod.Node != "" && cs.nodes.isNewcomer(pod):
		cs.seat(s, pod.GroupStamp)
		cs.reserveFor(s, newcomerTTL) // until the node gets its label
	case pod.Node != "":
		cs.seat(s, cs.nodes.group(pod.Node))
		cs.settle(s)
	case pod.Pinned():
		cs.seat(s, pod.GroupStamp)
		cs.settle(s)
	}
	cs.countClass(s)
}

// nodeChanged updates the entry of a pod whose node has another group or class now. It
// returns the pod's owner.
func (cs *cohorts) nodeChanged(uid types.UID, change *nodeChange) (owner types.UID) {
	s := cs.byPod[uid]
	if change.regrouped() && s.seated {
		cs.seat(s, change.after.Group)
		cs.settle(s)
	}
	cs.countClass(s)
	return s.cohort.key.Owner
}

// seat gives an entry a seat in a group, in place of the one that it has. If that is in the
// same group, nothing changes.
func (cs *cohorts) seat(s *seat, group string) {
	if s.seated {
		if s.group == group {
			return
		}
		cs.unseat(s)
	}
	s.seated, s.group = true, group
	cs.held[s.reserved].Inc()
	s.cohort.seated++
	s.cohort.counts[group]++
	s.number = s.cohort.counts[group]
}

// unseat takes the seat and the reservation of an entry, if it has them.
func (cs *cohorts) unseat(s *seat) {
	if s.seated {
		cs.held[s.reserved].Dec()
		s.cohort.seated--
		s.cohort.counts[s.group]--
		if s.cohort.counts[s.group] == 0 {
			delete(s.cohort.counts, s.group)
		}
	}
	s.seated, s.group, s.reserved, s.binding = false, "", false, false
	delete(s.cohort.reservations, s.uid)
}

// reserveFor makes an entry's seat reserved, until ttl from now. An entry without a seat is
// reserved too: it counts as active until then. The Informer looks for the pod before it loses
// a class that was granted to it, but not if only the seat is reserved.
func (cs *cohorts) reserveFor(s *seat, ttl time.Duration) {
	if s.seated && !s.reserved {
		cs.held[false].Dec()
		cs.held[true].Inc()
	}
	if s.reserved = true; s.granted == capacity.None {
		s.namespace = ""
	}
	s.lapses = cs.clock.Now().Add(ttl)
	s.cohort.reservations[s.uid] = s
}

// settle makes an entry's seat observed.
func (cs *cohorts) settle(s *seat) {
	if s.seated && s.reserved {
		cs.held[true].Dec()
		cs.held[false].Inc()
	}
	s.reserved, s.binding = false, false
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

// lapseAll drops the expired reservations of all cohorts.
func (cs *cohorts) lapseAll() {
	for _, c := range cs.byKey {
		cs.lapse(c)
	}
}

// lapse drops the expired reservations of a cohort.
func (cs *cohorts) lapse(c *cohort) {
	if len(c.reservations) == 0 {
		return
	}
	now := cs.clock.Now()
	for _, s := range c.reservations {
		ends := s.lapses
		if s.namespace != "" {
			ends = ends.Add(lookTime) // until then the Informer's look may end it: see lost.go
		}
		if !now.Before(ends) {
			cs.end(s)
		}
	}
}

// end ends a reservation that has expired, and what was reserved with it.
func (cs *cohorts) end(s *seat) {
	switch {
	case s.pod == nil:
		cs.drop(s)
	case s.pod.Node != "": // the node did not join the group that the pod is pinned to
		cs.seat(s, cs.nodes.group(s.pod.Node))
		cs.settle(s)
	default:
		cs.unseat(s)
		s.granted = capacity.None
		cs.countClass(s)
	}
}

// divide returns how many of total pods each group of the spread is to have.
func (c *cohort) divide(spread placement.Spread, total int) []int {
	if c.desired == nil || c.dividedTotal != total || !c.divided.Equal(spread) {
		c.divided, c.dividedTotal = spread, total
		c.desired = spread.Divide(total)
		c.current = make([]int, len(c.desired))
		c.feasible = make([]bool, len(c.desired))
	}
	return c.desired
}

// openSeats returns the number of seats of a cohort that no pod holds.
func (cs *cohorts) openSeats(c *cohort, r Request) int {
	cs.lapse(c)
	desired := c.divide(r.Spread, max(r.Total, c.active))
	open := 0
	for i, g := range r.Spread.Groups() {
		open += max(0, desired[i]-c.counts[g])
	}
	return open
}

// open is openSeats for the request's cohort. A cohort without pods has all its seats open.
func (cs *cohorts) open(r Request) int {
	c := cs.byKey[r.Cohort]
	if c == nil {
		return r.Total
	}
	return cs.openSeats(c, r)
}
