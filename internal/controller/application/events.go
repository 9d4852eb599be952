package application

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// ReasonBindingForbidden: the manager may not write binding labels on the
// workload.
const ReasonBindingForbidden = "BindingForbidden"

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
