package workload

import (
	"errors"
	"slices"
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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// forbids is the answer of admission to a trial.
func forbids(why string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, trialName, errors.New(why))
}

// hasMore reports whether the override was applied to the pod.
func hasMore(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "more" })
}

// toOverridden and toPlain are the answers to pods with and without the override; "" accepts.
func admission(toOverridden, toPlain string) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) error {
		why := toPlain
		if hasMore(pod) {
			why = toOverridden
		}
		if why == "" {
			return nil
		}
		return forbids(why)
	}
}

// TestOnlyRefusalsOfTheOverrideUnbindIt: only what the override causes unbinds it.
func TestOnlyRefusalsOfTheOverrideUnbindIt(t *testing.T) {
	const (
		podSecurity = `violates PodSecurity "restricted:latest": privileged`
		full        = "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"
		needs1      = "exceeded quota: q, requested: requests.cpu=1, used: requests.cpu=2, limited: requests.cpu=2"
		needs2      = "exceeded quota: q, requested: requests.cpu=2, used: requests.cpu=2, limited: requests.cpu=2"
	)
	refused := `spec.overrideRules[0].overriders: the API server refuses the pod with its changes in NodeGroup "hz": `
	text := func(why string) string { return refused + `pods "atoll-override-trial" is forbidden: ` + why }
	one, two, three := []string{"data,more"}, []string{"data,more", "data"}, []string{"data,more", "data", "template data,more"}
	tests := map[string]struct {
		admission       func(*corev1.Pod) error
		unable          error
		asked           []string
		refused         string
		doubt, untried  string
		overriddenTwice bool // a pod of the workload was created with the override before
	}{
		"both pods are accepted":                                      {admission: admission("", ""), asked: one},
		"Pod Security refuses the override":                           {admission: admission(podSecurity, ""), asked: two, refused: text(podSecurity)},
		"Pod Security refuses the workload":                           {admission: admission(podSecurity, podSecurity), asked: three, doubt: podSecurity},
		"Pod Security refuses only the plain":                         {admission: admission("", podSecurity), asked: one},
		"for another reason":                                          {admission: admission(podSecurity, "no such service account"), asked: three, doubt: "no such service account"},
		"a full quota":                                                {admission: admission(full, full), asked: three},
		"a full quota, and Pod Security":                              {admission: admission(podSecurity, full), asked: two, refused: text(podSecurity)},
		"the quota has room for the plain":                            {admission: admission(needs2, ""), asked: []string{"data,more", "data", "data,more"}, refused: text(needs2)},
		"the quota is full, and the override needs more":              {admission: admission(needs2, needs1), asked: two, refused: text(needs2)},
		"the quota is full of pods with the override":                 {admission: admission(needs2, needs1), asked: two, overriddenTwice: true},
		"Pod Security refuses the override of pods that run with it":  {admission: admission(podSecurity, ""), asked: two, refused: text(podSecurity), overriddenTwice: true},
		"a quota that is not computed yet":                            {admission: admission("status unknown for quota: q, resources: pods", ""), asked: one, untried: "status unknown for quota"},
		"atoll-manager may not create pods":                           {unable: noPermission, asked: []string{"template data,more"}},
		"a webhook refuses dry runs":                                  {unable: apierrors.NewBadRequest(`admission webhook "w" does not support dry run`), asked: []string{"template data,more"}},
		"a webhook that cannot be called":                             {unable: apierrors.NewInternalError(errors.New(`failed calling webhook "w"`)), untried: "failed calling webhook"},
		"an admission policy that answers Invalid, as by its default": {admission: invalid("no registry but ours"), asked: two, refused: refused + "no registry but ours"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, append(web(build.Bound("p", "o"), withTemplate(hasVolumes("data"))), twoGroups, node, build.OverridePolicy("o", addVolume("hz", "more")))...)
			if tc.overriddenTwice {
				var policy gm.OverridePolicy
				if err := s.World.Client.Get(t.Context(), named("o"), &policy); err != nil {
					t.Fatal(err)
				}
				rules, _ := s.World.Policies.Rules(&policy)
				s.World.Add(t, build.Pod("web-1-a", build.OwnedBy(build.ReplicaSet("web-1")), build.On("node"), build.Annotation(gm.OverridesAnnotation, rules.FixedHash("hz"))))
			}
			j := newJudge(s)
			j.admission, j.unable = tc.admission, tc.unable
			s.tried("web")
			if diff := cmp.Diff(tc.asked, j.takeAsked()); diff != "" {
				t.Errorf("wrong trials (-want +got):\n%s", diff)
			}
			trial, _ := s.World.Policies.Trial("web")
			for what, is := range map[string]struct {
				got  error
				want string
			}{"refused": {trial.Refused, tc.refused}, "doubt": {trial.Doubt, tc.doubt}, "untried": {trial.Untried, tc.untried}} {
				if is.want == "" && is.got != nil || is.want != "" && (is.got == nil || !strings.Contains(is.got.Error(), is.want)) {
					t.Errorf("%s is\n%v, want\n%s", what, is.got, is.want)
				}
			}
			if got, want := len(s.labelled) > 0, tc.refused != ""; got != want {
				t.Errorf("it is unbound: %v, want %v", got, want)
			}
		})
	}
}

