package v1alpha1

// NodePoolLabel names, on a node, the NodePool that the node belongs to. Users
// write it to choose a pool for a node; atoll-manager writes it on nodes that a
// pool's selector has brought into the pool.
const NodePoolLabel = "apps.openyurt.io/nodepool"
