// Package podgroup gives PodGroups to the pods of gang schedulers that name none
// (docs/sources.md, V1 to V9). Each owner that the rules choose has one, which stays the
// same through all revisions of the owner.
//
//	pod ─► name: writes the PodGroup's name into the pod, unless the webhook did
//	PodGroup ─► observe ─► ensure (create it, or patch the managed keys) ─► collect (delete it)
//
// A PodGroup is reconciled from the pods that name it: it is created again if it is missing
// and live pods name it, and deleted if no pod needs it. The scheduler writes its status;
// this package sets the initial phase only.
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
	"github.com/atoll-k8s/atoll/internal/machinery/fairqueue"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/owners"
)

const (
	// namers is the number of pods that are named concurrently, and workers the number of
	// PodGroups that are reconciled concurrently.
	namers, workers = 16, 4
	// debounce delays the reconcile of a PodGroup, so that changes of several of its pods
	// share one.
	debounce = 20 * time.Millisecond
	// grace is how long a PodGroup that no pod needs is kept.
	grace = 5 * time.Second
	// lag bounds how long a watch takes to deliver a write of this process.
	lag = 10 * time.Second
	// retryRead is the delay before a reconcile of a PodGroup that was just read from the
	// API server.
	retryRead = 50 * time.Millisecond
	// retryFirst and retryLast bound the backoff after errors. It is short, because pods
	// stay Pending meanwhile.
	retryFirst, retryLast = 5 * time.Millisecond, time.Minute
	// settled is how long rules must be in force before pods move because of them. Rules
	// that change more often move no pod.
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
	// Rules records which owners could not be read.
	Rules *Rules

	pods, groups *trigger.Source[ctrl.Request]

	mu sync.Mutex
	// named holds the PodGroup names that were written into pods, by pod, and made the
	// PodGroups that were written. The watches may not have delivered these writes yet.
	// Entries expire after lag.
	named map[types.UID]write[string]
	made  map[types.NamespacedName]write[*gangs.Group]
	swept time.Time // when expired entries were removed last
	// idle holds the PodGroups that no pod needs, and since when.
	idle map[types.NamespacedName]time.Time
	// lists holds the last lists of pods: collect reads them before it deletes.
	lists lists
	// reported holds the last event about each PodGroup, unnamed the last one about each pod
	// that cannot be named.
	reported, unnamed reported[types.NamespacedName]
	// rewrites slows down writes that other clients revert.
	rewrites rewrites
}

// write is a value that was written, and when.
type write[V any] struct {
	value V
	at    time.Time
}

// SetupWithManager registers the two controllers: one names pods, one writes PodGroups.
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
		NewQueue:                fairqueue.ByNamespace,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](retryFirst, retryLast),
	}
}

// ready reports whether the caches are synced and rules are in force.
func (r *Reconciler) ready() bool {
	return r.Store.HasSynced() && r.Lineage.HasSynced() && r.Resolver.Levels() != nil
}
