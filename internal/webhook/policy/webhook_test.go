package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// judged is the answer of a webhook.
type judged struct {
	warnings admission.Warnings
	err      error
}

// judge validates an object as created and as updated. Both answers must be alike; it
// returns the first.
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
		// refused lists what the refusal has to contain; none if the object is accepted.
		// warned lists the same of each warning, in order.
		refused []string
		warned  []string
	}{
		"a group that selects by name": {object: build.NodeGroup("g", build.Selects("n"))},
		"a group that selects nothing": {object: build.NodeGroup("g")},
		"an invalid label key":         {object: build.NodeGroup("g", build.With(func(g *gm.NodeGroup) { g.Spec.MatchLabels = map[string]string{"not a key": "x"} })), refused: []string{"spec.matchLabels[not a key]"}},
		"a group that selects by its own label": {
			object:  build.NodeGroup("g", build.With(func(g *gm.NodeGroup) { g.Spec.MatchLabels = map[string]string{gm.NodeGroupLabel: "g"} })),
			refused: []string{gm.NodeGroupLabel},
		},
		"weights":                  {object: build.PropagationPolicy("p", build.Weight(3, "hz"), build.Weight(2, "bj"))},
		"groups that do not exist": {object: build.PropagationPolicy("p", build.Weight(3, "nowhere"))},
		"groups in upper case":     {object: build.PropagationPolicy("p", build.Weight(3, "Hangzhou", "beijing", "BEIJING")), warned: []string{`"BEIJING" is read as "beijing"`, `"Hangzhou" is read as "hangzhou"`}},
		"a deprecated mode": {
			object: build.PropagationPolicy("p", build.Weight(3, "hz"), build.With(func(p *gm.PropagationPolicy) { p.Spec.Rescheduling.Mode = gm.ReschedulingNever })),
			warned: []string{"spec.rescheduling.mode: Never is deprecated and means OnRollout"},
		},
		"late assignment without the extender": {
			object: build.PropagationPolicy("p", build.Weight(1, "a"), build.Assigns(gm.AssignmentLate)),
			warned: []string{"spec.assignment: Late is read as Early, because in the form Pinned no kube-scheduler calls the extender"},
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
		"every rule with a fault is named": {
			object:  build.OverridePolicy("o", build.Registry("hz", "https://hz.io"), build.Registry("bj", "bj.io"), build.Registry("sh", "sh io")),
			refused: []string{"spec.overrideRules[0]", "spec.overrideRules[2]"},
		},
		"a field that no policy may change": {
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
					t.Errorf("the refusal %q does not contain %s", got.err, part)
				}
			}
			if len(got.warnings) != len(tc.warned) {
				t.Errorf("warnings are %q, want %d", got.warnings, len(tc.warned))
			}
			for i := range min(len(tc.warned), len(got.warnings)) {
				if !strings.Contains(got.warnings[i], tc.warned[i]) {
					t.Errorf("the warning %q does not contain %s", got.warnings[i], tc.warned[i])
				}
			}
		})
	}
}

