package survey

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/attributes"
	"github.com/atoll-k8s/atoll/internal/domain/membership"
)

// NodeLabels is the index of the cached nodes that NodesWith reads.
const NodeLabels = "atoll.dev/labels"

// IncumbentOf returns the pool whose attributes a node carries as a label, as if the node carried
// the label.
func IncumbentOf(pool string) membership.Label {
	return membership.Label{Key: apps.NodePoolAnnotation, Value: pool}
}

// IndexNodes adds NodeLabels to the cache. It must be called before the cache is started.
func IndexNodes(indexer client.FieldIndexer) error {
	if err := indexer.IndexField(context.Background(), &corev1.Node{}, NodeLabels, LabelsOf); err != nil {
		return fmt.Errorf("indexing nodes by their labels: %w", err)
	}
	return nil
}

// LabelsOf returns what NodesWith finds a node by: its name, its labels, those that a NodePool has
// replaced, and IncumbentOf its pool.
func LabelsOf(o client.Object) []string {
	node, is := o.(*corev1.Node)
	if !is {
		return nil
	}
	read := attributes.Read(node)
	of := sets.New(valueOf(membership.NameOf(node.Name)), valueOf(IncumbentOf(read.Incumbent())))
	for _, labels := range []map[string]string{node.Labels, read.OwnLabels()} {
		for key, value := range labels {
			of.Insert(valueOf(membership.Label{Key: key, Value: value}), valueOf(membership.Label{Key: key, Any: true}))
		}
	}
	return of.UnsortedList()
}

func valueOf(l membership.Label) string {
	if l.Any {
		return l.Key
	}
	return l.Key + "=" + l.Value
}

// NodesWith returns the nodes of the cache that carry one of some labels, or all nodes, sorted by
// name. The caller must not change them.
func NodesWith(ctx context.Context, cache client.Reader, some []membership.Label, all bool) ([]*corev1.Node, error) {
	filters := make([]client.ListOption, 0, len(some)+1)
	for _, l := range some {
		filters = append(filters, client.MatchingFields{NodeLabels: valueOf(l)})
	}
	if all {
		filters = []client.ListOption{client.MatchingLabels{}}
	}
	var nodes []*corev1.Node
	for _, filter := range filters {
		var list corev1.NodeList
		if err := cache.List(ctx, &list, filter, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing nodes: %w", err)
		}
		for i := range list.Items {
			nodes = append(nodes, &list.Items[i])
		}
	}
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	return slices.CompactFunc(nodes, func(a, b *corev1.Node) bool { return a.Name == b.Name }), nil
}
