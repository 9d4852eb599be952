package podgroup

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
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
	"k8s.io/client-go/util/workqueue"
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

// site is a reconciler with caches that the test fills, and API servers that store its
// writes.
type site struct {
	*Reconciler
	t        *testing.T
	clock    *testingclock.FakeClock
	recorder *events.FakeRecorder
	walker   *owners.Walker
	objects  *dynamicfake.FakeDynamicClient
	api      *build.API
	// after is the requeue delay of the last pass.
	after time.Duration
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
		named: map[types.UID]write[string]{}, made: map[types.NamespacedName]write[*gangs.Group]{}, idle: map[types.NamespacedName]time.Time{},
	}
	return s
}

func (s *site) owners(all ...build.Object) {
	for _, o := range all {
		s.walker.Put(build.Owner(o))
	}
}

// web adds a Deployment with one pod, which names its PodGroup.
func (s *site) web(options ...build.Option) {
	web := build.Deployment("web", append(options, build.Replicas(1))...)
	set := build.ReplicaSet("web-1", build.OwnedBy(web))
	s.owners(web, set)
	s.Store.PutPod(memberOf("a", set, "web"))
}

// pass runs one pass for the PodGroup of an owner.
func (s *site) pass(owner string) error {
	s.t.Helper()
	sc := &scope{key: types.NamespacedName{Namespace: build.Namespace, Name: gang.Name(types.UID(owner))}}
	if err := s.observe(s.t.Context(), sc); err != nil {
		return err
	}
	result, err := phase.Run(s.t.Context(), sc, s.ensure, s.collect)
	s.after = result.RequeueAfter
	return err
}

// written reads the PodGroup of an owner from the API server, or returns nil. It puts it into
// the store.
func (s *site) written(owner string) *unstructured.Unstructured {
	s.t.Helper()
	u, err := s.objects.Resource(gangs.Resource).Namespace(build.Namespace).Get(s.t.Context(), gang.Name(types.UID(owner)), metav1.GetOptions{})
	if err != nil {
		return nil
	}
	s.Store.PutGroup(gangs.Slim(u).Bounded())
	return u
}

// memberOf returns a pod of an owner that names a PodGroup.
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

// TestPodGroupUsesTheNewestTemplate: after a rollback the older ReplicaSet has the newest template.
// Younger pods of the other ReplicaSet change nothing.
func TestPodGroupUsesTheNewestTemplate(t *testing.T) {
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

// TestUnneededPodGroupsAreDeleted: PodGroups that no pod needs are deleted, and no others.
func TestUnneededPodGroupsAreDeleted(t *testing.T) {
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
		unseen []runtime.Object // by the watch
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
				t.Errorf("deleted: %t", !tc.stays)
			}
		})
	}
}

// TestForegroundDeletedOwnerGetsNoPodGroup: the garbage collector would delete it again.
func TestForegroundDeletedOwnerGetsNoPodGroup(t *testing.T) {
	s := newSite(t)
	s.web(build.Deleting("foregroundDeletion"))
	if err := s.pass("web"); err != nil || s.written("web") != nil {
		t.Errorf("it got one: %v", err)
	}
}

// TestOrphaningOwnerGetsNoOwnerReference: with kubectl delete --cascade=orphan the garbage
// collector removes the owner references of the dependents one by one. A PodGroup that gets
// the reference back would be deleted under live pods.
func TestOrphaningOwnerGetsNoOwnerReference(t *testing.T) {
	for name, made := range map[string]bool{"in a PodGroup that is there": true, "in a new one": false} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.web()
			if made {
				if err := s.pass("web"); err != nil {
					t.Fatal(err)
				}
				u := s.written("web").DeepCopy()
				u.SetOwnerReferences(nil)
				u.SetResourceVersion("2")
				if _, err := s.objects.Resource(gangs.Resource).Namespace(build.Namespace).Update(t.Context(), u, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			s.web(build.Deleting(metav1.FinalizerOrphanDependents))
			for range 3 {
				s.written("web")
				delete(s.made, types.NamespacedName{Namespace: build.Namespace, Name: gang.Name("web")})
				if err := s.pass("web"); err != nil {
					t.Fatal(err)
				}
				s.clock.Step(time.Second)
			}
			if u := s.written("web"); u == nil || len(u.GetOwnerReferences()) > 0 {
				t.Errorf("the PodGroup is %v, want one without an owner", u)
			}
			if len(s.recorder.Events) > 0 {
				t.Errorf("unexpected event: %s", <-s.recorder.Events)
			}
		})
	}
}

// TestOwnerHeldByAFinalizerGetsAPodGroup: a finalizer delays its deletion, perhaps
// until these pods have ended.
func TestOwnerHeldByAFinalizerGetsAPodGroup(t *testing.T) {
	s := newSite(t)
	s.web(build.Deleting("workflows.argoproj.io/artifact-gc"))
	if err := s.pass("web"); err != nil || s.written("web") == nil {
		t.Errorf("it got none: %v", err)
	}
}

// TestStaleWatchCausesNoSecondWrite: a watch that is behind causes no second write.
func TestStaleWatchCausesNoSecondWrite(t *testing.T) {
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

func TestInvalidAnnotationEmitsOneEvent(t *testing.T) {
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
	if e := <-s.recorder.Events; !strings.Contains(e, ReasonPodGroupAnnotationInvalid) || !strings.Contains(e, `"many"`) {
		t.Errorf("the event is %s", e)
	}
}

// TestWrongRulesChangeNothing, and a replica that starts while they are invalid uses the last
// valid ones.
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
		{config("other: 1\n"+two, ""), 2, 3},
		// An upgrade of Volcano's chart writes its own text, which has no rules. A person may say so.
		{config("other: 1", one), 2, 3}, {config("", ""), 2, 3}, {config("podgroupLevel: []", ""), 0, 4}, {config("", one), 0, 5},
		{config(two, ""), 2, 6}, {nil, 0, 7}, {config("", ""), 0, 7},
		{config("noMatch: Root", ""), 0, 8}, {config("queues: []", ""), 0, 8},
	}
	for i, step := range steps {
		r.Set(step.config)
		if got := gauge(t, "atoll_podgroup_rules"); got != float64(step.rules) {
			t.Errorf("step %d: the metric of rules is %v", i, got)
		}
		if got := gauge(t, "atoll_podgroup_rules_rejected") == 1; got != (r.rejected != nil) {
			t.Errorf("step %d: the metric of rejected rules is %t", i, got)
		}
		if got := len(s.Resolver.Levels().Rules); got != step.rules || changes != step.changes {
			t.Errorf("step %d: %d rules after %d changes, want %d after %d", i, got, changes, step.rules, step.changes)
		}
	}
}

