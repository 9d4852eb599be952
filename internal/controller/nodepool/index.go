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
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/attributes"
	"github.com/atoll-k8s/atoll/internal/domain/membership"
)

// pools are all NodePools with compiled selectors. Everything but nodes is immutable.
type pools struct {
	membership.Pools
	byName map[string]poolEntry

	mu sync.Mutex
	// nodes are the names of the nodes that concern a pool, by pool; nil until nodesOf is
	// called. A pass over a pool reads these nodes only.
	nodes map[string]sets.Set[string]
}

// concerned returns the names of the pools that a node concerns: the pool whose attributes
// it carries, the one that its label names, and all that select it. The index of selectors
// finds the latter without a test of every pool.
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

// nodesOf returns the names of the nodes that concern a pool, sorted. The first call lists
// all nodes. From then on move keeps the result up to date.
//
// The lock is held during the list: the event of a change that is not in the list calls
// move after it.
func (ps *pools) nodesOf(ctx context.Context, c client.Reader, pool string, read func(*corev1.Node) *attributes.Node) ([]string, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.nodes == nil {
		var list corev1.NodeList
		if err := c.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing nodes: %w", err)
		}
		ps.nodes = map[string]sets.Set[string]{}
		for i := range list.Items {
			ps.addLocked(list.Items[i].Name, ps.concerned(read(&list.Items[i])))
		}
	}
	return sets.List(ps.nodes[pool]), nil
}

// move records that a node concerns other pools than before. The events of one node must
// arrive in their order.
func (ps *pools) move(node string, before, after []string) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.nodes == nil {
		return
	}
	for _, pool := range before {
		if ps.nodes[pool].Delete(node); len(ps.nodes[pool]) == 0 {
			delete(ps.nodes, pool)
		}
	}
	ps.addLocked(node, after)
}

func (ps *pools) addLocked(node string, to []string) {
	for _, pool := range to {
		if ps.nodes[pool] == nil {
			ps.nodes[pool] = sets.New[string]()
		}
		ps.nodes[pool].Insert(node)
	}
}

// poolEntry is one NodePool.
type poolEntry struct {
	uid        types.UID
	gives      attributes.Pool
	generation int64
	deleting   bool
	// invalid is the error of its selector.
	invalid error
	// adopted is true if the pool has its finalizer or is being deleted: nodes in it may be
	// written.
	adopted bool
}

// reference returns a reference to a pool for events. Its UID is empty if the pool does not
// exist.
func (ps *pools) reference(name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: apps.GroupVersion.String(), Kind: "NodePool", Name: name, UID: ps.byName[name].uid}
}

// index keeps what is computed from cached objects until they change. It is safe for
// concurrent use.
type index struct {
	mu sync.Mutex
	// current is nil if a pool has changed since it was computed. changes counts these
	// changes.
	current *pools
	changes int
	nodes   map[string]known
}

// known is the result of attributes.Read for one version of a node.
type known struct {
	uid     types.UID
	version string
	node    *attributes.Node
}

// invalidate must be called when a pool changed.
func (x *index) invalidate() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.current = nil
	x.changes++
}

// pools returns all pools. After a change it lists them again.
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
	fresh := &pools{byName: make(map[string]poolEntry, len(list.Items))}
	compiled := make([]membership.Pool, 0, len(list.Items))
	for i := range list.Items {
		p := &list.Items[i]
		pool, err := membership.CompilePool(p)
		compiled = append(compiled, pool)
		fresh.byName[p.Name] = poolEntry{
			uid: p.UID, gives: attributes.Of(p), generation: p.Generation, deleting: p.DeletionTimestamp != nil, invalid: err,
			adopted: p.DeletionTimestamp != nil || controllerutil.ContainsFinalizer(p, apps.NodePoolFinalizer),
		}
	}
	fresh.Pools = membership.NewPools(compiled)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.changes == changes { // otherwise a pool changed during the list
		x.current = fresh
	}
	return fresh, nil
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

// claim returns the input of the assignment of a node to a pool. If the node's record is
// lost, it is unknown whether the user or a pool set the pool label. It counts as the
// user's, unless the pool that it names also selects the node.
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

// plan returns the pool of a node, which is nil for none, and the change of the node that
// this demands.
func (ps *pools) plan(n *attributes.Node) (membership.Claim, *poolEntry, attributes.Change, error) {
	claim := ps.claim(n)
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

// failure is a node that could not be written, and why.
type failure struct {
	node, why string
}

// failedWrites are the nodes that could not be written. It is safe for concurrent use.
type failedWrites struct {
	mu     sync.Mutex
	byNode map[string]failedWrite
}

// failedWrite is the error of a write, and the pools that the node was to leave and to join.
type failedWrite struct {
	why      string
	from, to string
}

// set records that a node could not be written. It reports whether that is new.
func (t *failedWrites) set(node string, is failedWrite) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byNode[node] == is {
		return false
	}
	if t.byNode == nil {
		t.byNode = map[string]failedWrite{}
	}
	t.byNode[node] = is
	return true
}

// clear removes a node's failure and returns it.
func (t *failedWrites) clear(node string) (was failedWrite, had bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was, had = t.byNode[node]
	delete(t.byNode, node)
	return was, had
}

// of returns the failures that concern a pool, sorted by node.
func (t *failedWrites) of(pool string) []failure {
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
