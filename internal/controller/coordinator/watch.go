package coordinator

import (
	"context"
	"maps"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/machinery/watch"
)

// watches returns which changes of which objects start a pass over a coordinator.
func (r *Reconciler) watches() []watch.Watch {
	ofPool := func(pool func(client.Object) string) handler.EventHandler {
		return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []ctrl.Request { return r.havingPool(ctx, pool(o)) })
	}
	return []watch.Watch{
		{Object: &apps.YurtCoordinator{}},
		// When one is deleted, another one may get its pool.
		{Object: &apps.YurtCoordinator{}, Predicates: []predicate.Predicate{deleted}, Handler: ofPool(func(o client.Object) string {
			c, _ := o.(*apps.YurtCoordinator)
			return c.Spec.NodePool
		})},
		{Object: &apps.NodePool{}, Predicates: []predicate.Predicate{poolChanged}, Handler: ofPool(client.Object.GetName)},
		{Object: &corev1.Node{}, Predicates: []predicate.Predicate{nodeChanged}, Handler: ofPool(func(o client.Object) string { return o.GetLabels()[apps.NodePoolLabel] })},
		{Object: &coordinationv1.Lease{}, Handler: r.onPulse()},
		{Object: &corev1.Pod{}, Handler: ofPool(func(o client.Object) string { return o.GetLabels()[apps.PoolNameLabel] })},
		// Its pools may be of coordinators that were deleted while no manager ran.
		{Object: &apps.UnitedDeployment{}, Predicates: []predicate.Predicate{predicate.NewPredicateFuncs(isShared), predicate.GenerationChangedPredicate{}}, Handler: handler.EnqueueRequestsFromMapFunc(
			func(context.Context, client.Object) []ctrl.Request { return []ctrl.Request{{}} })},
	}
}

// havingPool returns the coordinators for a pool.
func (r *Reconciler) havingPool(ctx context.Context, pool string) []ctrl.Request {
	var list apps.YurtCoordinatorList
	if pool == "" || r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy) != nil {
		return nil // the cache has not started; when it has, all coordinators are reconciled
	}
	var requests []ctrl.Request
	for i := range list.Items {
		if list.Items[i].Spec.NodePool == pool {
			requests = append(requests, ctrl.Request{NamespacedName: types.NamespacedName{Name: list.Items[i].Name}})
		}
	}
	return requests
}

func isShared(o client.Object) bool {
	return o.GetNamespace() == governance.Namespace && o.GetName() == workloadName
}

var deleted = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false }, UpdateFunc: func(event.UpdateEvent) bool { return false }, GenericFunc: func(event.GenericEvent) bool { return false },
}

// poolChanged accepts updates that change which nodes a pool has.
var poolChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, beforeOK := e.ObjectOld.(*apps.NodePool)
	after, ok := e.ObjectNew.(*apps.NodePool)
	return !ok || !beforeOK || !slices.Equal(before.Status.Nodes, after.Status.Nodes) || (before.DeletionTimestamp == nil) != (after.DeletionTimestamp == nil)
}}

// nodeChanged accepts updates that change the address of a node, its pool or its annotations, or whether it is heard.
var nodeChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, beforeOK := e.ObjectOld.(*corev1.Node)
	after, ok := e.ObjectNew.(*corev1.Node)
	return !ok || !beforeOK || addressOf(before) != addressOf(after) || isHeard(before) != isHeard(after) || before.Labels[apps.NodePoolLabel] != after.Labels[apps.NodePoolLabel] || !maps.Equal(before.Annotations, after.Annotations)
}}
