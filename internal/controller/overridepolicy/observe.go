package overridepolicy

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sort"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/budget"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// scope is what one pass observed.
type scope struct {
	policy *gm.OverridePolicy
	rules  *override.Rules
	// invalid is the first reason why the spec cannot be used, or nil.
	invalid error
	// again is a wait for room for a policy that was not read, or nil.
	again error
	// unseen is why the pass could not observe workloads and pods, or nil. The status
	// then reports nothing else.
	unseen    error
	workloads []*workload
}

// workload is what one pass observed of one workload.
type workload struct {
	object *ownership.Object
	// replicas is the number of pods that the workload wants.
	replicas int
	// maxUnavailable, mode and stabilization are those of the workload's
	// PropagationPolicy, or the defaults without one.
	maxUnavailable int
	mode           gm.ReschedulingMode
	stabilization  time.Duration
	// due are the pods whose images are to change in place, in the order of the changes.
	due []duePod
	// stale are the pods that were not created as the rules want them.
	stale []seats.SeatView
	// missedAt is the creation of the newest pod that did not pass the pod webhook, and
	// admittedAt of the newest that did; zero if there is none.
	missedAt, admittedAt time.Time
	// onlyOne: new pods bypass the webhook, so no more than one pod is replaced, and none
	// for the time bypassedFor.
	onlyOne     bool
	bypassedFor time.Duration
	// missing is how many pods the workload has too few.
	missing int
	// unusable: the rules cannot be used for the workload, so it must not be bound to the
	// policy. It may still be for a moment.
	unusable bool
	// untried: it is not known whether the API server accepts the pods that the rules
	// make. untriedWhy is why the trial failed, or nil. doubt is why the API server would
	// refuse the successor of a running pod with and without the rules, or nil.
	untried           bool
	untriedWhy, doubt error
	// refused is the error with which the API server refuses new pods of the workload, as
	// the pods' owner reports it; "" if there is none.
	refused string
	// blocked is why pods are not replaced or restarted for now, or nil.
	blocked error
	// pods is the number of pods on nodes of groups, updated of those that are as the
	// rules want, and kept of those that stay as they started: pods of Jobs, and pods whose
	// containers may not be started again.
	pods, updated, kept int
	// failure is why the rules cannot be used for the workload or for one of its pods, or
	// nil.
	failure error
}

// duePod is a pod whose images are to change in place.
type duePod struct {
	*seats.Pod
	group  string
	change policies.ImageChange
}

