package pod

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/assign"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/volumes"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// maxClaims bounds the volume claims that are read for one pod. Another webhook may still
// refuse the pod.
const maxClaims = 16

// outcome is the result of assign.
type outcome int

const (
	// late means that the pod gets its seat and its overrides while it is scheduled.
	late outcome = iota
	// settled means that the pod has the seat and the overrides that it needs.
	settled
	// waiting means that the pod needs its seat or its overrides now and cannot get
	// them. It has to wait at the gate.
	waiting
	// pinnedLater is waiting for a pod that is pinned to its group before its gate is
	// removed.
	pinnedLater
)

// assign gives the pod its seat and its overrides, if it needs them at creation.
func (w *Webhook) assign(ctx context.Context, pod *corev1.Pod, chain []*ownership.Object, token types.UID, dryRun bool) outcome {
	object := chain[0]
	revision := w.Walker.Revision(object.Controller, pod.Labels)
	a, err := w.Policies.AssignmentOnceBound(ctx, chain, revision)
	if err != nil {
		ignored := ignoresMissing(a.PolicyOwners)
		if !ignored && (!w.Policies.ExtenderInUse() || a.PolicyOwners.Override != nil) {
			return waiting // the OverridePolicy may change what the extender cannot
		}
		return late // the extender refuses all nodes, or no policy applies
	}
	creation, err := w.Policies.Creation(ctx, a)
	if err != nil {
		return waiting
	}
	wait := waiting // the outcome if the pod gets no seat now
	if a.Divided() && creation.Early {
		wait = pinnedLater
	}
	// Nothing gives a pod its overrides after its creation, but for the extender: a pod that is
	// pinned without them would start without them as soon as its gate is removed.
	if creation.Missing && (wait == pinnedLater || !w.Policies.ExtenderInUse()) {
		return wait
	}
	ask := assign.Request{Pod: object, Revision: revision, Token: token, Overridden: creation.Rules != nil, DryRun: dryRun}
	switch {
	case !a.Divided():
		if ask.Node = seats.NodeOf(pod); ask.Node == "" || !creation.AtOnce {
			return late
		}
	case !creation.Early && (!creation.Waiting || creation.Missing || seats.HasClaims(&pod.Spec)):
		return w.admitLate(ctx, pod, a, ask)
	case len(volumes.Claims(&pod.Spec)) > maxClaims:
		return wait // the leader reads them while the pod waits at the gate
	default:
		if ask.Demands, err = assign.DemandsOf(ctx, w.API, object.Namespace, pod); err != nil {
			log.FromContext(ctx).Info("Pod waits for its volumes to be read", "namespace", object.Namespace, "why", err.Error())
			return wait
		}
	}
	answer, err := w.Assigner.Assign(ctx, ask)
	if err != nil {
		if !errors.Is(err, assign.ErrNoSeat) {
			log.FromContext(ctx).Info("Pod waits at the gate for its seat", "namespace", object.Namespace, "why", err.Error())
		}
		return wait
	}
	if ask.Node != "" && !w.Policies.ExtenderInUse() && !a.Allows(answer.Group) {
		return wait
	}
	if answer.Group == "" {
		return late // a pod of a DaemonSet on a node in no group
	}
	if err := assign.Override(pod, object.Controller, creation, answer.Group); err != nil {
		assign.Annotate(&pod.ObjectMeta, gm.UnassignedAnnotation, creation.Version()+" "+err.Error())
		return wait
	}
	if a.Divided() {
		assign.Pin(pod, ask.Token, answer.Group, w.Policies.Newcomers(ctx, answer.Group))
		assign.SetCost(pod, answer.Cost)
		return settled
	}
	assign.Annotate(&pod.ObjectMeta, gm.SeatAnnotation, string(ask.Token))
	if w.Policies.ExtenderInUse() {
		return late // the extender restricts the pod to the nodes of its groups
	}
	return settled
}

// overrideOnNode gives a pod that names its node the overrides of that node's group. Such a pod
// cannot wait at the gate: if the overrides are not known now, the controller changes its
// images later.
func (w *Webhook) overrideOnNode(ctx context.Context, pod *corev1.Pod, chain []*ownership.Object, token types.UID, dryRun bool) {
	object := chain[0]
	revision := w.Walker.Revision(object.Controller, pod.Labels)
	a, err := w.Policies.AssignmentOnceBound(ctx, chain, revision)
	if err != nil {
		return
	}
	creation, err := w.Policies.Creation(ctx, a)
	if err != nil || creation.Rules == nil {
		return
	}
	answer, err := w.Assigner.Assign(ctx, assign.Request{
		Pod: object, Revision: revision, Token: token, Node: pod.Spec.NodeName, Overridden: true, DryRun: dryRun,
	})
	if err == nil && answer.Group != "" {
		err = assign.Override(pod, object.Controller, creation, answer.Group)
	}
	if err != nil {
		log.FromContext(ctx).Info("Pod on a node that it names gets its overrides later", "namespace", object.Namespace, "why", err.Error())
	}
}

// ignoresMissing returns true if the workload is treated as one without policies while
// its PropagationPolicy is missing. One that is bound is not: another replica has read the policy.
func ignoresMissing(policyOwners ownership.PolicyOwners) bool {
	o := policyOwners.Propagation
	return o != nil && o.IgnoreMissing && o.Policies.Propagation() != ownership.Bound
}

// admitLate returns late if a pod that gets its seat while it is scheduled may be
// scheduled now. It returns waiting if the pod is above the maximum of its policy. At the
// gate such a pod costs nothing, whereas kube-scheduler would try it again whenever any
// pod changes.
func (w *Webhook) admitLate(ctx context.Context, pod *corev1.Pod, a policies.Assignment, ask assign.Request) outcome {
	if !a.Spread.Bounded() {
		return late
	}
	ask.Late = true
	_, err := w.Assigner.Assign(ctx, ask)
	if err == nil {
		assign.Annotate(&pod.ObjectMeta, gm.AdmissionAnnotation, string(ask.Token))
	}
	if errors.Is(err, assign.ErrNoSeat) {
		return waiting
	}
	return late // also on other errors: the extender decides
}
