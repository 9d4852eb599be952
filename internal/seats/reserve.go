package seats

import (
	"iter"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
)

// Reason is why a pod got no seat.
type Reason string

const (
	// Seated: the pod has its seat.
	Seated Reason = ""
	// NoGroup: no group of the policy has a node.
	NoGroup Reason = "no NodeGroup of the PropagationPolicy has a node"
	// NoSeatOpen: every group has its share of the pods.
	NoSeatOpen Reason = "every NodeGroup has its share of the workload's pods"
	// NoNodeInOpenGroup: no node that can take the pod is in a group that lacks pods.
	NoNodeInOpenGroup Reason = "no node that fits belongs to a NodeGroup that lacks pods of the workload"
)

// Request is a request for a seat for a pod.
type Request struct {
	// Pod is the pod's UID, or the token of a pod that is being created.
	Pod    types.UID
	Cohort Cohort
	// Namespace is that of a pod that is being created. It is used to find the pod if the
	// watch does not show it in time: see lost.go.
	Namespace string
	// Token identifies the seat that the pod got at creation; "" if it got none.
	Token types.UID
	// Total is the number of pods that the cohort may have, as its owners state it. If the
	// ledger has more active pods of the cohort, that number is used.
	Total int
	// Workload are all direct owners of pods of the workload, the cohort's included. nil
	// means that there is no other.
	Workload []types.UID
	// Spread divides the pods over the groups.
	Spread placement.Spread
	// Nodes are the names of the nodes that can take the pod, from kube-scheduler. Only
	// Reserve reads them.
	Nodes []string
	// Check returns which nodes the pod may go to at all; nil means all. Only Take and Place
	// use it. It is used under the ledger's mutex, and must not be used elsewhere meanwhile.
	Check *fit.Check
}

// owners returns Workload, or the cohort's owner.
func (r *Request) owners() []types.UID {
	if r.Workload == nil {
		return []types.UID{r.Cohort.Owner}
	}
	return r.Workload
}

// Reserve reserves a seat in the group that is next, of those groups that have one of the
// request's nodes, and returns the group. An earlier reservation of the pod is dropped first.
// If the Reason is not Seated, nothing is reserved. A pod that is bound, that got its seat at
// creation or that is being bound keeps the seat that it has.
func (l *Ledger) Reserve(r Request) (group string, why Reason) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cohorts.reserve(l.entryLocked(r.Pod, r.Cohort), r)
}

func (cs *cohorts) reserve(s *seat, r Request) (group string, why Reason) {
	if cs.claim(s, r.Token) || s.seated && cs.fixed(s) {
		return s.group, Seated
	}
	cs.unseat(s)
	group, why = cs.choose(s, r)
	if why != Seated {
		cs.giveUp(s)
		return "", why
	}
	cs.seat(s, group)
	cs.reserveFor(s, ReservationTTL)
	return group, Seated
}

// claim gives a pod that was not observed yet the seat that was taken under its token when it
// was created. kube-scheduler's watch may show a pod before ours does.
func (cs *cohorts) claim(s *seat, token types.UID) bool {
	taken := cs.byPod[token]
	if token == "" || s.pod != nil || taken == nil || taken.pod != nil || !taken.seated || taken.cohort != s.cohort {
		return false
	}
	group, class, namespace := taken.group, taken.granted, taken.namespace
	cs.drop(taken)
	cs.unseat(s)
	cs.seat(s, group)
	s.granted, s.namespace = class, namespace
	cs.countClass(s)
	cs.reserveFor(s, ReservationTTL)
	return true
}

// giveUp takes the seat of an entry, and drops the entry if it holds nothing else. A class that
// was granted to a pod in creation stays granted.
func (cs *cohorts) giveUp(s *seat) {
	namespace := s.namespace
	cs.unseat(s)
	switch {
	case s.pod != nil:
	case s.granted == capacity.None:
		cs.drop(s)
	default:
		cs.promise(s, namespace)
	}
}

// fixed returns whether the pod cannot go to another group any more. It is bound, or was
// seated at creation, or is being bound. In the last case the watch may not have shown the
// result yet, and another kube-scheduler may send requests for the pod.
func (cs *cohorts) fixed(s *seat) bool {
	return s.pod != nil && (s.pod.Node != "" || s.pod.Pinned()) || s.binding && cs.clock.Now().Before(s.lapses)
}

