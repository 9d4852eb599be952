package propagationpolicy

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/time/rate"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// start is the time of a new fixture's clock.
var start = time.Unix(1_000_000, 0)

// stuck returns a pod that got its seat at creation and has been unschedulable for the
// duration age.
func stuck(name, group string, age time.Duration, owner build.Object, options ...build.Option) *corev1.Pod {
	return build.Pod(name, append([]build.Option{
		build.OwnedBy(owner), build.Seated(group), build.Created(start.Add(-age)), build.Unschedulable(),
		build.With(func(p *corev1.Pod) { p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(start.Add(-age)) }),
	}, options...)...)
}

func after(seconds int32) build.Option {
	return build.With(func(p *gm.PropagationPolicy) { p.Spec.RescheduleAfterSeconds = &seconds })
}

// nextGroup returns the group that the owner's next pod gets at creation.
func (s *fixture) nextGroup(owner types.UID) string {
	s.t.Helper()
	spread, err := s.World.Policies.Spread(s.policy(), "web")
	if err != nil {
		s.t.Fatal(err)
	}
	group, why := s.World.Ledger.Take(seats.Request{Pod: "next", Cohort: seats.Cohort{Owner: owner}, Total: 1, Spread: spread}, true)
	if why != seats.Seated {
		s.t.Fatal(why)
	}
	return group
}

func TestPodsThatFitNoNodeOfTheirGroupAreReassigned(t *testing.T) {
	deployment := build.Deployment("web", build.Bound("p", ""))
	replicaSet := build.ReplicaSet("web-1", build.OwnedBy(deployment))
	job := build.Job("batch", build.Bound("p", ""))
	on := func(pod *corev1.Pod, options ...build.Option) []build.Object {
		return append(base(options...), deployment, replicaSet, job, pod)
	}
	tests := map[string]struct {
		objects []build.Object
		evicted []string
		requeue time.Duration
	}{
		"a minute is enough by default":     {objects: on(stuck("a", "hz", time.Minute, replicaSet)), evicted: []string{"a"}},
		"and less is not":                   {objects: on(stuck("a", "hz", time.Minute-3*time.Second, replicaSet)), requeue: 3 * time.Second},
		"rescheduleAfterSeconds is enough":  {objects: on(stuck("a", "hz", 5*time.Second, replicaSet), after(5)), evicted: []string{"a"}},
		"and not before":                    {objects: on(stuck("a", "hz", time.Hour, replicaSet), after(3600+7)), requeue: 7 * time.Second},
		"rescheduleAfterSeconds 0 is never": {objects: on(stuck("a", "hz", time.Hour, replicaSet), after(0))},
		"a Job's pods are never evicted":    {objects: on(stuck("a", "hz", time.Hour, job))},
		"a pod without an owner would not come back": {
			objects: on(stuck("a", "hz", time.Hour, replicaSet, build.Bound("p", ""), build.With(func(p *corev1.Pod) { p.OwnerReferences = nil }))),
		},
		"a pod that kube-scheduler has not looked at": {objects: on(stuck("a", "hz", time.Hour, replicaSet, build.With(func(p *corev1.Pod) { p.Status.Conditions = nil })))},
		"a pod that has its node":                     {objects: on(stuck("a", "hz", time.Hour, replicaSet, build.On("node-hz")))},
		"a pod that may go to any group": {
			objects: on(stuck("a", "hz", time.Hour, replicaSet, build.With(func(p *corev1.Pod) { p.Labels, p.Annotations = nil, nil }))),
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, tc.objects...)
			s.Evictor.Pace = eviction.NewPace(rate.Every(time.Hour), 0) // pods without a node take no token
			result, err := s.pass()
			if err != nil || result.RequeueAfter != tc.requeue {
				t.Errorf("comes back after %s, want %s (error %v)", result.RequeueAfter, tc.requeue, err)
			}
			if diff := cmp.Diff(tc.evicted, s.Evicted); diff != "" {
				t.Errorf("wrong evictions (-want +got):\n%s", diff)
			}
			s.World.Ledger.Forget("a")
			want := map[bool]string{true: "bj", false: "hz"}[tc.evicted != nil]
			if got := s.nextGroup("web-1"); got != want {
				t.Errorf("the next pod goes to %s, want %s", got, want)
			}
			if len(s.events.Events) != len(tc.evicted) {
				t.Errorf("%d events for %d evictions", len(s.events.Events), len(tc.evicted))
			}
		})
	}
}

func TestAnswersToAReassignment(t *testing.T) {
	broken := errors.New("broken")
	tests := map[string]struct {
		answer, want error
		requeue      time.Duration
	}{
		"the pod is gone":               {answer: apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "a")},
		"a PodDisruptionBudget refuses": {answer: build.EvictionRefused(), requeue: eviction.Retry},
		"the API server failed":         {answer: broken, want: broken},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			replicaSet := build.ReplicaSet("web-1", build.OwnedBy(build.Deployment("web")))
			s := newFixture(t, append(base(), build.Deployment("web", build.Bound("p", ""), build.Replicas(4)), replicaSet,
				stuck("a", "hz", time.Hour, replicaSet), stuck("b", "hz", time.Hour, replicaSet))...)
			s.Answers = []error{tc.answer}
			result, err := s.pass()
			if !errors.Is(err, tc.want) || result.RequeueAfter != tc.requeue {
				t.Errorf("comes back after %s, want %s; error %v, want %v", result.RequeueAfter, tc.requeue, err, tc.want)
			}
			if diff := cmp.Diff([]string{"a", "b"}, s.Evicted); diff != "" {
				t.Errorf("an answer about one pod ended the pass (-want +got):\n%s", diff)
			}
			if len(s.events.Events) != 1 {
				t.Errorf("%d events for one pod that went", len(s.events.Events))
			}
		})
	}
}

