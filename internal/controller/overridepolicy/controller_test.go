package overridepolicy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/time/rate"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/survey"
	"github.com/atoll-k8s/atoll/internal/testing/build"
	"github.com/atoll-k8s/atoll/internal/testing/build/world"
)

// fixture is a reconciler and the objects that it observes.
type fixture struct {
	*Reconciler
	*world.World
	t      *testing.T
	events *events.FakeRecorder
	// patched are the pods that were patched in the last pass.
	patched []string
	// untried: the rules are not tried before a pass (see accept).
	untried bool
	// created is the number of the last successor (see play).
	created int
}

func newFixture(t *testing.T, objects ...build.Object) *fixture {
	t.Helper()
	s := &fixture{World: world.New(t, objects...), t: t, events: events.NewFakeRecorder(100)}
	s.Reconciler = &Reconciler{
		Surveyor: &survey.Surveyor{Pods: s.World.Pods, Walker: s.World.Walker, Ledger: s.World.Ledger, Policies: s.World.Policies, Clock: s.World.Clock},
		Client:   s.World.Client, Recorder: s.events, Evictor: &eviction.Evictor{Client: s.World.Pods, Pace: eviction.NewPace(rate.Inf, 0)},
	}
	s.World.Pods.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		s.patched = append(s.patched, action.(clienttesting.PatchAction).GetName())
		return false, nil, nil
	})
	s.World.Settle(t)
	return s
}

func (s *fixture) pass() (ctrl.Result, error) {
	s.patched, s.Evicted = nil, nil
	if !s.untried {
		s.accept()
	}
	return s.Reconcile(s.t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: build.Namespace, Name: "o"}})
}

// accept records for every workload that the API server accepts the pods that the rules
// make.
func (s *fixture) accept() {
	s.t.Helper()
	policy := &gm.OverridePolicy{}
	if err := s.World.Client.Get(s.t.Context(), client.ObjectKey{Namespace: build.Namespace, Name: "o"}, policy); client.IgnoreNotFound(err) != nil {
		s.t.Fatal(err)
	}
	rules, _ := s.World.Policies.Rules(policy)
	for _, app := range s.World.Walker.Requiring(owners.Override, build.Namespace, "o") {
		s.World.Policies.SetTrial(app.UID, policies.Trial{Key: s.World.Policies.TrialPlan(s.t.Context(), app, policy, rules).Key})
	}
}

func (s *fixture) reconcile() ctrl.Result {
	s.t.Helper()
	result, err := s.pass()
	if err != nil {
		s.t.Fatal(err)
	}
	return result
}

func (s *fixture) pod(name string) *corev1.Pod {
	s.t.Helper()
	o, err := s.World.Pods.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), build.Namespace, name)
	if err != nil {
		s.t.Fatal(err)
	}
	return o.(*corev1.Pod)
}

func (s *fixture) status() gm.OverrideStatus {
	s.t.Helper()
	policy := &gm.OverridePolicy{}
	if err := s.World.Client.Get(s.t.Context(), client.ObjectKey{Namespace: build.Namespace, Name: "o"}, policy); err != nil {
		s.t.Fatal(err)
	}
	return policy.Status
}

func (s *fixture) reason() string {
	s.t.Helper()
	c := meta.FindStatusCondition(s.status().Conditions, gm.ConditionReady)
	if c == nil {
		return ""
	}
	return c.Reason
}

// base returns a Deployment of n pods, a group, and policies; no pod exists yet.
func base(n int32, options ...build.Option) []build.Object {
	deployment := build.Deployment("web", append([]build.Option{build.Bound("p", "o"), build.Replicas(n)}, options...)...)
	return []build.Object{
		deployment, build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(n)),
		build.PropagationPolicy("p", build.Weight(1, "hz")), build.OverridePolicy("o", build.Registry("hz", "hz.io")),
		build.Node("node-hz", build.InGroup("hz")), build.Node("node-out"),
	}
}

// running returns the i-th pod of the Deployment, Ready on a node of the group.
func running(i int, options ...build.Option) *corev1.Pod {
	options = append([]build.Option{
		build.OwnedBy(build.ReplicaSet("web-1")), build.Container("c", "nginx:1"), build.On("node-hz"),
		build.Running(3), build.Created(time.Unix(int64(i), 0)),
	}, options...)
	return build.Pod(fmt.Sprint("web-1-", i), options...)
}

