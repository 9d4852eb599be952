package seats

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// firstRound is how long a round of MayRecreateGated lasts: pods that were created after it began
	// may be recreated when it ends. Each round in which no successor gets a seat doubles it,
	// up to maxRound.
	firstRound = 2 * time.Second
	maxRound   = 5 * time.Minute
	// retryOpen is after how long the caller of MayRecreateGated checks again whether a seat is open.
	retryOpen = 5 * time.Second
)

// round is when pods of an owner at our gate began to be recreated, and for how long pods
// that were created later are not.
type round struct {
	began time.Time
	span  time.Duration
}

func (r round) ends() time.Time { return r.began.Add(r.span) }

// MayRecreateGated returns whether a pod that waits at our gate may be recreated, and if not,
// after how long to call again. created is when the pod was created. If the spread has groups,
// a seat must be open for the successor, in addition to those that other successors will take.
//
// All pods that were created before a round began may be recreated in it. Their successors
// wait for the next round. Each round is longer than the one before, because the reason why
// pods get no seat may last. A successor is expected until it requests a seat, until the
// watch shows it at the gate, or for takeTTL; see CancelRecreation.
func (l *Ledger) MayRecreateGated(r Request, created time.Time) (may bool, after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.cohorts.byKey[r.Cohort]
	counted := c != nil && len(r.Spread.Groups()) > 0
	if counted && l.cohorts.openBeyondComing(c, r) <= 0 {
		return false, retryOpen
	}
	may, after = l.waiting.mayRenew(r.Cohort.Owner, created)
	if may && counted {
		l.cohorts.expect(c)
	}
	return may, after
}

// mayRenew returns whether a pod of an owner that was created at that time may be recreated
// in the current round, and if not, when the round ends. It begins a round if none is
// running, or if created is in a round that has ended.
func (w *waiting) mayRenew(owner types.UID, created time.Time) (may bool, after time.Duration) {
	now := w.clock.Now()
	last, known := w.rounds[owner]
	if known && created.Before(last.began) {
		return true, 0
	}
	if known && now.Before(last.ends()) {
		return false, last.ends().Sub(now)
	}
	next := round{began: now.Truncate(time.Second), span: firstRound} // creation times are whole seconds
	if known && now.Before(last.ends().Add(maxRound)) {
		next.span = min(2*last.span, maxRound)
	}
	w.rounds[owner] = next
	if !created.Before(next.began) {
		return false, next.ends().Sub(now)
	}
	return true, 0
}

// CancelRecreation takes back a permission of MayRecreateGated: the caller did not delete the pod.
func (l *Ledger) CancelRecreation(r Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cohorts.unexpect(r.Cohort)
}

// openBeyondComing returns the number of open seats that no expected successor will take.
func (cs *cohorts) openBeyondComing(c *cohort, r Request) int {
	now := cs.clock.Now()
	for len(c.coming) > 0 && !now.Before(c.coming[0]) {
		c.coming = c.coming[1:]
	}
	r.Total = max(r.Total, c.active+len(c.coming)) // the deleted pods are not active any more
	return cs.openSeats(c, r) - len(c.coming)
}

// expect records that a successor is expected, for takeTTL.
func (cs *cohorts) expect(c *cohort) {
	c.coming = append(c.coming, cs.clock.Now().Add(takeTTL))
}

// unexpect takes the last expect back.
func (cs *cohorts) unexpect(key Cohort) {
	if c := cs.byKey[key]; c != nil && len(c.coming) > 0 {
		c.coming = c.coming[:len(c.coming)-1]
	}
}

// arrived records that an expected successor has arrived.
func (c *cohort) arrived() {
	if len(c.coming) > 0 {
		c.coming = c.coming[1:]
	}
}
