package podgroup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/domain/gang"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/gangs"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// site is a reconciler over caches that a test fills, and API servers that hold what it
// writes.
type site struct {
	*Reconciler
	t        *testing.T
	clock    *testingclock.FakeClock
	recorder *events.FakeRecorder
	walker   *owners.Walker
	objects  *dynamicfake.FakeDynamicClient
	api      *build.API
}

func newSite(t *testing.T, pods ...runtime.Object) *site {
	t.Helper()
	s := &site{t: t, clock: testingclock.NewFakeClock(time.Unix(1_000_000, 0)), recorder: events.NewFakeRecorder(100)}
	s.api = build.NewAPI(t)
	s.walker = owners.NewWalker(s.api.Client())
	s.objects = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{gangs.Resource: "PodGroupList"})
	client := fake.NewClientset(pods...)
	lineage := owners.NewLineage(s.walker, metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme()), client.Discovery())
	store, err := gangs.NewStore(client, s.objects, []string{"volcano"})
	if err != nil {
		t.Fatal(err)
	}
	resolver := &gangs.Resolver{Lineage: lineage, Schedulers: []string{"volcano"}}
	resolver.SetLevels(ownership.Levels{}, s.clock.Now())
	s.Reconciler = &Reconciler{
		Pods: client, Objects: s.objects, Lineage: lineage, Walker: s.walker, Store: store, Resolver: resolver,
		Recorder: s.recorder, Clock: s.clock, Rules: &Rules{Resolver: resolver, Leads: func() bool { return false }},
		named: map[types.UID]write[string]{}, made: map[types.NamespacedName]write[*gangs.Group]{}, idle: map[types.NamespacedName]time.Time{}, told: map[types.NamespacedName]string{},
		rewrites: flowcontrol.NewFakeBackOff(rewriteFirst, rewriteLast, s.clock),
	}
	return s
}

func (s *site) owners(all ...build.Object) {
	for _, o := range all {
		s.walker.Put(build.Owner(o))
	}
}

// web puts a Deployment of one pod, which names its PodGroup.
func (s *site) web(options ...build.Option) {
	web := build.Deployment("web", append(options, build.Replicas(1))...)
	set := build.ReplicaSet("web-1", build.OwnedBy(web))
	s.owners(web, set)
	s.Store.PutPod(memberOf("a", set, "web"))
}

// pass observes and runs the phases for the PodGroup of an owner.
func (s *site) pass(owner string) error {
	s.t.Helper()
	sc := &scope{key: types.NamespacedName{Namespace: build.Namespace, Name: gang.Name(types.UID(owner))}}
	if err := s.observe(s.t.Context(), sc); err != nil {
		return err
	}
	_, err := phase.Run(s.t.Context(), sc, s.ensure, s.collect)
	return err
}

// written is the PodGroup of an owner as the API server has it, or nil; the store has it
// too then.
func (s *site) written(owner string) *unstructured.Unstructured {
	s.t.Helper()
	u, err := s.objects.Resource(gangs.Resource).Namespace(build.Namespace).Get(s.t.Context(), gang.Name(types.UID(owner)), metav1.GetOptions{})
	if err != nil {
		return nil
	}
	s.Store.PutGroup(gangs.Slim(u))
	return u
}

// member is a pod of an owner that names a PodGroup.
func memberOf(name string, owner build.Object, group string, options ...build.Option) *corev1.Pod {
	options = append([]build.Option{
		build.OwnedBy(owner), build.Annotation(scheduling.GroupNameAnnotation, gang.Name(types.UID(group))),
		build.With(func(p *corev1.Pod) { p.Spec.SchedulerName = "volcano" }),
	}, options...)
	return build.Pod(name, options...)
}

func requests(cpu string) build.Option {
	return build.With(func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{{Name: "app", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}}}}
	})
}

