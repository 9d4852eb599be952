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
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

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
	// reported are the last events about PodGroups, and about pods that cannot be named.
	reported reported[types.NamespacedName]
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
	r.idle = map[types.NamespacedName]time.Time{}
	if err := r.watch(mgr); err != nil {
		return err
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