func mode(m gm.ReschedulingMode) build.Option {
	return build.With(func(p *gm.PropagationPolicy) { p.Spec.Rescheduling.Mode = m })
}

func waiting(reason string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
}

func TestReconcile(t *testing.T) {
	replace := func(objects []build.Object, with build.Object) []build.Object {
		for i := range objects {
			if objects[i].GetName() == with.GetName() {
				objects[i] = with
			}
		}
		return objects
	}
	notReady := build.With(func(p *corev1.Pod) { p.Status.Conditions = nil })
	once := func(policy corev1.RestartPolicy) build.Option {
		return build.With(func(p *corev1.Pod) { p.Spec.RestartPolicy = policy })
	}
	as := func(image string) build.Option {
		return build.With(func(p *corev1.Pod) { p.Spec.Containers[0].Image = image })
	}
	// stuck is a pod that cannot pull an image that an older rule wanted.
	stuck := build.With(func(p *corev1.Pod) {
		p.Status.Conditions, p.Status.ContainerStatuses = nil, nil
		as("wrong.io/nginx:1")(p)
		build.Annotation(gm.OriginalImagesAnnotation, `{"c":"nginx:1"}`)(p)
	})
	// unpulled is a pod that has never started: the kubelet cannot pull its image.
	unpulled := build.With(func(p *corev1.Pod) {
		p.Status.Phase, p.Status.Conditions = corev1.PodPending, nil
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: waiting("ImagePullBackOff")}}
	})
	tests := map[string]struct {
		objects []build.Object
		patched []string
		reason  string
		// pods and updated are those of the first workload in the status.
		pods, updated int32
	}{
		"no workload requires the policy": {
			objects: []build.Object{build.OverridePolicy("o", build.Registry("hz", "hz.io"))}, reason: gm.ReasonNotUsed,
		},
		"pods that ran before are changed one at a time": {
			objects: append(base(2), running(0), running(1)), patched: []string{"web-1-0"}, reason: gm.ReasonConverging, pods: 2,
		},
		"containers that may not be started again are not ended": {
			objects: append(base(3), running(0, once(corev1.RestartPolicyNever)), running(1, once(corev1.RestartPolicyOnFailure)), running(2, build.With(func(p *corev1.Pod) {
				p.Spec.Containers[0].RestartPolicy = new(corev1.ContainerRestartPolicyOnFailure)
			}))),
			reason: gm.ReasonConverging, pods: 3,
		},
		"containers that cannot start without the change are none of those": {
			objects: append(base(3), running(0, once(corev1.RestartPolicyNever), unpulled), running(1, once(corev1.RestartPolicyOnFailure), unpulled), running(2, once(corev1.RestartPolicyNever))),
			patched: []string{"web-1-0", "web-1-1"}, reason: gm.ReasonConverging, pods: 3,
		},
		"but those that may start at any moment are": {
			objects: append(base(1), running(0, once(corev1.RestartPolicyNever), unpulled, build.With(func(p *corev1.Pod) {
				p.Status.ContainerStatuses[0].State = waiting("ContainerCreating")
			}))),
			reason: gm.ReasonConverging, pods: 1,
		},
		"a pod that does no work is first": {
			objects: append(base(2), running(0), running(1, notReady)), patched: []string{"web-1-1"}, reason: gm.ReasonConverging, pods: 2,
		},
		"pods none of which does any work are changed all at once": {
			objects: append(base(3), running(0, stuck), running(1, stuck), running(2, stuck)),
			patched: []string{"web-1-0", "web-1-1", "web-1-2"}, reason: gm.ReasonConverging, pods: 3,
		},
		"pods whose containers go on are changed all at once": {
			objects: append(base(2), running(0, as("hz.io/nginx:1"), build.InitContainer("setup", "setup:1")), running(1, as("hz.io/nginx:1"), build.InitContainer("setup", "setup:1"))),
			patched: []string{"web-1-0", "web-1-1"}, reason: gm.ReasonConverging, pods: 2,
		},
		"nothing is to change": {
			objects: append(base(1), running(0, as("hz.io/nginx:1"))), reason: gm.ReasonSatisfied, pods: 1, updated: 1,
		},
		"a pod that waits for room in its group has the images from its start": {
			objects: append(base(1), running(0, build.On(""), build.Seated("hz"), notReady)), patched: []string{"web-1-0"}, reason: gm.ReasonNoPods,
		},
		"a pod of a Job that was created by other rules, and cannot start": {
			objects: append(base(0)[2:3:3], build.OverridePolicy("o", build.Args("hz", "c", "--hz"), build.Registry("hz", "hz.io")), build.Node("node-hz", build.InGroup("hz")),
				build.Job("batch", build.Bound("p", "o")), running(0, build.OwnedBy(build.Job("batch")), once(corev1.RestartPolicyNever), unpulled)),
			patched: []string{"web-1-0"}, reason: gm.ReasonConverging, pods: 1,
		},
		"pods on nodes of no group, pods that wait and pods that are over are not changed": {
			objects: append(base(3), running(0, build.On("node-out")), running(1, build.On("")), running(2, build.Deleting("example.com/f"))),
			reason:  gm.ReasonNoPods,
		},
		"a workload with a pod missing is not disturbed further": {
			objects: append(base(2), running(0)), reason: gm.ReasonConverging, pods: 1,
		},
		"running pods are not restarted while the API server creates none": {
			objects: append(refused(base(2)), running(0), running(1)), reason: gm.ReasonPodsRefused, pods: 2,
		},
		"one that does no work is changed": {
			objects: append(refused(base(2)), running(0, notReady), running(1)), patched: []string{"web-1-0"}, reason: gm.ReasonPodsRefused, pods: 2,
		},
		"a workload with fewer pods than it wants is not as wanted": {
			objects: append(base(3), running(0, as("hz.io/nginx:1")), running(1, build.On(""))), reason: gm.ReasonConverging, pods: 1, updated: 1,
		},
		"so is a StatefulSet, which does not report that the API server refuses its pods": {
			objects: append(base(0)[2:], build.StatefulSet("web", build.Bound("p", "o"), build.Replicas(3)),
				running(0, build.OwnedBy(build.StatefulSet("web")), as("hz.io/nginx:1"))),
			reason: gm.ReasonConverging, pods: 1, updated: 1,
		},
		"a pod that has no node yet is not missing": {
			objects: append(base(2), running(0, as("hz.io/nginx:1")), running(1, build.On(""))), reason: gm.ReasonSatisfied, pods: 1, updated: 1,
		},
		"one workload without pods that wants none, one as wanted": {
			objects: append(base(1), running(0, as("hz.io/nginx:1")), build.Deployment("zero", build.Bound("p", "o"), build.Replicas(0))),
			reason:  gm.ReasonSatisfied, pods: 1, updated: 1,
		},
		"one workload without pods that wants some, one as wanted": {
			objects: append(base(1), running(0, as("hz.io/nginx:1")), build.Deployment("some", build.Bound("p", "o"), build.Replicas(1))),
			reason:  gm.ReasonConverging,
		},
		"pods of a Job that ended are not missing": {
			objects: append(base(1), running(0, as("hz.io/nginx:1")), build.Job("done", build.Bound("p", "o"))),
			reason:  gm.ReasonSatisfied, pods: 1, updated: 1,
		},
		"a kind without a number of pods misses none": {
			objects: append(base(1), running(0, as("hz.io/nginx:1")), build.DaemonSet("agent", build.Bound("p", "o"))),
			reason:  gm.ReasonSatisfied,
		},
		"a workload that is not bound is not changed": {
			objects: append(base(1, build.Label(gm.BindingOverridePolicyLabel, "")), running(0)), reason: gm.ReasonConverging, pods: 1,
		},
		"mode Never leaves running pods alone": {
			objects: append(replace(base(1), build.PropagationPolicy("p", build.Weight(1, "hz"), mode(gm.ReschedulingNever))), running(0)),
			reason:  gm.ReasonConverging, pods: 1,
		},
		"a PropagationPolicy without a mode changes pods as by default": {
			objects: append(replace(base(1), build.PropagationPolicy("p", build.Weight(1, "hz"), mode(""))), running(0)),
			patched: []string{"web-1-0"}, reason: gm.ReasonConverging, pods: 1,
		},
		"without a PropagationPolicy pods are changed as by default": {
			objects: append(replace(base(1), build.Deployment("web", build.Bound("", "o"), build.Replicas(1))), running(0)),
			patched: []string{"web-1-0"}, reason: gm.ReasonConverging, pods: 1,
		},
		"the pods of a DaemonSet are changed as well": {
			objects: append(base(0)[2:], build.DaemonSet("web", build.Bound("", "o")),
				build.Pod("web-1-0", build.OwnedBy(build.DaemonSet("web")), build.Container("c", "nginx:1"), build.On("node-hz"), build.Running(0))),
			patched: []string{"web-1-0"}, reason: gm.ReasonConverging, pods: 1,
		},
		"a pod without an owner is changed as well": {
			objects: append(base(0)[2:], build.Pod("bare", build.Bound("", "o"), build.Container("c", "nginx:1"), build.On("node-hz"), build.Running(0))),
			patched: []string{"bare"}, reason: gm.ReasonConverging, pods: 1,
		},
		"a rule that cannot be applied to one pod is named, and others go on": {
			objects: append(base(2), running(0, as("NO IMAGE")), running(1)), patched: []string{"web-1-1"}, reason: gm.ReasonInvalid, pods: 2,
		},
		"a rule that cannot be applied to a pod that waits is named": {
			objects: append(base(1), running(0, as("NO IMAGE"), build.On(""))), reason: gm.ReasonInvalid,
		},
		"a policy that cannot be used": {
			objects: append(replace(base(1), build.OverridePolicy("o", build.Registry("hz", "no registry"))), running(0)), reason: gm.ReasonInvalid,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, tc.objects...)
			s.reconcile()
			if diff := cmp.Diff(tc.patched, s.patched); diff != "" {
				t.Errorf("wrong pods were changed (-want +got):\n%s", diff)
			}
			if got := s.reason(); got != tc.reason {
				t.Errorf("reason is %s, want %s", got, tc.reason)
			}
			if apps := s.status().Apps; len(apps) > 0 && (apps[0].Pods != tc.pods || apps[0].Updated != tc.updated) {
				t.Errorf("%d of %d pods are updated, want %d of %d", apps[0].Updated, apps[0].Pods, tc.updated, tc.pods)
			}
			if len(s.events.Events) != len(tc.patched) {
				t.Errorf("%d events for %d changes", len(s.events.Events), len(tc.patched))
			}
		})
	}
}

