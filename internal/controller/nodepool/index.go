package nodepool

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/attributes"
	"github.com/atoll-k8s/atoll/internal/domain/membership"
	"github.com/atoll-k8s/atoll/internal/machinery/memo"
	"github.com/atoll-k8s/atoll/internal/survey"
)

// pools are all NodePools with compiled selectors. They are immutable.
type pools struct {
	membership.Pools
	byName map[string]poolEntry
}

// poolEntry is one version of a NodePool.
type poolEntry struct {
	uid        types.UID
	compiled   membership.Pool
	gives      attributes.Pool
	generation int64
	deleting   bool
	// invalid is the error of its selector.
	invalid error
}

// newEntry compiles a pool.
func newEntry(p *apps.NodePool) poolEntry {
	compiled, err := membership.CompilePool(p)
	return poolEntry{uid: p.UID, compiled: compiled, gives: attributes.Of(p), generation: p.Generation, deleting: p.DeletionTimestamp != nil, invalid: err}
}

// isOf reports whether the entry was made from this version of the pool.
func (e *poolEntry) isOf(p *apps.NodePool) bool {
	return e.uid == p.UID && e.generation == p.Generation && e.deleting == (p.DeletionTimestamp != nil)
}

// concerned returns the names of the pools that a node concerns, sorted. The index of
// selectors finds them without a test of every pool.
func (ps *pools) concerned(n *attributes.Node) []string {
	names := []string{n.Incumbent(), n.Label()}
	for _, pool := range ps.Selecting(n.OwnLabels()) {
		names = append(names, pool.Name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if names[0] == "" {
		names = names[1:]
	}
	return names
}

// reference returns a reference to a pool for events. Its UID is empty if the pool does not
// exist.
func (ps *pools) reference(name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: apps.GroupVersion.String(), Kind: "NodePool", Name: name, UID: ps.byName[name].uid}
}

// index keeps what is computed from cached objects until they change. It is safe for
// concurrent use.
type index struct {
	all memo.Memo[*pools]

	mu    sync.Mutex
	nodes map[string]known
}

// known is the result of attributes.Read for one version of a node.
type known struct {
	uid     types.UID
	version string
	node    *attributes.Node
}

// pools returns all pools. After a change of what the index has of a pool, it lists and compiles them
// again.
func (x *index) pools(ctx context.Context, c client.Reader) (*pools, error) {
	return x.all.Get(func() (*pools, error) {
		var list apps.NodePoolList
		if err := c.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing NodePools: %w", err)
		}
		fresh := &pools{byName: make(map[string]poolEntry, len(list.Items))}
		compiled := make([]membership.Pool, 0, len(list.Items))
		for i := range list.Items {
			p := &list.Items[i]
			entry := newEntry(p)
			fresh.byName[p.Name] = entry
			compiled = append(compiled, entry.compiled)
		}
		fresh.Pools = membership.NewPools(compiled)
		return fresh, nil
	})
}

// nodesOf returns the nodes that may carry a pool's attributes, name it in their label or be selected
// by it, sorted by name.
func (ps *pools) nodesOf(ctx context.Context, c client.Reader, pool string) ([]*corev1.Node, error) {
	some, all := ps.Labels(pool)
	some = append(some, survey.IncumbentOf(pool), membership.Label{Key: apps.NodePoolLabel, Value: pool})
	return survey.NodesWith(ctx, c, some, all)
}

// concerns reports whether a node carries a pool's attributes, names it in its label, or is selected
// by it.
func (ps *pools) concerns(pool string, n *attributes.Node) bool {
	e := ps.byName[pool]
	return n.Incumbent() == pool || n.Label() == pool || e.compiled.Selects(n.OwnLabels())
}

// read returns the attributes of a node. It reads each version once.
func (x *index) read(n *corev1.Node) *attributes.Node {
	x.mu.Lock()
	defer x.mu.Unlock()
	if k, found := x.nodes[n.Name]; found && k.uid == n.UID && k.version == n.ResourceVersion {
		return k.node
	}
	node := attributes.Read(n)
	if x.nodes == nil {
		x.nodes = map[string]known{}
	}
	x.nodes[n.Name] = known{uid: n.UID, version: n.ResourceVersion, node: node}
	return node
}

// drop removes a node.
func (x *index) drop(name string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.nodes, name)
}

// plan returns the pool of a node, which is nil for none, and the change of the node that
// this demands.
func (ps *pools) plan(n *attributes.Node) (membership.Claim, *poolEntry, attributes.Change, error) {
	claim := survey.Claim(&ps.Pools, n)
	name, selected := ps.Assign(claim)
	var in *poolEntry
	var gives *attributes.Pool
	if name != "" {
		e := ps.byName[name]
		in, gives = &e, &e.gives
	}
	change, err := n.Plan(gives, selected)
	return claim, in, change, err
}
