package propagationpolicy

import (
	"cmp"
	"context"
	"slices"
	"time"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/domain/placement/rebalance"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/survey"
)

// scope is what one pass observed.
type scope struct {
	policy *gm.PropagationPolicy
	// invalid is why the spec cannot be used, or nil.
	invalid error
	// unseen is why the pass could not observe workloads and pods, or nil. The status
	// then reports nothing else.
	unseen    error
	workloads []*workload
	// waits requeue the policy when time alone changes the plan.
	waits []error
}

// workload is what one pass observed of one workload, and its plan.
type workload struct {
	*survey.Workload

	plan rebalance.Plan
	// seen is the time of the observation.
	seen           time.Time
	maxUnavailable int
	// recreatable is how many waiting pods of each cohort may still be recreated in this
	// pass.
	recreatable map[seats.Cohort]int
	// evictions is the number of surplus pods that this pass has evicted.
	evictions int
	// settlesAt is when the policy and its groups will have stayed the same for
	// spec.rescheduling.stabilizationSeconds.
	settlesAt time.Time
}

// observe observes every workload that requires the policy, and plans for it.
func (r *Reconciler) observe(ctx context.Context, s *scope) error {
	if unread, wait := r.Policies.Unread(s.policy); unread != nil {
		s.invalid, s.waits = unread, append(s.waits, wait)
		return nil //nolint:nilerr // report puts it into the condition
	}
	if _, s.invalid = r.Policies.Spread(s.policy, ""); s.invalid != nil {
		return nil //nolint:nilerr // report puts it into the condition
	}
	objects := r.Walker.Requiring(owners.Propagation, s.policy.Namespace, s.policy.Name)
	slices.SortFunc(objects, func(a, b *ownership.Object) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	for _, object := range objects {
		w, err := r.observeWorkload(ctx, s, object)
		if err != nil {
			s.workloads = nil // no phase acts on a part of the workloads
			return err
		}
		s.workloads = append(s.workloads, w)
	}
	return nil
}

// observeWorkload observes one workload and plans for it.
func (r *Reconciler) observeWorkload(ctx context.Context, s *scope, object *ownership.Object) (*workload, error) {
	observed, err := r.Workload(ctx, s.policy, object)
	if err != nil {
		return nil, err
	}
	w := &workload{Workload: observed, seen: r.Clock.Now(), maxUnavailable: max(1, int(s.policy.Spec.Rescheduling.MaxUnavailable))}
	w.settlesAt = r.Policies.SettlesAt(s.policy)
	if at := r.Policies.ChangesAt(s.policy); !at.IsZero() {
		s.waits = append(s.waits, phase.Wait("a NodeGroup to be away", at.Sub(r.Clock.Now())))
	}
	w.recreatable = r.recreatable(w)
	s.waits = append(s.waits, r.observeRollout(w, s.policy.Spec.Rescheduling.Stabilization()))
	r.memory.see(w, r.Clock.Now())
	w.plan = rebalance.NewPlan(&w.Observed)
	if r.avoidFailed(w) {
		w.Observed.CanTake = r.CanTake(ctx, w.Workload)
		w.plan = rebalance.NewPlan(&w.Observed)
	}
	return w, nil
}

// observeRollout sets whether the workload may be balanced. It returns a wait if that
// changes with time alone.
func (r *Reconciler) observeRollout(w *workload, stabilization time.Duration) error {
	var left time.Duration
	w.Observed.Balanced, left = r.memory.settled(w, r.Clock.Now(), stabilization)
	if left <= 0 {
		return nil
	}
	return phase.Wait("the rollout to stand still", left)
}

// avoidFailed makes the owners of a rollout that stands still avoid the groups that lack
// pods, if the last pod that was moved did not come there: kube-scheduler may have a
// reason that canTake does not check. It returns whether any group is avoided now.
func (r *Reconciler) avoidFailed(w *workload) (avoids bool) {
	if !w.Observed.Balanced || len(w.Cohorts) <= 1 || !r.memory.failed(w) {
		return false
	}
	for _, group := range w.Observed.Lacking() {
		for _, c := range w.Cohorts {
			r.Ledger.Avoid(c.Pods[0].Pod, group, w.owners()...)
			avoids = true
		}
	}
	return avoids
}
