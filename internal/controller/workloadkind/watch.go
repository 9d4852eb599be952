package workloadkind

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/atoll-k8s/atoll/internal/machinery/watch"
)

// request is the only request of this controller: it names the ConfigMap.
func (r *Reconciler) request() ctrl.Request {
	return ctrl.Request{NamespacedName: types.NamespacedName{Namespace: r.Namespace, Name: ConfigMapName}}
}

// watches returns which changes of which objects start a pass. The Source changed adds
// a pass when the controller starts, when this replica becomes the leader, and when the
// Walker reports a problem with a kind.
func (r *Reconciler) watches() []watch.Watch {
	isConfig := predicate.NewPredicateFuncs(func(o client.Object) bool {
		return client.ObjectKeyFromObject(o) == r.request().NamespacedName
	})
	return []watch.Watch{{Object: &corev1.ConfigMap{}, Predicates: []predicate.Predicate{isConfig}}}
}
