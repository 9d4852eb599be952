// Package watched sends changes of objects through a controller's table of watches and
// records which requests they enqueue. No cluster is needed.
package watched

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/atoll-k8s/atoll/internal/machinery/watch"
)

// Queue is a workqueue that only records requests, delayed ones too. Any other method
// of the interface panics. The zero value is useful. It is not safe for concurrent use.
type Queue struct {
	workqueue.TypedRateLimitingInterface[ctrl.Request]
	requests []string
}

// Add records a request.
func (q *Queue) Add(r ctrl.Request) {
	q.requests = append(q.requests, strings.TrimPrefix(r.String(), "/"))
}

// AddAfter records a request.
func (q *Queue) AddAfter(r ctrl.Request, _ time.Duration) { q.Add(r) }

// Take returns the requests since the last call, as "namespace/name" or "name", sorted,
// each once and with a space between them.
func (q *Queue) Take() string {
	slices.Sort(q.requests)
	out := strings.Join(slices.Compact(q.requests), " ")
	q.requests = nil
	return out
}

// Send sends the event of a change through the watches of the object's kind. before is
// nil for an object that is created, after for one that is deleted.
func (q *Queue) Send(ctx context.Context, watches []watch.Watch, before, after client.Object) {
	kind := reflect.TypeOf(cmp.Or(before, after))
	for i := range watches {
		w := &watches[i]
		if reflect.TypeOf(w.Object) != kind {
			continue
		}
		h := w.Handler
		if h == nil {
			h = &handler.EnqueueRequestForObject{}
		}
		accepts := predicate.And(w.Predicates...)
		switch {
		case before == nil:
			if e := (event.CreateEvent{Object: after}); accepts.Create(e) {
				h.Create(ctx, e, q)
			}
		case after == nil:
			if e := (event.DeleteEvent{Object: before}); accepts.Delete(e) {
				h.Delete(ctx, e, q)
			}
		default:
			if e := (event.UpdateEvent{ObjectOld: before, ObjectNew: after}); accepts.Update(e) {
				h.Update(ctx, e, q)
			}
		}
	}
}
