package workload

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clienttesting "k8s.io/client-go/testing"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// judge answers trials as the API server would: it refuses two volumes of one name. If set,
// broken is the answer to every trial, unable that to every trial of a pod, quota that to
// valid PodTemplates, and admission that to valid pods.
type judge struct {
	t *testing.T
	// asked has the names of the volumes in each trial, after "template " for a PodTemplate.
	asked                 []string
	broken, unable, quota error
	admission             func(*corev1.Pod) error
}

// noPermission is what the API server answers to those who may not create pods.
var noPermission = apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "",
	errors.New(`User "system:serviceaccount:atoll-system:atoll-manager" cannot create resource "pods" in API group "" in the namespace "default"`))

func newJudge(s *site) *judge {
	j := &judge{t: s.t}
	s.World.Pods.PrependReactor("create", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create, ok := action.(clienttesting.CreateActionImpl)
		if !ok || action.GetSubresource() != "" {
			return false, nil, nil
		}
		if diff := cmp.Diff([]string{metav1.DryRunAll}, create.CreateOptions.DryRun); diff != "" {
			j.t.Errorf("a trial is stored (-want +got):\n%s", diff)
		}
		switch o := create.GetObject().(type) {
		case *corev1.PodTemplate:
			if err := j.answer("template ", "PodTemplate", &o.Template.Spec, field.NewPath("template", "spec")); err != nil {
				return true, nil, err
			}
			return true, o, j.quota
		case *corev1.Pod:
			if j.unable != nil {
				return true, nil, j.unable
			}
			err := j.answer("", "Pod", &o.Spec, field.NewPath("spec"))
			if err == nil && j.admission != nil {
				err = j.admission(o)
			}
			return true, o, err
		}
		return false, nil, nil
	})
	return j
}

func (j *judge) answer(prefix, kind string, spec *corev1.PodSpec, path *field.Path) error {
	var names []string
	for _, volume := range spec.Volumes {
		names = append(names, volume.Name)
	}
	j.asked = append(j.asked, prefix+strings.Join(names, ","))
	if j.broken != nil {
		return j.broken
	}
	for i := range names {
		for k := range names[:i] {
			if names[i] == names[k] {
				return apierrors.NewInvalid(schema.GroupKind{Kind: kind}, trialName, field.ErrorList{
					field.Duplicate(path.Child("volumes").Index(i).Child("name"), names[i]),
				})
			}
		}
	}
	return nil
}

// takeAsked returns the trials since the last call.
func (j *judge) takeAsked() []string {
	asked := j.asked
	j.asked = nil
	return asked
}

// addVolume returns a rule that adds a volume in a group; "" is every group.
func addVolume(group, name string) build.Option {
	return build.With(func(p *gm.OverridePolicy) {
		rule := gm.RuleWithNodeGroup{Overriders: &gm.Overriders{Plaintext: []gm.PlaintextOverrider{{
			Path: "/spec/volumes/-", Operator: gm.OverriderOpAdd, Value: &apiextensionsv1.JSON{Raw: []byte(fmt.Sprintf(`{"name":%q,"emptyDir":{}}`, name))},
		}}}}
		if group != "" {
			rule.TargetNodeGroup = []string{group}
		}
		p.Spec.OverrideRules = append(p.Spec.OverrideRules, rule)
	})
}

func hasVolumes(names ...string) func(*corev1.PodTemplateSpec) {
	return func(t *corev1.PodTemplateSpec) {
		for _, name := range names {
			t.Spec.Volumes = append(t.Spec.Volumes, corev1.Volume{Name: name})
		}
	}
}

func withTemplate(change func(*corev1.PodTemplateSpec)) build.Option {
	return build.With(func(d *appsv1.Deployment) { change(&d.Spec.Template) })
}

var (
	twoGroups = build.PropagationPolicy("p", build.Weight(1, "hz", "bj"))
	both      = build.Requires("p", "o")
)

