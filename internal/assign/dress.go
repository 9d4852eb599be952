package assign

import (
	"encoding/json"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// Dress makes a pod as the rules want it in the group, and stamps what it was
// and whose. The error is a rule's that cannot be applied; the pod is then as it
// was.
func Dress(pod *corev1.Pod, controller *ownership.Reference, creation policies.Creation, group string) error {
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
		Annotate(&pod.ObjectMeta, gm.OverridesAnnotation, fixed)
		if controller != nil {
			Annotate(&pod.ObjectMeta, gm.CreatedForAnnotation, string(controller.UID))
		}
	}
	if fixed != "" || imagesChanged(pod, originals) {
		Annotate(&pod.ObjectMeta, gm.OriginalImagesAnnotation, string(raw))
	}
	return nil
}

// DressImages is Dress for a pod that exists: of all that the rules want, its
// images can still change.
func DressImages(pod *corev1.Pod, creation policies.Creation, group string) error {
	change, err := policies.Images(creation.Rules, group, seats.Slim(pod))
	if err != nil || !change.Needed() {
		return err
	}
	return change.ApplyTo(pod)
}

// Rebase makes the images that others gave a pod since it was dressed what the
// rules start from: another webhook, say, that names a mirror.
func Rebase(pod *corev1.Pod, creation policies.Creation, group string) error {
	slim := seats.Slim(pod)
	change, err := policies.Images(creation.Rules, group, slim)
	if err != nil || len(slim.Originals) == 0 {
		return err
	}
	changed := false
	for _, container := range slim.Containers {
		if _, known := slim.Originals[container.Name]; known && change.Changes(container.Name) {
			slim.Originals[container.Name] = container.Image
			changed = true
		}
	}
	if !changed {
		return nil
	}
	raw, err := json.Marshal(slim.Originals)
	if err != nil {
		return fmt.Errorf("encoding images: %w", err)
	}
	Annotate(&pod.ObjectMeta, gm.OriginalImagesAnnotation, string(raw))
	return nil
}

// Pin stamps a pod with its seat, and lets it run on nodes of the group only: on
// members, and on newcomers (policies.Resolver.Newcomers).
func Pin(pod *corev1.Pod, token types.UID, group string, newcomers [][]corev1.NodeSelectorRequirement) {
	Annotate(&pod.ObjectMeta, gm.SeatAnnotation, string(token))
	placement.Pin(&pod.Spec, gm.NodeGroupLabel, group, newcomers...)
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[gm.NodeGroupLabel] = group
}

// SetCost gives a pod its deletion cost, unless somebody else has given it one.
// With it from its creation on, a ReplicaSet that shrinks a moment later takes the
// right pods away.
func SetCost(pod *corev1.Pod, cost *int32) {
	if _, set := pod.Annotations[corev1.PodDeletionCost]; set || cost == nil {
		return
	}
	value := strconv.Itoa(int(*cost))
	Annotate(&pod.ObjectMeta, corev1.PodDeletionCost, value)
	Annotate(&pod.ObjectMeta, gm.DeletionCostAnnotation, value)
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

// Annotate sets an annotation.
func Annotate(meta *metav1.ObjectMeta, key, value string) {
	if meta.Annotations == nil {
		meta.Annotations = map[string]string{}
	}
	meta.Annotations[key] = value
}