// TestPodGroupDeletedAtOnceIsRecreated: the watch never delivered it (volcano #5972).
func TestPodGroupDeletedAtOnceIsRecreated(t *testing.T) {
	s := newSite(t)
	s.web()
	key := types.NamespacedName{Namespace: build.Namespace, Name: gang.Name("web")}
	sc := &scope{key: key}
	if err := s.observe(t.Context(), sc); err != nil {
		t.Fatal(err)
	}
	result, err := phase.Run(t.Context(), sc, s.ensure)
	if err != nil || result.RequeueAfter == 0 || result.RequeueAfter > lag {
		t.Fatalf("it is reconciled again after %s: %v", result.RequeueAfter, err)
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

// TestObservedPodGroupDeletionIsNotHidden: a write just before the deletion does not hide it.
func TestObservedPodGroupDeletionIsNotHidden(t *testing.T) {
	s := newSite(t)
	s.web()
	s.groups = &trigger.Source[ctrl.Request]{}
	if err := s.pass("web"); err != nil {
		t.Fatal(err)
	}
	made := s.made[types.NamespacedName{Namespace: build.Namespace, Name: gang.Name("web")}].value
	s.groupChanged(made, nil)
	if group, _ := s.group(made.Key()); group != nil {
		t.Errorf("the deleted PodGroup still counts as existing")
	}
}

// TestOrphanedPodsKeepAPodGroup: without one they would stay Pending for ever. It
// has no owner. A PodGroup with a name that a person chose is not created.
func TestOrphanedPodsKeepAPodGroup(t *testing.T) {
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
		t.Error("the PodGroup of a person was created")
	}
}

// TestPodsOfADeletedOwnerGetNoPodGroup: the garbage collector is about to delete them. A PodGroup
// without an owner would reserve resources for them.
func TestPodsOfADeletedOwnerGetNoPodGroup(t *testing.T) {
	const uid = "0c9e7a51-6f3e-4b53-9f3d-8a4f5c6d7e8f"
	s := newSite(t)
	set := build.ReplicaSet("web-1", build.OwnedBy(build.Deployment("web", build.With(func(d *appsv1.Deployment) { d.UID = uid }))))
	s.Walker.Put(build.Owner(set))
	s.Store.PutPod(memberOf("a", set, uid))
	if err := s.pass(uid); err != nil {
		t.Fatal(err)
	}
	if u := s.written(uid); u != nil {
		t.Errorf("the PodGroup is %v", u)
	}
}

// TestOwnerScaledToZeroGetsNoOtherPodGroup: Volcano's controller deletes the PodGroup of an owner
// that is scaled to 0, at each of its updates. Pods without a node get one still, and so does an
// owner that is scaled up again.
func TestOwnerScaledToZeroGetsNoOtherPodGroup(t *testing.T) {
	s := newSite(t)
	scale := func(replicas int32) build.Object {
		db := build.StatefulSet("db", build.Replicas(replicas))
		s.owners(db)
		return db
	}
	exists := func(want bool, why string) {
		t.Helper()
		if err := s.pass("db"); err != nil {
			t.Fatal(err)
		}
		if u := s.written("db"); (u != nil) != want {
			t.Errorf("%s: the PodGroup is %v", why, u)
		}
	}
	on := func(node string) build.Option { return build.With(func(p *corev1.Pod) { p.Spec.NodeName = node }) }
	db := scale(0)
	s.Store.PutPod(memberOf("db-0", db, "db", on("n")))
	exists(false, "scaled to 0")
	s.Store.PutPod(memberOf("db-1", db, "db"))
	exists(true, "a pod has no node")

	s = newSite(t)
	s.Store.PutPod(memberOf("db-0", scale(1), "db", on("n")))
	exists(true, "scaled up")
}

// TestPodGroupWrittenByAnotherClientFirstIsReported: the webhook cannot name the PodGroup of a pod
// that a rule gives its own, and Volcano's controller may be the first.
func TestPodGroupWrittenByAnotherClientFirstIsReported(t *testing.T) {
	for name, c := range map[string]struct {
		rules string
		age   time.Duration // of the pod; the rules are in force for one minute
		want  int
	}{
		"the pod itself":            {"podgroupLevel: [{apiversion: apps/v1, kind: replicaset, adjust-level: -1}]", time.Second, 1},
		"older than the rules":      {"podgroupLevel: [{apiversion: apps/v1, kind: replicaset, adjust-level: -1}]", 2 * time.Minute, 0},
		"just after the rules":      {"podgroupLevel: [{apiversion: apps/v1, kind: replicaset, adjust-level: -1}]", 58 * time.Second, 0},
		"a rule for its ReplicaSet": {"podgroupLevel: [{apiversion: apps/v1, kind: replicaset}]", time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			levels, _, err := ownership.ParseLevels(c.rules)
			if err != nil {
				t.Fatal(err)
			}
			s.Resolver.SetLevels(levels, s.clock.Now())
			s.clock.Step(time.Minute)
			set := build.ReplicaSet("web-1", build.Replicas(1))
			s.owners(set)
			s.Store.PutPod(memberOf("a", set, "web-1", build.With(func(p *corev1.Pod) {
				p.CreationTimestamp = metav1.NewTime(s.clock.Now().Add(-c.age))
			})))
			if err := s.pass("web-1"); err != nil {
				t.Fatal(err)
			}
			if got := s.Rules.stillUnread(t.Context()); len(got) != c.want {
				t.Errorf("reported: %q", got)
			}
		})
	}
}

