package pod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	testingclock "k8s.io/utils/clock/testing"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/assign"
	"github.com/atoll-k8s/atoll/internal/domain/affinity"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

const classKey = "node.kubernetes.io/capacity"

// newCapacityWebhook returns a webhook with capacity classes.
func newCapacityWebhook(t testing.TB, objects ...build.Object) *Webhook {
	t.Helper()
	w, _ := newWebhook(t, objects...)
	classes, err := capacity.Presets()[capacity.DefaultPreset].Ready()
	if err != nil {
		t.Fatal(err)
	}
	w.Policies.SetClasses(&classes)
	w.Assigner.(*assign.Assigner).Ledger.SetClasses(&classes)
	return w
}

func divides(value, count string) build.Option {
	return func(o build.Object) {
		build.Annotation(gm.CapacitySwitchKey, value)(o)
		if count != "" {
			build.Annotation(gm.CapacityCountKey, count)(o)
		}
	}
}

func classTerm(class string) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: classKey, Operator: corev1.NodeSelectorOpIn, Values: []string{class}},
	}}}}
}

// TestPodsGetTheirClass: as many pods as the count are on-demand, and the others spot.
// Nothing else of a pod changes.
func TestPodsGetTheirClass(t *testing.T) {
	w := newCapacityWebhook(t, build.Deployment("web", divides("true", "1"), build.Replicas(3)), build.ReplicaSet("web-1", build.OwnedBy(build.Deployment("web")), build.Replicas(3)))
	for i, want := range []string{"on-demand", "spot", "spot"} {
		dry := admit(t, w, webPod(), true)
		got := admit(t, w, webPod(), false)
		if dry.Labels[gm.CapacityClassLabel] != want {
			t.Errorf("pod %d: the labels of a dry run are %v", i, dry.Labels)
		}
		expected := webPod(
			build.Label(gm.CapacityClassLabel, want), build.Annotation(gm.CapacityReasonAnnotation, got.Annotations[gm.CapacityReasonAnnotation]),
			build.Annotation(gm.AdmittedAnnotation, got.Annotations[gm.AdmittedAnnotation]), build.Annotation(gm.SeatAnnotation, got.Annotations[gm.SeatAnnotation]),
			build.Annotation(corev1.PodDeletionCost, map[string]string{"on-demand": "100", "spot": "1"}[want]),
			build.Annotation(gm.DeletionCostAnnotation, map[string]string{"on-demand": "100", "spot": "1"}[want]),
		)
		expected.Namespace, expected.UID = "", ""
		expected.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: classTerm(want)}}
		if diff := cmp.Diff(expected, got); diff != "" {
			t.Errorf("pod %d (-want +got):\n%s", i, diff)
		}
		if got.Annotations[gm.CapacityReasonAnnotation] == "" || got.Annotations[gm.SeatAnnotation] == "" {
			t.Errorf("pod %d: annotations %v", i, got.Annotations)
		}
		// Another webhook came after ours, and took what was required away.
		again := got.DeepCopy()
		again.Spec.Affinity = nil
		if diff := cmp.Diff(got, admit(t, w, again, false)); diff != "" {
			t.Errorf("pod %d, admitted again (-want +got):\n%s", i, diff)
		}
	}
}

// demands sets the required node affinity of a pod.
func demands(terms ...corev1.NodeSelectorTerm) build.Option {
	return build.With(func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
	})
}

