// Package capacity keeps the pods of workloads divided over on-demand and spot
// nodes (document 004), and shows how they are:
//
//   - observe: what the workload wants, and which class each of its pods has.
//   - evict: pods of the wrong class, made before the count was what it is, or
//     while nobody was asked, make room for such of the right one: at the pace
//     and under the budgets that all evictions share. The webhook gives their
//     successors their class.
//   - report: a CapacitySplit beside the workload.
//
// It places nothing: classes are handed out at creation (internal/assign), and at
// the gate (internal/controller/application).
package capacity

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	api "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
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
	Walker *owners.Walker
	Ledger *seats.Ledger
	Book   *policies.Book
	// Synced tells whether walk and ledger know everything.
	Synced   func() bool
	Recorder events.EventRecorder
	Evictor  *eviction.Evictor
	Clock    clock.PassiveClock

	changed *trigger.Source[request]
	tallies tallies

	mu sync.Mutex
	// moved is when a pod of a workload was moved last, and shown are those that have
	// a CapacitySplit as far as this replica has seen.
	moved map[types.UID]time.Time
	shown map[types.UID]types.NamespacedName
}

// scope is what one pass observed.
type scope struct {
	workload *ownership.Object
	capacity policies.Capacity
	below    []types.UID
	observed observed
	plan     plan
}

// +kubebuilder:rbac:groups=capacity.atoll.dev,resources=capacitysplits,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=capacity.atoll.dev,resources=capacitysplits/status,verbs=patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the controller. Call before walker and ledger are started.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.changed = &trigger.Source[request]{Synced: r.Synced, Debounce: debounce, All: r.all}
	r.Walker.OnChange(func(old, new *ownership.Object) {
		o := new
		if o == nil {
			o = old
		}
		r.wake(o.UID)
	})
	r.Ledger.OnChange(func(old, new *seats.Pod) {
		pod := new
		if pod == nil {
			pod = old
		}
		if pod.Controller != nil {
			r.wake(pod.Controller.UID)
		}
	})
	r.Book.OnNamespace(func(name string) {
		for _, o := range r.Walker.Sized() {
			if o.Namespace == name {
				r.changed.Add(request{o.UID})
			}
		}
	})
	return builder.TypedControllerManagedBy[request](mgr).
		Named("capacity").
		WatchesRawSource(r.changed).
		WithOptions(controller.TypedOptions[request]{MaxConcurrentReconciles: workers}).
		Complete(phase.Backoff[request](reconcile.TypedFunc[request](r.Reconcile)))
}

// wake looks at the workload that an object is, or belongs to, if it is divided or
// was.
func (r *Reconciler) wake(uid types.UID) {
	chain := r.Walker.Above(uid)
	if chain == nil {
		if r.isShown(uid) {
			r.changed.Add(request{uid})
		}
		return
	}
	if workload := ownership.CapacityWorkload(chain); workload != nil && (r.isShown(workload.UID) || r.Book.CapacityOf(chain).On) {
		r.changed.Add(request{workload.UID})
	}
}

