package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/log"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/assign"
	"github.com/atoll-k8s/atoll/internal/domain/affinity"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// retryConflict is when a pod is read again after a write conflict.
const retryConflict = 200 * time.Millisecond

// settle gives a pod at the gate what the webhook would have given it at creation, its group
// and its images, and removes the gate. The API server allows stricter node selection only
// while a pod has a scheduling gate. The pod stays at the gate if there is no seat for it.
func (r *Reconciler) settle(ctx context.Context, s *scope, pod *seats.Pod, a policies.Assignment, creation policies.Creation) error {
	group, err := r.place(ctx, pod, a)
	if err != nil {
		return err
	}
	live, err := r.live(ctx, pod)
	if live == nil || err != nil {
		return err
	}
	changed := live.DeepCopy()
	if group == "" {
		creation.Rules = nil // overrides apply to pods in groups only
	}
	if creation.Fixed { // it starts as it is
		err = assign.OverrideImages(changed, creation, group)
	} else {
		err = assign.Override(changed, pod.Controller, creation, group)
	}
	if err != nil {
		why := creation.Version() + " " + err.Error()
		if live.Annotations[gm.UnassignedAnnotation] == why {
			return nil
		}
		assign.Annotate(&changed.ObjectMeta, gm.UnassignedAnnotation, why) // the status of the OverridePolicy shows it
		return r.patchPod(ctx, live, changed)
	}
	if a.Divided() {
		newcomers := r.Policies.Newcomers(ctx, group)
		if demandsNodes(live) {
			newcomers = nil // terms of a gated pod may become stricter, but none may be added
		}
		token := uuid.NewUUID()
		if pod.Controller == nil {
			token = pod.UID // the choice between equal groups depends on it and stays the same
		}
		assign.Pin(changed, token, group, newcomers)
		assign.SetCost(changed, assign.SeatCost(r.Ledger, a, pod.Controller, pod.UID, group))
	}
	delete(changed.Annotations, gm.UnassignedAnnotation)
	if err := r.ungate(ctx, s, pod, live, changed); err != nil {
		return err
	}
	log.FromContext(ctx).V(1).Info("Settled a pod that waited at the gate", "pod", pod.Key(), "nodeGroup", group)
	return nil
}

// releasePinned takes a pod that has its group off the gate with the images that the rules want now, if
// they were edited while it waited. It reports whether the pod stays.
func (r *Reconciler) releasePinned(ctx context.Context, s *scope, pod *seats.Pod) (stays bool, err error) {
	a, err := r.Policies.Assignment(ctx, pod.Object(), pod.Revision)
	if err != nil {
		return false, nil //nolint:nilerr // its group does not change any more
	}
	creation, err := r.Policies.Creation(ctx, a)
	if err != nil {
		return false, err
	}
	if creation.Missing {
		return true, phase.Wait("the OverridePolicy of the pod's workload", retrySeat)
	}
	if creation.Rules == nil {
		return false, nil
	}
	change, err := policies.Images(creation.Rules, pod.GroupStamp, pod)
	if err != nil || !change.Needed() {
		return false, nil //nolint:nilerr // the status of the OverridePolicy shows it
	}
	live, err := r.live(ctx, pod)
	if live == nil || err != nil {
		return true, err
	}
	changed := live.DeepCopy()
	if err := assign.OverrideImages(changed, creation, pod.GroupStamp); err != nil {
		return false, nil //nolint:nilerr // the status of the OverridePolicy shows it
	}
	return true, r.ungate(ctx, s, pod, live, changed)
}

// live reads a pod that waits at the gate. It returns nil if the pod is gone, or does not wait any more.
func (r *Reconciler) live(ctx context.Context, pod *seats.Pod) (*corev1.Pod, error) {
	live, err := r.Pods.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && live.UID != pod.UID {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading pod %s: %w", pod.Key(), err)
	}
	if !slices.ContainsFunc(live.Spec.SchedulingGates, isOurs) {
		return nil, nil // the watch delivers that
	}
	return live, nil
}

