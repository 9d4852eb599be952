package ownership

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// chainOf makes a chain from kinds, as in "v1/Pod batch/v1/Job".
func chainOf(kinds ...string) []*Object {
	var chain []*Object
	for i, kind := range kinds {
		at := strings.LastIndex(kind, "/")
		gv, err := schema.ParseGroupVersion(kind[:at])
		if err != nil {
			panic(err)
		}
		chain = append(chain, &Object{GroupVersionKind: gv.WithKind(kind[at+1:]), UID: types.UID(fmt.Sprint(i))})
	}
	return chain
}

const (
	podKind      = "v1/Pod"
	replicaSet   = "apps/v1/ReplicaSet"
	deployment   = "apps/v1/Deployment"
	job          = "batch/v1/Job"
	cronJob      = "batch/v1/CronJob"
	workflow     = "argoproj.io/v1alpha1/Workflow"
	cronWorkflow = "argoproj.io/v1alpha1/CronWorkflow"
)

// documentRules are the ConfigMaps of docs/sources.md, V3, with both keys.
var documentRules = map[string]string{
	"podgroup-level-rules": `podgroup-level-rules:
- apiversion: apps/v1
  kind: deployment
  adjust-level: 0
- apiversion: batch/v1
  kind: job
  adjust-level: 0
- apiversion: argoproj.io/v1alpha1
  kind: workflow
  adjust-level: -1
`,
	"podgroupLevel": `podgroupLevel:
- apiversion: apps/v1
  kind: deployment
  adjust-level: 0
- apiversion: argoproj.io/v1alpha1
  kind: workflow
  adjust-level: -1
`,
}

func TestLevelsOfTheDocument(t *testing.T) {
	cases := map[string]struct {
		chain []*Object
		want  int
	}{
		"a single pod has its PodGroup itself (case 2)":  {chainOf(podKind), 0},
		"a workflow's job has one (case 3)":              {chainOf(podKind, job, workflow), 1},
		"a Deployment has one for all ReplicaSets (4)":   {chainOf(podKind, replicaSet, deployment), 2},
		"no rule is about a StatefulSet: it has its own": {chainOf(podKind, "apps/v1/StatefulSet"), 1},
		"a step of a workflow that is a pod has its own": {chainOf(podKind, workflow), 0},
	}
	for spelling, text := range documentRules {
		levels, notes, err := ParseLevels(text)
		if err != nil || len(notes) > 0 {
			t.Fatalf("%s: %v %v", spelling, notes, err)
		}
		for name, tc := range cases {
			t.Run(spelling+"/"+name, func(t *testing.T) {
				if got := levels.Select(tc.chain); got.Index != tc.want {
					t.Errorf("owner %d of %d is chosen, want %d", got.Index, len(tc.chain)-1, tc.want)
				}
			})
		}
	}
}

