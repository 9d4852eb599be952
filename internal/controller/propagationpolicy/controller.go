// Package propagationpolicy reconciles PropagationPolicies: for every workload
// that requires one it compares where pods are with where they are wanted,
//
//	plan ─► reassign (pods that find no node in the group that they got at creation)
//	     ─► evict (surplus pods, through the Eviction API, paced) ─► deletion costs ─► status
//
// (docs/sources.md, G13 to G15). It is the safety net behind
// the extender: whatever slipped through is found here and repaired. It never
// deletes a pod, and places none.
package propagationpolicy

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/jobs"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/machinery/volumes"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
)

const (
	// debounce gathers the many changes of a burst into one pass.
	debounce = 200 * time.Millisecond
	// retryFeasible is how soon is looked again whether a group that lacks pods
	// has room by now: room comes from anywhere in the cluster.
	retryFeasible = 5 * time.Second
	// maxShown bounds the workloads in a status.
	maxShown = 50
	// workers bounds the policies that are reconciled at a time.
	workers = 4
)

// Reconciler moves surplus pods and reports.
type Reconciler struct {
	Client   client.Client
	Pods     kubernetes.Interface
	Walker   *owners.Walker
	Ledger   *seats.Ledger
	Policies *policies.Resolver
	Recorder events.EventRecorder
	Evictor  *eviction.Evictor
	Jobs     *jobs.Restarter
	Clock    clock.PassiveClock
	// Synced tells whether walk and ledger know everything.
	Synced func() bool

	changed  *trigger.Source[ctrl.Request]
	tallies  tallies
	rollouts rollouts
	returns  returns
	volumes  volumes.Reader
}

// scope is what one pass observed.
type scope struct {
	policy *gm.PropagationPolicy
	// invalid is why the spec cannot be used, or nil.
	invalid error
	// unseen is what kept the pass from looking at workloads and pods, or nil.
	// There is nothing else to report then.
	unseen error
	apps   []*appScope
	// waits bring the policy back when time alone changes what is planned.
	waits []error
}

type appScope struct {
	observed
	plan
	// seen is when it was observed.
	seen           time.Time
	maxUnavailable int
	// anew is how many waiting pods of each cohort may still be made anew in this pass.
	anew map[seats.Cohort]int
	// evictions are those of this pass.
	evictions int
	// unread is why it is not known where volumes of its pods are, or nil.
	unread error
	// settlesAt is when the policy will have been as it is for long enough.
	settlesAt time.Time
}

// +kubebuilder:rbac:groups=groupmanagement.kubeedge.io,resources=propagationpolicies,verbs=get;list;watch
// +kubebuilder:rbac:groups=groupmanagement.kubeedge.io,resources=propagationpolicies/status,verbs=patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the controller. Call before walker and ledger are started.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.changed = &trigger.Source[ctrl.Request]{Synced: r.Synced, Debounce: debounce}
	r.Walker.OnChange(func(old, new *ownership.Object) {
		if new == nil {
			r.rollouts.forget(old.UID)
			r.returns.forget(old.UID)
		}
		for _, o := range []*ownership.Object{old, new} {
			if o != nil && o.Policies.RequiredPropagation != "" {
				r.changed.Add(request(o))
			}
		}
	})
	r.Ledger.OnChange(func(old, new *seats.Pod) {
		for _, pod := range []*seats.Pod{old, new} {
			if pod == nil {
				continue
			}
			if app := r.Walker.ApplicationOfOwner(pod.Owner()).Propagation; app != nil {
				r.changed.Add(request(app))
			}
		}
	})
	if err := policies.IndexGroups(mgr.GetFieldIndexer(), &gm.PropagationPolicy{}); err != nil {
		return err
	}
	r.Ledger.OnGroups(policies.WakeOfGroups(mgr.GetClient(), &gm.PropagationPolicyList{}, r.changed))
	r.Policies.OnHeld(func(uid types.UID) {
		if app := r.Walker.ApplicationOfOwner(uid).Propagation; app != nil {
			r.changed.Add(request(app))
		}
	})
	return ctrl.NewControllerManagedBy(mgr).
		For(&gm.PropagationPolicy{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&gm.PropagationPolicy{}, trigger.Handler(r.changed), builder.WithPredicates(trigger.StatusWritten)).
		WatchesRawSource(r.changed).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(phase.Backoff[ctrl.Request](r))
}

func request(app *ownership.Object) ctrl.Request {
	return ctrl.Request{NamespacedName: types.NamespacedName{Namespace: app.Namespace, Name: app.Policies.RequiredPropagation}}
}

// Reconcile runs the phases for one policy.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	policy := &gm.PropagationPolicy{}
	if err := r.Client.Get(ctx, req.NamespacedName, policy); err != nil {
		r.tallies.set(req.NamespacedName, tally{})
		r.changed.Took(req, 0)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if policy.DeletionTimestamp != nil {
		r.tallies.set(req.NamespacedName, tally{})
		return ctrl.Result{}, nil
	}
	s := &scope{policy: policy}
	observe := func(ctx context.Context, s *scope) error {
		began := time.Now()
		s.unseen = r.observe(ctx, s)
		r.changed.Took(req, time.Since(began))
		return errors.Join(append(s.waits, s.unseen)...)
	}
	return phase.Run(ctx, s, observe, r.reassign, r.evict, r.cost, r.report)
}

