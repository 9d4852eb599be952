package affinity

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func in(key string, values ...string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
}

func term(expressions ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: expressions}
}

// requiring is a pod with these terms.
func requiring(terms ...corev1.NodeSelectorTerm) *corev1.PodSpec {
	return &corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
	}}}
}

func TestRequired(t *testing.T) {
	for name, spec := range map[string]*corev1.PodSpec{
		"no affinity":      {},
		"no node affinity": {Affinity: &corev1.Affinity{PodAffinity: &corev1.PodAffinity{}}},
		"only preferred":   {Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}},
	} {
		if got := Required(spec); got != nil {
			t.Errorf("%s: got %v", name, got)
		}
	}
	spec := requiring(term(in("disk", "ssd")))
	if got := Required(spec); got != spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		t.Errorf("got %v", got)
	}
}

func TestNarrow(t *testing.T) {
	disk, zone, other := in("disk", "ssd"), in("zone", "a"), in("zone", "b")
	byName := corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{in("metadata.name", "n")}}
	narrow := func(t corev1.NodeSelectorTerm) []corev1.NodeSelectorTerm {
		var out []corev1.NodeSelectorTerm
		for _, r := range []corev1.NodeSelectorRequirement{zone, other} {
			out = append(out, corev1.NodeSelectorTerm{MatchExpressions: append(append([]corev1.NodeSelectorRequirement{}, t.MatchExpressions...), r), MatchFields: t.MatchFields})
		}
		return out
	}
	fields := func(r corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{r}, MatchFields: byName.MatchFields}
	}
	for name, tc := range map[string]struct{ spec, want *corev1.PodSpec }{
		"no affinity":                {&corev1.PodSpec{}, requiring(term(zone), term(other))},
		"no node affinity":           {&corev1.PodSpec{Affinity: &corev1.Affinity{}}, requiring(term(zone), term(other))},
		"nothing required":           {&corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}}, requiring(term(zone), term(other))},
		"no terms":                   {requiring(), requiring(term(zone), term(other))},
		"a term":                     {requiring(term(disk)), requiring(term(disk, zone), term(disk, other))},
		"a term of fields":           {requiring(byName), requiring(fields(zone), fields(other))},
		"an empty term among others": {requiring(term(), term(disk)), requiring(term(), term(disk, zone), term(disk, other))},
		"an empty term alone":        {requiring(term()), requiring(term())},
	} {
		t.Run(name, func(t *testing.T) {
			Narrow(tc.spec, narrow)
			if diff := cmp.Diff(tc.want, tc.spec); diff != "" {
				t.Errorf("wrong affinity (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEqual(t *testing.T) {
	one := in("disk", "ssd", "nvme")
	if !Equal(one, in("disk", "ssd", "nvme")) || !Contains([]corev1.NodeSelectorRequirement{in("a", "b"), one}, one) {
		t.Error("a requirement does not equal its copy")
	}
	for name, other := range map[string]corev1.NodeSelectorRequirement{
		"key":             in("zone", "ssd", "nvme"),
		"operator":        {Key: "disk", Operator: corev1.NodeSelectorOpNotIn, Values: one.Values},
		"values":          in("disk", "ssd"),
		"order of values": in("disk", "nvme", "ssd"),
	} {
		if Equal(one, other) || Contains([]corev1.NodeSelectorRequirement{other}, one) {
			t.Errorf("another %s: they are equal", name)
		}
	}
}
