package podgroup

import (
	"cmp"
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/atoll-k8s/atoll/internal/domain/gang"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/gangs"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
)

// enqueued is what one change enqueues: pods for the controller that names their
// PodGroup, and PodGroups.
type enqueued struct {
	pods   []types.NamespacedName
	groups []types.NamespacedName
}

// watch declares every change that enqueues a pod or a PodGroup:
//
//	this replica becomes the leader, the rules change,
//	PodGroups are served again                          → enqueueAll
//	a pod is created, changed or deleted                → requestsForPod
//	a PodGroup is created, changed or deleted           → requestsForGroup
//	an owner is created, changed or deleted             → requestsForOwner
//
// Call it before the store, the lineage and the rules are started.
func (r *Reconciler) watch(mgr ctrl.Manager) error {
	r.pods = &trigger.Source[ctrl.Request]{}
	r.groups = &trigger.Source[ctrl.Request]{Debounce: debounce}
	r.Store.OnPod(r.podChanged)
	r.Store.OnGroup(r.groupChanged)
	r.Lineage.OnChange(r.ownerChanged)
	r.Rules.onChange = r.enqueueAll
	r.Store.OnServed(r.enqueueAll)
	// The caches do not sync while PodGroups are not served, which may be for ever. The
	// sources must not wait for them (Synced): a controller whose source does not sync in
	// time fails, and the manager with it.
	err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		running := func(context.Context) (bool, error) {
			return r.ready() && r.pods.Running() && r.groups.Running(), nil
		}
		if wait.PollUntilContextCancel(ctx, lag/100, true, running) == nil {
			r.enqueueAll()
		}
		return nil
	}))
	if err != nil {
		return fmt.Errorf("waiting for PodGroups: %w", err)
	}
	return nil
}

func (r *Reconciler) enqueue(all enqueued) {
	for _, key := range all.pods {
		r.pods.Add(ctrl.Request{NamespacedName: key})
	}
	for _, key := range all.groups {
		r.groups.Add(ctrl.Request{NamespacedName: key})
	}
}

// enqueueAll enqueues every PodGroup and what requestsForPod returns for every pod. It does
// nothing before the caches are synced; watch calls it once they are.
func (r *Reconciler) enqueueAll() {
	if !r.ready() {
		return
	}
	r.Store.Pods(func(pod *gangs.Pod) { r.enqueue(r.requestsForPod(nil, pod)) })
	r.Store.Groups(func(group *gangs.Group) { r.groups.Add(ctrl.Request{NamespacedName: group.Key()}) })
}

func (r *Reconciler) podChanged(old, new *gangs.Pod) {
	if new == nil {
		r.unnamed.replace(old.Key(), "")
	}
	r.enqueue(r.requestsForPod(old, new))
}

func (r *Reconciler) groupChanged(old, new *gangs.Group) {
	if new == nil { // a write of ours before the deletion is not ahead of the watch any more
		r.mu.Lock()
		if made, ok := r.made[old.Key()]; ok && made.value.UID == old.UID {
			delete(r.made, old.Key())
		}
		r.mu.Unlock()
	}
	r.enqueue(requestsForGroup(cmp.Or(new, old)))
}

func (r *Reconciler) ownerChanged(old, new *ownership.Object) {
	r.enqueue(r.requestsForOwner(cmp.Or(new, old)))
}

// requestsForGroup is the PodGroup itself, if it has the name of a generated one.
func requestsForGroup(group *gangs.Group) (out enqueued) {
	if gang.OwnerOf(group.Name) != "" {
		out.groups = []types.NamespacedName{group.Key()}
	}
	return out
}

// requestsForPod are the pod, if it is to be named or may move, the generated PodGroups
// that it names and named, and the other PodGroups of its owners: they have room for one
// more member when it ends or leaves.
func (r *Reconciler) requestsForPod(old, new *gangs.Pod) (out enqueued) {
	if new != nil && (new.Unnamed() || r.mayMove(new)) {
		out.pods = append(out.pods, new.Key())
	}
	for _, pod := range []*gangs.Pod{old, new} {
		if pod != nil && gang.OwnerOf(pod.Group) != "" {
			out.groups = append(out.groups, pod.GroupKey())
		}
	}
	out.groups = append(out.groups, r.otherGroups(cmp.Or(new, old))...)
	return out
}

// otherGroups are the existing PodGroups of a pod's owners that the pod does not name. It
// is empty for a pod that names no PodGroup.
func (r *Reconciler) otherGroups(pod *gangs.Pod) (out []types.NamespacedName) {
	if pod.Controller == nil || pod.Group == "" && !pod.OthersGroup {
		return nil
	}
	owners := r.Lineage.Above(pod.Controller.UID)
	if len(owners) == 0 {
		owners = []*ownership.Object{{UID: pod.Controller.UID}}
	}
	for _, o := range owners {
		key := types.NamespacedName{Namespace: pod.Namespace, Name: gang.Name(o.UID)}
		if key.Name != pod.Group && r.Store.Group(key) != nil {
			out = append(out, key)
		}
	}
	return out
}

// mayMove reports whether a pod may change to another PodGroup: it names a generated one,
// has no node, and the rules allow it (movePending).
func (r *Reconciler) mayMove(pod *gangs.Pod) bool {
	levels := r.Resolver.Levels()
	return levels != nil && levels.MovePending && !pod.Bound && !pod.Terminating && pod.Live && gang.OwnerOf(pod.Group) != ""
}

// requestsForOwner are the existing PodGroups of an owner and of those above it, the
// PodGroups that the pods below it name, and the pods below it that are to be named: they
// may have waited for this owner. An owner without pods of gang schedulers costs a few
// lookups only.
func (r *Reconciler) requestsForOwner(o *ownership.Object) (out enqueued) {
	above := []*ownership.Object{o}
	if o.Controller != nil {
		above = append(above, r.Lineage.Above(o.Controller.UID)...)
	}
	groups := sets.New[types.NamespacedName]()
	for _, owner := range above {
		if key := (types.NamespacedName{Namespace: o.Namespace, Name: gang.Name(owner.UID)}); r.Store.Group(key) != nil {
			groups.Insert(key)
		}
	}
	for _, below := range r.Lineage.Descendants(o.UID) {
		for _, pod := range r.Store.OwnedByAnywhere(below) {
			switch {
			case pod.Group != "":
				groups.Insert(pod.GroupKey())
			case pod.Unnamed():
				out.pods = append(out.pods, pod.Key())
			}
		}
	}
	out.groups = groups.UnsortedList()
	return out
}
