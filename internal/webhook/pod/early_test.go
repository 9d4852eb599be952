package pod

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/assign"
	"github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

var (
	replicaSet = build.ReplicaSet("web-1", build.OwnedBy(build.Deployment("web")), build.SelectsBy("app"))
	toHz       = build.PropagationPolicy("p", build.Weight(1, "hz"))
	args       = build.OverridePolicy("o", build.Args("hz", "c", "--hz"), build.Registry("hz", "hz.io"))
	images     = build.OverridePolicy("o", build.Registry("hz", "hz.io"))
	daemons    = build.DaemonSet("agent", build.Bound("", "o"))
)

// ground returns a Deployment, a node in group hz, a node in no group, and the objects.
func ground(bound build.Option, objects ...build.Object) []build.Object {
	return append([]build.Object{
		build.Deployment("web", bound), replicaSet, daemons, build.Node("node-hz", build.InGroup("hz")), build.Node("node-out"),
	}, objects...)
}

// webPod returns a new pod of the Deployment.
func webPod(options ...build.Option) *corev1.Pod {
	return build.Pod("", append([]build.Option{build.OwnedBy(replicaSet), build.Container("c", "nginx:1")}, options...)...)
}

// daemon returns a new pod of a DaemonSet for a node.
func daemon(node string) *corev1.Pod {
	return build.Pod("", build.OwnedBy(daemons), build.Container("c", "nginx:1"), build.ForNode(node))
}

func atMost(n int) *gm.PropagationPolicy {
	return build.PropagationPolicy("p", build.With(func(p *gm.PropagationPolicy) {
		p.Spec.NumRange = []gm.NodeGroupNumRange{{NodeGroupNames: []string{"hz"}, Max: new(intstr.FromInt(n))}}
	}))
}

// fixed returns the hash that pods of a group carry.
func fixed(t *testing.T, policy *gm.OverridePolicy, group string) string {
	t.Helper()
	rules, errs := override.Compile(policy.Spec)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return rules.FixedHash(group)
}

// reserved returns the number of seats that are reserved for pods of the Deployment.
func reserved(w *Webhook) int {
	spread := placement.StaticWeight([]gm.StaticNodeGroupWeight{{NodeGroupNames: []string{"hz"}, Weight: 1}}, nil, "web")
	const many = 100
	return many - w.Assigner.(*assign.Assigner).Ledger.Open(seats.Request{Cohort: seats.Cohort{Owner: "web-1"}, Total: many, Spread: spread})
}

// TestPodsThatNameTheirNodeAreOverriddenAtCreation: nothing else could give them arguments, and
// an image that changes later restarts a container.
func TestPodsThatNameTheirNodeAreOverriddenAtCreation(t *testing.T) {
	for name, tc := range map[string]struct {
		bound   build.Option
		objects []build.Object
		node    string
		image   string
		args    []string
	}{
		"on a node of a group":             {build.Bound("p", "o"), []build.Object{toHz, args}, "node-hz", "hz.io/nginx:1", []string{"--hz"}},
		"the OverridePolicy alone":         {build.Bound("", "o"), []build.Object{images}, "node-hz", "hz.io/nginx:1", nil},
		"on a node of no group":            {build.Bound("p", "o"), []build.Object{toHz, args}, "node-out", "nginx:1", nil},
		"while the policy does not exist":  {build.Requires("p", "o"), nil, "node-hz", "nginx:1", nil},
		"without an OverridePolicy at all": {build.Bound("p", ""), []build.Object{toHz}, "node-hz", "nginx:1", nil},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := newWebhook(t, ground(tc.bound, tc.objects...)...)
			for call, pod := 1, webPod(build.On(tc.node)); call <= 2; call++ { // the second after another webhook
				pod = admit(t, w, pod, false)
				c := pod.Spec.Containers[0]
				if c.Image != tc.image || !cmp.Equal(c.Args, tc.args) || len(pod.Spec.SchedulingGates) > 0 || pod.Spec.Affinity != nil {
					t.Errorf("call %d: image %q, arguments %q, gates %v, affinity %v; want %q, %q and neither", call, c.Image, c.Args, pod.Spec.SchedulingGates, pod.Spec.Affinity, tc.image, tc.args)
				}
				if !seats.Slim(pod).NamesNode {
					t.Errorf("call %d: nothing says that the pod names its node", call)
				}
			}
			if n := reserved(w); n > 0 {
				t.Errorf("%d seats are reserved", n)
			}
		})
	}
}

