package united

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/affinity"
)

// Workload is a Deployment, a StatefulSet or a DaemonSet.
type Workload interface {
	metav1.Object
	runtime.Object
}

// BuildInput is everything from which Build makes a pool's workload.
type BuildInput struct {
	// Namespace and Owner are the namespace and the name of the UnitedDeployment.
	Namespace, Owner string
	// Template is the shared template. Revision is the value of apps.RevisionLabel: the
	// name of the template's ControllerRevision without the UnitedDeployment's name.
	Template *apps.WorkloadTemplate
	Revision string
	// Selector is spec.selector of the UnitedDeployment.
	Selector *metav1.LabelSelector
	Pool     *apps.Pool
	// Taints are the taints of the NodePool or, if it is gone, its last known taints.
	Taints []corev1.Taint
	// Replicas and Partition do not change the hash in apps.PoolRevisionAnnotation.
	Replicas, Partition int32
}

// ErrNoTemplate means that the UnitedDeployment has no workload template.
var ErrNoTemplate = errors.New("workloadTemplate: none of deploymentTemplate, statefulSetTemplate and daemonSetTemplate is set")

// Build returns the workload of a pool, without a name. Its annotation
// apps.PoolRevisionAnnotation is a hash of everything but replicas and partition. Build
// does not change its input. It fails if the patch cannot be applied, or if the selector
// does not match the pods.
func Build(in BuildInput) (Workload, error) {
	w, err := fromTemplate(in.Template)
	if err != nil {
		return nil, err
	}
	if in.Pool.Patch != nil && len(in.Pool.Patch.Raw) > 0 {
		if w, err = patched(w, in.Pool.Patch.Raw); err != nil {
			return nil, fmt.Errorf("topology.pools[%s].patch: %w", in.Pool.Name, err)
		}
	}
	w.SetNamespace(in.Namespace)
	template, selector := templateOf(w)
	*selector = poolSelector(in)
	if err := label(in, w, template); err != nil {
		return nil, err
	}
	constrain(&template.Spec, in)
	if err := annotate(w, in.Taints); err != nil {
		return nil, err
	}
	Resize(w, in.Replicas, in.Partition)
	return w, nil
}

// fromTemplate returns a copy of the workload in the template.
func fromTemplate(t *apps.WorkloadTemplate) (Workload, error) {
	meta := func(from *metav1.ObjectMeta) metav1.ObjectMeta {
		return metav1.ObjectMeta{Labels: clean(from.Labels), Annotations: clean(from.Annotations)}
	}
	switch {
	case t == nil:
		return nil, ErrNoTemplate
	case t.DeploymentTemplate != nil:
		return &appsv1.Deployment{ObjectMeta: meta(&t.DeploymentTemplate.ObjectMeta), Spec: *t.DeploymentTemplate.Spec.DeepCopy()}, nil
	case t.StatefulSetTemplate != nil:
		return &appsv1.StatefulSet{ObjectMeta: meta(&t.StatefulSetTemplate.ObjectMeta), Spec: *t.StatefulSetTemplate.Spec.DeepCopy()}, nil
	case t.DaemonSetTemplate != nil:
		return &appsv1.DaemonSet{ObjectMeta: meta(&t.DaemonSetTemplate.ObjectMeta), Spec: *t.DaemonSetTemplate.Spec.DeepCopy()}, nil
	}
	return nil, ErrNoTemplate
}

// foreignKeys are labels and annotations of workloads that another program writes. If
// Build set them too, both programs would overwrite each other's values forever.
var foreignKeys = []string{
	gm.BindingPropagationPolicyLabel, gm.BindingOverridePolicyLabel,
	appsv1.DeprecatedTemplateGeneration, corev1.LastAppliedConfigAnnotation,
}

// clean copies labels or annotations without the ones that another program writes.
func clean(from map[string]string) map[string]string {
	to := maps.Clone(from)
	maps.DeleteFunc(to, func(key, _ string) bool {
		return slices.Contains(foreignKeys, key) || strings.HasPrefix(key, "deployment.kubernetes.io/")
	})
	return to
}

