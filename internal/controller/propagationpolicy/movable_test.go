package propagationpolicy

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/volumes"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

func (s *fixture) message() string {
	s.t.Helper()
	return meta.FindStatusCondition(s.policy().Status.Conditions, gm.ConditionReady).Message
}

// TestNoPodIsEvictedForAGroupThatIsClosedToIt: hz lacks a pod, and has a taint.
func TestNoPodIsEvictedForAGroupThatIsClosedToIt(t *testing.T) {
	objects := join(base(), web("hz", "hz", "bj", "bj", "bj"))
	node := objects[0].(*corev1.Node)
	node.Spec.Taints = []corev1.Taint{{Key: "site", Effect: corev1.TaintEffectNoSchedule}}
	s := newFixture(t, objects...)
	s.reconcile()
	if len(s.Evicted) != 0 || s.reason() != gm.ReasonNoFeasibleTarget {
		t.Errorf("evicted %v, reason %s: the successor would wait for ever", s.Evicted, s.reason())
	}
	want := `Deployment "web": pods are surplus and stay: NodeGroup "hz" can take none: its open nodes have taints that the pods do not tolerate`
	if diff := cmp.Diff(want, s.message()); diff != "" {
		t.Errorf("wrong message (-want +got):\n%s", diff)
	}
	node.Spec.Taints = nil
	s.World.Ledger.ObserveNode(seats.SlimNode(node))
	s.reconcile()
	if diff := cmp.Diff([]string{"web-1-4"}, s.Evicted); diff != "" {
		t.Errorf("wrong evictions without the taint (-want +got):\n%s", diff)
	}
}

// claimed returns a PersistentVolumeClaim and its volume, which can be used on nodes with
// the label only; on any node if key is "".
func claimed(name, key, value string) []runtime.Object {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: name}}
	claim.Spec.VolumeName = "pv-" + name
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}}
	if key != "" {
		volume.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}},
		}}}}
	}
	return []runtime.Object{claim, volume}
}

// TestPodsStayWhereTheirVolumesAre: five pods are in bj, which should have two. Some of
// them have volumes.
func TestPodsStayWhereTheirVolumesAre(t *testing.T) {
	local := func(name string) []runtime.Object { return claimed(name, gm.NodeGroupLabel, "bj") }
	broken := errors.New("broken")
	tests := map[string]struct {
		claims  map[int]string // by pod
		objects []runtime.Object
		fails   string // resource that cannot be read
		evicted []string
		message string
		err     error
		requeue time.Duration
	}{
		"volumes that every node reaches": {
			claims: map[int]string{4: "shared"}, objects: claimed("shared", "", ""), evicted: []string{"web-1-4"},
			message: "surplus pods are being moved",
		},
		"the first that would go is tied: the next goes": {
			claims: map[int]string{4: "data"}, objects: local("data"), evicted: []string{"web-1-3"},
			message: `surplus pods are being moved, but for some: pods "web-1-4" are tied to NodeGroup "bj" by their volumes`,
		},
		"all are tied": {
			claims: map[int]string{0: "data", 1: "data", 2: "data", 3: "data", 4: "data"}, objects: local("data"),
			message: `pods are surplus and stay: pods "web-1-0", "web-1-1", "web-1-2" and 2 more are tied to NodeGroup "bj" by their volumes`,
			requeue: retryFeasible,
		},
		"a claim that is gone: its successor would wait": {
			claims: map[int]string{0: "data", 1: "data", 2: "data", 3: "data", 4: "data"}, requeue: retryFeasible,
			message: `pods are surplus and stay: NodeGroup "hz" can take none: the nodes that reach the pods' volumes are not known yet`,
		},
		"a volume that cannot be read": {
			claims: map[int]string{4: "data"}, objects: local("data"), fails: "persistentvolumes", evicted: []string{"web-1-3"}, err: broken,
			message: `surplus pods are being moved, but for some: NodeGroup "hz" can take none: the nodes that reach the pods' volumes are not known yet`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			objects := join(base(), web("bj", "bj", "bj", "bj", "bj"))
			for _, o := range objects {
				for i, claim := range tc.claims {
					if pod, ok := o.(*corev1.Pod); ok && pod.Name == fmt.Sprint("web-1-", i) {
						pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
							PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
						}}}
					}
				}
			}
			s := newFixture(t, objects...)
			for _, o := range tc.objects {
				if err := s.World.Pods.Tracker().Add(o); err != nil {
					t.Fatal(err)
				}
			}
			s.World.Pods.PrependReactor("get", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
				return tc.fails == a.GetResource().Resource, nil, broken
			})
			s.Settle(t)
			result, err := s.pass()
			if !errors.Is(err, tc.err) || result.RequeueAfter != tc.requeue && tc.requeue != 0 {
				t.Errorf("comes back after %s, want %s; error %v, want %v", result.RequeueAfter, tc.requeue, err, tc.err)
			}
			if diff := cmp.Diff(tc.evicted, s.Evicted); diff != "" {
				t.Errorf("wrong evictions (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(`Deployment "web": `+tc.message, s.message()); diff != "" {
				t.Errorf("wrong message (-want +got):\n%s", diff)
			}
		})
	}
}