// TestUndividedPodsAreNotChanged: these pods do not change at all.
func TestUndividedPodsAreNotChanged(t *testing.T) {
	on := divides("true", "0")
	tests := map[string]struct {
		objects []build.Object
		pod     *corev1.Pod
	}{
		"a workload without the keys": {[]build.Object{build.Deployment("web"), replicaSet}, webPod()},
		"its workload opted out":      {[]build.Object{build.Deployment("web", divides("false", "1")), replicaSet}, webPod(divides("true", "1"))},
		"an invalid switch":           {[]build.Object{build.Deployment("web", divides("yes", "1")), replicaSet}, webPod()},
		"a pod of a DaemonSet":        {[]build.Object{build.DaemonSet("agent", on)}, daemon("node-a")},
		"a pod of a Job":              {[]build.Object{build.Job("batch", on)}, build.Pod("", build.OwnedBy(build.Job("batch", on)))},
		"a pod without an owner":      {nil, build.Pod("bare", on)},
		"a pod that names its node":   {[]build.Object{build.Deployment("web", on), replicaSet}, webPod(build.On("node-a"))},
		"its own affinity excludes both classes": {[]build.Object{build.Deployment("web", on), replicaSet}, webPod(demands(corev1.NodeSelectorTerm{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: classKey, Operator: corev1.NodeSelectorOpDoesNotExist}},
		}))},
		"its own affinity names the node": {[]build.Object{build.Deployment("web", on), replicaSet}, webPod(demands(corev1.NodeSelectorTerm{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}},
		}))},
		"its own node selector excludes one class": {[]build.Object{build.Deployment("web", on), replicaSet}, webPod(build.With(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{classKey: "on-demand"} }))},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newCapacityWebhook(t, tc.objects...)
			want := tc.pod.DeepCopy()
			want.Namespace, want.UID = "", ""
			got := admit(t, w, tc.pod, false)
			delete(got.Annotations, gm.AdmittedAnnotation)
			delete(got.Annotations, gm.NamesNodeAnnotation)
			if tc.pod.Spec.NodeName != "" && got.Annotations[gm.CapacityReasonAnnotation] != "" {
				delete(got.Annotations, gm.CapacityReasonAnnotation) // the reason is that the pod names its node
			}
			if len(got.Annotations) == 0 {
				got.Annotations = want.Annotations
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the pod changed (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPodsOfExcludedNamespacesAreNotDivided, whatever their annotations are.
func TestPodsOfExcludedNamespacesAreNotDivided(t *testing.T) {
	w := newCapacityWebhook(t, build.Deployment("web", divides("true", "0")), replicaSet)
	w.Policies.Exclude(build.Namespace)
	want := webPod()
	want.Namespace, want.UID = "", ""
	if diff := cmp.Diff(want, admit(t, w, webPod(), false)); diff != "" {
		t.Errorf("the pod changed (-want +got):\n%s", diff)
	}
}

// TestDivisionKeysOnWorkloadTemplateOrNamespace: the keys may be set on the workload, its pod template or the namespace.
func TestDivisionKeysOnWorkloadTemplateOrNamespace(t *testing.T) {
	label := func(o build.Object) {
		build.Label(gm.CapacitySwitchKey, "true")(o)
		build.Label(gm.CapacityCountKey, "0")(o)
	}
	tests := map[string]struct {
		deployment build.Option
		namespace  ownership.Capacity
		want       string
	}{
		"annotations":   {divides("true", "0"), ownership.Capacity{}, "spot"},
		"labels":        {label, ownership.Capacity{}, "spot"},
		"the namespace": {build.With(func(build.Object) {}), ownership.Capacity{Switch: "true", Count: "0"}, "spot"},
		"the workload's count overrides that of the namespace": {build.Annotation(gm.CapacityCountKey, "1"), ownership.Capacity{Switch: "true", Count: "0"}, "on-demand"},
		"no count: all are on-demand":                          {divides("true", ""), ownership.Capacity{}, "on-demand"},
		"an invalid count: all are on-demand":                  {divides("true", "x"), ownership.Capacity{}, "on-demand"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newCapacityWebhook(t, build.Deployment("web", tc.deployment), replicaSet)
			w.Policies.SetNamespace(build.Namespace, tc.namespace)
			if got := admit(t, w, webPod(), false); got.Labels[gm.CapacityClassLabel] != tc.want {
				t.Errorf("the pod is %q, want %q", got.Labels[gm.CapacityClassLabel], tc.want)
			}
		})
	}
}

// TestStampsOfTemplatesAreDropped: deletion costs that users set stay.
func TestStampsOfTemplatesAreDropped(t *testing.T) {
	w := newCapacityWebhook(t, build.Deployment("web", divides("true", "0")), replicaSet)
	got := admit(t, w, webPod(
		build.Label(gm.CapacityClassLabel, "on-demand"), build.Annotation(gm.CapacityReasonAnnotation, "mine"), build.Annotation(gm.SeatAnnotation, "mine"),
		build.Annotation(corev1.PodDeletionCost, "7"),
	), false)
	if got.Labels[gm.CapacityClassLabel] != "spot" || got.Annotations[gm.CapacityReasonAnnotation] == "mine" || got.Annotations[gm.SeatAnnotation] == "mine" {
		t.Errorf("forged stamps stay: %v %v", got.Labels, got.Annotations)
	}
	if got.Annotations[corev1.PodDeletionCost] != "7" {
		t.Errorf("the user's cost became %q", got.Annotations[corev1.PodDeletionCost])
	}
}

// TestPodsWaitForALeader because only the leader knows their class. Pods of StatefulSets
// do not wait: their ordinal decides.
func TestPodsWaitForALeader(t *testing.T) {
	set := build.StatefulSet("db", divides("true", "1"))
	w := newCapacityWebhook(t, build.Deployment("web", divides("true", "1")), replicaSet, set)
	w.Assigner.(*assign.Assigner).Leading = func() bool { return false }
	got := admit(t, w, webPod(), false)
	if len(gates(got)) != 1 || got.Labels[gm.CapacityClassLabel] != "" || got.Spec.Affinity != nil {
		t.Errorf("the pod does not wait: %v %v", gates(got), got.Labels)
	}
	for name, want := range map[string]string{"db-0": "on-demand", "db-1": "spot"} {
		got := admit(t, w, build.Pod(name, build.OwnedBy(set)), false)
		if len(gates(got)) != 0 || got.Labels[gm.CapacityClassLabel] != want || got.Annotations[corev1.PodDeletionCost] != "" {
			t.Errorf("%s is %v, gates %v", name, got.Labels, gates(got))
		}
		if again := admit(t, w, got, false); again.Labels[gm.CapacityClassLabel] != want {
			t.Errorf("%s, shown again, is %v", name, again.Labels)
		}
	}
}

// TestLeaderDecidesTheFallbackOfOrdinals: replicas differ in since when they have seen no node of a
// class. A replica that has just started would give the pod the class that the leader has
// fallen back from, and the leader would delete the pod, again and again.
func TestLeaderDecidesTheFallbackOfOrdinals(t *testing.T) {
	set := build.StatefulSet("db", divides("true", "1"), build.Annotation(gm.CapacityOnEmptyKey, gm.OnEmptyFallback), build.Replicas(2))
	w := newCapacityWebhook(t, set)
	w.Assigner.(*assign.Assigner).Ledger.ObserveNode(seats.SlimNode(build.Node("on-demand", build.Label(classKey, "on-demand"))))
	spot, onDemand := build.Pod("db-1", build.OwnedBy(set)), "on-demand"
	if got := admit(t, w, spot, false); got.Labels[gm.CapacityClassLabel] != "spot" {
		t.Errorf("before its time the pod is %v", got.Labels)
	}
	w.Clock.(*testingclock.FakeClock).Step(policies.DefaultFallback)
	got := admit(t, w, spot, false)
	if got.Labels[gm.CapacityClassLabel] != onDemand || !strings.Contains(got.Annotations[gm.CapacityReasonAnnotation], "class spot has no nodes") {
		t.Errorf("the pod is %v, for %q", got.Labels, got.Annotations[gm.CapacityReasonAnnotation])
	}
	w.Assigner.(*assign.Assigner).Leading = func() bool { return false }
	if got := admit(t, w, spot, false); len(gates(got)) != 1 || got.Labels[gm.CapacityClassLabel] != "" {
		t.Errorf("without a leader the pod is %v, gates %v", got.Labels, gates(got))
	}
}

// replies is an assigner of another replica that leads. It differs in since when it has
// seen no node of a class, and in the last valid count.
type replies assign.Answer

func (r replies) Assign(context.Context, assign.Request) (assign.Answer, error) {
	return assign.Answer(r), nil
}

// TestPodCarriesTheLeadersReasonForItsClass: the reason on the pod is the one that the leader returns. If a
// leader of an older version returns none, the pod gets none.
func TestPodCarriesTheLeadersReasonForItsClass(t *testing.T) {
	set := build.StatefulSet("db", divides("true", "1"), build.Annotation(gm.CapacityOnEmptyKey, gm.OnEmptyFallback), build.Replicas(8))
	w := newCapacityWebhook(t, set)
	w.Assigner.(*assign.Assigner).Ledger.ObserveNode(seats.SlimNode(build.Node("on-demand", build.Label(classKey, "on-demand"))))
	expectReason := func(want string) {
		t.Helper()
		if why := admit(t, w, build.Pod("db-7", build.OwnedBy(set)), false).Annotations[gm.CapacityReasonAnnotation]; why != want {
			t.Errorf("the reason is %q, want %q", why, want)
		}
	}
	expectReason("its ordinal is not among the first 1 of StatefulSet db")
	w.Clock.(*testingclock.FakeClock).Step(policies.DefaultFallback)
	expectReason("class spot has no nodes: pods of StatefulSet db fall back to the other")
	w.Assigner = replies{Class: "spot", Reason: "the leader decided"}
	expectReason("the leader decided")
	w.Assigner = replies{Class: "spot"}
	expectReason("")
}

// TestInvalidCountUsesTheLeadersLastValidOne: with an invalid count the leader decides by the last valid one.
func TestInvalidCountUsesTheLeadersLastValidOne(t *testing.T) {
	set := build.StatefulSet("db", divides("true", "x"))
	w := newCapacityWebhook(t, set)
	w.Assigner = replies{Class: "spot"}
	if got := admit(t, w, build.Pod("db-0", build.OwnedBy(set)), false); got.Labels[gm.CapacityClassLabel] != "spot" {
		t.Errorf("the pod is %v", got.Labels)
	}
}

// TestFullyOnDemandPodsNeverFallBack: a workload whose pods are all on-demand does not fall
// back from spot.
func TestFullyOnDemandPodsNeverFallBack(t *testing.T) {
	deployment := build.Deployment("web", divides("true", "1"), build.Annotation(gm.CapacityOnEmptyKey, gm.OnEmptyFallback), build.Replicas(1))
	w := newCapacityWebhook(t, deployment, build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(1)))
	ledger := w.Assigner.(*assign.Assigner).Ledger
	ledger.ObserveNode(seats.SlimNode(build.Node("on-demand", build.Label(classKey, "on-demand"))))
	ledger.EmptyClass(policies.DefaultFallback)
	w.Clock.(*testingclock.FakeClock).Step(policies.DefaultFallback)
	if why := admit(t, w, webPod(), false).Annotations[gm.CapacityReasonAnnotation]; why != "all pods of Deployment web are on-demand" {
		t.Errorf("the reason is %q", why)
	}
}