// TestPodWithUnreadableOwnerBlocksNoOther: other pods get their PodGroup.
func TestPodWithUnreadableOwnerBlocksNoOther(t *testing.T) {
	s := newSite(t)
	s.web()
	lost := build.ReplicaSet("lost") // reads of it fail
	s.Store.PutPod(memberOf("b", lost, "web"))
	s.api.Fail(500)
	sc := &scope{key: types.NamespacedName{Namespace: build.Namespace, Name: gang.Name("web")}}
	if err := s.observe(t.Context(), sc); err == nil {
		t.Error("no error about the pod whose owner cannot be read")
	}
	if err := s.ensure(t.Context(), sc); err != nil && s.written("web") == nil {
		t.Errorf("there is no PodGroup: %v", err)
	}
}

// TestOwnerChangeEnqueuesItsMissingPodGroup: it may exist again once the owner wants
// pods.
func TestOwnerChangeEnqueuesItsMissingPodGroup(t *testing.T) {
	s := newSite(t)
	s.web()
	s.groups = &trigger.Source[ctrl.Request]{}
	queue := queued(t, s.groups)
	s.ownerChanged(nil, build.Owner(build.Deployment("web", build.Replicas(1))))
	build.Eventually(t, "it is enqueued", func() bool { return queue.Len() == 1 })
	want := types.NamespacedName{Namespace: build.Namespace, Name: gang.Name("web")}
	if got, _ := queue.Get(); got.NamespacedName != want {
		t.Errorf("%s is enqueued, want %s", got, want)
	}
}

// queued starts the source of a controller, and returns its queue.
func queued(t *testing.T, source *trigger.Source[ctrl.Request]) workqueue.TypedRateLimitingInterface[ctrl.Request] {
	t.Helper()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[ctrl.Request]())
	t.Cleanup(queue.ShutDown)
	if err := source.Start(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	return queue
}

// TestMinMemberExcludesPodsOfOtherPodGroups: minMember counts no pods that stay in another
// PodGroup, such as those with a node that Volcano's PodGroup of their ReplicaSet has.
func TestMinMemberExcludesPodsOfOtherPodGroups(t *testing.T) {
	ended := build.With(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
	tests := map[string]struct {
		rules  string
		others []build.Option // of pods in the PodGroup of the ReplicaSet
		want   int64
	}{
		"three stay where they are":              {"", []build.Option{build.On("n"), build.On("n"), build.On("n")}, 1},
		"all stay, and a rollout adds one":       {"", []build.Option{build.On("n"), build.On("n"), build.On("n"), build.On("n")}, 1},
		"one has ended":                          {"", []build.Option{build.On("n"), build.On("n"), ended}, 2},
		"one is being deleted":                   {"", []build.Option{build.On("n"), build.On("n"), build.Deleting("x")}, 2},
		"those without a node are about to come": {"migrate: Pending", []build.Option{build.On("n"), build.Label("a", "b"), build.Label("a", "b")}, 3},
		"those without a node stay too":          {"", []build.Option{build.On("n"), build.Label("a", "b"), build.Label("a", "b")}, 1},
		"a person named another":                 {"migrate: Pending", []build.Option{build.Annotation(scheduling.GroupNameAnnotation, "mine")}, 3},
		"by the key that is not read":            {"", []build.Option{build.With(func(p *corev1.Pod) { p.Annotations = map[string]string{scheduling.VolcanoGroupNameAnnotation: "mine"} })}, 3},
		"one is still to be named":               {"", []build.Option{build.With(func(p *corev1.Pod) { p.Annotations = nil })}, 4},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			levels, _, err := ownership.ParseLevels(tc.rules)
			if err != nil {
				t.Fatal(err)
			}
			s.Resolver.SetLevels(levels, s.clock.Now())
			web := build.Deployment("web", build.Replicas(4), build.Annotation(scheduling.MinMemberAnnotation, "4"))
			set := build.ReplicaSet("web-1", build.OwnedBy(web), build.Replicas(4))
			s.owners(web, set)
			for i, option := range tc.others {
				s.Store.PutPod(memberOf(fmt.Sprint("old-", i), set, "web-1", option))
			}
			s.Store.PutPod(memberOf("new", set, "web"))
			if err := s.pass("web"); err != nil {
				t.Fatal(err)
			}
			if n, _, _ := unstructured.NestedInt64(s.written("web").Object, "spec", "minMember"); n != tc.want {
				t.Errorf("minMember is %d, want %d", n, tc.want)
			}
		})
	}
}

// TestPodEndEnqueuesRelatedPodGroups: it can have more members then. The events of
// a pod and of its ReplicaSet arrive in any order.
func TestPodEndEnqueuesRelatedPodGroups(t *testing.T) {
	web := build.Deployment("web", build.Replicas(4))
	set := build.ReplicaSet("web-1", build.OwnedBy(web), build.Replicas(4))
	slim := func(s *site, options ...build.Option) *gangs.Pod {
		s.Store.PutPod(memberOf("old", set, "web-1", options...))
		return s.Store.Pod(types.NamespacedName{Namespace: build.Namespace, Name: "old"})
	}
	for name, change := range map[string]func(s *site){
		"it has ended": func(s *site) {
			s.podChanged(slim(s), slim(s, build.With(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })))
		},
		"it is being deleted":        func(s *site) { s.podChanged(slim(s), slim(s, build.Deleting("x"))) },
		"it got a node":              func(s *site) { s.podChanged(slim(s), slim(s, build.On("n"))) },
		"it is gone":                 func(s *site) { s.podChanged(slim(s), nil) },
		"its ReplicaSet is gone":     func(s *site) { s.walker.Drop(set.UID); s.ownerChanged(build.Owner(set), nil) },
		"its ReplicaSet wants fewer": func(s *site) { s.ownerChanged(build.Owner(set), build.Owner(set)) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.pods, s.groups = &trigger.Source[ctrl.Request]{}, &trigger.Source[ctrl.Request]{}
			queue := queued(t, s.groups)
			s.owners(web, set)
			key := types.NamespacedName{Namespace: build.Namespace, Name: gang.Name("web")}
			s.Store.PutGroup(&gangs.Group{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}})
			change(s)
			looked := map[types.NamespacedName]bool{}
			build.Eventually(t, "the PodGroup of the Deployment is enqueued", func() bool {
				for queue.Len() > 0 {
					request, _ := queue.Get()
					queue.Done(request)
					looked[request.NamespacedName] = true
				}
				return looked[key]
			})
		})
	}
}

