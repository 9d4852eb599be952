package propagationpolicy

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/domain/placement/rebalance"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// memory holds what passes remember of workloads, by the UID of the workload. It is lost
// with the process. Safe for concurrent use; the zero value is empty.
type memory struct {
	mu sync.Mutex
	// rollouts has an entry for each workload of several revisions.
	rollouts map[types.UID]*rebalance.Rollout
	// returns has an entry for each workload of which pods were evicted, until its pods
	// are where they are wanted.
	returns map[types.UID]*rebalance.Returns
}

// settled returns whether a workload has one revision or its rollout stands still, and
// otherwise how long it must stay as it is; 0 if time alone changes nothing.
func (m *memory) settled(w *workload, now time.Time, stabilization time.Duration) (ok bool, left time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(w.Cohorts) <= 1 {
		delete(m.rollouts, w.Object.UID)
		return true, 0
	}
	rollout := m.rollouts[w.Object.UID]
	if rollout == nil {
		if m.rollouts == nil {
			m.rollouts = map[types.UID]*rebalance.Rollout{}
		}
		rollout = &rebalance.Rollout{}
		m.rollouts[w.Object.UID] = rollout
	}
	return rollout.Settled(&w.Observed, now, stabilization)
}

// failed returns whether the last eviction in a rollout that stands still was of no use:
// see rebalance.Rollout.
func (m *memory) failed(w *workload) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	rollout := m.rollouts[w.Object.UID]
	return rollout != nil && rollout.Failed(w.plan.Surplus)
}

// see looks where the successors of evicted pods are by now.
func (m *memory) see(w *workload, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	returns := m.returns[w.Object.UID]
	if returns == nil {
		return
	}
	if returns.See(&w.Observed, now); returns.IsZero() {
		delete(m.returns, w.Object.UID)
	}
}

// evicted records that a pod was evicted.
func (m *memory) evicted(w *workload, pod *seats.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if rollout := m.rollouts[w.Object.UID]; rollout != nil {
		rollout.Evicted(w.plan.Surplus)
	}
	if pod.Node == "" || len(w.Cohorts) != 1 {
		return
	}
	returns := m.returns[w.Object.UID]
	if returns == nil {
		if m.returns == nil {
			m.returns = map[types.UID]*rebalance.Returns{}
		}
		returns = &rebalance.Returns{}
		m.returns[w.Object.UID] = returns
	}
	returns.Evicted(&w.Observed, pod.UID)
}

// pause is rebalance.Returns.Pause for one workload.
func (m *memory) pause(workload types.UID, now time.Time) (left time.Duration, underWay, cameBack bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	returns := m.returns[workload]
	if returns == nil {
		return 0, false, false
	}
	return returns.Pause(now)
}

// forget drops a workload.
func (m *memory) forget(workload types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.rollouts, workload)
	delete(m.returns, workload)
}
