// Package overridepolicy reconciles OverridePolicies: for every workload that
// requires one it compares the images of running pods with what the rules of
// their groups want,
//
//	observe ─► update (images in place, paced)
//	        ─► replace (pods that differ in what cannot change, paced) ─► status
//
// (docs/sources.md, G16 to G20). New pods get their images before
// they are bound, from the extender, or every override at creation, from the
// pod webhook; this is for the pods that ran before, and for rules that change.
// A container whose image changes restarts in place.
package overridepolicy

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
)

const (
	// debounce gathers the many changes of a burst into one pass.
	debounce = 200 * time.Millisecond
	// retryDisruption is how soon is asked again whether a pod may restart.
	retryDisruption = 5 * time.Second
	// maxShown bounds the workloads in a status.
	maxShown = 50
	// workers bounds the policies that are reconciled at a time.
	workers = 4
)

// Reconciler changes images in place and reports.
type Reconciler struct {
	Client   client.Client
	Pods     kubernetes.Interface
	Walker   *owners.Walker
	Ledger   *seats.Ledger
	Policies *policies.Resolver
	Recorder events.EventRecorder
	Evictor  *eviction.Evictor
	Clock    clock.PassiveClock
	// Synced tells whether walk and ledger know everything.
	Synced func() bool

	changed  *trigger.Source[ctrl.Request]
	bypasses bypasses
}

// scope is what one pass observed.
type scope struct {
	policy *gm.OverridePolicy
	rules  *override.Rules
	// invalid is the first reason why the spec cannot be used, or nil.
	invalid error
	// unseen is what kept the pass from looking at workloads and pods, or nil.
	// There is nothing else to report then.
	unseen error
	apps   []*appScope
}

// appScope is what was observed of one workload.
type appScope struct {
	app            *ownership.Object
	replicas       int
	maxUnavailable int
	mode           gm.ReschedulingMode
	stabilization  time.Duration
	// due are the pods whose images are not as wanted, in the order in which
	// they are changed.
	due []duePod
	// stale are the pods that were not created as wanted, in the order in which
	// they are replaced.
	stale []seats.SeatView
	// missedAt and admittedAt are when the newest pods were created that did not
	// pass the pod webhook, and that did.
	missedAt, admittedAt time.Time
	// onlyOne: new pods bypass the webhook, so no more than one pod is replaced,
	// and none for the time bypassedFor.
	onlyOne     bool
	bypassedFor time.Duration
	// missing is how many pods the workload has too few.
	missing int
	// unusable: the workload is not to be bound to the policy, and will not be for long.
	unusable bool
	// untried: it is not known yet whether the API server takes the pods that the
	// rules make; why tells what keeps it from being found out, if anything does.
	untried bool
	why     error
	// refused is why the API server creates no pod of the workload, or "".
	refused string
	// blocked is what keeps pods from being replaced for now.
	blocked error
	// pods in groups, and those among them that are as wanted, and those of Jobs,
	// which stay as they started.
	pods, updated, kept int
	// failure names the rule that cannot be applied to a pod.
	failure error
}

type duePod struct {
	*seats.Pod
	group  string
	change policies.ImageChange
}

// +kubebuilder:rbac:groups=groupmanagement.kubeedge.io,resources=overridepolicies,verbs=get;list;watch
// +kubebuilder:rbac:groups=groupmanagement.kubeedge.io,resources=overridepolicies/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the controller. Call before walker and ledger are started.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.changed = &trigger.Source[ctrl.Request]{Synced: r.Synced, Debounce: debounce}
	r.Walker.OnChange(func(old, new *ownership.Object) {
		if new == nil {
			r.bypasses.forget(old.UID)
		}
		for _, o := range []*ownership.Object{old, new} {
			if o != nil && o.Policies.RequiredOverride != "" {
				r.changed.Add(request(o))
			}
		}
	})
	r.Ledger.OnChange(func(old, new *seats.Pod) {
		for _, pod := range []*seats.Pod{old, new} {
			if pod == nil {
				continue
			}
			if app := r.Walker.ApplicationOfOwner(pod.Owner()).Override; app != nil {
				r.changed.Add(request(app))
			}
		}
	})
	if err := policies.IndexGroups(mgr.GetFieldIndexer(), &gm.OverridePolicy{}); err != nil {
		return err
	}
	r.Ledger.OnGroups(policies.WakeOfGroups(mgr.GetClient(), &gm.OverridePolicyList{}, r.changed))
	r.Policies.OnTrial(func(app types.UID) {
		if o := r.Walker.Get(app); o != nil && o.Policies.RequiredOverride != "" {
			r.changed.Add(request(o))
		}
	})
	return ctrl.NewControllerManagedBy(mgr).
		For(&gm.OverridePolicy{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&gm.OverridePolicy{}, trigger.Handler(r.changed), builder.WithPredicates(trigger.StatusWritten)).
		WatchesRawSource(r.changed).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(phase.Backoff[ctrl.Request](r))
}