// templateOf returns pointers to the pod template and the selector of a workload. The
// caller may change the workload through them.
func templateOf(w Workload) (*corev1.PodTemplateSpec, **metav1.LabelSelector) {
	switch w := w.(type) {
	case *appsv1.Deployment:
		return &w.Spec.Template, &w.Spec.Selector
	case *appsv1.StatefulSet:
		return &w.Spec.Template, &w.Spec.Selector
	case *appsv1.DaemonSet:
		return &w.Spec.Template, &w.Spec.Selector
	}
	panic(fmt.Sprintf("a %T is not a kind of workload that pools have", w))
}

// TemplateOf returns the pod template and the selector of a workload. The caller must not
// change them.
func TemplateOf(w Workload) (*corev1.PodTemplateSpec, *metav1.LabelSelector) {
	template, selector := templateOf(w)
	return template, *selector
}

// poolSelector returns the selector of the UnitedDeployment with the label of the pool.
func poolSelector(in BuildInput) *metav1.LabelSelector {
	selector := &metav1.LabelSelector{}
	if in.Selector != nil {
		selector = in.Selector.DeepCopy()
	}
	if selector.MatchLabels == nil {
		selector.MatchLabels = map[string]string{}
	}
	selector.MatchLabels[apps.PoolNameLabel] = in.Pool.Name
	return selector
}

// SelectorOf returns the selector of a pool's workload.
func SelectorOf(selector *metav1.LabelSelector, pool string) *metav1.LabelSelector {
	return poolSelector(BuildInput{Selector: selector, Pool: &apps.Pool{Name: pool}})
}

// label sets the labels by which the workload and its pods are found.
func label(in BuildInput, w Workload, template *corev1.PodTemplateSpec) error {
	_, selector := templateOf(w)
	own := w.GetLabels()
	if own == nil {
		own = map[string]string{}
	}
	if template.Labels == nil {
		template.Labels = map[string]string{}
	}
	maps.Copy(own, (*selector).MatchLabels)
	maps.Copy(template.Labels, (*selector).MatchLabels)
	own[apps.UnitedDeploymentLabel], own[apps.RevisionLabel] = in.Owner, in.Revision
	w.SetLabels(own)
	matches, err := metav1.LabelSelectorAsSelector(*selector)
	if err != nil {
		return fmt.Errorf("selector: %w", err)
	}
	if !matches.Matches(labels.Set(template.Labels)) {
		return fmt.Errorf("selector: %s does not match the labels of the pods of pool %q", matches, in.Pool.Name)
	}
	return nil
}

// annotate records from what the workload was made. It sets replicas and partition to 0,
// because the hash must not depend on them.
func annotate(w Workload, taints []corev1.Taint) error {
	notes := w.GetAnnotations()
	if notes == nil {
		notes = map[string]string{}
	}
	keys, err := json.Marshal(templateKeys{
		Labels:      slices.Sorted(maps.Keys(w.GetLabels())),
		Annotations: slices.Sorted(maps.Keys(notes)),
	})
	if err != nil {
		return fmt.Errorf("encoding the keys of the template: %w", err)
	}
	notes[apps.TemplateKeysAnnotation] = string(keys)
	if len(taints) > 0 {
		raw, err := json.Marshal(taints)
		if err != nil {
			return fmt.Errorf("encoding the taints of the NodePool: %w", err)
		}
		notes[apps.PoolTaintsAnnotation] = string(raw)
	}
	w.SetAnnotations(notes)
	Resize(w, 0, 0)
	sum, err := hash(w)
	if err != nil {
		return fmt.Errorf("hashing the workload: %w", err)
	}
	notes[apps.PoolRevisionAnnotation] = sum
	w.SetAnnotations(notes)
	return nil
}

