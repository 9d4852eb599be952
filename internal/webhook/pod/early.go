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

// mostClaims bounds what is read for a pod that may never be created.
const mostClaims = 16

// standing is what became of a pod at its creation.
type standing int

const (
	// late: the pod gets what it needs while it is scheduled.
	late standing = iota
	// settled: it has its seat and its overrides, or needs none.
	settled
	// waiting: it needs them and cannot have them now. It is to wait at the gate.
	waiting
	// pinnedLater: it waits there too, and gets its group before it leaves.
	pinnedLater
)

// assign gives the pod its seat and its overrides if it needs them from the
// start.
func (w *Webhook) assign(ctx context.Context, pod *corev1.Pod, object *ownership.Object, token types.UID, dryRun bool) standing {
	revision := w.Walker.Revision(object.Controller, pod.Labels)
	a, err := w.Policies.Prospect(ctx, object, revision)
	if err != nil {
		if w.Policies.Asked() || ignoresMissing(a.Application) {
			return late // the extender makes the pod wait, or lets it pass
		}
		return waiting
	}
	creation, err := w.Policies.Creation(ctx, a)
	if err != nil {
		return waiting
	}
	wait := waiting
	if a.Divided() && creation.Early {
		wait = pinnedLater
	}
	ask := assign.Ask{Pod: object, Revision: revision, Token: token, Overridden: creation.Fixed, DryRun: dryRun}
	switch {
	case !a.Divided():
		if ask.Node = seats.NodeOf(pod); ask.Node == "" || !creation.AtOnce {
			return late
		}
	case !creation.Early && (!creation.Waiting || seats.HasClaims(&pod.Spec)):
		return w.admit(ctx, pod, a, ask)
	case len(volumes.Claims(&pod.Spec)) > mostClaims:
		return wait // they are read at the gate
	default:
		if ask.Demands, err = assign.DemandsOf(ctx, w.API, object.Namespace, pod); err != nil {
			log.FromContext(ctx).Info("Pod waits for its volumes to be read", "namespace", object.Namespace, "why", err.Error())
			return wait
		}
	}
	answer, err := w.Assigner.Assign(ctx, ask)
	if err != nil {
		if !errors.Is(err, assign.ErrNoSeat) {
			log.FromContext(ctx).Info("Pod waits for a replica that can seat it", "namespace", object.Namespace, "why", err.Error())
		}
		return wait
	}
	if ask.Node != "" && !w.Policies.Asked() && !a.Takes(answer.Group) {
		return wait
	}
	if answer.Group == "" {
		return late // a DaemonSet's pod on a node of no group
	}
	if err := assign.Dress(pod, object.Controller, creation, answer.Group); err != nil {
		assign.Annotate(&pod.ObjectMeta, gm.UnassignedAnnotation, creation.Version()+" "+err.Error())
		return wait
	}
	if a.Divided() {
		assign.Pin(pod, ask.Token, answer.Group, w.Policies.Newcomers(ctx, answer.Group))
		assign.SetCost(pod, answer.Cost)
		return settled
	}
	assign.Annotate(&pod.ObjectMeta, gm.SeatAnnotation, string(ask.Token))
	if w.Policies.Asked() {
		return late // to the nodes of its groups: the extender sees to that
	}
	return settled
}

// ignoresMissing: the application wants no policies where one is missing.
func ignoresMissing(app ownership.Application) bool {
	return app.Propagation != nil && app.Propagation.IgnoreMissing
}

// admit tells whether a pod that gets its seat while it is scheduled is let to
// the scheduler now. Beyond what its policy bounds it is to wait at the gate: the
// scheduler would look at it again whenever any pod changes.
func (w *Webhook) admit(ctx context.Context, pod *corev1.Pod, a policies.Assignment, ask assign.Ask) standing {
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
	return late // the extender decides when nobody else can
}
