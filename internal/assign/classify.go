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

// Deletion costs by class (docs/sources.md, C9): a ReplicaSet that is scaled down deletes
// spot pods first.
const (
	onDemandCost int32 = 100
	spotCost     int32 = 1
)

// Classify restricts a pod to nodes of a class and labels it with the class. If why is not
// "", it annotates the pod with it.
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

// VolumeClass returns whether a pod's volumes tie it to nodes, and the class of these nodes;
// None if that is not known. It reads from the API server only if the pod uses
// PersistentVolumeClaims.
func VolumeClass(ctx context.Context, client kubernetes.Interface, resolver *policies.Resolver, namespace string, spec *corev1.PodSpec) (class capacity.Class, tied bool, err error) {
	required, _, err := volumes.Of(ctx, client, namespace, spec)
	if err != nil && !apierrors.IsNotFound(err) { // a claim that is created after the pod has no volume yet
		return capacity.None, false, err
	}
	class, tied = resolver.ClassOfVolumes(required)
	return class, tied, nil
}

// RestrictToVolumes restricts a pod to the class of its volumes. The class is given by the
// volumes and was not chosen by us, so the pod does not get the label of the class. If class
// is None, the class is not known. Then the pod is not restricted: its volumes restrict it to
// their nodes anyway.
func RestrictToVolumes(pod *corev1.Pod, classes *capacity.Classes, class capacity.Class) {
	if class == capacity.None {
		Annotate(&pod.ObjectMeta, gm.CapacityReasonAnnotation, "no node matches its volumes, or a matching node has no class")
		return
	}
	classes.Restrict(&pod.Spec, class)
	Annotate(&pod.ObjectMeta, gm.CapacityReasonAnnotation, "its volumes are on nodes of class "+class.String())
}

// Reason returns the text that explains why a pod has its class. It is computed on the
// leader, which decided the class.
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

// SetClassCost sets the pod's deletion cost to that of the class, unless it is set already.
func SetClassCost(pod *corev1.Pod, class capacity.Class) {
	switch class {
	case capacity.OnDemand:
		SetCost(pod, new(onDemandCost))
	case capacity.Spot:
		SetCost(pod, new(spotCost))
	}
}
