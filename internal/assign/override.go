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

// Override applies the override rules of a group to a pod that is being created. It also
// annotates the pod with its images before the overrides, the hash of the overrides that
// cannot be changed later, and the pod's owner. If a rule cannot be applied, Override returns
// an error and the pod is not changed.
func Override(pod *corev1.Pod, controller *ownership.Reference, creation policies.Creation, group string) error {
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

// OverrideImages is Override for a pod that exists. It overrides only images, because the other
// fields of an existing pod cannot be changed.
func OverrideImages(pod *corev1.Pod, creation policies.Creation, group string) error {
	change, err := policies.Images(creation.Rules, group, seats.Slim(pod))
	if err != nil || !change.Needed() {
		return err
	}
	return change.ApplyTo(pod)
}

// RecordImages records images that another webhook has set since Override, for example those of a
// mirror, as the images before the overrides. The rules start from these afterwards.
func RecordImages(pod *corev1.Pod, creation policies.Creation, group string) error {
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

// Pin annotates a pod with the token of its seat and restricts it to nodes of the group: to
// its members, and to newcomers (policies.Resolver.Newcomers).
func Pin(pod *corev1.Pod, token types.UID, group string, newcomers [][]corev1.NodeSelectorRequirement) {
	Annotate(&pod.ObjectMeta, gm.SeatAnnotation, string(token))
	placement.Pin(&pod.Spec, gm.NodeGroupLabel, group, newcomers...)
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[gm.NodeGroupLabel] = group
}

// SetCost sets the deletion cost of a pod that is being created, unless it is set already. A
// ReplicaSet that is scaled down a moment later then deletes the right pods.
func SetCost(pod *corev1.Pod, cost *int32) {
	if _, set := pod.Annotations[corev1.PodDeletionCost]; set || cost == nil {
		return
	}
	value := strconv.Itoa(int(*cost))
	Annotate(&pod.ObjectMeta, corev1.PodDeletionCost, value)
	Annotate(&pod.ObjectMeta, gm.DeletionCostAnnotation, value)
}

// imagesChanged returns whether a container has another image than originals has under its
// name.
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

// Annotate sets an annotation on an object.
func Annotate(meta *metav1.ObjectMeta, key, value string) {
	if meta.Annotations == nil {
		meta.Annotations = map[string]string{}
	}
	meta.Annotations[key] = value
}
