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
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
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
	// slow is how long requests wait whose passes took long.
	slow map[R]time.Duration
	// running: all that a reconcile reads is known, and All has come.
	running bool
}

// Running tells whether the controller runs, or is about to with all there is:
// what changes from here on has to be added.
func (s *Source[R]) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// Add asks for a reconcile. It never blocks.
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
	// rest is how many times as long as a pass took the next one of its kind
	// waits: passes over many things, which are woken all the time while those
	// change, take no more than a twentieth of a core.
	rest = 20
	// longestRest bounds that: a pass may have taken long for another reason.
	longestRest = 2 * time.Second
)

// Took notes how long a pass computed. A nil source notes nothing.
func (s *Source[R]) Took(r R, pass time.Duration) {
	if s == nil {
		return // nobody is woken
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

// Handler adds the watched object to the source, where it waits for more of its kind.
func Handler(s *Source[reconcile.Request]) handler.EventHandler {
	return handler.Funcs{UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		s.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(e.ObjectNew)})
	}}
}

// StatusWritten is true for updates that change nothing but the status or the
// metadata of an object. Whoever writes a status hears of it, for it may have
// been written from a cache that did not know the one before.
var StatusWritten = predicate.Funcs{
	CreateFunc:  func(event.CreateEvent) bool { return false },
	DeleteFunc:  func(event.DeleteEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetGeneration() == e.ObjectNew.GetGeneration() && e.ObjectOld.GetResourceVersion() != e.ObjectNew.GetResourceVersion()
	},
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
