package workload

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/budget"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// watch declares every change that enqueues a workload, or the owner of pods at the gate:
//
//	this replica becomes the leader              → all
//	an owner is created, changed or deleted      → requestsForOwner
//	the API server refuses the pods of an owner  → the workload that overrides them
//	a pod is created, changed or deleted         → requestsForPod
//	the spec of a PropagationPolicy changes      → requestsForPolicy
//	the spec of an OverridePolicy changes        → requestsForPolicy
//	a policy is left out of the cache, or read   → requestsForPolicy
//	a policy is created or deleted               → requestsForPolicy
//
// Call it before the walker and the ledger are started.
func (r *Reconciler) watch(b *builder.TypedBuilder[request]) *builder.TypedBuilder[request] {
	r.changed = &trigger.Source[request]{Synced: r.Synced, All: r.all}
	r.Walker.OnChange(func(old, new *ownership.Object) {
		r.changed.Add(requestsForOwner(old, new)...)
		r.changed.Add(r.requestsForRefused(old, new)...)
	})
	r.Ledger.OnChange(func(old, new *seats.Pod) {
		r.givenUp.note(old, new) // first: the pass that the request starts counts the pod
		r.changed.Add(r.requestsForPod(old, new)...)
	})
	specChanged := builder.WithPredicates(predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, budget.ReadAgain))
	return b.WatchesRawSource(r.changed).
		Watches(&gm.PropagationPolicy{}, r.policyHandler(owners.Propagation), specChanged).
		Watches(&gm.OverridePolicy{}, r.policyHandler(owners.Override), specChanged)
}

// policyHandler enqueues requestsForPolicy.
func (r *Reconciler) policyHandler(kind owners.PolicyKind) handler.TypedEventHandler[client.Object, request] {
	return handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, policy client.Object) []request {
		return r.requestsForPolicy(kind, policy)
	})
}

// all are the objects with policy labels, the Jobs that are to be resumed and the owners
// of the pods at the gate.
func (r *Reconciler) all() (out []request) {
	for _, o := range r.Walker.Labelled() {
		out = append(out, request{o.UID})
	}
	for _, pod := range r.Ledger.Gated() {
		out = append(out, request{pod.Owner()})
	}
	return out
}

// requestsForOwner is the object itself, if the change can matter to its binding, to its
// overrides or to the resumption of a Job, or if it had policy labels and is deleted.
func requestsForOwner(old, new *ownership.Object) []request {
	switch {
	case new == nil && old.Policies != (ownership.Policies{}):
		return []request{{old.UID}}
	case new != nil && concerns(old, new):
		return []request{{new.UID}}
	default:
		return nil
	}
}

// concerns reports whether an object that was created (old is nil) or changed has to be
// reconciled.
func concerns(old, new *ownership.Object) bool {
	if old == nil {
		return new.Policies != (ownership.Policies{}) || new.Restarting
	}
	return old.Policies != new.Policies || old.IgnoreMissing != new.IgnoreMissing || old.OverridesStopped != new.OverridesStopped ||
		old.Generation != new.Generation && new.Policies.RequiredOverride != "" || new.Restarting && !old.Restarting
}

// requestsForRefused is the workload that requires an OverridePolicy for the pods of an
// owner, once the API server refuses these pods: its override is tried again.
func (r *Reconciler) requestsForRefused(old, new *ownership.Object) []request {
	if new == nil || new.PodsRefused == "" || old != nil && old.PodsRefused != "" {
		return nil
	}
	if above := r.Walker.PolicyOwnersOf(new.UID).Override; above != nil {
		return []request{{above.UID}}
	}
	return nil
}

// requestsForPod are the workload that gives up an overridden pod, and, for a pod that
// waits at the gate or is unschedulable, the objects that require its policies. A pod at
// the gate without any policies enqueues its owner.
func (r *Reconciler) requestsForPod(old, new *seats.Pod) (out []request) {
	if new == nil {
		return nil
	}
	if new.GivenUp() && (old == nil || !old.GivenUp()) {
		if workload := r.Walker.PolicyOwnersOf(new.CreatedFor).Override; workload != nil {
			out = append(out, request{workload.UID})
		}
	}
	if !new.Active || new.Node != "" || !new.Gated && !new.Unschedulable {
		return out
	}
	workload := r.Walker.PolicyOwnersOf(new.Owner())
	if !workload.Managed() && new.Gated {
		out = append(out, request{new.Owner()})
	}
	for _, o := range []*ownership.Object{workload.Propagation, workload.Override} {
		if o != nil {
			out = append(out, request{o.UID})
		}
	}
	return out
}

// requestsForPolicy are the workloads that require a policy. For a PropagationPolicy they
// include those whose overrides are tried in its groups.
func (r *Reconciler) requestsForPolicy(kind owners.PolicyKind, policy client.Object) (out []request) {
	for _, o := range r.Walker.Requiring(kind, policy.GetNamespace(), policy.GetName()) {
		out = append(out, request{o.UID})
		if kind == owners.Propagation {
			out = append(out, r.overriddenWith(o)...)
		}
	}
	return out
}

// overriddenWith are the objects above and below a workload that require an
// OverridePolicy for the pods that the workload's PropagationPolicy places.
func (r *Reconciler) overriddenWith(o *ownership.Object) (out []request) {
	if above := r.Walker.PolicyOwnersOf(o.UID).Override; above != nil && above.UID != o.UID {
		out = append(out, request{above.UID})
	}
	for _, uid := range r.Walker.Descendants(o.UID)[1:] {
		if below := r.Walker.Get(uid); below != nil && below.Policies.RequiredOverride != "" {
			out = append(out, request{uid})
		}
	}
	return out
}
