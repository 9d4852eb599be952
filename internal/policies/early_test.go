package policies

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

func assigns(when gm.Assignment) *gm.PropagationPolicy {
	return build.PropagationPolicy("p", build.Weight(1, "a"), build.Assigns(when))
}

func TestUsable(t *testing.T) {
	args, images := build.Args("a", "c", "-v"), build.Registry("a", "a.io")
	tests := map[string]struct {
		app   build.Object
		rule  build.Option
		when  *gm.PropagationPolicy
		other []build.Object
		want  error
	}{
		"images only, without a PropagationPolicy":              {app: build.Deployment("web", build.Requires("", "o")), rule: images},
		"images only, assigned late":                            {app: build.Deployment("web", build.Requires("p", "o")), rule: images, when: assigns(gm.AssignmentLate)},
		"immutable fields without a PropagationPolicy":          {app: build.Deployment("web", build.Requires("", "o")), rule: args, want: errNeedsPropagation},
		"immutable fields, assigned late":                       {app: build.Deployment("web", build.Requires("p", "o")), rule: args, when: assigns(gm.AssignmentLate), want: errIsLate},
		"immutable fields, assigned as by default":              {app: build.Deployment("web", build.Requires("p", "o")), rule: args, when: assigns("")},
		"immutable fields, assigned by Auto":                    {app: build.Deployment("web", build.Requires("p", "o")), rule: args, when: assigns(gm.AssignmentAuto)},
		"immutable fields, assigned early":                      {app: build.Deployment("web", build.Requires("p", "o")), rule: args, when: assigns(gm.AssignmentEarly)},
		"pods wait for a missing PropagationPolicy in any case": {app: build.Deployment("web", build.Requires("p", "o")), rule: args},
		"an owner above the workload requires the PropagationPolicy": {
			app: build.ReplicaSet("rs", build.OwnedBy(build.Deployment("d")), build.Requires("", "o")), rule: args, when: assigns(gm.AssignmentAuto),
			other: []build.Object{build.Deployment("d", build.Requires("p", ""))},
		},
		"the pods of a DaemonSet have their node": {app: build.DaemonSet("ds", build.Requires("", "o")), rule: args},
		"a pod without an owner exists already":   {app: build.Pod("bare", build.Requires("p", "o")), rule: args, when: assigns(gm.AssignmentAuto), want: errIsPod},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			objects := slices.Concat(tc.other, []build.Object{tc.app})
			if tc.when != nil {
				objects = append(objects, tc.when)
			}
			l := newTestResolver(t, objects...)
			if err := l.Usable(t.Context(), build.Owner(tc.app), rulesOf(t, tc.rule)); !errors.Is(err, tc.want) {
				t.Errorf("error is %v, want %v", err, tc.want)
			}
		})
	}
}

// TestUsableRefusesRulesThatOrphanPods: no rule makes an owner lose its pods, or create
// new ones for pods that end.
func TestUsableRefusesRulesThatOrphanPods(t *testing.T) {
	label := func(key string) build.Option {
		return build.Overrides("a", gm.Overriders{Plaintext: []gm.PlaintextOverrider{{
			Operator: gm.OverriderOpReplace, Path: "/metadata/labels/" + key, Value: &apiextensionsv1.JSON{Raw: []byte(`"y"`)},
		}}})
	}
	ends := build.Overrides("a", gm.Overriders{Plaintext: []gm.PlaintextOverrider{{
		Operator: gm.OverriderOpAdd, Path: "/spec/activeDeadlineSeconds", Value: &apiextensionsv1.JSON{Raw: []byte(`1`)},
	}}})
	both := build.Requires("p", "o")
	web := build.Deployment("web", both, build.SelectsBy("app", "tier"))
	tests := map[string]struct {
		app, below build.Object
		rule       build.Option
		want       string
	}{
		"a label that no selector names": {app: web, rule: label("zone")},
		"a label of the workload's selector": {
			app: web, rule: label("app"),
			want: `spec.overrideRules[0].overriders.plaintext[0]: must not change the label app: Deployment "web" finds its pods by app, tier`,
		},
		"a label of the selector of an object that it owns": {
			app: build.Deployment("web", both), below: build.ReplicaSet("web-1", build.SelectsBy("hash", "app"), build.OwnedBy(build.Deployment("web"))), rule: label("hash"),
			want: `spec.overrideRules[0].overriders.plaintext[0]: must not change the label hash: ReplicaSet "web-1" finds its pods by app, hash`,
		},
		"a selector that is not known": {app: build.Deployment("web", both), rule: label("app")},
		"a DaemonSet too": {
			app: build.DaemonSet("web", build.Requires("", "o"), build.SelectsBy("app")), rule: label("app"),
			want: `spec.overrideRules[0].overriders.plaintext[0]: must not change the label app: DaemonSet "web" finds its pods by app`,
		},
		"pods that end": {
			app: web, rule: ends,
			want: `spec.overrideRules[0].overriders.plaintext[0]: must not change when a pod ends: Deployment "web" creates a new pod for each pod that ends`,
		},
		"pods of a Job end": {app: build.Job("web", both), rule: ends},
		"a workload that is stopped": {
			app: build.Deployment("web", both, build.Annotation(gm.OverridesStoppedAnnotation, "many")), rule: build.Registry("a", "a.io"), want: ErrStopped.Error(),
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			objects := []build.Object{tc.app, assigns(gm.AssignmentAuto)}
			if tc.below != nil {
				objects = append(objects, tc.below)
			}
			l := newTestResolver(t, objects...)
			got := ""
			if err := l.Usable(t.Context(), build.Owner(tc.app), rulesOf(t, tc.rule)); err != nil {
				got = err.Error()
			}
			if got != tc.want {
				t.Errorf("error is\n%s, want\n%s", got, tc.want)
			}
		})
	}
}

