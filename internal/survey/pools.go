package survey

import (
	"maps"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/attributes"
	"github.com/atoll-k8s/atoll/internal/domain/membership"
)

// Claim returns the input of the assignment of a node to a NodePool. If the node's record is
// lost, it is unknown whether the user or a pool set the pool label. It counts as the
// user's, unless the pool that it names also selects the node.
func Claim(pools *membership.Pools, n *attributes.Node) membership.Claim {
	c := membership.Claim{Own: n.OwnLabels(), Chosen: n.Chosen(), Incumbent: n.Incumbent()}
	if n.Lost() == nil || c.Chosen == "" {
		return c
	}
	own := maps.Clone(c.Own)
	delete(own, apps.NodePoolLabel)
	if pool, exists := pools.Get(c.Chosen); exists && pool.Selects(own) {
		c.Own, c.Chosen = own, ""
	}
	return c
}