func TestTheNextPodIsChangedOnceTheLastHasRestarted(t *testing.T) {
	s := newFixture(t, append(base(3), running(0), running(1), running(2))...)
	for i := range 3 {
		name := fmt.Sprint("web-1-", i)
		s.reconcile()
		if diff := cmp.Diff([]string{name}, s.patched); diff != "" {
			t.Fatalf("wrong pods were changed (-want +got):\n%s", diff)
		}
		pod := s.pod(name)
		if got := pod.Spec.Containers[0].Image; got != "hz.io/nginx:1" {
			t.Errorf("the image of %s is %s", name, got)
		}
		if got := pod.Labels[gm.NodeGroupLabel]; got != "hz" {
			t.Errorf("the group's label on %s is %q", name, got)
		}
		s.World.See(pod)
		result := s.reconcile()
		if len(s.patched) != 0 {
			t.Errorf("%v changed while %s restarts", s.patched, name)
		}
		if i < 2 && result.RequeueAfter != retryDisruption { // a permission may become free without a change of a pod
			t.Errorf("with pods left to change it comes back after %s, want %s", result.RequeueAfter, retryDisruption)
		}
		pod.Status.ContainerStatuses[0].RestartCount++
		s.World.See(pod)
	}
	s.reconcile()
	if got := s.reason(); got != gm.ReasonSatisfied || len(s.patched) != 0 {
		t.Errorf("at the end the policy is %s, changed %v", got, s.patched)
	}
}

