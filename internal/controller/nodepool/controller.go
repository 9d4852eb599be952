// Package nodepool reconciles NodePools (docs/sources.md, P1 to P5) with two
// queues.
//
// One has nodes. A pass reads one node, asks which pool it is in and what it is
// to carry there, and writes the difference in one patch: labels, annotations,
// taints and the record of what was the node's own. So joining, moving and
// leaving are one step each, two pools never decide about a node side by side,
// a node that cannot be written stops no other, and a pass that is cut off has
// done everything or nothing.
//
// The other has pools:
//
//   - adopt: the finalizer is on before any node joins.
//   - observe: which nodes are in the pool, and which are not as they ought to be.
//   - finalize: a deleted pool goes when no node carries anything of it.
//   - report: status, at a bounded pace.
package nodepool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/pace"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/machinery/watch"
)

const (
	// nodesAtOnce and poolsAtOnce are how many are written side by side.
	nodesAtOnce, poolsAtOnce = 8, 4
	// A node is repaired repairBurst times without delay and then once every
	// repairEvery: whoever insists on another value is not raced.
	repairBurst = 10
	repairEvery = 5 * time.Second
	// gather is how long a pool waits for more of its nodes to change.
	gather = 100 * time.Millisecond
	// retryFirst and retryLast bound how long a node waits that cannot be
	// written: whoever refuses it may let it pass any time.
	retryFirst, retryLast = 100 * time.Millisecond, time.Minute
)

// Reconciler keeps nodes as their pools want them.
type Reconciler struct {
	Client client.Client
	// Live reads from the API server: a pool is gone only if it says so.
	Live     client.Reader
	Recorder events.EventRecorder
	Clock    clock.PassiveClock

	index index
	// woken asks for passes over pools.
	woken trigger.Source[ctrl.Request]
	// troubles are the nodes that could not be written.
	troubles troubles

	// holds are the pools whose NoExecute taints wait.
	holds holds

	// statuses are paced by pool, repairs by node.
	statuses, repairs pace.ByName

	mu sync.Mutex
	// reportedMissing is the missing pool that the last event of a node named, by node.
	reportedMissing map[string]string
}

// scope is what one pass over a pool observed.
type scope struct {
	pool *apps.NodePool
	// nodes are those in the pool, sorted by name.
	nodes []member
	// leaving carry the pool's attributes and are in it no more; contested are
	// selected and in another pool, without their owner having chosen it.
	leaving, contested []string
	// behind are not as they ought to be; failed could not be written, with why.
	behind []string
	failed []failure
	// evicting are the NoExecute taints that nodes of the pool do not carry
	// yet; delay is why they wait.
	evicting []corev1.Taint
	delay    delay
	// invalid is what is wrong with spec.
	invalid error
	ignored []string
	// observed: all of the above is filled in.
	observed bool
}

// member is a node in the pool.
type member struct {
	name  string
	ready bool
}

// +kubebuilder:rbac:groups=apps.openyurt.io,resources=nodepools,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=apps.openyurt.io,resources=nodepools/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the two controllers.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.woken.Debounce = gather
	err := watch.Add(ctrl.NewControllerManagedBy(mgr), r.poolWatches()).
		WatchesRawSource(&r.woken).
		WithOptions(controller.Options{MaxConcurrentReconciles: poolsAtOnce}).
		Complete(phase.Backoff[ctrl.Request](r))
	if err != nil {
		return err
	}
	return watch.Add(ctrl.NewControllerManagedBy(mgr).Named("nodepool-node"), r.nodeWatches()).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: nodesAtOnce,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](retryFirst, retryLast),
		}).
		Complete(phase.Backoff[ctrl.Request](reconcile.Func(r.reconcileNode)))
}

// Reconcile runs the phases for one pool.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	pool := &apps.NodePool{}
	if err := r.Client.Get(ctx, req.NamespacedName, pool); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.statuses.Forget(req.Name)
			r.holds.released(req.Name)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	return phase.Run(ctx, &scope{pool: pool}, r.adopt, r.observe, r.finalize, r.report)
}

// adopt puts the finalizer on; nodes join afterwards.
func (r *Reconciler) adopt(ctx context.Context, s *scope) error {
	before := s.pool.DeepCopy()
	if s.pool.DeletionTimestamp != nil || !controllerutil.AddFinalizer(s.pool, apps.NodePoolFinalizer) {
		return nil
	}
	return client.IgnoreNotFound(r.patchFinalizers(ctx, s.pool, before))
}

func (r *Reconciler) patchFinalizers(ctx context.Context, pool, before *apps.NodePool) error {
	// Finalizers are a list that others write too: the resourceVersion guards it.
	err := r.Client.Patch(ctx, pool, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return fmt.Errorf("writing finalizers of NodePool %q: %w", pool.Name, err)
	}
	return nil
}

// finalize lets a deleted pool go when no node is in it and none carries
// anything of it any more. A node that joined without this pass having seen it
// is let go by its own pass, once the pool is gone.
func (r *Reconciler) finalize(ctx context.Context, s *scope) error {
	if !s.observed || s.pool.DeletionTimestamp == nil || len(s.nodes)+len(s.leaving) > 0 {
		return nil
	}
	before := s.pool.DeepCopy()
	if !controllerutil.RemoveFinalizer(s.pool, apps.NodePoolFinalizer) {
		return nil
	}
	return client.IgnoreNotFound(r.patchFinalizers(ctx, s.pool, before))
}

// report writes the status, if it changed and the pace allows it.
func (r *Reconciler) report(ctx context.Context, s *scope) error {
	if !s.observed {
		return nil
	}
	before := s.pool.DeepCopy()
	setStatus(s)
	waits := s.delay.comeBack(r.Clock.Now())
	if !statusDiffers(before, s.pool) {
		return waits
	}
	if delay := r.statuses.Delay(s.pool.Name, r.Clock.Now(), pace.StatusEvery, pace.StatusBurst); delay > 0 {
		return phase.Wait("the pace of status writes", delay)
	}
	return errors.Join(waits, patch.Status(ctx, r.Client, s.pool, before))
}
