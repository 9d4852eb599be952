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
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	api "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
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
	Pods   kubernetes.Interface
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
	r.Ledger.OnClasses(func(owners []types.UID, everybody bool) {
		for _, owner := range owners {
			r.wake(owner)
		}
		if everybody {
			r.changed.Add(r.asking()...)
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
		Watches(&api.CapacitySplit{}, deletions).
		WithOptions(controller.TypedOptions[request]{MaxConcurrentReconciles: workers}).
		Complete(phase.Backoff[request](reconcile.TypedFunc[request](r.Reconcile)))
}

// deletions look at the workload whose CapacitySplit somebody deletes: it is shown
// again, if it is divided still.
var deletions = handler.TypedFuncs[client.Object, request]{
	DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[client.Object], queue workqueue.TypedRateLimitingInterface[request]) {
		for _, owner := range e.Object.GetOwnerReferences() {
			queue.Add(request{owner.UID})
		}
	},
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
	for _, o := range chain { // one that has come to be part of another is shown no more
		if r.isShown(o.UID) {
			r.changed.Add(request{o.UID})
		}
	}
	if workload := ownership.CapacityWorkload(chain); workload != nil && asksForIt(r.Book.CapacityOf(chain)) {
		r.changed.Add(request{workload.UID})
	}
}

// asksForIt: the workload's pods are divided, or it cannot be read whether they are
// to be.
func asksForIt(c policies.Capacity) bool { return c.On || c.Invalid != nil }

// asking are the workloads that are divided.
func (r *Reconciler) asking() (out []request) {
	for _, o := range r.Walker.Sized() {
		if asksForIt(r.Book.CapacityOf([]*ownership.Object{o})) {
			out = append(out, request{o.UID})
		}
	}
	return out
}

// all are the workloads that are divided, and those that a CapacitySplit is left of.
func (r *Reconciler) all() []request {
	out := r.asking()
	ctx, cancel := context.WithTimeout(context.Background(), showTimeout)
	defer cancel()
	var list api.CapacitySplitList
	if err := r.Client.List(ctx, &list); err == nil { // of a cache
		for i := range list.Items {
			if len(list.Items[i].OwnerReferences) == 0 { // its workload went and left everything behind
				_ = r.Client.Delete(ctx, &list.Items[i], client.Preconditions{UID: &list.Items[i].UID}) // else the next leader does
			}
			for _, owner := range list.Items[i].OwnerReferences {
				if count := list.Items[i].Status.Count; count != nil {
					r.Book.RememberCount(owner.UID, int(*count))
				}
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
	if r.Book.Classes() != nil && !r.Book.NamespacesKnown() { // what they say may be all that is said of a workload
		return ctrl.Result{RequeueAfter: retryNamespaces}, nil
	}
	s := &scope{workload: r.Walker.Get(req.uid)}
	if s.workload == nil {
		return phase.Run(ctx, req.uid, r.bury)
	}
	chain := r.Walker.Above(req.uid)
	s.capacity = r.Book.CapacityOf(chain[:min(1, len(chain))])
	switch top := ownership.CapacityWorkload(chain); {
	case !asksForIt(r.Book.CapacityOf(chain)):
		return phase.Run(ctx, s, r.free, r.hide)
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

// observe gathers what is known of the workload and plans.
func (r *Reconciler) observe(ctx context.Context, s *scope) error {
	s.seen = r.Clock.Now()
	s.below = r.below(s.workload)
	o := observed{
		replicas: int(*s.workload.Replicas), count: s.capacity.Count, fellBack: s.capacity.FellBack,
		reserved: r.Ledger.ReservedOfClass(s.below), canTake: r.canTake(ctx, s),
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
	if o.rollout {
		o.still, o.next = stands(o.pods, r.Clock.Now()), r.successor(s, cohorts)
	}
	o.inVain, o.refused = r.inVain(s, o.pods), r.Walker.PodsRefused(s.below)
	s.observed, s.plan = o, planFor(o)
	if o.reserved[capacity.OnDemand]+o.reserved[capacity.Spot] > 0 {
		return phase.Wait("pods that were admitted to be seen", retryReserved)
	}
	return nil
}

// stands tells whether nothing happens to pods of several revisions: a rollout that
// is paused, or goes step by step.
func stands(pods []seats.SeatView, now time.Time) bool {
	return !slices.ContainsFunc(pods, func(pod seats.SeatView) bool {
		return !pod.Ready || now.Sub(pod.Created) < stillTime
	})
}

// successor makes the question which class the next pod of a pod's revision would
// get if it were gone.
func (r *Reconciler) successor(s *scope, cohorts []seats.CohortView) func(seats.SeatView) capacity.Class {
	revisions, of := make([]capacity.Revision, len(cohorts)), map[types.UID]int{}
	for i, c := range cohorts {
		revisions[i].Replicas = len(c.Pods)
		if o := r.Walker.Get(c.Cohort.Owner); o != nil && o.Replicas != nil && o.UID != s.workload.UID {
			revisions[i].Replicas = int(*o.Replicas)
		}
		for _, pod := range c.Pods {
			of[pod.UID] = i
			if pod.Class == capacity.OnDemand {
				revisions[i].OnDemand++
			}
		}
	}
	return func(pod seats.SeatView) capacity.Class {
		i := of[pod.UID]
		own := revisions[i].OnDemand
		if pod.Class == capacity.OnDemand {
			own--
		}
		return capacity.Next(own, slices.Delete(slices.Clone(revisions), i, i+1), s.capacity.Count, int(s.workload.Surge))
	}
}

// below are the UIDs of a workload and of what it owns, but for StatefulSets, which
// speak for themselves.
func (r *Reconciler) below(workload *ownership.Object) []types.UID {
	return slices.DeleteFunc(r.Walker.Descendants(workload.UID), func(uid types.UID) bool {
		o := r.Walker.Get(uid)
		return o != nil && uid != workload.UID && o.IsStatefulSet()
	})
}

// canTake makes the question that the plan of one workload asks. What keeps it
// from an answer is the workload's unread.
func (r *Reconciler) canTake(ctx context.Context, s *scope) func(capacity.Class, *seats.Pod) (bool, fit.Reason) {
	reads := 0
	return func(class capacity.Class, pod *seats.Pod) (bool, fit.Reason) {
		var affinity []*nodeaffinity.NodeSelector
		if pod.Demand != nil && pod.Demand.Claims {
			var err error
			if affinity, err = r.volumes.Read(ctx, r.Pods, r.Clock.Now(), pod.Key(), pod.UID, &reads); err != nil {
				s.unread = err
				return false, fit.Unread
			}
		}
		return r.Ledger.ClassCanTake(class, pod, affinity)
	}
}

// inVain tells why more moves would help nothing, or "": of the pods that came after
// the last one, some did not pass the webhook, or are of the class that was left.
// After tryTime one is tried again.
func (r *Reconciler) inVain(s *scope, pods []seats.SeatView) (reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ever := r.moved[s.workload.UID]
	if ever && last.count != s.capacity.Count { // pods that came meanwhile are as was wanted then
		delete(r.moved, s.workload.UID)
	}
	if !ever || last.count != s.capacity.Count || r.Clock.Now().Sub(last.at) > tryTime {
		return ""
	}
	for _, pod := range pods {
		switch {
		case pod.Created.Before(last.at.Truncate(time.Second)):
		case !pod.Admitted:
			return api.ReasonNotAdmitted
		case !s.capacity.Ordinal && pod.Class == last.class && pod.Created.After(last.at):
			return api.ReasonPinned
		}
	}
	return ""
}

// evict executes the plan: as many pods as may be disturbed now.
func (r *Reconciler) evict(ctx context.Context, s *scope) error {
	if s.capacity.Invalid != nil {
		return nil //nolint:nilerr // report tells of it: nobody knows what is wanted
	}
	if s.unread != nil && !errors.Is(s.unread, volumes.ErrMany) && !apierrors.IsNotFound(s.unread) {
		return s.unread
	}
	if len(s.plan.evict) == 0 {
		if s.observed.inVain != "" {
			return phase.Wait("another try to move a pod", tryTime)
		}
		if s.observed.rollout && !s.observed.still {
			return phase.Wait("a rollout that goes on", stillTime)
		}
		if s.plan.reason == api.ReasonNoRoom || s.plan.reason == api.ReasonNoNodes {
			return phase.Wait("a node of the class", retryRoom)
		}
		return nil
	}
	for _, pod := range s.plan.evict {
		if r.Clock.Since(s.seen) > eviction.Fresh {
			return phase.Wait("another look", 0)
		}
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
		case eviction.Moot(err):
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
		r.moved = map[types.UID]move{}
	}
	r.moved[s.workload.UID] = move{at: r.Clock.Now(), class: r.classOf(s, pod), count: s.capacity.Count}
	r.mu.Unlock()
	log.FromContext(ctx).Info("Evicted a pod of the wrong class of capacity", "pod", pod.Key(), "workload", s.workload.Namespace+"/"+s.workload.Name)
	related := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	r.Recorder.Eventf(reference(s.workload), related, corev1.EventTypeNormal, "CapacityPodEvicted", "Evict",
		"Evicted pod %s: the workload is to have %d on-demand and %d spot pods", pod.Name, s.plan.want[capacity.OnDemand], s.plan.want[capacity.Spot])
}

func (r *Reconciler) classOf(s *scope, pod *seats.Pod) capacity.Class {
	for _, seen := range s.observed.pods {
		if seen.UID == pod.UID {
			return seen.Class
		}
	}
	return capacity.None
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
