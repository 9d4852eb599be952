package overridepolicy

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

// watch declares every change that enqueues an OverridePolicy. All but the first go
// through r.changed, which debounces.
//
//	a policy is created or deleted, or its spec changes → the policy
//	its status or metadata is written                   → the policy
//	owners, pods and NodeGroups change                  → see policies.Watched
//	an override was tried with the API server           → the policy that the workload itself requires
//
// Call it before the walker and the ledger are started.
func (r *Reconciler) watch(mgr ctrl.Manager) (*builder.Builder, error) {
	r.changed = &trigger.Source[ctrl.Request]{Synced: r.Synced, Debounce: debounce}
	r.Walker.OnChange(func(old, new *ownership.Object) {
		if new == nil {
			r.memory.forget(old.UID)
		}
	})
	watched := policies.Watched{Kind: owners.Override, Walker: r.Walker, Ledger: r.Ledger}
	if err := watched.Watch(mgr, r.changed); err != nil {
		return nil, err
	}
	r.Policies.OnTrial(func(workload types.UID) { r.changed.Add(watched.OfOwner(nil, r.Walker.Get(workload))...) })
	return ctrl.NewControllerManagedBy(mgr).
		For(&gm.OverridePolicy{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&gm.OverridePolicy{}, trigger.Handler(r.changed), builder.WithPredicates(trigger.StatusWritten)).
		WatchesRawSource(r.changed), nil
}
