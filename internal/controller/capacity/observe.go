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

// observe gathers what is known of the workload and plans.
func (r *Reconciler) observe(ctx context.Context, s *scope) error {
	s.seen = r.Clock.Now()
	s.below = r.below(s.workload)
	o := observed{
		replicas: int(*s.workload.Replicas), count: s.capacity.Count, asked: s.capacity.Asked, fellBack: s.capacity.FellBack,
		reserved: r.Ledger.ReservedOfClass(s.below),
	}
	r.aboutVolumes(ctx, s, &o)
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

// aboutVolumes makes the questions that the plan of one workload asks and that need to
// know where volumes are. What keeps them from an answer is the workload's unread.
func (r *Reconciler) aboutVolumes(ctx context.Context, s *scope, o *observed) {
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

// inVain tells why more moves would help nothing, or "": of the pods that came after
// the last one, some did not pass the webhook, or are of the class that was left; of a
// StatefulSet's pods only the one that is the successor tells.
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
		case pod.Class == last.class && last.tells(pod, s.capacity.Ordinal):
			return api.ReasonPinned
		}
	}
	return ""
}

// tells: the pod was made after the move, or, of a StatefulSet's, is the successor.
func (m *move) tells(pod seats.SeatView, ordinal bool) bool {
	if ordinal {
		return pod.Name == m.name && pod.UID != m.pod
	}
	return pod.Created.After(m.at)
}
