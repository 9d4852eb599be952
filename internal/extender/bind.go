package extender

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// errSeatTaken: other pods have filled the group since the filter. kube-scheduler schedules
// the pod again.
var errSeatTaken = errors.New("the node's NodeGroup got its share of the workload's pods meanwhile")

// errBehind: kube-scheduler tries the pod again, and the caches have caught up by then.
var errBehind = errors.New("the watch has not delivered the policies of the pod's workload yet")

// errNotOverridden: the pod was created without the overrides that cannot be applied later.
// The OverridePolicy's controller recreates it.
var errNotOverridden = errors.New("the pod was created without the overrides of the node's NodeGroup, and will be recreated")

// +kubebuilder:rbac:roleName=atoll-manager-extender,groups="",resources=pods,verbs=patch
// +kubebuilder:rbac:roleName=atoll-manager-extender,groups="",resources=pods/binding,verbs=create

// bind checks the seat again, overrides images, and binds: in this order, so that the kubelet
// never starts the pod without its overrides. If a request is repeated, it succeeds again.
func (h *Handler) bind(b *buffers, w http.ResponseWriter, r *http.Request) {
	var args bindingArgs
	if !b.decode(w, r, &args) {
		return
	}
	if args.PodName == "" || args.PodNamespace == "" || args.Node == "" {
		http.Error(w, "decoding the request: PodName, PodNamespace or Node is missing", http.StatusBadRequest)
		return
	}
	err := h.bindPod(r.Context(), &args)
	if err == nil {
		bindTotal.WithLabelValues("bound").Inc()
		b.encode(w, bindingResult{})
		return
	}
	result := "error"
	if errors.Is(err, errSeatTaken) {
		result = "refused"
	}
	bindTotal.WithLabelValues(result).Inc()
	h.Log.V(2).Info("Pod was not bound", "pod", args.PodNamespace+"/"+args.PodName, "node", args.Node, "why", err.Error())
	b.encode(w, bindingResult{Error: err.Error()})
}

// bindPod is bind for a decoded request. It does nothing for a pod that is on that node
// already.
func (h *Handler) bindPod(ctx context.Context, args *bindingArgs) error {
	pod := h.Ledger.Pod(args.PodUID)
	if pod == nil {
		live, err := h.Client.CoreV1().Pods(args.PodNamespace).Get(ctx, args.PodName, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("reading pod %s/%s: %w", args.PodNamespace, args.PodName, err)
		}
		if args.PodUID != "" && live.UID != args.PodUID {
			return fmt.Errorf("binding pod %s/%s: it was replaced by another of that name", args.PodNamespace, args.PodName)
		}
		pod = seats.SlimBy(h.Policies.Revision, live)
	}
	if pod.Node == args.Node {
		return nil
	}
	if pod.Node != "" {
		return fmt.Errorf("binding pod %s/%s to node %s: it is bound to node %s", pod.Namespace, pod.Name, args.Node, pod.Node)
	}
	stamps, err := h.prepare(ctx, pod, args.Node)
	if err != nil {
		return err
	}
	if err := h.post(ctx, pod, args.Node, stamps); err != nil {
		if refused(err) { // if not, the pod may be bound: then the seat stays until it expires
			h.Ledger.Release(pod.UID)
		}
		return err
	}
	h.Ledger.KeepSeat(pod.UID)
	return nil
}

// refused returns whether the API server has answered that it did not do a request.
func refused(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && status.Status().Code >= http.StatusBadRequest && status.Status().Code < http.StatusInternalServerError
}

// stamps are the labels and annotations that the Binding adds to a pod.
type stamps struct{ labels, annotations map[string]string }

// prepare confirms the pod's seat and overrides its images. It returns the labels and
// annotations for the Binding.
func (h *Handler) prepare(ctx context.Context, pod *seats.Pod, node string) (stamps, error) {
	a, err := h.Policies.Assignment(ctx, pod.Object(), pod.Revision)
	workload := a.PolicyOwners
	unplaced := workload.Propagation == nil || ignoresPropagation(workload, err)
	if err != nil && workload.Propagation == nil || err != nil && !unplaced {
		return stamps{}, err
	}
	if h.Policies.IsBehind(pod, workload, a.Owners) {
		return stamps{}, errBehind
	}
	if !workload.Managed() {
		return stamps{}, nil
	}
	if workload.WaitsForOverride() {
		return stamps{}, errors.New(TextOverrideNotBound)
	}
	group := h.Ledger.NodeGroup(node)
	if !unplaced {
		if workload.Propagation.Policies.Propagation() != ownership.Bound {
			return stamps{}, errors.New(TextNotBound)
		}
		request := seats.Request{Pod: pod.UID, Cohort: a.Cohort, Total: a.Total, Spread: a.Spread}
		if a.Counted && h.Ledger.Confirm(request, node) != seats.Seated {
			return stamps{}, errSeatTaken
		}
	}
	if err := h.overrideImages(ctx, pod, workload, group, (!unplaced || !a.Counted) && !a.Job); err != nil {
		h.Ledger.Release(pod.UID)
		return stamps{}, err
	}
	return stamps{labels: h.Policies.PodLabels(workload, pod, group), annotations: h.deletionCost(pod, a, group)}, nil
}

