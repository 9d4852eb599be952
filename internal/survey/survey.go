// Package survey observes a workload of a PropagationPolicy as the plans of
// internal/domain/placement/rebalance see it. The controller does so from its caches, and kubectl
// atoll plan from lists: so what is printed is what would be done.
//
// It decides nothing, and writes nothing.
package survey

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/clock"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
	"github.com/atoll-k8s/atoll/internal/domain/placement/rebalance"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
	"github.com/atoll-k8s/atoll/internal/machinery/volumes"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// Surveyor observes workloads. It is safe for concurrent use.
type Surveyor struct {
	Walker   *owners.Walker
	Ledger   *seats.Ledger
	Policies *policies.Resolver
	// Pods reads the volumes of pods, from the API server.
	Pods    kubernetes.Interface
	Clock   clock.PassiveClock
	volumes volumes.Reader
}

// Workload is what was observed of one workload.
type Workload struct {
	Object *ownership.Object
	// Cohorts are the active pods as the ledger shows them, and Pods are the same pods by UID.
	Cohorts []seats.CohortView
	Pods    map[types.UID]*seats.Pod
	// Observed is what the plan depends on. Its cohorts and their pods have the same indexes as
	// Cohorts. The caller sets Balanced.
	Observed rebalance.Workload
	// Short are the owners that have fewer pods than they want.
	Short map[types.UID]bool
	// Unread is why the volumes of a pod could not be read, or nil. CanTake sets it.
	Unread error
}

// Workload observes one workload.
func (s *Surveyor) Workload(ctx context.Context, policy *gm.PropagationPolicy, object *ownership.Object) (*Workload, error) {
	spread, err := s.Policies.Spread(policy, object.Ties())
	if err != nil {
		return nil, fmt.Errorf("using PropagationPolicy %s/%s: %w", policy.Namespace, policy.Name, err)
	}
	w := &Workload{Object: object}
	below := s.Walker.Descendants(object.UID)
	w.Observed = rebalance.Workload{
		Ref:    gm.WorkloadReference{APIVersion: object.GroupVersion().String(), Kind: object.Kind, Name: object.Name},
		Spread: spread, Mode: policy.Spec.Rescheduling.Mode,
		CanTake: s.CanTake(ctx, w), Further: further,
		Refused: conditions.Bounded(s.Walker.PodsRefused(below)), Held: conditions.Bounded(s.held(below)),
	}
	if w.Observed.Mode == "" {
		w.Observed.Mode = gm.ReschedulingEvict
	}
	s.observePods(w, below)
	s.observeOwners(w)
	return w, nil
}

// observePods reads the workload's active pods from the ledger.
func (s *Surveyor) observePods(w *Workload, below []types.UID) {
	w.Cohorts = s.Ledger.View(below)
	w.Pods = map[types.UID]*seats.Pod{}
	for _, view := range w.Cohorts {
		for _, pod := range view.Pods {
			w.Pods[pod.UID] = pod.Pod
		}
	}
	w.Observed.Cohorts = cohortsOf(w.Cohorts, func(uid types.UID) bool {
		owner := s.Walker.Get(uid)
		return owner != nil && owner.Kind == "ReplicaSet"
	})
	for i := range w.Observed.Cohorts {
		c := &w.Observed.Cohorts[i]
		c.Part = c.Owner
		if divided := ownership.Divided(s.Walker.Above(c.Owner), w.Object.UID); divided != nil {
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
func (s *Surveyor) held(below []types.UID) string {
	if why := s.Policies.Held(below); why != "" {
		return "the API server refuses the change that would take the gate off: " + why
	}
	for _, uid := range below {
		if owners := s.Walker.PolicyOwnersOf(uid); owners.WaitsForOverride() {
			return fmt.Sprintf("OverridePolicy %q is not bound to their workload: its status says why", owners.Override.Policies.RequiredOverride)
		}
	}
	return ""
}

// observeOwners sets what follows from the kinds and the replicas of the workload and of
// its pods' owners. Pods of Jobs are not evictable because their work would be lost,
// those of DaemonSets because the successor comes to the same node, and pods without an
// owner because they get no successor. A Job counts as wanting the pods that it has: when
// it is done, it wants none.
func (s *Surveyor) observeOwners(w *Workload) {
	o := &w.Observed
	o.Evictable, o.Divided, o.Complete = w.Object.Kind != "Pod", true, true
	w.Short = map[types.UID]bool{}
	pods := map[types.UID]int{} // one owner may have pods of several revisions
	all := 0
	for _, c := range w.Cohorts {
		pods[c.Owner] += len(c.Pods)
		all += len(c.Pods)
	}
	for uid, n := range pods {
		owner := s.Walker.Get(uid)
		if owner == nil {
			o.Evictable, o.Complete = false, false
			continue
		}
		ofJob := owner.Kind == "Job" || s.Walker.OfJob(owner.Controller)
		o.Evictable = o.Evictable && !ofJob && owner.Kind != "DaemonSet"
		o.Divided = o.Divided && owner.Kind != "DaemonSet"
		o.Sticky = o.Sticky || owner.Kind == "StatefulSet"
		o.Complete = o.Complete && owner.Replicas != nil && int(*owner.Replicas) == n
		w.Short[uid] = owner.Replicas != nil && n < int(*owner.Replicas)
		o.Replicas += wanted(owner)
	}
	o.Divided = o.Divided && w.Object.Kind != "DaemonSet"
	if w.Object.Replicas != nil && w.Object.Kind != "Job" {
		o.Replicas = int(*w.Object.Replicas)
	}
	o.Complete = o.Complete && all >= o.Replicas
}

// CanTake returns rebalance.Workload.CanTake for one plan of a workload. It sets
// w.Unread if the volumes of a pod cannot be read.
func (s *Surveyor) CanTake(ctx context.Context, w *Workload) func(string, *rebalance.Pod) (bool, rebalance.Obstacle) {
	places, reads := s.Ledger.Places(s.Walker.Descendants(w.Object.UID)...), 0
	return func(group string, of *rebalance.Pod) (bool, rebalance.Obstacle) {
		pod := w.Pods[of.UID]
		var affinity []*nodeaffinity.NodeSelector
		if pod.Demand != nil && pod.Demand.Claims && (pod.Pinned() && pod.Node == "" || pod.Node != "" && w.Observed.Movable()) {
			if pod.Node == "" { // there may be many of these: read volumes only if the group has room
				if can, why := s.Ledger.CanTake(group, pod); !can {
					return false, obstacle(why)
				}
			}
			reach, err := s.volumes.Read(ctx, s.Pods, s.Clock.Now(), pod.Key(), pod.UID, &reads)
			if err != nil {
				w.Unread = err
				return false, obstacle(fit.Unread)
			}
			affinity = reach.Selectors
		}
		can, why := places.Take(group, pod, affinity)
		return can, obstacle(why)
	}
}

func obstacle(why fit.Reason) rebalance.Obstacle {
	return rebalance.Obstacle{Reason: string(why), OutOfReach: why == fit.OutOfReach, Unwanted: why == fit.NoMatch, Unread: why == fit.Unread}
}

// further is fit.Further for obstacles.
func further(a, b rebalance.Obstacle) rebalance.Obstacle {
	return obstacle(fit.Further(fit.Reason(a.Reason), fit.Reason(b.Reason)))
}
