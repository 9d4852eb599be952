package seats

import "time"

const (
	// firstRound is how long after pods at the gate were made anew their successors
	// may be, should they come to the gate as well. It doubles with each round
	// in which none of them got a seat, up to maxRound.
	firstRound = 2 * time.Second
	maxRound   = 5 * time.Minute
	// retryOpen is how soon is looked again whether a seat is open.
	retryOpen = 5 * time.Second
)

// round is when pods of an owner at our gate began to be made anew, and for how
// long pods created since then are not.
type round struct {
	began time.Time
	span  time.Duration
}

func (r round) ends() time.Time { return r.began.Add(r.span) }

// Renew tells whether a pod that waits at our gate may be made anew, and when to
// ask again if not. A seat must be open for the next one, beside those that
// others on their way will take; a spread without groups needs none. All pods
// that were created before a round may be made anew in it. Their successors wait
// for the next round, and that comes later and later: what keeps them from a
// seat may last. The successor of a pod that may be made anew is on its way
// until it asks for a seat, is seen at the gate, or takeTTL is over; see Stay.
func (l *Ledger) Renew(r Request, created time.Time) (may bool, after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.cohorts[r.Cohort]
	counted := c != nil && len(r.Spread.Groups()) > 0
	if counted && l.openAnewLocked(c, r) <= 0 {
		return false, retryOpen
	}
	now := l.clock.Now()
	last, known := l.rounds[r.Cohort.Owner]
	if known && !created.Before(last.began) && now.Before(last.ends()) {
		return false, last.ends().Sub(now)
	}
	if !known || !created.Before(last.began) {
		next := round{began: now.Truncate(time.Second), span: firstRound} // as times of creation are
		if known && now.Before(last.ends().Add(maxRound)) {
			next.span = min(2*last.span, maxRound)
		}
		l.rounds[r.Cohort.Owner] = next
		if !created.Before(next.began) {
			return false, next.ends().Sub(now)
		}
	}
	if counted {
		c.coming = append(c.coming, now.Add(takeTTL))
	}
	return true, 0
}

// Stay takes back that Renew let a pod be made anew, which it was not.
func (l *Ledger) Stay(r Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.cohorts[r.Cohort]; c != nil && len(c.coming) > 0 {
		c.coming = c.coming[:len(c.coming)-1]
	}
}

// openAnewLocked is the number of open seats that nobody on the way will take.
func (l *Ledger) openAnewLocked(c *cohort, r Request) int {
	now := l.clock.Now()
	for len(c.coming) > 0 && !now.Before(c.coming[0]) {
		c.coming = c.coming[1:]
	}
	r.Total = max(r.Total, c.active+len(c.coming)) // those that went are not active any more
	return l.openSeatsLocked(c, r) - len(c.coming)
}

// arrived: one that was on its way has come.
func (c *cohort) arrived() {
	if len(c.coming) > 0 {
		c.coming = c.coming[1:]
	}
}

// seatedAnewLocked ends the rounds of an owner that gets pods as they are wanted.
func (l *Ledger) seatedAnewLocked(pod *Pod) {
	if last, known := l.rounds[pod.Owner()]; known && (pod.Pinned() || pod.CreatedFor != "") && !pod.Created.Before(last.began) {
		delete(l.rounds, pod.Owner())
	}
}

// forgetRoundsLocked drops what is over.
func (l *Ledger) forgetRoundsLocked() {
	now := l.clock.Now()
	for owner, r := range l.rounds {
		if now.After(r.ends().Add(maxRound)) {
			delete(l.rounds, owner)
		}
	}
}