// recorder records requests for seats, and gives each a seat in group hz.
type recorder struct{ asked []assign.Request }

func (r *recorder) Assign(_ context.Context, ask assign.Request) (assign.Answer, error) {
	r.asked = append(r.asked, ask)
	return assign.Answer{Group: "hz"}, nil
}

// TestSeatRequestSaysWhetherAPodIsOverridden: only the leader knows whether the API server refuses a pod
// with the overrides, and it may refuse one for its image alone.
func TestSeatRequestSaysWhetherAPodIsOverridden(t *testing.T) {
	for name, tc := range map[string]struct {
		bound    build.Option
		policies []build.Object
		want     bool
	}{
		"no OverridePolicy": {build.Bound("p", ""), []build.Object{toHz}, false},
		"images":            {build.Bound("p", "o"), []build.Object{toHz, images}, true},
		"arguments":         {build.Bound("p", "o"), []build.Object{toHz, args}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := newWebhook(t, ground(tc.bound, tc.policies...)...)
			r := &recorder{}
			w.Assigner = r
			admit(t, w, webPod(), false)
			if len(r.asked) != 1 || r.asked[0].Overridden != tc.want {
				t.Errorf("the requests are %+v", r.asked)
			}
		})
	}
}

func TestAnEarlyPodGetsEverythingAtCreation(t *testing.T) {
	policy := build.OverridePolicy("o", build.Registry("hz", "hz.io"), build.Overrides("hz", gm.Overriders{
		CommandOverrider: []gm.CommandArgsOverrider{{ContainerName: "c", Operator: gm.OverriderOpReplace, Value: []string{"/hz"}}},
		ArgsOverrider:    []gm.CommandArgsOverrider{{ContainerName: "c", Operator: gm.OverriderOpAdd, Value: []string{"--hz"}}},
		Plaintext: []gm.PlaintextOverrider{{
			Operator: gm.OverriderOpAdd, Path: "/spec/containers/0/env", Value: &apiextensionsv1.JSON{Raw: []byte(`[{"name":"AT","value":"hz"}]`)},
		}},
	}), build.Args("bj", "c", "--bj"))
	w, _ := newWebhook(t, ground(build.Bound("p", "o"), toHz, policy)...)
	disk := corev1.NodeSelectorRequirement{Key: "disk", Operator: corev1.NodeSelectorOpExists}
	demand := func(r ...corev1.NodeSelectorRequirement) build.Option {
		return build.With(func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: r}},
			}}}
		})
	}
	got := admit(t, w, webPod(build.InitContainer("setup", "setup:2"), demand(disk), build.With(func(p *corev1.Pod) {
		p.Spec.Containers[0].Args = []string{"-v"}
	})), false)
	token := got.Annotations[gm.SeatAnnotation]
	if token == "" {
		t.Error("the pod carries no token")
	}
	want := webPod(
		build.InitContainer("setup", "hz.io/setup:2"), build.Bound("p", "o"), build.Label(gm.NodeGroupLabel, "hz"),
		build.Annotation(gm.SeatAnnotation, token), build.Annotation(gm.AdmittedAnnotation, got.Annotations[gm.AdmittedAnnotation]), build.Annotation(gm.OverridesAnnotation, fixed(t, policy, "hz")),
		build.Annotation(gm.CreatedForAnnotation, "web-1"),
		build.Annotation(corev1.PodDeletionCost, "999999999"), build.Annotation(gm.DeletionCostAnnotation, "999999999"),
		build.Annotation(gm.OriginalImagesAnnotation, `{"c":"nginx:1","setup":"setup:2"}`),
		demand(disk, corev1.NodeSelectorRequirement{Key: gm.NodeGroupLabel, Operator: corev1.NodeSelectorOpIn, Values: []string{"hz"}}),
		build.With(func(p *corev1.Pod) {
			p.Spec.Containers[0] = corev1.Container{
				Name: "c", Image: "hz.io/nginx:1", Command: []string{"/hz"}, Args: []string{"-v", "--hz"}, Env: []corev1.EnvVar{{Name: "AT", Value: "hz"}},
			}
		}))
	want.Namespace, want.UID = "", ""
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("wrong pod (-want +got):\n%s", diff)
	}
	if n := reserved(w); n != 1 {
		t.Errorf("%d seats are held for one pod", n)
	}
}

