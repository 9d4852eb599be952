package policy

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// judged is what a webhook said to a creation and to an update.
type judged struct {
	warnings admission.Warnings
	err      error
}

// judge asks a webhook about an object being created, and about the same being
// updated, which must be the same.
func judge(t *testing.T, o build.Object) judged {
	t.Helper()
	var created, updated judged
	switch o := o.(type) {
	case *gm.NodeGroup:
		created.warnings, created.err = NodeGroup{}.ValidateCreate(t.Context(), o)
		updated.warnings, updated.err = NodeGroup{}.ValidateUpdate(t.Context(), build.NodeGroup("before"), o)
	case *gm.PropagationPolicy:
		created.warnings, created.err = Propagation{}.ValidateCreate(t.Context(), o)
		updated.warnings, updated.err = Propagation{}.ValidateUpdate(t.Context(), build.PropagationPolicy("before"), o)
	case *gm.OverridePolicy:
		created.warnings, created.err = Override{}.ValidateCreate(t.Context(), o)
		updated.warnings, updated.err = Override{}.ValidateUpdate(t.Context(), build.OverridePolicy("before"), o)
	}
	if (created.err == nil) != (updated.err == nil) || len(created.warnings) != len(updated.warnings) {
		t.Errorf("creation: %v, %v; update: %v, %v", created.warnings, created.err, updated.warnings, updated.err)
	}
	return created
}

func imageRule(o gm.ImageOverrider) build.Option {
	return build.With(func(p *gm.OverridePolicy) {
		p.Spec.OverrideRules = append(p.Spec.OverrideRules, gm.RuleWithNodeGroup{Overriders: &gm.Overriders{ImageOverrider: []gm.ImageOverrider{o}}})
	})
}