// claimOn creates a claim whose volume is on a node, and a pod that mounts it.
func claimOn(t *testing.T, w *Webhook, node string) build.Option {
	t.Helper()
	disk := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Spec: corev1.PersistentVolumeSpec{NodeAffinity: &corev1.VolumeNodeAffinity{
		Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
		}}}},
	}}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "disk"}}
	for _, o := range []build.Object{disk, claim} {
		if err := w.API.(*fake.Clientset).Tracker().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	return build.With(func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	})
}

// TestPodWithAMissingVolumeNodeGetsNoClass: a node that reboots may be deleted and created
// again with the same name. A pod that is created meanwhile is restricted to the node of
// its volume only.
func TestPodWithAMissingVolumeNodeGetsNoClass(t *testing.T) {
	set := build.StatefulSet("db", divides("true", "1"))
	w := newCapacityWebhook(t, set)
	got := admit(t, w, build.Pod("db-0", build.OwnedBy(set), claimOn(t, w, "spot-0")), false)
	if got.Spec.Affinity != nil || got.Labels[gm.CapacityClassLabel] != "" || len(gates(got)) > 0 {
		t.Errorf("labels %v, gates %v, affinity %+v", got.Labels, gates(got), got.Spec.Affinity)
	}
	if why := got.Annotations[gm.CapacityReasonAnnotation]; why != "no node matches its volumes, or a matching node has no class" {
		t.Errorf("it says %q", why)
	}
}

