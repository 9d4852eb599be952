package ownership

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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
			if got := bindingOf(tc.required, tc.binding); got != tc.want {
				t.Errorf("bindingOf(%q, %q) = %v, want %v", tc.required, tc.binding, got, tc.want)
			}
		})
	}
}

func TestPolicyOwners(t *testing.T) {
	object := func(name, propagation, override string) *Object {
		return &Object{Name: name, Policies: Policies{RequiredPropagation: propagation, RequiredOverride: override}}
	}
	tests := map[string]struct {
		chain                     []*Object
		wantPropagation, wantOver string
	}{
		"no chain": {},
		"no policy is required": {
			chain: []*Object{object("pod", "", ""), object("rs", "", "")},
		},
		"the topmost object that requires a policy decides": {
			chain:           []*Object{object("pod", "x", ""), object("rs", "x", ""), object("deploy", "p", ""), object("top", "", "")},
			wantPropagation: "deploy",
		},
		"and of overrides too": {
			chain:    []*Object{object("pod", "", "x"), object("rs", "", "x"), object("deploy", "", "o"), object("top", "", "")},
			wantOver: "deploy",
		},
		"each kind of policy has its own owner": {
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
			app := PolicyOwnersOfPod(tc.chain)
			got := [2]string{}
			if app.Propagation != nil {
				got[0] = app.Propagation.Name
			}
			if app.Override != nil {
				got[1] = app.Override.Name
			}
			if diff := cmp.Diff([2]string{tc.wantPropagation, tc.wantOver}, got); diff != "" {
				t.Errorf("wrong owners (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPoliciesRoundTripThroughLabels(t *testing.T) {
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

// TestLabelsThatAnOwnerSelectsByStay checks Selector.Keep. A pod without such a label
// would belong to no owner, and its owner would create pods without end.
func TestLabelsThatAnOwnerSelectsByStay(t *testing.T) {
	type labels = map[string]string
	tests := map[string]struct {
		selector      Selector
		was, is, want labels
	}{
		"nothing of it changed":             {SelectorByKeys("app"), labels{"app": "web"}, labels{"app": "web", "new": "1"}, labels{"app": "web", "new": "1"}},
		"one was changed":                   {SelectorByKeys("app", "ours"), labels{"app": "web", "ours": "mine"}, labels{"app": "web", "ours": "set", "new": "1"}, labels{"app": "web", "ours": "mine", "new": "1"}},
		"one was taken off":                 {SelectorByKeys("ours"), labels{"ours": "mine"}, nil, labels{"ours": "mine"}},
		"one without a value was taken off": {SelectorByKeys("ours"), labels{"ours": ""}, labels{"new": "1"}, labels{"ours": "", "new": "1"}},
		"one came that must not exist":      {SelectorByKeys("ours"), nil, labels{"ours": "set"}, nil},
		"it is looked for by no label":      {SelectorByKeys(), labels{"ours": "mine"}, labels{"ours": "set"}, labels{"ours": "set"}},
		"an unknown selector":               {Selector{}, labels{"ours": "mine"}, labels{"new": "1"}, labels{"new": "1"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			before := maps.Clone(tc.is)
			if diff := cmp.Diff(tc.want, tc.selector.Restore(tc.was, tc.is), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("wrong labels (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, tc.is); diff != "" {
				t.Errorf("what was given has changed:\n%s", diff)
			}
		})
	}
}

func TestSelectorOf(t *testing.T) {
	exists := func(keys ...string) (all []metav1.LabelSelectorRequirement) {
		for _, key := range keys {
			all = append(all, metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpExists})
		}
		return all
	}
	tests := map[string]struct {
		selector *metav1.LabelSelector
		want     []string
		known    bool
	}{
		"it is not known":            {nil, nil, false},
		"of no label":                {&metav1.LabelSelector{}, nil, true},
		"of labels":                  {&metav1.LabelSelector{MatchLabels: map[string]string{"b": "1", "a": "2"}}, []string{"a", "b"}, true},
		"of expressions":             {&metav1.LabelSelector{MatchExpressions: exists("b", "a")}, []string{"a", "b"}, true},
		"of both, one of them twice": {&metav1.LabelSelector{MatchLabels: map[string]string{"b": "1"}, MatchExpressions: exists("b", "a")}, []string{"a", "b"}, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := SelectorOf(tc.selector)
			if diff := cmp.Diff(tc.want, got.Keys()); diff != "" || got.Known() != tc.known {
				t.Errorf("known %t, wrong keys (-want +got):\n%s", got.Known(), diff)
			}
			if same := SelectorByKeys(tc.want...); got.Equal(same) != tc.known || got.String() != same.String() {
				t.Errorf("%q is as %q: %t", got, same, got.Equal(same))
			}
			if got.Equal(SelectorByKeys("another")) {
				t.Error("it is as another")
			}
		})
	}
}

// TestMembers checks that a gang never waits for more pods than its owner can have.
func TestMembers(t *testing.T) {
	of := func(kind string, change func(*Object)) *Object {
		o := chainOf(kind)[0]
		change(o)
		return o
	}
	tests := map[string]struct {
		object *Object
		want   *int32
	}{
		"a pod may own any number":           {of(podKind, func(*Object) {}), nil},
		"what others call a pod may be more": {of("example.com/v1/Pod", func(*Object) {}), nil},
		"a Deployment's replicas":            {of(deployment, func(o *Object) { o.Replicas = new(int32(3)) }), new(int32(3))},
		"a Service has none":                 {of("v1/Service", func(*Object) {}), nil},
		"a Job's":                            {of(job, func(o *Object) { o.Gang.Members, o.Replicas = new(int32(5)), new(int32(2)) }), new(int32(5))},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.object.Members()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestTies checks that a pod keeps the token from before it had a UID, and that other
// objects use their UID.
func TestTies(t *testing.T) {
	for name, tc := range map[string]struct {
		kind string
		seat types.UID
		want types.UID
	}{
		"a pod that got its seat at its creation": {podKind, "token", "token"},
		"one that got it later":                   {podKind, "", "0"},
		"a Deployment":                            {deployment, "", "0"},
		"a Deployment with a token":               {deployment, "token", "0"},
	} {
		o := chainOf(tc.kind)[0]
		o.Seat = tc.seat
		if got := o.Ties(); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestIgnoresMissing(t *testing.T) {
	for value, want := range map[string]bool{gm.MissingPolicyIgnore: true, "Wait": false, "": false} {
		if got := IgnoresMissing(map[string]string{gm.MissingPolicyAnnotation: value}); got != want {
			t.Errorf("%q: %t", value, got)
		}
	}
}

// TestCopiesOnAPod checks that the copies on a pod come from the object that requires
// each policy.
func TestCopiesOnAPod(t *testing.T) {
	propagation := &Object{Policies: Policies{RequiredPropagation: "p", BindingPropagation: "p", BindingOverride: "stray"}}
	override := &Object{Policies: Policies{RequiredOverride: "o", BindingOverride: "q", BindingPropagation: "stray"}}
	for name, tc := range map[string]struct {
		app  PolicyOwners
		want Policies
	}{
		"none":        {PolicyOwners{}, Policies{}},
		"propagation": {PolicyOwners{Propagation: propagation}, Policies{RequiredPropagation: "p", BindingPropagation: "p"}},
		"override":    {PolicyOwners{Override: override}, Policies{RequiredOverride: "o", BindingOverride: "q"}},
		"both":        {PolicyOwners{propagation, override}, Policies{"p", "o", "p", "q"}},
	} {
		if diff := cmp.Diff(tc.want, tc.app.Policies()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if got := tc.app.Managed(); got != (name != "none") {
			t.Errorf("%s: managed %t", name, got)
		}
	}
}
