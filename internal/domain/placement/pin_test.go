package placement

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"pgregory.net/rapid"
)

func in(key string, values ...string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
}

// requiring makes a pod that requires a node that matches one of the terms; nil requires
// nothing.
func requiring(terms []corev1.NodeSelectorTerm) *corev1.PodSpec {
	spec := &corev1.PodSpec{}
	if terms != nil {
		spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
		}}
	}
	return spec
}

func required(spec *corev1.PodSpec) *corev1.NodeSelector {
	if spec.Affinity == nil {
		return nil
	}
	return spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

func TestPin(t *testing.T) {
	terms := func(terms ...corev1.NodeSelectorTerm) []corev1.NodeSelectorTerm { return terms }
	all := func(r ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: r}
	}
	byName := corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{in(metav1.ObjectNameField, "n")}}
	disk, pinned := in("disk", "ssd"), in("group", "hz")
	tests := map[string]struct{ before, want []corev1.NodeSelectorTerm }{
		"a pod that demands nothing gets a term":      {nil, terms(all(pinned))},
		"each of several terms gets the demand":       {terms(all(disk), all(in("disk", "nvme"))), terms(all(disk, pinned), all(in("disk", "nvme"), pinned))},
		"a term that matches no node stays like that": {terms(all(), all(disk)), terms(all(), all(disk, pinned))},
		"a term of fields alone gets the demand too": {
			terms(byName), terms(corev1.NodeSelectorTerm{MatchFields: byName.MatchFields, MatchExpressions: []corev1.NodeSelectorRequirement{pinned}}),
		},
		"the same demand is not doubled":                   {terms(all(pinned, disk)), terms(all(pinned, disk))},
		"another demand on the same label stays beside it": {terms(all(in("group", "hz", "bj"))), terms(all(in("group", "hz", "bj"), pinned))},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			spec := requiring(tc.before)
			before := required(spec).DeepCopy()
			Pin(spec, "group", "hz")
			if diff := cmp.Diff(requiring(tc.want), spec); diff != "" {
				t.Errorf("wrong demand (-want +got):\n%s", diff)
			}
			Pin(spec, "group", "hz")
			if diff := cmp.Diff(requiring(tc.want), spec); diff != "" {
				t.Errorf("pinned again, the pod changes:\n%s", diff)
			}
			got := Unpin(required(spec), "group", "hz")
			if name == "the same demand is not doubled" {
				before = required(requiring(terms(all(disk)))) // whose it was is not known
			}
			if diff := cmp.Diff(before, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("unpinned, it demands (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(requiring(tc.want), spec); diff != "" {
				t.Errorf("Unpin changed the pod:\n%s", diff)
			}
		})
	}
}

func TestPinForNewcomers(t *testing.T) {
	all := func(r ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: r}
	}
	zone, disk, pinned := in("zone", "hz"), in("disk", "ssd"), in("group", "hz")
	fresh := corev1.NodeSelectorRequirement{Key: "group", Operator: corev1.NodeSelectorOpDoesNotExist}
	tests := map[string]struct{ before, want []corev1.NodeSelectorTerm }{
		"a pod that demands nothing":    {nil, []corev1.NodeSelectorTerm{all(zone, fresh), all(pinned)}},
		"each term is there twice":      {[]corev1.NodeSelectorTerm{all(disk), all()}, []corev1.NodeSelectorTerm{all(disk, zone, fresh), all(disk, pinned), all()}},
		"it demands the group already":  {[]corev1.NodeSelectorTerm{all(pinned, disk)}, []corev1.NodeSelectorTerm{all(pinned, disk)}},
		"it demands a node of no group": {[]corev1.NodeSelectorTerm{all(fresh)}, []corev1.NodeSelectorTerm{all(fresh, zone, fresh), all(fresh, pinned)}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			spec := requiring(tc.before)
			before := required(spec).DeepCopy()
			demands := make([]corev1.NodeSelectorRequirement, 1, 8) // what is appended must not be shared
			demands[0] = zone
			Pin(spec, "group", "hz", demands)
			if diff := cmp.Diff(requiring(tc.want), spec); diff != "" {
				t.Errorf("wrong demand (-want +got):\n%s", diff)
			}
			if name == "it demands the group already" {
				return // whose demand it was is not known
			}
			if diff := cmp.Diff(before, Unpin(required(spec), "group", "hz"), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("unpinned, it demands (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPinKeepsWhatAPodPrefers(t *testing.T) {
	prefers := []corev1.PreferredSchedulingTerm{{Weight: 1, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{in("disk", "ssd")}}}}
	spec := &corev1.PodSpec{Affinity: &corev1.Affinity{
		NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: prefers}, PodAntiAffinity: &corev1.PodAntiAffinity{},
	}}
	Pin(spec, "group", "hz")
	if diff := cmp.Diff(prefers, spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution); diff != "" || spec.Affinity.PodAntiAffinity == nil {
		t.Errorf("what it prefers changed (-want +got):\n%s", diff)
	}
}

// matches reports whether required node affinity matches a node, as in kube-scheduler.
func matches(t *rapid.T, spec *corev1.PodSpec, node string, has labels.Set) bool {
	if spec.Affinity == nil {
		return true
	}
	return slices.ContainsFunc(spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool {
		for _, r := range term.MatchExpressions {
			requirement, err := labels.NewRequirement(r.Key, operators[r.Operator], r.Values)
			if err != nil {
				t.Fatal(err)
			}
			if !requirement.Matches(has) {
				return false
			}
		}
		for _, r := range term.MatchFields {
			if !slices.Contains(r.Values, node) {
				return false
			}
		}
		return len(term.MatchExpressions)+len(term.MatchFields) > 0
	})
}

var operators = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
	corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
}

