// Package capacity keeps the pods of workloads divided over on-demand and spot
// nodes (docs/sources.md, C1 to C14), and shows how they are:
//
//   - observe: what the workload wants, and which class each of its pods has.
//   - evict: pods of the wrong class, made before the count was what it is, or
//     while nobody was asked, make room for such of the right one: at the pace
//     and under the budgets that all evictions share. The webhook gives their
//     successors their class.
//   - report: a CapacitySplit beside the workload.
//
// It places nothing: classes are handed out at creation (internal/assign), and at
// the gate (internal/controller/workload).
package capacity

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/machinery/volumes"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
)

const (
	// workers is the number of workloads that are looked at side by side.
	workers = 4
	// debounce is how long a change waits for more of the same workload.
	debounce = 200 * time.Millisecond
	// retryRoom is how soon is looked again whether a node could take a pod.
	retryRoom = 10 * time.Second
	// retryReserved is how soon is looked again at seats of pods that nobody has
	// seen: that one lapses tells nobody.
	retryReserved = 5 * time.Second
	// retryNamespaces is how soon is looked again whether namespaces are known.
	retryNamespaces = time.Second
	// stillTime is for how long nothing has happened to pods of several revisions,
	// when their rollout is taken to stand still.
	stillTime = 30 * time.Second
	// tryTime is how long a workload is left alone whose pods do not pass the webhook.
	tryTime = 5 * time.Minute
	// maxUnavailable bounds, for each workload, the pods that are not available while
	// others are moved.
	maxUnavailable = 1
)

// request names a workload by UID: names are used again, UIDs are not.
type request struct{ uid types.UID }

// Reconciler keeps workloads divided.
type Reconciler struct {
	Client client.Client
	// Pods reads pods and their volumes.
	Pods     kubernetes.Interface
	Walker   *owners.Walker
	Ledger   *seats.Ledger
	Policies *policies.Resolver
	// Synced tells whether walk and ledger know everything.
	Synced   func() bool
	Recorder events.EventRecorder
	Evictor  *eviction.Evictor
	Clock    clock.PassiveClock

	changed *trigger.Source[request]
	tallies tallies
	volumes volumes.Reader

	mu sync.Mutex
	// moved is the last move of a pod of each workload, and shown are those that have
	// a CapacitySplit as far as this replica has seen.
	moved map[types.UID]move
	shown map[types.UID]types.NamespacedName
}

// move is the eviction of a pod of the wrong class.
type move struct {
	at    time.Time
	pod   types.UID
	name  string
	class capacity.Class
	// count is the one that was in force.
	count int
}

// scope is what one pass observed.
type scope struct {
	workload *ownership.Object
	capacity policies.Capacity
	below    []types.UID
	seen     time.Time // when it was observed
	observed observed
	plan     plan
	// unread is why it is not known where volumes of its pods are, or nil.
	unread error
}

// +kubebuilder:rbac:groups=capacity.atoll.dev,resources=capacitysplits,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=capacity.atoll.dev,resources=capacitysplits/status,verbs=patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the controller. Call before walker and ledger are started.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return r.watch(builder.TypedControllerManagedBy[request](mgr).Named("capacity")).
		WithOptions(controller.TypedOptions[request]{MaxConcurrentReconciles: workers}).
		Complete(phase.Backoff[request](reconcile.TypedFunc[request](r.Reconcile)))
}

func (r *Reconciler) isShown(uid types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, shown := r.shown[uid]
	return shown
}

func (r *Reconciler) show(uid types.UID, key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shown == nil {
		r.shown = map[types.UID]types.NamespacedName{}
	}
	r.shown[uid] = key
}

// Reconcile runs the phases for one workload.
func (r *Reconciler) Reconcile(ctx context.Context, req request) (ctrl.Result, error) {
	if r.Policies.Classes() != nil && !r.Policies.NamespacesKnown() { // what they say may be all that is said of a workload
		return ctrl.Result{RequeueAfter: retryNamespaces}, nil
	}
	s := &scope{workload: r.Walker.Get(req.uid)}
	if s.workload == nil {
		return phase.Run(ctx, req.uid, r.bury)
	}
	chain := r.Walker.Above(req.uid)
	s.capacity = r.Policies.CapacityOf(chain[:min(1, len(chain))])
	switch top := ownership.CapacityWorkload(chain); {
	case !isDivided(r.Policies.CapacityOf(chain)):
		return phase.Run(ctx, s, r.leave)
	case top == nil || top.UID != req.uid: // its pods are divided as another's
		return phase.Run(ctx, s, r.hide)
	}
	if s.workload.Deleting {
		return ctrl.Result{}, nil
	}
	return phase.Run(ctx, s, r.observe, r.evict, r.report)
}

func (r *Reconciler) forget(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.moved, uid)
	delete(r.shown, uid)
	r.tallies.drop(uid)
}

func wrap(doing string, o *ownership.Object, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s the CapacitySplit of %s %s/%s: %w", doing, o.Kind, o.Namespace, o.Name, err)
}
