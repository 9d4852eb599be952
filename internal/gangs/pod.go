package gangs

import (
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/domain/gang"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/owners"
)

// Pod holds the fields of a pod of a gang scheduler that are used. Pods are shared: do not
// change them.
type Pod struct {
	// ObjectMeta holds namespace, name, UID, resourceVersion and creationTimestamp.
	metav1.ObjectMeta
	Controller *ownership.Reference
	// Group is the PodGroup in scheduling.GroupNameAnnotation, or "".
	Group string
	// OthersGroup: the pod names a PodGroup in scheduling.VolcanoGroupNameAnnotation, which
	// schedulers do not read.
	OthersGroup bool
	// Live: the pod has neither succeeded nor failed.
	Live bool
	// Terminating: the pod has a deletionTimestamp.
	Terminating bool
	// Bound: the pod has a node.
	Bound bool
	// Mirror: the kubelet created the pod for a static pod.
	Mirror bool
	// Revision identifies the template of its controller that the pod was created from.
	Revision string
	// Gang holds the fields that its PodGroup depends on.
	Gang gang.Pod
}

// Object returns the pod as the first element of a walk up its owners.
func (p *Pod) Object() *ownership.Object {
	return &ownership.Object{
		GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Pod"),
		Namespace:        p.Namespace, Name: p.Name, UID: p.UID, Controller: p.Controller, Deleting: p.Terminating,
	}
}

// Key returns namespace and name of the pod.
func (p *Pod) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

// GroupKey returns namespace and name of the PodGroup that the pod names.
func (p *Pod) GroupKey() types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Group}
}

// Unnamed reports whether the pod names no PodGroup and needs one.
func (p *Pod) Unnamed() bool {
	return p.Group == "" && !p.OthersGroup && p.Live && !p.Terminating && !p.Mirror
}

// slimPod returns the fields of a pod that are used.
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
		Group:       nameOf(pod.Annotations[scheduling.GroupNameAnnotation]),
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

// nameOf returns the name of a PodGroup, cut if it is too long for any object: the pod then
// still names one, which does not exist.
func nameOf(value string) string {
	const longest = 253
	if len(value) > longest {
		return strings.Clone(value[:longest+1])
	}
	return value
}

// samePod reports whether two states of a pod are equal in the fields that PodGroups
// depend on. Resources are among them: a pod can be resized in place.
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

// String returns namespace/name, for messages.
func (p *Pod) String() string { return fmt.Sprintf("%s/%s", p.Namespace, p.Name) }
