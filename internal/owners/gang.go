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

// revisionAnnotation numbers the ReplicaSets of a Deployment.
const revisionAnnotation = "deployment.kubernetes.io/revision"

// gangOf reads what a PodGroup takes from an object.
func gangOf(obj metav1.Object) ownership.Gang {
	g := ownership.Gang{Annotations: gang.Annotations(obj.GetAnnotations()), DependentsFirst: gang.DependentsFirst(obj), Orphans: gang.Orphans(obj)}
	switch o := obj.(type) {
	case *appsv1.ReplicaSet:
		g.Order, _ = strconv.ParseInt(o.Annotations[revisionAnnotation], 10, 64)
	case *appsv1.StatefulSet:
		g.UpdateRevision = strings.Clone(o.Status.UpdateRevision)
	case *appsv1.DaemonSet:
		if o.Status.ObservedGeneration > 0 { // a new one's pods come before its status says how many
			g.Members = new(o.Status.DesiredNumberScheduled)
		}
	case *batchv1.Job:
		g.Members = new(membersOf(o))
	}
	return g
}

// membersOf is how many pods a Job has at a time: none if it is suspended or has ended.
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
		members = min(members, *job.Spec.Completions)
	}
	return members
}

// sameGang tells whether PodGroups take the same from two states of an object.
func sameGang(a, b *ownership.Object) bool {
	return a.Gang.Order == b.Gang.Order && a.Gang.UpdateRevision == b.Gang.UpdateRevision && a.Deleting == b.Deleting &&
		a.Gang.DependentsFirst == b.Gang.DependentsFirst && a.Gang.Orphans == b.Gang.Orphans &&
		ptr.Equal(a.Members(), b.Members()) && maps.Equal(a.Gang.Annotations, b.Gang.Annotations) && ptr.Equal(a.Controller, b.Controller)
}