// invalid refuses pods with the override as a ValidatingAdmissionPolicy does.
func invalid(why string) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) error {
		if !hasMore(pod) {
			return nil
		}
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: 422, Reason: metav1.StatusReasonInvalid, Message: why, Details: &metav1.StatusDetails{Name: trialName, Kind: "pods"},
		}}
	}
}

// TestSlowTrialContinuesWithTheNextGroup: groups that were accepted are not tried again, so a
// policy with many groups is bound in the end.
func TestSlowTrialContinuesWithTheNextGroup(t *testing.T) {
	s := newSite(t, build.Deployment("web", both, withTemplate(hasVolumes("data"))), twoGroups,
		build.OverridePolicy("o", addVolume("bj", "less"), addVolume("hz", "more")))
	j := newJudge(s)
	j.admission = func(*corev1.Pod) error {
		s.World.Clock.Step(turn)
		return nil
	}
	for _, want := range [][]string{{"data,less"}, {"data,more"}} {
		if again := s.tried("web"); want[0] == "data,less" && again != retryTrial {
			t.Errorf("it goes on after %s, want %s", again, retryTrial)
		}
		if diff := cmp.Diff(want, j.takeAsked()); diff != "" {
			t.Errorf("wrong trials (-want +got):\n%s", diff)
		}
		trial, _ := s.World.Policies.Trial("web")
		if over := errors.Is(trial.Untried, errTurnOver); over != (want[0] == "data,less") {
			t.Errorf("after %s the trial has %v", want, trial.Untried)
		}
		s.World.Clock.Step(retryTrial)
	}
}

// TestKnownRefusalSurvivesAnUnfinishedSearch: a known refusal is kept, even if there is no time to
// find the first rule that causes it.
func TestKnownRefusalSurvivesAnUnfinishedSearch(t *testing.T) {
	for name, slow := range map[string]func(*site, *judge) error{
		"the turn is over": func(s *site, _ *judge) error {
			s.World.Clock.Step(turn)
			return nil
		},
		"the search gets no answer": func(_ *site, j *judge) error {
			if len(j.asked) > 2 {
				return apierrors.NewInternalError(errors.New("too late"))
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, build.Deployment("web", both, withTemplate(hasVolumes("data"))), twoGroups,
				build.OverridePolicy("o", addVolume("hz", "a"), addVolume("hz", "more")))
			j := newJudge(s)
			j.admission = func(pod *corev1.Pod) error {
				if err := slow(s, j); err != nil {
					return err
				}
				return admission("not here", "")(pod)
			}
			s.tried("web")
			trial, _ := s.World.Policies.Trial("web")
			const want = "spec.overrideRules[1].overriders: "
			if trial.Refused == nil || !strings.HasPrefix(trial.Refused.Error(), want) || trial.Untried != nil {
				t.Errorf("refused is %v, untried %v", trial.Refused, trial.Untried)
			}
		})
	}
}

