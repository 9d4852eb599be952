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

// LabelsOf returns what NodesWith finds a node by: its labels, those that a NodePool has replaced, and
// IncumbentOf its pool. Not by what each node has another of: that would take most of the memory.
func LabelsOf(o client.Object) []string {
	node, is := o.(*corev1.Node)
	if !is {
		return nil
	}
	read := attributes.Read(node)
	of, carried := sets.New[string](), []map[string]string{node.Labels}
	if pool := read.Incumbent(); pool != "" {
		of.Insert(valueOf(IncumbentOf(pool)))
		carried = append(carried, read.OwnLabels())
	}
	for _, labels := range carried {
		for key, value := range labels {
			if l := (membership.Label{Key: key, Value: value}); isIndexed(l) {
				of.Insert(valueOf(l))
			}
		}
	}
	return of.UnsortedList()
}

func valueOf(l membership.Label) string { return l.Key + "=" + l.Value }

func isIndexed(l membership.Label) bool { return !l.Any && l.Key != corev1.LabelHostname }

// NodesWith returns the nodes of the cache that carry one of some labels, sorted by name. It returns
// all nodes if all is true, or if a label is not in the index. The caller must not change them.
func NodesWith(ctx context.Context, cache client.Reader, some []membership.Label, all bool) (nodes []*corev1.Node, err error) {
	list := func(options ...client.ListOption) {
		var found corev1.NodeList
		err = cmp.Or(err, cache.List(ctx, &found, append(options, client.UnsafeDisableDeepCopy)...))
		for i := range found.Items {
			nodes = append(nodes, &found.Items[i])
		}
	}
	if all || slices.ContainsFunc(some, func(l membership.Label) bool { return !isIndexed(l) }) {
		list()
		some = nil
	}
	for _, l := range some {
		name, isName := l.IsName()
		if !isName {
			list(client.MatchingFields{NodeLabels: valueOf(l)})
			continue
		}
		node := &corev1.Node{}
		if failed := cache.Get(ctx, client.ObjectKey{Name: name}, node, client.UnsafeDisableDeepCopy); failed == nil {
			nodes = append(nodes, node)
		} else {
			err = cmp.Or(err, client.IgnoreNotFound(failed))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reading nodes: %w", err)
	}
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	return slices.CompactFunc(nodes, func(a, b *corev1.Node) bool { return a.Name == b.Name }), nil
}