// TestTheNewestTemplateCounts: after a rollback the newest template is that of the older
// ReplicaSet, and pods of the other that are made later change nothing.
func TestTheNewestTemplateCounts(t *testing.T) {
	s := newSite(t)
	web := build.Deployment("web", build.Replicas(2), build.Annotation(scheduling.MinMemberAnnotation, "2"))
	old := build.ReplicaSet("web-1", build.OwnedBy(web), build.Annotation("deployment.kubernetes.io/revision", "3"))
	other := build.ReplicaSet("web-2", build.OwnedBy(web), build.Annotation("deployment.kubernetes.io/revision", "2"))
	s.owners(web, old, other)
	s.Store.PutPod(memberOf("a", old, "web", requests("100m"), build.Created(s.clock.Now())))
	s.Store.PutPod(memberOf("b", other, "web", requests("700m"), build.Created(s.clock.Now().Add(time.Hour))))
	if err := s.pass("web"); err != nil {
		t.Fatal(err)
	}
	cpu, _, _ := unstructured.NestedString(s.written("web").Object, "spec", "minResources", "cpu")
	if cpu != "200m" {
		t.Errorf("minResources.cpu is %s, want twice 100m", cpu)
	}
}

// TestWhatNobodyNeedsIsCollected, and nothing else.
func TestWhatNobodyNeedsIsCollected(t *testing.T) {
	web := build.Deployment("web", build.Replicas(2))
	none := build.Deployment("web", build.Replicas(0))
	set := build.ReplicaSet("web-1", build.OwnedBy(web), build.Replicas(2))
	group := func(owner types.UID, ours bool, phase scheduling.PodGroupPhase) *gangs.Group {
		g := &gangs.Group{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: gang.Name("web"), UID: "group"}, Ours: ours, Phase: string(phase), Now: &gang.Applied{}}
		if owner != "" {
			g.Controller = &ownership.Reference{GroupVersionKind: build.Owner(build.Deployment("web")).GroupVersionKind, Name: "web", UID: owner}
		}
		if ours {
			g.Last = &gang.Applied{Owner: "web"}
		}
		return g
	}
	finished := build.With(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	tests := map[string]struct {
		group  *gangs.Group
		owners []build.Object
		pods   []*corev1.Pod
		unseen []runtime.Object // by our watch
		stays  bool
	}{
		"its owner makes pods again":                  {group("web", true, scheduling.PhaseRunning), []build.Object{web}, nil, nil, true},
		"its owner wants none":                        {group("web", true, scheduling.PhaseInqueue), []build.Object{none}, nil, nil, false},
		"its owner is gone":                           {group("web", true, scheduling.PhasePending), nil, nil, nil, false},
		"its owner has left it":                       {group("", true, scheduling.PhasePending), []build.Object{web}, nil, nil, false},
		"its owner has left it, and a person made it": {group("", false, scheduling.PhasePending), nil, nil, nil, true},
		"another controller made it":                  {group("web", false, scheduling.PhasePending), []build.Object{none}, nil, nil, false},
		"all is done":                                 {group("web", true, scheduling.PhaseCompleted), []build.Object{none}, nil, nil, true},
		"a live pod names it":                         {group("web", true, scheduling.PhasePending), []build.Object{none}, []*corev1.Pod{memberOf("a", set, "web")}, nil, true},
		"a finished pod names it":                     {group("web", true, scheduling.PhasePending), []build.Object{none}, []*corev1.Pod{memberOf("a", set, "web", finished)}, nil, false},
		"its pods are in another":                     {group("web", true, scheduling.PhasePending), []build.Object{web, set}, []*corev1.Pod{memberOf("a", set, "web-1")}, nil, false},
		"a pod that was not seen names it":            {group("web", true, scheduling.PhasePending), []build.Object{none}, nil, []runtime.Object{memberOf("a", set, "web")}, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, tc.unseen...)
			s.owners(tc.owners...)
			s.Store.PutGroup(tc.group)
			for _, pod := range tc.pods {
				s.Store.PutPod(pod)
			}
			deleted := func() bool {
				for _, action := range s.objects.Actions() {
					if action.GetVerb() == "delete" {
						return true
					}
				}
				return false
			}
			sc := &scope{key: tc.group.Key()}
			collect := func() {
				if err := s.observe(t.Context(), sc); err != nil {
					t.Fatal(err)
				}
				_ = s.collect(t.Context(), sc)
			}
			if collect(); deleted() {
				t.Error("it is deleted at once")
			}
			s.clock.Step(grace)
			if collect(); deleted() == tc.stays {
				t.Errorf("it is deleted: %t", !tc.stays)
			}
		})
	}
}