// observe gathers what is known of every workload and plans.
func (r *Reconciler) observe(ctx context.Context, s *scope) error {
	if _, s.invalid = placement.New(s.policy.Spec, r.Ledger.HasMembers, ""); s.invalid != nil {
		return nil //nolint:nilerr // report puts it into the condition
	}
	apps := r.Walker.Requiring(owners.Propagation, s.policy.Namespace, s.policy.Name)
	sort.Slice(apps, func(i, j int) bool {
		if apps[i].Kind != apps[j].Kind {
			return apps[i].Kind < apps[j].Kind
		}
		return apps[i].Name < apps[j].Name
	})
	for _, app := range apps {
		a, err := r.observeApp(ctx, s, app)
		if err != nil {
			s.apps = nil // half of the workloads are no ground to act on
			return err
		}
		s.apps = append(s.apps, a)
	}
	return nil
}

// observeApp gathers what is known of one workload and plans.
func (r *Reconciler) observeApp(ctx context.Context, s *scope, app *ownership.Object) (*appScope, error) {
	spread, err := r.Policies.Spread(s.policy, app.Ties())
	if err != nil {
		return nil, fmt.Errorf("using PropagationPolicy %s/%s: %w", s.policy.Namespace, s.policy.Name, err)
	}
	a := &appScope{seen: r.Clock.Now(), maxUnavailable: max(1, int(s.policy.Spec.Rescheduling.MaxUnavailable))}
	below := r.Walker.Descendants(app.UID)
	a.observed = observed{
		app: app, spread: spread, mode: s.policy.Spec.Rescheduling.Mode, canTake: r.canTake(ctx, a),
		cohorts: r.Ledger.View(below), refused: r.Walker.PodsRefused(below),
		held: r.held(below),
	}
	if a.mode == "" {
		a.mode = gm.ReschedulingEvict
	}
	a.settlesAt = r.Policies.SettlesAt(s.policy, app.Ties())
	if at := r.Policies.ChangesAt(s.policy, app.Ties()); !at.IsZero() {
		s.waits = append(s.waits, phase.Wait("a NodeGroup to be away", at.Sub(r.Clock.Now())))
	}
	r.setKind(&a.observed)
	a.anew = r.mayMakeAnew(&a.observed)
	s.waits = append(s.waits, r.standStill(a, s.policy))
	r.returns.see(&a.observed, r.Clock.Now())
	a.plan = planFor(a.observed)
	if r.learn(a) {
		a.canTake = r.canTake(ctx, a)
		a.plan = planFor(a.observed)
	}
	return a, nil
}

// held says why pods that wait at the gate cannot leave it, if there is such a
// reason: refusals of the API server, or an OverridePolicy that is not bound.
func (r *Reconciler) held(below []types.UID) string {
	if why := r.Policies.Held(below); why != "" {
		return "the API server refuses what would let them go: " + why
	}
	for _, uid := range below {
		o := r.Walker.ApplicationOfOwner(uid).Override
		if o == nil || o.IgnoreMissing {
			continue
		}
		if binding := o.Policies.Override(); binding == ownership.Unbound || binding == ownership.Mismatched {
			return fmt.Sprintf("OverridePolicy %q is not bound to their workload: its status says why", o.Policies.RequiredOverride)
		}
	}
	return ""
}

// moved tells whether pods of the workload that are surplus are moved.
func (o *observed) moved() bool { return o.evictable && o.mode == gm.ReschedulingEvict }

// setKind sets what follows from the kinds of the workload and of its pods'
// owners. The pods of Jobs would lose their work, those of DaemonSets come back
// where they were, and pods without an owner never. A Job wants the pods that
// it has: when it is done, none.
func (r *Reconciler) setKind(o *observed) {
	o.evictable, o.divided, o.complete = o.app.Kind != "Pod", true, true
	o.short = map[types.UID]bool{}
	pods := map[types.UID]int{} // one owner may have pods of several revisions
	all := 0
	for _, c := range o.cohorts {
		pods[c.Owner] += len(c.Pods)
		all += len(c.Pods)
	}
	for uid, n := range pods {
		owner := r.Walker.Get(uid)
		if owner == nil {
			o.evictable, o.complete = false, false
			continue
		}
		ofJob := owner.Kind == "Job" || r.Walker.OfJob(owner.Controller)
		o.evictable = o.evictable && !ofJob && owner.Kind != "DaemonSet"
		o.divided = o.divided && owner.Kind != "DaemonSet"
		o.sticky = o.sticky || owner.Kind == "StatefulSet"
		o.complete = o.complete && owner.Replicas != nil && int(*owner.Replicas) == n
		o.short[uid] = owner.Replicas != nil && n < int(*owner.Replicas)
		if owner.Replicas != nil && owner.Kind != "Job" {
			o.replicas += int(*owner.Replicas)
		}
	}
	o.divided = o.divided && o.app.Kind != "DaemonSet"
	if o.app.Replicas != nil && o.app.Kind != "Job" {
		o.replicas = int(*o.app.Replicas)
	}
	o.complete = o.complete && all >= o.replicas
}

// report writes the status, if it changed.
func (r *Reconciler) report(ctx context.Context, s *scope) error {
	if s.unseen == nil {
		r.tallies.set(client.ObjectKeyFromObject(s.policy), tallyOf(s))
	}
	before := s.policy.DeepCopy()
	setStatus(s)
	return patch.Status(ctx, r.Client, s.policy, before)
}
