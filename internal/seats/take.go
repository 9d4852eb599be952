package seats

import (
	"math"
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
	seen := l.survey(r)
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.entryLocked(r.Pod, r.Cohort)
	if l.classes != nil && r.Check != nil {
		demand := r.Check.Demand()
		s.only = l.classes.OfPod(demand.NodeSelector, demand.Affinity)
	}
	l.withoutClosedLocked(seen, s, r)
	i := -1
	if !s.cohort.tooManyUnseen(s, r.Total) {
		i = l.cohorts.turn(s.cohort, r, seen)
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

// survey is what the nodes of the groups have for a pod, by index of the group.
type survey struct {
	// reached: the pod may go to a node of the group at all.
	reached []bool
	// usable: the group is reached, its owner does not avoid it, and it is not filled by pods of
	// the workload that no node can have two of.
	usable []bool
	// roomy: it is usable, and has room now. What terminating pods use counts as room. The nodes
	// that pods on their way to the group will take count as taken only if no node can have two of
	// them; else a pod that finds no room waits, and another group is looked for.
	roomy []bool
	// open and room are numbers of nodes by class, see found. They are complete for a pod of
	// which no node can have two.
	open, room []byClass
}

// survey looks at the nodes of the groups. The demands of a pod may be long, so the mutex is
// held for reachSlice nodes at a time.
func (l *Ledger) survey(r Request) survey {
	groups := r.Spread.Groups()
	seen := survey{
		reached: make([]bool, len(groups)), usable: make([]bool, len(groups)), roomy: make([]bool, len(groups)),
		open: make([]byClass, len(groups)), room: make([]byClass, len(groups)),
	}
	var apart *fit.Domains
	need := 1
	switch {
	case len(groups) == 1:
		need = 0 // of one there is no choice
	case r.Check != nil && r.Check.Exclusive():
		apart, need = l.apart(r), math.MaxInt
	}
	for i, group := range groups {
		if r.Check == nil {
			seen.reached[i], seen.usable[i], seen.roomy[i] = true, true, true
			continue
		}
		f := found{apart: apart, need: need}
		l.look(&f, r, group)
		seen.reached[i], seen.usable[i], seen.open[i], seen.room[i] = f.reached, f.reached, f.open, f.room
		seen.roomy[i] = f.reached && f.room.sum() >= min(need, 1)
	}
	return seen
}

// apart returns the nodes that are too close to pods of the workload for another one; nil if the
// pod has no rule about that.
func (l *Ledger) apart(r Request) *fit.Domains {
	apart := r.Check.Separate()
	if apart == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, pods := range l.cohorts.podsByNode(r.owners(), "") {
		if n := l.nodes.byName[name]; n != nil {
			apart.Add(&n.Offer, true, pods)
		}
	}
	return apart
}

// look looks at the nodes of a group until f is done.
func (l *Ledger) look(f *found, r Request, group string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var others []string
	looked := 0
	l.nodes.look(f, group, r.Check, func(yield func(string) bool) {
		for name := range l.nodes.members[group] {
			if looked++; looked > reachSlice {
				others = append(others, name)
			} else if !yield(name) {
				return
			}
		}
	})
	for part := range slices.Chunk(others, reachSlice) {
		if f.done() {
			return
		}
		l.mu.Unlock()
		l.mu.Lock() // others may have held it in between
		l.nodes.look(f, group, r.Check, slices.Values(part))
	}
}

// withoutClosedLocked takes the groups out that the cohort's owner avoids, and, if no node can
// have two of its pods, those that these fill.
func (l *Ledger) withoutClosedLocked(seen survey, s *seat, r Request) {
	groups := r.Spread.Groups()
	for i, g := range groups {
		if l.waiting.avoids(r.Cohort, s.ofNodes(), g) {
			seen.usable[i], seen.roomy[i] = false, false
		}
	}
	if len(groups) == 1 || r.Check == nil || !r.Check.Exclusive() {
		return
	}
	coming, all, rollout := l.cohorts.byGroup(s, r)
	for i, g := range groups {
		if seen.room[i].without(coming[g]) > 0 {
			continue
		}
		seen.roomy[i] = false
		if rollout && seen.open[i].without(all[g]) <= 0 { // that one of them leaves is all that it can wait for
			seen.usable[i] = false
		}
	}
}

// byGroup counts by group the pods of a workload that have a seat, without the pod itself: all,
// and those that have no node yet. rollout is true if some are of other revisions.
func (cs *cohorts) byGroup(self *seat, r Request) (coming, all map[string]byClass, rollout bool) {
	coming, all = map[string]byClass{}, map[string]byClass{}
	add := func(to map[string]byClass, s *seat) {
		n := to[s.group]
		n[s.ofNodes()]++
		to[s.group] = n
	}
	for _, uid := range r.owners() {
		o := cs.byOwner[uid]
		if o == nil {
			continue
		}
		for _, c := range o.cohorts {
			for _, s := range c.seats {
				if !s.seated || !s.active || s == self {
					continue
				}
				rollout = rollout || c != self.cohort
				add(all, s)
				if s.pod == nil || s.pod.Node == "" {
					add(coming, s)
				}
			}
		}
	}
	return coming, all, rollout
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
	switch {
	case open && !dryRun:
		l.cohorts.promise(s, r.Namespace)
	case s.granted == capacity.None:
		l.dropLocked(s)
	}
	return open
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

// turn returns the index of the group that is next, or -1: first of the groups with room,
// then of the others. If no usable group lacks pods, the pod goes on loan to one that has room
// above its share, then to a group that its owner avoids, and last to one that it cannot
// reach.
func (cs *cohorts) turn(c *cohort, r Request, seen survey) int {
	cs.lapse(c)
	total := max(r.Total, c.active)
	desired := c.divide(r.Spread, total)
	for i, g := range r.Spread.Groups() {
		c.current[i] = c.counts[g]
	}
	own := func(groups []bool) int { return cs.next(c, r, desired, groups) }
	loan := func(groups []bool) int { return r.Spread.NextOnLoan(total, c.current, groups) }
	closed := slices.Contains(seen.usable, false)
	i := own(seen.roomy)
	if i < 0 {
		i = cs.besides(c, r, desired, seen)
	}
	if i < 0 {
		i = own(seen.usable)
	}
	if i < 0 && closed {
		i = loan(seen.roomy)
	}
	if i < 0 {
		i = own(seen.reached)
	}
	if i < 0 && closed {
		i = loan(seen.usable)
	}
	if i < 0 {
		i = r.Spread.Next(desired, c.current, nil)
	}
	return i
}

// besides returns the index of a group with room for a pod of a rollout that would have to wait
// for a pod of another revision to leave its group: of the groups that may have pods, the one
// that is least above its share. It returns -1 if the pod need not wait for that, or if no
// group has room. That other pod may be waiting for this one: then the rollout would stand
// still, although without groups it would not.
//
// The groups have no more pods above their share or max than the rollout surges by, and these
// are moved when the rollout is over.
func (cs *cohorts) besides(c *cohort, r Request, desired []int, seen survey) int {
	all, best, open := cs.countAll(c, r), -1, false
	if all == nil {
		return -1
	}
	for i, most := range r.Spread.Ceilings(max(r.Total, c.active)) {
		lacks := c.current[i] < desired[i]
		if lacks && seen.usable[i] && all[i] < desired[i] {
			return -1
		}
		open = open || lacks
		if seen.roomy[i] && most > 0 && (best < 0 || all[i]-desired[i] < all[best]-desired[best]) {
			best = i
		}
	}
	if !open {
		return -1 // the policy has no seat for it
	}
	return best
}

// Place reserves a seat in the group that is next for a pod that waits at our gate, for
// takeTTL: the caller pins the pod to that group. A caller that cannot do that calls again,
// and gets the same result.
func (l *Ledger) Place(r Request) (group string, why Reason) {
	groups := r.Spread.Groups()
	seen := l.survey(r)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(groups) == 0 {
		return "", NoGroup
	}
	s := l.cohorts.byPod[r.Pod]
	if s == nil || s.pod == nil || s.cohort.key != r.Cohort {
		return "", NoSeatOpen // it was deleted, or has another owner or revision now
	}
	l.withoutClosedLocked(seen, s, r)
	return l.cohorts.place(s, r, seen)
}

func (cs *cohorts) place(s *seat, r Request, seen survey) (group string, why Reason) {
	cs.lapse(s.cohort)
	if s.seated {
		if s.reserved {
			cs.promise(s, s.pod.Namespace)
		}
		return s.group, Seated
	}
	i := cs.turn(s.cohort, r, seen)
	if i < 0 {
		return "", NoSeatOpen
	}
	group = r.Spread.Groups()[i]
	cs.seat(s, group)
	cs.promise(s, s.pod.Namespace)
	return group, Seated
}
