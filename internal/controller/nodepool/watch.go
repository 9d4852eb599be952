package nodepool

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/attributes"
	"github.com/atoll-k8s/atoll/internal/machinery/members"
)

func (r *Reconciler) members() *members.Members {
	return &members.Members{
		Decides: carriesOther, GroupsOf: r.poolsOf, NodesOf: r.nodesOf, Invalidate: r.index.all.Invalidate,
		Group: &apps.NodePool{}, Groups: &r.poolRequests, Failures: &r.failedWrites,
	}
}

// carriesOther reports whether something changed that a pool can give to a node.
func carriesOther(a, b *corev1.Node) bool {
	return !maps.Equal(a.Labels, b.Labels) || !maps.Equal(a.Annotations, b.Annotations) ||
		!equality.Semantic.DeepEqual(a.Spec.Taints, b.Spec.Taints)
}

// poolsOf returns the pools that versions of a node concern.
func (r *Reconciler) poolsOf(ctx context.Context, versions ...*corev1.Node) (names []string) {
	pools, err := r.index.pools(ctx, r.Client)
	if err != nil {
		return nil
	}
	for _, n := range versions {
		names = append(names, pools.concerned(attributes.Read(n))...) // the index keeps only the newest version
	}
	return names
}

// nodesOf returns the nodes that concern a pool.
func (r *Reconciler) nodesOf(ctx context.Context, pool string) (names []string) {
	pools, err := r.index.pools(ctx, r.Client)
	if err != nil {
		return nil
	}
	nodes, err := pools.nodesOf(ctx, r.Client, pool)
	if err != nil {
		return nil
	}
	for _, node := range nodes {
		if pools.concerns(pool, r.index.read(node)) {
			names = append(names, node.Name)
		}
	}
	return names
}
