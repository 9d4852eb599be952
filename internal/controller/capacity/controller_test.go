package capacity

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"

	api "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
	"github.com/atoll-k8s/atoll/internal/testing/build/world"
)

// site is a reconciler and the objects that it observes.
type site struct {
	*Reconciler
	*world.World
	t      *testing.T
	events *events.FakeRecorder
}

func newSite(t *testing.T, objects ...build.Object) *site {
	t.Helper()
	classes, err := capacity.Presets()[capacity.DefaultPreset].Ready()
	if err != nil {
		t.Fatal(err)
	}
	w := world.New(t)
	w.Ledger.SetClasses(&classes)
	w.Policies.SetClasses(&classes)
	for _, class := range []string{"on-demand", "spot"} {
		w.Add(t, build.Node(class, build.Label("node.kubernetes.io/capacity", class), build.With(func(n *corev1.Node) {
			n.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("20")}
		})))
	}
	for _, o := range objects {
		w.Add(t, o)
	}
	w.Policies.SetNamespacesListed()
	s := &site{World: w, t: t, events: events.NewFakeRecorder(10)}
	s.Reconciler = &Reconciler{
		Client: w.Client, Pods: w.Pods, Walker: w.Walker, Ledger: w.Ledger, Policies: w.Policies, Recorder: s.events, Clock: w.Clock,
		Evictor: &eviction.Evictor{Client: w.Pods, Pace: eviction.NewPace(rate.Inf, 0)},
	}
	return s
}

func (s *site) pass() (ctrl.Result, error) {
	s.t.Helper()
	s.World.Evicted = nil
	return s.Reconcile(s.t.Context(), request{"web"})
}

func (s *site) split() *api.CapacitySplit {
	s.t.Helper()
	split := &api.CapacitySplit{}
	err := s.World.Client.Get(s.t.Context(), types.NamespacedName{Namespace: build.Namespace, Name: "deployment-web"}, split)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return split
}

func asks(count string) build.Option {
	return func(o build.Object) {
		build.Annotation(gm.CapacitySwitchKey, "true")(o)
		build.Annotation(gm.CapacityCountKey, count)(o)
	}
}

// web returns a Deployment with pods, each on the node of its class.
func web(count string, classes ...string) []build.Object {
	deployment := build.Deployment("web", asks(count), build.Replicas(int32(len(classes))))
	replicaSet := build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(int32(len(classes))))
	objects := []build.Object{deployment, replicaSet}
	for i, class := range classes {
		objects = append(objects, running(fmt.Sprint("pod-", i), replicaSet, class))
	}
	return objects
}

func running(name string, owner build.Object, class string, options ...build.Option) *corev1.Pod {
	return build.Pod(name, append([]build.Option{
		build.OwnedBy(owner), build.Label(gm.CapacityClassLabel, class), build.Annotation(gm.AdmittedAnnotation, "true"), build.On(class),
		build.Created(time.Unix(1_000_000, 0)),
		build.With(func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}),
	}, options...)...)
}

func TestCapacitySplitShowsTheWorkload(t *testing.T) {
	s := newSite(t, web("1", "on-demand", "spot")...)
	if result, err := s.pass(); err != nil || result.RequeueAfter != 0 || len(s.Evicted) > 0 {
		t.Fatalf("runs again after %s, error %v, evicted %v", result.RequeueAfter, err, s.Evicted)
	}
	split := s.split()
	if split == nil || len(split.OwnerReferences) != 1 || split.OwnerReferences[0].UID != "web" {
		t.Fatalf("the split is %+v", split)
	}
	want := api.CapacitySplitStatus{
		Workload: api.WorkloadReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}, Count: new(int32(1)),
		OnDemand: api.ClassStatus{Want: 1, Have: 1}, Spot: api.ClassStatus{Want: 1, Have: 1},
		Conditions: []metav1.Condition{{Type: api.ConditionReady, Status: metav1.ConditionTrue, Reason: api.ReasonSatisfied, Message: "each class has the number of pods that it should have"}},
	}
	if diff := cmp.Diff(want, split.Status, cmpopts.IgnoreFields(metav1.Condition{}, "LastTransitionTime", "ObservedGeneration"), cmpopts.IgnoreFields(api.CapacitySplitStatus{}, "ObservedGeneration", "WorkloadGeneration")); diff != "" {
		t.Errorf("wrong status (-want +got):\n%s", diff)
	}
	version := split.ResourceVersion
	if _, err := s.pass(); err != nil || s.split().ResourceVersion != version {
		t.Errorf("it is written again without a change (error %v)", err)
	}

	s.World.Walker.Put(build.Owner(build.Deployment("web", build.Replicas(2)))) // it opts out
	if _, err := s.pass(); err != nil || s.split() != nil {
		t.Errorf("the CapacitySplit is still there (error %v)", err)
	}
}

// TestPodsOfTheWrongClassMove one at a time, each with an event.
func TestPodsOfTheWrongClassMove(t *testing.T) {
	s := newSite(t, web("0", "on-demand", "on-demand", "spot")...)
	if _, err := s.pass(); err != nil {
		t.Fatal(err)
	}
	if len(s.Evicted) != 1 || s.split().Status.Conditions[0].Reason != api.ReasonConverging {
		t.Errorf("evicted %v, status %+v", s.Evicted, s.split().Status)
	}
	if event := <-s.events.Events; !strings.HasPrefix(event, "Normal CapacityPodEvicted ") || !strings.Contains(event, "0 on-demand and 3 spot") {
		t.Errorf("the event is %q", event)
	}
	if _, err := s.pass(); err != nil || len(s.Evicted) != 0 {
		t.Errorf("before the first has a successor also evicted %v (error %v)", s.Evicted, err)
	}
}