func request(app *ownership.Object) ctrl.Request {
	return ctrl.Request{NamespacedName: types.NamespacedName{Namespace: app.Namespace, Name: app.Policies.RequiredOverride}}
}

// Reconcile runs the phases for one policy.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	policy := &gm.OverridePolicy{}
	if err := r.Client.Get(ctx, req.NamespacedName, policy); err != nil {
		r.changed.Took(req, 0)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if policy.DeletionTimestamp != nil {
		return ctrl.Result{}, nil
	}
	s := &scope{policy: policy}
	observe := func(ctx context.Context, s *scope) error {
		began := time.Now()
		s.unseen = r.observe(ctx, s)
		r.changed.Took(req, time.Since(began))
		return s.unseen
	}
	return phase.Run(ctx, s, observe, r.update, r.replace, r.report)
}

// observe finds the pods whose images are not as wanted.
func (r *Reconciler) observe(ctx context.Context, s *scope) error {
	rules, errs := r.Policies.Rules(s.policy)
	if len(errs) > 0 {
		s.invalid = errs[0]
		return nil
	}
	s.rules = rules
	apps := r.Walker.Requiring(owners.Override, s.policy.Namespace, s.policy.Name)
	sort.Slice(apps, func(i, j int) bool {
		if apps[i].Kind != apps[j].Kind {
			return apps[i].Kind < apps[j].Kind
		}
		return apps[i].Name < apps[j].Name
	})
	for _, app := range apps {
		a := &appScope{app: app, mode: gm.ReschedulingEvict, maxUnavailable: 1, stabilization: gm.DefaultStabilization}
		if err := r.observeApp(ctx, s, a); err != nil {
			s.apps = nil // half of the workloads are no ground to act on
			return err
		}
		s.apps = append(s.apps, a)
	}
	return nil
}

func (r *Reconciler) observeApp(ctx context.Context, s *scope, a *appScope) error {
	if name := a.app.Policies.RequiredPropagation; name != "" {
		propagation, err := r.Policies.Propagation(ctx, a.app.Namespace, name)
		if client.IgnoreNotFound(err) != nil {
			return err
		}
		if err == nil {
			if mode := propagation.Spec.Rescheduling.Mode; mode != "" {
				a.mode = mode
			}
			a.maxUnavailable = max(1, int(propagation.Spec.Rescheduling.MaxUnavailable))
			a.stabilization = propagation.Spec.Rescheduling.Stabilization()
		}
	}
	a.failure = r.Policies.Usable(ctx, a.app, s.rules)
	a.unusable = a.failure != nil
	if plan := r.Policies.TrialPlan(ctx, a.app, s.policy, s.rules); len(plan.Groups) > 0 {
		trial, _ := r.Policies.Trial(a.app.UID)
		a.untried, a.why = trial.Key != plan.Key || trial.Untried != nil, trial.Untried
	}
	sized := a.app.Replicas != nil && a.app.Kind != "Job"
	if sized {
		a.replicas = int(*a.app.Replicas)
	}
	below := r.Walker.Descendants(a.app.UID)
	a.refused = r.Walker.PodsRefused(below)
	active, counted := 0, map[types.UID]bool{} // one owner may have pods of several revisions
	for _, cohort := range r.Ledger.View(below) {
		owner := r.Walker.Get(cohort.Owner)
		switch {
		case sized:
		case owner != nil && owner.Replicas != nil && owner.Kind != "Job":
			if !counted[owner.UID] {
				a.replicas += int(*owner.Replicas)
			}
			counted[owner.UID] = true
		default: // a Job wants the pods that it has
			a.replicas += len(cohort.Pods)
		}
		active += len(cohort.Pods)
		for _, pod := range cohort.Pods {
			newest := &a.missedAt
			if pod.Admitted {
				newest = &a.admittedAt
			}
			if pod.Created.After(*newest) {
				*newest = pod.Created
			}
			if pod.Node == "" {
				r.observeWaiting(s, a, pod)
				continue
			}
			if pod.Group == "" {
				continue
			}
			a.pods++
			change, err := policies.Images(s.rules, pod.Group, pod.Pod)
			switch stale := s.rules.FixedHash(pod.Group) != pod.Overrides; {
			case stale && r.Walker.OfJob(pod.Controller):
				a.kept++
			case stale:
				a.stale = append(a.stale, pod)
			case err != nil:
				a.failure = err
			case change.Needed():
				a.due = append(a.due, duePod{pod.Pod, pod.Group, change})
			default:
				a.updated++
			}
		}
	}
	a.onlyOne, a.bypassedFor = r.bypasses.check(a.app.UID, a.missedAt, a.admittedAt, r.Clock.Now())
	if !a.app.Deleting && !r.ofJobs(below) {
		a.missing = max(0, a.replicas-active)
	}
	// Pods that do no work lose nothing: they are first.
	sort.SliceStable(a.due, func(i, j int) bool { return !a.due[i].Available() && a.due[j].Available() })
	sort.SliceStable(a.stale, func(i, j int) bool { return !a.stale[i].Available() && a.stale[j].Available() })
	return nil
}

