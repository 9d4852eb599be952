package uniteddeployment

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/time/rate"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// evicting adds an Eviction API to the site. allowed decides about each eviction. An
// evicted pod disappears at once. evicting returns the evicted pods.
func (s *site) evicting(allowed func() bool) (evicted *[]string) {
	evicted = &[]string{}
	kube := fake.NewClientset()
	kube.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		e, ok := action.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
		if !ok {
			return false, nil, nil
		}
		if !allowed() {
			return true, nil, build.EvictionRefused()
		}
		s.writes = append(s.writes, "evict "+e.Name)
		*evicted = append(*evicted, e.Name)
		return true, nil, s.all.Delete(s.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name}})
	})
	s.Evictor = &eviction.Evictor{Client: kube, Pace: eviction.NewPace(rate.Inf, 1)}
	return evicted
}

// readyPods creates Ready pods of a pool's Deployment.
func (s *site) readyPods(pool string, n int) {
	s.t.Helper()
	for i := range n {
		pod := build.Pod(fmt.Sprintf("%s-%d", pool, i), build.With(func(p *corev1.Pod) {
			p.Labels = map[string]string{"app": "web", apps.PoolNameLabel: pool, appsv1.DefaultDeploymentUniqueLabelKey: "1"}
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-" + pool + "-1", UID: types.UID(pool), Controller: new(true)}}
			p.Spec.NodeName = "node"
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}))
		if err := s.all.Create(s.t.Context(), pod); err != nil {
			s.t.Fatal(err)
		}
	}
}

// threeInB is a site with a pool a of one pod and a pool b of three.
func threeInB(t *testing.T) *site {
	s := newUnited(t, "a", "b")
	s.change(func(ud *apps.UnitedDeployment) { ud.Spec.Topology.Pools[1].Replicas.IntVal = 3 })
	s.rest()
	s.readyPods("b", 3)
	return s
}

func withoutB(ud *apps.UnitedDeployment) { ud.Spec.Topology.Pools = ud.Spec.Topology.Pools[:1] }

// TestARemovedPoolIsEmptiedBeforeItIsDeleted: the pods are evicted one by one, and the
// workload is deleted when none is left, also if another process continues.
func TestARemovedPoolIsEmptiedBeforeItIsDeleted(t *testing.T) {
	s := threeInB(t)
	s.evicting(func() bool { return true })
	s.change(withoutB)
	var writes []string
	for i := range 8 {
		s.writes = nil
		if i == 2 { // another process goes on
			s.Reconciler = &Reconciler{Client: s.Client, Live: s.Live, Recorder: s.Recorder, Clock: s.Clock, Evictor: s.Evictor}
		}
		if _, err := s.pass(); err != nil {
			t.Fatal(err)
		}
		if got := s.condition(apps.PoolProvisioned); i < 3 && got != "False, Draining" {
			t.Errorf("PoolProvisioned is %s", got)
		}
		writes = append(writes, slices.DeleteFunc(s.writes, func(w string) bool { return strings.Contains(w, "status") })...)
		s.roll()
	}
	want := []string{
		"evict b-0", "update *v1.Deployment web-b", "evict b-1", "update *v1.Deployment web-b", "evict b-2", "update *v1.Deployment web-b",
		"delete *v1.Deployment web-b",
	}
	if !slices.Equal(writes, want) {
		t.Errorf("it did %q, want %q", writes, want)
	}
	if got := s.condition(apps.PoolProvisioned); got != "True, Provisioned" {
		t.Errorf("PoolProvisioned is %s", got)
	}
}

// TestARemovedPoolWaitsForItsBudget: pods whose eviction a PodDisruptionBudget refuses stay,
// a condition reports that, and nothing else waits for it.
func TestARemovedPoolWaitsForItsBudget(t *testing.T) {
	s := threeInB(t)
	allowed := 1
	evicted := s.evicting(func() bool { allowed--; return allowed >= 0 })
	s.change(withoutB)
	for range 5 {
		result, err := s.pass()
		if err != nil || result.RequeueAfter == 0 {
			t.Fatalf("it comes back after %s, error %v", result.RequeueAfter, err)
		}
		s.roll()
	}
	if n := *s.deployment("web-b").Spec.Replicas; n != 2 || len(*evicted) != 1 {
		t.Errorf("%v are evicted, and it has %d replicas", *evicted, n)
	}
	c := meta.FindStatusCondition(s.ud().Status.Conditions, apps.PoolProvisioned)
	if want := `"web-b": a PodDisruptionBudget allows no eviction`; c.Reason != apps.ReasonDraining || !strings.HasSuffix(c.Message, want) {
		t.Errorf("PoolProvisioned is %+v", c)
	}
	s.change(func(ud *apps.UnitedDeployment) { ud.Spec.Topology.Pools[0].Replicas.IntVal = 5 })
	if _, err := s.pass(); err != nil || *s.deployment("web-a").Spec.Replicas != 5 {
		t.Errorf("the other pool waits too (error %v)", err)
	}
}

