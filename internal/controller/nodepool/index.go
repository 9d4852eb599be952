package nodepool

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/attributes"
	"github.com/atoll-k8s/atoll/internal/domain/membership"
)

// pools are all NodePools made ready for questions. Immutable, nodes excepted.
type pools struct {
	membership.Pools
	byName map[string]entry

	mu sync.Mutex
	// nodes are the names of the nodes that concern a pool, by pool; nil until
	// somebody asks. A pool's pass reads these nodes and no other.
	nodes map[string]map[string]bool
}

// concerned names the pools that the node is in, that it names or carries, and
// that select it. It asks few pools of many.
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

// nodesOf names the nodes that concern a pool, sorted. The first to ask lists
// all nodes; from then on move keeps the answer true.
//
// The lock is held while nodes are listed: an event that is not in the list
// comes after it, and finds the answer there.
func (ps *pools) nodesOf(ctx context.Context, c client.Reader, pool string, read func(*corev1.Node) *attributes.Node) ([]string, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.nodes == nil {
		var list corev1.NodeList
		if err := c.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing nodes: %w", err)
		}
		ps.nodes = map[string]map[string]bool{}
		for i := range list.Items {
			ps.addLocked(list.Items[i].Name, ps.concerned(read(&list.Items[i])))
		}
	}
	return slices.Sorted(maps.Keys(ps.nodes[pool])), nil
}

// move notes that a node concerns other pools than before. Events of one node
// have to come in their order.
func (ps *pools) move(node string, before, after []string) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.nodes == nil {
		return
	}
	for _, pool := range before {
		if delete(ps.nodes[pool], node); len(ps.nodes[pool]) == 0 {
			delete(ps.nodes, pool)
		}
	}
	ps.addLocked(node, after)
}

func (ps *pools) addLocked(node string, to []string) {
	for _, pool := range to {
		if ps.nodes[pool] == nil {
			ps.nodes[pool] = map[string]bool{}
		}
		ps.nodes[pool][node] = true
	}
}

// entry is one NodePool.
type entry struct {
	uid        types.UID
	gives      attributes.Pool
	generation int64
	deleting   bool
	// invalid is what is wrong with its selector.
	invalid error
	// adopted: the pool has its finalizer, so nodes may join.
	adopted bool
}

// reference names a pool for events, whether it is still there or not.
func (ps *pools) reference(name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: apps.GroupVersion.String(), Kind: "NodePool", Name: name, UID: ps.byName[name].uid}
}

// index keeps what is derived from cached objects until they change. Safe for
// concurrent use.
type index struct {
	mu sync.Mutex
	// current is nil when a pool changed since it was made; changes counts them.
	current *pools
	changes int
	nodes   map[string]known
}

// known is a node as it was read from one version of the object.
type known struct {
	uid     types.UID
	version string
	node    *attributes.Node
}

// invalidate is called when a pool changed.
func (x *index) invalidate() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.current = nil
	x.changes++
}

// pools returns all pools, read again after a change.
func (x *index) pools(ctx context.Context, c client.Reader) (*pools, error) {
	x.mu.Lock()
	current, changes := x.current, x.changes
	x.mu.Unlock()
	if current != nil {
		return current, nil
	}
	var list apps.NodePoolList
	if err := c.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing NodePools: %w", err)
	}
	fresh := &pools{byName: make(map[string]entry, len(list.Items))}
	compiled := make([]membership.Pool, 0, len(list.Items))
	for i := range list.Items {
		p := &list.Items[i]
		pool, err := membership.CompilePool(p)
		compiled = append(compiled, pool)
		fresh.byName[p.Name] = entry{
			uid: p.UID, gives: attributes.Of(p), generation: p.Generation, deleting: p.DeletionTimestamp != nil, invalid: err,
			adopted: p.DeletionTimestamp != nil || controllerutil.ContainsFinalizer(p, apps.NodePoolFinalizer),
		}
	}
	fresh.Pools = membership.NewPools(compiled)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.changes == changes { // else a pool changed while they were listed
		x.current = fresh
	}
	return fresh, nil
}

// read reads a node, or remembers how it was read.
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

// drop forgets a node.
func (x *index) drop(name string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.nodes, name)
}

// claim is what the node says about pools. The label of a node whose record is
// lost counts as its owner's unless the pool selects the node anyway.
func (ps *pools) claim(n *attributes.Node) membership.Claim {
	c := membership.Claim{Own: n.OwnLabels(), Chosen: n.Chosen(), Incumbent: n.Incumbent()}
	if n.Lost() == nil || c.Chosen == "" {
		return c
	}
	own := maps.Clone(c.Own)
	delete(own, apps.NodePoolLabel)
	if pool, exists := ps.Get(c.Chosen); exists && pool.Selects(own) {
		c.Own, c.Chosen = own, ""
	}
	return c
}

// plan says which pool the node is in and what to change on it. The entry is
// nil for no pool.
func (ps *pools) plan(n *attributes.Node) (membership.Claim, *entry, attributes.Change, error) {
	claim := ps.claim(n)
	name, selected := ps.Assign(claim)
	var in *entry
	var gives *attributes.Pool
	if name != "" {
		e := ps.byName[name]
		in, gives = &e, &e.gives
	}
	change, err := n.Plan(gives, selected)
	return claim, in, change, err
}

// failure is a node that could not be written, and why.
type failure struct {
	node, why string
}

// troubles remembers nodes that could not be written. Safe for concurrent use.
type troubles struct {
	mu     sync.Mutex
	byNode map[string]trouble
}

// trouble is a failed write and the pools that it was about.
type trouble struct {
	why      string
	from, to string
}

// set notes that a node could not be written, and reports whether that is new.
func (t *troubles) set(node string, is trouble) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byNode[node] == is {
		return false
	}
	if t.byNode == nil {
		t.byNode = map[string]trouble{}
	}
	t.byNode[node] = is
	return true
}

// clear forgets a node's failure and returns it.
func (t *troubles) clear(node string) (was trouble, had bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was, had = t.byNode[node]
	delete(t.byNode, node)
	return was, had
}

// of are the failures that a pool is to tell of, by node.
func (t *troubles) of(pool string) []failure {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []failure
	for node, is := range t.byNode {
		if is.from == pool || is.to == pool {
			out = append(out, failure{node, is.why})
		}
	}
	slices.SortFunc(out, func(a, b failure) int { return strings.Compare(a.node, b.node) })
	return out
}
