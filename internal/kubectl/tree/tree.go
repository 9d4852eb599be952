// Package tree shows the pods of a workload by revision, NodeGroup and node.
package tree

import (
	"cmp"
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/kubectl/read"
)

// Branch is a part of the tree: a workload, a revision, a NodeGroup, a node or a pod.
type Branch struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Pods and Ready count the pods below, or the pod itself.
	Pods  int `json:"pods"`
	Ready int `json:"ready"`
	// Note says more of a pod: why it is not Ready, and its class of capacity.
	Note     string    `json:"note,omitempty"`
	Branches []*Branch `json:"branches,omitempty"`
}

// Of reads the pods of a workload, and returns its tree. The workload has metadata and its kind.
func Of(ctx context.Context, r *read.Reader, workload *metav1.PartialObjectMetadata) (*Branch, error) {
	var pods corev1.PodList
	if err := r.List(ctx, &pods, client.InNamespace(workload.Namespace)); err != nil {
		return nil, err
	}
	below := sets.New(workload.UID)
	between := []client.ObjectList{metadataOf("apps", "v1", "ReplicaSetList"), metadataOf("batch", "v1", "JobList")}
	var owners []metav1.PartialObjectMetadata
	for _, list := range between {
		if err := r.List(ctx, list, client.InNamespace(workload.Namespace)); err != nil {
			return nil, err
		}
		owners = append(owners, list.(*metav1.PartialObjectMetadataList).Items...)
	}
	for range ownership.MaxHops {
		before := below.Len()
		for i := range owners {
			if ref := metav1.GetControllerOf(&owners[i]); ref != nil && below.Has(ref.UID) {
				below.Insert(owners[i].UID)
			}
		}
		if below.Len() == before {
			break
		}
	}
	root := &Branch{Kind: workload.Kind, Name: workload.Name}
	for i := range pods.Items {
		if pod := &pods.Items[i]; isBelow(pod, below) {
			root.add(pod)
		}
	}
	root.sort()
	return root, nil
}

func metadataOf(group, version, kind string) *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.APIVersion, list.Kind = group+"/"+version, kind
	return list
}

func isBelow(pod *corev1.Pod, owners sets.Set[types.UID]) bool {
	ref := metav1.GetControllerOf(pod)
	return owners.Has(pod.UID) || ref != nil && owners.Has(ref.UID)
}

// add adds a pod, and the branches on its way.
func (b *Branch) add(pod *corev1.Pod) {
	ready := 0
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			ready = 1
		}
	}
	revision := ownership.Revision(pod.Labels, "")
	group, node := pod.Labels[gm.NodeGroupLabel], pod.Spec.NodeName
	at := b
	at.count(ready)
	for _, step := range [][2]string{{"Revision", revision}, {"NodeGroup", cmp.Or(group, "none")}, {"Node", cmp.Or(node, "none yet")}} {
		if step[1] == "" {
			continue
		}
		at = at.branch(step[0], step[1])
		at.count(ready)
	}
	leaf := at.branch("Pod", pod.Name)
	leaf.count(ready)
	leaf.Note = note(pod, ready == 1)
}

func (b *Branch) count(ready int) { b.Pods, b.Ready = b.Pods+1, b.Ready+ready }

// branch returns a branch, which it makes if it is not there.
func (b *Branch) branch(kind, name string) *Branch {
	for _, other := range b.Branches {
		if other.Kind == kind && other.Name == name {
			return other
		}
	}
	other := &Branch{Kind: kind, Name: name}
	b.Branches = append(b.Branches, other)
	return other
}

func (b *Branch) sort() {
	slices.SortFunc(b.Branches, func(x, y *Branch) int { return cmp.Compare(x.Name, y.Name) })
	for _, other := range b.Branches {
		other.sort()
	}
}

func note(pod *corev1.Pod, isReady bool) string {
	text := ""
	switch {
	case pod.DeletionTimestamp != nil:
		text = "Terminating"
	case len(pod.Spec.SchedulingGates) > 0:
		text = "SchedulingGated"
	case !isReady:
		text = string(pod.Status.Phase)
	}
	if class := pod.Labels[gm.CapacityClassLabel]; class != "" {
		text = strings.TrimSpace(text + " " + class)
	}
	return text
}
