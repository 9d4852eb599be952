package override

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

const (
	listContainers     = "containers"
	listInitContainers = "initContainers"
)

// Image is the image of one container.
type Image struct {
	// Container is the container's name, unique in a pod.
	Container string
	// Init is true for init containers.
	Init bool
	// Image is the value of the container's field image.
	Image string
}

// Images returns the images of a pod's containers in the group. base has the images of the
// pod template: all containers and init containers, each kind in the order of the pod. The
// result is in the order of base.
//
// Of plaintext overriders, only those count that can change images. A container that
// plaintext removes or renames keeps its image. The error is a RuleError.
func (r *Rules) Images(group string, base []Image) ([]Image, error) {
	images := slices.Clone(base)
	if !slices.ContainsFunc(r.all(), func(x rule) bool { return x.applies(group) && (len(x.images) > 0 || len(x.patch) > 0) }) {
		return images, nil
	}
	var pod corev1.Pod
	for _, image := range base {
		container := corev1.Container{Name: image.Container, Image: image.Image}
		if image.Init {
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, container)
		} else {
			pod.Spec.Containers = append(pod.Spec.Containers, container)
		}
	}
	done, err := r.applied(group, &pod, true)
	if err != nil {
		return nil, err
	}
	for i := range images {
		list := done.Spec.Containers
		if images[i].Init {
			list = done.Spec.InitContainers
		}
		at := slices.IndexFunc(list, func(c corev1.Container) bool { return c.Name == images[i].Container })
		if at >= 0 {
			images[i].Image = list[at].Image
		}
	}
	return images, nil
}

// Apply changes a pod that is being created into what it is in the group. It applies rules
// in the order of the list, each to the result of the one before. Within a rule the order
// is images, command, args, and then all plaintext as one patch. Ephemeral containers stay
// as they are.
//
// The error is a RuleError; the pod is then unchanged. For a pod that has owners, use
// ApplyTo.
func (r *Rules) Apply(group string, pod *corev1.Pod) error {
	if !slices.ContainsFunc(r.all(), func(x rule) bool { return x.applies(group) }) {
		return nil
	}
	done, err := r.applied(group, pod.DeepCopy(), false)
	if err != nil {
		return err
	}
	*pod = *done
	return nil
}

// applied applies the rules to pod and returns the result, which may be pod itself or a new
// object. imagesOnly skips every change that cannot affect images.
func (r *Rules) applied(group string, pod *corev1.Pod, imagesOnly bool) (*corev1.Pod, error) {
	for i := range r.rules {
		x := &r.rules[i]
		if !x.applies(group) {
			continue
		}
		if err := x.applyImages(pod); err != nil {
			return nil, err
		}
		if !imagesOnly {
			for at := range x.commands {
				if err := x.commands[at].apply(pod, commandOf); err != nil {
					return nil, x.failed(x.commands[at].path, err)
				}
			}
			for at := range x.args {
				if err := x.args[at].apply(pod, argsOf); err != nil {
					return nil, x.failed(x.args[at].path, err)
				}
			}
		}
		changed, err := x.applyPatch(pod, imagesOnly)
		if err != nil {
			return nil, err
		}
		pod = changed
	}
	return pod, nil
}

func (r *rule) failed(path string, err error) error {
	return RuleError{Rule: r.index, Overrider: path, Err: err}
}

func (r *rule) applyImages(pod *corev1.Pod) error {
	for i := range r.images {
		change := &r.images[i]
		if change.List != listInitContainers {
			if err := change.applyTo(pod.Spec.Containers, listContainers); err != nil {
				return r.failed(change.path, err)
			}
		}
		if change.List != listContainers {
			if err := change.applyTo(pod.Spec.InitContainers, listInitContainers); err != nil {
				return r.failed(change.path, err)
			}
		}
	}
	return nil
}

func (c *imageChange) applyTo(containers []corev1.Container, list string) error {
	if c.Index >= len(containers) {
		return fmt.Errorf("no container at /spec/%s/%d: the pod has %d", list, c.Index, len(containers))
	}
	for i := range containers {
		if c.Index != everyIndex && c.Index != i {
			continue
		}
		image, err := c.apply(containers[i].Image)
		if err != nil {
			return fmt.Errorf("container %q: %w", containers[i].Name, err)
		}
		containers[i].Image = image
	}
	return nil
}

func commandOf(c *corev1.Container) *[]string { return &c.Command }