// TestASlowAPIServer: an eviction takes longer than an observation is fresh, so the next
// eviction is planned again.
// TestSettingsThatChangeDuringAPass: pods that got their class by new settings are not
// judged by the old ones.
func TestSettingsThatChangeDuringAPass(t *testing.T) {
	tests := map[string]struct {
		now  build.Object
		want int
	}{
		"nothing changes":       {nil, 1},
		"another count":         {build.Deployment("web", asks("2"), build.Replicas(2)), 0},
		"more replicas":         {build.Deployment("web", asks("1"), build.Replicas(3)), 0},
		"it is not divided now": {build.Deployment("web", build.Replicas(2)), 0},
		"the value is invalid":  {build.Deployment("web", asks("one"), build.Replicas(2)), 0},
		"another label":         {build.Deployment("web", asks("1"), build.Replicas(2), build.Label("team", "a")), 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, web("1", "on-demand", "on-demand")...)
			pass := &scope{workload: s.World.Walker.Get("web"), capacity: s.capacityOf(s.World.Walker.Above("web"))}
			if err := s.observe(t.Context(), pass); err != nil {
				t.Fatal(err)
			}
			if len(pass.plan.evict) != 1 {
				t.Fatalf("%d pods are to be evicted", len(pass.plan.evict))
			}
			if tc.now != nil {
				s.World.Walker.Put(build.Owner(tc.now))
			}
			err := s.evict(t.Context(), pass)
			if len(s.Evicted) != tc.want || (err == nil) != (tc.want == 1) {
				t.Errorf("evicted %v, error %v", s.Evicted, err)
			}
		})
	}
}

func TestASlowAPIServer(t *testing.T) {
	objects := web("0", "on-demand", "on-demand", "on-demand")
	for _, o := range objects {
		if pod, ok := o.(*corev1.Pod); ok {
			pod.Status = corev1.PodStatus{} // as many may leave as are surplus
		}
	}
	s := newSite(t, objects...)
	s.EvictionTakes = eviction.Fresh + time.Millisecond
	if result, err := s.pass(); err != nil || len(s.Evicted) != 1 || result.RequeueAfter == 0 {
		t.Fatalf("evicted %v, runs again after %s, error %v", s.Evicted, result.RequeueAfter, err)
	}
	s.World.Ledger.Forget(types.UID(s.Evicted[0]))
	s.EvictionTakes = 0
	if _, err := s.pass(); err != nil || len(s.Evicted) != 2 {
		t.Errorf("evicted %v, error %v", s.Evicted, err)
	}
}

func TestAnswersToAMove(t *testing.T) {
	broken := errors.New("broken")
	tests := map[string]struct {
		answer, want error
		requeue      time.Duration
		reason       string
	}{
		"a PodDisruptionBudget says no": {answer: build.EvictionRefused(), requeue: eviction.Retry, reason: api.ReasonBlockedByPDB},
		"the API server is busy":        {answer: apierrors.NewTooManyRequests("later", 1), requeue: eviction.Retry, reason: api.ReasonConverging},
		"the API server failed":         {answer: broken, want: broken, reason: api.ReasonConverging},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, web("0", "on-demand", "spot")...)
			s.Answers = []error{tc.answer}
			result, err := s.pass()
			if !errors.Is(err, tc.want) || result.RequeueAfter != tc.requeue || s.split().Status.Conditions[0].Reason != tc.reason {
				t.Errorf("runs again after %s with error %v, status %+v", result.RequeueAfter, err, s.split().Status)
			}
			if _, err := s.pass(); err != nil || len(s.Evicted) != 1 {
				t.Errorf("the pod counts as disturbed: %v (error %v)", s.Evicted, err)
			}
		})
	}
}

// TestInvalidCountKeepsTheLastValidOne: the last count stays in force, nothing moves, and an event
// names the error.
func TestInvalidCountKeepsTheLastValidOne(t *testing.T) {
	s := newSite(t, web("1", "on-demand", "spot")...)
	if _, err := s.pass(); err != nil {
		t.Fatal(err)
	}
	s.World.Walker.Put(build.Owner(build.Deployment("web", asks("x"), build.Replicas(2))))
	if _, err := s.pass(); err != nil || len(s.Evicted) > 0 {
		t.Errorf("evicted %v, error %v", s.Evicted, err)
	}
	status := s.split().Status
	if c := status.Conditions[0]; c.Reason != api.ReasonInvalid || !strings.Contains(c.Message, `"x"`) || *status.Count != 1 {
		t.Errorf("the status is %+v", status)
	}
	if event := <-s.events.Events; !strings.HasPrefix(event, "Warning Invalid ") {
		t.Errorf("the event is %q", event)
	}
}

