package propagationpolicy

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/atoll-k8s/atoll/internal/domain/fit"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/volumes"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// canTake makes the question that the plan of one workload asks. What keeps it
// from an answer is the workload's unread.
func (r *Reconciler) canTake(ctx context.Context, a *appScope) func(string, *seats.Pod) (bool, fit.Reason) {
	places, reads := r.Ledger.Places(), 0
	return func(group string, pod *seats.Pod) (bool, fit.Reason) {
		var affinity []*nodeaffinity.NodeSelector
		if pod.Demand != nil && pod.Demand.Claims && (pod.Pinned() && pod.Node == "" || pod.Node != "" && a.moved()) {
			if pod.Node == "" { // there may be many: read only where there is room
				if can, why := r.Ledger.CanTake(group, pod); !can {
					return false, why
				}
			}
			reach, err := r.volumes.Read(ctx, r.Pods, r.Clock.Now(), pod.Key(), pod.UID, &reads)
			if err != nil {
				a.unread = err
				return false, fit.Unread
			}
			affinity = reach.Selectors
		}
		return places.Take(group, pod, affinity)
	}
}

// waitForVolumes is what an unread volume means for the pass: the pod stays for
// now, and is looked at again.
func (a *appScope) waitForVolumes() error {
	switch {
	case a.unread == nil:
		return nil
	case errors.Is(a.unread, volumes.ErrMany):
		return phase.Wait(a.unread.Error(), time.Millisecond)
	case apierrors.IsNotFound(a.unread):
		return phase.Wait(a.unread.Error(), retryFeasible)
	default:
		return a.unread
	}
}
