package seats

import (
	"slices"
	"time"

	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
)

// takeTTL is how long a seat is kept for a pod that is being created, before
// somebody looks what became of it: one that others refuse, as for a quota, gives
// it back then.
const takeTTL = 10 * time.Second

// maxUnseen bounds the seats of one cohort that are kept for pods which nobody has
// seen yet, beyond as many as its owner wants. The API server shows a pod within
// moments of its creation; what asks for more is not creating any. How many pods
// there are does not matter: those that were deleted at once may not have been
// seen to go when their successors come.
const maxUnseen = 20

// Take hands out the seat whose turn it is to a pod that is being created, and
// returns its group. The pod is to carry the token, which stands for it in
// Request.Pod, and is known by it once it is seen. Request.Nodes is not looked
// at: groups that the owner avoids, or of which the pod may go to no node, get it
// only if no other can. A dry run
// answers the same and takes nothing.
func (l *Ledger) Take(r Request, dryRun bool) (group string, why Reason) {
	groups := r.Spread.Groups()
	if len(groups) == 0 {
		return "", NoGroup
	}
	if l.askedTooOften(r) {
		return "", NoSeatOpen
	}
	reached := l.reached(groups, r.Check)
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.entryLocked(r)
	i := -1
	if s.token || s.cohort.unseen < maxUnseen+r.Total {
		i = l.turnLocked(s.cohort, r, groups, reached)
	}
	if (i < 0 || dryRun) && s.granted == capacity.None {
		l.dropLocked(s)
	}
	if i < 0 {
		return "", NoSeatOpen
	}
	if !dryRun {
		l.takenLocked(s)
		l.seatLocked(s, groups[i])
		l.promiseLocked(s, r.Namespace)
	}
	return groups[i], Seated
}

// askedTooOften: more seats of the cohort are kept for pods that nobody has seen
// than its owner can make. A pod that is one of these already is asked about no
// more often.
func (l *Ledger) askedTooOften(r Request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.cohorts[r.Cohort]
	if c == nil || c.unseen < maxUnseen+r.Total {
		return false
	}
	s := c.seats[r.Pod]
	return s == nil || !s.token
}

// reachSlice is how many nodes are looked at before others get the lock.
const reachSlice = 64

// reached tells of each group whether the pod may go to one of its nodes at all.
// Others need the lock meanwhile, and what a pod demands may be long: it is held
// for a few nodes at a time.
func (l *Ledger) reached(groups []string, check *fit.Check) []bool {
	out := make([]bool, len(groups))
	for i, g := range groups {
		out[i] = check == nil || l.reaches(g, check)
	}
	return out
}

func (l *Ledger) reaches(group string, check *fit.Check) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	looked := 0
	var names []string
	for _, n := range l.members[group] {
		if looked++; looked <= reachSlice {
			if check.Reaches(&n.Offer) {
				return true
			}
			continue
		}
		names = append(names, n.Name)
	}
	for part := range slices.Chunk(names, reachSlice) {
		l.mu.Unlock()
		l.mu.Lock() // others may have had it in between
		for _, name := range part {
			if n := l.members[group][name]; n != nil && check.Reaches(&n.Offer) {
				return true
			}
		}
	}
	return false
}

// Admit tells whether a seat is open for a pod that is being created and gets
// it while it is scheduled: of a spread that bounds how many pods there are, no
// more pods go to the scheduler than find a seat. The pod is to carry the token,
// which stands for it in Request.Pod: it counts until the pod is seen, or for
// some seconds. A dry run answers the same and counts nothing.
func (l *Ledger) Admit(r Request, dryRun bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.entryLocked(r)
	open := l.admitsLocked(s.cohort, r)
	if !open || dryRun {
		l.dropLocked(s)
		return open
	}
	l.reserveLocked(s, takeTTL)
	return true
}

// CanUngate tells whether a pod that waits at our gate may go to the scheduler: what
// Admit tells of one that is being created. It counts as gone from then on, so
// that neither another at the gate nor a new one gets the same seat. A caller
// that fails to take the gate off asks again, and gets the same answer.
func (l *Ledger) CanUngate(r Request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.seats[r.Pod]
	if s == nil || !s.gated {
		return true
	}
	s.setGated(false)
	open := l.admitsLocked(s.cohort, r)
	s.setGated(!open)
	return open
}

// admitsLocked tells whether each of the cohort's pods that go to the scheduler,
// or are on their way there, finds a seat open.
func (l *Ledger) admitsLocked(c *cohort, r Request) bool {
	return l.openSeatsLocked(c, r) >= c.active-c.seated-c.gated
}

// turnLocked is the index of the group whose turn it is, -1 if there is none. A
// group that the owner avoids, or of which the pod may go to no node, comes after
// those that have their share: the pod is on loan there.
func (l *Ledger) turnLocked(c *cohort, r Request, groups []string, reached []bool) int {
	l.lapseLocked(c)
	desired := c.divide(r.Spread, max(r.Total, c.active))
	closed := false
	for i, g := range groups {
		c.current[i] = c.counts[g]
		c.feasible[i] = !l.avoidsLocked(c.key.Owner, g) && reached[i]
		closed = closed || !c.feasible[i]
	}
	if i := r.Spread.Next(desired, c.current, c.feasible); i >= 0 {
		return i
	}
	if closed {
		if i := r.Spread.NextOnLoan(max(r.Total, c.active), c.current, c.feasible); i >= 0 {
			return i // on loan
		}
	}
	return r.Spread.Next(desired, c.current, nil)
}

// Place gives a pod that waits at our gate the seat whose turn it is, for as long
// as it takes to pin the pod there. A caller that fails to do that asks again,
// and gets the same answer.
func (l *Ledger) Place(r Request) (group string, why Reason) {
	groups := r.Spread.Groups()
	reached := l.reached(groups, r.Check)
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.seats[r.Pod]
	switch {
	case len(groups) == 0:
		return "", NoGroup
	case s == nil || s.pod == nil || s.cohort.key != r.Cohort:
		return "", NoSeatOpen // it went, or is another's
	}
	l.lapseLocked(s.cohort)
	if s.seated {
		if s.reserved {
			l.promiseLocked(s, s.pod.Namespace)
		}
		return s.group, Seated
	}
	i := l.turnLocked(s.cohort, r, groups, reached)
	if i < 0 {
		return "", NoSeatOpen
	}
	l.seatLocked(s, groups[i])
	l.promiseLocked(s, s.pod.Namespace)
	return groups[i], Seated
}