// TestPodsThatBypassTheWebhookAreNotMoved: pods that bypass the webhook are not moved, because
// their successors would not be divided either.
func TestPodsThatBypassTheWebhookAreNotMoved(t *testing.T) {
	s := newSite(t, web("0", "on-demand", "on-demand", "spot")...)
	if _, err := s.pass(); err != nil || len(s.Evicted) != 1 {
		t.Fatalf("evicted %v, error %v", s.Evicted, err)
	}
	gone := s.Evicted[0]
	s.World.Ledger.Forget(types.UID(gone))
	owner := build.ReplicaSet("web-1")
	s.World.See(running("past", owner, "on-demand", build.Created(s.World.Clock.Now()), build.With(func(p *corev1.Pod) {
		p.Labels, p.Annotations = nil, nil
	})))
	if result, err := s.pass(); err != nil || len(s.Evicted) != 0 || s.split().Status.Conditions[0].Reason != api.ReasonNotAdmitted || result.RequeueAfter != tryTime {
		t.Errorf("evicted %v, runs again after %s with error %v, status %+v", s.Evicted, result.RequeueAfter, err, s.split().Status)
	}
	s.World.Clock.Step(tryTime + time.Second)
	if _, err := s.pass(); err != nil || len(s.Evicted) != 1 {
		t.Errorf("no move after tryTime: evicted %v, error %v", s.Evicted, err)
	}
}

// TestSuccessorOfTheSameClassEndsTheMoves: a successor of the same class as the evicted pod ends
// the moves, because another successor would have the same class.
func TestSuccessorOfTheSameClassEndsTheMoves(t *testing.T) {
	s := newSite(t, web("0", "on-demand", "on-demand", "spot")...)
	if _, err := s.pass(); err != nil || len(s.Evicted) != 1 {
		t.Fatalf("evicted %v, error %v", s.Evicted, err)
	}
	s.World.Ledger.Forget(types.UID(s.Evicted[0]))
	s.World.Clock.Step(2 * time.Second)
	s.World.See(running("again", build.ReplicaSet("web-1"), "on-demand", build.Created(s.World.Clock.Now())))
	if result, err := s.pass(); err != nil || len(s.Evicted) != 0 || s.split().Status.Conditions[0].Reason != api.ReasonPinned || result.RequeueAfter != tryTime {
		t.Errorf("evicted %v, runs again after %s with error %v, status %+v", s.Evicted, result.RequeueAfter, err, s.split().Status)
	}
	s.World.Ledger.ForgetNode("spot")
	if result, err := s.pass(); err != nil || s.split().Status.Conditions[0].Reason != api.ReasonNoNodes || result.RequeueAfter != retryRoom {
		t.Errorf("without spot nodes it runs again after %s with error %v, status %+v: too late to fall back", result.RequeueAfter, err, s.split().Status)
	}
	s.World.Add(t, build.Node("spot", build.Label("node.kubernetes.io/capacity", "spot")))
	s.World.Walker.Put(build.Owner(build.Deployment("web", asks("1"), build.Replicas(3)))) // the Deployment is changedmething else
	if _, err := s.pass(); err != nil || len(s.Evicted) != 1 {
		t.Errorf("with another count: evicted %v, error %v", s.Evicted, err)
	}
	s.World.Ledger.Forget(types.UID(s.Evicted[0]))
	s.World.Clock.Step(2 * time.Second)
	s.World.See(running("wanted", build.ReplicaSet("web-1"), "on-demand", build.Created(s.World.Clock.Now())))
	for _, count := range []string{"2", "1"} { // it was wanted when it came
		s.World.Walker.Put(build.Owner(build.Deployment("web", asks(count), build.Replicas(3))))
		if _, err := s.pass(); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.Evicted) != 1 {
		t.Errorf("after the count went up and down evicted are %v, status %+v", s.Evicted, s.split().Status)
	}
}

// TestAPodStaysWithItsVolume: no node of the other class reaches the volume.
func TestAPodStaysWithItsVolume(t *testing.T) {
	objects := web("0", "on-demand", "spot")
	objects[2].(*corev1.Pod).Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}}}
	s := newSite(t, objects...)
	s.volume("on-demand")
	if _, err := s.pass(); err != nil || len(s.Evicted) != 0 || s.split().Status.Conditions[0].Reason != api.ReasonNoRoom {
		t.Errorf("evicted %v, error %v, status %+v", s.Evicted, err, s.split().Status)
	}
}

// volume creates the claim data, whose volume nodes of one class reach.
func (s *site) volume(class string) {
	s.t.Helper()
	s.volumeOn("node.kubernetes.io/capacity", class)
}

// volumeOn creates the claim data, whose volume nodes with a label reach.
func (s *site) volumeOn(key, value string) {
	s.t.Helper()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "disk"}}
	claim.Status.Phase = corev1.ClaimBound
	disk := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Spec: corev1.PersistentVolumeSpec{NodeAffinity: &corev1.VolumeNodeAffinity{
		Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}},
		}}}},
	}}}
	for _, o := range []build.Object{claim, disk} {
		if err := s.World.Pods.Tracker().Add(o); err != nil {
			s.t.Fatal(err)
		}
	}
}