// TestARefusedOverrideIsNotBound: if the API server refuses the overridden pod, the policy is
// not bound to the workload. The trial holds the rule and the message of the API server.
func TestARefusedOverrideIsNotBound(t *testing.T) {
	volumes := withTemplate(hasVolumes("data"))
	tests := map[string]struct {
		workload build.Object
		policies []build.Object
		bound    bool
		asked    []string
		refused  string
	}{
		"an accepted policy is bound": {
			build.Deployment("web", both, volumes), []build.Object{twoGroups, build.OverridePolicy("o", addVolume("hz", "more"))},
			true, []string{"data,more"}, "",
		},
		"groups with the same changes are tried once": {
			build.Deployment("web", both, volumes), []build.Object{twoGroups, build.OverridePolicy("o", addVolume("", "more"))},
			true, []string{"data,more"}, "",
		},
		"a volume with a name that exists": {
			build.Deployment("web", both, volumes), []build.Object{twoGroups, build.OverridePolicy("o", addVolume("hz", "data"))},
			false, []string{"data,data", "data"},
			`spec.overrideRules[0].overriders: the API server refuses the pod with its changes in NodeGroup "hz": spec.volumes[1].name: Duplicate value: "data"`,
		},
		"the first rule that causes the refusal is named": {
			build.Deployment("web", both, volumes),
			[]build.Object{twoGroups, build.OverridePolicy("o", addVolume("", "a"), addVolume("elsewhere", "data"), addVolume("bj", "data"), addVolume("", "b"))},
			false, []string{"data,a,data,b", "data", "data,a", "data,a,data"},
			`spec.overrideRules[2].overriders: the API server refuses the pod with its changes in NodeGroup "bj": spec.volumes[2].name: Duplicate value: "data"`,
		},
		"a group without pods of the workload is not tried": {
			build.Deployment("web", both, volumes), []build.Object{twoGroups, build.OverridePolicy("o", addVolume("elsewhere", "data"))},
			true, nil, "",
		},
		"images alone are tried: an image policy may refuse them": {
			build.Deployment("web", both, volumes), []build.Object{twoGroups, override}, true, []string{"data"}, "",
		},
		"a rule that cannot be applied to the template is shown by the pods": {
			build.Deployment("web", both), []build.Object{twoGroups, build.OverridePolicy("o", addVolume("hz", "a"))}, true, nil, "",
		},
		"the pods of a DaemonSet may be in any group": {
			build.DaemonSet("web", build.Requires("", "o"), build.With(func(d *appsv1.DaemonSet) { hasVolumes("data")(&d.Spec.Template) })),
			[]build.Object{build.OverridePolicy("o", addVolume("hz", "a"), addVolume("", "data"))},
			false, []string{"data,a,data", "data", "data,a"},
			`spec.overrideRules[1].overriders: the API server refuses the pod with its changes in NodeGroup "hz": spec.volumes[2].name: Duplicate value: "data"`,
		},
		"the pods of a DaemonSet may be in a group that no rule names": {
			build.DaemonSet("web", build.Requires("", "o"), build.With(func(d *appsv1.DaemonSet) { hasVolumes("data")(&d.Spec.Template) })),
			[]build.Object{build.OverridePolicy("o", addVolume("", "data"))},
			false, []string{"data,data", "data"},
			`spec.overrideRules[0].overriders: the API server refuses the pod with its changes in NodeGroups that no rule names: spec.volumes[1].name: Duplicate value: "data"`,
		},
		"a Job made by a CronJob": {
			build.Job("web", both, build.With(func(j *batchv1.Job) { hasVolumes("data")(&j.Spec.Template) })),
			[]build.Object{twoGroups, build.OverridePolicy("o", addVolume("hz", "data"))},
			false, []string{"data,data", "data"},
			`spec.overrideRules[0].overriders: the API server refuses the pod with its changes in NodeGroup "hz": spec.volumes[1].name: Duplicate value: "data"`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, append(tc.policies, tc.workload)...)
			j := newJudge(s)
			s.tried("web")
			want := map[bool]string{true: "o"}[tc.bound]
			labels := strings.Join(s.labelled, "")
			if got := strings.Contains(labels, `"groupmanagement.kubeedge.io/binding-overridepolicy":"o"`); got != tc.bound {
				t.Errorf("binding is %q, want %q: written was %s", labels, want, labels)
			}
			// The groups that are told apart come in any order of their hashes.
			if diff := cmp.Diff(tc.asked, j.takeAsked()); diff != "" {
				t.Errorf("wrong trials (-want +got):\n%s", diff)
			}
			trial, _ := s.World.Policies.Trial("web")
			switch {
			case tc.refused == "" && trial.Refused != nil:
				t.Errorf("refused: %v", trial.Refused)
			case tc.refused != "" && (trial.Refused == nil || trial.Refused.Error() != tc.refused):
				t.Errorf("refused is\n%v, want\n%s", trial.Refused, tc.refused)
			}
			if again := s.tried("web"); again != (map[bool]time.Duration{true: retryRefused})[tc.refused != ""] {
				t.Errorf("tried again after %s", again)
			}
			if asked := j.takeAsked(); asked != nil {
				t.Errorf("tried again without a change: %s", asked)
			}
		})
	}
}

