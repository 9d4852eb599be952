package propagationpolicy

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/atoll-k8s/atoll/internal/domain/fit"
	"github.com/atoll-k8s/atoll/internal/domain/placement/rebalance"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/volumes"
)

// canTake returns rebalance.Workload.CanTake for one plan of a workload. It sets
// w.unread if the volumes of a pod cannot be read.
func (r *Reconciler) canTake(ctx context.Context, w *workload) func(string, *rebalance.Pod) (bool, rebalance.Obstacle) {
	places, reads := r.Ledger.Places(r.Walker.Descendants(w.object.UID)...), 0
	return func(group string, of *rebalance.Pod) (bool, rebalance.Obstacle) {
		pod := w.pods[of.UID]
		var affinity []*nodeaffinity.NodeSelector
		if pod.Demand != nil && pod.Demand.Claims && (pod.Pinned() && pod.Node == "" || pod.Node != "" && w.observed.Movable()) {
			if pod.Node == "" { // there may be many of these: read volumes only if the group has room
				if can, why := r.Ledger.CanTake(group, pod); !can {
					return false, obstacle(why)
				}
			}
			reach, err := r.volumes.Read(ctx, r.Pods, r.Clock.Now(), pod.Key(), pod.UID, &reads)
			if err != nil {
				w.unread = err
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

// waitForVolumes requeues the policy if the volumes of a pod could not be read. The pod
// stays where it is until then.
func (w *workload) waitForVolumes() error {
	switch {
	case w.unread == nil:
		return nil
	case errors.Is(w.unread, volumes.ErrMany):
		return phase.Wait(w.unread.Error(), time.Millisecond)
	case apierrors.IsNotFound(w.unread):
		return phase.Wait(w.unread.Error(), retryFeasible)
	default:
		return w.unread
	}
}
