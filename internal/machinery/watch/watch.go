// Package watch declares what a controller watches as a table. SetupWithManager adds
// the table to the controller's builder, and a unit test sends changes through the same
// table: internal/testing/watched. The package depends on no kind.
package watch

import (
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// Watch is one kind of object that a controller watches.
type Watch struct {
	// Object is an empty object of the kind.
	Object client.Object
	// Handler makes requests from an event. Nil marks the kind that the controller
	// reconciles: a change enqueues the changed object itself. A table has at most one
	// such kind.
	Handler handler.EventHandler
	// Predicates must all accept an event, or Handler does not get it.
	Predicates []predicate.Predicate
}

// Add adds the watches to a controller's builder and returns the builder.
func Add(b *builder.Builder, watches []Watch) *builder.Builder {
	for i := range watches {
		w := &watches[i]
		if w.Handler == nil {
			b.For(w.Object, builder.WithPredicates(w.Predicates...))
		} else {
			b.Watches(w.Object, w.Handler, builder.WithPredicates(w.Predicates...))
		}
	}
	return b
}
