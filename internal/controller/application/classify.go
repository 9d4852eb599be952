package application

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/atoll-k8s/atoll/internal/assign"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/seats"
)

const (
	// retryClass is how soon is looked again whether the class of a pod is known.
	retryClass = 500 * time.Millisecond
	// doubtTime is after how long a pod at the gate gets its class although some of
	// the pods that count may be gone: longer than a seat is kept for a pod that
	// nobody has seen.
	doubtTime = 15 * time.Second
)

// classify keeps a pod at the gate to its class of capacity, where nobody could
// tell the class when the pod was created. It reports whether that is all that is
// done about the pod in this pass: if no policy has a say in it, it leaves the gate
// as well.
func (r *Reconciler) classify(ctx context.Context, s *scope, pod *seats.Pod) (done bool, err error) {
	if pod.Class != capacity.None || r.Book.Classes() == nil {
		return false, nil
	}
	c, err := r.Book.CapacityOfPod(ctx, pod.Object())
	if err != nil || !c.On {
		return false, nil //nolint:nilerr // whoever lets the pod go meets the same error
	}
	request := r.Book.ClassRequest(&c, pod.UID, pod.Name, pod.Revision, capacity.None)
	request.Final = r.Clock.Now().Sub(pod.Created) > doubtTime
	class, why := r.Ledger.PlaceClass(request)
	if why != seats.Seated {
		return true, phase.Wait("a class of capacity for a pod at the gate", retryClass)
	}
	live, err := r.Pods.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (live.UID != pod.UID || !slices.ContainsFunc(live.Spec.SchedulingGates, isOurs)) {
		return true, nil // the watch will say so
	}
	if err != nil {
		return true, fmt.Errorf("reading pod %s: %w", pod.Key(), err)
	}
	changed := live.DeepCopy()
	assign.Classify(changed, r.Book.Classes(), &c, class)
	changed.Labels = r.selectorOf(pod).Keep(live.Labels, changed.Labels)
	app := r.Walker.ApplicationOfOwner(pod.Owner())
	if app.Propagation == nil && !c.Ordinal {
		assign.SetClassCost(changed, class)
	}
	if !app.Managed() {
		changed.Spec.SchedulingGates = slices.DeleteFunc(changed.Spec.SchedulingGates, isOurs)
	}
	if err := r.patchPod(ctx, live, changed); err != nil {
		s.refused(err)
		if apierrors.IsConflict(err) {
			return true, phase.Wait("another change of the pod", retryConflict)
		}
		return true, err
	}
	log.FromContext(ctx).V(1).Info("Kept a pod that waited at the gate to a class of capacity", "pod", pod.Key(), "class", class.String())
	return true, nil
}