// TestMinMemberCountsPodsOwnedByAPod: the controller of Spark executors is their driver, which is a
// pod.
func TestMinMemberCountsPodsOwnedByAPod(t *testing.T) {
	s := newSite(t)
	driver := build.Pod("driver")
	s.owners(driver)
	for i := range 3 {
		s.Store.PutPod(memberOf(fmt.Sprint("exec-", i), driver, "driver", build.Annotation(scheduling.MinMemberAnnotation, "3")))
	}
	s.Store.PutPod(build.Pod("alone", build.Annotation(scheduling.GroupNameAnnotation, gang.Name("alone")), build.Annotation(scheduling.MinMemberAnnotation, "3")))
	for owner, want := range map[string]int64{"driver": 3, "alone": 1} {
		if err := s.pass(owner); err != nil {
			t.Fatal(err)
		}
		if n, _, _ := unstructured.NestedInt64(s.written(owner).Object, "spec", "minMember"); n != want {
			t.Errorf("minMember of %s is %d, want %d", owner, n, want)
		}
	}
}

// TestForgedPodGroupContentIsCorrected: another client created the PodGroup under a generated name,
// with a forged annotation. It is corrected, and gets its owner.
func TestForgedPodGroupContentIsCorrected(t *testing.T) {
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

// TestLargePodGroupIsReconciledByALiveRead: somebody wrote so much into the PodGroup that its
// content is not kept. It is kept right as any other, and is not written without need.
func TestLargePodGroupIsReconciledByALiveRead(t *testing.T) {
	s := newSite(t)
	s.web()
	if err := s.pass("web"); err != nil {
		t.Fatal(err)
	}
	u := s.written("web")
	annotations := u.GetAnnotations()
	annotations["large"] = strings.Repeat("x", 100_000)
	u.SetAnnotations(annotations)
	if _, err := s.objects.Resource(gangs.Resource).Namespace(build.Namespace).Update(t.Context(), u, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.written("web")
	if group := s.Store.Group(types.NamespacedName{Namespace: build.Namespace, Name: gang.Name("web")}); group.Omitted == 0 || group.Now.Annotations != nil {
		t.Fatalf("the content is kept: %.200v", group)
	}
	for range 2 {
		s.objects.ClearActions()
		if err := s.pass("web"); err != nil {
			t.Fatal(err)
		}
		for _, action := range s.objects.Actions() {
			if action.GetVerb() != "get" {
				t.Fatalf("%s without need", action.GetVerb())
			}
		}
	}
	s.web(build.Annotation(scheduling.QueueNameAnnotation, "fast"))
	if err := s.pass("web"); err != nil {
		t.Fatal(err)
	}
	u = s.written("web")
	if queue, _, _ := unstructured.NestedString(u.Object, "spec", "queue"); queue != "fast" || u.GetAnnotations()["large"] == "" {
		t.Errorf("the queue is %q, and of the annotation %d bytes are left", queue, len(u.GetAnnotations()["large"]))
	}
}

// TestRevertedPodGroupWritesBackOff: the same content is written again after
// longer and longer waits, and other content at once.
func TestRevertedPodGroupWritesBackOff(t *testing.T) {
	s := newSite(t)
	s.web()
	if err := s.pass("web"); err != nil {
		t.Fatal(err)
	}
	writes, version := func() int { return len(s.objects.Actions()) }, 10
	// takeAway reverts each write, as another client.
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
		} else if s.after <= 0 || s.after > rewriteLast {
			t.Fatalf("it is reconciled again after %s", s.after)
		}
		s.clock.Step(100 * time.Millisecond)
	}
	if patches < 5 || patches > 12 {
		t.Errorf("written %d times in a minute, want longer and longer waits", patches)
	}
	if len(s.recorder.Events) == 0 {
		t.Fatal("no event is recorded")
	}
	if e := <-s.recorder.Events; !strings.Contains(e, ReasonPodGroupContested) || !strings.Contains(e, "removes its owner reference") {
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

// strips removes keys of atoll-manager in every write of a PodGroup, as an admission webhook
// does. With counts, each write gets a new resourceVersion.
func (s *site) strips(takeAway func(*unstructured.Unstructured), counts bool) {
	version := 100
	strip := func(u *unstructured.Unstructured) *unstructured.Unstructured {
		takeAway(u)
		if counts || u.GetResourceVersion() == "" {
			version++
			u.SetResourceVersion(strconv.Itoa(version))
		}
		return u
	}
	tracker := s.objects.Tracker()
	s.objects.PrependReactor("create", "podgroups", func(action clienttesting.Action) (bool, runtime.Object, error) {
		u := strip(action.(clienttesting.CreateAction).GetObject().(*unstructured.Unstructured).DeepCopy())
		return true, u, tracker.Create(gangs.Resource, u, build.Namespace)
	})
	s.objects.PrependReactor("patch", "podgroups", func(action clienttesting.Action) (bool, runtime.Object, error) {
		obj, err := tracker.Get(gangs.Resource, build.Namespace, action.(clienttesting.PatchAction).GetName())
		if err != nil {
			return true, nil, err
		}
		u := obj.(*unstructured.Unstructured).DeepCopy()
		var body struct{ Metadata metav1.ObjectMeta }
		if err := json.Unmarshal(action.(clienttesting.PatchAction).GetPatch(), &body); err != nil {
			return true, nil, err
		}
		labels, annotations := u.GetLabels(), u.GetAnnotations()
		if labels == nil {
			labels = map[string]string{}
		}
		if annotations == nil {
			annotations = map[string]string{}
		}
		maps.Copy(labels, body.Metadata.Labels)
		maps.Copy(annotations, body.Metadata.Annotations)
		u.SetLabels(labels)
		u.SetAnnotations(annotations)
		if len(body.Metadata.OwnerReferences) > 0 {
			u.SetOwnerReferences(body.Metadata.OwnerReferences)
		}
		strip(u)
		return true, u, tracker.Update(gangs.Resource, u, build.Namespace)
	})
}

// TestWritesRevertedByAdmissionBackOff: a write that admission reverts is repeated with backoff,
// like one that another client reverts later.
func TestWritesRevertedByAdmissionBackOff(t *testing.T) {
	for name, takeAway := range map[string]func(*unstructured.Unstructured){
		"the label":      func(u *unstructured.Unstructured) { u.SetLabels(nil) },
		"the annotation": func(u *unstructured.Unstructured) { u.SetAnnotations(nil) },
		"another annotation": func(u *unstructured.Unstructured) {
			u.SetAnnotations(map[string]string{scheduling.AppliedAnnotation: "{}"})
		},
		"the owner": func(u *unstructured.Unstructured) { u.SetOwnerReferences(nil) },
		"all":       func(u *unstructured.Unstructured) { u.SetLabels(nil); u.SetAnnotations(nil); u.SetOwnerReferences(nil) },
	} {
		for _, counts := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, and it is a change: %t", name, counts), func(t *testing.T) {
				s := newSite(t)
				s.strips(takeAway, counts)
				s.web()
				patches, minutes := 0, 10
				for elapsed := time.Duration(0); elapsed < time.Duration(minutes)*time.Minute && patches <= 100; {
					before := len(s.objects.Actions())
					if err := s.pass("web"); err != nil {
						t.Fatal(err)
					}
					next := s.after
					for _, action := range s.objects.Actions()[before:] {
						if action.GetVerb() == "patch" {
							patches++
							if counts { // the watch delivers the write
								next = debounce
							}
						}
					}
					s.written("web")
					if next <= 0 {
						t.Fatal("it is not reconciled again")
					}
					s.clock.Step(next)
					elapsed += next
				}
				if patches < minutes/2 || patches > 2*minutes || len(s.recorder.Events) != 1 {
					t.Errorf("%d patches within %d minutes and %d events, want about one a minute, and one event", patches, minutes, len(s.recorder.Events))
				}
			})
		}
	}
}

