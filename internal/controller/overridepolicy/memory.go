package overridepolicy

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/domain/replacement"
)

// memory holds what passes remember of workloads, by the UID of the workload. It is lost
// with the process. Safe for concurrent use; the zero value is empty.
type memory struct {
	mu sync.Mutex
	// bypasses has an entry for each workload of which pods were replaced.
	bypasses map[types.UID]*replacement.Bypass
}

// see records which new pods passed the pod webhook. It returns whether no more than one
// pod may be replaced, and how long none may: see replacement.Bypass.
func (m *memory) see(w *workload, now time.Time) (onlyOne bool, left time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	bypass := m.bypasses[w.object.UID]
	if bypass == nil {
		return false, 0
	}
	bypass.See(w.missedAt, w.admittedAt)
	return bypass.Pause(now)
}

// replaced records that a pod of a workload was replaced.
func (m *memory) replaced(w *workload, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	bypass := m.bypasses[w.object.UID]
	if bypass == nil {
		if m.bypasses == nil {
			m.bypasses = map[types.UID]*replacement.Bypass{}
		}
		bypass = &replacement.Bypass{}
		m.bypasses[w.object.UID] = bypass
	}
	bypass.Replaced(w.missedAt, w.admittedAt, now)
}

// forget drops a workload.
func (m *memory) forget(workload types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.bypasses, workload)
}