func TestRemovedRuleRestoresTheImage(t *testing.T) {
	s := newFixture(t, append(base(1), running(0))...)
	s.reconcile()
	pod := s.pod("web-1-0")
	s.World.See(pod)
	pod.Status.ContainerStatuses[0].RestartCount++
	s.World.See(pod)
	policy := &gm.OverridePolicy{}
	if err := s.World.Client.Get(t.Context(), client.ObjectKey{Namespace: build.Namespace, Name: "o"}, policy); err != nil {
		t.Fatal(err)
	}
	policy.Spec.OverrideRules, policy.Generation = nil, 2
	if err := s.World.Client.Update(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	s.reconcile()
	pod = s.pod("web-1-0")
	if got := pod.Spec.Containers[0].Image; got != "nginx:1" || pod.Annotations[gm.OriginalImagesAnnotation] != "" {
		t.Errorf("the image is %s, remembered %q", got, pod.Annotations[gm.OriginalImagesAnnotation])
	}
}

func TestPodsStayAsTheyAreUntilTheGroupHasSettled(t *testing.T) {
	s := newFixture(t, append(base(1), running(0))...)
	s.World.Ledger.ObserveNode(seats.SlimNode(build.Node("another", build.InGroup("hz"))))
	result := s.reconcile()
	if len(s.patched) != 0 || result.RequeueAfter != gm.DefaultStabilization {
		t.Errorf("changed %v, comes back after %s", s.patched, result.RequeueAfter)
	}
}

func TestAnswersToAPatch(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	broken := errors.New("broken")
	invalid := func(path ...string) error {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "web-1-0", field.ErrorList{field.Invalid(field.NewPath(path[0], path[1:]...), "", "")})
	}
	notPossible := invalid("spec", "containers")
	tests := map[string]struct {
		answer error
		want   error
		next   bool // the next pod is changed in the same pass
	}{
		"the pod is gone":          {apierrors.NewNotFound(pods, "web-1-0"), nil, true},
		"the pod changed":          {apierrors.NewConflict(pods, "web-1-0", broken), nil, true},
		"another pod of that name": {invalid("metadata", "uid"), nil, true},
		"the image cannot be":      {notPossible, nil, false},
		"the API server failed":    {broken, broken, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, append(base(2), running(0), running(1))...)
			s.World.Pods.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
				return action.(clienttesting.PatchAction).GetName() == "web-1-0", nil, tc.answer
			})
			result, err := s.pass()
			if !errors.Is(err, tc.want) {
				t.Errorf("error is %v, want %v", err, tc.want)
			}
			if again := result.RequeueAfter > 0 && result.RequeueAfter < time.Second; again != apierrors.IsConflict(tc.answer) {
				t.Errorf("comes back after %s", result.RequeueAfter)
			}
			if got := len(s.patched) == 1; got != tc.next {
				t.Errorf("changed %v; the next too: %t, want %t", s.patched, got, tc.next)
			}
			if !tc.next && !s.World.Ledger.Disrupt("web-1-0", s.World.Walker.Descendants("web"), 2, 1) {
				t.Error("the pod counts as disturbed")
			}
			if len(s.events.Events) != len(s.patched) {
				t.Errorf("%d events for %d changes", len(s.events.Events), len(s.patched))
			}
		})
	}
}

