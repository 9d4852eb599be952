package workload

import (
	"context"
	"errors"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/jobs"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// retryResume is when a suspended Job is checked again for remaining pods.
const retryResume = 500 * time.Millisecond

// restartJob suspends the Job of a gated pod, so that its pods are recreated, if the Job has
// not started. It reports whether the pod stays at the gate. A pod that cannot be recreated
// starts as it is: to evict it could make the Job fail.
func (r *Reconciler) restartJob(ctx context.Context, s *scope, pod *seats.Pod, creation policies.Creation) (stays bool, err error) {
	answer, asked := s.restarts[pod.Owner()]
	if !asked {
		answer = r.suspend(ctx, pod.Owner(), creation)
		if s.restarts == nil {
			s.restarts = map[types.UID]error{}
		}
		s.restarts[pod.Owner()] = answer
	}
	switch {
	case answer == nil:
		return true, phase.Wait("the pods of the suspended Job to be deleted", retryResume)
	case errors.Is(answer, jobs.ErrGone):
		return true, nil
	case jobs.Refused(answer):
		r.startsAsItIs(pod, creation, answer, !asked)
		return false, nil
	default:
		return true, answer
	}
}

// suspend suspends the object with this UID if it is a Job of Kubernetes.
func (r *Reconciler) suspend(ctx context.Context, uid types.UID, creation policies.Creation) error {
	job := r.Walker.Get(uid)
	if job == nil || job.Kind != "Job" || job.Group != batchv1.GroupName {
		return jobs.ErrManaged // the Job is further up, or of another API group
	}
	err := r.Jobs.Suspend(ctx, keyOf(job), job.UID, creation.Version())
	if err == nil && !job.Restarting {
		log.FromContext(ctx).Info("Suspended a Job, so that its pods are recreated with the changes of its OverridePolicy", "job", keyOf(job))
	}
	return err
}

// resume resumes a Job that this or another replica suspended to recreate its pods.
func (r *Reconciler) resume(ctx context.Context, s *scope) error {
	if !s.workload.Restarting {
		return nil
	}
	done, err := r.Jobs.Resume(ctx, keyOf(s.workload), s.workload.UID)
	if err == nil && !done {
		return phase.Wait("the pods of the suspended Job to be deleted", retryResume)
	}
	if err == nil {
		log.FromContext(ctx).Info("Resumed a Job", "job", keyOf(s.workload))
	}
	return err
}

func keyOf(o *ownership.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
}
