package nodepool

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/attributes"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
)

// joined emits the event of a node that got the pool's attributes.
func (r *Reconciler) joined(node *corev1.Node, pool *corev1.ObjectReference) {
	r.Recorder.Eventf(node, pool, corev1.EventTypeNormal, apps.ReasonJoinedNodePool, "Join", "Joined NodePool %q", pool.Name)
}

// movedPool emits the event of a node that got another pool's attributes.
func (r *Reconciler) movedPool(node *corev1.Node, from string, to *corev1.ObjectReference) {
	r.Recorder.Eventf(node, to, corev1.EventTypeNormal, apps.ReasonMovedNodePool, "Move", "Moved from NodePool %q to %q", from, to.Name)
}

// left emits the event of a node whose own attributes were restored.
func (r *Reconciler) left(node *corev1.Node, pool *corev1.ObjectReference) {
	r.Recorder.Eventf(node, pool, corev1.EventTypeNormal, apps.ReasonLeftNodePool, "Leave",
		"Left NodePool %q: the node's own labels, annotations and taints are restored", pool.Name)
}

// nodesLeft emits the event of a pool whose deletion waits, on the pool: whoever deletes it looks there.
func (r *Reconciler) nodesLeft(pool *apps.NodePool, why string) {
	r.Recorder.Eventf(pool, nil, corev1.EventTypeWarning, apps.ReasonNodesLeft, "Delete", "Its deletion waits: %s", why)
}

// repaired emits the event of a node on which changes of others were undone.
func (r *Reconciler) repaired(node *corev1.Node, pool *corev1.ObjectReference, c *attributes.Change) {
	const shown = 900 // bytes; the API server accepts 1024 for the whole text
	keys := conditions.Truncate(strings.Join(c.Keys(), ", "), shown)
	r.Recorder.Eventf(node, pool, corev1.EventTypeWarning, apps.ReasonNodePoolAttributesRepaired, "Repair", "Restored what NodePool %q gives: %s", pool.Name, keys)
}

// recordLost emits the event of a node whose record of its own attributes was replaced.
func (r *Reconciler) recordLost(node *corev1.Node) {
	r.Recorder.Eventf(node, nil, corev1.EventTypeWarning, apps.ReasonNodePoolRecordLost, "Repair",
		"Annotation %s could not be decoded: all values that differ from those of the NodePool now count as the node's own", apps.NodePoolAnnotation)
}

// missing emits an event if the label of a node names a pool that the node cannot join,
// once for each pool. pool is "" if there is no such pool: the next one gets an event again.
func (r *Reconciler) missing(node *corev1.Node, pool string) {
	r.mu.Lock()
	reported := pool == "" || r.reportedMissing[node.Name] == pool
	if r.reportedMissing == nil {
		r.reportedMissing = map[string]string{}
	}
	r.reportedMissing[node.Name] = pool
	if pool == "" {
		delete(r.reportedMissing, node.Name)
	}
	r.mu.Unlock()
	if !reported {
		r.Recorder.Eventf(node, nil, corev1.EventTypeWarning, apps.ReasonNodePoolMissing, "Join",
			"Label %s names NodePool %q, which does not exist or is being deleted: the node is in no pool", apps.NodePoolLabel, pool)
	}
}
