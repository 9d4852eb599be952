package overridepolicy

import (
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// tryTime is how long no pod of a workload is replaced after the last one, if
// its successor did not pass the pod webhook.
const tryTime = 5 * time.Minute

// errBypassed: a new pod would lack its overrides again, and be replaced again.
var errBypassed = errors.New("new pods do not pass the webhook of atoll-manager")

// bypasses knows the workloads whose new pods do not pass the pod webhook:
//
//	passes ──after a replacement, a pod is created without the webhook──► bypassed
//	bypassed ──a newer pod passed the webhook──► passes
//	bypassed ──tryTime since the last replacement──► one more pod is replaced
//
// It compares times of creation with each other only: the API server writes
// them, and its clock is not ours. Safe for concurrent use; the zero value is
// empty.
type bypasses struct {
	mu sync.Mutex
	by map[types.UID]bypass // by workload
}

type bypass struct {
	// replacedAt is when a pod of the workload was replaced last; zero once a new
	// pod has passed the webhook since.
	replacedAt time.Time
	// missedAt is when the newest pod known that did not pass the webhook was
	// created. In a workload that passes, those up to then are older than the
	// first replacement and say nothing about the webhook.
	missedAt time.Time
	// admittedAt is when the newest pod known that passed the webhook was created.
	admittedAt time.Time
	bypassed   bool
}

// check tells whether pods of a workload may be replaced now: left is for how
// long none may, and onlyOne that no more than one may. missedAt and admittedAt are
// when the newest pods were created that did not pass the webhook, and that did.
func (b *bypasses) check(app types.UID, missedAt, admittedAt, now time.Time) (onlyOne bool, left time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen, known := b.by[app]
	if !known {
		return false, 0
	}
	if admittedAt.After(seen.admittedAt) {
		seen.admittedAt, seen.replacedAt = admittedAt, time.Time{}
	}
	if missedAt.After(seen.missedAt) {
		seen.missedAt, seen.bypassed = missedAt, true
	}
	if admittedAt.After(seen.missedAt) {
		seen.bypassed = false
	}
	b.by[app] = seen
	if !seen.bypassed {
		return false, 0
	}
	return true, max(0, seen.replacedAt.Add(tryTime).Sub(now))
}

// replaced notes that a pod of a workload was replaced.
func (b *bypasses) replaced(app types.UID, missedAt, admittedAt, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen, known := b.by[app]
	if !known {
		seen.missedAt, seen.admittedAt = missedAt, admittedAt
	}
	seen.replacedAt = now
	if b.by == nil {
		b.by = map[types.UID]bypass{}
	}
	b.by[app] = seen
}

// forget drops a workload.
func (b *bypasses) forget(app types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.by, app)
}
