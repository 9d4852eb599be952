package gangs

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/domain/gang"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/owners"
)

// Pod is what is kept of a pod of a gang scheduler. Pods are shared and never changed.
type Pod struct {
	// ObjectMeta holds namespace, name, UID, resourceVersion and creationTimestamp.
	metav1.ObjectMeta
	Controller *ownership.Reference
	// Group is the PodGroup that the pod names, or "".
	Group string
	// OthersGroup: the pod names a PodGroup by the key that schedulers do not read.
	OthersGroup bool
	// Live: neither succeeded nor failed.
	Live bool
	// Terminating: it is being deleted.
	Terminating bool
	// Bound: it has a node.
	Bound bool
	// Mirror: a kubelet made it of a file.
	Mirror bool
	// Revision is that of its controller's template.
	Revision string
	// Gang is what its PodGroup takes from it.
	Gang gang.Pod
}

// Object is the pod as the start of a walk up its owners.
func (p *Pod) Object() *ownership.Object {
	return &ownership.Object{
		GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Pod"),
		Namespace:        p.Namespace, Name: p.Name, UID: p.UID, Controller: p.Controller, Deleting: p.Terminating,
	}
}

// Key names the pod.
func (p *Pod) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

// GroupKey names the pod's PodGroup.
func (p *Pod) GroupKey() types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Group}
}

// Unnamed tells whether the pod is to name a PodGroup and names none.
func (p *Pod) Unnamed() bool {
	return p.Group == "" && !p.OthersGroup && p.Live && !p.Terminating && !p.Mirror
}

// slimPod keeps of a pod what is read.
func slimPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	annotations := gang.Annotations(pod.Annotations)
	return &Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, CreationTimestamp: pod.CreationTimestamp,
		},
		Controller:  owners.ControllerOf(pod.OwnerReferences),
		Group:       pod.Annotations[scheduling.GroupNameAnnotation],
		OthersGroup: pod.Annotations[scheduling.VolcanoGroupNameAnnotation] != "",
		Live:        pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed,
		Terminating: pod.DeletionTimestamp != nil,
		Bound:       pod.Spec.NodeName != "",
		Mirror:      mirror,
		Revision:    ownership.Revision(pod.Labels, ""),
		Gang: gang.Pod{
			Annotations: annotations, Labels: gang.Labels(pod.Labels),
			PriorityClassName: pod.Spec.PriorityClassName, Usage: gang.UsageOf(pod),
		},
	}, nil
}

// samePod tells whether two states of a pod are the same to PodGroups. What it uses of
// nodes changes in place, and counts.
func samePod(a, b *Pod) bool {
	return a.UID == b.UID && a.Group == b.Group && a.OthersGroup == b.OthersGroup && a.Live == b.Live && a.Terminating == b.Terminating &&
		a.Bound == b.Bound && a.Revision == b.Revision && ptr.Equal(a.Controller, b.Controller) &&
		maps.Equal(a.Gang.Annotations, b.Gang.Annotations) && maps.Equal(a.Gang.Labels, b.Gang.Labels) && sameUsage(a, b)
}

func sameUsage(a, b *Pod) bool {
	if len(a.Gang.Usage) != len(b.Gang.Usage) {
		return false
	}
	for name, q := range a.Gang.Usage {
		if other, ok := b.Gang.Usage[name]; !ok || q.Cmp(other) != 0 {
			return false
		}
	}
	return true
}

// String names the pod, for messages.
func (p *Pod) String() string { return fmt.Sprintf("%s/%s", p.Namespace, p.Name) }