// ofJobs tells whether a Job is among the owners: its pods end, and then none of
// them is missing.
func (r *Reconciler) ofJobs(owners []types.UID) bool {
	for _, uid := range owners {
		if o := r.Walker.Get(uid); o != nil && o.Kind == "Job" {
			return true
		}
	}
	return false
}

// observeWaiting looks at a pod that has no node.
func (r *Reconciler) observeWaiting(s *scope, a *appScope, pod seats.SeatView) {
	switch {
	case pod.Unassigned != "":
		version, why, _ := strings.Cut(pod.Unassigned, " ")
		if version == policies.Version(s.policy) {
			a.failure = errors.New(why)
		}
	case pod.Pinned():
		if s.rules.FixedHash(pod.Group) != pod.Overrides {
			a.stale = append(a.stale, pod)
		}
	case pod.Gated:
	default:
		if err := bindable(s.rules, pod.Pod); err != nil {
			a.failure = err
		}
		missed := s.rules.TouchesImmutableAnywhere() || pod.Overrides != ""
		if pod.For != "" { // of a DaemonSet: its group is known, and it has no seat
			missed = s.rules.FixedHash(r.Ledger.NodeGroup(pod.For)) != pod.Overrides
		}
		if missed {
			a.stale = append(a.stale, pod) // the webhook did not see it
		}
	}
}

// bindable tells why a pod that waits could not be bound: a rule of a group
// that it may be sent to cannot be applied to it.
func bindable(rules *override.Rules, pod *seats.Pod) error {
	for _, group := range rules.Groups() {
		if _, err := policies.Images(rules, group, pod); err != nil {
			return err
		}
	}
	return nil
}

// update changes the images of as many pods of each workload as may be
// disturbed now.
func (r *Reconciler) update(ctx context.Context, s *scope) error {
	var errs []error
	for _, a := range s.apps {
		if a.mode != gm.ReschedulingEvict || a.unusable || a.app.Policies.Override() != ownership.Bound {
			continue
		}
		if err := r.updatePods(ctx, s, a); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (r *Reconciler) updatePods(ctx context.Context, s *scope, a *appScope) error {
	below := r.Walker.Descendants(a.app.UID)
	var conflicts []error // stand in no other pod's way
	for _, pod := range a.due {
		settlesAt := r.Ledger.MovedAt(pod.group).Add(a.stabilization)
		if left := settlesAt.Sub(r.Clock.Now()); left > 0 {
			return phase.Wait("the NodeGroup to stay as it is", left)
		}
		// A pod that does no work, or whose containers go on, loses nothing.
		costs := pod.Available() && pod.change.Restarts()
		if costs && a.refused != "" {
			a.blocked = errRefused
			continue
		}
		if costs && !r.Ledger.Disrupt(pod.UID, below, a.replicas, a.maxUnavailable) {
			return phase.Wait("other pods of the workload to be available", retryDisruption)
		}
		app := r.Walker.ApplicationOfOwner(pod.Owner())
		raw, err := pod.change.Patch(r.Policies.PodLabels(app, pod.Pod, pod.group))
		if err == nil {
			_, err = r.Pods.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, raw, metav1.PatchOptions{})
		}
		if err != nil {
			r.Ledger.Undisrupt(pod.UID)
			if apierrors.IsNotFound(err) || patch.AnotherOfThatName(err) {
				continue
			}
			err = fmt.Errorf("overriding images of pod %s: %w", pod.Key(), err)
			if apierrors.IsConflict(err) {
				conflicts = append(conflicts, err)
				continue
			}
			return err
		}
		imageUpdatesTotal.Inc()
		log.FromContext(ctx).Info("Changed a pod's images in place", "pod", pod.Key(), "nodeGroup", pod.group, "overridePolicy", s.policy.Name)
		ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
		r.Recorder.Eventf(ref, nil, corev1.EventTypeNormal, "ImagesOverridden", "Override",
			"Changed images as OverridePolicy %q wants them in NodeGroup %q", s.policy.Name, pod.group)
	}
	return errors.Join(conflicts...)
}

// report writes the status, if it changed.
func (r *Reconciler) report(ctx context.Context, s *scope) error {
	before := s.policy.DeepCopy()
	setStatus(s)
	return patch.Status(ctx, r.Client, s.policy, before)
}
