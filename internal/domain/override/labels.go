package override

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/affinity"
)

// The fields of metadata that plaintext can reach.
const (
	fieldLabels      = "labels"
	fieldAnnotations = "annotations"
	fieldFinalizers  = "finalizers"
)

// ownPrefixes begin the keys of labels and annotations that users cannot
// override: they say which policies and which group a pod belongs to.
var ownPrefixes = []string{"groupmanagement.kubeedge.io/", "atoll.dev/"}

// ownedPrefixes and ownedLabels are the labels by which controllers find and
// count their pods. A pod that loses one is not its owner's any more, and the
// owner makes another one, without end.
var (
	ownedPrefixes = []string{"statefulset.kubernetes.io/", "batch.kubernetes.io/"}
	ownedLabels   = []string{
		"pod-template-hash", "controller-revision-hash", "pod-template-generation", "apps.kubernetes.io/pod-index",
		"job-name", "controller-uid",
		apps.PoolNameLabel, apps.UnitedDeploymentLabel, apps.NodePoolLabel,
	}
)

// checkKey refuses a label or an annotation that is not a policy's to change.
func checkKey(field, key string) error {
	spelled := key
	if field == fieldAnnotations {
		spelled = strings.ToLower(key) // of annotations the API server does not mind the case
	}
	if errs := validation.IsQualifiedName(spelled); len(errs) > 0 {
		return fmt.Errorf("cannot be the key of %s: %s", singular(field), errs[0])
	}
	for _, prefix := range ownPrefixes {
		if strings.HasPrefix(key, prefix) {
			return fmt.Errorf("must not be overridden: keys under %s say what the pod belongs to", prefix)
		}
	}
	if field == fieldLabels && isOwned(key) {
		return fmt.Errorf("must not be overridden: a controller finds its pods by the label %s", key)
	}
	if field == fieldAnnotations && slices.ContainsFunc(ownedPrefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) }) {
		return fmt.Errorf("must not be overridden: a controller counts its pods by the annotation %s", key)
	}
	return nil
}

func singular(field string) string {
	if field == fieldLabels {
		return "a label"
	}
	return "an annotation"
}

