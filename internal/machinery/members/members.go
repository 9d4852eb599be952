// Package members registers two controllers, and enqueues their requests: one writes nodes, the other
// reports about groups of nodes. A group is any object that selects nodes. It depends on no kind
// of group.
package members

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	nodeutil "k8s.io/component-helpers/node/util"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/machinery/watch"
)

const (
	// Debounce is how long a pass over a group waits for more changes of nodes.
	Debounce = 100 * time.Millisecond
	// Unseen is how long nodes of a group may be written before its status says so: most have all
	// their nodes by then, and the status is written once.
	Unseen = time.Second
	// AdoptedWithin is the time between two passes over a node whose group does not have its finalizer.
	AdoptedWithin = 10 * time.Second

	// nodesAtOnce and groupsAtOnce are how many are reconciled at a time.
	nodesAtOnce, groupsAtOnce = 8, 4
	// retryFirst and retryLast bound the delay before a node whose write failed is tried
	// again. The cause, such as an admission policy, may disappear without an event.
	retryFirst, retryLast = 100 * time.Millisecond, time.Minute
)

type queue = workqueue.TypedRateLimitingInterface[ctrl.Request]

// Members tells which nodes and groups concern each other. Its functions read the cache, and return
// nothing before it has started: when it has, everything is reconciled.
type Members struct {
	// Group is an empty object of the kind of groups.
	Group client.Object
	// Decides reports whether an update of a node changed what decides about its group, or what the
	// group gives it.
	Decides func(before, after *corev1.Node) bool
	// GroupsOf returns the names of the groups that versions of a node concern.
	GroupsOf func(ctx context.Context, versions ...*corev1.Node) []string
	// NodesOf returns the names of the nodes that concern a group.
	NodesOf func(ctx context.Context, group string) []string
	// Invalidate is called when a group was created or deleted, or its spec or deletionTimestamp changed.
	Invalidate func()
	// Groups enqueues groups.
	Groups *trigger.Source[ctrl.Request]
	// Failures are the nodes that could not be written.
	Failures *Failures
}

// Setup registers the controller of groups, and that of nodes under a name of its own.
func (m *Members) Setup(mgr ctrl.Manager, groups reconcile.Reconciler, nodesName string, nodes reconcile.Func) error {
	m.Groups.Debounce = Debounce
	err := watch.Add(ctrl.NewControllerManagedBy(mgr), m.GroupWatches()).
		WatchesRawSource(m.Groups).
		WithOptions(controller.Options{MaxConcurrentReconciles: groupsAtOnce}).
		Complete(phase.Backoff[ctrl.Request](groups))
	if err != nil {
		return err
	}
	return watch.Add(ctrl.NewControllerManagedBy(mgr).Named(nodesName), m.NodeWatches()).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: nodesAtOnce,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](retryFirst, retryLast),
		}).
		Complete(phase.Backoff[ctrl.Request](nodes))
}

// GroupWatches returns which changes start a pass over a group. NodeWatches enqueue more groups.
func (m *Members) GroupWatches() []watch.Watch {
	return []watch.Watch{{Object: m.Group}}
}

// NodeWatches returns which changes start a pass over a node.
func (m *Members) NodeWatches() []watch.Watch {
	return []watch.Watch{{Object: &corev1.Node{}, Handler: m.OfNodes()}, {Object: m.Group, Handler: m.OfGroups()}}
}

// Failed records that a node could not be written, and enqueues its groups to update their status, also
// those of the node's failure before.
func (m *Members) Failed(is Failure) {
	if was, isNew := m.Failures.set(is); isNew {
		m.EnqueueGroups(was.From, was.To, is.From, is.To)
	}
}

// Written removes the failure of a node, if any, and enqueues its groups to update their status.
func (m *Members) Written(node string) {
	if was, had := m.Failures.clear(node); had {
		m.EnqueueGroups(was.From, was.To)
	}
}

// EnqueueGroups enqueues groups, except "".
func (m *Members) EnqueueGroups(names ...string) {
	for _, name := range names {
		if name != "" {
			m.Groups.Add(requestFor(name))
		}
	}
}

// OfNodes handles events of nodes for the controller that writes nodes. It enqueues the node if an
// update Decides. It enqueues the groups that the node concerned or concerns then, and when the
// node's readiness changes.
func (m *Members) OfNodes() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			if node, is := e.Object.(*corev1.Node); is {
				q.Add(requestFor(node.Name))
				m.EnqueueGroups(m.GroupsOf(ctx, node)...)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			before, wasNode := e.ObjectOld.(*corev1.Node)
			node, isNode := e.ObjectNew.(*corev1.Node)
			switch {
			case !wasNode || !isNode:
			case before.UID != node.UID || m.Decides(before, node):
				q.Add(requestFor(node.Name))
				m.EnqueueGroups(m.GroupsOf(ctx, before, node)...)
			case Readiness(before) != Readiness(node):
				m.EnqueueGroups(m.GroupsOf(ctx, node)...)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			if node, is := e.Object.(*corev1.Node); is {
				q.Add(requestFor(node.Name))
				m.EnqueueGroups(m.GroupsOf(ctx, node)...)
			}
		},
	}
}

// OfGroups handles events of groups for the controller that writes nodes. It enqueues the nodes that
// concern a group that changed in more than its status. Finalizers count too: no node joins a group
// that has none.
func (m *Members) OfGroups() handler.EventHandler {
	changed := func(ctx context.Context, group client.Object, q queue) {
		for _, node := range m.NodesOf(ctx, group.GetName()) {
			q.Add(requestFor(node))
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			m.Invalidate()
			if !e.IsInInitialList { // then every node has a pass anyway
				changed(ctx, e.Object, q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			before, after := e.ObjectOld, e.ObjectNew
			switch {
			case before.GetUID() != after.GetUID() || before.GetGeneration() != after.GetGeneration() ||
				(before.GetDeletionTimestamp() == nil) != (after.GetDeletionTimestamp() == nil):
				m.Invalidate()
			case slices.Equal(before.GetFinalizers(), after.GetFinalizers()):
				return
			}
			changed(ctx, after, q)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			m.Invalidate()
			changed(ctx, e.Object, q)
		},
	}
}

func requestFor(name string) ctrl.Request {
	return ctrl.Request{NamespacedName: client.ObjectKey{Name: name}}
}

// Readiness returns the status of the condition Ready of a node, Unknown if it has none.
func Readiness(n *corev1.Node) corev1.ConditionStatus {
	_, c := nodeutil.GetNodeCondition(&n.Status, corev1.NodeReady)
	if c == nil {
		return corev1.ConditionUnknown
	}
	return c.Status
}
