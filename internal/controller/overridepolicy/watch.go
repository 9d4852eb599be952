package overridepolicy

import (
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// watch declares every change that enqueues an OverridePolicy. All but the first go
// through r.changed, which debounces.
//
//	a policy is created or deleted, or its spec changes → the policy
//	its status or metadata is written                   → the policy
//	an owner is created, changed or deleted             → requestsForOwner
//	a pod is created, changed or deleted                → requestsForPod
//	members or readiness of NodeGroups change           → the policies that name them
//	an override was tried with the API server           → requestsForTrial
//
// Call it before the walker and the ledger are started.
func (r *Reconciler) watch(mgr ctrl.Manager) (*builder.Builder, error) {
	r.changed = &trigger.Source[ctrl.Request]{Synced: r.Synced, Debounce: debounce}
	r.Walker.OnChange(func(old, new *ownership.Object) {
		if new == nil {
			r.memory.forget(old.UID)
		}
		r.changed.Add(requestsForOwner(old, new)...)
	})
	r.Ledger.OnChange(func(old, new *seats.Pod) { r.changed.Add(r.requestsForPod(old, new)...) })
	if err := policies.IndexGroups(mgr.GetFieldIndexer(), &gm.OverridePolicy{}); err != nil {
		return nil, err
	}
	r.Ledger.OnGroups(policies.EnqueueOnGroups(mgr.GetClient(), &gm.OverridePolicyList{}, r.changed))
	r.Policies.OnTrial(func(workload types.UID) { r.changed.Add(r.requestsForTrial(workload)...) })
	return ctrl.NewControllerManagedBy(mgr).
		For(&gm.OverridePolicy{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&gm.OverridePolicy{}, trigger.Handler(r.changed), builder.WithPredicates(trigger.StatusWritten)).
		WatchesRawSource(r.changed), nil
}

// requestsForOwner are the policies that the owner required before the change and
// requires after it.
func requestsForOwner(old, new *ownership.Object) (out []ctrl.Request) {
	for _, o := range []*ownership.Object{old, new} {
		if o != nil && o.Policies.RequiredOverride != "" {
			out = append(out, request(o))
		}
	}
	return out
}

// requestsForPod are the policies of the pod's owner before and after the change.
func (r *Reconciler) requestsForPod(old, new *seats.Pod) (out []ctrl.Request) {
	for _, pod := range []*seats.Pod{old, new} {
		if pod != nil {
			out = append(out, r.requestsFor(pod.Owner())...)
		}
	}
	return out
}

// requestsForTrial is the policy that a workload requires itself.
func (r *Reconciler) requestsForTrial(workload types.UID) []ctrl.Request {
	return requestsForOwner(nil, r.Walker.Get(workload))
}

// requestsFor is the policy that the workload above an owner requires.
func (r *Reconciler) requestsFor(owner types.UID) []ctrl.Request {
	if o := r.Walker.PolicyOwnersOf(owner).Override; o != nil {
		return []ctrl.Request{request(o)}
	}
	return nil
}

// request names the policy that a workload requires.
func request(o *ownership.Object) ctrl.Request {
	return ctrl.Request{NamespacedName: types.NamespacedName{Namespace: o.Namespace, Name: o.Policies.RequiredOverride}}
}
