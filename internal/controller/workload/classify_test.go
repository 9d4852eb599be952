package workload

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// newCapacitySite is a site that divides pods over capacity classes.
func newCapacitySite(t *testing.T, objects ...build.Object) *site {
	t.Helper()
	s := newSite(t, objects...)
	classes, err := capacity.Presets()[capacity.DefaultPreset].Ready()
	if err != nil {
		t.Fatal(err)
	}
	s.World.Ledger.SetClasses(&classes)
	s.World.Policies.SetClasses(&classes)
	return s
}

func asks(count string) build.Option {
	return func(o build.Object) {
		build.Annotation(gm.CapacitySwitchKey, "true")(o)
		build.Annotation(gm.CapacityCountKey, count)(o)
	}
}

// atTheGate adds pods of web that got no class at creation.
func (s *site) atTheGate(names ...string) {
	s.t.Helper()
	for i, name := range names {
		s.World.Add(s.t, waiting(name, build.Gated(), aged(time.Duration(len(names)-i)*time.Second)))
	}
}

// TestPodsAtTheGateGetTheirClass in the order of their age, with the deletion cost of the
// class, and leave the gate.
func TestPodsAtTheGateGetTheirClass(t *testing.T) {
	deployment := build.Deployment("web", asks("1"), build.Replicas(3))
	s := newCapacitySite(t, deployment, build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(3)))
	s.atTheGate("c", "a", "b")
	s.reconcile("web")
	for name, class := range map[string]string{"c": "on-demand", "a": "spot", "b": "spot"} {
		pod := s.pod(name)
		cost := map[string]string{"on-demand": "100", "spot": "1"}[class]
		if pod.Labels[gm.CapacityClassLabel] != class || pod.Annotations[corev1.PodDeletionCost] != cost || pod.Annotations[gm.CapacityReasonAnnotation] == "" || len(pod.Spec.SchedulingGates) > 0 {
			t.Errorf("%s (want class %s) has labels %v, annotations %v and gates %v", name, class, pod.Labels, pod.Annotations, pod.Spec.SchedulingGates)
		}
		terms := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		if len(terms) != 1 || terms[0].MatchExpressions[0].Values[0] != class {
			t.Errorf("%s (want class %s) may go to %+v", name, class, terms)
		}
	}
}

// TestGatedPodGetsItsClassBeforeItsGroup: a pod with a PropagationPolicy gets its class first, and
// keeps the deletion cost of its seat.
func TestGatedPodGetsItsClassBeforeItsGroup(t *testing.T) {
	deployment := build.Deployment("web", asks("1"), build.Bound("p", ""), build.Replicas(1))
	s := newCapacitySite(t, append(halves(), deployment, build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(1)))...)
	s.atTheGate("a")
	s.reconcile("web")
	pod := s.pod("a")
	if pod.Labels[gm.CapacityClassLabel] != "on-demand" || len(pod.Spec.SchedulingGates) != 1 || pod.Annotations[corev1.PodDeletionCost] != "" {
		t.Errorf("labels %v, annotations %v, gates %v", pod.Labels, pod.Annotations, pod.Spec.SchedulingGates)
	}
}

// TestGatedPodWaitsForObservedDeletions: a gated pod gets its class only when the watch has shown
// which pods are deleted. It waits for doubtTime at most.
func TestGatedPodWaitsForObservedDeletions(t *testing.T) {
	deployment := build.Deployment("web", asks("1"), build.Replicas(1))
	owner := build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(1))
	s := newCapacitySite(t, deployment, owner)
	s.World.Add(t, build.Node("on-demand", build.Label("node.kubernetes.io/capacity", "on-demand")))
	s.World.Add(t, build.Pod("going", build.OwnedBy(owner), build.On("on-demand")))
	s.World.Add(t, waiting("a", build.Gated(), aged(time.Second)))
	result, err := s.Reconcile(t.Context(), request{"web"})
	if err != nil || result.RequeueAfter != retryClass || len(s.pod("a").Spec.SchedulingGates) != 1 {
		t.Fatalf("runs again after %s with error %v; gates %v", result.RequeueAfter, err, s.pod("a").Spec.SchedulingGates)
	}
	s.World.Clock.Step(doubtTime)
	if _, err := s.Reconcile(t.Context(), request{"web"}); err != nil || s.pod("a").Labels[gm.CapacityClassLabel] != "spot" {
		t.Errorf("after doubtTime it has labels %v (error %v)", s.pod("a").Labels, err)
	}
}