func TestInvalidObjectsInDeletionCanBeUpdated(t *testing.T) {
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
			t.Errorf("its finalizer cannot be removed: %v", err)
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

// TestEveryFaultIsACauseOfOneRefusal: the API server passes the status on as it is.
func TestEveryFaultIsACauseOfOneRefusal(t *testing.T) {
	percent := func(value string) *intstr.IntOrString { p := intstr.FromString(value); return &p }
	group := build.NodeGroup("site", build.With(func(g *gm.NodeGroup) {
		g.Spec.MatchLabels = map[string]string{"not a key": "x"}
		g.Spec.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpIn}}
	}))
	propagation := build.PropagationPolicy("spread", build.With(func(p *gm.PropagationPolicy) {
		p.Spec.NumRange = []gm.NodeGroupNumRange{
			{NodeGroupNames: []string{"hz"}, Min: percent("40%"), Max: percent("20%")},
			{NodeGroupNames: []string{"b j"}, Min: percent("few")},
		}
	}))
	overrides := build.OverridePolicy("images",
		imageRule(gm.ImageOverrider{Component: gm.Registry, Operator: gm.OverriderOpReplace, Value: "no registry", Predicate: &gm.ImagePredicate{Path: "/metadata"}}),
		imageRule(gm.ImageOverrider{Component: gm.Tag, Operator: "set"}))
	type cause struct{ Field, Message string }
	for kind, tc := range map[string]struct {
		validator func(*runtime.Scheme) *admission.Webhook
		object    build.Object
		want      []cause
	}{
		"NodeGroup": {
			func(s *runtime.Scheme) *admission.Webhook {
				return admission.WithValidator[*gm.NodeGroup](s, NodeGroup{})
			}, group,
			[]cause{
				{"spec.matchLabels[not a key]", `Invalid value: "not a key": name part must consist of`},
				{"spec.matchExpressions[0].values", "Invalid value: null: for 'in', 'notin' operators"},
			},
		},
		"PropagationPolicy": {
			func(s *runtime.Scheme) *admission.Webhook {
				return admission.WithValidator[*gm.PropagationPolicy](s, Propagation{})
			}, propagation,
			[]cause{
				{"spec.numRange[0].min", "Invalid value: 40% is greater than max, 20%"},
				{"spec.numRange[1].nodeGroupNames[0]", `Invalid value: "b j" cannot be the name of a NodeGroup`},
				{"spec.numRange[1].min", `Invalid value: "few" is neither a number`},
			},
		},
		"OverridePolicy": {
			func(s *runtime.Scheme) *admission.Webhook {
				return admission.WithValidator[*gm.OverridePolicy](s, Override{})
			}, overrides,
			[]cause{
				{"spec.overrideRules[0].overriders.imageOverrider[0].predicate.path", `Invalid value: "/metadata" does not point to an image`},
				{"spec.overrideRules[0].overriders.imageOverrider[0].value", `Invalid value: "no registry" must be a host or host:port`},
				{"spec.overrideRules[1].overriders.imageOverrider[0].operator", `Invalid value: "set" is not one of`},
			},
		},
	} {
		t.Run(kind, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := gm.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			raw, err := json.Marshal(tc.object)
			if err != nil {
				t.Fatal(err)
			}
			answer := tc.validator(scheme).Handle(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
				Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: raw},
			}})
			status := answer.Result
			if answer.Allowed || status == nil || status.Code != http.StatusUnprocessableEntity || status.Reason != metav1.StatusReasonInvalid || status.Details == nil {
				t.Fatalf("the answer is %+v", answer)
			}
			if d := status.Details; d.Group != gm.GroupVersion.Group || d.Kind != kind || d.Name != tc.object.GetName() {
				t.Errorf("the refusal is about %s %s %q", d.Group, d.Kind, d.Name)
			}
			if len(status.Details.Causes) != len(tc.want) {
				t.Fatalf("causes are %+v, want %+v", status.Details.Causes, tc.want)
			}
			for i, got := range status.Details.Causes {
				if got.Field != tc.want[i].Field || !strings.HasPrefix(got.Message, tc.want[i].Message) {
					t.Errorf("cause %d is %+v, want %+v", i, got, tc.want[i])
				}
			}
		})
	}
}