// TestChangingQuotaIsNotBlamedOnTheRules: a pod ends between two trials.
func TestChangingQuotaIsNotBlamedOnTheRules(t *testing.T) {
	s := newSite(t, build.Deployment("web", both, withTemplate(hasVolumes("data"))), twoGroups, build.OverridePolicy("o", addVolume("hz", "more")))
	j := newJudge(s)
	first := true
	j.admission = func(*corev1.Pod) error {
		if first {
			first = false
			return forbids("exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2")
		}
		return nil
	}
	s.tried("web")
	if trial, _ := s.World.Policies.Trial("web"); trial.Refused != nil || trial.Untried != nil {
		t.Errorf("refused is %v, untried %v", trial.Refused, trial.Untried)
	}
}

// TestNotFoundFromAdmissionIsARefusal: the workload is still there.
func TestNotFoundFromAdmissionIsARefusal(t *testing.T) {
	s := newSite(t, build.Deployment("web", both, withTemplate(hasVolumes("data"))), twoGroups, build.OverridePolicy("o", addVolume("hz", "more")))
	j := newJudge(s)
	j.admission = func(pod *corev1.Pod) error {
		if hasMore(pod) {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "images"}, "more")
		}
		return nil
	}
	s.tried("web")
	if trial, _ := s.World.Policies.Trial("web"); trial.Refused == nil || !strings.Contains(trial.Refused.Error(), `images "more" not found`) {
		t.Errorf("refused is %v", trial.Refused)
	}
}

// TestARefusedImageIsNotBound: an image policy refuses new pods for their image alone.
func TestARefusedImageIsNotBound(t *testing.T) {
	s := newSite(t, build.Deployment("web", build.Bound("p", "o"), withTemplate(func(t *corev1.PodTemplateSpec) {
		t.Spec.Containers = []corev1.Container{{Name: "c", Image: "nginx:1"}}
	})), twoGroups, build.OverridePolicy("o", build.Registry("bj", "hz.io"), build.Registry("hz", "foreign.io")))
	j := newJudge(s)
	j.admission = func(pod *corev1.Pod) error {
		if strings.HasPrefix(pod.Spec.Containers[0].Image, "foreign.io/") {
			return forbids("no image may come from foreign.io")
		}
		return nil
	}
	s.tried("web")
	trial, _ := s.World.Policies.Trial("web")
	const want = `spec.overrideRules[1].overriders: the API server refuses the pod with its changes in NodeGroup "hz": pods "atoll-override-trial" is forbidden: no image may come from foreign.io`
	if trial.Refused == nil || trial.Refused.Error() != want {
		t.Errorf("refused is\n%v, want\n%s", trial.Refused, want)
	}
	if is := s.deployment("web").Labels[gm.BindingOverridePolicyLabel]; is != "" {
		t.Errorf("it is bound to %q", is)
	}
	j.unable = noPermission
	s.World.Policies.DropTrial("web")
	j.takeAsked()
	s.tried("web")
	if asked := j.takeAsked(); asked != nil {
		t.Errorf("images are tried as PodTemplates, which nothing refuses: %s", asked)
	}
}

