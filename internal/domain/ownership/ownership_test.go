package ownership

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

func TestBindingOf(t *testing.T) {
	tests := map[string]struct {
		required, binding string
		want              Binding
	}{
		"situation 1: required and not bound":     {"a", "", Unbound},
		"situation 2: bound to another":           {"a", "b", Mismatched},
		"situation 3: bound to what is required":  {"a", "a", Bound},
		"situation 4: neither":                    {"", "", Unmanaged},
		"binding without required is situation 4": {"", "a", Unmanaged},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := BindingOf(tc.required, tc.binding); got != tc.want {
				t.Errorf("BindingOf(%q, %q) = %v, want %v", tc.required, tc.binding, got, tc.want)
			}
		})
	}
}

func TestApplicationOf(t *testing.T) {
	object := func(name, propagation, override string) *Object {
		return &Object{Name: name, Policies: Policies{RequiredPropagation: propagation, RequiredOverride: override}}
	}
	tests := map[string]struct {
		chain                     []*Object
		wantPropagation, wantOver string
	}{
		"no chain": {},
		"nobody requires anything": {
			chain: []*Object{object("pod", "", ""), object("rs", "", "")},
		},
		"the topmost object that requires a policy decides": {
			chain:           []*Object{object("pod", "x", ""), object("rs", "x", ""), object("deploy", "p", ""), object("top", "", "")},
			wantPropagation: "deploy",
		},
		"each kind of policy has its own application": {
			chain:           []*Object{object("pod", "", ""), object("rs", "p", ""), object("deploy", "", "o")},
			wantPropagation: "rs", wantOver: "deploy",
		},
		"a bare pod's own label counts": {
			chain:           []*Object{object("pod", "p", "")},
			wantPropagation: "pod",
		},
		"an owned pod's own label is a copy": {
			chain: []*Object{object("pod", "p", "o"), object("rs", "", "")},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			app := ApplicationOf(tc.chain)
			got := [2]string{}
			if app.Propagation != nil {
				got[0] = app.Propagation.Name
			}
			if app.Override != nil {
				got[1] = app.Override.Name
			}
			if diff := cmp.Diff([2]string{tc.wantPropagation, tc.wantOver}, got); diff != "" {
				t.Errorf("wrong application (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPoliciesSurviveTheWayThroughLabels(t *testing.T) {
	want := Policies{RequiredPropagation: "a", BindingPropagation: "b", RequiredOverride: "c"}
	labels := want.Labels()
	if diff := cmp.Diff(want, PoliciesOf(labels)); diff != "" {
		t.Errorf("wrong policies (-want +got):\n%s", diff)
	}
	if _, ok := labels[gm.BindingOverridePolicyLabel]; ok {
		t.Errorf("an empty policy became a label")
	}
}

func TestRevision(t *testing.T) {
	both := map[string]string{"pod-template-hash": "hash", "controller-revision-hash": "revision", "cut": "deep"}
	tests := map[string]struct {
		labels map[string]string
		label  string
		want   string
	}{
		"a ReplicaSet's":                     {map[string]string{"pod-template-hash": "hash"}, "", "hash"},
		"a StatefulSet's":                    {map[string]string{"controller-revision-hash": "revision"}, "", "revision"},
		"both":                               {both, "", "hash"},
		"none":                               {nil, "", ""},
		"a label of its own counts alone":    {both, "cut", "deep"},
		"without its own label it has none":  {map[string]string{"pod-template-hash": "hash"}, "cut", ""},
		"its own label may be one of theirs": {both, "controller-revision-hash", "revision"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Revision(tc.labels, tc.label); got != tc.want {
				t.Errorf("revision is %q, want %q", got, tc.want)
			}
		})
	}
}

// TestLabelsThatAnOwnerSelectsByStay: a pod that lost one would be nobody's, and its
// owner would make pods without end.
func TestLabelsThatAnOwnerSelectsByStay(t *testing.T) {
	type labels = map[string]string
	tests := map[string]struct {
		selector      Selector
		was, is, want labels
	}{
		"nothing of it changed":         {SelectorByKeys("app"), labels{"app": "web"}, labels{"app": "web", "new": "1"}, labels{"app": "web", "new": "1"}},
		"one was changed":               {SelectorByKeys("app", "ours"), labels{"app": "web", "ours": "mine"}, labels{"app": "web", "ours": "set", "new": "1"}, labels{"app": "web", "ours": "mine", "new": "1"}},
		"one was taken off":             {SelectorByKeys("ours"), labels{"ours": "mine"}, nil, labels{"ours": "mine"}},
		"one came that must not exist":  {SelectorByKeys("ours"), nil, labels{"ours": "set"}, nil},
		"it is looked for by no label":  {SelectorByKeys(), labels{"ours": "mine"}, labels{"ours": "set"}, labels{"ours": "set"}},
		"nobody knows what it looks at": {Selector{}, labels{"ours": "mine"}, labels{"new": "1"}, labels{"new": "1"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			before := maps.Clone(tc.is)
			if diff := cmp.Diff(tc.want, tc.selector.Keep(tc.was, tc.is), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("wrong labels (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, tc.is); diff != "" {
				t.Errorf("what was given has changed:\n%s", diff)
			}
		})
	}
}