// deletionCost returns the deletion cost of the pod's seat as annotations, so that no
// separate write is needed later. It is nil for pods of other owners than ReplicaSets, and
// for pods whose cost a user has set.
func (h *Handler) deletionCost(pod *seats.Pod, a policies.Assignment, group string) map[string]string {
	if len(a.Spread.Groups()) == 0 || !a.Counted || pod.Controller == nil || pod.Controller.Kind != "ReplicaSet" || pod.UserCost() {
		return nil
	}
	cost := strconv.Itoa(int(a.Spread.SeatCost(group, h.Ledger.SeatNumber(pod.UID), a.Total)))
	return map[string]string{corev1.PodDeletionCost: cost, gm.DeletionCostAnnotation: cost}
}

// overrideImages patches the pod's images as the rules of the group require. If fixed is
// true, it returns errNotOverridden for a pod that was created without the overrides of
// other fields.
func (h *Handler) overrideImages(ctx context.Context, pod *seats.Pod, workload ownership.PolicyOwners, group string, fixed bool) error {
	if workload.Override == nil || group == "" || workload.Override.Policies.Override() != ownership.Bound {
		return nil
	}
	policy, err := h.Policies.Override(ctx, pod.Namespace, workload.Override.Policies.RequiredOverride)
	if err != nil {
		return err
	}
	rules, errs := h.Policies.Rules(policy)
	if len(errs) > 0 {
		return fmt.Errorf("using OverridePolicy %s/%s: %w", policy.Namespace, policy.Name, errs[0])
	}
	if fixed && rules.FixedHash(group) != pod.Overrides {
		return errNotOverridden
	}
	change, err := policies.Images(rules, group, pod)
	if err != nil {
		return fmt.Errorf("using OverridePolicy %s/%s: %w", policy.Namespace, policy.Name, err)
	}
	if !change.Needed() {
		return nil
	}
	raw, err := change.Patch(nil)
	if err != nil {
		return err
	}
	_, err = h.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, raw, metav1.PatchOptions{})
	if h.System.Has(pod.Namespace) && patch.Refused(err) {
		return nil // the pod must not wait for ever; the status of the policy shows the refusal
	}
	if err != nil {
		return fmt.Errorf("overriding images of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// post creates the Binding. After an error that leaves open whether the pod is bound, it
// reads the pod. An error for which refused is false means that the pod may be bound.
func (h *Handler) post(ctx context.Context, pod *seats.Pod, node string, s stamps) error {
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Labels: s.labels, Annotations: s.annotations},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}
	err := h.Client.CoreV1().Pods(pod.Namespace).Bind(ctx, binding, metav1.CreateOptions{})
	if err == nil {
		return nil
	}
	if apierrors.IsConflict(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) {
		live, getErr := h.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		switch {
		case getErr == nil && live.UID == pod.UID && live.Spec.NodeName == node:
			return nil
		case getErr == nil && live.UID == pod.UID && live.Spec.NodeName != "":
			// Another kube-scheduler has bound the pod, and the ledger may not have seen
			// that yet. The error does not wrap err, so that the seat is not released:
			// another pod could get it.
			return fmt.Errorf("binding pod %s/%s to node %s: it is bound to node %s", pod.Namespace, pod.Name, node, live.Spec.NodeName)
		case getErr != nil && !apierrors.IsNotFound(getErr):
			// The pod may be bound. The error wraps neither error, so that refused is
			// false: the response to the read is no response to the Binding.
			return fmt.Errorf("binding pod %s/%s to node %s: %s; reading the pod: %s", pod.Namespace, pod.Name, node, err.Error(), getErr.Error())
		}
	}
	return fmt.Errorf("binding pod %s/%s to node %s: %w", pod.Namespace, pod.Name, node, err)
}