func TestAssign(t *testing.T) {
	// the outcomes for the pod
	type pod struct {
		Gated, Token, Pinned bool
		Group                string
		Fixed                bool // carries the hash of args
		Args                 []string
		Image                string
		Originals            string
		Unassigned           string
	}
	asItWas := pod{Image: "nginx:1"}
	gated := pod{Gated: true, Image: "nginx:1"}
	early := pod{
		Token: true, Pinned: true, Group: "hz", Fixed: true, Args: []string{"--hz"}, Image: "hz.io/nginx:1", Originals: `{"c":"nginx:1"}`,
	}
	seated := pod{Token: true, Pinned: true, Group: "hz", Image: "nginx:1"}
	images1 := pod{Token: true, Pinned: true, Group: "hz", Image: "hz.io/nginx:1", Originals: `{"c":"nginx:1"}`}
	both, ignore := build.Bound("p", "o"), build.Annotation(gm.MissingPolicyAnnotation, gm.MissingPolicyIgnore)
	when := func(a gm.Assignment) build.Object {
		return build.PropagationPolicy("p", build.Weight(1, "hz"), build.Assigns(a))
	}
	requires := func(o build.Object) {
		build.Requires("p", "o")(o)
		ignore(o)
	}
	forged := webPod(build.Seated("bj"), build.Annotation(gm.OverridesAnnotation, "x"),
		build.Annotation(gm.OriginalImagesAnnotation, `{"c":"evil:1"}`), build.Annotation(gm.UnassignedAnnotation, "o/1 no"))
	tests := map[string]struct {
		objects    []build.Object
		pod        *corev1.Pod // nil is webPod()
		leaderless bool
		want       pod
		seats      int
	}{
		"a rule changes an immutable field": {
			objects: ground(both, toHz, args), want: early, seats: 1,
		},
		"and the policies are not bound yet: the pod has its seat and waits at the gate": {
			objects: ground(build.Requires("p", "o"), toHz, args), want: func() pod { p := early; p.Gated = true; return p }(), seats: 1,
		},
		"rules change images only": {
			objects: ground(both, toHz, images), want: images1, seats: 1,
		},
		"a workload with a PropagationPolicy only": {
			objects: ground(build.Bound("p", ""), toHz), want: seated, seats: 1,
		},
		"assignment is Late: the extender assigns the seat": {
			objects: ground(build.Bound("p", ""), when(gm.AssignmentLate)), want: asItWas,
		},
		"a workload with an OverridePolicy of images only": {
			objects: ground(build.Bound("", "o"), images), want: asItWas,
		},
		"assignment is Early and rules change images only": {
			objects: ground(both, when(gm.AssignmentEarly), images), seats: 1, want: images1,
		},
		"assignment is Early and images do not change": {
			objects: ground(both, when(gm.AssignmentEarly), build.OverridePolicy("o", build.Registry("bj", "bj.io"))), seats: 1,
			want: seated,
		},
		"assignment is Early without an OverridePolicy": {
			objects: ground(build.Bound("p", ""), when(gm.AssignmentEarly)), seats: 1,
			want: seated,
		},
		"assignment is Late and rules change images only": {
			objects: ground(both, when(gm.AssignmentLate), images), want: asItWas,
		},
		"assignment is Late and a rule could not be applied": {
			objects: ground(both, when(gm.AssignmentLate), args), want: gated,
		},
		"the group is unknown at creation": {
			objects: ground(build.Bound("", "o"), args), want: gated,
		},
		"no replica leads": {
			objects: ground(both, toHz, args), leaderless: true, want: gated,
		},
		"no replica leads, and no seat is needed": {
			objects: ground(both, when(gm.AssignmentLate), images), leaderless: true, want: asItWas,
		},
		"no seat is open": {
			objects: ground(both, atMost(0), args), want: gated,
		},
		"no group of the policy has a node": {
			objects: ground(both, build.PropagationPolicy("p", build.Weight(1, "bj")), args), want: gated,
		},
		"a rule cannot be applied": {
			objects: ground(both, toHz, build.OverridePolicy("o", build.Args("hz", "gone", "--hz"))), seats: 1, // lapses
			want: pod{Gated: true, Image: "nginx:1", Unassigned: `o/1 spec.overrideRules[0].overriders.argsOverrider[0]: no container or init container "gone"`},
		},
		"a rule of another group cannot be applied": {
			objects: ground(both, toHz, build.OverridePolicy("o", build.Args("bj", "gone", "--bj"))), seats: 1,
			want: seated,
		},
		"an OverridePolicy that cannot be used": {
			objects: ground(both, toHz, build.OverridePolicy("o", build.Registry("hz", "no registry"))), want: gated,
		},
		"an OverridePolicy that this replica has not read yet": {
			objects: ground(both, toHz), want: gated,
		},
		"the extender overrides a pod that is Late": {
			objects: ground(both, when(gm.AssignmentLate)), want: asItWas,
		},
		"a missing OverridePolicy that is ignored": {
			objects: ground(requires, toHz), want: seated, seats: 1,
		},
		"a deleted PropagationPolicy": {
			objects: ground(both, args), want: gated,
		},
		"a deleted PropagationPolicy of a workload without an OverridePolicy: the extender refuses all nodes": {
			objects: ground(build.Bound("p", "")), want: asItWas,
		},
		"a missing PropagationPolicy that is ignored": {
			objects: ground(requires, args), want: asItWas,
		},
		"a template with annotations that only atoll-manager may write": {
			objects: ground(both, toHz, args), pod: forged, want: early, seats: 1,
		},
		"the same for a pod that needs no seat": {
			objects: ground(both, when(gm.AssignmentLate), images), pod: forged, want: asItWas,
		},
		"the pod of a DaemonSet has a node already": {
			objects: ground(both, args), pod: daemon("node-hz"),
			want: pod{Token: true, Fixed: true, Args: []string{"--hz"}, Image: "hz.io/nginx:1", Originals: `{"c":"nginx:1"}`},
		},
		"the pod of a DaemonSet, and rules change images only": {
			objects: ground(both, images), pod: daemon("node-hz"), want: asItWas,
		},
		"the pod of a DaemonSet on a node of no group": {
			objects: ground(both, args), pod: daemon("node-out"), want: asItWas,
		},
		"the pod of a DaemonSet, and no replica leads": {
			objects: ground(both, args), pod: daemon("node-hz"), leaderless: true, want: gated,
		},
		"a pod of a DaemonSet that names no node": {
			objects: ground(both, args), pod: build.Pod("", build.OwnedBy(daemons), build.Container("c", "nginx:1")), want: asItWas,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w, _ := newWebhook(t, tc.objects...)
			w.Assigner.(*assign.Assigner).Leading = func() bool { return !tc.leaderless }
			if tc.pod == nil {
				tc.pod = webPod()
			}
			after := admit(t, w, tc.pod, false)
			got := pod{
				Gated: len(gates(after)) > 0, Token: after.Annotations[gm.SeatAnnotation] != "", Group: after.Labels[gm.NodeGroupLabel],
				Pinned: strings.Contains(after.Spec.Affinity.String(), gm.NodeGroupLabel),
				Fixed:  after.Annotations[gm.OverridesAnnotation] == fixed(t, args, "hz"),
				Args:   after.Spec.Containers[0].Args, Image: after.Spec.Containers[0].Image,
				Originals: after.Annotations[gm.OriginalImagesAnnotation], Unassigned: after.Annotations[gm.UnassignedAnnotation],
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("wrong pod (-want +got):\n%s", diff)
			}
			if n := reserved(w); n != tc.seats {
				t.Errorf("%d seats are held, want %d", n, tc.seats)
			}
			if diff := cmp.Diff(after, admit(t, w, after, false), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("admitted again, the pod changes:\n%s", diff)
			}
			if n := reserved(w); tc.want.Token && n != tc.seats {
				t.Errorf("admitted again, %d seats are held, want %d", n, tc.seats)
			}
		})
	}
}