// TestImagesThatAreRefusedInPlace: the condition has the rule, the pod and the API server's
// message. The pod is tried again after longer and longer waits, and is never evicted. Pods
// of other groups go on.
func TestImagesThatAreRefusedInPlace(t *testing.T) {
	objects := append(base(3), running(0), running(1), build.Node("node-bj", build.InGroup("bj")), running(2, build.On("node-bj")))
	objects[3] = build.OverridePolicy("o", build.Registry("hz", "hz.io"), build.Registry("bj", "bj.io"))
	s := newFixture(t, objects...)
	refused, asked := true, 0
	s.World.Pods.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if !refused || action.(clienttesting.PatchAction).GetName() == "web-1-2" {
			return false, nil, nil
		}
		asked++
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "web-1-0", errors.New("no registry but ours"))
	})
	const want = `Deployment "web": spec.overrideRules[0].overriders: the API server refuses the images of pod "web-1-0" in NodeGroup "hz": pods "web-1-0" is forbidden: no registry but ours`
	for i, wait := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 5 * time.Minute, 5 * time.Minute} {
		s.reconcile()
		if asked != i+1 {
			t.Errorf("%d patches, want %d", asked, i+1)
		}
		if i == 0 {
			if diff := cmp.Diff([]string{"web-1-2"}, s.patched); diff != "" {
				t.Errorf("wrong pods were changed in other groups (-want +got):\n%s", diff)
			}
			pod := s.pod("web-1-2")
			s.World.See(pod)
			pod.Status.ContainerStatuses[0].RestartCount++
			s.World.See(pod)
		}
		s.World.Clock.Step(wait - time.Second)
		if again := s.reconcile().RequeueAfter; asked != i+1 || again != time.Second {
			t.Errorf("%d patches, the next after %s", asked, again)
		}
		if got := s.ready(); got.Status != metav1.ConditionFalse || got.Reason != gm.ReasonOverrideRefused || got.Message != want {
			t.Errorf("Ready is %s %s: %s", got.Status, got.Reason, got.Message)
		}
		if len(s.Evicted) > 0 {
			t.Errorf("evicted: %s", s.Evicted)
		}
		s.World.Clock.Step(time.Second)
	}
	refused = false
	s.reconcile()
	if got := s.ready(); got.Reason != gm.ReasonConverging || !slices.Equal(s.patched, []string{"web-1-0"}) {
		t.Errorf("once they are accepted, changed are %s, and Ready is %s: %s", s.patched, got.Reason, got.Message)
	}
}