// TestStaleWatchHidesNoDeletedPodGroup: it was deleted or replaced, and the watch is behind.
// It is created, or the new one is read.
func TestStaleWatchHidesNoDeletedPodGroup(t *testing.T) {
	for name, replaced := range map[string]bool{"it is gone": false, "there is another": true} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.web()
			if err := s.pass("web"); err != nil {
				t.Fatal(err)
			}
			u := s.written("web") // the last state that the watch delivers
			client := s.objects.Resource(gangs.Resource).Namespace(build.Namespace)
			if err := client.Delete(t.Context(), u.GetName(), metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if replaced {
				s.objects.PrependReactor("patch", "podgroups", func(action clienttesting.Action) (bool, runtime.Object, error) {
					var body struct{ Metadata metav1.ObjectMeta }
					if err := json.Unmarshal(action.(clienttesting.PatchAction).GetPatch(), &body); err != nil || body.Metadata.UID == "another" {
						return false, nil, err
					}
					return true, nil, apierrors.NewConflict(gangs.Resource.GroupResource(), u.GetName(), errors.New("Precondition failed: UID in precondition: a, UID in object meta: another"))
				})
				another := u.DeepCopy()
				another.SetUID("another")
				another.SetResourceVersion("9")
				if _, err := client.Create(t.Context(), another, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				u.SetResourceVersion("8")
				s.Store.PutGroup(gangs.Slim(u))
			}
			s.web(build.Annotation("volcano.sh/a", "b"))
			before := len(s.objects.Actions())
			for elapsed := time.Duration(0); elapsed < time.Minute; elapsed += s.after {
				if err := s.pass("web"); err != nil {
					t.Fatal(err)
				}
				if s.after <= 0 {
					break
				}
				s.clock.Step(s.after)
			}
			calls := len(s.objects.Actions()) - before
			if is, err := client.Get(t.Context(), u.GetName(), metav1.GetOptions{}); err != nil || is.GetAnnotations()["volcano.sh/a"] != "b" {
				t.Errorf("the PodGroup is %v: %v", is, err)
			}
			if calls > 30 {
				t.Errorf("%d calls within a minute", calls)
			}
		})
	}
}

