// Package podgroup gives PodGroups to the pods of gang schedulers that have none
// (docs/sources.md, V1 to V9): one for each owner that the rules choose, through all its revisions.
//
//	pod ─► name: the PodGroup is written into the pod, unless the webhook was first
//	PodGroup ─► observe ─► ensure (create, or patch what is ours) | collect ─► tell
//
// PodGroups are reconciled one by one, from the pods that name them: one that is missing
// under live pods is made again, one that nobody needs is deleted. Their status is the
// scheduler's; nothing of it is written but the phase with which they begin.
package podgroup

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/atoll-k8s/atoll/internal/domain/gang"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/gangs"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/owners"
)

const (
	// namers is how many pods are patched at a time, and workers how many PodGroups.
	namers, workers = 16, 4
	// debounce is how long a PodGroup waits for more of its pods.
	debounce = 20 * time.Millisecond
	// grace is how long a PodGroup stays that nobody needs.
	grace = 5 * time.Second
	// lag bounds how long a watch is behind our own writes.
	lag = 10 * time.Second
	// again is when is looked again at what somebody else has just written.
	again = 50 * time.Millisecond
	// retryFirst and retryLast bound how long waits what failed: pods wait for it.
	retryFirst, retryLast = 5 * time.Millisecond, time.Minute
	// settled is how long rules are in force before pods move because of them: rules
	// that somebody changes all the time move no pod.
	settled = 3 * time.Second
)

// Reconciler gives PodGroups to pods.
type Reconciler struct {
	// Pods writes pods, and Objects PodGroups.
	Pods     kubernetes.Interface
	Objects  dynamic.Interface
	Lineage  *owners.Lineage
	Walker   *owners.Walker
	Store    *gangs.Store
	Resolver *gangs.Resolver
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
	// Rules hears which owners could not be read.
	Rules *Rules

	pods, groups *trigger.Source[ctrl.Request]

	mu sync.Mutex
	// named are the PodGroups that were written into pods, and made are PodGroups as
	// they were written: watches may not have brought them yet.
	named map[types.UID]write[string]
	made  map[types.NamespacedName]write[*gangs.Group]
	swept time.Time // when old ones were forgotten
	// idle are PodGroups that nobody needs, since when.
	idle map[types.NamespacedName]time.Time
	// lists are the pods that were listed last, to collect PodGroups by.
	lists lists
	// told is the last event about each PodGroup, and about each pod that cannot be named.
	told map[types.NamespacedName]string
	// rewrites are what was written last into PodGroups.
	rewrites rewrites
}

// write is something that was written, and when.
type write[V any] struct {
	value V
	at    time.Time
}

// SetupWithManager registers the controllers.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.named, r.made = map[types.UID]write[string]{}, map[types.NamespacedName]write[*gangs.Group]{}
	r.idle, r.told = map[types.NamespacedName]time.Time{}, map[types.NamespacedName]string{}
	r.pods = &trigger.Source[ctrl.Request]{}
	r.groups = &trigger.Source[ctrl.Request]{Debounce: debounce}
	r.Store.OnPod(r.podChanged)
	r.Store.OnGroup(r.groupChanged)
	r.Lineage.OnChange(r.ownerChanged)
	r.Rules.onChange = r.all
	r.Store.OnServed(r.all)
	// All is looked at once everything is known and the controllers run. Neither waits
	// for it: PodGroups that are not served hold up nobody else.
	err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		begun := func(context.Context) (bool, error) { return r.ready() && r.pods.Running() && r.groups.Running(), nil }
		if wait.PollUntilContextCancel(ctx, lag/100, true, begun) == nil {
			r.all()
		}
		return nil
	}))
	if err != nil {
		return fmt.Errorf("waiting for PodGroups: %w", err)
	}
	for _, c := range []struct {
		name    string
		source  *trigger.Source[ctrl.Request]
		workers int
		run     func(context.Context, ctrl.Request) (ctrl.Result, error)
	}{{"podgroup-pods", r.pods, namers, r.name}, {"podgroup", r.groups, workers, r.Reconcile}} {
		err := ctrl.NewControllerManagedBy(mgr).Named(c.name).WatchesRawSource(c.source).
			WithOptions(optionsFor(c.workers)).
			Complete(phase.Backoff[ctrl.Request](reconcile.Func(c.run)))
		if err != nil {
			return fmt.Errorf("registering %s: %w", c.name, err)
		}
	}
	return nil
}

