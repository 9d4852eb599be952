package placement

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Pin lets a pod run only on nodes whose label key has one of the values, on
// top of what it demands already. Required node selector terms are ORed, so the
// demand goes to the end of each; a term without expressions and fields matches
// no node and stays as it is. A pod without terms gets one. A term that demands
// the same already is left alone.
func Pin(spec *corev1.PodSpec, key string, values ...string) {
	demand := corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	if spec.Affinity.NodeAffinity == nil {
		spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	affinity := spec.Affinity.NodeAffinity
	required := affinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil {
		required = &corev1.NodeSelector{}
		affinity.RequiredDuringSchedulingIgnoredDuringExecution = required
	}
	if len(required.NodeSelectorTerms) == 0 {
		required.NodeSelectorTerms = []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{demand}}}
		return
	}
	for i := range required.NodeSelectorTerms {
		term := &required.NodeSelectorTerms[i]
		if len(term.MatchExpressions)+len(term.MatchFields) == 0 {
			continue
		}
		same := func(r corev1.NodeSelectorRequirement) bool {
			return r.Key == key && r.Operator == corev1.NodeSelectorOpIn && slices.Equal(r.Values, values)
		}
		if !slices.ContainsFunc(term.MatchExpressions, same) {
			term.MatchExpressions = append(slices.Clip(term.MatchExpressions), demand)
		}
	}
}
