package v1alpha1

// Keys on nodes.
const (
	// NodePoolLabel names, on a node, the NodePool that the node belongs to.
	// Users write it to choose a pool for a node; atoll-manager writes it on
	// nodes that a pool's selector has brought into the pool, and puts it back there.
	NodePoolLabel = "apps.openyurt.io/nodepool"

	// NodePoolAnnotation is written by atoll-manager on every node in a pool:
	// the pool, and what the node had itself under the keys that the pool gave
	// it. It comes and goes together with what the pool gives, in one write.
	NodePoolAnnotation = "atoll.dev/nodepool"
)

// NodePoolFinalizer keeps a deleted NodePool until no node is in it and every
// node has back what was its own.
const NodePoolFinalizer = "apps.openyurt.io/nodepool"

// Condition types of a NodePool.
const (
	// ConditionReady: the pool has nodes, and none of them has a problem. It
	// sums the others up with the first problem found.
	ConditionReady = "Ready"
	// ConditionAttributesSynced: every node in the pool carries the pool's
	// labels, annotations and taints, and every node that left has its own back.
	ConditionAttributesSynced = "AttributesSynced"
	// ConditionUncontested: no node that spec.selector matches is in another pool.
	ConditionUncontested = "Uncontested"
	// ConditionTaintsTolerated: no NoExecute taint of the pool is kept from its
	// nodes until pods of UnitedDeployments tolerate it.
	ConditionTaintsTolerated = "TaintsTolerated"
	// ConditionMembershipProtected: no kubelet can put its node into the pool by labels
	// that it sets itself. It is never True: see ReasonLabelGuardUnknown.
	ConditionMembershipProtected = "MembershipProtected"
)

// IsStalled returns whether Ready with this reason stays as it is until a person changes the
// object. The condition Stalled is True then, with the same reason and message, and absent
// otherwise: tools that wait for objects read it (kstatus).
func IsStalled(reason string) bool {
	switch reason {
	case ReasonInvalid, ReasonAnotherCoordinator, ReasonVersionNotSupported,
		ReasonPatchInvalid, ReasonNameTaken, ReasonProgressDeadlineExceeded, ReasonStopped:
		return true
	}
	return false
}

// Reasons of conditions of a NodePool.
const (
	// ReasonNodesReady: every node in the pool is Ready and as the pool wants it.
	ReasonNodesReady = "NodesReady"
	// ReasonNoNodes: no node names the pool and the selector matches none.
	ReasonNoNodes = "NoNodes"
	// ReasonNodesNotReady: at least one node in the pool is not Ready.
	ReasonNodesNotReady = "NodesNotReady"
	// ReasonNodesLeft: the pool is deleted and has nodes yet. It takes no
	// more; those that it has go to whom else selects them, or stay until they
	// are moved.
	ReasonNodesLeft = "NodesLeft"
	// ReasonInvalid: spec holds what cannot be used; the message names the
	// field. Nodes keep what they have.
	ReasonInvalid = "Invalid"

	// ReasonSynced: all nodes are as the pool wants them.
	ReasonSynced = "Synced"
	// ReasonSyncing: nodes are being written, or wait for it.
	ReasonSyncing = "Syncing"
	// ReasonSyncFailed: at least one node cannot be written. The others are.
	ReasonSyncFailed = "SyncFailed"

	// ReasonTolerated: no NoExecute taint of the pool waits.
	ReasonTolerated = "Tolerated"
	// ReasonTaintsWait: a NoExecute taint would evict pods of a UnitedDeployment
	// that are to tolerate it, and waits for them, 5 minutes at most; or it would evict
	// pods from nodes that are cut off from the cloud, and waits for these.
	ReasonTaintsWait = "TaintsWait"

	// ReasonNodesCanJoin: a kubelet may set the labels that the selector reads, and so
	// receive pods and secrets that are meant for the pool.
	ReasonNodesCanJoin = "NodesCanJoin"
	// ReasonLabelGuardUnknown: the selector, if there is one, cannot be met by a kubelet
	// alone. A kubelet may still set the label NodePoolLabel, unless an admission
	// policy refuses it, which atoll-manager does not know.
	ReasonLabelGuardUnknown = "LabelGuardUnknown"

	// ReasonUncontested: no other pool has a node that the selector matches.
	ReasonUncontested = "Uncontested"
	// ReasonNodesContested: another pool has at least one node that the
	// selector matches; it keeps it.
	ReasonNodesContested = "NodesContested"
)

// Reasons of events about pools. They stand on the node.
const (
	// ReasonJoinedNodePool: the node got the pool's attributes.
	ReasonJoinedNodePool = "JoinedNodePool"
	// ReasonMovedNodePool: the node got another pool's attributes.
	ReasonMovedNodePool = "MovedNodePool"
	// ReasonLeftNodePool: the node has its own attributes back.
	ReasonLeftNodePool = "LeftNodePool"
	// ReasonNodePoolAttributesRepaired: attributes of the pool that somebody had changed were
	// restored.
	ReasonNodePoolAttributesRepaired = "NodePoolAttributesRepaired"
	// ReasonNodePoolRecordLost: the annotation with the node's own attributes could not be
	// decoded. It was written again from the present attributes of the node.
	ReasonNodePoolRecordLost = "NodePoolRecordLost"
)