// tried runs one pass for a workload, which must not fail, and returns when the next one is.
func (s *site) tried(uid types.UID) time.Duration {
	s.t.Helper()
	s.labelled, s.woken = nil, nil
	result, err := s.Reconcile(s.t.Context(), request{uid})
	if err != nil {
		s.t.Fatal(err)
	}
	return result.RequeueAfter
}

// generation sets the generation of the Deployment in the walker and the API server.
func (s *site) generation(n int64, change func(*appsv1.Deployment)) {
	s.t.Helper()
	d := s.deployment("web")
	d.Generation = n
	change(d)
	if err := s.World.Client.Update(s.t.Context(), d); err != nil {
		s.t.Fatal(err)
	}
	s.see("web")
}

// TestAnOverrideIsTriedAgainWhenSomethingChanges: template, policy or groups, but not the
// number of replicas.
func TestAnOverrideIsTriedAgainWhenSomethingChanges(t *testing.T) {
	s := newSite(t, build.Deployment("web", both, withTemplate(hasVolumes("data"))), twoGroups.DeepCopy(),
		build.OverridePolicy("o", addVolume("hz", "more"), addVolume("sh", "data")))
	j := newJudge(s)
	s.reconcile("web")
	s.see("web")
	expect := func(what string, bound bool, asked ...string) {
		t.Helper()
		s.tried("web")
		s.see("web")
		if diff := cmp.Diff(asked, j.takeAsked()); diff != "" {
			t.Errorf("%s: wrong trials (-want +got):\n%s", what, diff)
		}
		if got := ownership.PoliciesOf(s.deployment("web").Labels).BindingOverride == "o"; got != bound {
			t.Errorf("%s: bound is %v, want %v", what, got, bound)
		}
	}
	j.takeAsked()
	s.generation(2, func(d *appsv1.Deployment) { *d.Spec.Replicas = 9 })
	expect("scaled", true)
	s.generation(3, func(d *appsv1.Deployment) { hasVolumes("more")(&d.Spec.Template) })
	expect("the template has the volume itself", false, "data,more,more", "data,more")
	s.generation(4, func(d *appsv1.Deployment) { *d.Spec.Replicas = 3 })
	expect("scaled while refused", false)
	s.generation(5, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Volumes = d.Spec.Template.Spec.Volumes[:1] })
	expect("the template is mended", true, "data,more")
	var placed gm.PropagationPolicy
	if err := s.World.Client.Get(t.Context(), named("p"), &placed); err != nil {
		t.Fatal(err)
	}
	build.Weight(1, "sh")(&placed)
	placed.Generation = 2
	if err := s.World.Client.Update(t.Context(), &placed); err != nil {
		t.Fatal(err)
	}
	expect("a group more", false, "data,more", "data,data", "data")
	var policy gm.OverridePolicy
	if err := s.World.Client.Get(t.Context(), named("o"), &policy); err != nil {
		t.Fatal(err)
	}
	policy.Spec.OverrideRules, policy.Generation = policy.Spec.OverrideRules[:1], 2
	if err := s.World.Client.Update(t.Context(), &policy); err != nil {
		t.Fatal(err)
	}
	expect("the policy is mended", true, "data,more")
}

// TestATrialThatCannotBeMadeUnbindsNothing: it is repeated after longer and longer waits, and
// holds the error.
func TestATrialThatCannotBeMadeUnbindsNothing(t *testing.T) {
	for name, broken := range map[string]error{
		"a timeout":     apierrors.NewTimeoutError("slow", 1),
		"an error":      apierrors.NewInternalError(errors.New("etcd is away")),
		"no permission": apierrors.NewForbidden(schema.GroupResource{Resource: "podtemplates"}, trialName, errors.New("who are you")),
		"a webhook":     apierrors.NewBadRequest("admission webhook does not support dry run"),
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, build.Deployment("web", build.Bound("p", "o"), withTemplate(hasVolumes("data"))), twoGroups, build.OverridePolicy("o", addVolume("hz", "data")))
			j := newJudge(s)
			j.broken = broken
			for _, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
				result, err := s.Reconcile(t.Context(), request{"web"})
				if err != nil || result.RequeueAfter != want {
					t.Errorf("runs again after %s, want %s; error %v", result.RequeueAfter, want, err)
				}
				s.Reconciler.Clock = s.World.Clock
				s.World.Clock.Step(want)
			}
			trial, _ := s.World.Policies.Trial("web")
			if len(s.labelled) > 0 || trial.Untried == nil || !strings.Contains(trial.Untried.Error(), broken.Error()) {
				t.Errorf("written: %s, untried because %v", s.labelled, trial.Untried)
			}
			j.broken = nil
			s.tried("web")
			if trial, _ := s.World.Policies.Trial("web"); trial.Refused == nil || trial.Untried != nil {
				t.Errorf("after an answer the trial is %+v", trial)
			}
		})
	}
}