// TestPodsOfAJobThatFindNoNode: none is evicted. A Job that has not started is suspended,
// so that its pods are recreated, and they avoid the group.
func TestPodsOfAJobThatFindNoNode(t *testing.T) {
	job := build.Job("batch", build.Bound("p", ""), build.Replicas(2), build.With(func(j *batchv1.Job) {
		j.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"job": "batch"}}
	}))
	of := func(pod *corev1.Pod) *corev1.Pod {
		pod.Labels["job"] = "batch"
		return pod
	}
	tests := map[string]struct {
		pods      []build.Object
		suspended bool
		next      string
		requeue   time.Duration
	}{
		"it has not started": {
			pods: []build.Object{of(stuck("a", "hz", time.Minute, job)), of(stuck("b", "bj", time.Second, job))}, suspended: true, next: "bj", requeue: time.Minute - time.Second,
		},
		"not for long enough": {pods: []build.Object{of(stuck("a", "hz", time.Minute-time.Second, job))}, next: "hz", requeue: time.Second},
		"it has started": {
			pods: []build.Object{of(stuck("a", "hz", time.Minute, job)), of(stuck("b", "bj", time.Minute, job, build.On("node-bj")))}, next: "hz",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, append(append(base(), job), tc.pods...)...)
			if err := s.World.Pods.Tracker().Add(job.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			result, err := s.pass()
			if err != nil || result.RequeueAfter != tc.requeue {
				t.Errorf("comes back after %s, want %s (error %v)", result.RequeueAfter, tc.requeue, err)
			}
			if len(s.Evicted) != 0 {
				t.Errorf("evicted %v", s.Evicted)
			}
			live, err := s.World.Pods.BatchV1().Jobs(build.Namespace).Get(t.Context(), "batch", metav1.GetOptions{})
			if err != nil || (live.Spec.Suspend != nil && *live.Spec.Suspend) != tc.suspended {
				t.Errorf("suspended %v, want %t; error %v", live.Spec.Suspend, tc.suspended, err)
			}
			if event := len(s.events.Events) == 1; event != tc.suspended {
				t.Errorf("an event: %t, want %t", event, tc.suspended)
			}
			s.World.Ledger.Forget("a")
			s.World.Ledger.Forget("b")
			if got := s.nextGroup("batch"); got != tc.next {
				t.Errorf("the next pod goes to %s, want %s", got, tc.next)
			}
		})
	}
}

// TestPendingSurplusPodsLeaveFirstWithoutAToken: hz should have three of five pods
// and bj two. Four run in bj, and one waits for a node there.
func TestPendingSurplusPodsLeaveFirstWithoutAToken(t *testing.T) {
	replicaSet := build.ReplicaSet("web-1", build.OwnedBy(build.Deployment("web")))
	pending := build.Pod("web-1-4", build.OwnedBy(replicaSet), build.Seated("bj"), build.Created(time.Unix(0, 0)))
	objects := append(base(maxUnavailable(2)), build.Deployment("web", build.Bound("p", ""), build.Replicas(5)), replicaSet, pending)
	for i := range 4 {
		objects = append(objects, runningPod(fmt.Sprint("web-1-", i), "bj", i+1, build.OwnedBy(replicaSet)))
	}
	s := newFixture(t, objects...)
	s.Evictor.Pace = eviction.NewPace(rate.Every(time.Hour), 1)
	s.reconcile()
	if diff := cmp.Diff([]string{"web-1-4", "web-1-3"}, s.Evicted); diff != "" {
		t.Errorf("wrong evictions (-want +got):\n%s", diff)
	}
}

// TestPodsAreNotMovedToAGroupThatTheirOwnerAvoids: the successor would get the same group
// as before, and would be moved again.
func TestPodsAreNotMovedToAGroupThatTheirOwnerAvoids(t *testing.T) {
	s := newFixture(t, join(base(), web("hz", "hz", "bj", "bj", "bj"))...)
	s.Settle(t)
	s.World.Ledger.Avoid(s.World.Ledger.Pod("web-1-0"), "hz")
	s.reconcile()
	if len(s.Evicted) != 0 || s.reason() != gm.ReasonNoFeasibleTarget {
		t.Errorf("evicted %v, reason %s", s.Evicted, s.reason())
	}
	s.World.Clock.Step(seats.AvoidTime)
	s.reconcile()
	if diff := cmp.Diff([]string{"web-1-4"}, s.Evicted); diff != "" {
		t.Errorf("wrong evictions, later (-want +got):\n%s", diff)
	}
}
