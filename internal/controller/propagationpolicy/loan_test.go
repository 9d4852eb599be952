package propagationpolicy

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// playJob plays an hour of a Job whose only pod finds no node in its group, and returns
// how often the Job was suspended and resumed. The groups in full have no room.
func playJob(t *testing.T, full ...string) (restarts int) {
	t.Helper()
	job := build.Job("batch", build.Bound("p", ""), build.Replicas(1), build.With(func(j *batchv1.Job) {
		j.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"job": "batch"}}
	}))
	s := newFixture(t, append(base(), job)...)
	for _, group := range full {
		s.World.Ledger.ObserveNode(seats.SlimNode(build.Node("node-"+group, build.InGroup(group), build.With(func(n *corev1.Node) {
			n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("0")
		}))))
	}
	if err := s.World.Pods.Tracker().Add(job.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	var pod *corev1.Pod
	create := func(group string) {
		pod = stuck(fmt.Sprint("a", restarts), group, 0, job)
		now := s.World.Clock.Now()
		pod.CreationTimestamp = metav1.NewTime(now)
		pod.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now)
		pod.Labels["job"] = "batch"
		s.World.See(pod)
	}
	create("hz")
	for range 720 {
		s.World.Clock.Step(5 * time.Second)
		if _, err := s.pass(); err != nil {
			t.Fatal(err)
		}
		live, err := s.World.Pods.BatchV1().Jobs(build.Namespace).Get(t.Context(), "batch", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if live.Spec.Suspend != nil && *live.Spec.Suspend {
			restarts++
			s.World.Ledger.Forget(pod.UID)
			_ = s.World.Pods.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), pod.Namespace, pod.Name)
			live.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobSuspended, Status: corev1.ConditionTrue}}
			if err := s.World.Pods.Tracker().Update(batchv1.SchemeGroupVersion.WithResource("jobs"), live, build.Namespace); err != nil {
				t.Fatal(err)
			}
			key := types.NamespacedName{Namespace: build.Namespace, Name: "batch"}
			if done, err := s.Reconciler.Jobs.Resume(t.Context(), key, live.UID); !done || err != nil {
				t.Fatal(done, err)
			}
			create(s.nextGroup("batch"))
		}
		for len(s.events.Events) > 0 {
			<-s.events.Events
		}
	}
	return restarts
}

// TestAJobIsRestartedOnceForEachGroupAtMost, and never if no other group has room.
func TestAJobIsRestartedOnceForEachGroupAtMost(t *testing.T) {
	if got := playJob(t, "hz", "bj"); got != 0 {
		t.Errorf("the Job was restarted %d times in an hour in which no group had room", got)
	}
	if got := playJob(t); got < 1 || got > 2 {
		t.Errorf("the Job was restarted %d times, want once for each of two groups at most", got)
	}
}

// TestAPodGoesOnLoanOnlyWhereItsVolumeCanFollow: pod a waits in hz, which has no room; bj
// has room.
func TestAPodGoesOnLoanOnlyWhereItsVolumeCanFollow(t *testing.T) {
	unbound := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: "data"}}
	for name, tc := range map[string]struct {
		volumes []runtime.Object
		evicted []string
	}{
		"only its group reaches it": {volumes: claimed("data", gm.NodeGroupLabel, "hz")},
		"every node reaches it":     {volumes: claimed("data", "", ""), evicted: []string{"a"}},
		"a claim without a volume":  {volumes: []runtime.Object{unbound}, evicted: []string{"a"}},
		"the claim is not there":    {},
	} {
		t.Run(name, func(t *testing.T) {
			set := build.ReplicaSet("web-1", build.OwnedBy(build.Deployment("web")))
			s := newFixture(t, append(base(), build.Deployment("web", build.Bound("p", "")), set, stuck("a", "hz", time.Hour, set, claim()))...)
			for _, o := range tc.volumes {
				if err := s.World.Pods.Tracker().Add(o); err != nil {
					t.Fatal(err)
				}
			}
			s.World.Ledger.ObserveNode(seats.SlimNode(build.Node("node-hz", build.InGroup("hz"), build.With(func(n *corev1.Node) { n.Spec.Unschedulable = true }))))
			s.Settle(t)
			if _, err := s.pass(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.evicted, s.Evicted); diff != "" {
				t.Errorf("wrong evictions (-want +got):\n%s", diff)
			}
		})
	}
}

// TestFirstErrorStopsDeletionCostPatches: if the API server does not answer, the pass must not wait
// for the timeout of each of 200 pods.
func TestFirstErrorStopsDeletionCostPatches(t *testing.T) {
	s := newFixture(t, join(base(), web("hz", "hz", "hz", "bj", "bj"))...)
	broken, patches := errors.New("broken"), 0
	s.World.Pods.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		patches++
		return true, nil, broken
	})
	if _, err := s.pass(); !errors.Is(err, broken) || patches != 1 {
		t.Errorf("%d patches, error %v; want one, and the error", patches, err)
	}
}