func argsOf(c *corev1.Container) *[]string { return &c.Args }

func (c *listChange) apply(pod *corev1.Pod, listOf func(*corev1.Container) *[]string) error {
	container := containerNamed(pod, c.Container)
	if container == nil {
		return fmt.Errorf("no container or init container %.63q", c.Container)
	}
	list := listOf(container)
	switch c.Operator {
	case gm.OverriderOpAdd:
		*list = append(slices.Clip(*list), c.Value...)
	case gm.OverriderOpReplace:
		*list = slices.Clone(c.Value)
	case gm.OverriderOpRemove:
		*list = slices.DeleteFunc(*list, func(element string) bool { return slices.Contains(c.Value, element) })
	}
	return nil
}

func containerNamed(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// applyPatch returns the pod after all plaintext of the rule. If one step fails, all do. A
// field that pods do not have is an error.
func (r *rule) applyPatch(pod *corev1.Pod, imagesOnly bool) (*corev1.Pod, error) {
	skip := func(s *patchStep) bool { return imagesOnly && !s.bearsOnImages() }
	if !slices.ContainsFunc(r.patch, func(s patchStep) bool { return !skip(&s) }) {
		return pod, nil
	}
	tree, err := treeOf(pod)
	if err != nil {
		return nil, r.failed(r.path+".plaintext", err)
	}
	for i := range r.patch {
		if skip(&r.patch[i]) {
			continue
		}
		if err := r.patch[i].apply(tree); err != nil {
			return nil, r.failed(r.patch[i].path, err)
		}
	}
	changed, err := podOf(tree)
	if err != nil {
		return nil, r.failed(r.path+".plaintext", err)
	}
	// No step can change these, and the conversion to JSON and back must not either.
	changed.TypeMeta, changed.Status = pod.TypeMeta, pod.Status
	meta := pod.ObjectMeta
	meta.Labels, meta.Annotations, meta.Finalizers = nilIfEmpty(changed.Labels), nilIfEmpty(changed.Annotations), changed.Finalizers
	changed.ObjectMeta = meta
	if err := checkChangedImages(pod, changed); err != nil {
		return nil, r.failed(r.path+".plaintext", err)
	}
	return changed, nil
}

func nilIfEmpty(keys map[string]string) map[string]string {
	if len(keys) == 0 {
		return nil
	}
	return keys
}

// treeOf returns the pod as a JSON object. It has labels and annotations even if they are
// empty, so that a step can add the first one.
func treeOf(pod *corev1.Pod) (map[string]any, error) {
	text, err := json.Marshal(pod)
	if err != nil {
		return nil, fmt.Errorf("encoding the pod: %w", err)
	}
	var tree map[string]any
	if err := utiljson.Unmarshal(text, &tree); err != nil {
		return nil, fmt.Errorf("decoding the pod: %w", err)
	}
	meta, ok := tree["metadata"].(map[string]any)
	if !ok {
		meta = map[string]any{}
		tree["metadata"] = meta
	}
	for _, field := range []string{"labels", "annotations"} {
		if _, ok := meta[field].(map[string]any); !ok {
			meta[field] = map[string]any{}
		}
	}
	return tree, nil
}

// podOf decodes the tree. It compares names of fields exactly, and refuses numbers that do
// not fit and fields that pods do not have.
func podOf(tree map[string]any) (*corev1.Pod, error) {
	text, err := json.Marshal(tree)
	if err != nil {
		return nil, fmt.Errorf("encoding the result: %w", err)
	}
	pod := &corev1.Pod{}
	if err := utiljson.Unmarshal(text, pod); err != nil {
		return nil, fmt.Errorf("the result is not a pod: %w", err)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(tree, &corev1.Pod{}, true); err != nil {
		return nil, fmt.Errorf("the result is not a pod: %w", err)
	}
	return pod, nil
}

// checkChangedImages refuses images that the rule changed and that are invalid. Invalid
// images of the template are not an error of the rule.
func checkChangedImages(before, after *corev1.Pod) error {
	for _, list := range [][]corev1.Container{after.Spec.InitContainers, after.Spec.Containers} {
		for i := range list {
			old := containerNamed(before, list[i].Name)
			if old != nil && old.Image == list[i].Image {
				continue
			}
			if _, err := parseImage(list[i].Image); err != nil {
				return fmt.Errorf("container %.63q: %w", list[i].Name, err)
			}
		}
	}
	return nil
}
