package seats

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
)

// Reason says why a pod got no seat.
type Reason string

const (
	// Seated: the pod has its seat.
	Seated Reason = ""
	// NoGroup: no group of the policy has a node.
	NoGroup Reason = "no NodeGroup of the PropagationPolicy has a node"
	// NoSeatOpen: every group has its share of the pods.
	NoSeatOpen Reason = "every NodeGroup has its share of the workload's pods"
	// NoNodeInOpenGroup: of the groups that lack pods, no node can take this one.
	NoNodeInOpenGroup Reason = "no node that fits belongs to a NodeGroup that lacks pods of the workload"
)

// Request asks for a seat for a pod.
type Request struct {
	Pod    types.UID
	Cohort Cohort
	// Namespace of a pod that is being created: see lost.go.
	Namespace string
	// Token is what a seat that the pod got at creation is known by; "" if none.
	Token types.UID
	// Total is the number of pods that the cohort may come to have, as far as
	// its owners say; the ledger raises it to the number it knows of.
	Total int
	// Spread says how they divide.
	Spread placement.Spread
	// Nodes are the names of the nodes that could take the pod, where somebody
	// has found out.
	Nodes []string
	// Check, if not nil, tells which nodes the pod may go to at all. It is used
	// under the ledger's lock and by nobody else meanwhile.
	Check *fit.Check
}

// Reserve hands out the seat whose turn it is, among the groups that have one
// of the request's nodes, and returns its group. A reservation that the pod
// had before is given back first. Nothing is reserved unless the Reason is Seated.
func (l *Ledger) Reserve(r Request) (group string, why Reason) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.entryLocked(r)
	if l.claimLocked(s, r.Token) {
		return s.group, Seated
	}
	if s.seated && l.fixedLocked(s) {
		return s.group, Seated // bound already and the scheduler does not know yet, or seated at creation
	}
	l.unseatLocked(s)
	group, why = l.chooseLocked(s, r)
	if why != Seated {
		if s.pod == nil {
			l.dropLocked(s)
		}
		return "", why
	}
	l.seatLocked(s, group)
	l.reserveLocked(s, ReservationTTL)
	return group, Seated
}

// claimLocked gives a pod that was not seen yet the seat that was taken for it at
// its creation: kube-scheduler may see a pod before we do.
func (l *Ledger) claimLocked(s *seat, token types.UID) bool {
	taken := l.seats[token]
	if token == "" || s.pod != nil || taken == nil || taken.pod != nil || !taken.seated || taken.cohort != s.cohort {
		return false
	}
	group := taken.group
	l.dropLocked(taken)
	l.unseatLocked(s)
	l.seatLocked(s, group)
	l.reserveLocked(s, ReservationTTL)
	return true
}

// fixedLocked: the pod goes to no other group now. It is bound, or was seated at
// creation, or is being bound: what came of that may not have been seen yet,
// and another kube-scheduler may ask about the pod meanwhile.
func (l *Ledger) fixedLocked(s *seat) bool {
	return s.pod != nil && (s.pod.Node != "" || s.pod.Pinned()) || s.binding && l.clock.Now().Before(s.lapses)
}

// entryLocked is the entry of the request's pod, in the request's cohort.
func (l *Ledger) entryLocked(r Request) *seat {
	s := l.seats[r.Pod]
	if s != nil && s.cohort.key != r.Cohort {
		l.dropLocked(s)
		s = nil
	}
	if s == nil {
		s = l.enterLocked(r.Pod, r.Cohort)
	}
	return s
}

func (l *Ledger) reserveLocked(s *seat, ttl time.Duration) {
	if s.seated && !s.reserved {
		l.held[false].Dec()
		l.held[true].Inc()
	}
	s.reserved, s.namespace = true, ""
	s.lapses = l.clock.Now().Add(ttl)
	s.cohort.reservations[s.uid] = s
}

func (l *Ledger) chooseLocked(s *seat, r Request) (string, Reason) {
	groups := r.Spread.Groups()
	if len(groups) == 0 {
		return "", NoGroup
	}
	c := s.cohort
	l.lapseLocked(c)
	desired := c.divide(r.Spread, max(r.Total, c.active))
	for i, g := range groups {
		c.current[i] = c.counts[g]
		c.feasible[i] = false
	}
	l.markFeasibleLocked(c, groups, r.Nodes)
	if i := r.Spread.Next(desired, c.current, c.feasible); i >= 0 {
		return groups[i], Seated
	}
	for i := range groups {
		if c.current[i] < desired[i] {
			return "", NoNodeInOpenGroup
		}
	}
	return "", NoSeatOpen
}