// TestReinvocationKeepsTheClassOfATiedPod: a second call changes nothing. A pod of a ReplicaSet has the
// deletion cost of its class.
func TestReinvocationKeepsTheClassOfATiedPod(t *testing.T) {
	w := newCapacityWebhook(t, build.Deployment("web", divides("true", "1")), replicaSet)
	w.Assigner.(*assign.Assigner).Ledger.ObserveNode(seats.SlimNode(build.Node("spot-0", build.Label(classKey, "spot"), build.Label(corev1.LabelHostname, "spot-0"))))
	got := admit(t, w, webPod(claimOn(t, w, "spot-0")), false)
	if got.Annotations[corev1.PodDeletionCost] != "1" || got.Annotations[gm.CapacityReasonAnnotation] != "its volumes are on nodes of class spot" {
		t.Errorf("annotations %v", got.Annotations)
	}
	if diff := cmp.Diff(got, admit(t, w, got, false)); diff != "" {
		t.Errorf("shown again (-want +got):\n%s", diff)
	}
}

// TestAdmissionReadsEachVolumeClaim: a creation reads each claim of the pod, and its volume if it has one.
func TestAdmissionReadsEachVolumeClaim(t *testing.T) {
	set := build.StatefulSet("db", divides("true", "1"))
	w := newCapacityWebhook(t, set)
	claim := claimOn(t, w, "spot-0")
	api := w.API.(*fake.Clientset)
	reads := func(want int, options ...build.Option) {
		t.Helper()
		api.ClearActions()
		admit(t, w, build.Pod("db-1", append(options, build.OwnedBy(set))...), false)
		if n := len(api.Actions()); n != want {
			t.Errorf("%d reads, want %d", n, want)
		}
	}
	reads(0)
	reads(2, claim)
	unbound := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: "data"}}
	if err := api.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), unbound, build.Namespace); err != nil {
		t.Fatal(err)
	}
	reads(1, claim)
}