// TestRefusedImagesOfAnOlderRuleDelayNoPod: the pause after a refusal ends when the policy changes.
func TestRefusedImagesOfAnOlderRuleDelayNoPod(t *testing.T) {
	s := newFixture(t, append(base(1), running(0))...)
	s.World.Pods.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		refused := strings.Contains(string(action.(clienttesting.PatchAction).GetPatch()), "hz.io")
		return refused, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "web-1-0", errors.New("no registry but ours"))
	})
	s.reconcile()
	policy := &gm.OverridePolicy{}
	if err := s.World.Client.Get(t.Context(), client.ObjectKey{Namespace: build.Namespace, Name: "o"}, policy); err != nil {
		t.Fatal(err)
	}
	policy.Spec.OverrideRules, policy.Generation = nil, 2
	build.Registry("hz", "ours.io")(policy)
	if err := s.World.Client.Update(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	s.reconcile()
	if got := s.pod("web-1-0").Spec.Containers[0].Image; got != "ours.io/nginx:1" {
		t.Errorf("the image is %s", got)
	}
}

func TestStatusNamesTheRuleAndWritesNothingAtRest(t *testing.T) {
	s := newFixture(t, append(base(1), running(0, build.With(func(p *corev1.Pod) { p.Spec.Containers[0].Image = "NO IMAGE" })))...)
	s.reconcile()
	c := meta.FindStatusCondition(s.status().Conditions, gm.ConditionReady)
	if c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "spec.overrideRules[0]") || c.ObservedGeneration != 1 {
		t.Errorf("the condition is %+v: it must name the rule", c)
	}
	version := func() string {
		policy := &gm.OverridePolicy{}
		if err := s.World.Client.Get(t.Context(), client.ObjectKey{Namespace: build.Namespace, Name: "o"}, policy); err != nil {
			t.Fatal(err)
		}
		return policy.ResourceVersion
	}
	before := version()
	s.reconcile()
	if after := version(); after != before {
		t.Errorf("the status was written at rest: version %s became %s", before, after)
	}
}