func TestValidate(t *testing.T) {
	tests := map[string]struct {
		object build.Object
		// refused and warned name what has to be in the words.
		refused []string
		warned  []string
	}{
		"a group that selects by name": {object: build.NodeGroup("g", build.Selects("n"))},
		"a group that selects nothing": {object: build.NodeGroup("g")},
		"a label key that is none":     {object: build.NodeGroup("g", build.With(func(g *gm.NodeGroup) { g.Spec.MatchLabels = map[string]string{"not a key": "x"} })), refused: []string{"spec.matchLabels[not a key]"}},
		"a group that selects by its own label": {
			object:  build.NodeGroup("g", build.With(func(g *gm.NodeGroup) { g.Spec.MatchLabels = map[string]string{gm.NodeGroupLabel: "g"} })),
			refused: []string{gm.NodeGroupLabel},
		},
		"weights":                     {object: build.PropagationPolicy("p", build.Weight(3, "hz"), build.Weight(2, "bj"))},
		"groups that nobody has made": {object: build.PropagationPolicy("p", build.Weight(3, "nowhere"))},
		"groups in upper case":        {object: build.PropagationPolicy("p", build.Weight(3, "Hangzhou", "beijing", "BEIJING")), warned: []string{`"BEIJING" is read as "beijing"`, `"Hangzhou" is read as "hangzhou"`}},
		"a mode that is another's name": {
			object: build.PropagationPolicy("p", build.Weight(3, "hz"), build.With(func(p *gm.PropagationPolicy) { p.Spec.Rescheduling.Mode = gm.ReschedulingNever })),
			warned: []string{"spec.rescheduling.mode: Never is deprecated and means OnRollout"},
		},
		"a seat that nobody would ask for": {
			object: build.PropagationPolicy("p", build.Weight(1, "a"), build.Assigns(gm.AssignmentLate)),
			warned: []string{"spec.assignment: Late is read as Early, because in the form Pinned no kube-scheduler asks the extender"},
		},
		"no rule": {object: build.PropagationPolicy("p"), refused: []string{"staticWeightList", "numRange"}},
		"two kinds of rules": {
			object: build.PropagationPolicy("p", build.Weight(1, "hz"), build.With(func(p *gm.PropagationPolicy) {
				p.Spec.NumRange = []gm.NodeGroupNumRange{{NodeGroupNames: []string{"hz"}}}
			})),
			refused: []string{"spec.propagationStrategy"},
		},
		"a weight below 0":                   {object: build.PropagationPolicy("p", build.Weight(-1, "hz")), refused: []string{"spec.staticWeightList[0].weight"}},
		"a registry":                         {object: build.OverridePolicy("o", build.Registry("hz", "hz.io"))},
		"no override at all":                 {object: build.OverridePolicy("o")},
		"overrides of a group in upper case": {object: build.OverridePolicy("o", build.Registry("Hangzhou", "hz.io")), warned: []string{`"Hangzhou" is read as "hangzhou"`}},
		"update instead of replace": {
			object: build.OverridePolicy("o", imageRule(gm.ImageOverrider{Component: gm.Tag, Operator: gm.OverriderOpUpdate, Value: "v2"})),
			warned: []string{"spec.overrideRules[0].overriders.imageOverrider[0].operator"},
		},
		"every rule that cannot be used is named": {
			object:  build.OverridePolicy("o", build.Registry("hz", "https://hz.io"), build.Registry("bj", "bj.io"), build.Registry("sh", "sh io")),
			refused: []string{"spec.overrideRules[0]", "spec.overrideRules[2]"},
		},
		"what a policy must not change": {
			object: build.OverridePolicy("o", build.With(func(p *gm.OverridePolicy) {
				p.Spec.OverrideRules = []gm.RuleWithNodeGroup{{Overriders: &gm.Overriders{Plaintext: []gm.PlaintextOverrider{
					{Path: "/spec/nodeName", Operator: gm.OverriderOpReplace, Value: &apiextensionsv1.JSON{Raw: []byte(`"n"`)}},
				}}}}
			})),
			refused: []string{"spec.overrideRules[0].overriders.plaintext[0].path"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := judge(t, tc.object)
			if (got.err != nil) != (len(tc.refused) > 0) {
				t.Fatalf("refused: %v, want it: %t", got.err, len(tc.refused) > 0)
			}
			for _, part := range tc.refused {
				if !strings.Contains(got.err.Error(), part) {
					t.Errorf("the refusal %q does not name %s", got.err, part)
				}
			}
			if len(got.warnings) != len(tc.warned) {
				t.Errorf("warnings are %q, want %d", got.warnings, len(tc.warned))
			}
			for i := range min(len(tc.warned), len(got.warnings)) {
				if !strings.Contains(got.warnings[i], tc.warned[i]) {
					t.Errorf("the warning %q does not say %s", got.warnings[i], tc.warned[i])
				}
			}
		})
	}
}

func TestWhatIsOnItsWayOutMayLoseItsFinalizerWhateverItSays(t *testing.T) {
	group := build.NodeGroup("g", build.Deleting(gm.NodeGroupFinalizer), build.With(func(g *gm.NodeGroup) {
		g.Spec.MatchLabels = map[string]string{"not a key": "x"}
	}))
	propagation := build.PropagationPolicy("p", build.Deleting("example.com/f"))
	override := build.OverridePolicy("o", build.Deleting("example.com/f"), build.Registry("hz", "no registry"))
	for _, err := range []error{
		second(NodeGroup{}.ValidateUpdate(t.Context(), group, group)),
		second(Propagation{}.ValidateUpdate(t.Context(), propagation, propagation)),
		second(Override{}.ValidateUpdate(t.Context(), override, override)),
	} {
		if err != nil {
			t.Errorf("it is held for ever: %v", err)
		}
	}
}

func TestDeletionsAreNeverRefused(t *testing.T) {
	for _, err := range []error{
		second(NodeGroup{}.ValidateDelete(t.Context(), build.NodeGroup("g"))),
		second(Propagation{}.ValidateDelete(t.Context(), build.PropagationPolicy("p"))),
		second(Override{}.ValidateDelete(t.Context(), build.OverridePolicy("o"))),
	} {
		if err != nil {
			t.Error(err)
		}
	}
}

func second(_ admission.Warnings, err error) error { return err }
