package pod

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/log"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/assign"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// seenBefore: the API server shows a pod again that another webhook changed
// after us. It has its seat and its overrides; a template that carries a token
// was never given it.
func (w *Webhook) seenBefore(ctx context.Context, pod *corev1.Pod) bool {
	token := types.UID(cmp.Or(pod.Annotations[gm.SeatAnnotation], pod.Annotations[gm.AdmissionAnnotation]))
	if token == "" {
		return false
	}
	answer, err := w.Desk.Assign(ctx, assign.Ask{Token: token, Issued: true})
	return err == nil && answer.Issued
}

// assign gives the pod its seat and its overrides if it needs them from the
// start. It returns false if the pod needs them and cannot have them now: it is
// to wait at the gate, and is replaced when it can.
func (w *Webhook) assign(ctx context.Context, pod *corev1.Pod, object *ownership.Object, dryRun bool) bool {
	a, err := w.Book.Prospect(ctx, object, w.Walker.Revision(object.Controller, pod.Labels))
	if err != nil {
		return true // the extender makes the pod wait, or lets it pass
	}
	creation, err := w.Book.Creation(ctx, a)
	if err != nil {
		return false
	}
	ask := assign.Ask{
		Pod: object, Revision: w.Walker.Revision(object.Controller, pod.Labels), Token: uuid.NewUUID(),
		Overridden: creation.Fixed, DryRun: dryRun,
	}
	switch {
	case !a.Counted:
		if ask.Node = seats.NodeOf(pod); ask.Node == "" || !creation.Fixed {
			return true
		}
	case !creation.Early && (!creation.Waiting || seats.HasClaims(&pod.Spec)):
		return w.admit(ctx, pod, a, ask)
	}
	answer, err := w.Desk.Assign(ctx, ask)
	if err != nil {
		if !errors.Is(err, assign.ErrNoSeat) {
			log.FromContext(ctx).Info("Pod waits for a replica that can seat it", "namespace", object.Namespace, "why", err.Error())
		}
		return false
	}
	if answer.Group == "" {
		return true // a DaemonSet's pod on a node of no group
	}
	if err := apply(pod, object, creation, answer.Group); err != nil {
		setAnnotation(&pod.ObjectMeta, gm.UnassignedAnnotation, creation.Version()+" "+err.Error())
		return false
	}
	setAnnotation(&pod.ObjectMeta, gm.SeatAnnotation, string(ask.Token))
	if a.Counted {
		placement.Pin(&pod.Spec, gm.NodeGroupLabel, answer.Group)
		pod.Labels[gm.NodeGroupLabel] = answer.Group
	}
	return true
}

// admit tells whether a pod that gets its seat while it is scheduled is let to
// the scheduler now. Beyond what its policy bounds it is to wait at the gate: the
// scheduler would look at it again whenever any pod changes.
func (w *Webhook) admit(ctx context.Context, pod *corev1.Pod, a policies.Assignment, ask assign.Ask) bool {
	if !a.Spread.Bounded() {
		return true
	}
	ask.Late = true
	_, err := w.Desk.Assign(ctx, ask)
	if err == nil {
		setAnnotation(&pod.ObjectMeta, gm.AdmissionAnnotation, string(ask.Token))
	}
	return !errors.Is(err, assign.ErrNoSeat) // the extender decides when nobody else can
}

// apply makes the pod as the rules want it in the group, and stamps what it was
// and whose.
func apply(pod *corev1.Pod, object *ownership.Object, creation policies.Creation, group string) error {
	if creation.Rules == nil {
		return nil
	}
	originals := map[string]string{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			originals[list[i].Name] = list[i].Image
		}
	}
	raw, err := json.Marshal(originals)
	if err != nil {
		return fmt.Errorf("encoding images: %w", err)
	}
	if err := creation.Rules.ApplyTo(group, pod, creation.Selected); err != nil {
		return err
	}
	fixed := creation.Rules.FixedHash(group)
	if fixed != "" {
		setAnnotation(&pod.ObjectMeta, gm.OverridesAnnotation, fixed)
		if object.Controller != nil {
			setAnnotation(&pod.ObjectMeta, gm.CreatedForAnnotation, string(object.Controller.UID))
		}
	}
	if fixed != "" || imagesChanged(pod, originals) {
		setAnnotation(&pod.ObjectMeta, gm.OriginalImagesAnnotation, string(raw))
	}
	return nil
}

func imagesChanged(pod *corev1.Pod, originals map[string]string) bool {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if original, ok := originals[list[i].Name]; ok && original != list[i].Image {
				return true
			}
		}
	}
	return false
}

func setAnnotation(meta *metav1.ObjectMeta, key, value string) {
	if meta.Annotations == nil {
		meta.Annotations = map[string]string{}
	}
	meta.Annotations[key] = value
}