// TestUnsettledRulesMoveNoPod: a pod moves once rules have been in force for
// settled.
func TestUnsettledRulesMoveNoPod(t *testing.T) {
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

// TestPodKeepsAPodGroupNamedByItsUser: a pod keeps the PodGroup that its user named, even if rules
// move pods without a node and the name has the prefix of generated names.
func TestPodKeepsAPodGroupNamedByItsUser(t *testing.T) {
	set := build.ReplicaSet("web-1")
	pod := memberOf("a", set, "x")
	s := newSite(t, pod)
	s.owners(set)
	s.Store.PutPod(pod)
	s.Resolver.SetLevels(ownership.Levels{MovePending: true}, s.clock.Now())
	s.clock.Step(settled)
	slim := s.Store.Pod(types.NamespacedName{Namespace: build.Namespace, Name: "a"})
	if !s.mayMove(slim) {
		t.Fatal("it is not enqueued")
	}
	if _, err := s.nameSeen(t.Context(), slim); err != nil {
		t.Fatal(err)
	}
	got, err := s.Pods.CoreV1().Pods(build.Namespace).Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || got.Annotations[scheduling.GroupNameAnnotation] != "podgroup-x" {
		t.Errorf("it names %q: %v", got.Annotations[scheduling.GroupNameAnnotation], err)
	}
}

// TestOwnerEventEnqueuesItsWaitingPod: the event of the owner enqueues it. Its
// own backoff is up to a minute.
func TestOwnerEventEnqueuesItsWaitingPod(t *testing.T) {
	s := newSite(t)
	set := build.ReplicaSet("web-1")
	s.Store.PutPod(memberOf("a", set, "", build.With(func(p *corev1.Pod) { p.Annotations = nil })))
	s.pods, s.groups = &trigger.Source[ctrl.Request]{}, &trigger.Source[ctrl.Request]{}
	queue := queued(t, s.pods)
	s.ownerChanged(nil, build.Owner(set))
	build.Eventually(t, "the pod is enqueued", func() bool { return queue.Len() == 1 })
	limit := optionsFor(1).RateLimiter
	for range 100 {
		if after := limit.When(ctrl.Request{}); after > time.Minute {
			t.Fatalf("it is tried again after %s", after)
		}
	}
}

// rulesOf returns the rules of a leader, with a ConfigMap on an API server.
func rulesOf(t *testing.T, text string) (*Rules, *fake.Clientset, *events.FakeRecorder) {
	t.Helper()
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "rules", UID: "rules", ResourceVersion: "1"}, Data: map[string]string{ownership.LevelsKey: text}}
	client, recorder := fake.NewClientset(config), events.NewFakeRecorder(10)
	client.PrependReactor("create", "selfsubjectaccessreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authorizationv1.SelfSubjectAccessReview{}, nil // nothing is allowed
	})
	r := &Rules{
		Client: client, Discovery: client.Discovery(), ConfigMap: types.NamespacedName{Namespace: "ns", Name: "rules"}, Resolver: &gangs.Resolver{},
		Recorder: recorder, Leads: func() bool { return true },
	}
	if text != "" {
		r.Set(config)
	}
	return r, client, recorder
}

// TestUnreadableRulesAreReported: the second failure in a row records one event, and sets a
// metric until the rules can be read. A Forbidden watch counts as a failure too.
func TestUnreadableRulesAreReported(t *testing.T) {
	r, client, recorder := rulesOf(t, "")
	forbidden := true
	client.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return forbidden, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "rules", errors.New("no"))
	})
	for i, want := range []struct {
		forbidden, unwatched, told bool
		events                     int
	}{
		{true, false, false, 0},
		{true, false, true, 1},
		{true, false, true, 0},
		{false, false, false, 0},
		{true, false, false, 0},
		{false, false, false, 0},
		{false, true, false, 0},
		{false, true, true, 1},
	} {
		forbidden = want.forbidden
		r.watchFailed(io.EOF) // a passing error
		if want.unwatched {
			r.watchFailed(apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "rules", errors.New("no watch")))
		}
		if answered := r.check(t.Context()); answered != (!want.forbidden && !want.unwatched) {
			t.Errorf("step %d: answered: %t", i, answered)
		}
		if got := gauge(t, "atoll_podgroup_rules_unreadable") == 1; got != want.told || len(recorder.Events) != want.events {
			t.Errorf("step %d: unreadable: %t, %d events", i, got, len(recorder.Events))
		}
		for range want.events {
			if e := <-recorder.Events; !strings.Contains(e, ReasonPodGroupRulesUnreadable) || !strings.Contains(e, "pods get no PodGroups") {
				t.Errorf("the event is %s", e)
			}
		}
	}
}

// TestFailedSaveOfRulesIsNotRetriedAtOnce: if the rules cannot be saved, the save is not retried
// at once, and an event is recorded.
func TestFailedSaveOfRulesIsNotRetriedAtOnce(t *testing.T) {
	r, client, _ := rulesOf(t, "noMatch: Root")
	client.PrependReactor("patch", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "rules", errors.New("no"))
	})
	r.woken.Store(false)
	if answered := r.check(t.Context()); !answered || r.woken.Load() {
		t.Errorf("it is tried again at once: answered %t, woken %t", answered, r.woken.Load())
	}
	if got := gauge(t, "atoll_podgroup_rules_problems"); got != 1 {
		t.Errorf("%v problems are reported, want one", got)
	}
}

// TestForbiddenKindIsReportedUntilAllowed: a kind that atoll-manager may not read is reported
// until it is allowed, even if there is no pod for a long time.
func TestForbiddenKindIsReportedUntilAllowed(t *testing.T) {
	r, client, _ := rulesOf(t, "noMatch: Root")
	r.unread = map[schema.GroupKind]write[unread]{
		{Group: "g", Kind: "K"}: {unread{"atoll-manager is not allowed to get k", schema.GroupResource{Group: "g", Resource: "k"}}, time.Now().Add(-unreadFor - time.Second)},
	}
	allowed := false
	client.PrependReactor("create", "selfsubjectaccessreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authorizationv1.SelfSubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: allowed}}, nil
	})
	for want := 1.0; want >= 0; want-- {
		r.check(t.Context())
		if got := gauge(t, "atoll_podgroup_rules_problems"); got != want {
			t.Errorf("%v problems are reported, want %v", got, want)
		}
		allowed = true
	}
}

// TestHangingAPIGroupHidesNoRuleProblems: rules for an API group that does not answer keep their
// last result, and do not hide problems of other rules.
func TestHangingAPIGroupHidesNoRuleProblems(t *testing.T) {
	r, client, _ := rulesOf(t, "podgroupLevel: [{apiversion: hangs.example.com/v1, kind: a}, {apiversion: other.example.com/v1, kind: b}, {apiversion: v1, kind: replicationcontroller}]")
	client.Resources = []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "replicationcontrollers", Kind: "ReplicationController"}}}}
	hangs := false
	client.PrependReactor("get", "resource", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return hangs, nil, apierrors.NewTimeoutError("it hangs", 1)
	})
	for range 2 {
		r.check(t.Context())
		if got := gauge(t, "atoll_podgroup_rules_problems"); got != 3 {
			t.Errorf("%v problems are reported, want all three", got)
		}
		hangs = true
	}
}