func isOwned(key string) bool {
	return slices.Contains(ownedLabels, key) ||
		slices.ContainsFunc(ownedPrefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

// checkMetadataValue refuses what the API server would refuse of a label, an
// annotation or a finalizer.
func (s *patchStep) checkMetadataValue() error {
	if s.Operator == gm.OverriderOpRemove || s.Pointer[0] != "metadata" {
		return nil
	}
	if s.Pointer[1] == fieldFinalizers {
		return checkFinalizers(s.Value, len(s.Pointer) > 2)
	}
	value, isString := s.Value.(string)
	if !isString {
		return fmt.Errorf("the value of %s must be a string: put it in quotes", singular(s.Pointer[1]))
	}
	if s.Pointer[1] == fieldLabels {
		if errs := validation.IsValidLabelValue(value); len(errs) > 0 {
			return fmt.Errorf("%.64q cannot be the value of a label: %s", value, errs[0])
		}
		return nil
	}
	if len(s.Pointer[2])+len(value) > apivalidation.TotalAnnotationSizeLimitB {
		return fmt.Errorf("annotations must have at most %d bytes together", apivalidation.TotalAnnotationSizeLimitB)
	}
	return nil
}

// checkFinalizers looks at one finalizer, or at a list of them.
func checkFinalizers(value any, one bool) error {
	list, isList := value.([]any)
	if one {
		list, isList = []any{value}, true
	}
	if !isList {
		return errors.New("finalizers must be a list of strings")
	}
	for _, item := range list {
		name, isString := item.(string)
		if !isString {
			return errors.New("a finalizer must be a string")
		}
		if len(validation.IsQualifiedName(name)) > 0 || !strings.Contains(name, "/") {
			return fmt.Errorf("%.64q cannot be a finalizer: use for example example.com/name", name)
		}
	}
	return nil
}

// LabelChange is a label that a rule writes or takes away.
type LabelChange struct {
	// Rule is the index in spec.overrideRules.
	Rule int
	// Path is that of the plaintext overrider.
	Path string
	Key  string
}

// Labels are the labels that some rule changes, in the order of the spec.
func (r *Rules) Labels() []LabelChange {
	var changes []LabelChange
	for _, x := range r.all() {
		for _, s := range x.patch {
			if s.Pointer[0] == "metadata" && s.Pointer[1] == fieldLabels {
				changes = append(changes, LabelChange{Rule: x.index, Path: s.path, Key: s.Pointer[2]})
			}
		}
	}
	return changes
}

// ChangesLifetime is the path of the first overrider that decides whether a pod
// comes to an end by itself, or "". The owners of pods that never end make
// another pod for each that does.
func (r *Rules) ChangesLifetime() string {
	for _, x := range r.all() {
		for _, s := range x.patch {
			if s.Pointer[0] == "spec" && (s.Pointer[1] == "restartPolicy" || s.Pointer[1] == "activeDeadlineSeconds") {
				return s.path
			}
		}
	}
	return ""
}

// Selected are the labels by which the owners of a pod find it.
type Selected struct {
	// Keys are those that are known.
	Keys []string
	// Unknown: what one of the owners selects by is not known. Then every label
	// that the pod has stays.
	Unknown bool
}

// ApplyTo is Apply for a pod that has owners. It is an error for a pod to come
// out without what its owners know it by: the pod is then as it was.
func (r *Rules) ApplyTo(group string, pod *corev1.Pod, selected Selected) error {
	if !slices.ContainsFunc(r.all(), func(x rule) bool { return len(x.patch) > 0 }) {
		return r.Apply(group, pod)
	}
	changes := r.Labels()
	changed := pod.DeepCopy()
	if err := r.Apply(group, changed); err != nil {
		return err
	}
	for _, change := range changes {
		was, had := pod.Labels[change.Key]
		is, has := changed.Labels[change.Key]
		if was == is && had == has {
			continue
		}
		if why := selected.keeps(change.Key, had); why != nil {
			return RuleError{Rule: change.Rule, Overrider: change.Path, Err: why}
		}
	}
	if err := r.keepsIdentity(pod, changed); err != nil {
		return err
	}
	*pod = *changed
	return nil
}

// keepsIdentity tells what a controller of Kubernetes knows a pod by, beside its
// labels, and the rules took away; or nil. Finalizers that the pod had, and the
// volume of its service account's token, come back without an error: the template
// does not have them, and who wrote the rules does not see them.
func (r *Rules) keepsIdentity(pod, changed *corev1.Pod) error {
	for i, name := range pod.Finalizers {
		if !slices.Contains(changed.Finalizers, name) {
			changed.Finalizers = slices.Insert(changed.Finalizers, min(i, len(changed.Finalizers)), name)
		}
	}
	for _, v := range pod.Spec.Volumes {
		if isTokenVolume(&v) && !slices.ContainsFunc(changed.Spec.Volumes, func(other corev1.Volume) bool { return other.Name == v.Name }) {
			changed.Spec.Volumes = append(changed.Spec.Volumes, v)
		}
	}
	if node := nodeNameOf(pod); node != "" && nodeNameOf(changed) != node {
		return r.blame("affinity", "must leave the node affinity of a DaemonSet's pod as it is: the DaemonSet knows by it for which node the pod is")
	}
	for i := range pod.Spec.Volumes {
		claim := claimOf(pod, &pod.Spec.Volumes[i])
		if claim != "" && !slices.ContainsFunc(changed.Spec.Volumes, func(v corev1.Volume) bool { return claimOf(pod, &v) == claim }) {
			return r.blame("volumes", fmt.Sprintf("must leave the volume %q as it is: a StatefulSet knows its pod by the claim of it", pod.Spec.Volumes[i].Name))
		}
	}
	return nil
}

// blame names the first overrider that changes a field of spec.
func (r *Rules) blame(field, why string) error {
	for _, x := range r.all() {
		for _, s := range x.patch {
			if s.Pointer[0] == "spec" && s.Pointer[1] == field {
				return RuleError{Rule: x.index, Overrider: s.path, Err: errors.New(why)}
			}
		}
	}
	return errors.New(why)
}

// nodeNameOf is the node that a DaemonSet's pod is for; "" for other pods.
func nodeNameOf(pod *corev1.Pod) string {
	required := affinity.Required(&pod.Spec)
	if required == nil {
		return ""
	}
	for _, term := range required.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == "metadata.name" && field.Operator == corev1.NodeSelectorOpIn && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return ""
}

// isTokenVolume tells whether the API server's admission has put the volume into
// the pod and into its containers' mounts.
func isTokenVolume(v *corev1.Volume) bool {
	return v.Projected != nil && strings.HasPrefix(v.Name, "kube-api-access-")
}

// claimOf is the claim of a volume that a StatefulSet gave to the pod; "" for
// other volumes.
func claimOf(pod *corev1.Pod, v *corev1.Volume) string {
	if pod.Name == "" || v.PersistentVolumeClaim == nil || v.PersistentVolumeClaim.ClaimName != v.Name+"-"+pod.Name {
		return ""
	}
	return v.PersistentVolumeClaim.ClaimName
}

// keeps tells why the label must stay as it is, or nil. had: the pod has it.
func (s Selected) keeps(key string, had bool) error {
	switch {
	case slices.Contains(s.Keys, key):
		return fmt.Errorf("must not change the label %s: the owner of the pod finds it by that", key)
	case s.Unknown && had:
		return fmt.Errorf("must not change the label %s of the template: it is not known by which labels the owner of the pod finds it", key)
	}
	return nil
}