// TestPodGetsTheClassOfItsVolumesNode: a pod whose volume is on a node gets the class of that
// node, whatever the count is. It waits at the gate while its volumes cannot be read, or
// if it has too many.
func TestPodGetsTheClassOfItsVolumesNode(t *testing.T) {
	set := build.StatefulSet("db", divides("true", "1"))
	w := newCapacityWebhook(t, set)
	w.Assigner.(*assign.Assigner).Ledger.ObserveNode(seats.SlimNode(build.Node("spot-0", build.Label(classKey, "spot"), build.Label(corev1.LabelHostname, "spot-0"))))
	claims := func(names ...string) *corev1.Pod {
		pod := build.Pod("db-0", build.OwnedBy(set))
		for _, name := range names {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
			}})
		}
		return pod
	}
	if got := admit(t, w, claims("data"), false); got.Labels[gm.CapacityClassLabel] != "on-demand" {
		t.Errorf("before its claim exists the pod is %v", got.Labels)
	}
	api := w.API.(*fake.Clientset)
	disk := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Spec: corev1.PersistentVolumeSpec{NodeAffinity: &corev1.VolumeNodeAffinity{
		Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"spot-0"}},
		}}}},
	}}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "disk"}}
	for _, o := range []build.Object{disk, claim} {
		if err := api.Tracker().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	got := admit(t, w, claims("data"), false)
	if diff := cmp.Diff(classTerm("spot"), affinity.Required(&got.Spec)); diff != "" || got.Labels[gm.CapacityClassLabel] != "" || len(gates(got)) > 0 {
		t.Errorf("labels %v, gates %v, demands (-want +got):\n%s", got.Labels, gates(got), diff)
	}
	if why := got.Annotations[gm.CapacityReasonAnnotation]; why != "its volumes are on nodes of class spot" {
		t.Errorf("the reason is %q", why)
	}
	if again := admit(t, w, got, false); again.Labels[gm.CapacityClassLabel] != "" || len(again.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions) != 1 {
		t.Errorf("shown again it has labels %v and demands %+v", again.Labels, again.Spec.Affinity)
	}
	var many []string
	for i := range maxClaims + 1 {
		many = append(many, fmt.Sprint("data-", i))
	}
	waits := func(pod *corev1.Pod) {
		t.Helper()
		if got := admit(t, w, pod, false); len(gates(got)) != 1 || got.Spec.Affinity != nil {
			t.Errorf("the pod does not wait: %v, %+v", gates(got), got.Spec.Affinity)
		}
	}
	waits(claims(many...))
	api.PrependReactor("get", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("broken") })
	waits(claims("data"))
}