func optionsFor(workers int) controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: workers,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](retryFirst, retryLast),
	}
}

// ready tells whether everything is known that decisions stand on.
func (r *Reconciler) ready() bool {
	return r.Store.HasSynced() && r.Lineage.HasSynced() && r.Resolver.Levels() != nil
}

// all looks at everything anew.
func (r *Reconciler) all() {
	if !r.ready() {
		return // it is to come
	}
	r.Store.Pods(func(pod *gangs.Pod) { r.podChanged(nil, pod) })
	r.Store.Groups(func(group *gangs.Group) { r.groups.Add(ctrl.Request{NamespacedName: group.Key()}) })
}

func (r *Reconciler) podChanged(old, new *gangs.Pod) {
	if new != nil && (new.Unnamed() || r.mayMove(new)) {
		r.pods.Add(ctrl.Request{NamespacedName: new.Key()})
	}
	for _, pod := range []*gangs.Pod{old, new} {
		if pod != nil && gang.OwnerOf(pod.Group) != "" {
			r.groups.Add(ctrl.Request{NamespacedName: pod.GroupKey()})
		}
	}
	if new == nil {
		r.mu.Lock()
		delete(r.told, old.Key())
		r.mu.Unlock()
	}
	r.leave(cmp.Or(new, old))
}

// leave looks at PodGroups that owners of a pod have, where the pod names another: they
// may have waited for it, and have more room when it ends.
func (r *Reconciler) leave(pod *gangs.Pod) {
	if pod.Controller == nil || pod.Group == "" && !pod.OthersGroup {
		return
	}
	owners := r.Lineage.Above(pod.Controller.UID)
	if len(owners) == 0 {
		owners = []*ownership.Object{{UID: pod.Controller.UID}}
	}
	for _, o := range owners {
		key := types.NamespacedName{Namespace: pod.Namespace, Name: gang.Name(o.UID)}
		if key.Name != pod.Group && r.Store.Group(key) != nil {
			r.groups.Add(ctrl.Request{NamespacedName: key})
		}
	}
}

// mayMove tells whether a pod may change to another PodGroup.
func (r *Reconciler) mayMove(pod *gangs.Pod) bool {
	levels := r.Resolver.Levels()
	return levels != nil && levels.MovePending && !pod.Bound && !pod.Terminating && pod.Live && gang.OwnerOf(pod.Group) != ""
}

func (r *Reconciler) groupChanged(old, new *gangs.Group) {
	group := new
	if group == nil {
		group = old
	}
	if gang.OwnerOf(group.Name) == "" {
		return
	}
	if new == nil { // what we wrote is not on its way, but gone
		r.mu.Lock()
		if made, ok := r.made[group.Key()]; ok && made.value.UID == group.UID {
			delete(r.made, group.Key())
		}
		r.mu.Unlock()
	}
	r.groups.Add(ctrl.Request{NamespacedName: group.Key()})
}

// ownerChanged looks at the PodGroups of an owner and of those above it, and at those of
// the pods below it, and names those that name none. Owners without pods of gang schedulers cost no more than a few lookups.
func (r *Reconciler) ownerChanged(old, new *ownership.Object) {
	o := cmp.Or(new, old)
	seen := map[types.NamespacedName]bool{}
	look := func(key types.NamespacedName) {
		if !seen[key] {
			seen[key] = true
			r.groups.Add(ctrl.Request{NamespacedName: key})
		}
	}
	above := []*ownership.Object{o}
	if o.Controller != nil {
		above = append(above, r.Lineage.Above(o.Controller.UID)...)
	}
	for _, owner := range above {
		if key := (types.NamespacedName{Namespace: o.Namespace, Name: gang.Name(owner.UID)}); r.Store.Group(key) != nil {
			look(key)
		}
	}
	for _, below := range r.Lineage.Descendants(o.UID) {
		for _, pod := range r.Store.OwnedByAnywhere(below) {
			switch {
			case pod.Group != "":
				look(pod.GroupKey())
			case pod.Unnamed(): // it may have waited for this owner
				r.pods.Add(ctrl.Request{NamespacedName: pod.Key()})
			}
		}
	}
}

// regarding names an owner, for events.
func regarding(o *ownership.Object) *metav1.PartialObjectMetadata {
	apiVersion, kind := o.ToAPIVersionAndKind()
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: apiVersion, Kind: kind},
		ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, UID: o.UID},
	}
}
