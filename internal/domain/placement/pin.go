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
		if !slices.ContainsFunc(term.MatchExpressions, same(demand)) {
			term.MatchExpressions = append(slices.Clip(term.MatchExpressions), demand)
		}
	}
}

func same(demand corev1.NodeSelectorRequirement) func(corev1.NodeSelectorRequirement) bool {
	return func(r corev1.NodeSelectorRequirement) bool {
		return r.Key == demand.Key && r.Operator == demand.Operator && slices.Equal(r.Values, demand.Values)
	}
}

// Unpin returns the required node affinity that a pod had before Pin, nil for
// none. What it is given stays as it is. A pod that demanded the same by itself
// is not told apart.
func Unpin(required *corev1.NodeSelector, key string, values ...string) *corev1.NodeSelector {
	if required == nil {
		return nil
	}
	ours := same(corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values})
	out := &corev1.NodeSelector{}
	for _, term := range required.NodeSelectorTerms {
		if slices.ContainsFunc(term.MatchExpressions, ours) {
			term.MatchExpressions = slices.DeleteFunc(slices.Clone(term.MatchExpressions), ours)
			if len(term.MatchExpressions)+len(term.MatchFields) == 0 {
				return nil // the term that Pin gives a pod without terms
			}
		}
		out.NodeSelectorTerms = append(out.NodeSelectorTerms, term)
	}
	return out
}
