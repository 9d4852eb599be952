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

// The fields of metadata that plaintext can change.
const (
	fieldLabels      = "labels"
	fieldAnnotations = "annotations"
	fieldFinalizers  = "finalizers"
)

// ownPrefixes are the prefixes of labels and annotations that record the policies and the
// group of a pod. Users cannot override them.
var ownPrefixes = []string{"groupmanagement.kubeedge.io/", "atoll.dev/"}

// ownedPrefixes and ownedLabels are the labels by which controllers select and count their
// pods. If a pod lost one, its owner would create another pod, which would lose it too,
// and so on without end.
var (
	ownedPrefixes = []string{"statefulset.kubernetes.io/", "batch.kubernetes.io/"}
	ownedLabels   = []string{
		"pod-template-hash", "controller-revision-hash", "pod-template-generation", "apps.kubernetes.io/pod-index",
		"job-name", "controller-uid",
		apps.PoolNameLabel, apps.UnitedDeploymentLabel, apps.NodePoolLabel,
	}
)

// checkKey refuses keys of labels or annotations that are invalid or that a policy must not
// change.
func checkKey(field, key string) error {
	spelled := key
	if field == fieldAnnotations {
		spelled = strings.ToLower(key) // for annotations, the API server ignores the case
	}
	if errs := validation.IsQualifiedName(spelled); len(errs) > 0 {
		return fmt.Errorf("cannot be the key of %s: %s", singular(field), errs[0])
	}
	for _, prefix := range ownPrefixes {
		if strings.HasPrefix(key, prefix) {
			return fmt.Errorf("must not be overridden: keys under %s record the policies and the group of the pod", prefix)
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

// checkMetadataValue refuses values of labels, annotations and finalizers that the API
// server would refuse.
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

// checkFinalizers checks a list of finalizers, or, if one is true, a single finalizer.
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

// LabelChange is a label that a rule adds, replaces or removes.
type LabelChange struct {
	// Rule is the index in spec.overrideRules.
	Rule int
	// Path is the path of the plaintext overrider in the spec.
	Path string
	// Key is the label's key.
	Key string
}

// Labels returns the labels that some rule changes, in the order of the spec.
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

// ChangesLifetime returns the path of the first overrider that decides whether a pod ends by
// itself (restartPolicy, activeDeadlineSeconds), "" if there is none. A workload whose pods
// never end, such as a Deployment, creates another pod for each one that does.
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

// Selected are the labels by which the owners of a pod select it.
type Selected struct {
	// Keys are the known keys.
	Keys []string
	// Unknown is true if the selector of one of the owners is not known. Then no label that
	// the pod has may change.
	Unknown bool
}

// ApplyTo is Apply for a pod that has owners. It fails if the rules change a label, a volume
// or the node affinity by which an owner recognizes the pod. The error is a RuleError, if
// the overrider is known; the pod is then unchanged.
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
		if err := selected.refuse(change.Key, had); err != nil {
			return RuleError{Rule: change.Rule, Overrider: change.Path, Err: err}
		}
	}
	if err := r.keepsIdentity(pod, changed); err != nil {
		return err
	}
	*pod = *changed
	return nil
}

// keepsIdentity returns an error if the rules removed something other than labels by which a
// controller of Kubernetes recognizes the pod: the node of a DaemonSet's pod, or the claim of
// a StatefulSet's pod.
//
// It restores finalizers of the pod and the volume with its service account's token without
// an error. They are not in the template, so the author of the rules does not see them.
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
		return r.blame("affinity", "must not change the node affinity of a DaemonSet's pod: it names the node that the pod is for")
	}
	for i := range pod.Spec.Volumes {
		claim := claimOf(pod, &pod.Spec.Volumes[i])
		if claim != "" && !slices.ContainsFunc(changed.Spec.Volumes, func(v corev1.Volume) bool { return claimOf(pod, &v) == claim }) {
			return r.blame("volumes", fmt.Sprintf("must not change the volume %q: a StatefulSet recognizes its pod by the claim of this volume", pod.Spec.Volumes[i].Name))
		}
	}
	return nil
}

// blame returns a RuleError about the first overrider that changes a field of spec.
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

// nodeNameOf returns the node that a DaemonSet's pod is for, "" for other pods.
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

// isTokenVolume reports whether the API server's admission added the volume, for the token
// of the pod's service account.
func isTokenVolume(v *corev1.Volume) bool {
	return v.Projected != nil && strings.HasPrefix(v.Name, "kube-api-access-")
}

// claimOf returns the name of the claim if a StatefulSet added the volume to the pod, "" for
// other volumes.
func claimOf(pod *corev1.Pod, v *corev1.Volume) string {
	if pod.Name == "" || v.PersistentVolumeClaim == nil || v.PersistentVolumeClaim.ClaimName != v.Name+"-"+pod.Name {
		return ""
	}
	return v.PersistentVolumeClaim.ClaimName
}

// refuse returns an error if a rule must not change the label. had is true if the pod had
// the label before.
func (s Selected) refuse(key string, had bool) error {
	switch {
	case slices.Contains(s.Keys, key):
		return fmt.Errorf("must not change the label %s: the owner of the pod selects its pods by it", key)
	case s.Unknown && had:
		return fmt.Errorf("must not change the label %s of the template: the labels by which the owner of the pod selects its pods are not known", key)
	}
	return nil
}
