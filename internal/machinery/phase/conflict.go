package phase

import (
	"context"
	"sync"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// conflictFirst is the delay of a request after a first conflict, conflictLast the bound
// of the delay. A conflict usually ends once the cache has seen the other write. One that
// lasts comes from a client that writes all the time, or from a cache that is not updated.
const conflictFirst, conflictLast = 50 * time.Millisecond, 5 * time.Second

// attempt counts the conflicts of a request in a row. The context of a pass holds it.
type attempt struct {
	// before is how many passes before this one ended with a conflict.
	before int
	// conflict: this pass has a conflict too.
	conflict bool
}

type attemptKey struct{}

// Backoff wraps a reconciler that uses Run, and doubles the delay of a request after each
// conflict in a row, from 50 ms to 5 s. Without Backoff each conflict delays the request
// by 50 ms.
func Backoff[R comparable](inner reconcile.TypedReconciler[R]) reconcile.TypedReconciler[R] {
	return &backoff[R]{inner: inner, inARow: map[R]int{}}
}

type backoff[R comparable] struct {
	inner reconcile.TypedReconciler[R]

	mu sync.Mutex
	// inARow is the number of conflicts in a row. A request whose last pass had none has no
	// entry.
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

// conflicted records that a pass had a conflict, and returns the delay of its request.
func conflicted(ctx context.Context) time.Duration {
	a, counted := ctx.Value(attemptKey{}).(*attempt)
	if !counted {
		return conflictFirst
	}
	a.conflict = true
	const doublings = 7 // conflictFirst<<7 is more than conflictLast
	return min(conflictLast, conflictFirst<<min(a.before, doublings))
}
