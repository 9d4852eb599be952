package read

import (
	"context"

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
	lists := []*metav1.PartialObjectMetadataList{metadataOf("apps/v1", "ReplicaSetList"), metadataOf("batch/v1", "JobList")}
	if workload.Kind == "UnitedDeployment" {
		lists = append(lists, metadataOf("apps/v1", "DeploymentList"), metadataOf("apps/v1", "StatefulSetList"), metadataOf("apps/v1", "DaemonSetList"))
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

func metadataOf(version, kind string) *metav1.PartialObjectMetadataList {
	return &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: version, Kind: kind}}
}
