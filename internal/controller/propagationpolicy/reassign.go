package propagationpolicy

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/seats"
)

const (
	// lateTime is how long a pod without a group may wait for a seat before it is
	// recreated with a group. While it waits, kube-scheduler calls the extender for it
	// whenever any pod changes.
	lateTime = 5 * time.Second
	// lendWidth bounds the pods of one revision that go on loan in one pass: the later
	// ones may find no room there.
	lendWidth = 8
	// newTime is how long the creation of a pod is evidence that its owner can create
	// pods.
	newTime = 10 * time.Second
)

// reassign recreates waiting pods that have another place to go:
//
//	has no group, refused by the extender ──lateTime──► recreated in the group that lacks pods
//	waits in a group ──rescheduleAfterSeconds, and another group has room──► recreated on loan there
//	waits in a group for pods of another revision ──another group has room──► recreated there
//
// It does so only if the pod's owner creates a successor. Pods of a Job that has not
// started are recreated by suspending the Job.
func (r *Reconciler) reassign(ctx context.Context, s *scope) error {
	after := s.policy.Spec.RescheduleAfter()
	var errs []error
	for _, w := range s.workloads {
		for i, c := range w.Cohorts {
			if job := r.Walker.Get(c.Owner); job != nil && job.Kind == "Job" && after > 0 {
				errs = append(errs, r.restartJob(ctx, w, job, i, after))
			}
			if !w.Observed.Evictable || !w.Observed.Divided {
				continue
			}
			errs = append(errs, r.pin(ctx, w, i), r.lend(ctx, w, i, after))
		}
	}
	return errors.Join(errs...)
}

// recreatable returns how many waiting pods of each cohort may be recreated in a pass:
// one, and two more for each pod that the owner created lately. It is 0 while the owner
// has fewer pods than it wants: what keeps it from creating them, such as a quota, would
// keep it from creating successors. But a StatefulSet creates no further pod until those
// that it has are Ready.
func (r *Reconciler) recreatable(w *workload) map[seats.Cohort]int {
	most := map[seats.Cohort]int{}
	for _, c := range w.Cohorts {
		if w.Short[c.Owner] && (w.Observed.Refused != "" || !r.isOrdered(c)) {
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

// isOrdered returns whether the owner of a cohort may wait for one of its pods to be Ready.
func (r *Reconciler) isOrdered(c seats.CohortView) bool {
	owner := r.Walker.Get(c.Owner)
	return owner != nil && owner.Kind == "StatefulSet" && slices.ContainsFunc(c.Pods, func(pod seats.SeatView) bool { return !pod.Ready })
}

// waitForOwner requeues the policy, because an owner may be able to create the pods that
// it lacks by then. A pod that is created triggers a pass at once.
func waitForOwner() error {
	return phase.Wait("the pods that their owner is to create", retryFeasible)
}

// pin recreates pods without a group that the extender refused on every node with room.
// Their successors get a group at creation. Pods with volumes of their own stay, because
// the volumes may tie them to another group.
func (r *Reconciler) pin(ctx context.Context, w *workload, cohort int) error {
	c := w.Cohorts[cohort]
	var errs []error
	for _, pod := range c.Pods {
		if pod.Node != "" || !pod.Refused || pod.Pinned() || pod.Gated || pod.Claims || pod.Nominated {
			continue
		}
		if left := r.left(pod.UnschedulableSince, lateTime); left > 0 {
			errs = append(errs, phase.Wait("a seat for the pod", left))
			continue
		}
		if w.recreatable[c.Cohort] == 0 {
			return errors.Join(append(errs, waitForOwner())...)
		}
		if may, next := r.Ledger.MayRecreateUnschedulable(c.Owner, pod.Created); !may {
			errs = append(errs, phase.Wait("the pods that were recreated", next))
			continue
		}
		gone, err := r.discard(ctx, pod.Pod)
		if gone {
			log.FromContext(ctx).Info("Replaced a pod that waited without a NodeGroup", "pod", pod.Key())
			r.podAssigned(pod.Pod)
			w.recreatable[c.Cohort]--
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// lend recreates pods for which their group has had no node for the time after, which is never
// if it is 0, and pods that wait for pods of another revision, if another group has room. Their
// owner avoids the group for a while.
func (r *Reconciler) lend(ctx context.Context, w *workload, cohort int, after time.Duration) error {
	c := w.Cohorts[cohort]
	var errs []error
	lent := 0
	w.Observed.CanTake = r.CanTake(ctx, w.Workload) // the plan reserved room for pods that stay for now
	for _, pod := range c.Pods {
		if pod.Node == "" && !pod.Gated && !pod.Unschedulable && r.left(pod.Created, seats.ReservationTTL) > 0 {
			return phase.Wait("a pod on its way to a node", r.left(pod.Created, seats.ReservationTTL)) // it may take the room
		}
	}
	for i, pod := range c.Pods {
		if pod.Node != "" || !pod.Pinned() || !pod.Unschedulable || pod.Nominated {
			continue
		}
		if !w.Observed.BehindOthers(&w.Observed.Cohorts[cohort], pod.Group) {
			if after == 0 {
				continue
			}
			if left := r.left(pod.UnschedulableSince, after); left > 0 {
				errs = append(errs, phase.Wait("a node in the pod's NodeGroup", left))
				continue
			}
		}
		if r.Ledger.IsGroupHeld(pod.Group) {
			errs = append(errs, phase.Wait("a node of the pod's NodeGroup that is cut off", retryFeasible))
			continue
		}
		if w.recreatable[c.Cohort] == 0 {
			return errors.Join(append(errs, waitForOwner())...)
		}
		if lent == lendWidth || !w.canBorrow(cohort, i) {
			errs = append(errs, phase.Wait("room in another NodeGroup", retryFeasible))
			continue
		}
		r.Ledger.Avoid(pod.Pod, pod.Group, w.owners()...)
		gone, err := r.discard(ctx, pod.Pod)
		if gone {
			lent++
			w.recreatable[c.Cohort]--
			log.FromContext(ctx).Info("Replaced a pod that found no node in its NodeGroup", "pod", pod.Key(), "nodeGroup", pod.Group)
			r.podReassigned(pod.Pod, pod.Group)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// owners are the direct owners of the workload's pods.
func (w *workload) owners() (all []types.UID) {
	for _, c := range w.Cohorts {
		all = append(all, c.Owner)
	}
	return all
}

// canBorrow returns whether a group other than the pod's can take the pod on loan.
func (w *workload) canBorrow(cohort, pod int) bool {
	c := &w.Observed.Cohorts[cohort]
	return w.Observed.CanBorrow(c, &c.Pods[pod])
}

// left returns what is left of a duration that began at a time.
func (r *Reconciler) left(began time.Time, of time.Duration) time.Duration {
	return began.Add(of).Sub(r.Clock.Now())
}

// discard evicts a pod that has no node, so that its owner creates a successor. gone is
// true if the API server has accepted that.
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
