package owners

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// setCapacity reads the annotations and labels about capacity classes from an object and
// its pod template, and the surge. template is the path of the pod template of an object
// of a further kind; empty for spec.template.
func setCapacity(o *ownership.Object, obj any, template []string) {
	m, ok := obj.(metav1.Object)
	if !ok {
		return
	}
	o.Capacity = ownership.CapacityOf(m.GetAnnotations(), m.GetLabels())
	of := func(t *corev1.PodTemplateSpec) { o.TemplateCapacity = ownership.CapacityOf(t.Annotations, t.Labels) }
	switch w := obj.(type) {
	case *appsv1.Deployment:
		of(&w.Spec.Template)
		if r := w.Spec.Strategy.RollingUpdate; r != nil && w.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
			o.Surge = surgeOf(r.MaxSurge, o.Replicas)
		}
	case *appsv1.ReplicaSet:
		of(&w.Spec.Template)
	case *appsv1.StatefulSet:
		of(&w.Spec.Template)
		if w.Spec.Ordinals != nil {
			o.FirstOrdinal = w.Spec.Ordinals.Start
		}
	case *unstructured.Unstructured:
		if len(template) == 0 {
			template = []string{"spec", "template"}
		}
		meta, _, _ := unstructured.NestedMap(w.Object, append(template[:len(template):len(template)], "metadata")...)
		annotations, _, _ := unstructured.NestedStringMap(meta, "annotations")
		labels, _, _ := unstructured.NestedStringMap(meta, "labels")
		o.TemplateCapacity = ownership.CapacityOf(annotations, labels)
		o.Surge = surgeOf(surgeOfKind(w), o.Replicas)
	}
}

// surgePaths are the paths of maxSurge in kinds like a Deployment: Argo's Rollout,
// OpenKruise's CloneSet, and kinds with the fields of Deployment.
var surgePaths = [][]string{
	{"spec", "strategy", "canary", "maxSurge"},
	{"spec", "updateStrategy", "maxSurge"},
	{"spec", "strategy", "rollingUpdate", "maxSurge"},
}

// surgeOfKind returns maxSurge of an object of a kind like a Deployment, or the default of
// the kind; nil if neither is known.
func surgeOfKind(w *unstructured.Unstructured) *intstr.IntOrString {
	for _, path := range surgePaths {
		if v, found, _ := unstructured.NestedFieldNoCopy(w.Object, path...); found {
			return intOrString(v)
		}
	}
	if gvk := w.GroupVersionKind(); gvk.Group != "argoproj.io" || gvk.Kind != "Rollout" {
		return nil
	}
	if _, both, _ := unstructured.NestedFieldNoCopy(w.Object, "spec", "strategy", "blueGreen"); both {
		return new(intstr.FromString("100%")) // both revisions run with all replicas
	}
	return new(intstr.FromString("25%")) // Argo's default
}

func intOrString(v any) *intstr.IntOrString {
	switch v := v.(type) {
	case int64:
		return new(intstr.FromInt32(int32(min(v, 1<<30))))
	case string:
		return new(intstr.FromString(v))
	default:
		return nil
	}
}

// surgeOf returns maxSurge as a number of pods, rounded up as Deployments do. It is 0 if
// maxSurge or replicas is missing or invalid.
func surgeOf(maxSurge *intstr.IntOrString, replicas *int32) int32 {
	if maxSurge == nil || replicas == nil {
		return 0
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(maxSurge, int(*replicas), true)
	if err != nil {
		return 0
	}
	return int32(max(0, min(n, 1<<30)))
}
