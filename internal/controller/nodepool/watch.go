package nodepool

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	nodeutil "k8s.io/component-helpers/node/util"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/attributes"
	"github.com/atoll-k8s/atoll/internal/machinery/watch"
)

type queue = workqueue.TypedRateLimitingInterface[ctrl.Request]

// poolWatches returns which changes start a pass over a NodePool. nodeEvents and
// poolEvents enqueue more pools, with enqueuePools.
func (r *Reconciler) poolWatches() []watch.Watch {
	return []watch.Watch{{Object: &apps.NodePool{}}}
}

// nodeWatches returns which changes start a pass over a node.
func (r *Reconciler) nodeWatches() []watch.Watch {
	return []watch.Watch{
		{Object: &corev1.Node{}, Handler: r.nodeEvents()},
		{Object: &apps.NodePool{}, Handler: r.poolEvents()},
	}
}

// nodeEvents enqueues a node when its labels, annotations or taints changed. It
// enqueues the pools that the node concerns when these or the node's readiness changed.
func (r *Reconciler) nodeEvents() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			if node, ok := e.Object.(*corev1.Node); ok {
				q.Add(requestFor(node))
				r.enqueuePools(r.moved(ctx, nil, node)...)
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
				r.enqueuePools(r.moved(ctx, before, node)...)
			case isReady(before) != isReady(node):
				r.enqueuePools(r.moved(ctx, node, node)...)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			if node, ok := e.Object.(*corev1.Node); ok {
				q.Add(requestFor(node))
				r.enqueuePools(r.moved(ctx, node, nil)...)
			}
		},
	}
}

// poolEvents enqueues the nodes that a change of a pool concerns.
func (r *Reconciler) poolEvents() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			r.index.invalidate()
			r.enqueueNodes(ctx, e.Object, q)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			switch changed, finalizers := poolChanged(e.ObjectOld, e.ObjectNew); {
			case changed:
				r.index.invalidate()
			case !finalizers:
				return
			}
			r.enqueueNodes(ctx, e.ObjectNew, q)
			r.enqueuePools(e.ObjectNew.GetName())
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			r.index.invalidate()
			r.enqueueNodes(ctx, e.Object, q)
			r.index.forgetPool(e.Object.GetName())
		},
	}
}

// poolChanged reports whether a pool changed in what the index has of it, and whether its
// finalizers changed, which decide whether nodes may join.
func poolChanged(before, after client.Object) (changed, finalizers bool) {
	return before.GetUID() != after.GetUID() || before.GetGeneration() != after.GetGeneration() ||
			(before.GetDeletionTimestamp() == nil) != (after.GetDeletionTimestamp() == nil),
		!slices.Equal(before.GetFinalizers(), after.GetFinalizers())
}

func requestFor(o client.Object) ctrl.Request {
	return ctrl.Request{NamespacedName: types.NamespacedName{Name: o.GetName()}}
}

// carriesOther reports whether something changed that a pool can give to a node.
func carriesOther(a, b *corev1.Node) bool {
	return a.UID != b.UID || !maps.Equal(a.Labels, b.Labels) || !maps.Equal(a.Annotations, b.Annotations) ||
		!equality.Semantic.DeepEqual(a.Spec.Taints, b.Spec.Taints)
}

// isReady reports whether the condition Ready of a node is True.
func isReady(n *corev1.Node) bool {
	_, c := nodeutil.GetNodeCondition(&n.Status, corev1.NodeReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// moved records in the index which pools a node concerns now instead of before. It
// returns both sets. before is nil for a node that was created, after for one that was
// deleted.
func (r *Reconciler) moved(ctx context.Context, before, after *corev1.Node) []string {
	pools, err := r.index.pools(ctx, r.Client)
	if err != nil {
		return nil // the cache has not started; when it has, every pool is reconciled
	}
	var name string
	var node *attributes.Node
	var concerned []string
	for _, n := range []*corev1.Node{before, after} {
		if n == nil {
			continue
		}
		name = n.Name
		read := attributes.Read(n) // the index keeps only the newest version
		concerned = append(concerned, pools.concerned(read)...)
		if before == after {
			return concerned
		}
		if n == after {
			node = read
		}
	}
	r.index.move(name, node, concerned)
	return concerned
}

// enqueueNodes enqueues all nodes that a pool concerns.
func (r *Reconciler) enqueueNodes(ctx context.Context, o client.Object, q queue) {
	pool, ok := o.(*apps.NodePool)
	if !ok {
		return
	}
	names, err := r.index.nodesOf(ctx, r.Client, newEntry(pool))
	if err != nil {
		return // the cache has not started; when it has, every node is reconciled
	}
	for _, name := range names {
		q.Add(ctrl.Request{NamespacedName: types.NamespacedName{Name: name}})
	}
}
