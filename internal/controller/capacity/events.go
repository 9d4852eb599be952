package capacity

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// podEvicted records on the workload that a pod of the wrong class was evicted.
func (r *Reconciler) podEvicted(s *scope, pod *seats.Pod) {
	r.Recorder.Eventf(owners.ObjectReference(s.workload), owners.ObjectReference(pod.Object()), corev1.EventTypeNormal, "CapacityPodEvicted", "Evict",
		"Evicted pod %s: the workload should have %d on-demand and %d spot pods", pod.Name, s.plan.want[capacity.OnDemand], s.plan.want[capacity.Spot])
}

// notReady records on the workload why its CapacitySplit is not Ready. The reason of the
// event is that of the condition.
func (r *Reconciler) notReady(s *scope, reason, message string) {
	r.Recorder.Eventf(owners.ObjectReference(s.workload), nil, corev1.EventTypeWarning, reason, "Divide", "%s", message)
}
