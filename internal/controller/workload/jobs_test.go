package workload

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// batch returns a Job that is bound to both policies.
func batch(options ...build.Option) *batchv1.Job {
	return build.Job("batch", append([]build.Option{build.Bound("p", "o"), build.With(func(j *batchv1.Job) {
		j.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"job": "batch"}}
	})}, options...)...)
}

// jobPod returns a pod of the Job that has waited at the gate for long.
func jobPod(name string, options ...build.Option) *corev1.Pod {
	return build.Pod(name, append([]build.Option{
		build.OwnedBy(batch()), build.Label("job", "batch"), build.Container("c", "nginx:1"), build.Gated(), build.Created(time.Unix(0, 0)),
	}, options...)...)
}

func (s *site) job() *batchv1.Job {
	s.t.Helper()
	j, err := s.World.Pods.BatchV1().Jobs(build.Namespace).Get(s.t.Context(), "batch", metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return j
}

// TestNoPodOfAJobIsDiscarded: the Job controller would count it as failed.
func TestNoPodOfAJobIsDiscarded(t *testing.T) {
	kueue := build.Label("kueue.x-k8s.io/queue-name", "q")
	below := build.ReplicaSet("below", build.OwnedBy(batch()))
	tests := map[string]struct {
		job       *batchv1.Job
		pods      []build.Object
		suspended bool
		woken     []string
	}{
		"it has not started: its pods are recreated": {job: batch(), pods: []build.Object{jobPod("a"), jobPod("b")}, suspended: true},
		"it has started: the other pods start as they are": {
			job: batch(), pods: []build.Object{jobPod("a"), jobPod("b", build.On("node-hz"))}, woken: []string{"a"},
		},
		"another controller suspends it":   {job: batch(kueue), pods: []build.Object{jobPod("a"), jobPod("b")}, woken: []string{"a", "b"}},
		"restarted before, without effect": {job: batch(build.Annotation(gm.JobRestartAnnotation, "resumed batch o/1")), pods: []build.Object{jobPod("a")}, woken: []string{"a"}},
		"restarted for an older policy":    {job: batch(build.Annotation(gm.JobRestartAnnotation, "resumed batch o/0")), pods: []build.Object{jobPod("a")}, suspended: true},
		"the Job is further up":            {job: batch(), pods: []build.Object{below, jobPod("a", build.OwnedBy(below))}, woken: []string{"a"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, tc.job, policy, args, node)
			if err := s.World.Pods.Tracker().Add(tc.job); err != nil {
				t.Fatal(err)
			}
			for _, o := range tc.pods {
				s.World.Add(t, o)
			}
			if _, err := s.Reconcile(t.Context(), request{"batch"}); err != nil {
				t.Fatal(err)
			}
			if len(s.Evicted) != 0 {
				t.Errorf("evicted %v", s.Evicted)
			}
			if diff := cmp.Diff(tc.woken, s.woken); diff != "" {
				t.Errorf("wrong pods were released (-want +got):\n%s", diff)
			}
			if got := s.job().Spec.Suspend; (got != nil && *got) != tc.suspended {
				t.Errorf("suspended %v, want %t", got, tc.suspended)
			}
			told := 0
			for len(s.events.Events) > 0 {
				if e := <-s.events.Events; strings.HasPrefix(e, "Warning StartsAsItIs") {
					told++
				}
			}
			if want := len(tc.woken) + min(1, len(tc.woken)); told != want {
				t.Errorf("%d events, want %d: one for each pod that starts as it is, and one for the Job", told, want)
			}
		})
	}
}

// TestJobPodWithoutExtenderIsPinned: it starts as it is, but in its group.
func TestJobPodWithoutExtenderIsPinned(t *testing.T) {
	for name, tc := range map[string]struct {
		scheduler, of string // the second scheduler, and that of the pod
		isPinned      bool
	}{
		"in this form every pod is seen":        {},
		"another scheduler calls the extender":  {scheduler: "second", isPinned: true},
		"the pod names it":                      {scheduler: "second", of: "second"},
		"the pod has a scheduler of its own":    {scheduler: "second", of: "volcano", isPinned: true},
		"it has its own, and every pod is seen": {of: "volcano", isPinned: true},
	} {
		t.Run(name, func(t *testing.T) {
			job := batch(build.Label("kueue.x-k8s.io/queue-name", "q"))
			s := newSite(t, job, policy, args, node)
			s.SchedulerName = tc.scheduler
			if err := s.World.Pods.Tracker().Add(job); err != nil {
				t.Fatal(err)
			}
			s.World.Add(t, jobPod("a", build.With(func(p *corev1.Pod) { p.Spec.SchedulerName = tc.of })))
			s.reconcile("batch")
			if seen := seats.Slim(s.pod("a")); seen.Gated || seen.Pinned() != tc.isPinned {
				t.Errorf("the pod is %+v", seen)
			}
		})
	}
}

// TestASuspendedJobIsResumed by any later leader. A Job that a user suspended is not.
func TestASuspendedJobIsResumed(t *testing.T) {
	suspended := build.With(func(j *batchv1.Job) {
		j.Spec.Suspend = new(true)
		j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobSuspended, Status: corev1.ConditionTrue}}
	})
	for name, tc := range map[string]struct {
		job     *batchv1.Job
		resumed bool
	}{
		"we suspended it": {batch(suspended, build.Annotation(gm.JobRestartAnnotation, "suspended batch o/1")), true},
		"of a CronJob that carries the labels": {build.Job("batch", suspended, build.Annotation(gm.JobRestartAnnotation, "suspended batch o/1"), build.With(func(j *batchv1.Job) {
			j.Spec.Selector = &metav1.LabelSelector{}
		})), true},
		"a user suspended it": {batch(suspended), false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, tc.job, policy, args, node)
			if err := s.World.Pods.Tracker().Add(tc.job); err != nil {
				t.Fatal(err)
			}
			if len(s.World.Walker.Labelled()) != 1 {
				t.Error("a new leader does not enqueue the Job")
			}
			s.reconcile("batch")
			if got := *s.job().Spec.Suspend; got == tc.resumed {
				t.Errorf("suspended: %t", got)
			}
		})
	}
}
