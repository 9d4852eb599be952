package workload

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
	"github.com/atoll-k8s/atoll/internal/policies"
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
	classes := r.Policies.Classes()
	if pod.Class != capacity.None || classes == nil || pod.Demand != nil && !classes.LeavesBoth(pod.Demand.NodeSelector, pod.Demand.Affinity) {
		return false, nil
	}
	c, err := r.Policies.CapacityOfPod(ctx, pod.Object())
	if err != nil || !c.On {
		return false, nil //nolint:nilerr // whoever lets the pod go meets the same error
	}
	class, tied, err := r.classOf(ctx, pod, &c)
	if err != nil {
		return true, err
	}
	live, err := r.Pods.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (live.UID != pod.UID || !slices.ContainsFunc(live.Spec.SchedulingGates, isOurs)) {
		return true, nil // the watch will say so
	}
	if err != nil {
		return true, fmt.Errorf("reading pod %s: %w", pod.Key(), err)
	}
	changed := live.DeepCopy()
	app := r.Walker.ApplicationOfOwner(pod.Owner())
	if tied {
		assign.Tie(changed, classes, class)
	} else {
		assign.Classify(changed, classes, class, assign.Reason(&c, class))
		changed.Labels = r.selectorOf(pod).Keep(live.Labels, changed.Labels)
	}
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

// classOf is the class whose turn it is for a pod at the gate, or the one that the pod is
// tied to by its volumes.
func (r *Reconciler) classOf(ctx context.Context, pod *seats.Pod, c *policies.Capacity) (class capacity.Class, tied bool, err error) {
	request := r.Policies.ClassRequest(c, pod.UID, pod.Name, pod.Revision, capacity.None)
	request.Final = r.Clock.Now().Sub(pod.Created) > doubtTime
	class, why := r.Ledger.PlaceClass(request)
	if why != seats.Seated { // volumes are read once that is known, and not with each try
		return class, false, phase.Wait("a class of capacity for a pod at the gate", retryClass)
	}
	if pod.Demand == nil || !pod.Demand.Claims {
		return class, false, nil
	}
	of, tied, err := r.tiedTo(ctx, pod)
	if err != nil || !tied {
		return class, false, err
	}
	if of != capacity.None { // others have its turn
		r.Ledger.PlaceClass(r.Policies.ClassRequest(c, pod.UID, pod.Name, pod.Revision, of))
	}
	return of, true, nil
}

// tiedTo is assign.TiedTo for a pod at the gate.
func (r *Reconciler) tiedTo(ctx context.Context, pod *seats.Pod) (class capacity.Class, tied bool, err error) {
	live, err := r.Pods.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return capacity.None, false, nil // whoever wants to change it finds that out
	}
	if err != nil {
		return capacity.None, false, fmt.Errorf("reading pod %s: %w", pod.Key(), err)
	}
	class, tied, err = assign.TiedTo(ctx, r.Pods, r.Policies, live.Namespace, &live.Spec)
	if err != nil {
		return capacity.None, false, fmt.Errorf("reading the volumes of pod %s: %w", pod.Key(), err)
	}
	return class, tied, nil
}
