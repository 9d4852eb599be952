package propagationpolicy

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
)

// readinessChanged lets nodes through that come to be Ready, or no longer are.
var readinessChanged = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false }, // every policy is reconciled when the controller starts, and when a node joins its group
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*corev1.Node)
		after, too := e.ObjectNew.(*corev1.Node)
		return ok && too && isReady(before) != isReady(after)
	},
	DeleteFunc:  func(event.DeleteEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

func isReady(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// failingOver names the policies whose groups may come to be away, or be back,
// with a node: those that fail over and name its group.
func (r *Reconciler) failingOver(ctx context.Context, node client.Object) []ctrl.Request {
	var list gm.PropagationPolicyList
	group := node.GetLabels()[gm.NodeGroupLabel]
	if group == "" || r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy) != nil {
		return nil // or the cache is not started yet: everything is reconciled when it is
	}
	var requests []ctrl.Request
	for i := range list.Items {
		policy := &list.Items[i]
		if policy.Spec.Failover == nil {
			continue
		}
		if spread, err := placement.New(policy.Spec, nil, ""); err == nil && spread.Index(group) >= 0 {
			requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(policy)})
		}
	}
	return requests
}
