package propagationpolicy

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/domain/placement"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/seats"
)

const (
	// firstReturn is how long no pod of a workload is evicted after the successor
	// of one came back to a group that has more than its share. It doubles each
	// time, and ends when one comes to where it is wanted.
	firstReturn = time.Minute
	// lastReturn bounds that.
	lastReturn = time.Hour
	// returnedMessage is what the status says meanwhile.
	returnedMessage = "pods are surplus and stay for now: the pods that replaced evicted ones came back to where those were; moved again later"
)

// returns remembers whether evictions of workloads of one revision were of use.
// The successor of an evicted pod is placed by another scheduler if ours is not
// asked about it. Safe for concurrent use; the zero value is empty.
type returns struct {
	mu sync.Mutex
	by map[types.UID]returned // by workload
}

// returned is what was seen of one workload.
//
// amiss is the number of pods that are not where they are wanted: on a node of a
// group with more than its share, or not on a node at all. An eviction leaves it
// as it is, and so does a pod that comes to a group that has its share; a pod
// that comes to a group that lacks one makes it smaller.
type returned struct {
	cohort   seats.Cohort
	spread   placement.Spread
	replicas int
	// gone are evicted pods that the ledger may still show on their node.
	gone map[types.UID]bool
	// expected are the pods without a node of which some replace evicted ones, and
	// evicted is how many do.
	expected, evicted int
	// amiss is the number when expected or evicted changed last.
	amiss int
	// failed is what it was when a pod came back, wait what followed from that.
	failed int
	wait   time.Duration
	until  time.Time
}

// see looks at where the successors of evicted pods are by now.
func (m *returns) see(o *observed, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, known := m.by[o.app.UID]
	if !known || len(o.cohorts) == 0 {
		return
	}
	c := o.cohorts[0]
	if len(o.cohorts) > 1 || e.cohort != c.Cohort || !e.spread.Equal(o.spread) {
		delete(m.by, o.app.UID) // they may go elsewhere now
		return
	}
	there := map[types.UID]bool{}
	for _, pod := range c.Pods {
		if e.gone[pod.UID] {
			there[pod.UID] = true
		}
	}
	e.gone = there
	amiss, coming := e.count(o, c)
	if amiss == 0 {
		delete(m.by, o.app.UID)
		return
	}
	if e.replicas != o.replicas { // what was counted before says nothing about now
		e.replicas, e.evicted, e.failed = o.replicas, 0, amiss
	}
	if e.wait > 0 && amiss < e.failed {
		e.wait, e.until = 0, time.Time{}
	}
	came := max(0, e.expected-coming)
	switch {
	case e.evicted == 0 || came == 0:
	case amiss >= e.amiss && !now.Before(e.until):
		e.wait = min(max(firstReturn, 2*e.wait), lastReturn)
		e.until, e.failed, e.evicted = now.Add(e.wait), amiss, 0 // the others that are on their way are judged with it
	default:
		e.evicted = max(0, e.evicted-came)
	}
	if e.evicted == 0 || came > 0 || coming > e.expected {
		e.expected, e.amiss = coming, amiss
	}
	m.by[o.app.UID] = e
}

// count returns the number of pods that are not where they are wanted, and how
// many of these have no node.
func (e *returned) count(o *observed, c seats.CohortView) (amiss, coming int) {
	total, division := o.divide(c)
	more := map[string]int{}
	coming = total
	for _, pod := range c.Pods {
		if pod.Node != "" && !e.gone[pod.UID] {
			more[pod.Group]++
			coming--
		}
	}
	for i, n := range division {
		more[o.spread.Groups()[i]] -= n
	}
	amiss = coming
	for _, n := range more {
		amiss += max(0, n)
	}
	return amiss, coming
}

// moved notes that a running pod was evicted.
func (m *returns) moved(o *observed, pod *seats.Pod) {
	if len(o.cohorts) != 1 || pod.Node == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e, known := m.by[o.app.UID]
	if !known {
		e = returned{cohort: o.cohorts[0].Cohort, spread: o.spread, replicas: o.replicas, gone: map[types.UID]bool{}}
	}
	e.gone[pod.UID] = true
	e.evicted++
	e.amiss, e.expected = e.count(o, o.cohorts[0])
	if m.by == nil {
		m.by = map[types.UID]returned{}
	}
	m.by[o.app.UID] = e
}

// pause tells whether the last pod that was moved came back. Then no pod is to be
// evicted while left is above 0. After that one is, and underWay is true until
// its successor has a node.
func (m *returns) pause(app types.UID, now time.Time) (left time.Duration, underWay, cameBack bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.by[app]
	return e.until.Sub(now), e.evicted > 0, e.wait > 0
}

// forget drops a workload.
func (m *returns) forget(app types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.by, app)
}

// mayMove tells which of the surplus pods may be evicted now.
func (r *Reconciler) mayMove(a *appScope) ([]*seats.Pod, error) {
	left, underWay, cameBack := r.returns.pause(a.app.UID, r.Clock.Now())
	switch {
	case !cameBack:
		return a.plan.evict, nil
	case left > 0:
		a.plan.spread.Message = returnedMessage
		return nil, phase.Wait("pods that were moved came back", left)
	case underWay:
		return nil, nil // its successor brings us back
	}
	return a.plan.evict[:1], nil
}
