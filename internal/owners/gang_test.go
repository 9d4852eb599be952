package owners

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestPodCountOfEachOwnerKind: this number is the upper bound of minMember.
func TestPodCountOfEachOwnerKind(t *testing.T) {
	job := func(change func(*batchv1.Job)) build.Object {
		job := build.Job("job")
		job.Spec.Parallelism = new(int32(4))
		change(job)
		return job
	}
	ends := func(kind batchv1.JobConditionType) func(*batchv1.Job) {
		return func(j *batchv1.Job) {
			j.Status.Conditions = []batchv1.JobCondition{{Type: kind, Status: corev1.ConditionTrue}}
		}
	}
	daemons := func(status appsv1.DaemonSetStatus) build.Object {
		ds := build.DaemonSet("ds")
		ds.Status = status
		return ds
	}
	for name, tc := range map[string]struct {
		owner build.Object
		want  *int32
	}{
		"a Job":                              {job(func(*batchv1.Job) {}), new(int32(4))},
		"a Job that completes sooner":        {job(func(j *batchv1.Job) { j.Spec.Completions = new(int32(2)) }), new(int32(2))},
		"a Job most of whose pods succeeded": {job(func(j *batchv1.Job) { j.Spec.Completions, j.Status.Succeeded = new(int32(5)), 3 }), new(int32(2))},
		"a Job with indexes that failed": {job(func(j *batchv1.Job) {
			j.Spec.Completions, j.Status.Succeeded, j.Status.FailedIndexes = new(int32(7)), 2, new("0,3-4,x,9-8")
		}), new(int32(2))},
		"a Job with more pods than it needs": {job(func(j *batchv1.Job) { j.Spec.Completions, j.Status.Succeeded = new(int32(2)), 3 }), new(int32(0))},
		"a Job that is suspended":            {job(func(j *batchv1.Job) { j.Spec.Suspend = new(true) }), new(int32(0))},
		"a Job that is complete":             {job(ends(batchv1.JobComplete)), new(int32(0))},
		"a Job that has failed":              {job(ends(batchv1.JobFailed)), new(int32(0))},
		"a DaemonSet":                        {daemons(appsv1.DaemonSetStatus{ObservedGeneration: 1, DesiredNumberScheduled: 3}), new(int32(3))},
		"a DaemonSet without nodes":          {daemons(appsv1.DaemonSetStatus{ObservedGeneration: 1}), new(int32(0))},
		"a DaemonSet without a status":       {daemons(appsv1.DaemonSetStatus{}), nil},
		"a ReplicaSet, whose replicas count": {build.ReplicaSet("rs"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := gangOf(tc.owner).Members; !ptr.Equal(got, tc.want) {
				t.Errorf("it has %v, want %v", ptr.Deref(got, -1), ptr.Deref(tc.want, -1))
			}
		})
	}
}

// TestDeletionFinalizersOfAnOwner: finalizers decide whether a PodGroup may get an owner reference,
// so they count as a change.
func TestDeletionFinalizersOfAnOwner(t *testing.T) {
	is := build.Owner(build.Deployment("web", build.Deleting("example.com/a")))
	for finalizer, want := range map[string]ownership.Gang{
		"example.com/a":                                   {},
		metav1.FinalizerOrphanDependents:                  {Orphans: true},
		metav1.FinalizerDeleteDependents:                  {DependentsFirst: true},
		"example.com/" + metav1.FinalizerOrphanDependents: {},
	} {
		web := build.Deployment("web", build.Deleting(finalizer))
		got := gangOf(web)
		if got.Orphans != want.Orphans || got.DependentsFirst != want.DependentsFirst {
			t.Errorf("with finalizer %s: %+v, want %+v", finalizer, got, want)
		}
		if same := sameGang(is, build.Owner(web)); same != (!want.Orphans && !want.DependentsFirst) {
			t.Errorf("finalizer %s: sameGang is %t", finalizer, same)
		}
	}
	if gangOf(build.Deployment("web", build.With(func(d *appsv1.Deployment) { d.Finalizers = []string{metav1.FinalizerOrphanDependents} }))).Orphans {
		t.Error("finalizers count without a deletion")
	}
}