// TestAnOwnerThatGoesGetsNoPodGroup: the garbage collector would delete it again.
func TestAnOwnerThatGoesGetsNoPodGroup(t *testing.T) {
	s := newSite(t)
	s.web(build.Deleting("foregroundDeletion"))
	if err := s.pass("web"); err != nil || s.written("web") != nil {
		t.Errorf("it got one: %v", err)
	}
}

// TestNothingIsWrittenTwice: a watch that is behind costs no second write.
func TestNothingIsWrittenTwice(t *testing.T) {
	s := newSite(t)
	s.web()
	for range 3 {
		if err := s.pass("web"); err != nil {
			t.Fatal(err)
		}
	}
	var verbs []string
	for _, action := range s.objects.Actions() {
		verbs = append(verbs, action.GetVerb())
	}
	if diff := cmp.Diff([]string{"create"}, verbs); diff != "" {
		t.Errorf("wrong writes (-want +got):\n%s", diff)
	}
}

func TestAnnotationsThatCannotBeUsedAreTold(t *testing.T) {
	s := newSite(t)
	s.web(build.Annotation(scheduling.MinMemberAnnotation, "many"))
	for range 2 {
		if err := s.pass("web"); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.recorder.Events) != 1 {
		t.Fatalf("%d events, want one", len(s.recorder.Events))
	}
	if e := <-s.recorder.Events; !strings.Contains(e, ReasonInvalid) || !strings.Contains(e, `"many"`) {
		t.Errorf("the event is %s", e)
	}
}

// TestWrongRulesChangeNothing, and a replica that starts with them begins with the last
// that were right.
func TestWrongRulesChangeNothing(t *testing.T) {
	config := func(text, last string) *corev1.ConfigMap {
		c := &corev1.ConfigMap{Data: map[string]string{ownership.LevelsKey: text}}
		if last != "" {
			c.Annotations = map[string]string{LastGoodAnnotation: last}
		}
		return c
	}
	const one = "podgroupLevel: [{apiversion: apps/v1, kind: deployment}]"
	const two = "podgroupLevel: [{apiversion: apps/v1, kind: deployment}, {apiversion: batch/v1, kind: job}]"
	s := newSite(t)
	changes := 0
	r := &Rules{Resolver: s.Resolver, Leads: func() bool { return false }, onChange: func() { changes++ }}
	steps := []struct {
		config  *corev1.ConfigMap
		rules   int
		changes int
	}{
		{config("podgroupLevel: [", one), 1, 1}, {config("podgroupLevel: [", one), 1, 1}, {config(two, ""), 2, 2}, {config("noMatch: x", two), 2, 2},
		{config("other: 1\n"+two, ""), 2, 3}, {nil, 0, 4}, {config("", ""), 0, 4},
	}
	for i, step := range steps {
		r.Set(step.config)
		if got := gauge(t, "atoll_podgroup_rules"); got != float64(step.rules) {
			t.Errorf("step %d: the metric says %v rules", i, got)
		}
		if got := gauge(t, "atoll_podgroup_rules_rejected") == 1; got != (r.rejected != nil) {
			t.Errorf("step %d: the metric says rejected: %t", i, got)
		}
		if got := len(s.Resolver.Levels().Rules); got != step.rules || changes != step.changes {
			t.Errorf("step %d: %d rules after %d changes, want %d after %d", i, got, changes, step.rules, step.changes)
		}
	}
}