// TestAPinnedPodFitsTheNodesThatItDidAndThatHaveTheLabel checks that a pinned pod fits
// exactly those nodes that it fitted before and that carry the label or meet the
// requirements for newcomers.
func TestAPinnedPodFitsTheNodesThatItDidAndThatHaveTheLabel(t *testing.T) {
	key, value := rapid.SampledFrom([]string{"group", "disk", "zone"}), rapid.SampledFrom([]string{"a", "b", "c"})
	operator := rapid.SampledFrom([]corev1.NodeSelectorOperator{
		corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist,
	})
	expression := rapid.Custom(func(t *rapid.T) corev1.NodeSelectorRequirement {
		r := corev1.NodeSelectorRequirement{Key: key.Draw(t, "key"), Operator: operator.Draw(t, "operator")}
		if r.Operator == corev1.NodeSelectorOpIn || r.Operator == corev1.NodeSelectorOpNotIn {
			r.Values = rapid.SliceOfN(value, 1, 2).Draw(t, "values")
		}
		return r
	})
	term := rapid.Custom(func(t *rapid.T) corev1.NodeSelectorTerm {
		term := corev1.NodeSelectorTerm{MatchExpressions: rapid.SliceOfN(expression, 0, 3).Draw(t, "expressions")}
		if rapid.Bool().Draw(t, "by name") {
			term.MatchFields = []corev1.NodeSelectorRequirement{in(metav1.ObjectNameField, rapid.SampledFrom([]string{"m", "n"}).Draw(t, "node"))}
		}
		return term
	})
	rapid.Check(t, func(t *rapid.T) {
		var terms []corev1.NodeSelectorTerm
		if rapid.Bool().Draw(t, "demands something") {
			terms = rapid.SliceOfN(term, 1, 3).Draw(t, "terms")
		}
		before := requiring(terms)
		after := before.DeepCopy()
		group := value.Draw(t, "group")
		newcomers := rapid.SliceOfN(rapid.SliceOfN(expression, 1, 2), 0, 2).Draw(t, "newcomers")
		Pin(after, "group", group, newcomers...)
		has := labels.Set(rapid.MapOf(key, value).Draw(t, "labels"))
		comes := func(demands []corev1.NodeSelectorRequirement) bool {
			return !has.Has("group") && matches(t, requiring([]corev1.NodeSelectorTerm{{MatchExpressions: demands}}), "n", has)
		}
		want := matches(t, before, "n", has) && (has["group"] == group || slices.ContainsFunc(newcomers, comes))
		if got := matches(t, after, "n", has); got != want {
			t.Fatalf("a node with %v fits: %t, want %t", has, got, want)
		}
	})
}

// TestPinnedAndRepin checks that a pod counts as pinned only if each of its terms
// requires the group, or a node without one, and that Repin pins terms that were added
// later.
func TestPinnedAndRepin(t *testing.T) {
	const key, value = "group", "a"
	member, newcomer := in(key, value), corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpDoesNotExist}
	term := func(r ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: r}
	}
	field := corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{in("metadata.name", "n")}}
	tests := map[string]struct {
		spec *corev1.PodSpec
		want bool
	}{
		"no affinity":           {&corev1.PodSpec{}, false},
		"no node affinity":      {&corev1.PodSpec{Affinity: &corev1.Affinity{}}, false},
		"nothing required":      {&corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}}, false},
		"no terms":              {requiring([]corev1.NodeSelectorTerm{}), false},
		"the group":             {requiring([]corev1.NodeSelectorTerm{term(member)}), true},
		"the group, and more":   {requiring([]corev1.NodeSelectorTerm{term(in("zone", "z"), member)}), true},
		"another group":         {requiring([]corev1.NodeSelectorTerm{term(in(key, "b"))}), false},
		"a newcomer":            {requiring([]corev1.NodeSelectorTerm{term(newcomer), term(member)}), true},
		"a way past it":         {requiring([]corev1.NodeSelectorTerm{term(member), term(in("zone", "z"))}), false},
		"a way past it by name": {requiring([]corev1.NodeSelectorTerm{term(member), field}), false},
		"a term of no node":     {requiring([]corev1.NodeSelectorTerm{term(member), {}}), true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Pinned(tc.spec, key, value); got != tc.want {
				t.Errorf("pinned: %t, want %t", got, tc.want)
			}
			for range 2 { // the second time changes nothing
				Repin(tc.spec, key, value)
				if !Pinned(tc.spec, key, value) {
					t.Errorf("it is not pinned: %+v", required(tc.spec))
				}
			}
		})
	}
}

// TestUnpinKeepsOtherRequirements checks that Unpin keeps other expressions and fields of
// a term.
func TestUnpinKeepsOtherRequirements(t *testing.T) {
	spec := requiring([]corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{in("zone", "z")}, MatchFields: []corev1.NodeSelectorRequirement{in("metadata.name", "n")},
	}})
	before := required(spec).DeepCopy()
	Pin(spec, "group", "a")
	if diff := cmp.Diff(before, Unpin(required(spec), "group", "a"), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("wrong demands (-want +got):\n%s", diff)
	}
}
