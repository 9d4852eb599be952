// Package capacity keeps the pods of workloads divided over on-demand and spot
// nodes (docs/sources.md, C1 to C14), and reports the division:
//
//   - observe: the number of pods that the workload wants, and the class of each pod.
//   - evict: evicts pods of the wrong class. They were created with another count, or
//     while no replica of the webhook answered. The evictions share the pace and the
//     disruption budgets of all evictions. The webhook gives the successors their class.
//   - report: writes a CapacitySplit into the namespace of the workload.
//
// It gives no pod a class: that is done at creation (internal/assign) and at the gate
// (internal/controller/workload).
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
	"github.com/atoll-k8s/atoll/internal/machinery/fairqueue"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/machinery/volumes"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
)

const (
	// workers is the number of workloads that are reconciled concurrently.
	workers = 4
	// debounce delays a reconcile, so that several changes of a workload share one.
	debounce = 200 * time.Millisecond
	// retryRoom is when a workload is reconciled again because no node can take a pod.
	retryRoom = 10 * time.Second
	// retryReserved is when a workload with reserved seats is reconciled again: the expiry
	// of a reservation is no event.
	retryReserved = 5 * time.Second
	// retryNamespaces is when a workload is reconciled again because the annotations of
	// namespaces are not known yet.
	retryNamespaces = time.Second
	// stillTime is how old the youngest pod must be, with all pods Ready, for a rollout
	// to count as paused.
	stillTime = 30 * time.Second
	// tryTime is the pause after a move that did not help: the successor was not admitted
	// by the webhook, or has the same class again.
	tryTime = 5 * time.Minute
	// maxUnavailable bounds the unavailable pods of each workload during moves.
	maxUnavailable = 1
)

// request is the UID of a workload. A name can be used again by another one.
type request struct{ uid types.UID }

// Reconciler keeps workloads divided.
type Reconciler struct {
	Client client.Client
	// Pods reads pods and their volumes.
	Pods     kubernetes.Interface
	Walker   *owners.Walker
	Ledger   *seats.Ledger
	Policies *policies.Resolver
	// Synced reports whether the caches of Walker and Ledger have synced.
	Synced   func() bool
	Recorder events.EventRecorder
	Evictor  *eviction.Evictor
	Clock    clock.PassiveClock

	changed *trigger.Source[request]
	tallies tallies
	volumes volumes.Reader

	mu sync.Mutex
	// moved holds the last move of a pod of each workload. shown holds the workloads that
	// have a CapacitySplit, and its key. Entries are made by all and report.
	moved map[types.UID]move
	shown map[types.UID]types.NamespacedName
}

// move is the eviction of a pod of the wrong class.
type move struct {
	at    time.Time
	pod   types.UID
	name  string
	class capacity.Class
	// count is the count that was in force.
	count int
}

// scope is what one pass observed.
type scope struct {
	workload *ownership.Object
	capacity policies.Capacity
	below    []types.UID
	seen     time.Time // when observe ran
	observed observed
	plan     plan
	// unread is why the location of volumes of its pods is not known, or nil.
	unread error
}

// +kubebuilder:rbac:groups=capacity.atoll.dev,resources=capacitysplits,verbs=get;list;watch;delete
// +kubebuilder:rbac:roleName=atoll-manager-capacity,groups=capacity.atoll.dev,resources=capacitysplits,verbs=create
// +kubebuilder:rbac:roleName=atoll-manager-capacity,groups=capacity.atoll.dev,resources=capacitysplits/status,verbs=patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the controller. Call before walker and ledger are started.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return r.watch(builder.TypedControllerManagedBy[request](mgr).Named("capacity")).
		WithOptions(controller.TypedOptions[request]{
			MaxConcurrentReconciles: workers, NewQueue: fairqueue.New(func(req request) string { return r.Walker.NamespaceOf(req.uid) }),
		}).
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
	if r.Policies.Classes() != nil && !r.Policies.NamespacesKnown() { // their annotations may be the only ones
		return ctrl.Result{RequeueAfter: retryNamespaces}, nil
	}
	s := &scope{workload: r.Walker.Get(req.uid)}
	if s.workload == nil {
		return phase.Run(ctx, req.uid, r.cleanUp)
	}
	chain := r.Walker.Above(req.uid)
	s.capacity = r.capacityOf(chain)
	switch top := ownership.CapacityWorkload(chain); {
	case !isDivided(r.Policies.CapacityOf(chain)):
		return phase.Run(ctx, s, r.leave)
	case top == nil || top.UID != req.uid: // its pods are divided as those of another workload
		return phase.Run(ctx, s, r.hide)
	}
	if s.workload.Deleting {
		return ctrl.Result{}, nil
	}
	return phase.Run(ctx, s, r.observe, r.evict, r.report)
}

// capacityOf returns the settings of the workload at the beginning of a chain of owners.
func (r *Reconciler) capacityOf(chain []*ownership.Object) policies.Capacity {
	return r.Policies.CapacityOf(chain[:min(1, len(chain))])
}

// isOutdated reports whether what a workload asks for has changed since the pass began.
// The pods may have been observed after the change. Judged by the settings from before it,
// those that got their class by the new ones look misplaced.
func (r *Reconciler) isOutdated(s *scope) bool {
	now := r.Walker.Get(s.workload.UID)
	if now == nil || now.Replicas == nil || int(*now.Replicas) != s.observed.replicas || now.Surge != s.workload.Surge {
		return true
	}
	c := r.capacityOf(r.Walker.Above(now.UID))
	return c.Workload == nil || c.Invalid != nil || c.Count != s.capacity.Count || c.Configured != s.capacity.Configured || c.FellBack != s.capacity.FellBack
}

func (r *Reconciler) forget(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.moved, uid)
	delete(r.shown, uid)
	r.tallies.drop(uid)
}

// wrap adds the CapacitySplit of a workload to an error; nil stays nil.
func wrap(doing string, o *ownership.Object, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s the CapacitySplit of %s %s/%s: %w", doing, o.Kind, o.Namespace, o.Name, err)
}
