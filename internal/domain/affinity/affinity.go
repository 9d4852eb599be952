// Package affinity reads and narrows the required node affinity of pods:
// spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.
//
// That node selector is a list of terms, and a node has to match one of them. A term is
// a list of requirements (expressions on labels, fields), and a node has to match all of
// them; a term without requirements matches no node. So a requirement that every node
// must match has to be added to each term.
//
// Other domain packages may import this one (see docs/architecture.md); it must not
// import them, and must not contain anything about groups, pools or classes.
package affinity

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Required returns the required node affinity of a pod, nil if it has none. The result
// is part of spec.
func Required(spec *corev1.PodSpec) *corev1.NodeSelector {
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil {
		return nil
	}
	return spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

// Narrow replaces each term of a pod's required node affinity by the terms that narrow
// returns for it. narrow returns the term with further requirements: one copy, or one for
// each alternative. It must not write to the slices of the term that it is given.
//
// A pod without terms gets what narrow returns for a term without requirements. Among
// other terms, one without requirements is not passed to narrow and stays as it is: with
// a requirement it would begin to match nodes.
func Narrow(spec *corev1.PodSpec, narrow func(corev1.NodeSelectorTerm) []corev1.NodeSelectorTerm) {
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	if spec.Affinity.NodeAffinity == nil {
		spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	required := &spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if *required == nil {
		*required = &corev1.NodeSelector{}
	}
	before := (*required).NodeSelectorTerms
	if len(before) == 0 {
		(*required).NodeSelectorTerms = narrow(corev1.NodeSelectorTerm{})
		return
	}
	terms := make([]corev1.NodeSelectorTerm, 0, len(before))
	for _, term := range before {
		if IsEmpty(term) {
			terms = append(terms, term)
			continue
		}
		terms = append(terms, narrow(term)...)
	}
	(*required).NodeSelectorTerms = terms
}

// IsEmpty reports whether a term has no requirement, and so matches no node.
func IsEmpty(term corev1.NodeSelectorTerm) bool {
	return len(term.MatchExpressions)+len(term.MatchFields) == 0
}

// Contains reports whether list has a requirement that is Equal to r.
func Contains(list []corev1.NodeSelectorRequirement, r corev1.NodeSelectorRequirement) bool {
	return slices.ContainsFunc(list, func(other corev1.NodeSelectorRequirement) bool { return Equal(other, r) })
}

// Equal reports whether two requirements have the same key, operator and values. The
// order of values counts.
func Equal(a, b corev1.NodeSelectorRequirement) bool {
	return a.Key == b.Key && a.Operator == b.Operator && slices.Equal(a.Values, b.Values)
}
