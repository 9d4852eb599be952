// Package trigger starts reconciles from changes that no informer of the
// manager sees: those of the owners' walk and of the ledger. It knows no kind.
package trigger

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// Source is a source of requests for a controller (controller-runtime's
// source.TypedSource). Requests that come before the controller runs, as on a
// replica that does not lead, are dropped: All brings everything once it does.
type Source[R comparable] struct {
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
	s.queue = queue
	s.mu.Unlock()
	if s.All != nil {
		for _, r := range s.All() {
			queue.Add(r)
		}
	}
	return nil
}