// TestAPodGetsItsClassAndItsGroup: its deletion cost is that of its seat in the group.
func TestAPodGetsItsClassAndItsGroup(t *testing.T) {
	w := newCapacityWebhook(t, build.Deployment("web", build.Bound("p", ""), divides("true", "1")), build.ReplicaSet("web-1", build.OwnedBy(build.Deployment("web")), build.Replicas(3)),
		build.PropagationPolicy("p", build.Weight(1, "hz", "bj")),
		build.Node("node-hz", build.InGroup("hz"), build.Label(classKey, "spot")), build.Node("node-bj", build.InGroup("bj"), build.Label(classKey, "on-demand")))
	for i, want := range []string{"on-demand bj", "spot hz", "spot hz"} {
		got := admit(t, w, webPod(), false)
		if is := got.Labels[gm.CapacityClassLabel] + " " + got.Labels[gm.NodeGroupLabel]; is != want {
			t.Errorf("pod %d is %q, want %q: no other group has a node of the class", i, is, want)
		}
		terms := got.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		if len(terms) != 1 || len(terms[0].MatchExpressions) != 2 || len(got.Annotations[corev1.PodDeletionCost]) < 9 {
			t.Errorf("pod %d demands %+v and costs %s", i, terms, got.Annotations[corev1.PodDeletionCost])
		}
	}
}

// TestUserAffinityIsNeverReduced: the webhook removes nothing from a pod's own affinity,
// whatever its form.
func TestUserAffinityIsNeverReduced(t *testing.T) {
	w := newCapacityWebhook(t, build.Deployment("web", divides("true", "1000000")), build.ReplicaSet("web-1", build.OwnedBy(build.Deployment("web")), build.Replicas(1000)))
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		pod := webPod()
		required := &corev1.NodeSelector{}
		for range 1 + r.IntN(3) {
			term := corev1.NodeSelectorTerm{}
			for range r.IntN(3) {
				term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{Key: "zone", Operator: corev1.NodeSelectorOpExists})
			}
			if r.IntN(3) == 0 {
				term.MatchFields = []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}}
			}
			required.NodeSelectorTerms = append(required.NodeSelectorTerms, term)
		}
		pod.Spec.Affinity = &corev1.Affinity{
			NodeAffinity:    &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required},
			PodAntiAffinity: &corev1.PodAntiAffinity{},
		}
		divided := slices.ContainsFunc(required.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
			return len(t.MatchExpressions) > 0 && len(t.MatchFields) == 0
		})
		got := admit(t, w, pod, false)
		after := got.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		if len(after) != len(required.NodeSelectorTerms) || got.Spec.Affinity.PodAntiAffinity == nil {
			t.Fatalf("seed %d: %+v became %+v", seed, required, after)
		}
		for i, term := range required.NodeSelectorTerms {
			own := after[i]
			if divided && len(term.MatchExpressions)+len(term.MatchFields) > 0 {
				last := len(own.MatchExpressions) - 1
				if own.MatchExpressions[last].Key != classKey {
					t.Fatalf("seed %d: term %d is %+v", seed, i, own)
				}
				own.MatchExpressions = own.MatchExpressions[:last]
			}
			was, _ := json.Marshal(term)
			is, _ := json.Marshal(own)
			if string(was) != string(is) && len(term.MatchExpressions) > 0 {
				t.Fatalf("seed %d: of %s there is %s left", seed, was, is)
			}
		}
	}
}

// TestLabelsOfTheOwnersSelectorNeverChange: a label by which its owner finds the pod never changes, also if
// it is a label that only atoll-manager may write.
func TestLabelsOfTheOwnersSelectorNeverChange(t *testing.T) {
	ours := []string{gm.NodeGroupLabel, gm.CapacityClassLabel, gm.RequiredPropagationPolicyLabel}
	for name, deployment := range map[string]build.Option{"divided": divides("true", "0"), "bound": build.Bound("p", ""), "neither": func(build.Object) {}} {
		t.Run(name, func(t *testing.T) {
			owner := build.ReplicaSet("web-1", build.OwnedBy(build.Deployment("web")), build.SelectsBy(ours...))
			w := newCapacityWebhook(t, build.Deployment("web", deployment), owner, build.PropagationPolicy("p", build.Weight(1, "hz")), build.Node("node-hz", build.InGroup("hz")))
			pod := webPod()
			for _, key := range ours {
				build.Label(key, "x")(pod)
			}
			got := admit(t, w, pod, false)
			for _, key := range ours {
				if got.Labels[key] != "x" {
					t.Errorf("%s became %q: the ReplicaSet would create pods without end", key, got.Labels[key])
				}
			}
		})
	}
}
