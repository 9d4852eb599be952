package pod

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/assign"
	"github.com/atoll-k8s/atoll/internal/domain/affinity"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/volumes"
	"github.com/atoll-k8s/atoll/internal/policies"
)

// classify restricts a pod to the nodes of its capacity class. It returns the class, and
// known is false if the class cannot be determined now: the pod then has to wait at the
// gate. It does not change a pod whose own node selector or affinity excludes a class,
// and returns None for it. A pod with a volume that only nodes of one class can mount is
// restricted to that class.
func (w *Webhook) classify(ctx context.Context, pod *corev1.Pod, object *ownership.Object, c policies.Capacity, token types.UID, dryRun bool) (class capacity.Class, known bool) {
	classes := w.Policies.Classes()
	if !classes.LeavesBoth(pod.Spec.NodeSelector, affinity.Required(&pod.Spec)) {
		return capacity.None, true
	}
	class, tied, err := w.tiedTo(ctx, pod, object.Namespace)
	switch {
	case err != nil:
		log.FromContext(ctx).Info("Pod waits for its volumes to be read", "namespace", object.Namespace, "why", err.Error())
		return capacity.None, false
	case tied:
		assign.RestrictToVolumes(pod, classes, class)
		return class, true
	}
	// The leader alone decides by the last valid count, and whether pods fall back: the
	// replicas differ in since when they have seen no node of a class.
	if class = c.OfOrdinal(pod.Name); class != capacity.None && c.Invalid == nil && !c.Fallback {
		assign.Classify(pod, classes, class, assign.Reason(&c, class))
		return class, true
	}
	answer, err := w.Assigner.Assign(ctx, assign.Request{
		Pod: object, Revision: w.Walker.Revision(object.Controller, pod.Labels), Token: token, Capacity: true, DryRun: dryRun,
	})
	switch class = capacity.ParseClass(answer.Class); {
	case errors.Is(err, assign.ErrNoSeat):
		return capacity.None, false
	case err != nil:
		log.FromContext(ctx).Info("Pod waits at the gate for its capacity class", "namespace", object.Namespace, "why", err.Error())
		return capacity.None, false
	case class == capacity.None:
		return class, true // according to the leader the pod is not divided any more
	}
	assign.Classify(pod, classes, class, answer.Reason)
	assign.Annotate(&pod.ObjectMeta, gm.SeatAnnotation, string(token))
	return class, true
}

// errManyClaims is returned for a pod with more than maxClaims claims. The leader reads
// them while the pod waits at the gate.
var errManyClaims = errors.New("the pod mounts too many claims")

// tiedTo calls assign.VolumeClass, for at most maxClaims claims.
func (w *Webhook) tiedTo(ctx context.Context, pod *corev1.Pod, namespace string) (class capacity.Class, tied bool, err error) {
	if len(volumes.Claims(&pod.Spec)) > maxClaims {
		return capacity.None, false, errManyClaims
	}
	return assign.VolumeClass(ctx, w.API, w.Policies, namespace, &pod.Spec)
}
