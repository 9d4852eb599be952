package policies

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// ImageChange is the difference between the images of a pod and those that the rules
// give it in its group.
type ImageChange struct {
	pod *seats.Pod
	// images are the images according to the rules. at[i] is the index in
	// pod.Containers of the container of images[i].
	images []override.Image
	at     []int
	// base holds the images before any override, by the name of the container.
	base map[string]string
	// changed holds the names of the containers whose image differs.
	changed sets.Set[string]
}

// errNoImages: the pod has so many containers, or images with such long names, that the
// ledger does not keep them.
var errNoImages = errors.New("its containers and images are too many or too long to be kept, so they are not changed")

// Images compares the images of a pod with those that the rules give it in a group.
// Rules are applied to the images that the pod had before its first override, so that
// no rule is applied twice. The error names the rule that cannot be applied.
func Images(rules *override.Rules, group string, pod *seats.Pod) (ImageChange, error) {
	if pod.NoImages {
		return ImageChange{}, errNoImages
	}
	c := ImageChange{pod: pod, base: make(map[string]string, len(pod.Containers)), changed: sets.New[string]()}
	base := make([]override.Image, 0, len(pod.Containers))
	for i, container := range pod.Containers {
		image := container.Image
		original, ok := pod.Originals[container.Name]
		if ok {
			image = original
		} else if pod.Overrides != "" {
			continue // a rule added this container
		}
		base = append(base, override.Image{Container: container.Name, Init: container.Init, Image: image})
		c.at = append(c.at, i)
		c.base[container.Name] = image
	}
	var err error
	if c.images, err = rules.Images(group, base); err != nil {
		return c, err
	}
	for i := range c.images {
		if c.images[i].Image != pod.Containers[c.at[i]].Image {
			c.changed.Insert(c.images[i].Container)
		}
	}
	return c, nil
}

// ImageRules returns the paths of the rules that change an image of the pod in the group.
func ImageRules(rules *override.Rules, group string, pod *seats.Pod) (paths []string) {
	for n := 1; n <= rules.Len(); n++ {
		before, err := Images(rules.First(n-1), group, pod)
		if err != nil {
			return paths
		}
		after, err := Images(rules.First(n), group, pod)
		if err == nil && !slices.Equal(before.images, after.images) {
			paths = append(paths, rules.Path(n))
		}
	}
	return paths
}

// Changes returns true if the image of the container differs.
func (c ImageChange) Changes(container string) bool { return c.changed.Has(container) }

// Needed returns true if any image differs.
func (c ImageChange) Needed() bool { return len(c.changed) > 0 }

// Changed returns the images that differ, as the rules want them.
func (c ImageChange) Changed() (all []override.Image) {
	for _, image := range c.images {
		if c.changed.Has(image.Container) {
			all = append(all, image)
		}
	}
	return all
}

// Restarts returns true if the change restarts a container that is running now;
// sidecars among the init containers count. The kubelet does not restart a container
// that is not running.
func (c ImageChange) Restarts() bool {
	for i := range c.pod.Containers {
		container := &c.pod.Containers[i]
		if container.Running && c.changed.Has(container.Name) {
			return true
		}
	}
	return false
}

// Starts returns true if no container whose image differs has ever started, or can while its
// image stays: the kubelet cannot pull it. The change ends none of them.
func (c ImageChange) Starts() bool {
	for i := range c.pod.Containers {
		container := &c.pod.Containers[i]
		if c.changed.Has(container.Name) && !container.Unpulled {
			return false
		}
	}
	return true
}

// ApplyTo writes the images, and the annotation with the original ones, into a pod that
// is being created.
func (c ImageChange) ApplyTo(pod *corev1.Pod) error {
	raw, err := json.Marshal(c.base)
	if err != nil {
		return fmt.Errorf("encoding images: %w", err)
	}
	for _, image := range c.images {
		for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				if list[i].Name == image.Container {
					list[i].Image = image.Image
				}
			}
		}
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[gm.OriginalImagesAnnotation] = string(raw)
	return nil
}

// Patch returns a strategic merge patch that changes the images of the pod and sets the
// labels. The patch holds the UID, so that it fails on another pod of the same name.
func (c ImageChange) Patch(labels map[string]string) ([]byte, error) {
	type container struct {
		Name  string `json:"name"`
		Image string `json:"image"`
	}
	var patch struct {
		Metadata struct {
			UID         types.UID          `json:"uid"`
			Labels      map[string]string  `json:"labels,omitempty"`
			Annotations map[string]*string `json:"annotations"`
		} `json:"metadata"`
		Spec struct {
			Containers     []container `json:"containers,omitempty"`
			InitContainers []container `json:"initContainers,omitempty"`
		} `json:"spec"`
	}
	patch.Metadata.UID, patch.Metadata.Labels = c.pod.UID, labels
	restarts, original := map[string]int32{}, true
	for i, image := range c.images {
		original = original && image.Image == c.base[image.Container]
		if !c.changed.Has(image.Container) {
			continue
		}
		list := &patch.Spec.Containers
		if image.Init {
			list = &patch.Spec.InitContainers
		}
		*list = append(*list, container{image.Container, image.Image})
		if seen := &c.pod.Containers[c.at[i]]; seen.Running {
			restarts[image.Container] = seen.Restarts
		}
	}
	patch.Metadata.Annotations = map[string]*string{gm.OriginalImagesAnnotation: nil, gm.RestartingAnnotation: nil}
	var err error
	if !original || c.pod.Overrides != "" {
		err = setJSON(patch.Metadata.Annotations, gm.OriginalImagesAnnotation, c.base)
	}
	if len(restarts) > 0 && err == nil {
		err = setJSON(patch.Metadata.Annotations, gm.RestartingAnnotation, restarts)
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(patch)
}

func setJSON(annotations map[string]*string, key string, value any) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encoding annotation %s: %w", key, err)
	}
	s := string(raw)
	annotations[key] = &s
	return nil
}

// PodLabels returns the policy labels and the group label of a pod, without the labels
// by which its owner finds it.
func (r *Resolver) PodLabels(policyOwners ownership.PolicyOwners, pod *seats.Pod, group string) map[string]string {
	labels := policyOwners.Policies().Labels()
	if group != "" {
		labels[gm.NodeGroupLabel] = group
	}
	if owner := r.walker.Get(pod.Owner()); owner != nil && pod.Controller != nil {
		for _, key := range owner.Selector.Keys() {
			delete(labels, key)
		}
	}
	return labels
}
