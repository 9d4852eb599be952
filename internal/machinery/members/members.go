// Package members enqueues the requests of two controllers: one that writes nodes, and one that
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
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
)

const (
	// Debounce is how long a pass over a group waits for more changes of nodes.
	Debounce = 100 * time.Millisecond
	// Unseen is how long nodes of a group may be written before its status says so: most have all
	// their nodes by then, and the status is written once.
	Unseen = time.Second
	// AdoptedWithin is the time between two passes over a node whose group does not have its finalizer.
	AdoptedWithin = 10 * time.Second
)

type queue = workqueue.TypedRateLimitingInterface[ctrl.Request]

// Members tells which nodes and groups concern each other. Its functions read the cache, and return
// nothing before it has started: when it has, everything is reconciled.
type Members struct {
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