// TestForgedObjectsBeyondTheSchemaAreRefusedAtOnce: the API server checks the schema before it
// asks, but anybody may ask. Their cost must not grow with the square of their length: without
// the bounds, each of these takes gigabytes.
func TestForgedObjectsBeyondTheSchemaAreRefusedAtOnce(t *testing.T) {
	const many = 20_000
	labels := map[string]string{}
	for i := range many {
		labels[fmt.Sprintf("example.com/%d", i)] = ""
	}
	for name, object := range map[string]build.Object{
		"labels of a NodeGroup":      build.NodeGroup("g", build.With(func(g *gm.NodeGroup) { g.Spec.MatchLabels = labels })),
		"expressions of a NodeGroup": build.NodeGroup("g", build.With(func(g *gm.NodeGroup) { g.Spec.MatchExpressions = make([]metav1.LabelSelectorRequirement, many) })),
		"rules of a policy": build.OverridePolicy("o", build.With(func(o *gm.OverridePolicy) {
			o.Spec.OverrideRules = []gm.RuleWithNodeGroup{{Overriders: &gm.Overriders{Plaintext: make([]gm.PlaintextOverrider, many)}}}
		})),
	} {
		t.Run(name, func(t *testing.T) {
			err := judge(t, object).err
			if !apierrors.IsInvalid(err) {
				t.Fatalf("the answer is %v", err)
			}
			var status apierrors.APIStatus
			if errors.As(err, &status); len(status.Status().Details.Causes) > maxFaults+1 {
				t.Errorf("the refusal names %d faults", len(status.Status().Details.Causes))
			}
		})
	}
}

// TestGroupsThatDoNotExistAreWarnedOf: and nothing is refused, because they may come later.
func TestGroupsThatDoNotExistAreWarnedOf(t *testing.T) {
	options := Options{AbsentGroups: func(_ context.Context, groups []string) []string {
		return slices.DeleteFunc(slices.Clone(groups), func(name string) bool { return name == "hz" })
	}}
	for name, policy := range map[string]build.Object{
		"PropagationPolicy": build.PropagationPolicy("p", build.Weight(1, "hz"), build.Weight(2, "Hangzhuo")),
		"OverridePolicy":    build.OverridePolicy("o", build.Registry("hz", "hz.io"), build.Registry("hangzhuo", "hz.io")),
	} {
		t.Run(name, func(t *testing.T) {
			var got judged
			switch policy := policy.(type) {
			case *gm.PropagationPolicy:
				got.warnings, got.err = Propagation{options}.ValidateUpdate(t.Context(), nil, policy)
			case *gm.OverridePolicy:
				got.warnings, got.err = Override{options}.ValidateUpdate(t.Context(), nil, policy)
			}
			at := slices.IndexFunc(got.warnings, func(w string) bool { return strings.HasPrefix(w, `NodeGroups that do not exist: "hangzhuo"; `) })
			if got.err != nil || at < 0 {
				t.Errorf("warnings %q, error %v", got.warnings, got.err)
			}
		})
	}
}

// TestDeletionOfAGroupWithPodsIsAsked: one command must not empty a site.
func TestDeletionOfAGroupWithPodsIsAsked(t *testing.T) {
	webhook := NodeGroup{Options{Placing: func(_ context.Context, group string) []string {
		if group == "hz" {
			return []string{"shop/web"}
		}
		return nil
	}}}
	confirmed := build.Annotation("atoll.dev/confirm-deletion", "true")
	for name, tc := range map[string]struct {
		group   *gm.NodeGroup
		refused bool
	}{
		"a policy has pods there":  {build.NodeGroup("hz"), true},
		"it is confirmed":          {build.NodeGroup("hz", confirmed), false},
		"it is not":                {build.NodeGroup("hz", build.Annotation("atoll.dev/confirm-deletion", "false")), true},
		"it is being deleted":      {build.NodeGroup("hz", build.Deleting("example.com/f")), false},
		"no policy has pods there": {build.NodeGroup("sh"), false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := webhook.ValidateDelete(t.Context(), tc.group)
			if (err != nil) != tc.refused || err != nil && !strings.Contains(err.Error(), `"shop/web". Take the NodeGroup out of the policies first, or confirm: kubectl annotate nodegroup hz atoll.dev/confirm-deletion=true`) {
				t.Errorf("error %v, want one: %t", err, tc.refused)
			}
		})
	}
}
