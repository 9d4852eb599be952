package assign

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/machinery/volumes"
	"github.com/atoll-k8s/atoll/internal/policies"
)

// Deletion costs by class (docs/sources.md, C9): a ReplicaSet that shrinks takes
// spot pods first.
const (
	onDemandCost int32 = 100
	spotCost     int32 = 1
)

// Classify keeps a pod to a class of capacity, and says on it why, if that is known.
func Classify(pod *corev1.Pod, classes *capacity.Classes, class capacity.Class, why string) {
	classes.Restrict(&pod.Spec, class)
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[gm.CapacityClassLabel] = class.String()
	if why != "" {
		Annotate(&pod.ObjectMeta, gm.CapacityReasonAnnotation, why)
	}
}

// TiedTo tells whether a pod's volumes tie it to nodes, and of which class these are; None
// if that is not known. The API server is asked only where the pod mounts claims.
func TiedTo(ctx context.Context, client kubernetes.Interface, resolver *policies.Resolver, namespace string, spec *corev1.PodSpec) (class capacity.Class, tied bool, err error) {
	required, _, err := volumes.Of(ctx, client, namespace, spec)
	if err != nil && !apierrors.IsNotFound(err) { // a claim that comes after the pod has no volume yet
		return capacity.None, false, err
	}
	class, tied = resolver.ClassOfVolumes(required)
	return class, tied, nil
}

// Tie keeps a pod to the class of its volumes. That is nobody's choice, as where the pod's
// own demands leave it one class: the pod gets no class from us. While that class is not
// known the pod stays as it is: it can go nowhere else than to its volumes.
func Tie(pod *corev1.Pod, classes *capacity.Classes, class capacity.Class) {
	if class == capacity.None {
		Annotate(&pod.ObjectMeta, gm.CapacityReasonAnnotation, "its volumes are on nodes that are away, or of no class")
		return
	}
	classes.Restrict(&pod.Spec, class)
	Annotate(&pod.ObjectMeta, gm.CapacityReasonAnnotation, "its volumes are on nodes of class "+class.String())
}

// Reason is why a pod is of the class that it is. Only the replica that decided knows.
func Reason(c *policies.Capacity, class capacity.Class) string {
	workload := c.Workload.Kind + " " + c.Workload.Name
	switch {
	case c.Misses():
		return "class " + c.FellBack.String() + " has no nodes: pods of " + workload + " fall back to the other"
	case c.Count == capacity.MaxCount:
		return "all pods of " + workload + " are on-demand"
	case c.Ordinal && class == capacity.OnDemand:
		return fmt.Sprintf("its ordinal is among the first %d of %s", c.Count, workload)
	case c.Ordinal:
		return fmt.Sprintf("its ordinal is not among the first %d of %s", c.Count, workload)
	case class == capacity.OnDemand:
		return fmt.Sprintf("one of the %d on-demand pods of %s", c.Count, workload)
	default:
		return fmt.Sprintf("beyond the %d on-demand pods of %s", c.Count, workload)
	}
}

// SetClassCost gives a pod the deletion cost of its class, unless it has one.
func SetClassCost(pod *corev1.Pod, class capacity.Class) {
	switch class {
	case capacity.OnDemand:
		SetCost(pod, new(onDemandCost))
	case capacity.Spot:
		SetCost(pod, new(spotCost))
	}
}
