// Package trigger starts reconciles from changes that no informer of the
// manager sees: those of the owners' walk and of the ledger. It knows no kind.
package trigger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
)

// syncInterval is how often is looked whether a source is synced.
const syncInterval = 10 * time.Millisecond

// Source is a source of requests for a controller (controller-runtime's
// source.TypedSyncingSource). Requests that come before the controller runs, as
// on a replica that does not lead, are dropped: All brings everything once it does.
type Source[R comparable] struct {
	// Synced tells whether all is known that a reconcile reads; the controller
	// does nothing before. May be nil.
	Synced func() bool
	// All lists what is to be reconciled when the controller starts. May be nil.
	All func() []R
	// Debounce is how long a request waits for more of its kind. 0 is none.
	Debounce time.Duration

	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[R]
}

// Add asks for a reconcile. It never blocks.
func (s *Source[R]) Add(requests ...R) {
	s.mu.Lock()
	queue := s.queue
	s.mu.Unlock()
	if queue == nil {
		return
	}
	for _, r := range requests {
		queue.AddAfter(r, s.Debounce)
	}
}

// Start implements source.TypedSource.
func (s *Source[R]) Start(_ context.Context, queue workqueue.TypedRateLimitingInterface[R]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = queue
	return nil
}

// WaitForSync implements source.TypedSyncingSource. A program that stops while
// it waits is no error.
func (s *Source[R]) WaitForSync(ctx context.Context) error {
	err := wait.PollUntilContextCancel(ctx, syncInterval, true, func(context.Context) (bool, error) {
		return s.Synced == nil || s.Synced(), nil
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("waiting for what reconciles read: %w", err)
	}
	if s.All != nil {
		for _, r := range s.All() {
			s.queue.Add(r)
		}
	}
	return nil
}