// TestATrialThatCannotBeMadeBindsNothing: the previous leader may have found that the API
// server refuses the pods.
func TestATrialThatCannotBeMadeBindsNothing(t *testing.T) {
	s := newSite(t, append(web(both, withTemplate(hasVolumes("data"))), twoGroups, node, build.OverridePolicy("o", addVolume("hz", "more")))...)
	s.World.Add(t, gated("a", time.Hour))
	j := newJudge(s)
	j.broken = apierrors.NewTimeoutError("slow", 1)
	for _, want := range []time.Duration{time.Second, 2 * time.Second} {
		result, err := s.Reconcile(t.Context(), request{"web"})
		if err != nil || result.RequeueAfter != want {
			t.Errorf("runs again after %s, want %s; error %v", result.RequeueAfter, want, err)
		}
		s.see("web")
		if is := ownership.PoliciesOf(s.deployment("web").Labels); is.BindingOverride != "" || is.BindingPropagation != "p" {
			t.Errorf("it is bound to %+v", is)
		}
		s.World.Clock.Step(want)
	}
	if len(s.Evicted)+len(s.woken) > 0 {
		t.Errorf("pods leave the gate: %s, %s", s.Evicted, s.woken)
	}
	j.broken = nil
	s.reconcile("web")
	if is := ownership.PoliciesOf(s.deployment("web").Labels); is.BindingOverride != "o" || len(s.Evicted) != 1 {
		t.Errorf("after an answer it is bound to %+v, and evicted are %s", is, s.Evicted)
	}
}

// TestATemplateThatIsRefusedItselfUnbindsNothing: the policy is not the cause.
func TestATemplateThatIsRefusedItselfUnbindsNothing(t *testing.T) {
	s := newSite(t, build.Deployment("web", build.Bound("p", "o"), withTemplate(hasVolumes("data", "data"))), twoGroups, build.OverridePolicy("o", addVolume("hz", "more")))
	newJudge(s)
	if _, err := s.Reconcile(t.Context(), request{"web"}); err != nil {
		t.Fatal(err)
	}
	trial, _ := s.World.Policies.Trial("web")
	if len(s.labelled) > 0 || !errors.Is(trial.Untried, errBase) || trial.Refused != nil {
		t.Errorf("written: %s, trial %+v", s.labelled, trial)
	}
}

// TestAQuotaHidesNoRefusal: valid templates exceed a quota of PodTemplates; the API server
// refuses invalid ones before it checks the quota.
func TestAQuotaHidesNoRefusal(t *testing.T) {
	s := newSite(t, build.Deployment("web", build.Bound("p", "o"), withTemplate(hasVolumes("data"))), twoGroups, build.OverridePolicy("o", addVolume("hz", "data")))
	j := newJudge(s)
	j.unable = noPermission
	j.quota = apierrors.NewForbidden(schema.GroupResource{Resource: "podtemplates"}, "trial", errors.New("exceeded quota"))
	s.tried("web")
	trial, _ := s.World.Policies.Trial("web")
	if trial.Refused == nil || trial.Untried != nil || s.deployment("web").Labels[gm.BindingOverridePolicyLabel] != "" {
		t.Errorf("the trial is %+v, and written was %s", trial, s.labelled)
	}
}

// TestTrialsLeaveWorkersFree: while maxTrying other workers try, the binding of a workload
// does not change, and the request is repeated soon.
func TestTrialsLeaveWorkersFree(t *testing.T) {
	for name, labels := range map[string]build.Option{"bound": build.Bound("p", "o"), "not bound": both} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, build.Deployment("web", labels, withTemplate(hasVolumes("data"))), twoGroups, build.OverridePolicy("o", addVolume("hz", "more")))
			j := newJudge(s)
			for range maxTrying {
				s.slots.take("elsewhere", s.Reconciler.Clock.Now())
			}
			before := s.deployment("web").Labels[gm.BindingOverridePolicyLabel]
			result, err := s.Reconcile(t.Context(), request{"web"})
			if err != nil || result.RequeueAfter != retryTurn || len(j.takeAsked()) > 0 {
				t.Errorf("runs again after %s, error %v", result.RequeueAfter, err)
			}
			if after := s.deployment("web").Labels[gm.BindingOverridePolicyLabel]; after != before {
				t.Errorf("binding was %q and is %q", before, after)
			}
			for range maxTrying {
				s.slots.give()
			}
			if s.reconcile("web"); len(j.takeAsked()) != 1 || s.slots.used != 0 {
				t.Errorf("it is not tried when a worker is free, or keeps its turn")
			}
		})
	}
}
