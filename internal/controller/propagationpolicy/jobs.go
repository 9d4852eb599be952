package propagationpolicy

import (
	"context"
	"errors"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/jobs"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// restartJob suspends a Job whose pods have no node, so that they are recreated in
// another group, which has room: at most once for each group. The controller of
// workloads resumes the Job. A Job keeps its pods once one of them has a node.
func (r *Reconciler) restartJob(ctx context.Context, w *workload, job *ownership.Object, cohort int, after time.Duration) error {
	c := w.Cohorts[cohort]
	started := slices.ContainsFunc(c.Pods, func(pod seats.SeatView) bool { return pod.Node != "" })
	if started || job.Restarting || job.Group != batchv1.GroupName {
		return nil
	}
	var errs []error
	var stuck []seats.SeatView                      // one pod of each group
	w.Observed.CanTake = r.CanTake(ctx, w.Workload) // the plan reserved room for pods that stay for now
	for i, pod := range c.Pods {
		if !pod.Pinned() || !pod.Unschedulable || slices.ContainsFunc(stuck, func(other seats.SeatView) bool { return other.Group == pod.Group }) {
			continue
		}
		if left := r.left(pod.UnschedulableSince, after); left > 0 {
			errs = append(errs, phase.Wait("a node in the pod's NodeGroup", left))
			continue
		}
		if r.Ledger.IsGroupHeld(pod.Group) || !w.canBorrow(cohort, i) {
			errs = append(errs, phase.Wait("room in another NodeGroup", retryFeasible))
			continue
		}
		stuck = append(stuck, pod)
	}
	for _, pod := range stuck {
		err := r.Jobs.Suspend(ctx, types.NamespacedName{Namespace: job.Namespace, Name: job.Name}, job.UID, "unschedulable/"+pod.Group)
		if errors.Is(err, jobs.ErrAgain) {
			continue
		}
		if err == nil {
			r.Ledger.Avoid(pod.Pod, pod.Group)
			log.FromContext(ctx).Info("Suspended a Job to recreate pods that found no node in their NodeGroup", "job", job.Namespace+"/"+job.Name, "nodeGroup", pod.Group)
			r.jobRestarted(job, pod.Pod, pod.Group)
		} else if !jobs.Refused(err) && !errors.Is(err, jobs.ErrGone) {
			errs = append(errs, err)
		}
		break
	}
	return errors.Join(errs...)
}