// TestAStatefulSetsPodStaysWithItsVolume, whatever the class of its ordinal is. A pod that
// waits for a node of its class is not evicted because of a volume of a zone: the zone may
// get a node of the class, and the successor would wait as well.
func TestAStatefulSetsPodStaysWithItsVolume(t *testing.T) {
	set := build.StatefulSet("db", asks("1"), build.Replicas(1))
	local := build.With(func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
	})
	s := newSite(t, set, running("db-0", set, "spot", local))
	s.World.Add(t, build.Node("spot", build.Label("node.kubernetes.io/capacity", "spot"), build.Label("zone", "z"), full))
	s.volumeOn("zone", "z")
	look := func(want string) {
		t.Helper()
		s.World.Evicted = nil
		if _, err := s.Reconcile(t.Context(), request{"db"}); err != nil {
			t.Fatal(err)
		}
		split := &api.CapacitySplit{}
		if err := s.World.Client.Get(t.Context(), types.NamespacedName{Namespace: build.Namespace, Name: "statefulset-db"}, split); err != nil {
			t.Fatal(err)
		}
		if len(s.Evicted) > 0 || split.Status.Conditions[0].Reason != want {
			t.Errorf("evicted %v, status %+v, want %s", s.Evicted, split.Status, want)
		}
	}
	look(api.ReasonNoRoom)
	s.World.Clock.Step(retryRoom)
	look(api.ReasonNoRoom)

	s.World.Ledger.Forget("db-0")
	s.World.See(running("db-0", set, "on-demand", local, build.UID("again"), waits(t, capacity.OnDemand)))
	for range 3 {
		look(api.ReasonPodsWaiting)
		s.World.Clock.Step(retryRoom)
	}
}

// TestPodThatCannotReachItsVolumeIsEvicted: a pod that cannot reach its volume is evicted. When it
// was created, the node of the volume was missing or had no class. Its successor is restricted to
// the class of the node, and stays, whatever its ordinal is.
func TestPodThatCannotReachItsVolumeIsEvicted(t *testing.T) {
	set := build.StatefulSet("db", asks("1"), build.Replicas(1))
	claims := build.With(func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
	})
	s := newSite(t, set, running("db-0", set, "on-demand", claims, waits(t, capacity.OnDemand)))
	s.volumeOn(corev1.LabelHostname, "spot-0")
	look := func(want int) {
		t.Helper()
		s.World.Evicted = nil
		if _, err := s.Reconcile(t.Context(), request{"db"}); err != nil || len(s.Evicted) != want {
			t.Errorf("evicted %v, error %v, want %d", s.Evicted, err, want)
		}
	}
	look(0)
	s.World.Add(t, build.Node("spot-0", build.Label("node.kubernetes.io/capacity", "spot"), build.Label(corev1.LabelHostname, "spot-0"), full))
	look(1)
	s.World.Ledger.Forget("db-0")
	tied := running("db-0", set, "", claims, waits(t, capacity.Spot), build.UID("again"))
	delete(tied.Labels, gm.CapacityClassLabel)
	s.World.See(tied)
	for range 3 {
		look(0)
		s.World.Clock.Step(retryRoom)
	}
	tied.Spec.NodeName, tied.Status.Conditions = "spot-0", []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	s.World.See(tied)
	look(0)
}

// TestPodsWithoutClassLabelCountByTheirNode: pods whose class label was removed count in the class
// of their node. Their node affinity is treated as their owner's: other pods are moved instead,
// and the condition shows if there are none.
func TestPodsWithoutClassLabelCountByTheirNode(t *testing.T) {
	objects := web("1", "on-demand", "on-demand", "spot")
	classes, err := capacity.Presets()[capacity.DefaultPreset].Ready()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects[2:] {
		pod := o.(*corev1.Pod)
		classes.Restrict(&pod.Spec, capacity.ParseClass(pod.Labels[gm.CapacityClassLabel]))
	}
	bare := objects[2].(*corev1.Pod)
	bare.Labels, bare.Annotations = nil, nil
	s := newSite(t, objects...)
	if _, err := s.pass(); err != nil || len(s.Evicted) != 1 || s.Evicted[0] != "pod-1" {
		t.Errorf("evicted %v, error %v", s.Evicted, err)
	}
	s.World.Ledger.Forget("pod-1")
	s.World.Walker.Put(build.Owner(build.Deployment("web", asks("0"), build.Replicas(2))))
	if _, err := s.pass(); err != nil || len(s.Evicted) != 0 || s.split().Status.Conditions[0].Reason != api.ReasonPinned {
		t.Errorf("evicted %v, error %v, status %+v", s.Evicted, err, s.split().Status)
	}
}

// TestOwnedStatefulSetIsDividedOnItsOwn: it is divided even if it has an owner, and the owner does
// not count its pods.
func TestOwnedStatefulSetIsDividedOnItsOwn(t *testing.T) {
	above := build.Deployment("web", asks("0"), build.Replicas(2))
	set := build.StatefulSet("db", asks("1"), build.OwnedBy(above), build.Replicas(2))
	s := newSite(t, above, set, running("db-0", set, "on-demand"), running("db-1", set, "spot"))
	for _, uid := range []types.UID{"web", "db"} {
		s.World.Evicted = nil
		if _, err := s.Reconcile(t.Context(), request{uid}); err != nil || len(s.Evicted) != 0 {
			t.Errorf("of %s evicted are %v, error %v", uid, s.Evicted, err)
		}
	}
	if all := s.all(); len(all) < 2 {
		t.Errorf("only %v are enqueued at the start", all)
	}
}