func TestInvalidPolicyReportsNoWorkloads(t *testing.T) {
	s := newFixture(t, append(base(1), running(0))...)
	s.reconcile()
	policy := &gm.OverridePolicy{}
	if err := s.World.Client.Get(t.Context(), client.ObjectKey{Namespace: build.Namespace, Name: "o"}, policy); err != nil {
		t.Fatal(err)
	}
	build.Registry("hz", "no registry")(policy)
	policy.Generation = 2
	if err := s.World.Client.Update(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	s.reconcile()
	if got := s.status(); s.reason() != gm.ReasonInvalid || len(got.Apps) != 0 || got.Workloads != 0 {
		t.Errorf("the policy is %s, and shows %v of %d workloads", s.reason(), got.Apps, got.Workloads)
	}
}

func TestDeletedPolicyChangesNoPods(t *testing.T) {
	leaving := base(1)
	build.Deleting("example.com/f")(leaving[3])
	for name, objects := range map[string][]build.Object{
		"gone":    {build.Deployment("web", build.Bound("", "o"))},
		"leaving": append(leaving, running(0)),
	} {
		s := newFixture(t, objects...)
		if s.reconcile(); len(s.patched) != 0 {
			t.Errorf("%s: changed %v", name, s.patched)
		}
	}
}

// TestStatusFromAStaleCacheIsCorrected: if the cache misses the
// status that the last pass wrote, the next pass may find nothing to write although the
// stored status is wrong. The event of the write triggers one more pass.
func TestStatusFromAStaleCacheIsCorrected(t *testing.T) {
	s := newFixture(t, build.OverridePolicy("o", build.Registry("hz", "hz.io")))
	s.reconcile()
	policy := func() *gm.OverridePolicy {
		o := &gm.OverridePolicy{}
		if err := s.World.Client.Get(t.Context(), client.ObjectKey{Namespace: build.Namespace, Name: "o"}, o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	seen := policy()
	written := policy()
	written.Status.Workloads = 7 // written by the last pass, and not in the cache
	if err := s.World.Client.Status().Update(t.Context(), written); err != nil {
		t.Fatal(err)
	}
	stage := world.NewStage(s.World.Client)
	s.Reconciler.Synced = func() bool { return true }
	if err := s.Reconciler.SetupWithManager(stage); err != nil {
		t.Fatal(err)
	}
	stage.Run(t)
	build.Eventually(t, "the status is put right when it is seen", func() bool {
		stage.Update(t, seen, policy())
		return policy().Status.Workloads == 0
	})
}

// ready returns the condition Ready.
func (s *fixture) ready() metav1.Condition {
	s.t.Helper()
	if c := meta.FindStatusCondition(s.status().Conditions, gm.ConditionReady); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// TestFailedObservationKeepsTheRestOfTheStatus: if a pass cannot observe, the condition is
// Unknown with the cause, and the rest of the status stays.
func TestFailedObservationKeepsTheRestOfTheStatus(t *testing.T) {
	s := newFixture(t, append(base(1), running(0, build.With(func(p *corev1.Pod) { p.Spec.Containers[0].Image = "hz.io/nginx:1" }),
		build.Annotation(gm.OriginalImagesAnnotation, `{"c":"nginx:1"}`)))...)
	s.reconcile()
	if got := s.ready(); got.Status != metav1.ConditionTrue {
		t.Fatalf("before, Ready is %+v", got)
	}
	before := s.status()
	broken := errors.New("the cache is gone")
	s.Reconciler.Policies = policies.NewResolver(build.Client(interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return broken
		},
	}), s.World.Walker, s.World.Ledger, s.World.Clock, true)
	if _, err := s.pass(); !errors.Is(err, broken) {
		t.Errorf("error is %v", err)
	}
	got := s.ready()
	if got.Status != metav1.ConditionUnknown || got.Reason != gm.ReasonObservationFailed || !strings.Contains(got.Message, broken.Error()) {
		t.Errorf("Ready is %s %s: %s", got.Status, got.Reason, got.Message)
	}
	after := s.status()
	before.Conditions, after.Conditions = nil, nil
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("what was seen last is gone (-before +after):\n%s", diff)
	}
}

// TestAPolicyWithoutPodsIsNotSatisfied: without pods nothing was observed.
func TestAPolicyWithoutPodsIsNotSatisfied(t *testing.T) {
	s := newFixture(t, base(2)...)
	s.reconcile()
	if got := s.ready(); got.Status != metav1.ConditionUnknown || got.Reason != gm.ReasonNoPods {
		t.Errorf("Ready is %s %s: %s", got.Status, got.Reason, got.Message)
	}
}

// TestAGroupInTheRulesThatDoesNotExistIsNamed: as a PropagationPolicy does, for its name may be misspelt.
func TestAGroupInTheRulesThatDoesNotExistIsNamed(t *testing.T) {
	rules := build.OverridePolicy("o", build.Registry("hz", "hz.io"), build.Registry("hangzhuo", "hz.io"))
	for name, objects := range map[string][]build.Object{
		"pods are as the rules want it": append(base(1), running(0, build.With(func(p *corev1.Pod) { p.Spec.Containers[0].Image = "hz.io/nginx:1" }))),
		"no pod is there yet":           base(1),
	} {
		t.Run(name, func(t *testing.T) {
			objects := slices.DeleteFunc(objects, func(o build.Object) bool { _, is := o.(*gm.OverridePolicy); return is })
			s := newFixture(t, append(objects, rules)...)
			s.reconcile()
			if got := s.ready(); got.Status != metav1.ConditionFalse || got.Reason != gm.ReasonNodeGroupsMissing || !strings.Contains(got.Message, `"hangzhuo"`) || strings.Contains(got.Message, `"hz"`) {
				t.Errorf("Ready is %s %s: %s", got.Status, got.Reason, got.Message)
			}
		})
	}
}

// TestConditionQuotesThePodCreationError: the pods' owner reports that the API server refuses its pods,
// and the policy repeats it.
func TestConditionQuotesThePodCreationError(t *testing.T) {
	objects := base(2)
	objects[1] = build.ReplicaSet("web-1", build.OwnedBy(objects[0]), build.Replicas(2), build.With(func(rs *appsv1.ReplicaSet) {
		rs.Status.Conditions = []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Message: "exceeded quota"}}
	}))
	s := newFixture(t, objects...)
	s.reconcile()
	if got := s.ready(); got.Reason != gm.ReasonPodsRefused || got.Message != `Deployment "web": the API server creates no pods: exceeded quota` {
		t.Errorf("Ready is %s %s: %s", got.Status, got.Reason, got.Message)
	}
}