// TestAPoolThatComesBackTakesItsWorkloadBack: a pool that is added again during its drain
// keeps its workload and the pods that are left.
func TestAPoolThatComesBackTakesItsWorkloadBack(t *testing.T) {
	s := threeInB(t)
	s.evicting(func() bool { return true })
	pool := s.ud().Spec.Topology.Pools[1]
	uid := s.deployment("web-b").UID
	s.change(withoutB)
	if _, err := s.pass(); err != nil || *s.deployment("web-b").Spec.Replicas != 2 {
		t.Fatalf("it has %d replicas, error %v", *s.deployment("web-b").Spec.Replicas, err)
	}
	s.change(func(ud *apps.UnitedDeployment) { ud.Spec.Topology.Pools = append(ud.Spec.Topology.Pools, pool) })
	s.rest()
	if d := s.deployment("web-b"); *d.Spec.Replicas != 3 || d.UID != uid {
		t.Errorf("it is %+v", d)
	}
	var left corev1.PodList
	if err := s.all.List(t.Context(), &left, client.MatchingLabels{apps.PoolNameLabel: "b"}); err != nil || len(left.Items) != 2 {
		t.Errorf("of its pods %d are left, error %v", len(left.Items), err)
	}
}

// TestDrainWaitsForReplacementPods: with a total, other pools replace the pods. Pods are
// evicted when their replacements are available.
func TestDrainWaitsForReplacementPods(t *testing.T) {
	s := threeInB(t)
	evicted := s.evicting(func() bool { return true })
	s.change(func(ud *apps.UnitedDeployment) {
		withoutB(ud)
		ud.Spec.Replicas, ud.Spec.Topology.Pools[0].Replicas = new(int32(4)), nil
	})
	for range 3 {
		if _, err := s.pass(); err != nil {
			t.Fatal(err)
		}
		s.roll("web-a")
	}
	c := meta.FindStatusCondition(s.ud().Status.Conditions, apps.PoolProvisioned)
	if len(*evicted) > 0 || !strings.Contains(c.Message, `waits until the pods of other pools are available: "a"`) {
		t.Errorf("%v are evicted; PoolProvisioned is %+v", *evicted, c)
	}
	s.roll()
	if _, err := s.pass(); err != nil || len(*evicted) != 1 {
		t.Errorf("%v are evicted, error %v", *evicted, err)
	}
}

// TestADrainKeepsPodsOfHeldNodes, although kube-controller-manager has marked them as not Ready, and evicts the others.
func TestADrainKeepsPodsOfHeldNodes(t *testing.T) {
	s := threeInB(t)
	evicted := s.evicting(func() bool { return true })
	held := true
	s.Evictor.Held = func(node string) bool { return held && node == "edge" }
	pod := &corev1.Pod{}
	if err := s.all.Get(t.Context(), client.ObjectKey{Namespace: build.Namespace, Name: "b-0"}, pod); err != nil {
		t.Fatal(err)
	}
	pod.Spec.NodeName = "edge"
	pod.Status.Conditions[0].Status = corev1.ConditionFalse
	if err := s.all.Delete(t.Context(), pod.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	pod.ResourceVersion = ""
	if err := s.all.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	s.change(withoutB)
	for range 6 {
		if result, err := s.pass(); err != nil || result.RequeueAfter == 0 {
			t.Fatalf("it comes back after %s, error %v", result.RequeueAfter, err)
		}
		s.roll()
	}
	if n := *s.deployment("web-b").Spec.Replicas; n != 1 || !slices.Equal(*evicted, []string{"b-1", "b-2"}) {
		t.Errorf("%v are evicted, and it has %d replicas", *evicted, n)
	}
	if c := meta.FindStatusCondition(s.ud().Status.Conditions, apps.PoolProvisioned); !strings.Contains(c.Message, "cut off from the cloud") {
		t.Errorf("PoolProvisioned is %+v", c)
	}
	held = false
	if _, err := s.pass(); err != nil || *s.deployment("web-b").Spec.Replicas != 0 {
		t.Errorf("when it is not held it has %d replicas, error %v", *s.deployment("web-b").Spec.Replicas, err)
	}
}