// markFeasibleLocked marks the groups of the nodes. Nodes of one group tend to
// come one after another, and most calls find every group soon.
func (l *Ledger) markFeasibleLocked(c *cohort, groups []string, nodes []string) {
	left, last := len(groups), ""
	for _, name := range nodes {
		n := l.nodes[name]
		if n == nil || n.Group == "" || n.Group == last {
			continue
		}
		last = n.Group
		for i, g := range groups {
			if g == last && !c.feasible[i] {
				c.feasible[i] = true
				left--
			}
		}
		if left == 0 {
			return
		}
	}
}

// lapseLocked drops the cohort's reservations whose time is over.
func (l *Ledger) lapseLocked(c *cohort) {
	if len(c.reservations) == 0 {
		return
	}
	now := l.clock.Now()
	for _, s := range c.reservations {
		ends := s.lapses
		if s.namespace != "" {
			ends = ends.Add(lookTime) // before that a look ends it: see lost.go
		}
		if !now.Before(ends) {
			l.endLocked(s)
		}
	}
}

// endLocked drops a reservation.
func (l *Ledger) endLocked(s *seat) {
	switch {
	case s.pod == nil:
		l.dropLocked(s)
	case s.pod.Node != "": // the node did not join the group that the pod is pinned to
		l.seatLocked(s, l.nodeLocked(s.pod.Node).Group)
		l.settleLocked(s)
	default:
		l.unseatLocked(s)
		s.granted = capacity.None
		l.countClassLocked(s)
	}
}

// Lapse drops every reservation whose time is over, and what else is not true
// any more: that of cohorts and groups that nobody asks about would stay otherwise.
func (l *Ledger) Lapse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.cohorts {
		l.lapseLocked(c)
	}
	l.forgetWaitingLocked()
	now := l.clock.Now()
	for group, at := range l.moved {
		if now.Sub(at) > movedTTL {
			delete(l.moved, group)
		}
	}
	l.calmLocked()
}

func (c *cohort) divide(spread placement.Spread, total int) []int {
	if c.desired == nil || c.dividedTotal != total || !c.divided.Equal(spread) {
		c.divided, c.dividedTotal = spread, total
		c.desired = spread.Divide(total)
		c.current = make([]int, len(c.desired))
		c.feasible = make([]bool, len(c.desired))
	}
	return c.desired
}

// Confirm checks, before a pod is bound to a node, that it still holds a seat
// in the node's group, and keeps the seat until the pod is seen there: until
// then, until Release or until it lapses, the pod gets no other. A pod whose
// reservation lapsed takes the seat if the group still lacks pods.
func (l *Ledger) Confirm(r Request, nodeName string) Reason {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.entryLocked(r)
	group := ""
	if n := l.nodes[nodeName]; n != nil {
		group = n.Group
	}
	if s.seated && s.group == group {
		if s.reserved {
			l.reserveLocked(s, ReservationTTL)
			s.binding = true
		}
		return Seated
	}
	if l.fixedLocked(s) {
		return NoSeatOpen // it sits elsewhere
	}
	l.unseatLocked(s)
	why := l.openLocked(s.cohort, r, group)
	switch {
	case why == Seated:
		l.seatLocked(s, group)
		l.reserveLocked(s, ReservationTTL)
		s.binding = true
	case s.pod == nil:
		l.dropLocked(s)
	}
	return why
}

func (l *Ledger) openLocked(c *cohort, r Request, group string) Reason {
	l.lapseLocked(c)
	desired := c.divide(r.Spread, max(r.Total, c.active))
	for i, g := range r.Spread.Groups() {
		if g == group && group != "" {
			if c.counts[g] < desired[i] {
				return Seated
			}
			return NoSeatOpen
		}
	}
	return NoNodeInOpenGroup
}

// KeepSeat keeps the seat of a pod whose binding is done until the pod is seen on
// its node, however late that is: a view that lags must not make the seat look
// free again.
func (l *Ledger) KeepSeat(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.seats[uid]; s != nil && s.reserved {
		l.reserveLocked(s, boundTTL)
	}
}

// Release gives a reservation back. Seats of bound pods stay.
func (l *Ledger) Release(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.seats[uid]; s != nil && s.reserved {
		if s.pod == nil {
			l.dropLocked(s)
			return
		}
		l.unseatLocked(s)
	}
}