// TestATrialThatWasAnsweredIsRepeated: what refuses pods may change without an event.
func TestATrialThatWasAnsweredIsRepeated(t *testing.T) {
	s := newSite(t, build.Deployment("web", both, withTemplate(hasVolumes("data"))), twoGroups,
		build.OverridePolicy("o", addVolume("hz", "a"), addVolume("hz", "more")))
	j := newJudge(s)
	j.admission = admission("not here", "")
	wants := []string{"data,a,more", "data", "data,a"}
	for _, want := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 5 * time.Minute, 5 * time.Minute} {
		if again := s.tried("web"); again != want {
			t.Errorf("repeated after %s, want %s", again, want)
		}
		if diff := cmp.Diff(wants, j.takeAsked()); diff != "" {
			t.Errorf("wrong trials (-want +got):\n%s", diff)
		}
		wants = wants[:2] // the rule is known
		s.World.Clock.Step(want - time.Second)
		if again := s.tried("web"); again != time.Second || len(j.takeAsked()) > 0 {
			t.Errorf("repeated too early, or after %s", again)
		}
		s.World.Clock.Step(time.Second)
	}
	j.admission = nil
	s.reconcile("web")
	if is := s.deployment("web").Labels[gm.BindingOverridePolicyLabel]; is != "o" {
		t.Errorf("it is bound to %q once the API server accepts the pods", is)
	}
}

// TestATrialIsRepeatedWhenPodsAreRefused: admission became stricter after the trial.
func TestATrialIsRepeatedWhenPodsAreRefused(t *testing.T) {
	deployment := build.Deployment("web", both, withTemplate(hasVolumes("data")))
	s := newSite(t, deployment, twoGroups, build.OverridePolicy("o", addVolume("hz", "more")))
	j := newJudge(s)
	s.reconcile("web")
	s.see("web")
	j.takeAsked()
	j.admission = admission("not here", "")
	s.World.Clock.Step(time.Hour)
	s.reconcile("web")
	if asked := j.takeAsked(); asked != nil {
		t.Fatalf("tried again without a cause: %s", asked)
	}
	set := build.Owner(build.ReplicaSet("web-1", build.OwnedBy(deployment), build.With(func(rs *appsv1.ReplicaSet) {
		rs.Status.Conditions = []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Message: "not here"}}
	})))
	s.World.Walker.Put(set)
	if diff := cmp.Diff([]types.UID{"web"}, uidsOf(s.requestsForRefused(nil, set))); diff != "" {
		t.Errorf("wrong requests (-want +got):\n%s", diff)
	}
	if got := s.requestsForRefused(set, set); got != nil {
		t.Errorf("it is enqueued again by a ReplicaSet that is refused as before: %v", got)
	}
	if again := s.tried("web"); again != retryRefused || len(j.takeAsked()) != 2 {
		t.Errorf("repeated after %s", again)
	}
	if is := s.deployment("web").Labels[gm.BindingOverridePolicyLabel]; is != "" {
		t.Errorf("it is still bound to %q", is)
	}
}

// TestATrialPodIsLikeThatOfItsController: it has the owner, the labels and the volumes of claims
// that the controller gives its pods.
func TestATrialPodIsLikeThatOfItsController(t *testing.T) {
	claimed := build.With(func(set *appsv1.StatefulSet) {
		hasVolumes("data", "scratch")(&set.Spec.Template)
		set.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}
	})
	annotated := withTemplate(func(t *corev1.PodTemplateSpec) { t.Annotations = map[string]string{"a": "b"} })
	annotates := build.OverridePolicy("o", build.With(func(p *gm.OverridePolicy) {
		p.Spec.OverrideRules = []gm.RuleWithNodeGroup{{Overriders: &gm.Overriders{Plaintext: []gm.PlaintextOverrider{{
			Path: "/metadata/annotations/tier", Operator: gm.OverriderOpAdd, Value: &apiextensionsv1.JSON{Raw: []byte(`"edge"`)},
		}}}}}
	}))
	tests := map[string]struct {
		objects []build.Object
		owner   string
		volumes string
	}{
		"a Deployment":                  {[]build.Object{build.Deployment("web", both, annotated), build.ReplicaSet("web-1", build.OwnedBy(build.Deployment("web")))}, "apps/v1 ReplicaSet web-1", ""},
		"a Deployment that has no pods": {[]build.Object{build.Deployment("web", both)}, "apps/v1 ReplicaSet web", ""},
		"a StatefulSet with claims":     {[]build.Object{build.StatefulSet("web", both, claimed)}, "apps/v1 StatefulSet web", "scratch,data"},
		"a Job":                         {[]build.Object{build.Job("web", both, build.With(func(*batchv1.Job) {}))}, "batch/v1 Job web", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, append(tc.objects, twoGroups, annotates)...)
			j := newJudge(s)
			var tried []*corev1.Pod
			j.admission = func(pod *corev1.Pod) error {
				tried = append(tried, pod)
				return nil
			}
			s.reconcile("web")
			if len(tried) != 1 {
				t.Fatalf("%d pods are tried", len(tried))
			}
			pod := tried[0]
			owner := metav1.GetControllerOf(pod)
			if got := owner.APIVersion + " " + owner.Kind + " " + owner.Name; got != tc.owner || owner.BlockOwnerDeletion != nil {
				t.Errorf("its owner is %s, blocking %v; want %s", got, owner.BlockOwnerDeletion, tc.owner)
			}
			if pod.Annotations["tier"] != "edge" || pod.Namespace != build.Namespace || pod.Name != trialName || ownership.PoliciesOf(pod.Labels) != (ownership.Policies{}) {
				t.Errorf("its metadata is %+v", pod.ObjectMeta)
			}
			if diff := cmp.Diff([]string{tc.volumes}, j.takeAsked()); diff != "" {
				t.Errorf("wrong volumes (-want +got):\n%s", diff)
			}
		})
	}
}