func TestAPodToWhichARuleCannotBeAppliedDoesNotChange(t *testing.T) {
	// The first rule could be applied, the second cannot.
	policy := build.OverridePolicy("o", build.Registry("hz", "hz.io"), build.Args("hz", "c", "--hz"), build.Args("hz", "gone", "--hz"))
	w, _ := newWebhook(t, ground(build.Bound("p", "o"), toHz, policy)...)
	got := admit(t, w, webPod(), false)
	why := got.Annotations[gm.UnassignedAnnotation]
	if !strings.HasPrefix(why, "o/1 spec.overrideRules[2]") {
		t.Errorf("the annotation is %q: it must name the policy's version and the rule", why)
	}
	want := webPod(build.Bound("p", "o"), build.Gated(), admitted, build.Annotation(gm.UnassignedAnnotation, why))
	want.Namespace, want.UID = "", ""
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("wrong pod (-want +got):\n%s", diff)
	}
}

// TestLabelsThatOwnersSelectByStay: a rule that changes such a label is not applied, and
// the pod waits at the gate without overrides. If the selector of the owner is unknown,
// no label of the template may change.
func TestLabelsThatOwnersSelectByStay(t *testing.T) {
	label := func(operator gm.OverriderOperator, key string) *gm.OverridePolicy {
		overrider := gm.PlaintextOverrider{Operator: operator, Path: "/metadata/labels/" + key}
		if operator != gm.OverriderOpRemove {
			overrider.Value = &apiextensionsv1.JSON{Raw: []byte(`"y"`)}
		}
		return build.OverridePolicy("o", build.Overrides("hz", gm.Overriders{Plaintext: []gm.PlaintextOverrider{overrider}}))
	}
	tests := map[string]struct {
		selector build.Option
		policy   *gm.OverridePolicy
		gated    bool
		says     string
	}{
		"a label that is not selected":                      {build.SelectsBy("app"), label("replace", "tier"), false, ""},
		"a new label":                                       {build.SelectsBy("app"), label("add", "zone"), false, ""},
		"the selected label":                                {build.SelectsBy("app"), label("replace", "app"), true, ""},
		"the selected label, removed":                       {build.SelectsBy("app"), label("remove", "app"), true, ""},
		"a label of the template, with an unknown selector": {func(build.Object) {}, label("replace", "tier"), true, "spec.overrideRules[0].overriders.plaintext[0]: must not change the label tier of the template"},
		"a new label, with an unknown selector":             {func(build.Object) {}, label("add", "zone"), false, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			objects := ground(build.Bound("p", "o"), toHz, tc.policy)
			objects[1] = build.ReplicaSet("web-1", build.OwnedBy(build.Deployment("web")), tc.selector)
			w, _ := newWebhook(t, objects...)
			got := admit(t, w, webPod(build.Label("app", "x"), build.Label("tier", "x")), false)
			if gated := len(got.Spec.SchedulingGates) > 0; gated != tc.gated {
				t.Errorf("gated: %v, want %v", gated, tc.gated)
			}
			if tc.gated && (got.Labels["app"] != "x" || got.Labels["tier"] != "x" || got.Annotations[gm.OverridesAnnotation] != "") {
				t.Errorf("the pod is changed: %v %v", got.Labels, got.Annotations)
			}
			if !strings.Contains(got.Annotations[gm.UnassignedAnnotation], tc.says) {
				t.Errorf("the annotation is %q, want %q", got.Annotations[gm.UnassignedAnnotation], tc.says)
			}
		})
	}
}

