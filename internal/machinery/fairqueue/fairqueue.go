// Package fairqueue makes work queues in which namespaces take turns, so that a namespace
// with a thousand objects that change all the time delays the others by one pass at most.
// It depends on no kind.
package fairqueue

import (
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
)

// New returns a function for NewQueue in the options of a controller of controller-runtime.
// namespaceOf returns the namespace whose turn a request takes. It is called under the lock
// of the queue, so it must be fast and must not call the queue.
func New[R comparable](namespaceOf func(R) string) func(name string, limiter workqueue.TypedRateLimiter[R]) workqueue.TypedRateLimitingInterface[R] {
	return func(name string, limiter workqueue.TypedRateLimiter[R]) workqueue.TypedRateLimitingInterface[R] {
		queue := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[R]{Name: name, Queue: newTurns(namespaceOf)})
		delaying := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[R]{Name: name, Queue: queue})
		return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[R]{Name: name, DelayingQueue: delaying})
	}
}

// ByNamespace is New for requests that name an object.
func ByNamespace(name string, limiter workqueue.TypedRateLimiter[ctrl.Request]) workqueue.TypedRateLimitingInterface[ctrl.Request] {
	return New(func(r ctrl.Request) string { return r.Namespace })(name, limiter)
}

// turns is a workqueue.Queue. Requests of one namespace leave it in the order in which they
// came. Between two of one namespace, one of each other namespace that waits leaves it.
type turns[R comparable] struct {
	namespaceOf func(R) string
	// waiting has the requests of each namespace that has any, the first one first.
	waiting map[string][]R
	// order has these namespaces; the first one has the next turn.
	order []string
	count int
}

func newTurns[R comparable](namespaceOf func(R) string) *turns[R] {
	return &turns[R]{namespaceOf: namespaceOf, waiting: map[string][]R{}}
}

// Touch implements workqueue.Queue: a request that is added again keeps its place.
func (t *turns[R]) Touch(R) {}

// Push implements workqueue.Queue.
func (t *turns[R]) Push(r R) {
	namespace := t.namespaceOf(r)
	before, waits := t.waiting[namespace]
	if !waits {
		t.order = append(t.order, namespace)
	}
	t.waiting[namespace] = append(before, r)
	t.count++
}

// Len implements workqueue.Queue.
func (t *turns[R]) Len() int { return t.count }

// Pop implements workqueue.Queue. It must not be called if Len is 0.
func (t *turns[R]) Pop() R {
	namespace := t.order[0]
	t.order = t.order[1:]
	requests := t.waiting[namespace]
	r := requests[0]
	requests[0] = *new(R) // the array may live on
	if rest := requests[1:]; len(rest) > 0 {
		t.waiting[namespace] = rest
		t.order = append(t.order, namespace)
	} else {
		delete(t.waiting, namespace)
	}
	t.count--
	return r
}
