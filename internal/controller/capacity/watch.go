package capacity

import (
	"cmp"
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	api "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// watch declares every change that enqueues a workload. All of them go through r.changed,
// which debounces.
//
//	this replica becomes the leader         → all
//	an owner is created, changed or deleted → requestsFor its UID
//	a pod is created, changed or deleted    → requestsFor its controller
//	nodes or pods change a class            → requestsForClasses
//	a namespace changes                     → requestsForNamespace
//	a CapacitySplit is updated or deleted   → requestsForSplit
//
// Call it before the walker and the ledger are started.
func (r *Reconciler) watch(b *builder.TypedBuilder[request]) *builder.TypedBuilder[request] {
	r.changed = &trigger.Source[request]{Synced: r.Synced, Debounce: debounce, All: r.all}
	r.Walker.OnChange(func(old, new *ownership.Object) { r.changed.Add(r.requestsFor(cmp.Or(new, old).UID)...) })
	r.Ledger.OnChange(func(old, new *seats.Pod) { r.changed.Add(r.requestsForPod(cmp.Or(new, old))...) })
	r.Ledger.OnClasses(func(owners []types.UID, everybody bool) { r.changed.Add(r.requestsForClasses(owners, everybody)...) })
	r.Policies.OnNamespace(func(name string) { r.changed.Add(r.requestsForNamespace(name)...) })
	return b.WatchesRawSource(r.changed).Watches(&api.CapacitySplit{}, r.splitHandler())
}

// splitHandler enqueues the workload of a CapacitySplit that is deleted or updated, so
// that a wrong status is overwritten. The controller's own writes enqueue the workload
// too; that pass finds nothing to write.
func (r *Reconciler) splitHandler() handler.TypedEventHandler[client.Object, request] {
	type queue = workqueue.TypedRateLimitingInterface[request]
	return handler.TypedFuncs[client.Object, request]{
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[client.Object], _ queue) {
			r.changed.Add(requestsForSplit(e.Object)...)
		},
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[client.Object], _ queue) {
			if e.ObjectOld.GetResourceVersion() != e.ObjectNew.GetResourceVersion() { // else a resync
				r.changed.Add(requestsForSplit(e.ObjectNew)...)
			}
		},
	}
}

// requestsForSplit are the owners of a CapacitySplit.
func requestsForSplit(split client.Object) (out []request) {
	for _, owner := range split.GetOwnerReferences() {
		out = append(out, request{owner.UID})
	}
	return out
}

// requestsForPod are those for the pod's controller.
func (r *Reconciler) requestsForPod(pod *seats.Pod) []request {
	if pod.Controller == nil {
		return nil
	}
	return r.requestsFor(pod.Controller.UID)
}

// requestsForClasses are those for owners whose pods change class, and every divided
// workload where everybody is set.
func (r *Reconciler) requestsForClasses(owners []types.UID, everybody bool) (out []request) {
	for _, owner := range owners {
		out = append(out, r.requestsFor(owner)...)
	}
	if everybody {
		out = append(out, r.divided()...)
	}
	return out
}

// requestsForNamespace are the workloads of a namespace.
func (r *Reconciler) requestsForNamespace(name string) (out []request) {
	for _, o := range r.Walker.ScaledRoots() {
		if o.Namespace == name {
			out = append(out, request{o.UID})
		}
	}
	return out
}

// requestsFor are the workload that an object is or belongs to, if it is divided, and
// every object of the chain that has a CapacitySplit: a workload that was adopted by
// another loses its own.
func (r *Reconciler) requestsFor(uid types.UID) (out []request) {
	chain := r.Walker.Above(uid)
	if chain == nil && r.isShown(uid) { // deleted
		return []request{{uid}}
	}
	for _, o := range chain {
		if r.isShown(o.UID) {
			out = append(out, request{o.UID})
		}
	}
	if workload := ownership.CapacityWorkload(chain); workload != nil && isDivided(r.Policies.CapacityOf(chain)) {
		out = append(out, request{workload.UID})
	}
	return out
}

// isDivided reports whether a workload's pods are divided over on-demand and spot nodes,
// or whether what it asks for is invalid: its CapacitySplit shows the error then.
func isDivided(c policies.Capacity) bool { return c.On || c.Invalid != nil }

// divided are the workloads that are divided.
func (r *Reconciler) divided() (out []request) {
	for _, o := range r.Walker.ScaledRoots() {
		if isDivided(r.Policies.CapacityOf([]*ownership.Object{o})) {
			out = append(out, request{o.UID})
		}
	}
	return out
}

// all are the workloads that are divided, and those that have a CapacitySplit. It takes
// over what the previous leader kept in their status: the count that was in force.
func (r *Reconciler) all() []request {
	out := r.divided()
	ctx, cancel := context.WithTimeout(context.Background(), showTimeout)
	defer cancel()
	var list api.CapacitySplitList
	if err := r.Client.List(ctx, &list); err != nil { // the cache does not hold them yet
		return out
	}
	for i := range list.Items {
		split := &list.Items[i]
		if len(split.OwnerReferences) == 0 { // its workload was deleted with --cascade=orphan
			_ = r.Client.Delete(ctx, split, client.Preconditions{UID: &split.UID}) // if it fails, the next leader deletes it
		}
		for _, owner := range split.OwnerReferences {
			if count := split.Status.Count; count != nil {
				r.Policies.RememberCount(owner.UID, int(*count))
			}
			r.show(owner.UID, client.ObjectKeyFromObject(split))
		}
		out = append(out, requestsForSplit(split)...)
	}
	return out
}
