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
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// errSeatTaken: since the filter, other pods filled the group. The pod is
// scheduled again.
var errSeatTaken = errors.New("the node's NodeGroup got its share of the workload's pods meanwhile")

// errNotAsWanted: the pod was created without what cannot change later. The
// OverridePolicy's controller replaces it.
var errNotAsWanted = errors.New("the pod was created without what the OverridePolicy wants in the node's NodeGroup, and is to be replaced")

// +kubebuilder:rbac:groups="",resources=pods,verbs=patch
// +kubebuilder:rbac:groups="",resources=pods/binding,verbs=create

// bind rechecks the seat, overrides images, and binds; in this order, so that
// a kubelet never sees the pod without its overrides. Asked twice, it succeeds
// twice.
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
		if refused(err) { // else it may be done all the same: the seat lapses if it is not
			h.Ledger.Release(pod.UID)
		}
		return err
	}
	h.Ledger.KeepSeat(pod.UID)
	return nil
}

// refused tells whether the API server has looked at a request and not done it.
func refused(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && status.Status().Code >= http.StatusBadRequest && status.Status().Code < http.StatusInternalServerError
}

// stamps are what a pod gets together with its node.
type stamps struct{ labels, annotations map[string]string }

// prepare confirms the pod's seat and writes its images.
func (h *Handler) prepare(ctx context.Context, pod *seats.Pod, node string) (stamps, error) {
	a, err := h.Policies.Assignment(ctx, pod.Object(), pod.Revision)
	app := a.Application
	unplaced := app.Propagation == nil || ignoresPropagation(app, err)
	if err != nil && app.Propagation == nil || err != nil && !unplaced {
		return stamps{}, err
	}
	if !app.Managed() {
		return stamps{}, nil
	}
	if waitsForOverride(app) {
		return stamps{}, errors.New(TextOverrideNotBound)
	}
	group := h.Ledger.NodeGroup(node)
	if !unplaced {
		if app.Propagation.Policies.Propagation() != ownership.Bound {
			return stamps{}, errors.New(TextNotBound)
		}
		request := seats.Request{Pod: pod.UID, Cohort: a.Cohort, Total: a.Total, Spread: a.Spread}
		if a.Counted && h.Ledger.Confirm(request, node) != seats.Seated {
			return stamps{}, errSeatTaken
		}
	}
	if err := h.overrideImages(ctx, pod, app, group, (!unplaced || !a.Counted) && !a.Job); err != nil {
		h.Ledger.Release(pod.UID)
		return stamps{}, err
	}
	return stamps{labels: h.Policies.PodLabels(app, pod, group), annotations: h.deletionCost(pod, a, group)}, nil
}

// deletionCost is what a pod of a ReplicaSet costs in its seat, so that no
// write of its own is needed later.
func (h *Handler) deletionCost(pod *seats.Pod, a policies.Assignment, group string) map[string]string {
	if len(a.Spread.Groups()) == 0 || !a.Counted || pod.Controller == nil || pod.Controller.Kind != "ReplicaSet" || pod.UserCost() {
		return nil
	}
	cost := strconv.Itoa(int(a.Spread.SeatCost(group, h.Ledger.SeatNumber(pod.UID), a.Total)))
	return map[string]string{corev1.PodDeletionCost: cost, gm.DeletionCostAnnotation: cost}
}

// overrideImages writes the images that the rules want in the group. fixed also
// demands that the pod was created as they want it.
func (h *Handler) overrideImages(ctx context.Context, pod *seats.Pod, app ownership.Application, group string, fixed bool) error {
	if app.Override == nil || group == "" || app.Override.Policies.Override() != ownership.Bound {
		return nil
	}
	policy, err := h.Policies.Override(ctx, pod.Namespace, app.Override.Policies.RequiredOverride)
	if err != nil {
		return err
	}
	rules, errs := h.Policies.Rules(policy)
	if len(errs) > 0 {
		return fmt.Errorf("using OverridePolicy %s/%s: %w", policy.Namespace, policy.Name, errs[0])
	}
	if fixed && rules.FixedHash(group) != pod.Overrides {
		return errNotAsWanted
	}
	change, err := policies.Images(rules, group, pod)
	if err != nil {
		return fmt.Errorf("using OverridePolicy %s/%s: %w", policy.Namespace, policy.Name, err)
	}
	if !change.Needed() {
		return nil
	}
	patch, err := change.Patch(nil)
	if err != nil {
		return err
	}
	_, err = h.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("overriding images of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

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
			// Another kube-scheduler was quicker. We may not have seen that yet:
			// a seat given back now would be given to another pod.
			return fmt.Errorf("binding pod %s/%s to node %s: it is bound to node %s", pod.Namespace, pod.Name, node, live.Spec.NodeName)
		case getErr != nil && !apierrors.IsNotFound(getErr):
			// Nor do we know now whether it is bound. What the API server says of
			// reading is not its answer to the binding, and not to be taken for that.
			return fmt.Errorf("binding pod %s/%s to node %s: %s; reading where it is: %s", pod.Namespace, pod.Name, node, err.Error(), getErr.Error())
		}
	}
	return fmt.Errorf("binding pod %s/%s to node %s: %w", pod.Namespace, pod.Name, node, err)
}
