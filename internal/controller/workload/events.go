package workload

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// Reasons of events on a workload whose pods wait because the API server refuses
// a write of atoll-manager.
const (
	// ReasonBindingForbidden: it refuses the binding labels of the workload.
	ReasonBindingForbidden = "BindingForbidden"
	// ReasonPodsHeld: it refuses the change that removes the gate of a pod.
	ReasonPodsHeld = "PodsHeld"
)

// ReasonStartsAsItIs: a pod of a Job was created without the changes of its
// OverridePolicy, and cannot be recreated.
const ReasonStartsAsItIs = "StartsAsItIs"

// startsAsItIs records that a pod of a Job leaves the gate without the changes that its
// OverridePolicy makes at creation. With first set, it records the event on the Job too.
func (r *Reconciler) startsAsItIs(pod *seats.Pod, creation policies.Creation, why error, first bool) {
	note := "Starts without the changes that OverridePolicy %q makes at creation: %s"
	r.Recorder.Eventf(owners.ObjectReference(pod.Object()), nil,
		corev1.EventTypeWarning, ReasonStartsAsItIs, "Override", note, creation.Policy.Name, why)
	if first {
		r.Recorder.Eventf(owners.ControllerReference(pod.Object()), nil,
			corev1.EventTypeWarning, ReasonStartsAsItIs, "Override", "Pod "+pod.Name+": "+note, creation.Policy.Name, why)
	}
}

// ReasonOverridesStopped: the workload gave up too many overridden pods.
const ReasonOverridesStopped = "OverridesStopped"

// overridesStopped records that pods of a workload are not overridden any more.
func (r *Reconciler) overridesStopped(workload *ownership.Object, seen string) {
	r.Recorder.Eventf(owners.ObjectReference(workload), nil, corev1.EventTypeWarning, ReasonOverridesStopped, "Override",
		"Its pods are not overridden any more: %s", seen)
}

// maxCause bounds the API server's text in an event, in bytes. A note has at most 1,024.
const maxCause = 900

// refused stores the error of a write that pods at the gate wait for, if it is a refusal
// and the first one of the pass.
func (s *scope) refused(err error) {
	if s.held == nil && patch.Refused(err) {
		s.held = err
	}
}

// reportHeld reports a refusal that keeps pods at the gate: in an event, and in the status
// of the policies. The error of the API server names the missing permission or the
// admission webhook.
func (r *Reconciler) reportHeld(s *scope) {
	switch {
	case s.held == nil:
		r.Policies.SetHeld(s.workload.UID, "")
		return
	case s.bound:
		r.Recorder.Eventf(owners.ObjectReference(s.workload), nil, corev1.EventTypeWarning, ReasonPodsHeld, "Release",
			"Its pods wait, because the API server refuses to remove their scheduling gate: %s", conditions.Truncate(s.held.Error(), maxCause))
	default:
		r.Recorder.Eventf(owners.ObjectReference(s.workload), nil, corev1.EventTypeWarning, ReasonBindingForbidden, "Bind",
			"Its pods wait, because the API server refuses the binding labels: %s", conditions.Truncate(s.held.Error(), maxCause))
	}
	r.Policies.SetHeld(s.workload.UID, s.held.Error())
}

// ReasonPolicyMissing: the workload requires a policy that does not exist.
const ReasonPolicyMissing = "PolicyMissing"

const (
	// missingAfter is how long a policy must be missing before the event: workload and policy are often
	// applied together.
	missingAfter = 10 * time.Second
	// missedEvery is the time between two events. The API server keeps an event for an hour.
	missedEvery = 50 * time.Minute
)

// reportMissing emits an event on a workload that requires a policy which does not exist.
func (r *Reconciler) reportMissing(ctx context.Context, s *scope) error {
	absent := r.Policies.Absent(ctx, s.workload.Namespace, s.workload.Policies, s.workload.IgnoreMissing)
	if len(absent) == 0 {
		r.found(s.workload.UID)
		return nil
	}
	uid, now := string(s.workload.UID), r.Clock.Now()
	if left := missingAfter - r.missing.For(uid, now, true); left > 0 {
		return phase.Wait("the required policy", left)
	}
	if left := r.missed.Delay(uid, now, missedEvery, 1); left > 0 {
		return phase.Wait("the next event about the missing policy", left)
	}
	r.Recorder.Eventf(owners.ObjectReference(s.workload), nil, corev1.EventTypeWarning, ReasonPolicyMissing, "Bind",
		"%s", conditions.Truncate(strings.Join(absent, ". "), maxCause))
	return phase.Wait("the next event about the missing policy", missedEvery)
}

// found forgets that a policy of a workload was missing.
func (r *Reconciler) found(workload types.UID) {
	r.missing.For(string(workload), r.Clock.Now(), false)
	r.missed.Forget(string(workload))
}
