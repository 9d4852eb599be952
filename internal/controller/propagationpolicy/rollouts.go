package propagationpolicy

import (
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// A workload of several revisions at once is in a rollout, which goes on, or
// which stands still: it is paused, or partial. One that goes on is left alone,
// for whatever is moved may be replaced a moment later. One that stands still is
// balanced, each revision on its own.

// rollouts remembers what was seen of workloads of several revisions. Safe for
// concurrent use; the zero value is empty.
type rollouts struct {
	mu sync.Mutex
	by map[types.UID]rollout
}

type rollout struct {
	pods  uint64    // which pods there are
	since time.Time // since when just these
	// surplus is what each cohort had too much when one of its pods was evicted last.
	surplus map[seats.Cohort]int
}

// settled tells whether a workload is as if it had one revision, or its rollout
// stands still: every owner has the pods that it wants, all of them do their work,
// or are in a group that is away, and none has come or gone for a time. left is
// what is left of that time; 0 if something else is missing.
func (m *rollouts) settled(o *observed, now time.Time, stabilization time.Duration) (ok bool, left time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(o.cohorts) <= 1 {
		delete(m.by, o.app.UID)
		return true, 0
	}
	seen := m.by[o.app.UID]
	if pods := podsOf(o.cohorts); seen.pods != pods || seen.since.IsZero() {
		seen.pods, seen.since = pods, now
	}
	if m.by == nil {
		m.by = map[types.UID]rollout{}
	}
	m.by[o.app.UID] = seen
	if !o.complete || !allWork(o) {
		return false, 0
	}
	left = seen.since.Add(stabilization).Sub(now)
	return left <= 0, left
}

// forget drops a workload.
func (m *rollouts) forget(app types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.by, app)
}

// failed tells whether a cohort has no fewer surplus pods than before the last
// eviction: the pod that came for it went where the other had been.
func (m *rollouts) failed(app types.UID, c seats.Cohort, surplus int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	before, moved := m.by[app].surplus[c]
	delete(m.by[app].surplus, c)
	return moved && surplus >= before
}

// moved notes that a pod of a cohort was evicted.
func (m *rollouts) moved(app types.UID, c seats.Cohort, surplus int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen, known := m.by[app]
	if !known {
		return // of one revision: it has no seat where the other was
	}
	if seen.surplus == nil {
		seen.surplus = map[seats.Cohort]int{}
	}
	seen.surplus[c] = surplus
	m.by[app] = seen
}

func podsOf(cohorts []seats.CohortView) uint64 {
	var uids []string
	for _, c := range cohorts {
		for _, pod := range c.Pods {
			uids = append(uids, string(pod.UID))
		}
	}
	slices.Sort(uids)
	h := fnv.New64a()
	for _, uid := range uids {
		_, _ = h.Write([]byte(uid + "\n")) // a hash never fails
	}
	return h.Sum64()
}

// allWork tells whether every pod does its work, or is where nobody expects it to.
func allWork(o *observed) bool {
	for _, c := range o.cohorts {
		for _, pod := range c.Pods {
			if !pod.Available() && (pod.Node == "" || !slices.Contains(o.spread.Away(), pod.Group)) {
				return false
			}
		}
	}
	return true
}

// standStill finds out whether a workload may be balanced.
func (r *Reconciler) standStill(a *appScope, policy *gm.PropagationPolicy) error {
	var left time.Duration
	a.balanced, left = r.rollouts.settled(&a.observed, r.Clock.Now(), policy.Spec.Rescheduling.Stabilization())
	if left <= 0 {
		return nil
	}
	return phase.Wait("the rollout to stand still", left)
}

// learn lets cohorts of a rollout that stands still avoid the groups that they
// lack pods in, if the last one that was moved did not come there: there are
// more reasons than we look at why a pod cannot. It tells whether there were any.
func (r *Reconciler) learn(a *appScope) (learned bool) {
	if !a.balanced || len(a.cohorts) <= 1 {
		return false
	}
	for _, c := range a.cohorts {
		if !r.rollouts.failed(a.app.UID, c.Cohort, a.plan.surplus[c.Cohort]) {
			continue
		}
		current := map[string]int{}
		for _, pod := range c.Pods {
			current[pod.Group]++
		}
		_, division := a.divide(c)
		for i, n := range division {
			if group := a.observed.spread.Groups()[i]; current[group] < n {
				r.Ledger.Avoid(c.Owner, group)
				learned = true
			}
		}
	}
	return learned
}
