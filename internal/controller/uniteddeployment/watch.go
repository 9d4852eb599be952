package uniteddeployment

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/machinery/watch"
)

// watches returns which changes of which objects start a pass over a UnitedDeployment.
func (r *Reconciler) watches() []watch.Watch {
	generation := predicate.GenerationChangedPredicate{}
	owner := r.ownerChanged()
	return []watch.Watch{
		{Object: &apps.UnitedDeployment{}, Predicates: []predicate.Predicate{
			predicate.Or[client.Object](generation, predicate.AnnotationChangedPredicate{}, trigger.StatusWritten),
		}},
		{Object: &appsv1.Deployment{}, Handler: owner},
		{Object: &appsv1.StatefulSet{}, Handler: owner},
		{Object: &appsv1.DaemonSet{}, Handler: owner},
		{Object: &appsv1.ControllerRevision{}, Handler: owner},
		{Object: &apps.NodePool{}, Handler: handler.EnqueueRequestsFromMapFunc(r.havingPool), Predicates: []predicate.Predicate{generation}},
	}
}

// ownerChanged enqueues the UnitedDeployments of a workload or a revision, after the rest that the
// last pass demands: a rollout changes each workload several times.
func (r *Reconciler) ownerChanged() handler.EventHandler {
	add := func(all ...client.Object) {
		for _, o := range all {
			r.changed.Add(ownerOf(o)...)
		}
	}
	type queue = workqueue.TypedRateLimitingInterface[ctrl.Request]
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, _ queue) { add(e.Object) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ queue) { add(e.ObjectOld, e.ObjectNew) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ queue) { add(e.Object) },
	}
}

// ownerOf returns the UnitedDeployment that controls a workload or a revision. For an
// object without a controller it returns the one that the label names: it may adopt it.
func ownerOf(o client.Object) []ctrl.Request {
	name := o.GetLabels()[apps.UnitedDeploymentLabel]
	if ref := metav1.GetControllerOfNoCopy(o); ref != nil {
		if ref.Kind != "UnitedDeployment" || ref.APIVersion != apps.GroupVersion.String() {
			return nil
		}
		name = ref.Name
	}
	if name == "" {
		return nil
	}
	return []ctrl.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
}

// havingPool returns the UnitedDeployments that have a pool with the name of a NodePool.
func (r *Reconciler) havingPool(ctx context.Context, nodePool client.Object) []ctrl.Request {
	var list apps.UnitedDeploymentList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache has not started; when it has, all UnitedDeployments are reconciled
	}
	var requests []ctrl.Request
	for i := range list.Items {
		for j := range list.Items[i].Spec.Topology.Pools {
			if list.Items[i].Spec.Topology.Pools[j].Name == nodePool.GetName() {
				requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
			}
		}
	}
	return requests
}
