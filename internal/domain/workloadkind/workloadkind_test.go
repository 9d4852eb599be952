package workloadkind

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var widget = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}

func TestParse(t *testing.T) {
	tests := map[string]struct {
		text string
		want []Entry
	}{
		"nothing":              {"", nil},
		"comments only":        {"# none yet\n", nil},
		"an empty list":        {"[]", nil},
		"a document marker":    {"--- # kinds\n[]\n", nil},
		"required fields only": {"- {group: example.com, version: v1, kind: Widget}", []Entry{{GroupVersionKind: widget}}},
		"an entry of JSON":     {`[{"group":"example.com","version":"v1","kind":"Widget"}]`, []Entry{{GroupVersionKind: widget}}},
		"a kind of the core":   {"- {version: v1, kind: ReplicationController}", []Entry{{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "ReplicationController"}}}},
		"a field that is null": {"- {group: example.com, version: v1, kind: Widget, replicasPath: null}", []Entry{{GroupVersionKind: widget}}},
		"a path without a dot": {"- {group: example.com, version: v1, kind: Widget, replicasPath: spec.count}", []Entry{{GroupVersionKind: widget, ReplicasPath: Path{"spec", "count"}}}},
		"everything": {
			`
- group: example.com
  version: v1
  kind: Widget
  resource: widgets
  replicasPath: .spec.replicas
  podTemplatePath: .spec.template
  revisionLabel: example.com/revision
# the next
- group: argoproj.io
  version: v1alpha1
  kind: Rollout
`,
			[]Entry{{
				GroupVersionKind: widget, Resource: "widgets",
				ReplicasPath: Path{"spec", "replicas"}, PodTemplatePath: Path{"spec", "template"}, RevisionLabel: "example.com/revision",
			}, {GroupVersionKind: schema.GroupVersionKind{Group: "argoproj.io", Version: "v1alpha1", Kind: "Rollout"}}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, errs := Parse(tc.text)
			if len(errs) > 0 {
				t.Fatalf("refused: %v", errs)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("wrong entries (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	entry := func(more string) string { return "- {group: example.com, version: v1, kind: Widget" + more + "}" }
	tests := map[string]struct{ text, want string }{
		"no YAML":                    {"- {group: example.com", "workloads.yaml: the text is not valid YAML: "},
		"a key twice":                {"- {kind: A, kind: B, version: v1}", "workloads.yaml: the text is not valid YAML: "},
		"no list":                    {"group: example.com", `workloads.yaml: the text is not a list: begin each entry with "- "`},
		"a second document":          {"- {version: v1, kind: A}\n---\n- {version: v1, kind: B}", "workloads.yaml: the text has more than one YAML document: write one list"},
		"a text that is too long":    {strings.Repeat("#", MaxText+1), "workloads.yaml: the text has 65537 bytes: at most 65536 are allowed"},
		"a list that is too long":    {strings.Repeat("- {}\n", MaxEntries+1), "workloads.yaml: the list has 51 entries: at most 50 are allowed"},
		"an entry that is a word":    {"- Widget", "workloads.yaml[0]: is not an object: the fields are group, version, kind, resource, replicasPath, podTemplatePath, revisionLabel"},
		"an unknown field":           {entry(", replicaPath: .spec.replicas"), `workloads.yaml[0] (Widget.example.com): unknown field "replicaPath": the fields are group, version, kind, resource, replicasPath, podTemplatePath, revisionLabel`},
		"a field in another case":    {"- {version: v1, Kind: Widget}", `workloads.yaml[0]: unknown field "Kind": the fields are`},
		"a number":                   {"- {group: example.com, version: 1, kind: Widget}", "workloads.yaml[0] (Widget.example.com): version is not a string: put it in quotes"},
		"no kind":                    {"- {group: example.com, version: v1}", "workloads.yaml[0]: kind is missing"},
		"a plural for a kind":        {"- {version: v1, kind: widgets}", `workloads.yaml[0]: kind "widgets" is not a valid kind name, such as CloneSet`},
		"no version":                 {"- {group: example.com, kind: Widget}", "workloads.yaml[0] (Widget.example.com): version is missing, such as v1alpha1"},
		"an apiVersion as version":   {"- {version: example.com/v1, kind: Widget}", `workloads.yaml[0] (Widget): version "example.com/v1" is not a valid version, such as v1alpha1: write the group in the field group`},
		"a group in upper case":      {"- {group: Example, version: v1, kind: Widget}", `workloads.yaml[0]: group "Example" is not a valid API group name`},
		"a wildcard as group":        {"- {group: '*', version: v1, kind: Widget}", `workloads.yaml[0]: group "*" is not a valid API group name`},
		"a built-in kind":            {"- {group: apps, version: v1beta1, kind: Deployment}", "workloads.yaml[0] (Deployment.apps): the kind is built in: remove the entry"},
		"pods":                       {"- {version: v1, kind: Pod}", "workloads.yaml[0] (Pod): the kind is built in: remove the entry"},
		"a kind twice":               {entry("") + "\n- {group: example.com, version: v2, kind: Widget}", "workloads.yaml[1] (Widget.example.com): entry 0 names the same kind: keep one of them"},
		"a wildcard as resource":     {entry(", resource: '*'"), `workloads.yaml[0] (Widget.example.com): resource "*" is not a valid plural name, such as clonesets`},
		"an invalid label key":       {entry(", revisionLabel: a b"), `workloads.yaml[0] (Widget.example.com): revisionLabel "a b" is not a valid label key, such as pod-template-hash`},
		"a path into a list":         {entry(", replicasPath: '.spec.sets[0].replicas'"), `workloads.yaml[0] (Widget.example.com): replicasPath ".spec.sets[0].replicas" leads into a list`},
		"a JSONPath":                 {entry(", replicasPath: '{.spec.replicas}'"), `workloads.yaml[0] (Widget.example.com): replicasPath "{.spec.replicas}" leads into a list`},
		"a JSON pointer":             {entry(", replicasPath: /spec/replicas"), `workloads.yaml[0] (Widget.example.com): replicasPath "/spec/replicas" is not a path: write names of fields with dots between them, such as .spec.replicas`},
		"a dot":                      {entry(", replicasPath: ."), `workloads.yaml[0] (Widget.example.com): replicasPath "." is not a path`},
		"a dot at the end":           {entry(", podTemplatePath: .spec."), `workloads.yaml[0] (Widget.example.com): podTemplatePath ".spec." is not a path`},
		"a path into metadata":       {entry(", replicasPath: .metadata.generation"), `workloads.yaml[0] (Widget.example.com): replicasPath ".metadata.generation" leads into metadata: the value cannot be there`},
		"a path that is too long":    {entry(", replicasPath: " + strings.Repeat(".a", 200)), "workloads.yaml[0] (Widget.example.com): replicasPath has 400 characters: at most 253 are allowed"},
		"a recursive alias":          {"&a [*a]", "workloads.yaml: the text is not valid YAML: "},
		"one bad entry among others": {"- {version: v1, kind: A}\n- {version: v1}\n- {version: v1, kind: B}", "workloads.yaml[1]: kind is missing"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			entries, errs := Parse(tc.text)
			if len(errs) != 1 {
				t.Fatalf("got %v and %v, want one error", entries, errs)
			}
			if got := errs[0].Error(); !strings.HasPrefix(got, tc.want) {
				t.Errorf("refused with\n%s, want\n%s", got, tc.want)
			}
		})
	}
}

func TestGoodEntriesAreReadBesideBadOnes(t *testing.T) {
	got, errs := Parse("- {version: v1, kind: A}\n- {version: v1, kind: b}\n- {version: v1, kind: C}\n- 5\n")
	if len(errs) != 2 || errs[0].Index != 1 || errs[1].Index != 3 {
		t.Errorf("errors are %v", errs)
	}
	if len(got) != 2 || got[0].Kind != "A" || got[1].Kind != "C" {
		t.Errorf("entries are %v", got)
	}
}

// FuzzParse: no text makes Parse panic, the same text has the same result, and each parsed
// path can be written as text and parsed again.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"", "[]", "- {group: example.com, version: v1, kind: Widget, replicasPath: .spec.replicas}", "- &a {kind: *a}",
		"a: b", "- - -", "\xff", "--- a\n--- b", "- {kind: Widget, version: v1, revisionLabel: a/b}", "- !!binary aGk=", "- 1e400",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		entries, errs := Parse(text)
		again, errsAgain := Parse(text)
		if diff := cmp.Diff(entries, again); diff != "" {
			t.Errorf("the second result differs:\n%s", diff)
		}
		if len(errs) != len(errsAgain) {
			t.Fatalf("the errors differ: %v, %v", errs, errsAgain)
		}
		for i, err := range errs {
			if err.Error() == "" || err.Error() != errsAgain[i].Error() {
				t.Errorf("error is %q, then %q", err, errsAgain[i])
			}
		}
		if len(entries)+len(errs) > MaxEntries+1 {
			t.Errorf("%d entries and %d errors", len(entries), len(errs))
		}
		for _, e := range entries {
			if e.Kind == "" || e.Version == "" || builtin[e.GroupKind()] {
				t.Errorf("accepted %+v", e)
			}
			for _, path := range []Path{e.ReplicasPath, e.PodTemplatePath} {
				if back, err := parsePath(path.String()); err != nil || !cmp.Equal(back, path) {
					t.Errorf("path %q became %v, %v", path, back, err)
				}
			}
		}
	})
}

