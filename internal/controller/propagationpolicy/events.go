package propagationpolicy

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// podAssigned is the event on a pod that is recreated to get a NodeGroup.
func (r *Reconciler) podAssigned(pod *seats.Pod) {
	r.Recorder.Eventf(owners.ObjectReference(pod.Object()), nil, corev1.EventTypeNormal, "PodAssigned", "Assign",
		"Every NodeGroup with room for the pod has its share: the next pod is created for the NodeGroup that lacks pods, and waits for a node there")
}

// podReassigned is the event on a pod that is recreated in another NodeGroup.
func (r *Reconciler) podReassigned(pod *seats.Pod, group string) {
	r.Recorder.Eventf(owners.ObjectReference(pod.Object()), nil, corev1.EventTypeNormal, "PodReassigned", "Reassign",
		"No node of NodeGroup %q could take the pod: the next pod avoids the NodeGroup for %s or longer, or until it has room", group, seats.AvoidTime)
}

// jobRestarted is the event on a Job that is suspended so that its pods are recreated.
func (r *Reconciler) jobRestarted(job *ownership.Object, pod *seats.Pod, group string) {
	r.Recorder.Eventf(owners.ObjectReference(job), nil, corev1.EventTypeNormal, "JobRestarted", "Reassign",
		"No node of NodeGroup %q could take pod %s, and no pod has started: the Job is suspended and resumed, and its pods avoid the NodeGroup for %s or longer, or until it has room", group, pod.Name, seats.AvoidTime)
}

// surplusPodsEvicted is the event on a workload for evicted pods of one NodeGroup: one
// for all of them, because there may be a thousand.
func (r *Reconciler) surplusPodsEvicted(w *workload, group string, pods []*seats.Pod) {
	what := "pod " + pods[0].Name
	if len(pods) > 1 {
		names := make([]string, len(pods))
		for i, pod := range pods {
			names[i] = pod.Name
		}
		what = fmt.Sprintf("%d pods (%s)", len(pods), conditions.List(names))
	}
	why := fmt.Sprintf("NodeGroup %q has more than its share", group)
	switch {
	case group == "":
		why = "the node is in no NodeGroup"
	case w.Observed.Spread.Index(group) < 0:
		why = fmt.Sprintf("NodeGroup %q is not in the PropagationPolicy", group)
	}
	r.Recorder.Eventf(owners.ObjectReference(w.Object), owners.ObjectReference(pods[0].Object()), corev1.EventTypeNormal, "SurplusPodEvicted", "Evict",
		"Evicted %s: %s", what, why)
}
