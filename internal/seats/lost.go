package seats

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A reservation for a pod that is being created, or taken off our gate, ends when the watch
// shows the pod. If the watch does not show it within takeTTL, either the API server
// refused the pod or the watch is behind. The ledger cannot distinguish the two, and if it
// dropped the reservation while the watch is behind, two pods would get the same seat. So
// before a reservation is dropped, the Informer lists the pods: a list is never behind.

// lookTime is how long an expired reservation is kept if the Informer cannot list pods.
const lookTime = time.Minute

// promise reserves a seat, a class, or both, for a pod that is being written.
func (cs *cohorts) promise(s *seat, namespace string) {
	cs.reserveFor(s, takeTTL)
	s.namespace = namespace
}

// overdue returns whether the reservation has expired and a list must show whether its pod
// was written.
func (s *seat) overdue(now time.Time) bool {
	return s.namespace != "" && !now.Before(s.lapses)
}

// overdue is Overdue of the Ledger.
func (cs *cohorts) overdue() map[string][]types.UID {
	now := cs.clock.Now()
	out := map[string][]types.UID{}
	for _, c := range cs.byKey {
		for _, s := range c.reservations {
			if s.overdue(now) {
				out[s.namespace] = append(out[s.namespace], s.uid)
			}
		}
	}
	return out
}

// looked is RecordLookup of the Ledger.
func (cs *cohorts) looked(overdue []types.UID, written func(types.UID) bool) {
	now := cs.clock.Now()
	for _, uid := range overdue {
		s := cs.byPod[uid]
		switch {
		case s == nil || !s.reserved || !s.overdue(now): // observed in the meantime
		case written(uid):
			cs.promise(s, s.namespace)
		default:
			cs.end(s)
		}
	}
}

// Overdue returns, by namespace, the pods that the watch should have shown by now with what
// is reserved for them: the tokens of pods in creation, and the UIDs of others.
func (l *Ledger) Overdue() map[string][]types.UID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cohorts.overdue()
}

// RecordLookup records the result of a list that began after Overdue. Reservations of pods that
// were written are extended, until the watch shows these pods too. All other overdue ones
// end.
func (l *Ledger) RecordLookup(overdue []types.UID, written func(types.UID) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cohorts.looked(overdue, written)
}