// TestVolumesAreReadOnceAndFewAtATime, because a workload may have a thousand pods.
func TestVolumesAreReadOnceAndFewAtATime(t *testing.T) {
	const pods = volumes.MaxReads + 5
	groups := make([]string, pods)
	for i := range groups {
		groups[i] = "bj"
	}
	objects := join(base(), web(groups...))
	for _, o := range objects {
		if pod, ok := o.(*corev1.Pod); ok {
			pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}}}
		}
	}
	s := newFixture(t, objects...)
	for _, o := range claimed("data", gm.NodeGroupLabel, "bj") {
		if err := s.World.Pods.Tracker().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	reads := func() (n int) {
		for _, a := range s.World.Pods.Actions() {
			if a.Matches("get", "persistentvolumes") {
				n++
			}
		}
		return n
	}
	for pass, want := range []int{volumes.MaxReads, pods, pods} {
		result := s.reconcile()
		if got := reads(); got != want {
			t.Errorf("pass %d: %d volumes were read so far, want %d", pass, got, want)
		}
		if soon := result.RequeueAfter == time.Millisecond; soon != (pass == 0) {
			t.Errorf("pass %d: comes back after %s", pass, result.RequeueAfter)
		}
	}
	s.World.Clock.Step(volumes.KeptFor)
	if s.reconcile(); reads() != pods+volumes.MaxReads {
		t.Errorf("%d reads: what is kept is never read again", reads())
	}
	if len(s.Evicted) != 0 {
		t.Errorf("evicted %v", s.Evicted)
	}
}

// TestBlockedWorkloadsDoNotStarveTheOthers: five of six workloads have a
// PodDisruptionBudget that allows nothing, and the pace allows one eviction.
func TestBlockedWorkloadsDoNotStarveTheOthers(t *testing.T) {
	objects := base()
	for i := range 6 {
		name := fmt.Sprint("web-", i)
		deployment := build.Deployment(name, build.Bound("p", ""))
		replicaSet := build.ReplicaSet(name+"-1", build.OwnedBy(deployment))
		objects = append(objects, deployment, replicaSet, runningPod(name+"-1-0", "bj", i, build.OwnedBy(replicaSet)))
	}
	s := newFixture(t, objects...)
	s.Evictor.Pace = eviction.NewPace(rate.Every(time.Hour), 1)
	for range 5 {
		s.Answers = append(s.Answers, build.EvictionRefused())
	}
	s.reconcile()
	want := []string{"web-0-1-0", "web-1-1-0", "web-2-1-0", "web-3-1-0", "web-4-1-0", "web-5-1-0"}
	if diff := cmp.Diff(want, s.Evicted); diff != "" {
		t.Errorf("wrong evictions were requested (-want +got):\n%s", diff)
	}
}

// TestASlowAPIServer: one eviction takes longer than an observation is fresh. Before the
// next eviction, each workload is observed and planned again.
func TestASlowAPIServer(t *testing.T) {
	objects := base(maxUnavailable(9))
	var pods []*corev1.Pod
	for i := range 2 {
		name := fmt.Sprint("web-", i)
		deployment := build.Deployment(name, build.Bound("p", ""), build.Replicas(3))
		replicaSet := build.ReplicaSet(name+"-1", build.OwnedBy(deployment), build.Replicas(3))
		objects = append(objects, deployment, replicaSet)
		for j := range 3 {
			pods = append(pods, runningPod(fmt.Sprint(name, "-1-", j), "bj", j, build.OwnedBy(replicaSet)))
			objects = append(objects, pods[len(pods)-1])
		}
	}
	s := newFixture(t, objects...)
	s.EvictionTakes = eviction.Fresh + time.Millisecond
	// Meanwhile another client moves the second workload's pods.
	s.World.Pods.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		for _, pod := range pods[3:5] {
			s.World.Ledger.Forget(pod.UID)
			moved := pod.DeepCopy()
			moved.UID, moved.Spec.NodeName = pod.UID+"-new", "node-hz"
			s.World.See(moved)
		}
		return false, nil, nil
	})
	s.reconcile()
	if diff := cmp.Diff([]string{"web-0-1-2"}, s.Evicted); diff != "" {
		t.Errorf("wrong evictions (-want +got):\n%s", diff)
	}
}
