package owners

import (
	"maps"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/atoll-k8s/atoll/internal/domain/gang"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// revisionAnnotation is the number that the Deployment controller gives a ReplicaSet.
const revisionAnnotation = "deployment.kubernetes.io/revision"

// gangOf reads the fields of an object that its PodGroup depends on.
func gangOf(obj metav1.Object) ownership.Gang {
	g := ownership.Gang{Annotations: gang.Annotations(obj.GetAnnotations()), DependentsFirst: gang.DependentsFirst(obj), Orphans: gang.Orphans(obj)}
	switch o := obj.(type) {
	case *appsv1.ReplicaSet:
		g.Order, _ = strconv.ParseInt(o.Annotations[revisionAnnotation], 10, 64)
	case *appsv1.StatefulSet:
		g.UpdateRevision = strings.Clone(o.Status.UpdateRevision)
	case *appsv1.DaemonSet:
		if o.Status.ObservedGeneration > 0 { // before that the status holds no number
			g.Members = new(o.Status.DesiredNumberScheduled)
		}
	case *batchv1.Job:
		g.Members = new(membersOf(o))
	}
	return g
}

// membersOf returns how many pods of a Job can run together from now on: 0 if it is suspended or
// has ended. Pods that have succeeded, and indexes that have failed, get no other pod.
func membersOf(job *batchv1.Job) int32 {
	if ptr.Deref(job.Spec.Suspend, false) {
		return 0
	}
	for _, c := range job.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return 0
		}
	}
	members := ptr.Deref(job.Spec.Parallelism, 1)
	if job.Spec.Completions != nil {
		members = min(members, *job.Spec.Completions-job.Status.Succeeded-count(ptr.Deref(job.Status.FailedIndexes, "")))
	}
	return max(0, members)
}

// count returns the number of indexes in a list of numbers and ranges, such as "1,3-5". What is
// none of these counts as 0.
func count(indexes string) (n int32) {
	for part := range strings.SplitSeq(indexes, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.Atoi(from)
		last, errLast := strconv.Atoi(to)
		if err == nil && errLast == nil && last >= first {
			n += int32(last - first + 1)
		}
	}
	return n
}

// sameGang reports whether two states of an object are equal in the fields that PodGroups
// depend on.
func sameGang(a, b *ownership.Object) bool {
	return a.Gang.Order == b.Gang.Order && a.Gang.UpdateRevision == b.Gang.UpdateRevision && a.Deleting == b.Deleting &&
		a.Gang.DependentsFirst == b.Gang.DependentsFirst && a.Gang.Orphans == b.Gang.Orphans &&
		ptr.Equal(a.Members(), b.Members()) && maps.Equal(a.Gang.Annotations, b.Gang.Annotations) && ptr.Equal(a.Controller, b.Controller)
}
