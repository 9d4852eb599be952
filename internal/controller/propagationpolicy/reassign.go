package propagationpolicy

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/seats"
)

const (
	// lateTime is how long a pod without a group may wait for a seat before it is
	// made anew with its group: kube-scheduler asks about it whenever any pod changes.
	lateTime = 5 * time.Second
	// lendWidth bounds the pods of one revision that go on loan at a time: the
	// others may find no place there, either.
	lendWidth = 8
	// newTime is how long a pod that was created shows that its owner can create
	// more.
	newTime = 10 * time.Second
)

// reassign makes waiting pods anew:
//
//	refused, no group ──lateTime──► made anew: its group is known, and it waits for a node there
//	waits in a group ──rescheduleAfterSeconds, and another group has room──► made anew: on loan there
//
// Only where their owner makes new ones: those of a Job are made anew by
// suspending it, if it has not started.
func (r *Reconciler) reassign(ctx context.Context, s *scope) error {
	after := s.policy.Spec.RescheduleAfter()
	var errs []error
	for _, a := range s.apps {
		for _, c := range a.cohorts {
			if job := r.Walker.Get(c.Owner); job != nil && job.Kind == "Job" && after > 0 {
				errs = append(errs, r.restartJob(ctx, a, job, c, after))
			}
			if !a.evictable || !a.divided {
				continue
			}
			errs = append(errs, r.pin(ctx, a, c))
			if after > 0 {
				errs = append(errs, r.lend(ctx, a, c, after))
			}
		}
	}
	return errors.Join(errs...)
}

// mayMakeAnew is how many waiting pods of each cohort may be made anew in a pass:
// one, and more once the owner is seen to create pods. None while it has fewer
// than it wants: what keeps it from creating them, a quota perhaps, would keep
// it from creating their successors.
func (r *Reconciler) mayMakeAnew(o *observed) map[seats.Cohort]int {
	most := map[seats.Cohort]int{}
	for _, c := range o.cohorts {
		if o.short[c.Owner] {
			continue
		}
		most[c.Cohort] = 1
		for _, pod := range c.Pods {
			if r.left(pod.Created, newTime) > 0 {
				most[c.Cohort] += 2
			}
		}
	}
	return most
}

// waitForOwner comes back when an owner may have created the pods that it lacks.
// A pod that comes brings the policy back at once.
func waitForOwner() error {
	return phase.Wait("the pods that their owner is to create", retryFeasible)
}

// pin makes pods anew that were refused every node that has room for them: the
// next ones get their group at creation. Pods with volumes of their own are left
// alone, for these may tie them to another group.
func (r *Reconciler) pin(ctx context.Context, a *appScope, c seats.CohortView) error {
	var errs []error
	for _, pod := range c.Pods {
		if pod.Node != "" || !pod.Refused || pod.Pinned() || pod.Gated || pod.Claims || pod.Nominated {
			continue
		}
		if left := r.left(pod.UnschedulableSince, lateTime); left > 0 {
			errs = append(errs, phase.Wait("a seat for the pod", left))
			continue
		}
		if a.anew[c.Cohort] == 0 {
			return errors.Join(append(errs, waitForOwner())...)
		}
		if may, next := r.Ledger.Remake(c.Owner, pod.Created); !may {
			errs = append(errs, phase.Wait("the pods that were made anew", next))
			continue
		}
		gone, err := r.discard(ctx, pod.Pod)
		if gone {
			log.FromContext(ctx).Info("Replaced a pod that waited without a NodeGroup", "pod", pod.Key())
			r.Recorder.Eventf(reference(pod.Pod), nil, corev1.EventTypeNormal, "PodAssigned", "Assign",
				"Every NodeGroup with room for the pod has its share: the next one is created with the NodeGroup that lacks pods, and waits for a node there")
			a.anew[c.Cohort]--
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// lend makes pods anew that find no node in their group while another one could
// take them; their owner avoids the group for a while.
func (r *Reconciler) lend(ctx context.Context, a *appScope, c seats.CohortView, after time.Duration) error {
	var errs []error
	lent := 0
	a.canTake = r.canTake(ctx, a) // the plan took places for pods that stay for now
	for _, pod := range c.Pods {
		if pod.Node == "" && !pod.Gated && !pod.Unschedulable && r.left(pod.Created, seats.ReservationTTL) > 0 {
			return phase.Wait("a pod on its way to a node", r.left(pod.Created, seats.ReservationTTL)) // it may take the place
		}
	}
	for _, pod := range c.Pods {
		if pod.Node != "" || !pod.Pinned() || !pod.Unschedulable || pod.Nominated {
			continue
		}
		if left := r.left(pod.UnschedulableSince, after); left > 0 {
			errs = append(errs, phase.Wait("a node in the pod's NodeGroup", left))
			continue
		}
		if a.anew[c.Cohort] == 0 {
			return errors.Join(append(errs, waitForOwner())...)
		}
		if lent == lendWidth || !canBorrow(a.observed, c, pod) {
			errs = append(errs, phase.Wait("room in another NodeGroup", retryFeasible))
			continue
		}
		r.Ledger.Avoid(c.Owner, pod.Group)
		gone, err := r.discard(ctx, pod.Pod)
		if gone {
			lent++
			a.anew[c.Cohort]--
			log.FromContext(ctx).Info("Replaced a pod that found no node in its NodeGroup", "pod", pod.Key(), "nodeGroup", pod.Group)
			r.Recorder.Eventf(reference(pod.Pod), nil, corev1.EventTypeNormal, "PodReassigned", "Reassign",
				"No node of NodeGroup %q could take the pod: the next one avoids the group for %s or longer, or until it has room", pod.Group, seats.AvoidTime)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// canBorrow tells whether a group other than the pod's may have one more pod of
// the cohort, and has room for it.
func canBorrow(o observed, c seats.CohortView, pod seats.SeatView) bool {
	current := map[string]int{}
	for _, p := range c.Pods {
		if p.Seated {
			current[p.Group]++
		}
	}
	for i, most := range o.spread.Ceilings(max(len(c.Pods), o.replicas)) {
		group := o.spread.Groups()[i]
		if group == pod.Group || current[group] >= most {
			continue
		}
		if can, _ := o.canTake(group, pod.Pod); can {
			return true
		}
	}
	return false
}

// left is what is left of a time that began.
func (r *Reconciler) left(began time.Time, of time.Duration) time.Duration {
	return began.Add(of).Sub(r.Clock.Now())
}

// discard lets the owner of a pod without a node make a new one.
func (r *Reconciler) discard(ctx context.Context, pod *seats.Pod) (gone bool, err error) {
	err = r.Evictor.Discard(ctx, pod.Key(), pod.UID)
	switch {
	case err == nil:
		return true, nil
	case eviction.Moot(err):
		return false, nil
	case errors.Is(err, eviction.ErrRefused), errors.Is(err, eviction.ErrBusy):
		return false, phase.Wait(err.Error(), eviction.Retry)
	}
	return false, err
}

func reference(pod *seats.Pod) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
}