func TestSelect(t *testing.T) {
	rule := func(kind string, adjust int) LevelRule {
		gvk := chainOf(kind)[0].GroupVersionKind
		return LevelRule{Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind, Adjust: adjust}
	}
	long := chainOf(podKind, job, cronJob, workflow, cronWorkflow)
	tests := map[string]struct {
		levels Levels
		chain  []*Object
		want   Level
	}{
		"no rules: the direct owner":                 {Levels{}, long, Level{Index: 1, Rule: -1}},
		"no rules, Root: the topmost owner":          {Levels{NoMatch: NoMatchRoot}, long, Level{Index: 4, Rule: -1}},
		"no rules and no owner: the pod":             {Levels{}, chainOf(podKind), Level{Index: 0, Rule: -1}},
		"the nearest owner that matches decides":     {Levels{Rules: []LevelRule{rule(workflow, -1), rule(job, 0)}}, long, Level{Index: 1, Rule: 1}},
		"one step towards the pod":                   {Levels{Rules: []LevelRule{rule(workflow, -1)}}, long, Level{Index: 2, Rule: 0}},
		"one step towards the root":                  {Levels{Rules: []LevelRule{rule(job, 1)}}, long, Level{Index: 2, Rule: 0}},
		"beyond the pod is the pod":                  {Levels{Rules: []LevelRule{rule(workflow, -7)}}, long, Level{Index: 0, Rule: 0, Clamped: true}},
		"beyond the root is the root":                {Levels{Rules: []LevelRule{rule(cronJob, 3)}}, long, Level{Index: 4, Rule: 0, Clamped: true}},
		"to the root exactly is not beyond":          {Levels{Rules: []LevelRule{rule(cronJob, 2)}}, long, Level{Index: 4, Rule: 0}},
		"as far as an int goes":                      {Levels{Rules: []LevelRule{rule(cronJob, int(^uint(0)>>1))}}, long, Level{Index: 4, Rule: 0, Clamped: true}},
		"to the pod exactly is not beyond":           {Levels{Rules: []LevelRule{rule(workflow, -3)}}, long, Level{Index: 0, Rule: 0}},
		"another version matches":                    {Levels{Rules: []LevelRule{rule("batch/v1beta1/Job", 1)}}, long, Level{Index: 2, Rule: 0}},
		"another version does not where it matters":  {Levels{Rules: []LevelRule{{Group: "batch", Version: "v1beta1", Kind: "Job", ExactVersion: true, Adjust: 1}}}, long, Level{Index: 1, Rule: -1}},
		"the same version does":                      {Levels{Rules: []LevelRule{{Group: "batch", Version: "v1", Kind: "Job", ExactVersion: true, Adjust: 1}}}, long, Level{Index: 2, Rule: 0}},
		"another group does not":                     {Levels{Rules: []LevelRule{rule("batch.volcano.sh/v1alpha1/Job", 1)}}, long, Level{Index: 1, Rule: -1}},
		"any group does":                             {Levels{Rules: []LevelRule{{AnyGroup: true, Kind: "job", Adjust: 1}}}, long, Level{Index: 2, Rule: 0}},
		"extensions was the group of Deployments":    {Levels{Rules: []LevelRule{rule("extensions/v1beta1/deployment", 0)}}, chainOf(podKind, replicaSet, deployment), Level{Index: 2, Rule: 0}},
		"it was not that of StatefulSets":            {Levels{Rules: []LevelRule{rule("extensions/v1beta1/StatefulSet", -1)}}, chainOf(podKind, "apps/v1/StatefulSet"), Level{Index: 1, Rule: -1}},
		"the pod's own kind never matches":           {Levels{Rules: []LevelRule{rule(podKind, 0), rule(job, 0)}}, long, Level{Index: 1, Rule: 1}},
		"a pod that owns the pod does":               {Levels{Rules: []LevelRule{rule(podKind, 0)}}, chainOf(podKind, podKind, workflow), Level{Index: 1, Rule: 0}},
		"several schedulers: not above the first":    {Levels{Rules: []LevelRule{rule(workflow, 0)}, AtMostDirectOwner: true}, long, Level{Index: 1, Rule: 0}},
		"several schedulers: below it as the rules":  {Levels{Rules: []LevelRule{rule(job, -1)}, AtMostDirectOwner: true}, long, Level{Index: 0, Rule: 0}},
		"several schedulers: nor without any rule":   {Levels{NoMatch: NoMatchRoot, AtMostDirectOwner: true}, long, Level{Index: 1, Rule: -1}},
		"several schedulers: a pod without an owner": {Levels{AtMostDirectOwner: true}, chainOf(podKind), Level{Index: 0, Rule: -1}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.levels.Select(tc.chain)); diff != "" {
				t.Errorf("wrong choice (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSelectIsAlwaysInTheChain checks that Select returns an object of the chain for any
// rules, and that one more owner that no rule matches changes the result only for Root.
func TestSelectIsAlwaysInTheChain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kinds := []string{replicaSet, deployment, job, cronJob, workflow, cronWorkflow, podKind}
		chain := chainOf(append([]string{podKind}, rapid.SliceOfN(rapid.SampledFrom(kinds), 0, MaxHops).Draw(t, "owners")...)...)
		levels := Levels{
			NoMatch:           rapid.SampledFrom([]NoMatch{"", NoMatchDirectOwner, NoMatchRoot}).Draw(t, "noMatch"),
			AtMostDirectOwner: rapid.Bool().Draw(t, "atMost"),
		}
		for _, kind := range rapid.SliceOfN(rapid.SampledFrom(kinds), 0, 4).Draw(t, "rules") {
			gvk := chainOf(kind)[0].GroupVersionKind
			levels.Rules = append(levels.Rules, LevelRule{Group: gvk.Group, Kind: strings.ToLower(gvk.Kind), Adjust: rapid.Int().Draw(t, "adjust")})
		}
		got := levels.Select(chain)
		if got.Index < 0 || got.Index >= len(chain) {
			t.Fatalf("owner %d of a chain of %d is chosen", got.Index, len(chain))
		}
		if levels.AtMostDirectOwner && got.Index > 1 {
			t.Fatalf("owner %d is chosen and none above the first may be", got.Index)
		}
		stranger := slices.Concat(chain, chainOf("example.com/v1/Stranger"))
		if more := levels.Select(stranger); got.Rule != more.Rule || !got.Clamped && got.Rule >= 0 && got.Index != more.Index {
			t.Fatalf("an owner above that no rule is about changes the choice: %+v, %+v", got, more)
		}
	})
}

func TestParseLevels(t *testing.T) {
	deploymentRule := LevelRule{Group: "apps", Version: "v1", Kind: "deployment"}
	tests := map[string]struct {
		text  string
		want  Levels
		notes []string
		err   string
	}{
		"nothing":                     {"", Levels{NoMatch: NoMatchDirectOwner}, nil, ""},
		"only keys of other programs": {"networkTopologyDiscovery:\n- source: ufm\n", Levels{NoMatch: NoMatchDirectOwner}, nil, ""},
		"both lists, in their order": {
			"podgroupLevel:\n- {apiversion: batch/v1, kind: job, adjust-level: 1}\npodgroup-level-rules:\n- {apiVersion: apps/v1, kind: deployment}\n",
			Levels{NoMatch: NoMatchDirectOwner, Rules: []LevelRule{deploymentRule, {Group: "batch", Version: "v1", Kind: "job", Adjust: 1}}}, nil, "",
		},
		"other spellings": {
			"podgroupLevel: [{apiVersion: apps/v1, kind: deployment, adjustLevel: -2}]\nnoMatch: root\nmigrate: Pending\n",
			Levels{NoMatch: NoMatchRoot, MovePending: true, Rules: []LevelRule{{Group: "apps", Version: "v1", Kind: "deployment", Adjust: -2}}}, nil, "",
		},
		"any version, any group": {
			"podgroupLevel: [{apiversion: apps/*, kind: deployment}, {apiversion: '*', kind: job}, {apiversion: '*/v1', kind: pod}]",
			Levels{NoMatch: NoMatchDirectOwner, Rules: []LevelRule{{Group: "apps", Version: "*", Kind: "deployment"}, {AnyGroup: true, Kind: "job"}, {AnyGroup: true, Version: "v1", Kind: "pod"}}}, nil, "",
		},
		"the same twice": {
			"podgroup-level-rules: [{apiversion: apps/v1, kind: deployment}]\npodgroupLevel: [{apiversion: apps/v1beta1, kind: Deployment}]",
			Levels{NoMatch: NoMatchDirectOwner, Rules: []LevelRule{deploymentRule}}, nil, "",
		},
		"one that is there already, between others": {
			"podgroupLevel: [{apiversion: apps/v1, kind: deployment}, {apiversion: apps/v1, kind: deployment}, {apiversion: batch/v1, kind: job, exactVersion: true}]",
			Levels{NoMatch: NoMatchDirectOwner, Rules: []LevelRule{deploymentRule, {Group: "batch", Version: "v1", Kind: "job", ExactVersion: true}}}, nil, "",
		},
		"two levels for one kind": {
			"podgroup-level-rules: [{apiversion: apps/v1, kind: deployment}]\npodgroupLevel: [{apiversion: apps/v1, kind: Deployment, adjust-level: 1}]",
			Levels{NoMatch: NoMatchDirectOwner, Rules: []LevelRule{deploymentRule}},
			[]string{"podgroupLevel[0] (Deployment): is not used, because an earlier rule is about the same kind"}, "",
		},
		"no YAML":              {"podgroupLevel: [", Levels{}, nil, "volcano-controller.conf is not YAML"},
		"a list":               {"- a", Levels{}, nil, "volcano-controller.conf is not a mapping"},
		"no list":              {"podgroupLevel: {a: b}", Levels{}, nil, "podgroupLevel is not a list"},
		"no rule":              {"podgroupLevel: [a]", Levels{}, nil, "podgroupLevel[0]: is not a mapping"},
		"no kind":              {"podgroupLevel: [{apiversion: v1}]", Levels{}, nil, "podgroupLevel[0]: kind must be"},
		"an empty kind":        {"podgroupLevel: [{apiversion: v1, kind: ''}]", Levels{}, nil, "podgroupLevel[0]: kind must be"},
		"no version":           {"podgroupLevel: [{kind: Job}]", Levels{}, nil, "podgroupLevel[0] (Job): apiversion must be"},
		"an empty version":     {"podgroupLevel: [{kind: Job, apiversion: ''}]", Levels{}, nil, "podgroupLevel[0] (Job): apiversion must be"},
		"no such version":      {"podgroupLevel: [{kind: Job, apiversion: a/b/c}]", Levels{}, nil, `apiversion is "a/b/c"`},
		"an unknown field":     {"podgroupLevel: [{kind: Job, apiversion: batch/v1, level: 1}]", Levels{}, nil, `unknown field "level"`},
		"a field twice":        {"podgroupLevel: [{kind: Job, apiversion: batch/v1, apiVersion: batch/v1}]", Levels{}, nil, "apiversion is set twice"},
		"half a level":         {"podgroupLevel: [{kind: Job, apiversion: batch/v1, adjust-level: 0.5}]", Levels{}, nil, "adjust-level is 0.5"},
		"a level that is text": {"podgroupLevel: [{kind: Job, apiversion: batch/v1, adjust-level: up}]", Levels{}, nil, "adjust-level is up"},
		"a level beyond all":   {"podgroupLevel: [{kind: Job, apiversion: batch/v1, adjust-level: 9999999999999999999999}]", Levels{}, nil, "it must be an integer from -1000"},
		"no such noMatch":      {"noMatch: Up", Levels{}, nil, "noMatch is Up: it must be DirectOwner or Root"},
		"exact about nothing":  {"podgroupLevel: [{kind: Job, apiversion: '*', exactVersion: true}]", Levels{}, nil, "exactVersion needs"},
		"too much":             {strings.Repeat("#", maxLevelsText+1), Levels{}, nil, "at most 131072 are read"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			levels, notes, err := ParseLevels(tc.text)
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("the error is %v, want one with %q", err, tc.err)
			}
			levels.Stated = false
			if diff := cmp.Diff(tc.want, levels); diff != "" {
				t.Errorf("wrong rules (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.notes, notes); diff != "" {
				t.Errorf("wrong notes (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTextsThatStateRules: a text without any setting of these is not one that wants no rules.
func TestTextsThatStateRules(t *testing.T) {
	for text, want := range map[string]bool{
		"": false, "other: 1": false, "podgroupLevel: []": true, "podgroup-level-rules:": false, "noMatch: Root": true, "migrate: Never": true,
	} {
		if levels, _, err := ParseLevels(text); err != nil || levels.Stated != want {
			t.Errorf("%q: stated %t (%v), want %t", text, levels.Stated, err, want)
		}
	}
	// Volcano's chart renders a text that overrides its own with an indicator of its own.
	levels, _, err := ParseLevels("|\n  podgroupLevel:\n  - {apiversion: apps/v1, kind: deployment}\n")
	if err != nil || len(levels.Rules) != 1 {
		t.Errorf("a text within the text: %+v, %v", levels, err)
	}
}

func FuzzParseLevels(f *testing.F) {
	for _, text := range documentRules {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		levels, _, err := ParseLevels(text)
		if err != nil && len(levels.Rules) > 0 {
			t.Errorf("rules of a text that is not right")
		}
		levels.Select(chainOf(podKind, job, workflow))
	})
}

func TestRulesAboutTheSameObjects(t *testing.T) {
	rule := LevelRule{Group: "apps", Version: "v1", Kind: "Deployment"}
	exact := LevelRule{Group: "apps", Version: "v1", Kind: "Deployment", ExactVersion: true}
	anyGroup := LevelRule{AnyGroup: true, Kind: "Deployment"}
	tests := map[string]struct {
		a, b LevelRule
		want bool
	}{
		"the same":                              {rule, rule, true},
		"in another case and version":           {rule, LevelRule{Group: "apps", Version: "v1beta2", Kind: "deployment"}, true},
		"by the group's old name":               {rule, LevelRule{Group: "extensions", Kind: "deployment"}, true},
		"by its old name, of the old one":       {LevelRule{Group: "extensions", Kind: "deployment"}, rule, true},
		"another kind":                          {rule, LevelRule{Group: "apps", Kind: "StatefulSet"}, false},
		"another group":                         {rule, LevelRule{Group: "example.com", Kind: "Deployment"}, false},
		"a group without an old name":           {LevelRule{Group: "example.com", Kind: "Deployment"}, LevelRule{Group: "apps", Kind: "Deployment"}, false},
		"another group of a kind never renamed": {LevelRule{Group: "apps", Kind: "StatefulSet"}, LevelRule{Group: "extensions", Kind: "StatefulSet"}, false},
		"any group and one":                     {anyGroup, rule, false},
		"any group twice":                       {anyGroup, anyGroup, true},
		"any group, with a group":               {anyGroup, LevelRule{AnyGroup: true, Group: "x", Kind: "Deployment"}, true},
		"exact and any version":                 {exact, rule, false},
		"exact twice":                           {exact, exact, true},
		"exact, of another version":             {exact, LevelRule{Group: "apps", Version: "v2", Kind: "Deployment", ExactVersion: true}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.a.same(&tc.b); got != tc.want {
				t.Errorf("same is %t, want %t", got, tc.want)
			}
		})
	}
}

// TestEveryWrongRuleIsNamed checks that one error names all invalid rules, and that texts
// and levels at their bounds are valid.
func TestEveryWrongRuleIsNamed(t *testing.T) {
	_, _, err := ParseLevels("podgroup-level-rules: {a: b}\npodgroupLevel:\n- {kind: Job}\n- {apiversion: batch/v1}\n- {apiversion: batch/v1, kind: job, adjust-level: 1001}\n")
	for _, part := range []string{"podgroup-level-rules is not a list", "podgroupLevel[0] (Job)", "podgroupLevel[1]: kind", "podgroupLevel[2] (job): adjust-level is 1001"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("the error lacks %q: %v", part, err)
		}
	}
	for _, bad := range []string{
		"podgroupLevel: [{apiversion: '', kind: job}]", "podgroupLevel: [{apiversion: batch/, kind: job}]", "podgroupLevel: [{apiversion: batch/v1, kind: 'a b'}]",
		"podgroupLevel: [{apiversion: 'batch/*', kind: job, exactVersion: true}]", "podgroupLevel: [{apiversion: batch/v1, kind: ''}]",
	} {
		if _, _, err := ParseLevels(bad); err == nil {
			t.Errorf("%s is right", bad)
		}
	}
	text := "podgroupLevel: [{apiversion: batch/v1, kind: job, adjust-level: -1000}]\n#"
	text += strings.Repeat("x", maxLevelsText-len(text))
	if levels, _, err := ParseLevels(text); err != nil || levels.Rules[0].Adjust != -1000 {
		t.Errorf("a text of %d bytes is not right: %v", len(text), err)
	}
	many := func(n int) string {
		var b strings.Builder
		b.WriteString("podgroupLevel:\n")
		for i := range n {
			fmt.Fprintf(&b, "- {apiversion: batch/v1, kind: job-%d}\n", i)
		}
		return b.String()
	}
	if _, _, err := ParseLevels(many(maxLevelRules)); err != nil {
		t.Errorf("%d rules are not right: %v", maxLevelRules, err)
	}
	if _, _, err := ParseLevels(many(maxLevelRules + 1)); err == nil {
		t.Error("one more is")
	}
}
