package propagationpolicy

import (
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/policies"
)

// watch declares every change that enqueues a PropagationPolicy. All but the first go
// through r.changed, which debounces.
//
//	a policy is created or deleted, or its spec changes → the policy
//	its status or metadata is written                   → the policy
//	owners, pods and NodeGroups change                  → see policies.Watched
//	pods at the gate are held, or are not any more      → the policy of their owner
//
// Call it before the walker and the ledger are started.
func (r *Reconciler) watch(mgr ctrl.Manager) (*builder.Builder, error) {
	r.changed = &trigger.Source[ctrl.Request]{Synced: r.Synced, Debounce: debounce}
	r.Walker.OnChange(func(old, new *ownership.Object) {
		if new == nil {
			r.memory.forget(old.UID)
		}
	})
	watched := policies.Watched{Kind: owners.Propagation, Walker: r.Walker, Ledger: r.Ledger}
	if err := watched.Watch(mgr, r.changed); err != nil {
		return nil, err
	}
	r.Policies.OnHeld(func(owner types.UID) { r.changed.Add(watched.Above(owner)...) })
	return ctrl.NewControllerManagedBy(mgr).
		For(&gm.PropagationPolicy{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&gm.PropagationPolicy{}, trigger.Handler(r.changed), builder.WithPredicates(trigger.StatusWritten)).
		WatchesRawSource(r.changed), nil
}
