package propagationpolicy

import (
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/volumes"
)

// waitForVolumes requeues the policy if the volumes of a pod could not be read. The pod
// stays where it is until then.
func (w *workload) waitForVolumes() error {
	switch {
	case w.Unread == nil:
		return nil
	case errors.Is(w.Unread, volumes.ErrMany):
		return phase.Wait(w.Unread.Error(), time.Millisecond)
	case apierrors.IsNotFound(w.Unread):
		return phase.Wait(w.Unread.Error(), retryFeasible)
	default:
		return w.Unread
	}
}