func TestCreation(t *testing.T) {
	type want struct {
		Version      string
		Early, Fixed bool
		Err          bool
	}
	args := build.OverridePolicy("o", build.Args("a", "c", "-v"))
	images := build.OverridePolicy("o", build.Registry("a", "a.io"))
	both, ignore := build.Requires("p", "o"), build.Annotation(gm.MissingPolicyAnnotation, gm.MissingPolicyIgnore)
	invalid := build.OverridePolicy("o", build.Registry("a", "no registry"))
	deployment := func(options ...build.Option) build.Object { return build.Deployment("web", options...) }
	tests := map[string]struct {
		app     build.Object
		objects []build.Object
		want    want
	}{
		"Auto is early for immutable fields":             {deployment(both), []build.Object{assigns(gm.AssignmentAuto), args}, want{"o/1", true, true, false}},
		"Auto is early for images":                       {deployment(both), []build.Object{assigns(gm.AssignmentAuto), images}, want{"o/1", true, false, false}},
		"Early is early for images":                      {deployment(both), []build.Object{assigns(gm.AssignmentEarly), images}, want{"o/1", true, false, false}},
		"Early is early without overrides":               {deployment(build.Requires("p", "")), []build.Object{assigns(gm.AssignmentEarly)}, want{Early: true}},
		"Late is late for images":                        {deployment(both), []build.Object{assigns(gm.AssignmentLate), images}, want{"o/1", false, false, false}},
		"Late cannot be used for immutable fields":       {deployment(both), []build.Object{assigns(gm.AssignmentLate), args}, want{Err: true}},
		"and counts as no policy where missing ones do":  {deployment(both, ignore), []build.Object{assigns(gm.AssignmentLate), args}, want{}},
		"an OverridePolicy that is missing is none":      {deployment(both), []build.Object{assigns(gm.AssignmentAuto)}, want{Early: true}},
		"an OverridePolicy that cannot be used":          {deployment(both), []build.Object{assigns(gm.AssignmentAuto), invalid}, want{Err: true}},
		"a PropagationPolicy that is missing is none":    {deployment(both), []build.Object{args}, want{"o/1", false, true, false}},
		"the pods of a DaemonSet get no seat":            {build.DaemonSet("ds", both), []build.Object{assigns(gm.AssignmentEarly), args}, want{"o/1", false, true, false}},
		"the pods of a workload that requires no policy": {deployment(), []build.Object{args, assigns(gm.AssignmentEarly)}, want{}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l := newTestResolver(t, append(tc.objects, tc.app, build.Node("n", build.InGroup("a")))...)
			pod := seats.Slim(build.Pod("", build.OwnedBy(tc.app)))
			a, err := l.AssignmentOnceBound(t.Context(), chainOf(t, l, pod.Object()), "r1")
			if err != nil && a.PolicyOwners.Propagation == nil {
				t.Fatal(err)
			}
			c, err := l.Creation(t.Context(), a)
			got := want{Version: c.Version(), Early: c.Early, Fixed: c.Fixed, Err: err != nil}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("error %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestProspectCountsARequiredPolicyAsBound(t *testing.T) {
	l := newTestResolver(t, build.Deployment("web", build.Requires("p", "")), assigns(gm.AssignmentAuto), build.Node("n", build.InGroup("a")))
	pod := seats.Slim(build.Pod("", build.OwnedBy(build.Deployment("web")))).Object()
	a, err := l.AssignmentOnceBound(t.Context(), chainOf(t, l, pod), "r1")
	if diff := cmp.Diff([]string{"a"}, a.Spread.Groups()); diff != "" || err != nil {
		t.Errorf("error %v, wrong groups (-want +got):\n%s", err, diff)
	}
	if a, err := l.Assignment(t.Context(), pod, "r1"); len(a.Spread.Groups()) != 0 || err != nil {
		t.Errorf("before it is bound, groups are %v, error %v", a.Spread.Groups(), err)
	}
}

func chainOf(t *testing.T, r *testResolver, pod *ownership.Object) []*ownership.Object {
	t.Helper()
	chain, err := r.Chain(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	return chain
}
