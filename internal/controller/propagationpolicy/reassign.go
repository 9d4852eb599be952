package propagationpolicy

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// reassign replaces pods that kube-scheduler finds no node for in the group
// that they got at creation; their owner avoids the group for a while. Those of
// a Job are made anew by suspending it, if it has not started.
func (r *Reconciler) reassign(ctx context.Context, s *scope) error {
	after := s.policy.Spec.RescheduleAfter()
	if after == 0 {
		return nil
	}
	var errs []error
	for _, a := range s.apps {
		for _, c := range a.cohorts {
			if job := r.Walker.Get(c.Owner); job != nil && job.Kind == "Job" {
				errs = append(errs, r.restartJob(ctx, job, c, after))
			}
			for _, pod := range c.Pods {
				if !a.evictable {
					break
				}
				if pod.Node != "" || !pod.Pinned() || !pod.Unschedulable {
					continue
				}
				if left := pod.UnschedulableSince.Add(after).Sub(r.Clock.Now()); left > 0 {
					errs = append(errs, phase.Wait("a node in the pod's NodeGroup", left))
					continue
				}
				r.Ledger.Avoid(c.Owner, pod.Group)
				err := r.Evictor.Discard(ctx, pod.Key(), pod.UID)
				switch {
				case err == nil:
					log.FromContext(ctx).Info("Replaced a pod that found no node in its NodeGroup", "pod", pod.Key(), "nodeGroup", pod.Group)
					ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
					r.Recorder.Eventf(ref, nil, corev1.EventTypeNormal, "PodReassigned", "Reassign",
						"No node of NodeGroup %q could take the pod: the next one avoids the group for %s, or until it has room", pod.Group, seats.AvoidTime)
				case errors.Is(err, eviction.ErrGone):
				case errors.Is(err, eviction.ErrRefused):
					errs = append(errs, phase.Wait(err.Error(), eviction.Retry))
				default:
					errs = append(errs, err)
				}
			}
		}
	}
	return errors.Join(errs...)
}