// TestParseAcceptsTextsAtTheLimits: texts at the limits are parsed, longer ones are refused.
func TestParseAcceptsTextsAtTheLimits(t *testing.T) {
	path := strings.Repeat("a", maxPath)
	for name, text := range map[string]string{
		"the text":       "[]\n#" + strings.Repeat(".", MaxText-4),
		"a path":         "- {group: example.com, version: v1, kind: Widget, replicasPath: " + path + "}",
		"a plain marker": "# kinds\n\n---\n[]\n",
		"a directive":    "%YAML 1.1\n---\n[]\n",
	} {
		if _, errs := Parse(text); len(errs) > 0 {
			t.Errorf("%s is refused: %v", name, errs)
		}
	}
	var many strings.Builder
	for i := range MaxEntries + 1 {
		if i == MaxEntries {
			if entries, errs := Parse(many.String()); len(errs) > 0 || len(entries) != MaxEntries {
				t.Errorf("%d entries: %d are read, %v", i, len(entries), errs)
			}
		}
		fmt.Fprintf(&many, "- {group: example.com, version: v1, kind: Widget%d}\n", i)
	}
	for name, text := range map[string]string{
		"a longer text": "[]\n#" + strings.Repeat(".", MaxText-3), "a longer path": "- {group: example.com, version: v1, kind: Widget, replicasPath: " + path + "a}",
		"more entries": many.String(), "two documents": "[]\n---\n[]\n", "two, the second with a comment": "[]\n--- # more\n[]\n",
	} {
		if _, errs := Parse(text); len(errs) == 0 {
			t.Errorf("%s: not refused", name)
		}
	}
}