// TestAPodGroupThatIsDeletedAtOnceIsMadeAgain: no watch ever showed it (volcano #5972).
func TestAPodGroupThatIsDeletedAtOnceIsMadeAgain(t *testing.T) {
	s := newSite(t)
	s.web()
	key := types.NamespacedName{Namespace: build.Namespace, Name: gang.Name("web")}
	sc := &scope{key: key}
	if err := s.observe(t.Context(), sc); err != nil {
		t.Fatal(err)
	}
	result, err := phase.Run(t.Context(), sc, s.ensure)
	if err != nil || result.RequeueAfter == 0 || result.RequeueAfter > lag {
		t.Fatalf("it is looked at again after %s: %v", result.RequeueAfter, err)
	}
	if err := s.objects.Resource(gangs.Resource).Namespace(build.Namespace).Delete(t.Context(), key.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.clock.Step(result.RequeueAfter)
	if err := s.pass("web"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.objects.Resource(gangs.Resource).Namespace(build.Namespace).Get(t.Context(), key.Name, metav1.GetOptions{}); err != nil {
		t.Errorf("it is not made again: %v", err)
	}
}

// TestADeletionThatIsSeenIsNotForgotten: what we wrote a moment ago is no reason to wait.
func TestADeletionThatIsSeenIsNotForgotten(t *testing.T) {
	s := newSite(t)
	s.web()
	s.groups = &trigger.Source[ctrl.Request]{}
	if err := s.pass("web"); err != nil {
		t.Fatal(err)
	}
	made := s.made[types.NamespacedName{Namespace: build.Namespace, Name: gang.Name("web")}].value
	s.groupChanged(made, nil)
	if group, _ := s.group(made.Key()); group != nil {
		t.Errorf("it is taken for there")
	}
}

// TestPodsWhoseOwnerHasLeftThemKeepAPodGroup: one without an owner, where they would wait
// for ever; none for a name that a person gave.
func TestPodsWhoseOwnerHasLeftThemKeepAPodGroup(t *testing.T) {
	const uid = "0c9e7a51-6f3e-4b53-9f3d-8a4f5c6d7e8f"
	s := newSite(t)
	orphan := func(name, group string) *corev1.Pod {
		return build.Pod(name, build.Annotation(scheduling.GroupNameAnnotation, group), build.With(func(p *corev1.Pod) { p.Spec.SchedulerName = "volcano" }))
	}
	s.Store.PutPod(orphan("a", gang.Name(uid)))
	s.Store.PutPod(orphan("b", "podgroup-of-mine"))
	if err := errors.Join(s.pass(uid), s.pass("of-mine")); err != nil {
		t.Fatal(err)
	}
	if u := s.written(uid); u == nil || len(u.GetOwnerReferences()) != 0 {
		t.Errorf("the PodGroup is %v", u)
	}
	if s.written("of-mine") != nil {
		t.Error("a person's PodGroup was made")
	}
}

// TestAPodThatCannotBeReadKeepsNobodyElse from its PodGroup.
func TestAPodThatCannotBeReadKeepsNobodyElse(t *testing.T) {
	s := newSite(t)
	s.web()
	lost := build.ReplicaSet("lost") // the API server of the walk does not answer
	s.Store.PutPod(memberOf("b", lost, "web"))
	s.api.Fail(500)
	sc := &scope{key: types.NamespacedName{Namespace: build.Namespace, Name: gang.Name("web")}}
	if err := s.observe(t.Context(), sc); err == nil {
		t.Error("nobody knows of the other")
	}
	if err := s.ensure(t.Context(), sc); err != nil && s.written("web") == nil {
		t.Errorf("there is no PodGroup: %v", err)
	}
}

// TestHostileContentIsNotKept: a PodGroup that somebody made under the name of ours, with
// what we would have written last, is made right, and gets its owner.
func TestHostileContentIsNotKept(t *testing.T) {
	s := newSite(t)
	s.web()
	theirs := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "spec": map[string]any{"minMember": int64(1000)},
		"metadata": map[string]any{
			"name": gang.Name("web"), "namespace": build.Namespace, "uid": "theirs",
			"annotations": map[string]any{scheduling.AppliedAnnotation: `{"spec":{"minMember":1},"annotations":{}}`},
		},
	}}
	if _, err := s.objects.Resource(gangs.Resource).Namespace(build.Namespace).Create(t.Context(), theirs, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.written("web")
	if err := s.pass("web"); err != nil {
		t.Fatal(err)
	}
	u := s.written("web")
	if n, _, _ := unstructured.NestedInt64(u.Object, "spec", "minMember"); n != 1 || len(u.GetOwnerReferences()) != 1 {
		t.Errorf("minMember is %d, the owners are %v", n, u.GetOwnerReferences())
	}
}

// TestAPodGroupThatFinalizersHoldIsTold: its pods wait for it.
func TestAPodGroupThatFinalizersHoldIsTold(t *testing.T) {
	s := newSite(t)
	s.web()
	if err := s.pass("web"); err != nil {
		t.Fatal(err)
	}
	u := s.written("web")
	deleted := metav1.NewTime(s.clock.Now())
	u.SetDeletionTimestamp(&deleted)
	u.SetFinalizers([]string{"example.com/a", "example.com/b"})
	u.SetResourceVersion("2")
	s.Store.PutGroup(gangs.Slim(u))
	for _, step := range []struct {
		after  time.Duration
		events int
	}{{0, 0}, {lag, 1}, {lag, 0}} {
		s.clock.Step(step.after)
		if err := s.pass("web"); err != nil {
			t.Fatal(err)
		}
		if len(s.recorder.Events) != step.events {
			t.Fatalf("%d events, want %d", len(s.recorder.Events), step.events)
		}
		for range step.events {
			if e := <-s.recorder.Events; !strings.Contains(e, ReasonHeld) || !strings.Contains(e, "example.com/a, example.com/b") {
				t.Errorf("the event is %s", e)
			}
		}
	}
}

// TestWhoeverTakesAwayWhatIsWrittenGetsItSlowly: the same is written again after longer
// and longer waits, and something else at once.
func TestWhoeverTakesAwayWhatIsWrittenGetsItSlowly(t *testing.T) {
	s := newSite(t)
	s.web()
	if err := s.pass("web"); err != nil {
		t.Fatal(err)
	}
	writes, version := func() int { return len(s.objects.Actions()) }, 10
	// takeAway is what somebody else does each time.
	takeAway := func() {
		u := s.written("web").DeepCopy()
		u.SetLabels(nil)
		u.SetOwnerReferences(nil)
		version++
		u.SetResourceVersion(strconv.Itoa(version))
		if _, err := s.objects.Resource(gangs.Resource).Namespace(build.Namespace).Update(t.Context(), u, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.written("web")
		delete(s.made, types.NamespacedName{Namespace: build.Namespace, Name: gang.Name("web")})
	}
	patches := 0
	for range 600 { // a minute
		takeAway()
		before := writes()
		if err := s.pass("web"); err != nil {
			t.Fatal(err)
		}
		if writes() != before {
			patches++
		}
		s.clock.Step(100 * time.Millisecond)
	}
	if patches < 5 || patches > 12 {
		t.Errorf("written %d times in a minute, want fewer and fewer", patches)
	}
	if len(s.recorder.Events) == 0 {
		t.Fatal("nobody is told")
	}
	if e := <-s.recorder.Events; !strings.Contains(e, ReasonContested) || !strings.Contains(e, "takes away") {
		t.Errorf("the event is %s", e)
	}
	takeAway()
	s.web(build.Annotation("volcano.sh/sla-waiting-time", "1h"))
	if err := s.pass("web"); err != nil {
		t.Fatal(err)
	}
	if got := s.written("web").GetAnnotations()["volcano.sh/sla-waiting-time"]; got != "1h" {
		t.Errorf("the annotation is %q: another content waits as well", got)
	}
}

// TestRulesThatChangeAllTheTimeMoveNoPod: one moves once rules have been in force for a
// while.
func TestRulesThatChangeAllTheTimeMoveNoPod(t *testing.T) {
	web := build.Deployment("web", build.Replicas(1))
	set := build.ReplicaSet("web-1", build.OwnedBy(web))
	pod := memberOf("a", set, "web-1")
	s := newSite(t, pod)
	s.owners(web, set)
	s.Store.PutPod(pod)
	key := types.NamespacedName{Namespace: build.Namespace, Name: "a"}
	rules := func(text string) {
		levels, _, err := ownership.ParseLevels(text)
		if err != nil {
			t.Fatal(err)
		}
		s.Resolver.SetLevels(levels, s.clock.Now())
	}
	const deployments = "podgroupLevel: [{apiversion: apps/v1, kind: deployment, adjust-level: 0}]\nmigrate: Pending"
	moved := func() bool {
		if _, err := s.nameSeen(t.Context(), s.Store.Pod(key)); err != nil {
			t.Fatal(err)
		}
		got, err := s.Pods.CoreV1().Pods(key.Namespace).Get(t.Context(), key.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return got.Annotations[scheduling.GroupNameAnnotation] == gang.Name("web")
	}
	for range 20 {
		rules("migrate: Pending")
		s.clock.Step(settled / 2)
		rules(deployments)
		if moved() {
			t.Fatal("it moves while the rules change all the time")
		}
		s.clock.Step(settled / 2)
		if moved() {
			t.Fatal("it moves while the rules change all the time")
		}
	}
	s.clock.Step(settled)
	if !moved() {
		t.Error("it does not move")
	}
}

// TestRulesThatCannotBeReadAreTold, once, and by a metric until they can be.
func TestRulesThatCannotBeReadAreTold(t *testing.T) {
	client, recorder := fake.NewClientset(), events.NewFakeRecorder(10)
	forbidden := true
	client.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		if forbidden {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "rules", errors.New("no"))
		}
		return false, nil, nil
	})
	r := &Rules{
		Client: client, ConfigMap: types.NamespacedName{Namespace: "ns", Name: "rules"}, Resolver: &gangs.Resolver{},
		Recorder: recorder, Leads: func() bool { return true },
	}
	for i, want := range []struct {
		forbidden bool
		events    int
	}{{true, 1}, {true, 0}, {false, 0}, {true, 1}} {
		forbidden = want.forbidden
		r.look(t.Context())
		if got := gauge(t, "atoll_podgroup_rules_unreadable") == 1; got != want.forbidden || len(recorder.Events) != want.events {
			t.Errorf("step %d: unreadable: %t, %d events", i, got, len(recorder.Events))
		}
		for range want.events {
			if e := <-recorder.Events; !strings.Contains(e, ReasonRulesUnreadable) || !strings.Contains(e, "pods get no PodGroups") {
				t.Errorf("the event is %s", e)
			}
		}
	}
}

