package placement

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/internal/domain/affinity"
)

// Pin adds required node affinity to a pod, so that it runs only on members or newcomers,
// in addition to what it requires already. Members are nodes that carry the label key with
// the value. Newcomers are nodes without that label that meet all requirements of one of
// the lists newcomers: nodes that will become members.
//
// Each term of the pod is repeated for each alternative, one for each list of newcomers and
// one for members. A term that requires the label already stays as it is.
//
// Without newcomers, Pin is idempotent. With newcomers it is not: call it once for a pod,
// or call Repin.
func Pin(spec *corev1.PodSpec, key, value string, newcomers ...[]corev1.NodeSelectorRequirement) {
	member := memberOf(key, value)
	alternatives := make([][]corev1.NodeSelectorRequirement, 0, len(newcomers)+1)
	for _, requirements := range newcomers {
		alternatives = append(alternatives, append(slices.Clip(requirements), unlabelled(key)))
	}
	alternatives = append(alternatives, []corev1.NodeSelectorRequirement{member})
	affinity.Narrow(spec, func(term corev1.NodeSelectorTerm) []corev1.NodeSelectorTerm {
		if affinity.Contains(term.MatchExpressions, member) {
			return []corev1.NodeSelectorTerm{term}
		}
		terms := make([]corev1.NodeSelectorTerm, len(alternatives))
		for i, requirements := range alternatives {
			terms[i] = corev1.NodeSelectorTerm{
				MatchExpressions: slices.Concat(term.MatchExpressions, requirements), MatchFields: term.MatchFields,
			}
		}
		return terms
	})
}

// Pinned reports whether Pin was applied to a pod and no term was added since: each term
// that can match a node requires a member or a node without the label.
func Pinned(spec *corev1.PodSpec, key, value string) bool {
	required := affinity.Required(spec)
	if required == nil || len(required.NodeSelectorTerms) == 0 {
		return false
	}
	return !slices.ContainsFunc(required.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool {
		return !affinity.IsEmpty(term) && !affinity.Contains(term.MatchExpressions, memberOf(key, value)) && !affinity.Contains(term.MatchExpressions, unlabelled(key))
	})
}

// Repin applies Pin to a pod whose node affinity somebody changed after Pin: it removes
// what Pin added, as Unpin does, and pins again.
func Repin(spec *corev1.PodSpec, key, value string, newcomers ...[]corev1.NodeSelectorRequirement) {
	if spec.Affinity != nil && spec.Affinity.NodeAffinity != nil {
		spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = Unpin(affinity.Required(spec), key, value)
	}
	Pin(spec, key, value, newcomers...)
}

// Unpin returns the required node affinity that a pod had before Pin, nil for none. The
// argument stays as it is. If the pod itself required the same, Unpin removes that too.
func Unpin(required *corev1.NodeSelector, key, value string) *corev1.NodeSelector {
	if required == nil {
		return nil
	}
	member := memberOf(key, value)
	out := &corev1.NodeSelector{}
	for _, term := range required.NodeSelectorTerms {
		switch {
		case affinity.Contains(term.MatchExpressions, member):
			term.MatchExpressions = slices.DeleteFunc(slices.Clone(term.MatchExpressions), func(r corev1.NodeSelectorRequirement) bool {
				return affinity.Equal(r, member)
			})
			if affinity.IsEmpty(term) {
				return nil // Pin gives this term to a pod without terms
			}
		case affinity.Contains(term.MatchExpressions, unlabelled(key)):
			continue // for newcomers; the list has the same term for members
		}
		out.NodeSelectorTerms = append(out.NodeSelectorTerms, term)
	}
	return out
}

// memberOf requires a node that carries the label.
func memberOf(key, value string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}
}

// unlabelled requires a node that does not carry the label.
func unlabelled(key string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpDoesNotExist}
}