// TestLastGoodRulesSurviveALostAnnotation: kubectl replace removes the annotation
// together with the valid text. Rules that came from the annotation are not written to it.
func TestLastGoodRulesSurviveALostAnnotation(t *testing.T) {
	const good, bad = "podgroupLevel: [{apiversion: apps/v1, kind: deployment}]", "podgroupLevel: ["
	r, client, _ := rulesOf(t, good)
	set := func(last string) *corev1.ConfigMap {
		config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "rules", UID: "rules", ResourceVersion: "2"}, Data: map[string]string{ownership.LevelsKey: bad}}
		if last != "" {
			config.Annotations = map[string]string{LastGoodAnnotation: last}
		}
		if _, err := client.CoreV1().ConfigMaps("ns").Update(t.Context(), config, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		return config
	}
	annotation := func() string {
		t.Helper()
		config, err := client.CoreV1().ConfigMaps("ns").Get(t.Context(), "rules", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return config.Annotations[LastGoodAnnotation]
	}
	r.check(t.Context())
	if got := annotation(); got != good {
		t.Fatalf("the annotation is %q", got)
	}
	r.Set(set(""))
	r.check(t.Context())
	if got := annotation(); got != good || len(r.Resolver.Levels().Rules) != 1 {
		t.Errorf("the annotation is %q with %d rules in force", got, len(r.Resolver.Levels().Rules))
	}
	later := &Rules{Client: client, Discovery: r.Discovery, ConfigMap: r.ConfigMap, Resolver: &gangs.Resolver{}, Recorder: r.Recorder, Leads: r.Leads}
	for _, before := range []*corev1.ConfigMap{set(good), nil} {
		later.Set(before)
		later.Set(set("noMatch: Root"))
		later.check(t.Context())
		if got := annotation(); got != "noMatch: Root" {
			t.Errorf("the annotation is %q: it must stay as it was written", got)
		}
	}
}

// TestRecreatedConfigMapIsReportedAgain: the events of the old ConfigMap may have expired.
func TestRecreatedConfigMapIsReportedAgain(t *testing.T) {
	const text = "podgroupLevel: [{apiversion: nobody.example.com/v1, kind: ghost}]"
	for name, goes := range map[string]func(*Rules, *corev1.ConfigMap){
		"it is deleted and created again": func(r *Rules, config *corev1.ConfigMap) {
			r.Set(nil)
			r.check(t.Context())
			r.Set(config)
		},
		"it is replaced by another": func(r *Rules, config *corev1.ConfigMap) {
			another := config.DeepCopy()
			another.UID = "another"
			r.Set(another)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, _, recorder := rulesOf(t, text)
			told := func() (n int) {
				r.check(t.Context())
				for ; len(recorder.Events) > 0; n++ {
					<-recorder.Events
				}
				return n
			}
			if n := told(); n != 2 {
				t.Fatalf("%d events, want one of rules in force and one of a problem", n)
			}
			if n := told(); n != 0 {
				t.Errorf("%d events of the same state", n)
			}
			goes(r, r.config)
			if n := told(); n != 2 {
				t.Errorf("%d events, want both again", n)
			}
		})
	}
}

// TestExtensionsRuleMatchesAppsKinds: group extensions stands for apps.
func TestExtensionsRuleMatchesAppsKinds(t *testing.T) {
	r, client, _ := rulesOf(t, "podgroupLevel: [{apiversion: extensions/v1beta1, kind: deployment}]")
	client.Resources = []*metav1.APIResourceList{{GroupVersion: "apps/v1", APIResources: []metav1.APIResource{{Name: "deployments", Kind: "Deployment", Namespaced: true}}}}
	client.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		is := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
		return true, &authorizationv1.SelfSubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: is.Spec.ResourceAttributes.Group == "apps"}}, nil
	})
	r.check(t.Context())
	chain := []*ownership.Object{build.Owner(build.Pod("a")), build.Owner(build.ReplicaSet("web-1")), build.Owner(build.Deployment("web"))}
	if got := r.Resolver.Levels().Select(chain); got.Rule != 0 {
		t.Fatalf("the rule does not match: %+v", got)
	}
	if got := gauge(t, "atoll_podgroup_rules_problems"); got != 0 {
		t.Errorf("%v problems are reported", got)
	}
}

// TestMissingPermissionToWatchAKindIsReported: the event names the missing permission.
func TestMissingPermissionToWatchAKindIsReported(t *testing.T) {
	for _, missing := range []string{"get", "list", "watch"} {
		r, client, recorder := rulesOf(t, "podgroupLevel: [{apiversion: apps/v1, kind: deployment}]")
		client.Resources = []*metav1.APIResourceList{{GroupVersion: "apps/v1", APIResources: []metav1.APIResource{{Name: "deployments", Kind: "Deployment", Namespaced: true}}}}
		client.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
			is := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
			return true, &authorizationv1.SelfSubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: is.Spec.ResourceAttributes.Verb != missing}}, nil
		})
		r.check(t.Context())
		told := ""
		for len(recorder.Events) > 0 {
			told += <-recorder.Events
		}
		if !strings.Contains(told, "is not allowed to "+missing+" deployments.apps") {
			t.Errorf("the event is %s, want the missing verb %s", told, missing)
		}
	}
}

// TestSetNoneKeepsRulesInForce: setNone has no effect after rules came into force.
func TestSetNoneKeepsRulesInForce(t *testing.T) {
	r, _, _ := rulesOf(t, "podgroupLevel: [{apiversion: apps/v1, kind: deployment}]")
	r.setNone()
	if n := len(r.Resolver.Levels().Rules); n != 1 {
		t.Errorf("%d rules are in force, want one", n)
	}
}

