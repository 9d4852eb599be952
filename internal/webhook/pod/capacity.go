package pod

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/assign"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/volumes"
	"github.com/atoll-k8s/atoll/internal/policies"
)

// classify keeps a pod to its class of capacity. A pod whose own demands leave it
// one class, or neither, is as its owner wants it; one whose volumes leave it one class
// is kept to that. known is false if nobody can tell the class
// now: the pod is to wait at the gate. It returns the class, None if we know none.
func (w *Webhook) classify(ctx context.Context, pod *corev1.Pod, object *ownership.Object, c policies.Capacity, token types.UID, dryRun bool) (class capacity.Class, known bool) {
	classes := w.Policies.Classes()
	if !classes.LeavesBoth(pod.Spec.NodeSelector, requiredAffinity(&pod.Spec)) {
		return capacity.None, true
	}
	class, tied, err := w.tiedTo(ctx, pod, object.Namespace)
	switch {
	case err != nil:
		log.FromContext(ctx).Info("Pod waits for its volumes to be read", "namespace", object.Namespace, "why", err.Error())
		return capacity.None, false
	case tied:
		assign.Tie(pod, classes, class)
		return class, true
	}
	// Only the leader knows the last count that could be used, and whether pods fall back:
	// each replica has another idea of since when a class has no nodes.
	if class = c.OfOrdinal(pod.Name); class != capacity.None && c.Invalid == nil && !c.Fallback {
		assign.Classify(pod, classes, class, assign.Reason(&c, class))
		return class, true
	}
	answer, err := w.Assigner.Assign(ctx, assign.Ask{
		Pod: object, Revision: w.Walker.Revision(object.Controller, pod.Labels), Token: token, Capacity: true, DryRun: dryRun,
	})
	switch class = capacity.ParseClass(answer.Class); {
	case errors.Is(err, assign.ErrNoSeat):
		return capacity.None, false
	case err != nil:
		log.FromContext(ctx).Info("Pod waits for a replica that knows its class of capacity", "namespace", object.Namespace, "why", err.Error())
		return capacity.None, false
	case class == capacity.None:
		return class, true // the replica that leads knows that it is divided no more
	}
	assign.Classify(pod, classes, class, answer.Reason)
	assign.Annotate(&pod.ObjectMeta, gm.SeatAnnotation, string(token))
	return class, true
}

// errManyClaims: they are read at the gate.
var errManyClaims = errors.New("the pod mounts too many claims")

// tiedTo is assign.TiedTo for a pod that may never be created.
func (w *Webhook) tiedTo(ctx context.Context, pod *corev1.Pod, namespace string) (class capacity.Class, tied bool, err error) {
	if len(volumes.Claims(&pod.Spec)) > mostClaims {
		return capacity.None, false, errManyClaims
	}
	return assign.TiedTo(ctx, w.API, w.Policies, namespace, &pod.Spec)
}

func requiredAffinity(spec *corev1.PodSpec) *corev1.NodeSelector {
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil {
		return nil
	}
	return spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}
