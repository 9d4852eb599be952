package seats

import (
	"slices"
	"time"

	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
)

// takeTTL is how long a seat is reserved for a pod that is being created before the Informer
// looks whether the pod was written. If the pod was refused, for example by a quota, the seat
// becomes free then.
const takeTTL = 10 * time.Second

// maxUnseen limits the entries of one cohort for pods in creation: Request.Total, plus
// maxUnseen. The watch shows a pod within moments of its creation, so a caller that requests
// more creates no pods. The number of existing pods does not count: when pods are deleted at
// once, requests for their successors may arrive before the watch shows the deletions.
const maxUnseen = 20

// Take reserves a seat in the group that is next for a pod that is being created, and
// returns the group. Request.Pod is a token: the caller must write it on the pod, as the
// Seat of Pod. Request.Nodes is not used. Groups that the owner avoids, or that have no
// node which the pod may go to, are chosen only if no other group can be. A dry run returns
// the same and reserves nothing.
func (l *Ledger) Take(r Request, dryRun bool) (group string, why Reason) {
	groups := r.Spread.Groups()
	if len(groups) == 0 {
		return "", NoGroup
	}
	if l.tooManyUnseen(r) {
		return "", NoSeatOpen
	}
	usable := l.reached(groups, r.Check)
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.entryLocked(r.Pod, r.Cohort)
	l.withoutAvoidedLocked(usable, groups, r.Cohort)
	i := -1
	if !s.cohort.tooManyUnseen(s, r.Total) {
		i = l.cohorts.turn(s.cohort, r, groups, usable)
	}
	if (i < 0 || dryRun) && s.granted == capacity.None {
		l.dropLocked(s)
	}
	if i < 0 {
		return "", NoSeatOpen
	}
	if !dryRun {
		l.cohorts.take(s, groups[i], r.Namespace)
	}
	return groups[i], Seated
}

// tooManyUnseen returns whether the cohort of a request already has the maximum of entries
// for pods in creation.
func (l *Ledger) tooManyUnseen(r Request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.cohorts.byKey[r.Cohort]
	return c != nil && c.tooManyUnseen(c.seats[r.Pod], r.Total)
}

// tooManyUnseen returns whether the cohort already has the maximum of entries for pods in
// creation. It is false for a pod that has one of these entries. s may be nil.
func (c *cohort) tooManyUnseen(s *seat, total int) bool {
	return c.unseen >= maxUnseen+total && (s == nil || !s.token)
}

// take reserves a seat for a pod that is being created.
func (cs *cohorts) take(s *seat, group, namespace string) {
	cs.markUnseen(s)
	cs.seat(s, group)
	cs.promise(s, namespace)
}

// markUnseen counts an entry as one of a pod in creation, which the watch has not shown yet.
func (cs *cohorts) markUnseen(s *seat) {
	if s.token {
		return
	}
	s.token = true
	s.cohort.unseen++
	s.cohort.arrived()
}

// reachSlice is how many nodes are checked before the mutex is released for others.
const reachSlice = 64

// reached returns, for each group, whether the pod may go to one of its nodes at all. The
// demands of a pod may be long, so the mutex is held for reachSlice nodes at a time.
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
	reached, others := l.nodes.reach(group, check, reachSlice)
	if reached {
		return true
	}
	for part := range slices.Chunk(others, reachSlice) {
		l.mu.Unlock()
		l.mu.Lock() // others may have held it in between
		if l.nodes.reachAny(group, check, part) {
			return true
		}
	}
	return false
}

// withoutAvoidedLocked sets usable to false for the groups that the cohort's owner avoids.
func (l *Ledger) withoutAvoidedLocked(usable []bool, groups []string, cohort Cohort) {
	for i, g := range groups {
		usable[i] = usable[i] && !l.waiting.avoids(cohort.Owner, g)
	}
}

// Admit returns whether a seat is open for a pod that is being created and that gets its seat
// while it is scheduled. It is used for spreads that limit the number of pods: only as many
// pods go to kube-scheduler as there are seats. Request.Pod is a token: the caller must write
// it on the pod, as the Admission of Pod. The pod counts until the watch shows it, or for
// takeTTL. A dry run returns the same and counts nothing.
func (l *Ledger) Admit(r Request, dryRun bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.entryLocked(r.Pod, r.Cohort)
	open := l.cohorts.admits(s.cohort, r)
	if !open || dryRun {
		l.dropLocked(s)
		return open
	}
	l.cohorts.reserveFor(s, takeTTL)
	return true
}

// CanUngate returns whether a pod that waits at our gate may go to kube-scheduler: what
// Admit returns for a pod in creation. From then on the pod counts as one that went, so
// that no other pod, at the gate or new, gets the same seat. A caller that cannot take the
// gate off calls again, and gets the same result.
func (l *Ledger) CanUngate(r Request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cohorts.canUngate(r)
}

func (cs *cohorts) canUngate(r Request) bool {
	s := cs.byPod[r.Pod]
	if s == nil || !s.gated {
		return true
	}
	s.setGated(false)
	open := cs.admits(s.cohort, r)
	s.setGated(!open)
	return open
}

// admits returns whether there are as many open seats as pods of the cohort that need one and
// are, or will be, at kube-scheduler.
func (cs *cohorts) admits(c *cohort, r Request) bool {
	return cs.openSeats(c, r) >= c.active-c.seated-c.gated
}

// turn returns the index of the group that is next, or -1. Groups that are not usable are
// next only if no usable group lacks pods and none may have more than its share: a pod that
// a usable group has above its share is on loan there.
func (cs *cohorts) turn(c *cohort, r Request, groups []string, usable []bool) int {
	cs.lapse(c)
	total := max(r.Total, c.active)
	desired := c.divide(r.Spread, total)
	for i, g := range groups {
		c.current[i] = c.counts[g]
	}
	if i := r.Spread.Next(desired, c.current, usable); i >= 0 {
		return i
	}
	if slices.Contains(usable, false) {
		if i := r.Spread.NextOnLoan(total, c.current, usable); i >= 0 {
			return i
		}
	}
	return r.Spread.Next(desired, c.current, nil)
}

// Place reserves a seat in the group that is next for a pod that waits at our gate, for
// takeTTL: the caller pins the pod to that group. A caller that cannot do that calls again,
// and gets the same result.
func (l *Ledger) Place(r Request) (group string, why Reason) {
	groups := r.Spread.Groups()
	usable := l.reached(groups, r.Check)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(groups) == 0 {
		return "", NoGroup
	}
	l.withoutAvoidedLocked(usable, groups, r.Cohort)
	return l.cohorts.place(r, groups, usable)
}

func (cs *cohorts) place(r Request, groups []string, usable []bool) (group string, why Reason) {
	s := cs.byPod[r.Pod]
	if s == nil || s.pod == nil || s.cohort.key != r.Cohort {
		return "", NoSeatOpen // it was deleted, or has another owner or revision now
	}
	cs.lapse(s.cohort)
	if s.seated {
		if s.reserved {
			cs.promise(s, s.pod.Namespace)
		}
		return s.group, Seated
	}
	i := cs.turn(s.cohort, r, groups, usable)
	if i < 0 {
		return "", NoSeatOpen
	}
	cs.seat(s, groups[i])
	cs.promise(s, s.pod.Namespace)
	return groups[i], Seated
}