// TestUnrevertedPodGroupWritesHaveNoDelay: a workload that alternates between two states, pods
// of two templates in turns, a watch that stands still.
func TestUnrevertedPodGroupWritesHaveNoDelay(t *testing.T) {
	web := build.Deployment("web", build.Replicas(4), build.Annotation(scheduling.MinMemberAnnotation, "4"))
	set := build.ReplicaSet("web-1", build.OwnedBy(web))
	scaled := func(s *site, i int) {
		web := build.Deployment("web", build.Replicas(int32(1+i%2*3)), build.Annotation(scheduling.MinMemberAnnotation, "4"))
		s.owners(web, set)
		s.Store.PutPod(memberOf("a", set, "web"))
	}
	tests := map[string]struct {
		change func(s *site, i int)
		behind bool
		writes int // of 40 changes
	}{
		"it alternates": {scaled, false, 40},
		"pods of two templates": {func(s *site, i int) {
			s.owners(web, set)
			s.Store.PutPod(memberOf(fmt.Sprint("p", i), set, "web", requests(fmt.Sprintf("%d00m", 1+i%2)), build.Created(s.clock.Now())))
		}, false, 40},
		"a watch stands still": {func(s *site, i int) {
			if i < 2 {
				scaled(s, i)
			}
		}, true, 40},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			tc.change(s, 0)
			if err := s.pass("web"); err != nil {
				t.Fatal(err)
			}
			first := s.bump("web", 1)
			for i := 1; i <= tc.writes; i++ {
				tc.change(s, i)
				if err := s.pass("web"); err != nil {
					t.Fatal(err)
				}
				if tc.behind {
					s.bump("web", i+1)
					s.Store.PutGroup(first)
				} else if got, want := s.bump("web", i+1).Now.Spec, s.wanted("web"); !cmp.Equal(got, want) {
					t.Fatalf("change %d: %s", i, cmp.Diff(want, got))
				}
				s.clock.Step(lag)
			}
			if len(s.recorder.Events) > 0 {
				t.Errorf("unexpected event: %s", <-s.recorder.Events)
			}
		})
	}
}

// bump gives the PodGroup of an owner a new resourceVersion, as the API server does with each
// write, and puts it into the store.
func (s *site) bump(owner string, version int) *gangs.Group {
	s.t.Helper()
	u := s.written(owner)
	if u == nil {
		s.t.Fatal("there is no PodGroup")
	}
	u.SetResourceVersion(strconv.Itoa(version))
	if _, err := s.objects.Resource(gangs.Resource).Namespace(build.Namespace).Update(s.t.Context(), u, metav1.UpdateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	s.written(owner)
	return gangs.Slim(u)
}

// wanted returns the spec that the PodGroup of an owner should have.
func (s *site) wanted(owner string) map[string]any {
	s.t.Helper()
	sc := &scope{key: types.NamespacedName{Namespace: build.Namespace, Name: gang.Name(types.UID(owner))}}
	if err := s.observe(s.t.Context(), sc); err != nil {
		s.t.Fatal(err)
	}
	want := gang.Want(sc.members[0].pod.Gang, sc.above, s.maxMembers(sc))
	applied, err := want.Applied()
	if err != nil {
		s.t.Fatal(err)
	}
	return applied.Spec
}

// TestRecreationOfADeletedPodGroupBacksOff: it is created again after longer and longer waits,
// and an event is recorded.
func TestRecreationOfADeletedPodGroupBacksOff(t *testing.T) {
	s := newSite(t)
	s.groups = &trigger.Source[ctrl.Request]{}
	s.web()
	made := 0
	for range 600 { // a minute
		if err := s.pass("web"); err != nil {
			t.Fatal(err)
		}
		if u := s.written("web"); u != nil {
			made++
			if err := s.objects.Resource(gangs.Resource).Namespace(build.Namespace).Delete(t.Context(), u.GetName(), metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			s.Store.DropGroup(gangs.Slim(u))
			s.groupChanged(gangs.Slim(u), nil)
		} else if s.after <= 0 || s.after > rewriteLast {
			t.Fatalf("it is reconciled again after %s", s.after)
		}
		s.clock.Step(100 * time.Millisecond)
	}
	if made < 5 || made > 12 || len(s.recorder.Events) == 0 {
		t.Fatalf("created %d times in a minute with %d events, want 5 to 12 times with one event", made, len(s.recorder.Events))
	}
	if e := <-s.recorder.Events; !strings.Contains(e, ReasonPodGroupContested) {
		t.Errorf("the event is %s", e)
	}
}

// TestRewriteRecordsExpire: the record of a write is deleted once it has expired. It contains only
// a hash of the content.
func TestRewriteRecordsExpire(t *testing.T) {
	var r rewrites
	now := time.Unix(1_000_000, 0)
	for i := range 1000 {
		r.wrote(types.NamespacedName{Name: strconv.Itoa(i)}, strings.Repeat("x", i), strconv.Itoa(i), "", now)
		now = now.Add(time.Minute)
	}
	if n := len(r.last); n > 5 {
		t.Errorf("%d entries are kept", n)
	}
	r.forget(types.NamespacedName{Name: "999"})
	if left, _ := r.due(types.NamespacedName{Name: "999"}, strings.Repeat("x", 999), "", now.Add(-time.Minute)); left != 0 {
		t.Errorf("a PodGroup that this controller deleted is created again after %s", left)
	}
}

// TestTerminatingPodGroupIsStillReconciled: a finalizer may delay the deletion for long, and
// the scheduler uses the PodGroup meanwhile.
func TestTerminatingPodGroupIsStillReconciled(t *testing.T) {
	s := newSite(t)
	s.web(build.Annotation(scheduling.MinMemberAnnotation, "1"))
	if err := s.pass("web"); err != nil {
		t.Fatal(err)
	}
	u := s.written("web")
	deleted := metav1.NewTime(s.clock.Now())
	u.SetDeletionTimestamp(&deleted)
	u.SetFinalizers([]string{"example.com/a"})
	u.SetResourceVersion("2")
	if _, err := s.objects.Resource(gangs.Resource).Namespace(build.Namespace).Update(t.Context(), u, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.written("web")
	web := build.Deployment("web", build.Replicas(3), build.Annotation(scheduling.MinMemberAnnotation, "3"))
	s.owners(web)
	if err := s.pass("web"); err != nil {
		t.Fatal(err)
	}
	if n, _, _ := unstructured.NestedInt64(s.written("web").Object, "spec", "minMember"); n != 3 {
		t.Errorf("minMember is %d, want 3", n)
	}
}

// gauge returns the value of a metric.
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
