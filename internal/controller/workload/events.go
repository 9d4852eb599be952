package workload

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// Reasons of events on a workload whose pods wait because the API server refuses
// what we write.
const (
	// ReasonBindingForbidden: the binding labels of the workload.
	ReasonBindingForbidden = "BindingForbidden"
	// ReasonPodsHeld: the change that takes a pod's gate off.
	ReasonPodsHeld = "PodsHeld"
)

// ReasonStartsAsItIs: a Job's pod was created without what its OverridePolicy
// wants, and cannot be made anew.
const ReasonStartsAsItIs = "StartsAsItIs"

// startsAsItIs tells of a Job's pod that is let go without what its
// OverridePolicy changes at creation; of the first of a Job's on the Job too.
func (r *Reconciler) startsAsItIs(pod *seats.Pod, creation policies.Creation, why error, first bool) {
	note := "Starts without what OverridePolicy %q changes at creation: %s"
	r.Recorder.Eventf(owners.ObjectReference(pod.Object()), nil,
		corev1.EventTypeWarning, ReasonStartsAsItIs, "Override", note, creation.Policy.Name, why)
	if first {
		r.Recorder.Eventf(owners.ControllerReference(pod.Object()), nil,
			corev1.EventTypeWarning, ReasonStartsAsItIs, "Override", "Pod "+pod.Name+": "+note, creation.Policy.Name, why)
	}
}

// ReasonOverridesStopped: the workload gave up pods that had been overridden.
const ReasonOverridesStopped = "OverridesStopped"

// overridesStopped tells that a workload gets no more overrides.
func (r *Reconciler) overridesStopped(app *ownership.Object, seen string) {
	r.Recorder.Eventf(owners.ObjectReference(app), nil, corev1.EventTypeWarning, ReasonOverridesStopped, "Override",
		"Its pods get no more overrides: %s", seen)
}

// refused notes an error of a write that pods at the gate wait for, if it is a refusal.
func (s *scope) refused(err error) {
	if s.held == nil && patch.Refused(err) {
		s.held = err
	}
}

// tellHeld tells of a refusal that keeps pods at the gate: with an event, and in
// the policies' status. The API server's text names the permission, or what else
// refused.
func (r *Reconciler) tellHeld(s *scope) {
	switch {
	case s.held == nil:
		r.Policies.SetHeld(s.app.UID, "")
		return
	case s.bound:
		r.Recorder.Eventf(owners.ObjectReference(s.app), nil, corev1.EventTypeWarning, ReasonPodsHeld, "Release",
			"Its pods wait, because the API server refuses to let them leave their scheduling gate: %.900s", s.held)
	default:
		r.Recorder.Eventf(owners.ObjectReference(s.app), nil, corev1.EventTypeWarning, ReasonBindingForbidden, "Bind",
			"Its pods wait, because binding labels cannot be written: %.900s", s.held)
	}
	r.Policies.SetHeld(s.app.UID, s.held.Error())
}
