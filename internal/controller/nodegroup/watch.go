package nodegroup

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/members"
)

func (r *Reconciler) members() *members.Members {
	return &members.Members{
		Decides:  func(before, after *corev1.Node) bool { return !maps.Equal(before.Labels, after.Labels) },
		GroupsOf: r.groupsOf, NodesOf: r.nodesOf, Invalidate: r.groups.Invalidate,
		Group: &gm.NodeGroup{}, Groups: &r.groupRequests, Failures: &r.failedWrites,
	}
}

// groupsOf returns the groups that select a version of a node, and the group that its label names.
func (r *Reconciler) groupsOf(ctx context.Context, versions ...*corev1.Node) (names []string) {
	groups, err := r.compiled(ctx)
	if err != nil {
		return nil
	}
	for _, n := range versions {
		names = append(names, n.Labels[gm.NodeGroupLabel])
		for _, group := range groups.Selecting(n.Name, n.Labels) {
			names = append(names, group.Name)
		}
	}
	return names
}

// nodesOf returns the nodes that concern a group.
func (r *Reconciler) nodesOf(ctx context.Context, group string) (names []string) {
	groups, err := r.compiled(ctx)
	if err != nil {
		return nil
	}
	nodes, err := groups.nodesOf(ctx, r.Client, group)
	if err != nil {
		return nil
	}
	for _, node := range nodes {
		names = append(names, node.Name)
	}
	return names
}