func TestADryRunTakesNoSeat(t *testing.T) {
	w, _ := newWebhook(t, ground(build.Bound("p", "o"), atMost(1), args)...)
	for range 2 {
		dry := admit(t, w, webPod(), true)
		if dry.Labels[gm.NodeGroupLabel] != "hz" {
			t.Fatal("a dry run gets another answer than the real request")
		}
		if diff := cmp.Diff(dry, admit(t, w, dry, true)); diff != "" {
			t.Errorf("admitted again, the pod changes:\n%s", diff)
		}
	}
	if got := admit(t, w, webPod(), false); len(gates(got)) > 0 {
		t.Error("the one seat was taken by a dry run")
	}
	if got := admit(t, w, webPod(), false); len(gates(got)) == 0 {
		t.Error("the one seat was assigned twice")
	}
}

// TestPodsBeyondTheRangesWaitAtTheGate: pods get their seat while they are scheduled. No
// more pods are admitted than there are seats.
func TestPodsBeyondTheRangesWaitAtTheGate(t *testing.T) {
	policy := atMost(2)
	build.Assigns(gm.AssignmentLate)(policy)
	w, _ := newWebhook(t, ground(build.Bound("p", "o"), policy, build.OverridePolicy("o", build.Registry("hz", "hz.io")))...)
	for i, want := range []bool{false, false, true} {
		for _, dry := range []bool{true, false} {
			got := admit(t, w, webPod(), dry)
			if held := len(gates(got)) > 0; held != want {
				t.Errorf("pod %d, dry run %t: at the gate %t, want %t", i, dry, held, want)
			}
			if (got.Annotations[gm.AdmissionAnnotation] == "") != want || got.Labels[gm.NodeGroupLabel] != "" || got.Annotations[gm.SeatAnnotation] != "" {
				t.Errorf("pod %d is stamped %v", i, got.Annotations)
			}
			if diff := cmp.Diff(got, admit(t, w, got, dry), cmpopts.EquateEmpty()); !dry && diff != "" {
				t.Errorf("admitted again, pod %d changes:\n%s", i, diff)
			}
		}
	}
	w.Assigner.(*assign.Assigner).Leading = func() bool { return false }
	if got := admit(t, w, webPod(), false); len(gates(got)) > 0 {
		t.Error("without a leader the pod waits at the gate: the extender has to decide later")
	}
}