// ungate takes the gate off a pod, and writes what else has changed in it, and its policy labels.
func (r *Reconciler) ungate(ctx context.Context, s *scope, pod *seats.Pod, live, changed *corev1.Pod) error {
	if changed.Labels == nil {
		changed.Labels = map[string]string{}
	}
	for key, value := range policyLabels(r.Walker.PolicyOwnersOf(pod.Owner()), s) {
		delete(changed.Labels, key)
		if value != nil {
			changed.Labels[key] = *value
		}
	}
	changed.Labels = r.selectorOf(pod).Restore(live.Labels, changed.Labels)
	changed.Spec.SchedulingGates = slices.DeleteFunc(changed.Spec.SchedulingGates, isOurs)
	if err := r.patchPod(ctx, live, changed); err != nil {
		s.refused(err)
		if apierrors.IsConflict(err) {
			return phase.Wait("another change of the pod", retryConflict)
		}
		return err
	}
	return nil
}

// place returns the next group for a pod at the gate, or the group of the node that the pod
// demands by name. It reads from the API server only if the pod has volumes, or if the ledger
// keeps a part of its demands only.
func (r *Reconciler) place(ctx context.Context, pod *seats.Pod, a policies.Assignment) (group string, err error) {
	if !a.Divided() {
		if group = r.Ledger.NodeGroup(pod.For); !a.Allows(group) {
			return "", phase.Wait("the pod's node to join a NodeGroup of the policy", retrySeat)
		}
		return group, nil
	}
	request := r.Policies.SeatRequest(&a, pod.UID)
	demands := &assign.Demands{}
	if pod.Demand != nil {
		demands = assign.DemandsBy(pod.Demand)
		if pod.Demand.Claims || pod.Demand.Partial {
			if r.Ledger.Open(request) == 0 {
				return "", phase.Wait("a seat for a pod at the gate", retrySeat)
			}
			live, err := r.demands(ctx, pod)
			if err != nil {
				return "", err
			}
			if demands.Volumes = live.Volumes; pod.Demand.Partial {
				demands = live
			}
		}
	}
	if request.Check, err = demands.Check(); err != nil {
		return "", fmt.Errorf("seating pod %s: %w", pod.Key(), err)
	}
	group, why := r.Ledger.Place(request)
	if why != seats.Seated {
		return "", phase.Wait("a seat for a pod at the gate", retrySeat)
	}
	return group, nil
}

// demands reads what a pod demands of a node from the API server, with the node affinities of
// its volumes.
func (r *Reconciler) demands(ctx context.Context, pod *seats.Pod) (*assign.Demands, error) {
	live, err := r.Pods.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading pod %s: %w", pod.Key(), err)
	}
	demands, err := assign.DemandsOf(ctx, r.Pods, live.Namespace, live)
	if err != nil {
		return nil, fmt.Errorf("seating pod %s: %w", pod.Key(), err)
	}
	return demands, nil
}

func isOurs(gate corev1.PodSchedulingGate) bool { return gate.Name == gm.PolicyGate }

// demandsNodes reports whether a pod has required node affinity.
func demandsNodes(pod *corev1.Pod) bool {
	required := affinity.Required(&pod.Spec)
	return required != nil && len(required.NodeSelectorTerms) > 0
}

// patchPod writes the difference between two states of a pod. It returns a conflict if the
// pod was changed since it was read, and nil if it was deleted.
func (r *Reconciler) patchPod(ctx context.Context, live, changed *corev1.Pod) error {
	before, err := json.Marshal(live)
	if err != nil {
		return fmt.Errorf("encoding pod %s/%s: %w", live.Namespace, live.Name, err)
	}
	after, err := json.Marshal(changed)
	if err != nil {
		return fmt.Errorf("encoding pod %s/%s: %w", live.Namespace, live.Name, err)
	}
	difference, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Pod{})
	if err != nil {
		return fmt.Errorf("comparing pod %s/%s: %w", live.Namespace, live.Name, err)
	}
	var fields map[string]any
	if err := json.Unmarshal(difference, &fields); err != nil {
		return fmt.Errorf("comparing pod %s/%s: %w", live.Namespace, live.Name, err)
	}
	metadata, _ := fields["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
		fields["metadata"] = metadata
	}
	metadata["uid"], metadata["resourceVersion"] = live.UID, live.ResourceVersion
	raw, err := json.Marshal(fields)
	if err != nil {
		return fmt.Errorf("encoding a patch of pod %s/%s: %w", live.Namespace, live.Name, err)
	}
	_, err = r.Pods.CoreV1().Pods(live.Namespace).Patch(ctx, live.Name, types.StrategicMergePatchType, raw, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) && !patch.AnotherOfThatName(err) {
		return fmt.Errorf("settling pod %s/%s: %w", live.Namespace, live.Name, err)
	}
	return nil
}
