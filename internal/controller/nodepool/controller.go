// Package nodepool reconciles NodePools (docs/sources.md, P1 to P5) with two
// queues.
//
// One queue has nodes. A pass over a node computes its pool and what it must carry there,
// and writes the difference in one patch: labels, annotations, taints, and the record of
// the node's own values. So a node joins, moves or leaves in a single write. Two pools never
// decide about a node concurrently, and a node that cannot be written does not stop others.
// If the process ends during a pass, the pass has written everything or nothing.
//
// The other queue has pools:
//
//   - adopt: sets the finalizer, before any node joins.
//   - observe: finds the nodes in the pool, and those that have to be written.
//   - finalize: removes the finalizer of a deleted pool when no node carries anything of it.
//   - report: writes the status, at a bounded pace.
package nodepool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/membership"
	"github.com/atoll-k8s/atoll/internal/machinery/members"
	"github.com/atoll-k8s/atoll/internal/machinery/pace"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
)

const (
	// A node is repaired repairBurst times without delay, and then once every repairEvery.
	// This bounds the writes if another program changes the node after each repair.
	repairBurst = 10
	repairEvery = 5 * time.Second
)

// Reconciler gives nodes the attributes of their pools, and writes the status of pools.
type Reconciler struct {
	Client client.Client
	// Live reads from the API server. Only it decides that a pool does not exist.
	Live     client.Reader
	Recorder events.EventRecorder
	Clock    clock.PassiveClock

	index index
	// poolRequests enqueues pools for changes of nodes, and after writes of nodes.
	poolRequests trigger.Source[ctrl.Request]
	// failedWrites are the nodes that could not be written.
	failedWrites members.Failures

	// holds are the delays of NoExecute taints, by pool.
	holds holds

	// statuses bounds status writes by pool, repairs bounds repairs by node.
	statuses, repairs pace.ByName

	// syncing is since when nodes of each pool are being written.
	syncing pace.Since

	mu sync.Mutex // guards the field below
	// reportedMissing is the missing pool that the last event named, by node.
	reportedMissing map[string]string
}

// scope is what one pass over a pool observed.
type scope struct {
	pool *apps.NodePool
	// nodes are the nodes in the pool, sorted by name.
	nodes []member
	// leaving are nodes that still carry the pool's attributes and are not in it any more.
	// contested are nodes that the pool selects and that are in another pool, although
	// their label does not name one. All are sorted, as are behind and failed.
	// elsewhere are nodes that the pool selects and whose label names another pool, which a person
	// wrote and which is first.
	leaving, contested, elsewhere []string
	// behind are nodes in the pool that have to be written. failed are nodes that could not
	// be written.
	behind []string
	failed []members.Failure
	// kept are nodes that get no NoExecute taint now, because they are cut off from the cloud.
	// evicting are the NoExecute taints that other nodes of the pool do not carry yet. delay is
	// whether and why they wait.
	kept     []string
	evicting []corev1.Taint
	delay    delay
	// invalid is the error of spec.selector. ignored are the keys in spec that a pool cannot
	// give.
	invalid error
	ignored []string
	// joins is how a kubelet can make its node meet the selector, by the labels with the keys
	// in joinKeys.
	joinKeys []string
	joins    membership.Joining
	// observed is true once all fields above are set.
	observed bool
}

// member is a node in a pool.
type member struct {
	name  string
	ready bool
}

// +kubebuilder:rbac:roleName=atoll-manager-pools,groups=apps.openyurt.io,resources=nodepools,verbs=get;list;watch;patch
// +kubebuilder:rbac:roleName=atoll-manager-pools,groups=apps.openyurt.io,resources=nodepools/status,verbs=patch
// +kubebuilder:rbac:roleName=atoll-manager-pools,groups="",resources=nodes,verbs=get;list;watch;patch
// +kubebuilder:rbac:roleName=atoll-manager-pools,groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the two controllers.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return r.members().Setup(mgr, r, "nodepool-node", r.reconcileNode)
}

// Reconcile runs the phases for one pool.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	pool := &apps.NodePool{}
	if err := r.Client.Get(ctx, req.NamespacedName, pool); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.statuses.Forget(req.Name)
			r.holds.forget(req.Name)
			r.syncing.For(req.Name, r.Clock.Now(), false)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	return phase.Run(ctx, &scope{pool: pool}, r.adopt, r.observe, r.finalize, r.report)
}

// adopt sets the finalizer. Nodes join only a pool that has it.
func (r *Reconciler) adopt(ctx context.Context, s *scope) error {
	before := s.pool.DeepCopy()
	if s.pool.DeletionTimestamp != nil || !controllerutil.AddFinalizer(s.pool, apps.NodePoolFinalizer) {
		return nil
	}
	return client.IgnoreNotFound(r.patchFinalizers(ctx, s.pool, before))
}

func (r *Reconciler) patchFinalizers(ctx context.Context, pool, before *apps.NodePool) error {
	// Other programs write the list of finalizers too, so the patch has a resourceVersion.
	err := r.Client.Patch(ctx, pool, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return fmt.Errorf("writing finalizers of NodePool %q: %w", pool.Name, err)
	}
	return nil
}

// finalize removes the finalizer of a deleted pool when no node is in it and none carries
// its attributes. A node that joined too late for this pass loses the attributes in its own
// pass, once the pool does not exist.
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

// report writes the status if it changed and the pace allows it.
func (r *Reconciler) report(ctx context.Context, s *scope) error {
	if !s.observed {
		return nil
	}
	before := s.pool.DeepCopy()
	setStatus(s)
	waits := s.delay.retry(r.Clock.Now())
	if left := members.Unseen - r.syncing.For(s.pool.Name, r.Clock.Now(), s.isSyncing()); s.isSyncing() && left > 0 {
		return phase.Wait("nodes that are being written", left)
	}
	if !statusDiffers(before, s.pool) {
		return waits
	}
	if delay := r.statuses.Delay(s.pool.Name, r.Clock.Now(), pace.StatusEvery, pace.StatusBurst); delay > 0 {
		return phase.Wait("the pace of status writes", delay)
	}
	was, is := meta.FindStatusCondition(before.Status.Conditions, apps.ConditionReady), meta.FindStatusCondition(s.pool.Status.Conditions, apps.ConditionReady)
	if is.Reason == apps.ReasonNodesLeft && (was == nil || was.Reason != is.Reason) {
		r.nodesLeft(s.pool, is.Message)
	}
	return errors.Join(waits, patch.Status(ctx, r.Client, s.pool, before))
}