// TestNothingMovesBeforeNamespacesAreKnown: their annotations may set the count.
func TestNothingMovesBeforeNamespacesAreKnown(t *testing.T) {
	s := newSite(t, web("0", "on-demand", "spot")...)
	classes := s.Reconciler.Policies.Classes()
	s.Reconciler.Policies = policies.NewResolver(s.World.Client, s.World.Walker, s.World.Ledger, s.World.Clock, true)
	s.Reconciler.Policies.SetClasses(classes)
	if result, err := s.pass(); err != nil || len(s.Evicted) != 0 || s.split() != nil || result.RequeueAfter != retryNamespaces {
		t.Errorf("evicted %v, runs again after %s with error %v, split %+v", s.Evicted, result.RequeueAfter, err, s.split())
	}
}

// TestDisabledClassesDeleteCapacitySplits: CapacitySplits are deleted, even before namespaces are known.
func TestDisabledClassesDeleteCapacitySplits(t *testing.T) {
	s := newSite(t, web("1", "on-demand", "spot")...)
	if _, err := s.pass(); err != nil || s.split() == nil {
		t.Fatalf("it has no CapacitySplit (error %v)", err)
	}
	s.Reconciler.Policies = policies.NewResolver(s.World.Client, s.World.Walker, s.World.Ledger, s.World.Clock, true)
	if result, err := s.pass(); err != nil || result.RequeueAfter != 0 || s.split() != nil {
		t.Errorf("runs again after %s with error %v, split %+v", result.RequeueAfter, err, s.split())
	}
}

// TestExcludedNamespaces: nothing is moved there, and there are no CapacitySplits.
func TestExcludedNamespaces(t *testing.T) {
	s := newSite(t, web("0", "on-demand", "spot")...)
	s.World.Policies.Exclude(build.Namespace)
	if _, err := s.pass(); err != nil || len(s.Evicted) != 0 || s.split() != nil {
		t.Errorf("evicted %v, error %v, split %+v", s.Evicted, err, s.split())
	}
}

// TestAdoptedWorkloadKeepsItsWaitingPods: its waiting pods stay, because they are divided as its owner's.
func TestAdoptedWorkloadKeepsItsWaitingPods(t *testing.T) {
	objects := web("1", "on-demand", "spot")
	waits := objects[3].(*corev1.Pod)
	waits.Spec.NodeName = ""
	waits.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	s := newSite(t, objects...)
	s.show("web-1", types.NamespacedName{Namespace: build.Namespace, Name: "replicaset-web-1"})
	if _, err := s.Reconcile(t.Context(), request{"web-1"}); err != nil || len(s.Evicted) != 0 || s.isShown("web-1") {
		t.Errorf("evicted %v, error %v, shown %t", s.Evicted, err, s.isShown("web-1"))
	}
}

// TestLastValidCountSurvivesALeaderChange: with an invalid count the last one stays in force after
// another replica becomes the leader.
func TestLastValidCountSurvivesALeaderChange(t *testing.T) {
	s := newSite(t, web("1", "on-demand", "spot")...)
	if _, err := s.pass(); err != nil {
		t.Fatal(err)
	}
	next := newSite(t, web("x", "on-demand", "spot")...)
	next.Reconciler.Client = s.World.Client
	next.all()
	chain := next.Reconciler.Walker.Above("web")
	if c := next.Reconciler.Policies.CapacityOf(chain); c.Count != 1 || c.Invalid == nil {
		t.Errorf("the count is %d (%v), want 1", c.Count, c.Invalid)
	}
}

// TestOrphanedCapacitySplitIsDeleted: CapacitySplits of workloads that were deleted with
// --cascade=orphan are deleted.
func TestOrphanedCapacitySplitIsDeleted(t *testing.T) {
	s := newSite(t, web("1", "on-demand", "spot")...)
	if _, err := s.pass(); err != nil {
		t.Fatal(err)
	}
	orphan := func() {
		t.Helper()
		split := s.split()
		split.OwnerReferences = nil
		if err := s.World.Client.Update(t.Context(), split); err != nil {
			t.Fatal(err)
		}
	}
	orphan()
	s.World.Walker.Drop("web")
	if _, err := s.pass(); err != nil || s.split() != nil {
		t.Errorf("the CapacitySplit is still there (error %v)", err)
	}
	s = newSite(t, web("1", "on-demand", "spot")...)
	if _, err := s.pass(); err != nil {
		t.Fatal(err)
	}
	orphan()
	if s.all(); s.split() != nil {
		t.Error("another replica leads, and the CapacitySplit is still there")
	}
}

