package overridepolicy

import (
	corev1 "k8s.io/api/core/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/survey"
)

// imagesOverridden is the event on a pod whose images were changed in place.
func (r *Reconciler) imagesOverridden(policy *gm.OverridePolicy, pod survey.DuePod) {
	r.Recorder.Eventf(owners.ObjectReference(pod.Object()), nil, corev1.EventTypeNormal, "ImagesOverridden", "Override",
		"Changed images as OverridePolicy %q wants them in NodeGroup %q", policy.Name, pod.Group)
}

// podReplaced is the event on a pod that was evicted because it was not created as the
// rules want it.
func (r *Reconciler) podReplaced(policy *gm.OverridePolicy, pod *seats.Pod) {
	r.Recorder.Eventf(owners.ObjectReference(pod.Object()), nil, corev1.EventTypeNormal, "PodReplaced", "Override",
		"OverridePolicy %q changes fields that cannot change on a pod that exists", policy.Name)
}