// templateKeys are the labels and annotations that a workload has from its template. They
// are kept in an annotation, so that a key that leaves the template is removed.
type templateKeys struct {
	Labels      []string `json:"labels,omitempty"`
	Annotations []string `json:"annotations,omitempty"`
}

// hash returns a hash of the values' JSON, which has the keys of maps in order.
func hash(values ...any) (string, error) {
	sum := sha256.New()
	for _, value := range values {
		raw, err := json.Marshal(value)
		if err != nil {
			return "", err
		}
		sum.Write(raw)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}

// Resize sets replicas and partition if the kind has them. A StatefulSet that is updated
// OnDelete gets no partition.
func Resize(w Workload, replicas, partition int32) {
	switch w := w.(type) {
	case *appsv1.Deployment:
		w.Spec.Replicas = &replicas
	case *appsv1.StatefulSet:
		w.Spec.Replicas = &replicas
		u := &w.Spec.UpdateStrategy
		if u.RollingUpdate == nil {
			if partition == 0 || u.Type == appsv1.OnDeleteStatefulSetStrategyType {
				return
			}
			u.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{}
		}
		u.RollingUpdate.Partition = &partition
	}
}

// constrain restricts the pods to the nodes of the pool, and adds the tolerations that
// they need there.
func constrain(spec *corev1.PodSpec, in BuildInput) {
	term := in.Pool.NodeSelectorTerm.DeepCopy()
	if len(term.MatchExpressions) == 0 && len(term.MatchFields) == 0 {
		term.MatchExpressions = []corev1.NodeSelectorRequirement{{
			Key: apps.NodePoolLabel, Operator: corev1.NodeSelectorOpIn, Values: []string{in.Pool.Name},
		}}
	}
	// A node selector without terms stays as it is, for the API server to refuse.
	if required := affinity.Required(spec); required == nil || len(required.NodeSelectorTerms) > 0 {
		affinity.Narrow(spec, func(t corev1.NodeSelectorTerm) []corev1.NodeSelectorTerm {
			t.MatchExpressions = append(slices.Clip(t.MatchExpressions), term.DeepCopy().MatchExpressions...)
			t.MatchFields = append(slices.Clip(t.MatchFields), term.DeepCopy().MatchFields...)
			return []corev1.NodeSelectorTerm{t}
		})
	}
	for i := range in.Pool.Tolerations {
		spec.Tolerations = withToleration(spec.Tolerations, in.Pool.Tolerations[i])
	}
	for i := range in.Taints {
		taint := &in.Taints[i]
		operator := corev1.TolerationOpEqual
		if taint.Value == "" {
			operator = corev1.TolerationOpExists
		}
		spec.Tolerations = withToleration(spec.Tolerations, corev1.Toleration{Key: taint.Key, Operator: operator, Value: taint.Value, Effect: taint.Effect})
	}
}

// Tolerates reports whether pods with these tolerations keep running under all of these
// taints without a time limit.
func Tolerates(list []corev1.Toleration, taints []corev1.Taint) bool {
	for i := range taints {
		if !slices.ContainsFunc(list, func(t corev1.Toleration) bool { return t.TolerationSeconds == nil && tolerates(&t, &taints[i]) }) {
			return false
		}
	}
	return true
}

// tolerates is the rule of kube-scheduler for the operators Equal and Exists. Other operators
// tolerate nothing.
func tolerates(t *corev1.Toleration, taint *corev1.Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	switch t.Operator {
	case "", corev1.TolerationOpEqual:
		return t.Key != "" && t.Value == taint.Value
	case corev1.TolerationOpExists:
		return true
	}
	return false
}

// withToleration adds a toleration unless the list has the same one.
func withToleration(list []corev1.Toleration, one corev1.Toleration) []corev1.Toleration {
	if slices.ContainsFunc(list, func(has corev1.Toleration) bool {
		return has.MatchToleration(&one) && has.TolerationSeconds == nil && one.TolerationSeconds == nil
	}) {
		return list
	}
	return append(list, one)
}
