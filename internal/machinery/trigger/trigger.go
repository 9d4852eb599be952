// Package trigger triggers reconciles after changes that no informer of the manager
// reports: those of the owners' Walker and of the ledger of seats. It depends on no kind.
package trigger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// syncInterval is the interval of the checks whether a source is synced.
const syncInterval = 10 * time.Millisecond

// Source is a source of requests for one controller; it implements controller-runtime's
// source.TypedSyncingSource. Requests that are added before the controller starts, as on a
// replica that is not the leader, are dropped: All lists everything when it starts. The
// exported fields must not change after the start. Safe for concurrent use.
type Source[R comparable] struct {
	// Synced returns whether the caches that a reconcile reads are filled. The controller
	// reconciles nothing before. nil means that they are.
	Synced func() bool
	// All lists the requests to reconcile when the controller starts. nil lists none.
	All func() []R
	// Debounce delays each request, so that equal requests become one. 0 means no delay.
	Debounce time.Duration

	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[R]
	// slow is the delay of requests whose last pass took long (see Took).
	slow map[R]time.Duration
	// running: Synced has returned true. All is read right after.
	running bool
}

// Running returns whether the controller has started. A change before that needs no Add,
// because All is read afterwards.
func (s *Source[R]) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// Add adds requests to the controller's queue, after their delay. It never blocks on a
// reconcile.
func (s *Source[R]) Add(requests ...R) {
	for _, r := range requests {
		s.mu.Lock()
		queue, after := s.queue, max(s.Debounce, s.slow[r])
		s.mu.Unlock()
		if queue != nil {
			queue.AddAfter(r, after)
		}
	}
}

const (
	// rest is the delay of a request in multiples of the duration of its last pass. Passes
	// over many objects, which change all the time, take no more than a twentieth of a core
	// so.
	rest = 20
	// longestRest bounds that delay: a pass may have taken long for another reason.
	longestRest = 2 * time.Second
)

// Took records how long the computing of a pass took, which delays the next request of its
// kind. A nil source records nothing.
func (s *Source[R]) Took(r R, pass time.Duration) {
	if s == nil {
		return // the reconciler runs without a controller, as in tests
	}
	after := min(rest*pass, longestRest)
	s.mu.Lock()
	defer s.mu.Unlock()
	if after <= s.Debounce {
		delete(s.slow, r)
		return
	}
	if s.slow == nil {
		s.slow = map[R]time.Duration{}
	}
	s.slow[r] = after
}

// Start implements source.TypedSource.
func (s *Source[R]) Start(_ context.Context, queue workqueue.TypedRateLimitingInterface[R]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = queue
	return nil
}

// Handler adds the watched object to the source when it is updated. Unlike a handler that
// adds to the queue, this applies the delays of the source.
func Handler(s *Source[reconcile.Request]) handler.EventHandler {
	return handler.Funcs{UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		s.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(e.ObjectNew)})
	}}
}

// StatusWritten passes updates that leave the generation as it is: those of the status or
// the metadata of an object. A controller watches the status that it writes itself,
// because it may have computed the status from a cache that had not seen the previous one.
var StatusWritten = predicate.Funcs{
	CreateFunc:  func(event.CreateEvent) bool { return false },
	DeleteFunc:  func(event.DeleteEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetGeneration() == e.ObjectNew.GetGeneration() && e.ObjectOld.GetResourceVersion() != e.ObjectNew.GetResourceVersion()
	},
}

// WaitForSync implements source.TypedSyncingSource. It returns nil if ctx is canceled,
// because a program that stops while it waits has not failed.
func (s *Source[R]) WaitForSync(ctx context.Context) error {
	err := wait.PollUntilContextCancel(ctx, syncInterval, true, func(context.Context) (bool, error) {
		return s.Synced == nil || s.Synced(), nil
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("waiting for the caches that reconciles read: %w", err)
	}
	s.mu.Lock()
	s.running = true
	s.mu.Unlock()
	if s.All != nil {
		for _, r := range s.All() {
			s.queue.Add(r)
		}
	}
	return nil
}