// TestPodsOfAnOwnerThatWaitsAreCreatedWithTheirGroup although their policy is Late: the
// extender has refused all nodes for another pod of the owner.
func TestPodsOfAnOwnerThatWaitsAreCreatedWithTheirGroup(t *testing.T) {
	refused := func(owner build.Object) *corev1.Pod {
		return build.Pod("waits", build.OwnedBy(owner), build.With(func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "1 " + seats.TextOtherGroup + ".",
			}}
		}))
	}
	late := build.PropagationPolicy("p", build.Weight(1, "hz"), build.Assigns(gm.AssignmentLate))
	job := build.Job("batch", build.Bound("p", ""))
	claim := build.With(func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	})
	range5 := atMost(5)
	build.Assigns(gm.AssignmentLate)(range5)
	nowhere := build.PropagationPolicy("p", build.Weight(1, "nowhere"), build.Assigns(gm.AssignmentLate))
	tests := map[string]struct {
		policy build.Object
		waits  *corev1.Pod
		pod    *corev1.Pod
		pinned bool
		gated  bool
	}{
		"no other pod waits":                        {late, nil, webPod(), false, false},
		"another pod waits":                         {late, refused(replicaSet), webPod(), true, false},
		"a range":                                   {range5, refused(replicaSet), webPod(), true, false},
		"a pod of a Job is never recreated":         {late, refused(job), build.Pod("", build.OwnedBy(job), build.Container("c", "nginx:1")), false, false},
		"a pod whose volumes may be elsewhere":      {late, refused(replicaSet), webPod(claim), false, false},
		"no group has a node: it waits at the gate": {nowhere, refused(replicaSet), webPod(), false, true},
	}
	t.Run("their OverridePolicy is not there", func(t *testing.T) {
		w, _ := newWebhook(t, ground(build.Bound("p", "o"), late)...)
		w.Assigner.(*assign.Assigner).Ledger.Observe(seats.Slim(refused(replicaSet)))
		if got := admit(t, w, webPod(), false); got.Annotations[gm.SeatAnnotation] != "" || got.Spec.Affinity != nil {
			t.Errorf("the pod is pinned without its overrides: %v", got.Annotations)
		}
	})
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w, _ := newWebhook(t, ground(build.Bound("p", ""), tc.policy, job)...)
			if tc.waits != nil {
				w.Assigner.(*assign.Assigner).Ledger.Observe(seats.Slim(tc.waits))
			}
			got := admit(t, w, tc.pod, false)
			pinned := got.Annotations[gm.SeatAnnotation] != "" && got.Labels[gm.NodeGroupLabel] == "hz" && got.Spec.Affinity != nil
			if pinned != tc.pinned {
				t.Errorf("pinned: %t, want %t", pinned, tc.pinned)
			}
			if gated := len(got.Spec.SchedulingGates) > 0; gated != tc.gated {
				t.Errorf("gated: %t, want %t", gated, tc.gated)
			}
		})
	}
}

