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
	// retryClass is when a pod at the gate without a class is tried again.
	retryClass = 500 * time.Millisecond
	// doubtTime is the age at which a pod at the gate gets its class even if some of the
	// counted pods may be deleted already. It is longer than a reserved seat lives.
	doubtTime = 15 * time.Second
)

// classify restricts a pod at the gate to its class of capacity, if the class was not known
// when the pod was created. It reports whether this pass is done with the pod. A pod that
// requires no policy leaves the gate here.
func (r *Reconciler) classify(ctx context.Context, s *scope, pod *seats.Pod) (done bool, err error) {
	classes := r.Policies.Classes()
	if pod.Class != capacity.None || classes == nil || pod.Demand != nil && !classes.LeavesBoth(pod.Demand.NodeSelector, pod.Demand.Affinity) {
		return false, nil
	}
	c, err := r.Policies.CapacityOfPod(ctx, pod.Object())
	if err != nil || !c.On {
		return false, nil //nolint:nilerr // the caller gets the same error when it releases the pod
	}
	class, tied, err := r.classOf(ctx, pod, &c)
	if err != nil {
		return true, err
	}
	live, err := r.Pods.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (live.UID != pod.UID || !slices.ContainsFunc(live.Spec.SchedulingGates, isOurs)) {
		return true, nil // the watch delivers that
	}
	if err != nil {
		return true, fmt.Errorf("reading pod %s: %w", pod.Key(), err)
	}
	changed := live.DeepCopy()
	workload := r.Walker.PolicyOwnersOf(pod.Owner())
	if tied {
		assign.RestrictToVolumes(changed, classes, class)
	} else {
		assign.Classify(changed, classes, class, assign.Reason(&c, class))
		changed.Labels = r.selectorOf(pod).Restore(live.Labels, changed.Labels)
	}
	if workload.Propagation == nil && !c.Ordinal {
		assign.SetClassCost(changed, class)
	}
	if !workload.Managed() {
		changed.Spec.SchedulingGates = slices.DeleteFunc(changed.Spec.SchedulingGates, isOurs)
	}
	if err := r.patchPod(ctx, live, changed); err != nil {
		s.refused(err)
		if apierrors.IsConflict(err) {
			return true, phase.Wait("another change of the pod", retryConflict)
		}
		return true, err
	}
	log.FromContext(ctx).V(1).Info("Restricted a pod that waited at the gate to a class of capacity", "pod", pod.Key(), "class", class.String())
	return true, nil
}

// classOf returns the next class for a pod at the gate, or the class that its volumes tie it
// to; tied reports which.
func (r *Reconciler) classOf(ctx context.Context, pod *seats.Pod, c *policies.Capacity) (class capacity.Class, tied bool, err error) {
	request := r.Policies.ClassRequest(c, pod.UID, pod.Name, pod.Revision, capacity.None)
	request.Final = r.Clock.Now().Sub(pod.Created) > doubtTime
	class, why := r.Ledger.PlaceClass(request)
	if why != seats.Seated { // volumes are read only once the class is known, to save requests
		return class, false, phase.Wait("a class of capacity for a pod at the gate", retryClass)
	}
	if pod.Demand == nil || !pod.Demand.Claims {
		return class, false, nil
	}
	of, tied, err := r.tiedTo(ctx, pod)
	if err != nil || !tied {
		return class, false, err
	}
	if of != capacity.None { // reserve the class that the pod gets, not the next one
		r.Ledger.PlaceClass(r.Policies.ClassRequest(c, pod.UID, pod.Name, pod.Revision, of))
	}
	return of, true, nil
}

// tiedTo is assign.VolumeClass for a pod at the gate.
func (r *Reconciler) tiedTo(ctx context.Context, pod *seats.Pod) (class capacity.Class, tied bool, err error) {
	live, err := r.Pods.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return capacity.None, false, nil // the patch of the pod returns NotFound too
	}
	if err != nil {
		return capacity.None, false, fmt.Errorf("reading pod %s: %w", pod.Key(), err)
	}
	class, tied, err = assign.VolumeClass(ctx, r.Pods, r.Policies, live.Namespace, &live.Spec)
	if err != nil {
		return capacity.None, false, fmt.Errorf("reading the volumes of pod %s: %w", pod.Key(), err)
	}
	return class, tied, nil
}