// TestPodsFallBack to the other class when theirs has had no node for five minutes, if the
// workload allows it, and move back when it has one.
func TestPodsFallBack(t *testing.T) {
	objects := web("0", "spot")
	pod := objects[2].(*corev1.Pod)
	pod.Spec.NodeName, pod.Status.Conditions = "", nil
	classes, err := capacity.Presets()[capacity.DefaultPreset].Ready()
	if err != nil {
		t.Fatal(err)
	}
	classes.Restrict(&pod.Spec, capacity.Spot)
	build.Annotation(gm.CapacityOnEmptyKey, gm.OnEmptyFallback)(objects[0])
	s := newSite(t, objects...)
	s.World.Ledger.ForgetNode("spot")
	if result, err := s.pass(); err != nil || len(s.Evicted) != 0 || s.split().Status.Conditions[0].Reason != api.ReasonNoNodes || result.RequeueAfter != retryRoom {
		t.Fatalf("evicted %v, runs again after %s with error %v, status %+v", s.Evicted, result.RequeueAfter, err, s.split().Status)
	}
	s.World.Clock.Step(5 * time.Minute)
	if _, err := s.pass(); err != nil || len(s.Evicted) != 1 || *s.split().Status.Count != 0 {
		t.Errorf("evicted %v, error %v, status %+v", s.Evicted, err, s.split().Status)
	}
	s.World.Ledger.Forget(pod.UID)
	chain := s.World.Walker.Above("web")
	if c := s.World.Policies.CapacityOf(chain); c.Count != capacity.MaxCount || c.FellBack != capacity.Spot {
		t.Errorf("the count in force is %d, fell back from %q", c.Count, c.FellBack)
	}
	s.World.Add(t, build.Node("spot-2", build.Label("node.kubernetes.io/capacity", "spot")))
	if c := s.World.Policies.CapacityOf(chain); c.Count != 0 || c.FellBack != capacity.None {
		t.Errorf("with a node the count in force is %d, fell back from %q", c.Count, c.FellBack)
	}
}

// TestUndividedWorkloadEvictsItsPendingPods: once a workload is not divided any more, its pending
// pods that are restricted to a class are evicted: their successors may use any node.
func TestUndividedWorkloadEvictsItsPendingPods(t *testing.T) {
	objects := web("1", "on-demand", "spot")
	waits := objects[3].(*corev1.Pod)
	waits.Spec.NodeName = ""
	classes, err := capacity.Presets()[capacity.DefaultPreset].Ready()
	if err != nil {
		t.Fatal(err)
	}
	classes.Restrict(&waits.Spec, capacity.Spot)
	waits.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	s := newSite(t, objects...)
	if _, err := s.pass(); err != nil || len(s.Evicted) != 0 {
		t.Fatalf("evicted %v, error %v", s.Evicted, err)
	}
	s.World.Walker.Put(build.Owner(build.Deployment("web", build.Replicas(2))))
	if _, err := s.pass(); err != nil || len(s.Evicted) != 1 || s.Evicted[0] != waits.Name {
		t.Errorf("evicted %v, error %v", s.Evicted, err)
	}
	s.World.Ledger.Forget(waits.UID)
	if _, err := s.pass(); err != nil || s.split() != nil {
		t.Errorf("error %v, split %+v", err, s.split())
	}
}

// waits makes a pod unschedulable for want of a node of its class.
func waits(t *testing.T, class capacity.Class) build.Option {
	t.Helper()
	classes, err := capacity.Presets()[capacity.DefaultPreset].Ready()
	if err != nil {
		t.Fatal(err)
	}
	return build.With(func(p *corev1.Pod) {
		classes.Restrict(&p.Spec, class)
		p.Spec.NodeName = ""
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	})
}

// full makes a node that has no room for a pod.
var full = build.With(func(n *corev1.Node) {
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}
})

// TestPodsFallBackInARollout: a pod that waits for a class without nodes is never Ready, so
// the rollout neither ends nor counts as paused.
func TestPodsFallBackInARollout(t *testing.T) {
	deployment := build.Deployment("web", asks("0"), build.Annotation(gm.CapacityOnEmptyKey, gm.OnEmptyFallback), build.Replicas(2))
	old := build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(2))
	next := build.ReplicaSet("web-2", build.OwnedBy(deployment), build.Replicas(1))
	s := newSite(t, deployment, old, next, running("old-0", old, "spot"), running("old-1", old, "spot"), running("new-0", next, "spot", waits(t, capacity.Spot)))
	s.World.Add(t, build.Node("spot", build.Label("node.kubernetes.io/capacity", "spot"), build.With(func(n *corev1.Node) { n.Spec.Unschedulable = true })))
	if result, err := s.pass(); err != nil || len(s.Evicted) != 0 || s.split().Status.Conditions[0].Reason != api.ReasonNoNodes || result.RequeueAfter != retryRoom {
		t.Fatalf("evicted %v, runs again after %s with error %v, status %+v", s.Evicted, result.RequeueAfter, err, s.split().Status)
	}
	s.World.Clock.Step(policies.DefaultFallback)
	if _, err := s.pass(); err != nil || len(s.Evicted) != 1 || s.Evicted[0] != "new-0" {
		t.Fatalf("evicted %v, error %v, status %+v", s.Evicted, err, s.split().Status)
	}
	s.World.Ledger.Forget("new-0")
	s.World.Clock.Step(2 * time.Second)
	s.World.See(running("new-1", next, "on-demand", waits(t, capacity.OnDemand), build.Created(s.World.Clock.Now())))
	for range 10 { // it is of the other class now, and waits for a node there
		if _, err := s.pass(); err != nil || len(s.Evicted) != 0 || s.split().Status.Conditions[0].Reason != api.ReasonFellBack {
			t.Errorf("evicted %v, error %v, status %+v", s.Evicted, err, s.split().Status)
		}
		s.World.Clock.Step(time.Minute)
	}
}