// TestConditionReportsTheTrialResult: the condition names the rule and the API server's error, or
// why the trial failed.
func TestConditionReportsTheTrialResult(t *testing.T) {
	fixed := build.OverridePolicy("o", build.Args("hz", "c", "--hz"))
	refusal := policies.Refusal{RuleError: override.RuleError{Overrider: "spec.overrideRules[0].overriders", Err: errors.New(`Duplicate value: "data"`)}}
	tests := map[string]struct {
		trial   func(key string) policies.Trial
		ready   metav1.ConditionStatus
		reason  string
		message string
		evicted []string
	}{
		"taken": {
			func(key string) policies.Trial { return policies.Trial{Key: key} },
			metav1.ConditionFalse, gm.ReasonConverging, "pods are being changed or replaced", []string{"web-1-0"},
		},
		"refused: running pods stay": {
			func(key string) policies.Trial { return policies.Trial{Key: key, Refused: refusal} },
			metav1.ConditionFalse, gm.ReasonOverrideRefused, `Deployment "web": spec.overrideRules[0].overriders: Duplicate value: "data"`, nil,
		},
		"not tried: running pods stay": {
			func(key string) policies.Trial { return policies.Trial{Key: key, Untried: errors.New("timeout")} },
			metav1.ConditionUnknown, gm.ReasonOverrideNotTried, "it is not known whether the API server accepts the pods that the rules make: timeout", nil,
		},
		"in doubt: running pods stay": {
			func(key string) policies.Trial { return policies.Trial{Key: key, Doubt: errors.New("no pods here")} },
			metav1.ConditionFalse, gm.ReasonConverging, "pods are to be replaced and stay for now: no pods here", nil,
		},
		"tried with another template: running pods stay": {
			func(string) policies.Trial { return policies.Trial{Key: "older"} },
			metav1.ConditionFalse, gm.ReasonConverging, "pods are to be replaced and stay for now: it is not known yet", nil,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			objects := append(base(1), running(0))
			objects[3] = fixed
			s := newFixture(t, objects...)
			s.untried = true
			rules, _ := s.World.Policies.Rules(fixed)
			app := s.World.Walker.Get("web")
			s.World.Policies.SetTrial("web", tc.trial(s.World.Policies.TrialPlan(t.Context(), app, fixed, rules).Key))
			s.reconcile()
			if got := s.ready(); got.Status != tc.ready || got.Reason != tc.reason || !strings.Contains(got.Message, tc.message) {
				t.Errorf("Ready is %s %s: %s", got.Status, got.Reason, got.Message)
			}
			if diff := cmp.Diff(tc.evicted, s.Evicted); diff != "" {
				t.Errorf("wrong pods were replaced (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTheConditionNamesAStoppedWorkload, because a person has to look at it.
func TestTheConditionNamesAStoppedWorkload(t *testing.T) {
	s := newFixture(t, base(2, build.Annotation(gm.OverridesStoppedAnnotation, "12 pods"))...)
	s.reconcile()
	if got := s.ready(); got.Reason != gm.ReasonOverridesStopped || !strings.Contains(got.Message, "remove the annotation "+gm.OverridesStoppedAnnotation) {
		t.Errorf("Ready is %s %s: %s", got.Status, got.Reason, got.Message)
	}
}
