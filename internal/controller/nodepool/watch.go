package nodepool

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/atoll-k8s/atoll/internal/domain/attributes"
)

type queue = workqueue.TypedRateLimitingInterface[ctrl.Request]

// nodeEvents brings a node back when what it carries changed, and wakes the
// pools to which that or the node's readiness matters.
func (r *Reconciler) nodeEvents() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			if node, ok := e.Object.(*corev1.Node); ok {
				q.Add(requestFor(node))
				r.wake(r.moved(ctx, nil, node)...)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			before, beforeOK := e.ObjectOld.(*corev1.Node)
			node, ok := e.ObjectNew.(*corev1.Node)
			if !ok || !beforeOK {
				return
			}
			switch {
			case carriesOther(before, node):
				q.Add(requestFor(node))
				r.wake(r.moved(ctx, before, node)...)
			case isReady(before) != isReady(node):
				r.wake(r.moved(ctx, node, node)...)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			if node, ok := e.Object.(*corev1.Node); ok {
				q.Add(requestFor(node))
				r.wake(r.moved(ctx, node, nil)...)
			}
		},
	}
}

// poolEvents brings nodes back that a change of a pool matters to.
func (r *Reconciler) poolEvents() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			r.index.invalidate()
			r.enqueueNodes(ctx, e.Object, q)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			if !poolChanged(e.ObjectOld, e.ObjectNew) {
				return
			}
			r.index.invalidate()
			r.enqueueNodes(ctx, e.ObjectNew, q)
			r.wake(e.ObjectNew.GetName())
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			r.index.invalidate()
			r.enqueueNodes(ctx, e.Object, q)
		},
	}
}

// poolChanged tells a change that can matter to nodes from one of status.
func poolChanged(before, after client.Object) bool {
	return before.GetUID() != after.GetUID() || before.GetGeneration() != after.GetGeneration() ||
		(before.GetDeletionTimestamp() == nil) != (after.GetDeletionTimestamp() == nil) ||
		!slices.Equal(before.GetFinalizers(), after.GetFinalizers())
}

func requestFor(o client.Object) ctrl.Request {
	return ctrl.Request{NamespacedName: types.NamespacedName{Name: o.GetName()}}
}

// carriesOther tells whether something changed that a pool could have given.
func carriesOther(a, b *corev1.Node) bool {
	return a.UID != b.UID || !maps.Equal(a.Labels, b.Labels) || !maps.Equal(a.Annotations, b.Annotations) ||
		!equality.Semantic.DeepEqual(a.Spec.Taints, b.Spec.Taints)
}

func isReady(n *corev1.Node) bool {
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// moved notes whom a node concerned and whom it does now, and names all of
// them. The node is nil before it was created and after it was deleted.
func (r *Reconciler) moved(ctx context.Context, before, after *corev1.Node) []string {
	pools, err := r.index.pools(ctx, r.Client)
	if err != nil {
		return nil // the cache is not started yet: every pool is reconciled when it is
	}
	var name string
	var sides [2][]string
	for i, node := range []*corev1.Node{before, after} {
		if node == nil {
			continue
		}
		name = node.Name
		sides[i] = pools.concerned(attributes.Read(node)) // not the index: this may be an old version
		if before == after {
			return sides[i]
		}
	}
	pools.move(name, sides[0], sides[1])
	return slices.Concat(sides[0], sides[1])
}

// enqueueNodes brings all nodes back that the pool has, had or selects.
func (r *Reconciler) enqueueNodes(ctx context.Context, o client.Object, q queue) {
	pools, err := r.index.pools(ctx, r.Client)
	if err != nil {
		return // the cache is not started yet: every node is reconciled when it is
	}
	var nodes corev1.NodeList
	if err := r.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return
	}
	pool, exists := pools.Get(o.GetName())
	for i := range nodes.Items {
		node := &nodes.Items[i]
		read := r.index.read(node)
		if read.Incumbent() == o.GetName() || read.Label() == o.GetName() || exists && pool.Selects(read.OwnLabels()) {
			q.Add(requestFor(node))
		}
	}
}
