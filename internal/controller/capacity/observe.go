package capacity

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	api "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/volumes"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// observe collects the state of the workload, and plans.
func (r *Reconciler) observe(ctx context.Context, s *scope) error {
	s.seen = r.Clock.Now()
	s.below = r.below(s.workload)
	o := observed{
		replicas: int(*s.workload.Replicas), count: s.capacity.Count, asked: s.capacity.Configured, fellBack: s.capacity.FellBack,
		reserved: r.Ledger.ReservedOfClass(s.below),
	}
	r.setVolumeChecks(ctx, s, &o)
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
		o.still, o.next = isPaused(o.pods, r.Clock.Now()), r.successor(s, cohorts)
	}
	o.inVain, o.refused = r.inVain(s, o.pods), r.Walker.PodsRefused(s.below)
	s.observed, s.plan = o, planFor(o)
	if o.reserved[capacity.OnDemand]+o.reserved[capacity.Spot] > 0 {
		return phase.Wait("reserved pods to be observed", retryReserved)
	}
	return nil
}

// isPaused reports whether the pods of several revisions are all Ready and older than
// stillTime: the rollout is paused, or waits between two steps.
func isPaused(pods []seats.SeatView, now time.Time) bool {
	return !slices.ContainsFunc(pods, func(pod seats.SeatView) bool {
		return !pod.Ready || now.Sub(pod.Created) < stillTime
	})
}

// successor returns a function that computes the class which the successor of a pod would
// get if the pod were deleted.
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

// below returns the UIDs of a workload and of the objects below it, without StatefulSets:
// their pods are divided for themselves.
func (r *Reconciler) below(workload *ownership.Object) []types.UID {
	return slices.DeleteFunc(r.Walker.Descendants(workload.UID), func(uid types.UID) bool {
		o := r.Walker.Get(uid)
		return o != nil && uid != workload.UID && o.IsStatefulSet()
	})
}

// setVolumeChecks sets the functions of the plan that read the volumes of pods. If a read
// fails they set unread of the scope.
func (r *Reconciler) setVolumeChecks(ctx context.Context, s *scope, o *observed) {
	reads := 0
	read := func(pod *seats.Pod) (volumes.Reach, error) {
		if pod.Demand == nil || !pod.Demand.Claims {
			return volumes.Reach{}, nil
		}
		reach, err := r.volumes.Read(ctx, r.Pods, r.Clock.Now(), pod.Key(), pod.UID, &reads)
		if err != nil {
			s.unread = err
		}
		return reach, err
	}
	o.canTake = func(class capacity.Class, pod *seats.Pod) (bool, fit.Reason) {
		reach, err := read(pod)
		if err != nil {
			return false, fit.Unread
		}
		return r.Ledger.ClassCanTake(class, pod, reach.Selectors, s.below)
	}
	o.tied = func(pod *seats.Pod) capacity.Class {
		reach, err := read(pod)
		if err != nil {
			return capacity.None
		}
		class, _ := r.Ledger.ClassOfVolumes(reach.Required)
		return class
	}
}

// inVain returns the reason why more moves would not help, or "". It looks at the pods
// that were created since the last move: one was not admitted by the webhook, or one has
// the class of the pod that was moved. Of the pods of a StatefulSet it counts the
// successor only. After tryTime another move is tried.
func (r *Reconciler) inVain(s *scope, pods []seats.SeatView) (reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ever := r.moved[s.workload.UID]
	if ever && last.count != s.capacity.Count { // the new pods have the classes of the old count
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
		case pod.Class == last.class && last.wasInVain(pod, s.capacity.Ordinal):
			return api.ReasonPinned
		}
	}
	return ""
}

// wasInVain reports whether a pod that has the class of the evicted one shows that the
// move did not help: it was created after the move, or, with ordinal, is the successor.
func (m *move) wasInVain(pod seats.SeatView, ordinal bool) bool {
	if ordinal {
		return pod.Name == m.name && pod.UID != m.pod
	}
	return pod.Created.After(m.at)
}