// TestPodsFallBackToFullNodes: a cluster autoscaler adds nodes for pods that wait. A pod
// without a node may be evicted for that, once.
func TestPodsFallBackToFullNodes(t *testing.T) {
	objects := web("0", "spot")
	build.Annotation(gm.CapacityOnEmptyKey, gm.OnEmptyFallback)(objects[0])
	waits(t, capacity.Spot)(objects[2])
	s := newSite(t, objects...)
	s.World.Ledger.ForgetNode("spot")
	s.World.Add(t, build.Node("on-demand", build.Label("node.kubernetes.io/capacity", "on-demand"), full))
	if _, err := s.pass(); err != nil || len(s.Evicted) != 0 {
		t.Fatalf("evicted %v, error %v", s.Evicted, err)
	}
	s.World.Clock.Step(policies.DefaultFallback)
	if _, err := s.pass(); err != nil || len(s.Evicted) != 1 {
		t.Fatalf("evicted %v, error %v, status %+v", s.Evicted, err, s.split().Status)
	}
	s.World.Ledger.Forget("pod-0")
	s.World.Clock.Step(2 * time.Second)
	s.World.See(running("again", build.ReplicaSet("web-1"), "on-demand", waits(t, capacity.OnDemand), build.Created(s.World.Clock.Now())))
	for range 10 {
		if _, err := s.pass(); err != nil || len(s.Evicted) != 0 {
			t.Errorf("it waits for an on-demand node, and is evicted again: %v (error %v)", s.Evicted, err)
		}
		s.World.Clock.Step(time.Minute)
	}
}

// TestFullyOnDemandWorkloadIsNoFallback: all pods are on-demand because the count says so.
func TestFullyOnDemandWorkloadIsNoFallback(t *testing.T) {
	objects := web("2", "on-demand", "on-demand")
	build.Annotation(gm.CapacityOnEmptyKey, gm.OnEmptyFallback)(objects[0])
	s := newSite(t, objects...)
	s.World.Ledger.ForgetNode("spot")
	if _, err := s.pass(); err != nil {
		t.Fatal(err)
	}
	s.World.Clock.Step(policies.DefaultFallback)
	if _, err := s.pass(); err != nil || s.split().Status.Conditions[0].Reason != api.ReasonSatisfied {
		t.Errorf("the status is %+v, error %v", s.split().Status, err)
	}
}

// TestUndividedPendingPodsAreEvictedAfterAnError: the first eviction failed, and kube-scheduler tried
// another pod only later.
func TestUndividedPendingPodsAreEvictedAfterAnError(t *testing.T) {
	broken := errors.New("broken")
	for name, answer := range map[string]error{"the API server failed": broken, "it is busy": apierrors.NewTooManyRequests("later", 1)} {
		t.Run(name, func(t *testing.T) {
			objects := web("0", "spot", "spot")
			waits(t, capacity.Spot)(objects[2])
			later := objects[3].(*corev1.Pod)
			waits(t, capacity.Spot)(later)
			unschedulable := later.Status.Conditions
			later.Status.Conditions = nil
			s := newSite(t, objects...)
			if _, err := s.pass(); err != nil || len(s.Evicted) != 0 {
				t.Fatalf("evicted %v, error %v", s.Evicted, err)
			}
			s.World.Walker.Put(build.Owner(build.Deployment("web", build.Replicas(2))))
			s.Answers = []error{answer}
			if result, err := s.pass(); len(s.Evicted) != 1 || s.split() == nil || errors.Is(err, broken) != errors.Is(answer, broken) || err == nil && result.RequeueAfter != eviction.Retry {
				t.Fatalf("evicted %v, runs again after %s with error %v, split %+v", s.Evicted, result.RequeueAfter, err, s.split())
			}
			if result, err := s.pass(); err != nil || len(s.Evicted) != 1 || result.RequeueAfter != eviction.Retry {
				t.Errorf("evicted %v, runs again after %s with error %v", s.Evicted, result.RequeueAfter, err)
			}
			s.World.Ledger.Forget("pod-0")
			later.Status.Conditions = unschedulable
			s.World.See(later)
			if _, err := s.pass(); err != nil || len(s.Evicted) != 1 || s.Evicted[0] != later.Name {
				t.Errorf("evicted %v, error %v", s.Evicted, err)
			}
			later.Spec.NodeName = "spot" // it was quicker
			s.World.See(later)
			if result, err := s.pass(); err != nil || len(s.Evicted) != 0 || s.split() != nil || result.RequeueAfter != 0 {
				t.Errorf("evicted %v, runs again after %s with error %v, split %+v", s.Evicted, result.RequeueAfter, err, s.split())
			}
		})
	}
}