// TestGatedPodKeepsLabelsOfItsOwnersSelector: a label by which its owner selects it is not changed.
func TestGatedPodKeepsLabelsOfItsOwnersSelector(t *testing.T) {
	deployment := build.Deployment("web", asks("0"), build.Replicas(1))
	owner := build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(1), build.SelectsBy(gm.CapacityClassLabel))
	s := newCapacitySite(t, deployment, owner)
	s.World.Add(t, waiting("a", build.Gated(), build.Label(gm.CapacityClassLabel, "on-demand"), aged(time.Second)))
	s.reconcile(types.UID("web"))
	if pod := s.pod("a"); pod.Labels[gm.CapacityClassLabel] != "on-demand" || len(pod.Spec.SchedulingGates) > 0 {
		t.Errorf("labels %v, gates %v", pod.Labels, pod.Spec.SchedulingGates)
	}
}

// TestGatedPodGetsTheClassOfItsVolume: a gated pod is restricted to the class of its volume. The
// class is not chosen, so the pod gets its deletion cost and no label. A pod whose own demands
// exclude both classes leaves the gate unchanged.
func TestGatedPodGetsTheClassOfItsVolume(t *testing.T) {
	deployment := build.Deployment("web", asks("1"), build.Replicas(2))
	s := newCapacitySite(t, deployment, build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(2)))
	s.World.Add(t, build.Node("spot-0", build.Label("node.kubernetes.io/capacity", "spot"), build.Label(corev1.LabelHostname, "spot-0")))
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "disk"}}
	disk := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Spec: corev1.PersistentVolumeSpec{NodeAffinity: &corev1.VolumeNodeAffinity{
		Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"spot-0"}},
		}}}},
	}}}
	for _, o := range []build.Object{claim, disk} {
		if err := s.World.Pods.Tracker().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	s.World.Add(t, waiting("tied", build.Gated(), aged(2*time.Second), build.With(func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
	})))
	neither := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: "node.kubernetes.io/capacity", Operator: corev1.NodeSelectorOpDoesNotExist},
	}}}}
	s.World.Add(t, waiting("neither", build.Gated(), aged(time.Second), build.With(func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: neither.DeepCopy()}}
	})))
	s.reconcile("web")
	s.reconcile("web-1")
	costs := map[string]string{"tied": "1"}
	for name, want := range map[string]*corev1.NodeSelector{"tied": {NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: "node.kubernetes.io/capacity", Operator: corev1.NodeSelectorOpIn, Values: []string{"spot"}},
	}}}}, "neither": neither} {
		pod := s.pod(name)
		if len(pod.Spec.SchedulingGates) > 0 || pod.Labels[gm.CapacityClassLabel] != "" || pod.Annotations[corev1.PodDeletionCost] != costs[name] {
			t.Errorf("pod %s has labels %v, annotations %v and gates %v", name, pod.Labels, pod.Annotations, pod.Spec.SchedulingGates)
		}
		if diff := cmp.Diff(want, pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution); diff != "" {
			t.Errorf("pod %s may go elsewhere (-want +got):\n%s", name, diff)
		}
	}
}

// TestVolumesAreNotReadBeforeTheClassIsKnown: the volumes of a gated pod are not read before its
// class is known.
func TestVolumesAreNotReadBeforeTheClassIsKnown(t *testing.T) {
	deployment := build.Deployment("web", asks("1"), build.Replicas(1))
	owner := build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(1))
	s := newCapacitySite(t, deployment, owner)
	s.World.Add(t, build.Node("on-demand", build.Label("node.kubernetes.io/capacity", "on-demand")))
	s.World.Add(t, build.Pod("going", build.OwnedBy(owner), build.On("on-demand")))
	s.World.Add(t, waiting("a", build.Gated(), aged(time.Second), build.With(func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
	})))
	s.World.Pods.ClearActions()
	result, err := s.Reconcile(t.Context(), request{"web"})
	if err != nil || result.RequeueAfter != retryClass {
		t.Fatalf("runs again after %s with error %v", result.RequeueAfter, err)
	}
	for _, action := range s.World.Pods.Actions() {
		if action.Matches("get", "pods") || action.Matches("get", "persistentvolumeclaims") {
			t.Errorf("read: %s %s", action.GetVerb(), action.GetResource().Resource)
		}
	}
}