// observe observes every workload that requires the policy.
func (r *Reconciler) observe(ctx context.Context, s *scope) error {
	if s.invalid, s.again = r.Policies.Unread(s.policy); s.invalid != nil {
		return nil //nolint:nilerr // report puts it into the condition
	}
	rules, errs := r.Policies.Rules(s.policy)
	if len(errs) > 0 {
		s.invalid = errs[0]
		return nil
	}
	s.rules = rules
	objects := r.Walker.Requiring(owners.Override, s.policy.Namespace, s.policy.Name)
	slices.SortFunc(objects, func(a, b *ownership.Object) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	for _, object := range objects {
		w := &workload{object: object, mode: gm.ReschedulingEvict, maxUnavailable: 1, stabilization: gm.DefaultStabilization}
		if err := r.observeWorkload(ctx, s, w); err != nil {
			s.workloads = nil // no phase acts on a part of the workloads
			return err
		}
		s.workloads = append(s.workloads, w)
	}
	return nil
}

// observeWorkload observes one workload and its pods.
func (r *Reconciler) observeWorkload(ctx context.Context, s *scope, w *workload) error {
	if name := w.object.Policies.RequiredPropagation; name != "" {
		propagation, err := r.Policies.Propagation(ctx, w.object.Namespace, name)
		switch {
		case budget.IsUnread(err): // its mode is not known, so running pods stay
			w.mode = gm.ReschedulingOnRollout
		case client.IgnoreNotFound(err) != nil:
			return err
		case err == nil:
			if mode := propagation.Spec.Rescheduling.Mode; mode != "" {
				w.mode = mode
			}
			w.maxUnavailable = max(1, int(propagation.Spec.Rescheduling.MaxUnavailable))
			w.stabilization = propagation.Spec.Rescheduling.Stabilization()
		}
	}
	w.failure = r.Policies.Usable(ctx, w.object, s.rules)
	w.unusable = w.failure != nil
	if plan := r.Policies.TrialPlan(ctx, w.object, s.policy, s.rules); len(plan.Groups) > 0 {
		trial, _ := r.Policies.Trial(w.object.UID)
		w.untried = trial.Key != plan.Key || trial.Untried != nil || trial.Doubt != nil
		w.untriedWhy, w.doubt = trial.Untried, trial.Doubt
	}
	below := r.Walker.Descendants(w.object.UID)
	w.refused = r.Walker.PodsRefused(below)
	cohorts := r.Ledger.View(below)
	for _, cohort := range cohorts {
		for _, pod := range cohort.Pods {
			r.observePod(s, w, pod)
		}
	}
	r.observeReplicas(w, below, cohorts)
	w.onlyOne, w.bypassedFor = r.memory.see(w, r.Clock.Now())
	// Nothing is lost with pods that are not available, so they come first.
	sort.SliceStable(w.due, func(i, j int) bool { return !w.due[i].Available() && w.due[j].Available() })
	return nil
}

// observeReplicas sets how many pods the workload wants, and how many of those are
// missing. The number is the workload's own, or the sum of those of its pods' owners. A
// Job counts as wanting the pods that it has: when it is done, it wants none.
func (r *Reconciler) observeReplicas(w *workload, below []types.UID, cohorts []seats.CohortView) {
	sized := w.object.Replicas != nil && w.object.Kind != "Job"
	if sized {
		w.replicas = int(*w.object.Replicas)
	}
	active, counted := 0, map[types.UID]bool{} // one owner may have pods of several revisions
	for _, cohort := range cohorts {
		active += len(cohort.Pods)
		owner := r.Walker.Get(cohort.Owner)
		switch {
		case sized:
		case owner != nil && owner.Replicas != nil && owner.Kind != "Job":
			if !counted[owner.UID] {
				w.replicas += int(*owner.Replicas)
			}
			counted[owner.UID] = true
		default:
			w.replicas += len(cohort.Pods)
		}
	}
	if !w.object.Deleting && !r.ofJobs(below) {
		w.missing = max(0, w.replicas-active)
	}
}

// ofJobs returns whether a Job is among the owners.
func (r *Reconciler) ofJobs(owners []types.UID) bool {
	for _, uid := range owners {
		if o := r.Walker.Get(uid); o != nil && o.Kind == "Job" {
			return true
		}
	}
	return false
}

// observePod compares one pod with the rules. Pods on nodes of no group are not compared.
func (r *Reconciler) observePod(s *scope, w *workload, pod seats.SeatView) {
	newest := &w.missedAt
	if pod.Admitted {
		newest = &w.admittedAt
	}
	if pod.Created.After(*newest) {
		*newest = pod.Created
	}
	if pod.Node == "" {
		r.observeWaiting(s, w, pod)
		return
	}
	if pod.Group == "" {
		return
	}
	w.pods++
	change, err := policies.Images(s.rules, pod.Group, pod.Pod)
	switch stale := s.rules.FixedHash(pod.Group) != pod.Overrides; {
	case stale && r.Walker.OfJob(pod.Controller) && err == nil && change.Needed() && change.Starts():
		w.due = append(w.due, duePod{pod.Pod, pod.Group, change}) // it is not recreated, and cannot start as it is
	case stale && r.Walker.OfJob(pod.Controller):
		w.kept++
	case stale:
		w.stale = append(w.stale, pod)
	case err != nil:
		w.failure = err
	case change.Needed() && pod.RunsOnce && !change.Starts():
		// The kubelet ends a container before it pulls the other image. If that fails once, a
		// Job counts the pod as done. A pod that went past the webhook may wait for ever for an
		// image that only the rules make one of this group: it has nothing to lose.
		w.kept++
	case change.Needed():
		w.due = append(w.due, duePod{pod.Pod, pod.Group, change})
	default:
		w.updated++
	}
}

// observeWaiting compares a pod that has no node with the rules. The controller of
// workloads replaces pods at the scheduling gate; of those it only reports why they
// cannot leave the gate.
func (r *Reconciler) observeWaiting(s *scope, w *workload, pod seats.SeatView) {
	switch {
	case pod.Unassigned != "":
		version, why, _ := strings.Cut(pod.Unassigned, " ")
		if version == policies.Version(s.policy) {
			w.failure = errors.New(why)
		}
	case pod.Pinned():
		if s.rules.FixedHash(pod.Group) != pod.Overrides {
			w.stale = append(w.stale, pod)
		} else if change, err := policies.Images(s.rules, pod.Group, pod.Pod); err == nil && change.Needed() && !pod.Gated && !pod.RunsOnce {
			w.due = append(w.due, duePod{pod.Pod, pod.Group, change}) // nothing else overrides it when it gets a node
		}
	case pod.Gated:
	default:
		if err := bindable(s.rules, pod.Pod); err != nil {
			w.failure = err
		}
		missed := s.rules.TouchesImmutableAnywhere() || pod.Overrides != ""
		if pod.For != "" { // a pod of a DaemonSet has no seat, but its node is known
			missed = s.rules.FixedHash(r.Ledger.NodeGroup(pod.For)) != pod.Overrides
		}
		if missed { // it did not pass the pod webhook
			w.stale = append(w.stale, pod)
		}
	}
}

// bindable returns the error of the first rule that cannot be applied to a waiting pod, in
// any group of the rules, because the pod may be bound to a node of each of them.
func bindable(rules *override.Rules, pod *seats.Pod) error {
	for _, group := range rules.Groups() {
		if _, err := policies.Images(rules, group, pod); err != nil {
			return err
		}
	}
	return nil
}