// hangingAssigner is an assigner whose leader does not answer in time.
type hangingAssigner struct{ t *testing.T }

func (d hangingAssigner) Assign(ctx context.Context, _ assign.Request) (assign.Answer, error) {
	if deadline, bounded := ctx.Deadline(); !bounded || time.Until(deadline) > admitTimeout {
		d.t.Errorf("the deadline of the request is %s, bounded: %t", deadline, bounded)
	}
	return assign.Answer{}, context.DeadlineExceeded
}

// TestAPodWhoseLeaderHangsWaitsAtTheGate: created without the gate, it would never get
// what it needs at creation.
func TestAPodWhoseLeaderHangsWaitsAtTheGate(t *testing.T) {
	if admitTimeout >= 2*time.Second {
		t.Errorf("an admission takes up to %s, and the API server waits for 2s", admitTimeout)
	}
	w, _ := newWebhook(t, ground(build.Bound("p", "o"), toHz, args)...)
	w.Assigner = hangingAssigner{t}
	got := admit(t, w, webPod(), false)
	if diff := cmp.Diff([]string{gm.PolicyGate}, gates(got)); diff != "" {
		t.Errorf("wrong gates (-want +got):\n%s", diff)
	}
}

// TestPodsGetTheirDeletionCostAtCreation: pods get the deletion cost of their seat at creation, so
// that a ReplicaSet that is scaled in a moment later deletes the pods that are surplus according
// to the policy.
func TestPodsGetTheirDeletionCostAtCreation(t *testing.T) {
	w := newPinnedWebhook(t, build.Deployment("web", build.Bound("p", "")), replicaSet, build.PropagationPolicy("p", build.Weight(1, "hz")), build.Node("node-hz", build.InGroup("hz")))
	costs := map[string]bool{}
	for range 2 {
		got := admit(t, w, webPod(), false)
		cost := got.Annotations[corev1.PodDeletionCost]
		if cost == "" || got.Annotations[gm.DeletionCostAnnotation] != cost || costs[cost] {
			t.Errorf("the pod costs %q, and the ones before %v", cost, costs)
		}
		costs[cost] = true
	}
	own := admit(t, w, webPod(build.Annotation(corev1.PodDeletionCost, "7"), build.Annotation(gm.DeletionCostAnnotation, "7")), false)
	if own.Annotations[corev1.PodDeletionCost] != "7" || own.Annotations[gm.DeletionCostAnnotation] != "" {
		t.Errorf("a user's cost became %v", own.Annotations)
	}
}
