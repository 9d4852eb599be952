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

// Recipe is what a pool's workload is made of.
type Recipe struct {
	// Namespace and Owner are those of the UnitedDeployment.
	Namespace, Owner string
	// Template is the shared template and Revision the value of its label.
	Template *apps.WorkloadTemplate
	Revision string
	Selector *metav1.LabelSelector
	Pool     *apps.Pool
	// Taints are those of the NodePool, as it is or was when it was seen last.
	Taints []corev1.Taint
	// Replicas and Partition are no part of what a pool's revision is.
	Replicas, Partition int32
}

// ErrNoTemplate: no template is set.
var ErrNoTemplate = errors.New("workloadTemplate: none of deploymentTemplate, statefulSetTemplate and daemonSetTemplate is set")

// Build makes the workload, without a name. Its annotation
// apps.PoolRevisionAnnotation is a hash of everything but replicas and
// partition. The recipe is left as it is.
func Build(r Recipe) (Workload, error) {
	w, err := blank(r.Template)
	if err != nil {
		return nil, err
	}
	if r.Pool.Patch != nil && len(r.Pool.Patch.Raw) > 0 {
		if w, err = patched(w, r.Pool.Patch.Raw); err != nil {
			return nil, fmt.Errorf("topology.pools[%s].patch: %w", r.Pool.Name, err)
		}
	}
	w.SetNamespace(r.Namespace)
	template, selector := podsOf(w)
	*selector = selectorOf(r)
	if err := label(r, w, template); err != nil {
		return nil, err
	}
	place(&template.Spec, r)
	if err := annotate(w, r.Taints); err != nil {
		return nil, err
	}
	Resize(w, r.Replicas, r.Partition)
	return w, nil
}

// blank is the workload as the template has it.
func blank(t *apps.WorkloadTemplate) (Workload, error) {
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

// others are keys that somebody else writes on workloads: to write them too
// would be a quarrel without end.
var others = []string{
	gm.BindingPropagationPolicyLabel, gm.BindingOverridePolicyLabel,
	appsv1.DeprecatedTemplateGeneration, corev1.LastAppliedConfigAnnotation,
}

// clean copies labels or annotations without those that somebody else writes.
func clean(from map[string]string) map[string]string {
	to := maps.Clone(from)
	maps.DeleteFunc(to, func(key, _ string) bool {
		return slices.Contains(others, key) || strings.HasPrefix(key, "deployment.kubernetes.io/")
	})
	return to
}

// podsOf are the parts that the three kinds have in common.
func podsOf(w Workload) (*corev1.PodTemplateSpec, **metav1.LabelSelector) {
	switch w := w.(type) {
	case *appsv1.Deployment:
		return &w.Spec.Template, &w.Spec.Selector
	case *appsv1.StatefulSet:
		return &w.Spec.Template, &w.Spec.Selector
	case *appsv1.DaemonSet:
		return &w.Spec.Template, &w.Spec.Selector
	}
	panic(fmt.Sprintf("a %T is no workload of a pool", w))
}

// PodsOf are the pod template and the selector of a workload.
func PodsOf(w Workload) (*corev1.PodTemplateSpec, *metav1.LabelSelector) {
	template, selector := podsOf(w)
	return template, *selector
}

// selectorOf is the selector of the UnitedDeployment and the pool's name.
func selectorOf(r Recipe) *metav1.LabelSelector {
	selector := &metav1.LabelSelector{}
	if r.Selector != nil {
		selector = r.Selector.DeepCopy()
	}
	if selector.MatchLabels == nil {
		selector.MatchLabels = map[string]string{}
	}
	selector.MatchLabels[apps.PoolNameLabel] = r.Pool.Name
	return selector
}

// SelectorOf is the selector of a pool's workload.
func SelectorOf(selector *metav1.LabelSelector, pool string) *metav1.LabelSelector {
	return selectorOf(Recipe{Selector: selector, Pool: &apps.Pool{Name: pool}})
}

// label puts the labels on that the workload and its pods are known by.
func label(r Recipe, w Workload, template *corev1.PodTemplateSpec) error {
	_, selector := podsOf(w)
	own := w.GetLabels()
	if own == nil {
		own = map[string]string{}
	}
	if template.Labels == nil {
		template.Labels = map[string]string{}
	}
	maps.Copy(own, (*selector).MatchLabels)
	maps.Copy(template.Labels, (*selector).MatchLabels)
	own[apps.UnitedDeploymentLabel], own[apps.RevisionLabel] = r.Owner, r.Revision
	w.SetLabels(own)
	matches, err := metav1.LabelSelectorAsSelector(*selector)
	if err != nil {
		return fmt.Errorf("selector: %w", err)
	}
	if !matches.Matches(labels.Set(template.Labels)) {
		return fmt.Errorf("selector: %s does not match the labels of the pods of pool %q", matches, r.Pool.Name)
	}
	return nil
}

// annotate says what the workload was made of.
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
		return fmt.Errorf("writing down the keys of the template: %w", err)
	}
	notes[apps.TemplateKeysAnnotation] = string(keys)
	if len(taints) > 0 {
		raw, err := json.Marshal(taints)
		if err != nil {
			return fmt.Errorf("writing down the taints of the NodePool: %w", err)
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

// templateKeys are the keys that a template put on its workload.
type templateKeys struct {
	Labels      []string `json:"labels,omitempty"`
	Annotations []string `json:"annotations,omitempty"`
}

// hash is over JSON: maps are sorted in it.
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

// Resize sets replicas and partition, where the kind has them.
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

// place makes sure that the pods run in the pool, and may.
func place(spec *corev1.PodSpec, r Recipe) {
	term := r.Pool.NodeSelectorTerm.DeepCopy()
	if len(term.MatchExpressions) == 0 && len(term.MatchFields) == 0 {
		term.MatchExpressions = []corev1.NodeSelectorRequirement{{
			Key: apps.NodePoolLabel, Operator: corev1.NodeSelectorOpIn, Values: []string{r.Pool.Name},
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
	for i := range r.Pool.Tolerations {
		spec.Tolerations = tolerating(spec.Tolerations, r.Pool.Tolerations[i])
	}
	for i := range r.Taints {
		taint := &r.Taints[i]
		operator := corev1.TolerationOpEqual
		if taint.Value == "" {
			operator = corev1.TolerationOpExists
		}
		spec.Tolerations = tolerating(spec.Tolerations, corev1.Toleration{Key: taint.Key, Operator: operator, Value: taint.Value, Effect: taint.Effect})
	}
}

// Tolerates tells whether pods with these tolerations run on under all of these
// taints, for as long as they are there.
func Tolerates(list []corev1.Toleration, taints []corev1.Taint) bool {
	for i := range taints {
		if !slices.ContainsFunc(list, func(t corev1.Toleration) bool { return t.TolerationSeconds == nil && tolerates(&t, &taints[i]) }) {
			return false
		}
	}
	return true
}

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

func tolerating(list []corev1.Toleration, one corev1.Toleration) []corev1.Toleration {
	if slices.ContainsFunc(list, func(has corev1.Toleration) bool {
		return has.MatchToleration(&one) && has.TolerationSeconds == nil && one.TolerationSeconds == nil
	}) {
		return list
	}
	return append(list, one)
}
