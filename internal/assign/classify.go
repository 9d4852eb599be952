package assign

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/policies"
)

// Deletion costs by class (document 004, "DELETE"): a ReplicaSet that shrinks takes
// spot pods first.
const (
	onDemandCost int32 = 100
	spotCost     int32 = 1
)

// Classify keeps a pod to a class of capacity, and says on it why.
func Classify(pod *corev1.Pod, classes *capacity.Classes, c *policies.Capacity, class capacity.Class) {
	classes.Restrict(&pod.Spec, class)
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[gm.CapacityClassLabel] = class.String()
	Annotate(&pod.ObjectMeta, gm.CapacityReasonAnnotation, reasonOf(c, class))
}

func reasonOf(c *policies.Capacity, class capacity.Class) string {
	workload := c.Workload.Kind + " " + c.Workload.Name
	switch {
	case c.FellBack != capacity.None:
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
