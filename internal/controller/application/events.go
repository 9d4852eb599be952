package application

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// ReasonBindingForbidden: the manager may not write binding labels on the
// workload.
const ReasonBindingForbidden = "BindingForbidden"

// ReasonStartsAsItIs: a Job's pod was created without what its OverridePolicy
// wants, and cannot be made anew.
const ReasonStartsAsItIs = "StartsAsItIs"

// startsAsItIs tells of a Job's pod that is let go without what its
// OverridePolicy changes at creation; of the first of a Job's on the Job too.
func (r *Reconciler) startsAsItIs(pod *seats.Pod, creation policies.Creation, why error, first bool) {
	note := "Starts without what OverridePolicy %q changes at creation: %s"
	r.Recorder.Eventf(&corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}, nil,
		corev1.EventTypeWarning, ReasonStartsAsItIs, "Override", note, creation.Policy.Name, why)
	if c := pod.Controller; first {
		r.Recorder.Eventf(&corev1.ObjectReference{APIVersion: c.GroupVersion().String(), Kind: c.Kind, Namespace: pod.Namespace, Name: c.Name, UID: c.UID}, nil,
			corev1.EventTypeWarning, ReasonStartsAsItIs, "Override", "Pod "+pod.Name+": "+note, creation.Policy.Name, why)
	}
}

// ReasonOverridesStopped: the workload gave up pods that had been overridden.
const ReasonOverridesStopped = "OverridesStopped"

// overridesStopped tells that a workload gets no more overrides.
func (r *Reconciler) overridesStopped(app *ownership.Object, seen string) {
	r.Recorder.Eventf(reference(app), nil, corev1.EventTypeWarning, ReasonOverridesStopped, "Override",
		"Its pods get no more overrides: %s", seen)
}

// bindingForbidden tells that the workload cannot be bound to its policies.
// The API server's text names the permission, or what else refused.
func (r *Reconciler) bindingForbidden(app *ownership.Object, err error) {
	r.Recorder.Eventf(reference(app), nil, corev1.EventTypeWarning, ReasonBindingForbidden, "Bind",
		"Its pods wait, because binding labels cannot be written: %.900s", err)
}

func reference(app *ownership.Object) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: app.GroupVersion().String(), Kind: app.Kind, Namespace: app.Namespace, Name: app.Name, UID: app.UID,
	}
}