// choose returns the group that is next for an entry without a seat.
func (cs *cohorts) choose(s *seat, r Request) (string, Reason) {
	groups := r.Spread.Groups()
	if len(groups) == 0 {
		return "", NoGroup
	}
	c := s.cohort
	cs.lapse(c)
	desired := c.divide(r.Spread, max(r.Total, c.active))
	for i, g := range groups {
		c.current[i] = c.counts[g]
		c.feasible[i] = false
	}
	cs.markFeasible(c, groups, r.Nodes)
	if i := cs.next(c, r, desired, c.feasible); i >= 0 {
		return groups[i], Seated
	}
	for i := range groups {
		if c.current[i] < desired[i] {
			return "", NoNodeInOpenGroup
		}
	}
	return "", NoSeatOpen
}

// next returns the index of the group, of the feasible ones, that gets the next pod of a
// cohort; -1 if none lacks pods. In a rollout, groups that lack pods over all revisions come
// first: the successor of a pod takes the seat that this pod left, and not one in a group
// whose nodes the pods of other revisions still use.
func (cs *cohorts) next(c *cohort, r Request, desired []int, feasible []bool) int {
	if all := cs.countAll(c, r); all != nil {
		lacking := make([]bool, len(all))
		for i := range all {
			lacking[i] = feasible[i] && all[i] < desired[i]
		}
		if i := r.Spread.Next(desired, c.current, lacking); i >= 0 {
			return i
		}
	}
	return r.Spread.Next(desired, c.current, feasible)
}

// countAll returns the number of pods of all revisions of the workload in each group; nil if
// there is one revision only.
func (cs *cohorts) countAll(c *cohort, r Request) (all []int) {
	for other := range cs.siblings(c, r.owners()) {
		cs.lapse(other)
		if all == nil {
			all = slices.Clone(c.current)
		}
		for i, g := range r.Spread.Groups() {
			all[i] += other.counts[g]
		}
	}
	return all
}

// siblings are the other cohorts of a cohort's workload.
func (cs *cohorts) siblings(c *cohort, owners []types.UID) iter.Seq[*cohort] {
	return func(yield func(*cohort) bool) {
		for _, uid := range owners {
			o := cs.byOwner[uid]
			if o == nil {
				continue
			}
			for _, other := range o.cohorts {
				if other != c && !yield(other) {
					return
				}
			}
		}
	}
}

// markFeasible marks the groups of the nodes. It is fast for most calls: nodes of one group
// are often adjacent, and it returns when all groups are marked.
func (cs *cohorts) markFeasible(c *cohort, groups []string, nodes []string) {
	left, last := len(groups), ""
	for _, name := range nodes {
		group := cs.nodes.group(name)
		if group == "" || group == last {
			continue
		}
		last = group
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

// Confirm checks, before a pod is bound to a node, that the pod still holds a seat in the
// node's group. If so, the seat is reserved for this binding: until the watch shows the pod
// on its node, until Release, or until the reservation expires, the pod gets no other seat.
// A pod whose reservation has expired gets a seat if the group still lacks pods.
func (l *Ledger) Confirm(r Request, nodeName string) Reason {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cohorts.confirm(l.entryLocked(r.Pod, r.Cohort), r, l.nodes.group(nodeName))
}

func (cs *cohorts) confirm(s *seat, r Request, group string) Reason {
	if s.seated && s.group == group {
		if s.reserved {
			cs.reserveFor(s, ReservationTTL)
			s.binding = true
		}
		return Seated
	}
	if cs.fixed(s) {
		return NoSeatOpen // its seat is in another group
	}
	cs.unseat(s)
	why := cs.hasOpen(s.cohort, r, group)
	if why != Seated {
		cs.giveUp(s)
		return why
	}
	cs.seat(s, group)
	cs.reserveFor(s, ReservationTTL)
	s.binding = true
	return Seated
}

// hasOpen returns Seated if a group lacks pods of the cohort, or else why there is no seat.
func (cs *cohorts) hasOpen(c *cohort, r Request, group string) Reason {
	cs.lapse(c)
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

// KeepSeat extends the reservation of a pod that was bound, by boundTTL: the watch may be far
// behind, and the seat must not become free for another pod before it shows the pod.
func (l *Ledger) KeepSeat(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cohorts.keep(uid)
}

func (cs *cohorts) keep(uid types.UID) {
	if s := cs.byPod[uid]; s != nil && s.reserved {
		cs.reserveFor(s, boundTTL)
	}
}

// Release drops a reservation: of a pod its seat, of a token all of it. An observed seat stays.
func (l *Ledger) Release(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cohorts.release(uid)
}

func (cs *cohorts) release(uid types.UID) {
	s := cs.byPod[uid]
	switch {
	case s == nil || !s.reserved:
	case s.token:
		cs.drop(s)
	default:
		cs.giveUp(s)
	}
}
