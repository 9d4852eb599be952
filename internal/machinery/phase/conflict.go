package phase

import (
	"context"
	"sync"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// conflictFirst and conflictLast bound how long a request waits that met a
// conflict. The first is soon seen to be over; one that lasts is somebody's who
// writes all the time, or a cache that stands still.
const conflictFirst, conflictLast = 50 * time.Millisecond, 5 * time.Second

// attempt is the place of one pass among those that met conflicts, in its context.
type attempt struct {
	// before is how many passes in a row met one.
	before int
	// conflict: this one does too.
	conflict bool
}

type attemptKey struct{}

// Backoff makes a reconciler, whose passes Run runs, wait twice as long after
// each conflict in a row.
func Backoff[R comparable](inner reconcile.TypedReconciler[R]) reconcile.TypedReconciler[R] {
	return &backoff[R]{inner: inner, inARow: map[R]int{}}
}

type backoff[R comparable] struct {
	inner reconcile.TypedReconciler[R]

	mu sync.Mutex
	// inARow counts conflicts; a request without one has no entry.
	inARow map[R]int
}

// Reconcile implements reconcile.TypedReconciler.
func (b *backoff[R]) Reconcile(ctx context.Context, request R) (ctrl.Result, error) {
	b.mu.Lock()
	a := &attempt{before: b.inARow[request]}
	b.mu.Unlock()
	result, err := b.inner.Reconcile(context.WithValue(ctx, attemptKey{}, a), request)
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.conflict {
		b.inARow[request] = a.before + 1
	} else {
		delete(b.inARow, request)
	}
	return result, err
}

// conflicted notes that a pass met a conflict, and returns how long to wait.
func conflicted(ctx context.Context) time.Duration {
	a, counted := ctx.Value(attemptKey{}).(*attempt)
	if !counted {
		return conflictFirst
	}
	a.conflict = true
	const doublings = 7 // from the first to more than the last
	return min(conflictLast, conflictFirst<<min(a.before, doublings))
}
