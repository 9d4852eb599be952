// Package tree shows the pods of a workload by revision, NodeGroup and node.
package tree

import (
	"cmp"
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	// Unread tells, at the root, which rights are missing to say more.
	Unread []string `json:"unread,omitempty"`
}

// Of reads the pods of a workload, and returns its tree. The workload has metadata and its kind.
func Of(ctx context.Context, r *read.Reader, workload *metav1.PartialObjectMetadata) (*Branch, error) {
	pods, err := r.PodsOf(ctx, workload)
	if err != nil {
		return nil, err
	}
	groups, err := groupsOf(ctx, r, pods)
	if err != nil {
		return nil, err
	}
	root := &Branch{Kind: workload.Kind, Name: workload.Name}
	for i := range pods {
		root.add(&pods[i], groups[pods[i].Spec.NodeName])
	}
	root.sort()
	root.Unread = r.Unread()
	return root, nil
}

// groupsOf returns the NodeGroup of each node, if there are pods that do not name theirs: those of DaemonSets do not.
func groupsOf(ctx context.Context, r *read.Reader, pods []corev1.Pod) (map[string]string, error) {
	if !slices.ContainsFunc(pods, func(pod corev1.Pod) bool { return pod.Spec.NodeName != "" && pod.Labels[gm.NodeGroupLabel] == "" }) {
		return nil, nil
	}
	nodes, groups := read.MetadataOf("v1", "NodeList"), map[string]string{}
	err := r.List(ctx, nodes)
	for i := range nodes.Items {
		groups[nodes.Items[i].Name] = nodes.Items[i].Labels[gm.NodeGroupLabel]
	}
	return groups, err
}

// add adds a pod, and the branches on its way. group is that of its node.
func (b *Branch) add(pod *corev1.Pod, group string) {
	ready := 0
	if read.IsReady(pod) {
		ready = 1
	}
	revision := ownership.Revision(pod.Labels, "")
	node := pod.Spec.NodeName
	at := b
	at.count(ready)
	for _, step := range [][2]string{{"Revision", revision}, {"NodeGroup", cmp.Or(pod.Labels[gm.NodeGroupLabel], group, "none")}, {"Node", cmp.Or(node, "none yet")}} {
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
