package propagationpolicy

import (
	"context"
	"errors"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/jobs"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// restartJob lets a Job make its pods anew if one of them has found no node for
// long in the group that it got at creation, none has a node, and another group
// has room: once for each group. The application controller resumes it. A Job
// that has started keeps its pods.
func (r *Reconciler) restartJob(ctx context.Context, a *appScope, job *ownership.Object, c seats.CohortView, after time.Duration) error {
	started := slices.ContainsFunc(c.Pods, func(pod seats.SeatView) bool { return pod.Node != "" })
	if started || job.Restarting || job.Group != batchv1.GroupName {
		return nil
	}
	var errs []error
	var stuck []seats.SeatView    // one of each group
	a.canTake = r.canTake(ctx, a) // the plan took places for pods that stay for now
	for _, pod := range c.Pods {
		if !pod.Pinned() || !pod.Unschedulable || slices.ContainsFunc(stuck, func(other seats.SeatView) bool { return other.Group == pod.Group }) {
			continue
		}
		if left := pod.UnschedulableSince.Add(after).Sub(r.Clock.Now()); left > 0 {
			errs = append(errs, phase.Wait("a node in the pod's NodeGroup", left))
			continue
		}
		if !canBorrow(a.observed, c, pod) {
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
			r.Ledger.Avoid(c.Owner, pod.Group)
			log.FromContext(ctx).Info("Suspended a Job, so that it makes pods anew that found no node in their NodeGroup", "job", job.Namespace+"/"+job.Name, "nodeGroup", pod.Group)
			ref := &corev1.ObjectReference{APIVersion: job.GroupVersion().String(), Kind: job.Kind, Namespace: job.Namespace, Name: job.Name, UID: job.UID}
			r.Recorder.Eventf(ref, nil, corev1.EventTypeNormal, "JobRestarted", "Reassign",
				"No node of NodeGroup %q could take pod %s, and no pod has started: the Job is suspended and resumed, and its pods avoid the group for %s or longer, or until it has room", pod.Group, pod.Name, seats.AvoidTime)
		} else if !jobs.Refused(err) && !errors.Is(err, jobs.ErrGone) {
			errs = append(errs, err)
		}
		break
	}
	return errors.Join(errs...)
}
