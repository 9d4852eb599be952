package seats

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A reservation for a pod that is being created, or taken off our gate, ends when
// the watch shows the pod. Where it does not within takeTTL, the pod was refused by
// somebody, or the watch is behind. The two look alike from here, and taking the one
// for the other gives a seat to two pods. So a list is looked at, which is never
// behind, before the reservation is dropped.

// lookTime is how long an overdue reservation is kept where nobody could look.
const lookTime = time.Minute

// promiseLocked reserves a seat, or a class, for a pod that is being written.
func (l *Ledger) promiseLocked(s *seat, namespace string) {
	l.reserveLocked(s, takeTTL)
	s.namespace = namespace
}

// overdue: the reservation's time is over, and a list has to say what became of
// its pod.
func (s *seat) overdue(now time.Time) bool {
	return s.namespace != "" && !now.Before(s.lapses)
}

// Overdue returns, by namespace, the tokens and the UIDs of pods that should have
// been seen with what was reserved for them, and were not.
func (l *Ledger) Overdue() map[string][]types.UID {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	out := map[string][]types.UID{}
	for _, c := range l.cohorts {
		for _, s := range c.reservations {
			if s.overdue(now) {
				out[s.namespace] = append(out[s.namespace], s.uid)
			}
		}
	}
	return out
}

// Looked takes note of what a list that began after Overdue shows: reservations of
// pods that were written are kept until the watch shows them too, all others end.
func (l *Ledger) Looked(overdue []types.UID, written func(types.UID) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	for _, uid := range overdue {
		s := l.seats[uid]
		switch {
		case s == nil || !s.reserved || !s.overdue(now): // seen meanwhile
		case written(uid):
			l.promiseLocked(s, s.namespace)
		default:
			l.endLocked(s)
		}
	}
}
