package propagationpolicy

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
	"github.com/atoll-k8s/atoll/internal/domain/placement/rebalance"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/seats"
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
	object *ownership.Object
	// cohorts are the active pods as the ledger shows them, and pods are the same pods
	// by UID.
	cohorts []seats.CohortView
	pods    map[types.UID]*seats.Pod
	// observed is what the plan depends on. Its cohorts and their pods have the same
	// indexes as cohorts.
	observed rebalance.Workload
	plan     rebalance.Plan
	// short are the owners that have fewer pods than they want.
	short map[types.UID]bool
	// seen is the time of the observation.
	seen           time.Time
	maxUnavailable int
	// recreatable is how many waiting pods of each cohort may still be recreated in this
	// pass.
	recreatable map[seats.Cohort]int
	// evictions is the number of surplus pods that this pass has evicted.
	evictions int
	// unread is why the volumes of a pod could not be read, or nil.
	unread error
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
	spread, err := r.Policies.Spread(s.policy, object.Ties())
	if err != nil {
		return nil, fmt.Errorf("using PropagationPolicy %s/%s: %w", s.policy.Namespace, s.policy.Name, err)
	}
	w := &workload{object: object, seen: r.Clock.Now(), maxUnavailable: max(1, int(s.policy.Spec.Rescheduling.MaxUnavailable))}
	below := r.Walker.Descendants(object.UID)
	w.observed = rebalance.Workload{
		Ref:    gm.WorkloadReference{APIVersion: object.GroupVersion().String(), Kind: object.Kind, Name: object.Name},
		Spread: spread, Mode: s.policy.Spec.Rescheduling.Mode,
		CanTake: r.canTake(ctx, w), Further: further,
		Refused: conditions.Bounded(r.Walker.PodsRefused(below)), Held: conditions.Bounded(r.held(below)),
	}
	if w.observed.Mode == "" {
		w.observed.Mode = gm.ReschedulingEvict
	}
	w.settlesAt = r.Policies.SettlesAt(s.policy)
	if at := r.Policies.ChangesAt(s.policy); !at.IsZero() {
		s.waits = append(s.waits, phase.Wait("a NodeGroup to be away", at.Sub(r.Clock.Now())))
	}
	r.observePods(w, below)
	r.observeOwners(w)
	w.recreatable = r.recreatable(w)
	s.waits = append(s.waits, r.observeRollout(w, s.policy.Spec.Rescheduling.Stabilization()))
	r.memory.see(w, r.Clock.Now())
	w.plan = rebalance.NewPlan(&w.observed)
	if r.avoidFailed(w) {
		w.observed.CanTake = r.canTake(ctx, w)
		w.plan = rebalance.NewPlan(&w.observed)
	}
	return w, nil
}

// observePods reads the workload's active pods from the ledger.
func (r *Reconciler) observePods(w *workload, below []types.UID) {
	w.cohorts = r.Ledger.View(below)
	w.pods = map[types.UID]*seats.Pod{}
	for _, view := range w.cohorts {
		for _, pod := range view.Pods {
			w.pods[pod.UID] = pod.Pod
		}
	}
	w.observed.Cohorts = cohortsOf(w.cohorts, func(uid types.UID) bool {
		owner := r.Walker.Get(uid)
		return owner != nil && owner.Kind == "ReplicaSet"
	})
	for i := range w.observed.Cohorts {
		c := &w.observed.Cohorts[i]
		c.Part = c.Owner
		if divided := ownership.Divided(r.Walker.Above(c.Owner), w.object.UID); divided != nil {
			c.Part, c.Wanted = divided.UID, wanted(divided)
		}
	}
}

// wanted returns the number of pods that an owner wants; 0 if it has none, and for a Job: when it
// is done, it wants none.
func wanted(owner *ownership.Object) int {
	if owner.Replicas == nil || owner.Kind == "Job" {
		return 0
	}
	return int(*owner.Replicas)
}

