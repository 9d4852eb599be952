package read

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// PodsOf returns the pods of a workload, which has its metadata and its kind: a pod itself, or
// pods that it owns, through ReplicaSets and Jobs too, and those of a UnitedDeployment through its
// workloads.
func (r *Reader) PodsOf(ctx context.Context, workload *metav1.PartialObjectMetadata) (pods []corev1.Pod, err error) {
	var all corev1.PodList
	if err := r.List(ctx, &all, client.InNamespace(workload.Namespace)); err != nil {
		return nil, err
	}
	var between []metav1.PartialObjectMetadata
	lists := []*metav1.PartialObjectMetadataList{MetadataOf("apps/v1", "ReplicaSetList"), MetadataOf("batch/v1", "JobList")}
	if workload.Kind == "UnitedDeployment" {
		lists = append(lists, MetadataOf("apps/v1", "DeploymentList"), MetadataOf("apps/v1", "StatefulSetList"), MetadataOf("apps/v1", "DaemonSetList"))
	}
	for _, list := range lists {
		if err := r.List(ctx, list, client.InNamespace(workload.Namespace)); err != nil {
			return nil, err
		}
		between = append(between, list.Items...)
	}
	below := sets.New(workload.UID)
	for range ownership.MaxHops {
		before := below.Len()
		for i := range between {
			if ref := metav1.GetControllerOf(&between[i]); ref != nil && below.Has(ref.UID) {
				below.Insert(between[i].UID)
			}
		}
		if below.Len() == before {
			break
		}
	}
	for i := range all.Items {
		pod := &all.Items[i]
		if ref := metav1.GetControllerOf(pod); below.Has(pod.UID) || ref != nil && below.Has(ref.UID) {
			pods = append(pods, *pod)
		}
	}
	return pods, nil
}

// IsReady reports whether the condition Ready of a pod is True.
func IsReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
}

// MetadataOf returns an empty list of the metadata of a kind, such as "apps/v1", "ReplicaSetList".
func MetadataOf(version, kind string) *metav1.PartialObjectMetadataList {
	return &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: version, Kind: kind}}
}