// TestRequeueCoversProblemsNotInTheCondition: the condition may show another problem than the wait is for.
func TestRequeueCoversProblemsNotInTheCondition(t *testing.T) {
	t.Run("a pod waits, and another has no room", func(t *testing.T) {
		objects := web("1", "on-demand", "on-demand", "spot")
		waits(t, capacity.Spot)(objects[4])
		s := newSite(t, objects...)
		s.World.Add(t, build.Node("spot", build.Label("node.kubernetes.io/capacity", "spot"), full))
		if result, err := s.pass(); err != nil || len(s.Evicted) != 0 || result.RequeueAfter != retryRoom {
			t.Errorf("evicted %v, runs again after %s with error %v", s.Evicted, result.RequeueAfter, err)
		}
	})
	t.Run("a rollout goes on", func(t *testing.T) {
		deployment := build.Deployment("web", asks("1"), build.Replicas(2))
		old := build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(1))
		next := build.ReplicaSet("web-2", build.OwnedBy(deployment), build.Replicas(1))
		s := newSite(t, deployment, old, next, running("old-0", old, "on-demand"))
		s.World.See(running("new-0", next, "on-demand", build.Created(s.World.Clock.Now())))
		if result, err := s.pass(); err != nil || len(s.Evicted) != 0 || result.RequeueAfter != stillTime {
			t.Errorf("evicted %v, runs again after %s with error %v", s.Evicted, result.RequeueAfter, err)
		}
		s.World.Clock.Step(stillTime) // it is paused
		if _, err := s.pass(); err != nil || len(s.Evicted) != 1 {
			t.Errorf("once it is paused evicted are %v, error %v", s.Evicted, err)
		}
	})
}

// TestOrdinalOfTheSameClassEndsTheMoves: an ordinal that is created again with the same class ends
// the moves, because another successor would have the same class.
func TestOrdinalOfTheSameClassEndsTheMoves(t *testing.T) {
	set := build.StatefulSet("db", asks("0"), build.Replicas(2))
	s := newSite(t, set, running("db-0", set, "on-demand"), running("db-1", set, "spot"))
	look := func() (ctrl.Result, error) {
		s.World.Evicted = nil
		return s.Reconcile(t.Context(), request{"db"})
	}
	if _, err := look(); err != nil || len(s.Evicted) != 1 || s.Evicted[0] != "db-0" {
		t.Fatalf("evicted %v, error %v", s.Evicted, err)
	}
	s.World.Ledger.Forget("db-0")
	s.World.Ledger.Observe(seats.Slim(running("db-0", set, "on-demand", build.UID("again"), build.Created(s.World.Clock.Now()))))
	for range 5 {
		if result, err := look(); err != nil || len(s.Evicted) != 0 || result.RequeueAfter != tryTime {
			t.Errorf("evicted %v, runs again after %s with error %v", s.Evicted, result.RequeueAfter, err)
		}
		s.World.Clock.Step(10 * time.Second)
	}
}

// TestCapacitySplitOfAnEarlierWorkloadIsReplaced: an earlier workload of the name owns the CapacitySplit.
func TestCapacitySplitOfAnEarlierWorkloadIsReplaced(t *testing.T) {
	s := newSite(t, web("1", "on-demand", "spot")...)
	old := &api.CapacitySplit{ObjectMeta: metav1.ObjectMeta{
		Namespace: build.Namespace, Name: "deployment-web", UID: "old",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "before"}},
	}}
	if err := s.World.Client.Create(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := s.pass(); err != nil {
			t.Fatal(err)
		}
	}
	if split := s.split(); split == nil || split.OwnerReferences[0].UID != "web" || len(split.Status.Conditions) != 1 {
		t.Errorf("the split is %+v", split)
	}
}

func TestNamesOfSplits(t *testing.T) {
	long := strings.Repeat("a", 250)
	for name, want := range map[string]string{"web": "deployment-web", long: ""} {
		got := nameOf(build.Owner(build.Deployment(name)))
		if want != "" && got != want || len(got) > maxName || strings.HasSuffix(got, "-") {
			t.Errorf("%.10s… has the CapacitySplit %q", name, got)
		}
	}
	if nameOf(build.Owner(build.Deployment(long))) == nameOf(build.Owner(build.Deployment(long+"b"))) {
		t.Error("two long names give the same CapacitySplit name")
	}
}

// TestStartEnqueuesDividedWorkloads: only the workloads that are divided are enqueued at the
// start.
func TestStartEnqueuesDividedWorkloads(t *testing.T) {
	s := newSite(t, web("1", "on-demand", "spot")...)
	s.World.Add(t, build.Deployment("other"))
	if all := s.all(); len(all) != 1 || all[0].uid != "web" {
		t.Errorf("%v are enqueued at the start", all)
	}
	s.World.Policies.SetNamespace(build.Namespace, ownership.Capacity{Switch: "true"})
	if all := s.all(); len(all) != 2 {
		t.Errorf("with the namespace %v are enqueued", all)
	}
}

// TestPodsOfHeldNodesDoNotMove, although they have the wrong class, and do not keep those of other nodes waiting.
func TestPodsOfHeldNodesDoNotMove(t *testing.T) {
	s := newSite(t, web("0", "on-demand", "on-demand")...)
	s.World.Add(t, build.Node("edge", build.Label("node.kubernetes.io/capacity", "on-demand"), build.Held()))
	s.Evictor.Held = func(node string) bool { return node == "edge" }
	replicaSet := build.ReplicaSet("web-1")
	s.World.See(running("pod-0", replicaSet, "on-demand", build.On("edge")))
	if _, err := s.pass(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"pod-1"}, s.Evicted); diff != "" {
		t.Error(diff)
	}
	s.World.See(running("pod-1", replicaSet, "on-demand", build.On("edge")))
	s.World.Ledger.Undisrupt("pod-1")
	if result, err := s.pass(); err != nil || len(s.Evicted) > 0 || result.RequeueAfter == 0 {
		t.Errorf("evicted %v, error %v, again after %s", s.Evicted, err, result.RequeueAfter)
	}
}
