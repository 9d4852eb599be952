package podgroup

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/domain/gang"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/gangs"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
)

// +kubebuilder:rbac:groups="",resources=pods,verbs=patch

// name writes the name of its PodGroup into a pod, if the controller is ready and the pod
// names none or may move.
func (r *Reconciler) name(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	pod := r.Store.Pod(req.NamespacedName)
	if pod == nil || !r.ready() || !pod.Unnamed() && !r.mayMove(pod) {
		return ctrl.Result{}, nil
	}
	return r.nameSeen(ctx, pod)
}

// nameSeen writes the name of its PodGroup into a pod of the store.
func (r *Reconciler) nameSeen(ctx context.Context, pod *gangs.Pod) (ctrl.Result, error) {
	choice, err := r.Resolver.Choose(ctx, pod.Object())
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("choosing the PodGroup of pod %s: %w", pod, err)
	}
	r.Rules.note(pod, choice.End)
	name := choice.Name()
	if pod.Group == name || pod.Group != "" && !inChain(choice.Chain, gang.OwnerOf(pod.Group)) {
		return ctrl.Result{}, nil // a person named it
	}
	if left := settled - r.Resolver.InForceFor(r.Clock.Now()); pod.Group != "" && left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil // the rules may change again
	}
	if r.wasNamed(pod.UID, name) {
		return ctrl.Result{RequeueAfter: lag}, nil // the watch is behind, or another client removed it
	}
	err = r.write(ctx, pod, name)
	if patch.Refused(err) {
		r.recordUnnamed(pod, err)
	}
	return phase.Run(ctx, pod, func(context.Context, *gangs.Pod) error { return err })
}

// write writes the name into a pod of the store. The patch carries UID and
// resourceVersion: it fails for another pod of that name, and for a pod that was named or
// bound since; the watch enqueues that one again.
func (r *Reconciler) write(ctx context.Context, pod *gangs.Pod, name string) error {
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": pod.UID, "resourceVersion": pod.ResourceVersion, "annotations": map[string]string{scheduling.GroupNameAnnotation: name},
	}})
	if err != nil {
		return fmt.Errorf("encoding a patch of a pod: %w", err)
	}
	_, err = r.Pods.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, raw, metav1.PatchOptions{})
	switch {
	case apierrors.IsNotFound(err) || patch.AnotherOfThatName(err):
		return nil
	case err != nil:
		return fmt.Errorf("naming the PodGroup of pod %s: %w", pod, err)
	}
	namedTotal.Inc()
	r.setNamed(pod, name)
	return nil
}

// inChain reports whether an owner is in a chain; false for "".
func inChain(chain []*ownership.Object, owner types.UID) bool {
	for _, o := range chain {
		if o.UID == owner && owner != "" {
			return true
		}
	}
	return false
}

// wasNamed reports whether the name was written into the pod less than lag ago.
func (r *Reconciler) wasNamed(pod types.UID, name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	was, ok := r.named[pod]
	return ok && was.value == name && r.Clock.Since(was.at) < lag
}

// setNamed records that the name was written. Once per lag it removes expired entries of
// named and made.
func (r *Reconciler) setNamed(pod *gangs.Pod, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.Clock.Now()
	if now.Sub(r.swept) >= lag {
		r.swept = now
		maps.DeleteFunc(r.named, func(_ types.UID, was write[string]) bool { return now.Sub(was.at) >= lag })
		maps.DeleteFunc(r.made, func(_ types.NamespacedName, was write[*gangs.Group]) bool { return now.Sub(was.at) >= lag })
	}
	r.named[pod.UID] = write[string]{name, now}
}
