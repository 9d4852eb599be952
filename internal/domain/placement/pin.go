package placement

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Pin lets a pod run only on nodes whose label key has the value, on top of what
// it demands already, and on newcomers: nodes without that label that meet one
// of the lists of demands. Required node selector terms are ORed, so each term
// is there once for each way to be such a node; a term without expressions and
// fields matches no node and stays as it is. A pod without terms gets them. A
// term that demands the label already is left alone. With newcomers it is to be
// called once for a pod.
func Pin(spec *corev1.PodSpec, key, value string, newcomers ...[]corev1.NodeSelectorRequirement) {
	member := memberOf(key, value)
	ways := make([][]corev1.NodeSelectorRequirement, 0, len(newcomers)+1)
	for _, demands := range newcomers {
		ways = append(ways, append(slices.Clip(demands), stranger(key)))
	}
	ways = append(ways, []corev1.NodeSelectorRequirement{member})

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
		for _, way := range ways {
			required.NodeSelectorTerms = append(required.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchExpressions: way})
		}
		return
	}
	terms := make([]corev1.NodeSelectorTerm, 0, len(required.NodeSelectorTerms)*len(ways))
	for _, term := range required.NodeSelectorTerms {
		if len(term.MatchExpressions)+len(term.MatchFields) == 0 || demands(member)(term) {
			terms = append(terms, term)
			continue
		}
		for _, way := range ways {
			terms = append(terms, corev1.NodeSelectorTerm{
				MatchExpressions: slices.Concat(term.MatchExpressions, way), MatchFields: term.MatchFields,
			})
		}
	}
	required.NodeSelectorTerms = terms
}

// Pinned tells whether Pin has pinned a pod that demands nothing else since.
func Pinned(spec *corev1.PodSpec, key, value string) bool {
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil || spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return false
	}
	terms := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	loose := func(term corev1.NodeSelectorTerm) bool {
		return len(term.MatchExpressions)+len(term.MatchFields) > 0 && !demands(memberOf(key, value))(term) && !demands(stranger(key))(term)
	}
	return len(terms) > 0 && !slices.ContainsFunc(terms, loose)
}

// Repin pins a pod anew whose node affinity others changed after Pin.
func Repin(spec *corev1.PodSpec, key, value string, newcomers ...[]corev1.NodeSelectorRequirement) {
	if spec.Affinity != nil && spec.Affinity.NodeAffinity != nil {
		affinity := spec.Affinity.NodeAffinity
		affinity.RequiredDuringSchedulingIgnoredDuringExecution = Unpin(affinity.RequiredDuringSchedulingIgnoredDuringExecution, key, value)
	}
	Pin(spec, key, value, newcomers...)
}

// Unpin returns the required node affinity that a pod had before Pin, nil for
// none. What it is given stays as it is. A pod that demanded the same by itself
// is not told apart.
func Unpin(required *corev1.NodeSelector, key, value string) *corev1.NodeSelector {
	if required == nil {
		return nil
	}
	member := memberOf(key, value)
	out := &corev1.NodeSelector{}
	for _, term := range required.NodeSelectorTerms {
		switch {
		case demands(member)(term):
			term.MatchExpressions = slices.DeleteFunc(slices.Clone(term.MatchExpressions), same(member))
			if len(term.MatchExpressions)+len(term.MatchFields) == 0 {
				return nil // the term that Pin gives a pod without terms
			}
		case demands(stranger(key))(term):
			continue // the same term is there for members
		}
		out.NodeSelectorTerms = append(out.NodeSelectorTerms, term)
	}
	return out
}

func memberOf(key, value string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}
}

// stranger demands a node that does not carry the label yet.
func stranger(key string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpDoesNotExist}
}

func demands(demand corev1.NodeSelectorRequirement) func(corev1.NodeSelectorTerm) bool {
	return func(term corev1.NodeSelectorTerm) bool {
		return slices.ContainsFunc(term.MatchExpressions, same(demand))
	}
}

func same(demand corev1.NodeSelectorRequirement) func(corev1.NodeSelectorRequirement) bool {
	return func(r corev1.NodeSelectorRequirement) bool {
		return r.Key == demand.Key && r.Operator == demand.Operator && slices.Equal(r.Values, demand.Values)
	}
}