// cohortsOf returns the cohorts as plans see them, with the same indexes.
func cohortsOf(views []seats.CohortView, isReplicaSet func(owner types.UID) bool) []rebalance.Cohort {
	cohorts := make([]rebalance.Cohort, len(views))
	for i, view := range views {
		c := rebalance.Cohort{CohortKey: keyOf(view.Cohort), OfReplicaSet: isReplicaSet(view.Owner), Pods: make([]rebalance.Pod, len(view.Pods))}
		for j, pod := range view.Pods {
			c.Pods[j] = rebalance.Pod{
				Candidate: placement.Candidate{
					UID: pod.UID, Node: pod.Node, Bound: pod.Node != "", Ready: pod.Ready,
					DeletionCost: pod.DeletionCost, Created: pod.Created,
				},
				Name: pod.Name, Group: pod.Group, Seated: pod.Seated, Pinned: pod.Pinned(), Gated: pod.Gated, OtherGate: pod.OtherGate,
				NamesNode: pod.NamesNode, Lost: pod.Lost, Available: pod.Available(), HasCost: pod.HasCost, UserCost: pod.UserCost(),
			}
		}
		cohorts[i] = c
	}
	return cohorts
}

func keyOf(c seats.Cohort) rebalance.CohortKey {
	return rebalance.CohortKey{Owner: c.Owner, Revision: c.Revision}
}

// held returns why pods of these owners cannot leave the scheduling gate: the API server
// refuses a change of them, or an OverridePolicy is not bound. It returns "" if they can.
func (r *Reconciler) held(below []types.UID) string {
	if why := r.Policies.Held(below); why != "" {
		return "the API server refuses the change that would take the gate off: " + why
	}
	for _, uid := range below {
		o := r.Walker.PolicyOwnersOf(uid).Override
		if o == nil || o.IgnoreMissing {
			continue
		}
		if binding := o.Policies.Override(); binding == ownership.Unbound || binding == ownership.Mismatched {
			return fmt.Sprintf("OverridePolicy %q is not bound to their workload: its status says why", o.Policies.RequiredOverride)
		}
	}
	return ""
}

// observeOwners sets what follows from the kinds and the replicas of the workload and of
// its pods' owners. Pods of Jobs are not evictable because their work would be lost,
// those of DaemonSets because the successor comes to the same node, and pods without an
// owner because they get no successor. A Job counts as wanting the pods that it has: when
// it is done, it wants none.
func (r *Reconciler) observeOwners(w *workload) {
	o := &w.observed
	o.Evictable, o.Divided, o.Complete = w.object.Kind != "Pod", true, true
	w.short = map[types.UID]bool{}
	pods := map[types.UID]int{} // one owner may have pods of several revisions
	all := 0
	for _, c := range w.cohorts {
		pods[c.Owner] += len(c.Pods)
		all += len(c.Pods)
	}
	for uid, n := range pods {
		owner := r.Walker.Get(uid)
		if owner == nil {
			o.Evictable, o.Complete = false, false
			continue
		}
		ofJob := owner.Kind == "Job" || r.Walker.OfJob(owner.Controller)
		o.Evictable = o.Evictable && !ofJob && owner.Kind != "DaemonSet"
		o.Divided = o.Divided && owner.Kind != "DaemonSet"
		o.Sticky = o.Sticky || owner.Kind == "StatefulSet"
		o.Complete = o.Complete && owner.Replicas != nil && int(*owner.Replicas) == n
		w.short[uid] = owner.Replicas != nil && n < int(*owner.Replicas)
		o.Replicas += wanted(owner)
	}
	o.Divided = o.Divided && w.object.Kind != "DaemonSet"
	if w.object.Replicas != nil && w.object.Kind != "Job" {
		o.Replicas = int(*w.object.Replicas)
	}
	o.Complete = o.Complete && all >= o.Replicas
}

// observeRollout sets whether the workload may be balanced. It returns a wait if that
// changes with time alone.
func (r *Reconciler) observeRollout(w *workload, stabilization time.Duration) error {
	var left time.Duration
	w.observed.Balanced, left = r.memory.settled(w, r.Clock.Now(), stabilization)
	if left <= 0 {
		return nil
	}
	return phase.Wait("the rollout to stand still", left)
}

// avoidFailed makes the owners of a rollout that stands still avoid the groups that lack
// pods, if the last pod that was moved did not come there: kube-scheduler may have a
// reason that canTake does not check. It returns whether any group is avoided now.
func (r *Reconciler) avoidFailed(w *workload) (avoids bool) {
	if !w.observed.Balanced || len(w.cohorts) <= 1 || !r.memory.failed(w) {
		return false
	}
	for _, group := range w.observed.Lacking() {
		for _, c := range w.cohorts {
			r.Ledger.Avoid(c.Pods[0].Pod, group, w.owners()...)
			avoids = true
		}
	}
	return avoids
}
