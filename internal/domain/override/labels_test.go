package override

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

func TestRulesOnSelectorLabelsAreRefused(t *testing.T) {
	for _, key := range []string{
		"pod-template-hash", "controller-revision-hash", "pod-template-generation", "apps.kubernetes.io~1pod-index",
		"statefulset.kubernetes.io~1pod-name", "batch.kubernetes.io~1job-name", "batch.kubernetes.io~1controller-uid",
		"job-name", "controller-uid", "groupmanagement.kubeedge.io~1nodegroup", "atoll.dev~1x",
		"apps.openyurt.io~1pool-name", "apps.openyurt.io~1uniteddeployment", "apps.openyurt.io~1nodepool",
	} {
		for _, operator := range []gm.OverriderOperator{"add", "replace", "update", "remove"} {
			value := `"x"`
			if operator == "remove" {
				value = ""
			}
			rules, problems := Compile(plainRule(plain(operator, "/metadata/labels/"+key, value)))
			if rules != nil || len(problems) != 1 || !strings.Contains(problems[0].Error(), "must not be overridden") {
				t.Errorf("%s of the label %s is accepted: %v", operator, key, problems)
			}
		}
	}
	for _, path := range []string{"/metadata", "/metadata/", "/metadata/labels", "/metadata/labels/", "/metadata/labels/a/b"} {
		if _, problems := Compile(plainRule(plain("replace", path, "{}"))); len(problems) == 0 {
			t.Errorf("%s is accepted", path)
		}
	}
}

func TestMetadataThatTheAPIServerRefusesIsRefused(t *testing.T) {
	tests := map[string]struct{ path, value, want string }{
		"a label":                           {"/metadata/labels/tier", `"edge"`, ""},
		"an empty label":                    {"/metadata/labels/tier", `""`, ""},
		"a label with a prefix":             {"/metadata/labels/example.com~1Tier", `"Edge_1.2"`, ""},
		"a key with a space":                {"/metadata/labels/a b", `"x"`, "cannot be the key of a label: "},
		"a key of 64 characters":            {"/metadata/labels/" + strings.Repeat("a", 64), `"x"`, "cannot be the key of a label: "},
		"a key with two slashes":            {"/metadata/labels/a~1b~1c", `"x"`, "cannot be the key of a label: "},
		"a prefix in upper case":            {"/metadata/labels/Example.com~1a", `"x"`, "cannot be the key of a label: "},
		"a label with a space":              {"/metadata/labels/tier", `"an edge"`, `"an edge" cannot be the value of a label: `},
		"a label of 64 characters":          {"/metadata/labels/tier", `"` + strings.Repeat("a", 64) + `"`, "cannot be the value of a label: "},
		"a label that is a number":          {"/metadata/labels/tier", "1", "the value of a label must be a string: put it in quotes"},
		"a label that is nothing":           {"/metadata/labels/tier", "null", "the value of a label must be a string: put it in quotes"},
		"an annotation":                     {"/metadata/annotations/Example.com~1note", `"any text: at all/\u00e4"`, ""},
		"an annotation's key with a space":  {"/metadata/annotations/a b", `"x"`, "cannot be the key of an annotation: "},
		"an annotation that is a boolean":   {"/metadata/annotations/a", "true", "the value of an annotation must be a string: put it in quotes"},
		"an annotation of 256 KiB":          {"/metadata/annotations/a", `"` + strings.Repeat("a", 256<<10-1) + `"`, ""},
		"an annotation of 256 KiB and more": {"/metadata/annotations/a", `"` + strings.Repeat("a", 256<<10) + `"`, "at most 262144 bytes"},
		"finalizers":                        {"/metadata/finalizers", `["example.com/a"]`, ""},
		"a finalizer":                       {"/metadata/finalizers/-", `"example.com/a"`, ""},
		"finalizers that are no list":       {"/metadata/finalizers", `{"a": 1}`, "must be a list"},
		"a finalizer without a domain":      {"/metadata/finalizers/-", `"mine"`, `"mine" cannot be a finalizer`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, problems := Compile(plainRule(plain("add", tc.path, tc.value)))
			switch {
			case tc.want == "" && len(problems) > 0:
				t.Errorf("refused: %v", problems)
			case tc.want != "" && (len(problems) != 1 || !strings.Contains(problems[0].Error(), tc.want)):
				t.Errorf("problems are %v, want one with %q", problems, tc.want)
			}
		})
	}
}