// TestOneListCollectsMany: three hundred ReplicaSets that go to none cost one list.
func TestOneListCollectsMany(t *testing.T) {
	var l lists
	asked := 0
	list := func(context.Context, string) (map[string]bool, error) {
		asked++
		return map[string]bool{"podgroup-7": true}, nil
	}
	idle := time.Now().Add(-grace)
	for i := range 300 {
		key := types.NamespacedName{Namespace: "ns", Name: fmt.Sprintf("podgroup-%d", i)}
		if named, err := l.named(t.Context(), key, idle, list); err != nil || named != (i == 7) {
			t.Errorf("%s is named: %t, %v", key.Name, named, err)
		}
	}
	if _, err := l.named(t.Context(), types.NamespacedName{Namespace: "ns"}, time.Now(), list); err != nil || asked != 2 {
		t.Errorf("%d lists, want one, and one more for what came later: %v", asked, err)
	}
}

// gauge is what a metric says.
func gauge(t *testing.T, name string) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

func TestPatchesCarryTheUID(t *testing.T) {
	pod := memberOf("a", build.ReplicaSet("web-1"), "", build.With(func(p *corev1.Pod) {
		delete(p.Annotations, scheduling.GroupNameAnnotation)
		p.ResourceVersion = "7"
	}))
	s := newSite(t, pod)
	s.owners(build.ReplicaSet("web-1"))
	s.Store.PutPod(pod)
	slim := s.Store.Pod(types.NamespacedName{Namespace: build.Namespace, Name: "a"})
	if !slim.Unnamed() {
		t.Fatal("the pod is not to be named")
	}
	if err := s.write(t.Context(), slim, "podgroup-web-1"); err != nil {
		t.Fatal(err)
	}
	for _, action := range s.Pods.(*fake.Clientset).Actions() {
		patch, ok := action.(interface{ GetPatch() []byte })
		if !ok {
			continue
		}
		var body struct{ Metadata metav1.ObjectMeta }
		if err := json.Unmarshal(patch.GetPatch(), &body); err != nil || body.Metadata.UID != "a" || body.Metadata.ResourceVersion != pod.ResourceVersion {
			t.Errorf("the patch is %s: %v", patch.GetPatch(), err)
		}
	}
}
