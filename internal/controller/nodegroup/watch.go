package nodegroup

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/watch"
)

// watches returns which changes of which objects start a pass over a group.
func (r *Reconciler) watches() []watch.Watch {
	return []watch.Watch{
		{Object: &gm.NodeGroup{}},
		{Object: &corev1.Node{}, Handler: handler.EnqueueRequestsFromMapFunc(r.groupsOf), Predicates: []predicate.Predicate{nodeChanged}},
	}
}

// nodeChanged accepts updates of a node that replace it, or change its labels or its
// readiness. Nothing else of a node decides about membership or status of a group.
var nodeChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, beforeOK := e.ObjectOld.(*corev1.Node)
	after, ok := e.ObjectNew.(*corev1.Node)
	return !ok || !beforeOK || before.UID != after.UID || !maps.Equal(before.Labels, after.Labels) || readyStatus(before) != readyStatus(after)
}}

// groupsOf returns the groups that select a node, and the group that its label names.
// The handler calls it with the node before an update and with the node after it.
func (r *Reconciler) groupsOf(ctx context.Context, node client.Object) []ctrl.Request {
	var list gm.NodeGroupList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache has not started; when it has, every group is reconciled
	}
	var requests []ctrl.Request
	add := func(group string) {
		requests = append(requests, ctrl.Request{NamespacedName: types.NamespacedName{Name: group}})
	}
	has := node.GetLabels()[gm.NodeGroupLabel]
	if has != "" { // whether the group exists or not
		add(has)
	}
	for i := range list.Items {
		group, _ := r.compile(&list.Items[i])
		if group.Name != has && group.Selects(node.GetName(), node.GetLabels()) {
			add(group.Name)
		}
	}
	return requests
}