func TestLabelsThatRulesChange(t *testing.T) {
	rules, problems := Compile(gm.OverrideSpec{OverrideRules: []gm.RuleWithNodeGroup{
		forGroups(gm.Overriders{Plaintext: []gm.PlaintextOverrider{plain("add", "/spec/hostname", `"a"`), plain("add", "/metadata/labels/a~1b", `"1"`)}}, "hz"),
		inline(gm.Overriders{Plaintext: []gm.PlaintextOverrider{plain("remove", "/metadata/labels/c", ""), plain("add", "/spec/activeDeadlineSeconds", "1")}}),
	}})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	want := []LabelChange{
		{0, "spec.overrideRules[0].overriders.plaintext[1]", "a/b"},
		{1, "spec.overrideRules[1].plaintext[0]", "c"},
	}
	if diff := cmp.Diff(want, rules.Labels()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := rules.ChangesLifetime(); got != "spec.overrideRules[1].plaintext[1]" {
		t.Errorf("what changes when a pod ends is at %q", got)
	}
	if got := (*Rules)(nil).ChangesLifetime(); got != "" || (*Rules)(nil).Labels() != nil {
		t.Error("no rules change something")
	}
}

// TestApplyToKeepsWhatOwnersSelectBy checks that ApplyTo either keeps the labels by which
// owners select the pod, or fails, whatever the rules are.
func TestApplyToKeepsWhatOwnersSelectBy(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	keys := []string{"app", "tier", "zone", "example.com~1a"}
	values := []string{`"x"`, `"y"`, `""`}
	for range 5000 {
		var overriders []gm.PlaintextOverrider
		for range 1 + random.IntN(3) {
			operator := []gm.OverriderOperator{"add", "replace", "remove"}[random.IntN(3)]
			value := values[random.IntN(len(values))]
			if operator == "remove" {
				value = ""
			}
			overriders = append(overriders, plain(operator, "/metadata/labels/"+keys[random.IntN(len(keys))], value))
		}
		rules, problems := Compile(plainRule(overriders...))
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		before := map[string]string{"app": "x", "tier": "y", "pod-template-hash": "1"}
		if random.IntN(2) == 0 {
			delete(before, "tier")
		}
		selected := Selected{Keys: []string{"app", "pod-template-hash"}, Unknown: random.IntN(3) == 0}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: before}}
		was := pod.DeepCopy()
		if rules.ApplyTo("hz", pod, selected) != nil {
			if diff := cmp.Diff(was, pod); diff != "" {
				t.Fatalf("what cannot be applied changed the pod (-was +is):\n%s", diff)
			}
			continue
		}
		for key, value := range was.Labels {
			if key != "app" && key != "pod-template-hash" && !selected.Unknown {
				continue
			}
			if pod.Labels[key] != value {
				t.Fatalf("label %s is %q, was %q", key, pod.Labels[key], value)
			}
		}
	}
}

// TestLabelsOfPodsThatHaveOwners checks that labels that no owner selects by can change,
// and that a label of the selector can be set to the value that it has.
func TestLabelsOfPodsThatHaveOwners(t *testing.T) {
	tests := map[string]struct {
		rule    gm.PlaintextOverrider
		unknown bool
		want    map[string]string // nil: it is an error
	}{
		"the owner selects by another":         {plain("replace", "/metadata/labels/tier", `"z"`), false, map[string]string{"app": "x", "canary": "", "tier": "z"}},
		"a label of the template is taken":     {plain("remove", "/metadata/labels/tier", ""), false, map[string]string{"app": "x", "canary": ""}},
		"a label that is not in the template":  {plain("add", "/metadata/labels/zone", `"z"`), true, map[string]string{"app": "x", "canary": "", "tier": "y", "zone": "z"}},
		"one that may be selected by":          {plain("replace", "/metadata/labels/tier", `"z"`), true, nil},
		"one that is selected by":              {plain("replace", "/metadata/labels/app", `"z"`), false, nil},
		"one that is selected by, as it is":    {plain("replace", "/metadata/labels/app", `"x"`), false, map[string]string{"app": "x", "canary": "", "tier": "y"}},
		"one without a value that is selected": {plain("remove", "/metadata/labels/canary", ""), false, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			rules := mustCompile(t, plainRule(tc.rule))
			pod := aPod(func(p *corev1.Pod) { p.Labels = map[string]string{"app": "x", "canary": "", "tier": "y"} })
			err := rules.ApplyTo("hz", pod, Selected{Keys: []string{"app", "canary"}, Unknown: tc.unknown})
			if tc.want == nil {
				if err == nil {
					t.Errorf("labels are %v, and its owner may not find the pod any more", pod.Labels)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, pod.Labels); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