// TestBlame: only a quota that would refuse the successor because of the rules is their
// fault.
func TestBlame(t *testing.T) {
	q := func(requested, used, limited string) error {
		return errors.New(`pods "x" is forbidden: exceeded quota: q, requested: ` + requested + ", used: " + used + ", limited: " + limited)
	}
	other := errors.New("no")
	tests := map[string]struct {
		refusal, base error
		want          blamed
	}{
		"the plain pod is accepted":          {other, nil, onRules},
		"the plain pod only meets a quota":   {other, q("pods=1", "pods=2", "pods=2"), onRules},
		"both are refused":                   {other, other, onTemplate},
		"the override passes what refuses":   {q("pods=1", "pods=2", "pods=2"), other, onTemplate},
		"a full quota":                       {q("pods=1", "pods=2", "pods=2"), q("pods=1", "pods=2", "pods=2"), onNothing},
		"a quota that is below its use":      {q("pods=1", "pods=3", "pods=2"), q("pods=1", "pods=3", "pods=2"), onTemplate},
		"the override requests more":         {q("requests.cpu=1500m", "requests.cpu=2", "requests.cpu=2"), q("requests.cpu=1", "requests.cpu=2", "requests.cpu=2"), onRules},
		"more, for which there is room":      {q("requests.cpu=1500m", "requests.cpu=1500m", "requests.cpu=2"), q("requests.cpu=1", "requests.cpu=1500m", "requests.cpu=2"), onNothing},
		"it requests less":                   {q("requests.cpu=500m", "requests.cpu=2", "requests.cpu=2"), q("requests.cpu=1", "requests.cpu=2", "requests.cpu=2"), onNothing},
		"it requests something else":         {q("pods=1,requests.cpu=3", "pods=2,requests.cpu=1", "pods=2,requests.cpu=2"), q("pods=1", "pods=2", "pods=2"), onRules},
		"quotas of different names":          {q("pods=1", "pods=2", "pods=2"), errors.New("exceeded quota: r, requested: pods=1, used: pods=2, limited: pods=2"), onTemplate},
		"a container that requests nothing":  {errors.New("failed quota: q: must specify requests.cpu for: c"), q("pods=1", "pods=2", "pods=2"), onRules},
		"a quota text that cannot be parsed": {errors.New("exceeded quota: q"), errors.New("exceeded quota: q"), onTemplate},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := blame(tc.refusal, tc.base); got != tc.want {
				t.Errorf("blame is %d, want %d", got, tc.want)
			}
		})
	}
}