// all are the workloads that are divided, and those that a CapacitySplit is left of.
func (r *Reconciler) all() []request {
	var out []request
	for _, o := range r.Walker.Sized() {
		if r.Book.CapacityOf([]*ownership.Object{o}).On {
			out = append(out, request{o.UID})
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), showTimeout)
	defer cancel()
	var list api.CapacitySplitList
	if err := r.Client.List(ctx, &list); err == nil { // of a cache
		for i := range list.Items {
			for _, owner := range list.Items[i].OwnerReferences {
				r.show(owner.UID, client.ObjectKeyFromObject(&list.Items[i]))
				out = append(out, request{owner.UID})
			}
		}
	}
	return out
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
	s := &scope{workload: r.Walker.Get(req.uid)}
	if s.workload == nil { // the garbage collector deletes what was shown of it
		r.Book.DropCount(req.uid)
		r.forget(req.uid)
		return ctrl.Result{}, nil
	}
	chain := r.Walker.Above(req.uid)
	s.capacity = r.Book.CapacityOf(chain[:min(1, len(chain))])
	if top := ownership.CapacityWorkload(chain); !s.capacity.On || top == nil || top.UID != req.uid {
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

// observe gathers what is known of the workload and plans.
func (r *Reconciler) observe(_ context.Context, s *scope) error {
	s.below = r.Walker.Descendants(s.workload.UID)
	o := observed{
		replicas: int(*s.workload.Replicas), count: s.capacity.Count,
		reserved: r.Ledger.ReservedOfClass(s.below), canTake: r.Ledger.ClassCanTake,
	}
	if s.capacity.Ordinal {
		o.ofOrdinal = s.capacity.OfOrdinal
	}
	for _, class := range []capacity.Class{capacity.OnDemand, capacity.Spot} {
		o.open[class] = r.Ledger.OpenOfClass(class)
	}
	cohorts := r.Ledger.View(s.below)
	o.rollout = len(cohorts) > 1 && !s.capacity.Ordinal
	for _, c := range cohorts {
		o.pods = append(o.pods, c.Pods...)
	}
	o.bypassed = r.bypassed(s.workload.UID, o.pods)
	s.observed, s.plan = o, planFor(o)
	r.tallies.set(s.workload.UID, s.plan)
	if o.reserved[capacity.OnDemand]+o.reserved[capacity.Spot] > 0 {
		return phase.Wait("pods that were admitted to be seen", retryReserved)
	}
	return nil
}

// bypassed tells whether pods that came after the last move did not pass the
// webhook: their successors would not either. After tryTime one is tried again.
func (r *Reconciler) bypassed(uid types.UID, pods []seats.SeatView) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ever := r.moved[uid]
	if !ever || r.Clock.Now().Sub(at) > tryTime {
		return false
	}
	for _, pod := range pods {
		if !pod.Admitted && !pod.Created.Before(at.Truncate(time.Second)) {
			return true
		}
	}
	return false
}

// evict executes the plan: as many pods as may be disturbed now.
func (r *Reconciler) evict(ctx context.Context, s *scope) error {
	if s.capacity.Invalid != nil {
		return nil //nolint:nilerr // report tells of it: nobody knows what is wanted
	}
	if len(s.plan.evict) == 0 {
		if s.plan.reason == api.ReasonNoRoom || s.plan.reason == api.ReasonNoNodes {
			return phase.Wait("a node of the class", retryRoom)
		}
		return nil
	}
	for _, pod := range s.plan.evict {
		if !r.Ledger.Disrupt(pod.UID, s.below, s.observed.replicas, maxUnavailable) {
			return nil // pods that change bring us back
		}
		evict := r.Evictor.Evict
		if pod.Node == "" {
			evict = r.Evictor.Discard
		}
		err := evict(ctx, pod.Key(), pod.UID)
		if err != nil && !errors.Is(err, eviction.ErrGone) {
			r.Ledger.Spare(pod.UID)
		}
		switch {
		case err == nil:
			r.evicted(ctx, s, pod)
		case errors.Is(err, eviction.ErrGone):
		case errors.Is(err, eviction.ErrPace), errors.Is(err, eviction.ErrBusy):
			return phase.Wait(err.Error(), eviction.Retry)
		case errors.Is(err, eviction.ErrRefused):
			evictionsTotal.WithLabelValues("refused").Inc()
			s.plan.reason, s.plan.message = api.ReasonBlockedByPDB, "pods of the wrong class stay for now: a PodDisruptionBudget allows no eviction"
			return phase.Wait(err.Error(), eviction.Retry)
		default:
			evictionsTotal.WithLabelValues("error").Inc()
			return err
		}
	}
	return nil
}

// evicted tells of a pod that was moved.
func (r *Reconciler) evicted(ctx context.Context, s *scope, pod *seats.Pod) {
	evictionsTotal.WithLabelValues("evicted").Inc()
	r.mu.Lock()
	if r.moved == nil {
		r.moved = map[types.UID]time.Time{}
	}
	r.moved[s.workload.UID] = r.Clock.Now()
	r.mu.Unlock()
	log.FromContext(ctx).Info("Evicted a pod of the wrong class of capacity", "pod", pod.Key(), "workload", s.workload.Namespace+"/"+s.workload.Name)
	related := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	r.Recorder.Eventf(reference(s.workload), related, corev1.EventTypeNormal, "CapacityPodEvicted", "Evict",
		"Evicted pod %s: the workload is to have %d on-demand and %d spot pods", pod.Name, s.plan.want[capacity.OnDemand], s.plan.want[capacity.Spot])
}

func reference(o *ownership.Object) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: o.GroupVersion().String(), Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, UID: o.UID}
}

func wrap(doing string, o *ownership.Object, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s the CapacitySplit of %s %s/%s: %w", doing, o.Kind, o.Namespace, o.Name, err)
}
