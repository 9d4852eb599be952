package nodepool

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/attributes"
)

// joined tells that the node got the pool's attributes.
func (r *Reconciler) joined(node *corev1.Node, pool *corev1.ObjectReference) {
	r.Recorder.Eventf(node, pool, corev1.EventTypeNormal, apps.ReasonJoined, "Join", "Joined NodePool %q", pool.Name)
}

// movedPool tells that the node got another pool's attributes.
func (r *Reconciler) movedPool(node *corev1.Node, from string, to *corev1.ObjectReference) {
	r.Recorder.Eventf(node, to, corev1.EventTypeNormal, apps.ReasonMoved, "Move", "Moved from NodePool %q to %q", from, to.Name)
}

// left tells that the node has its own attributes back.
func (r *Reconciler) left(node *corev1.Node, pool *corev1.ObjectReference) {
	r.Recorder.Eventf(node, pool, corev1.EventTypeNormal, apps.ReasonLeft, "Leave",
		"Left NodePool %q and has its own labels, annotations and taints back", pool.Name)
}

// repaired tells that what somebody changed on the node was put back.
func (r *Reconciler) repaired(node *corev1.Node, pool *corev1.ObjectReference, c *attributes.Change) {
	const shown = 900 // of the 1024 bytes that the API server takes
	keys := strings.Join(c.Keys(), ", ")
	if len(keys) > shown {
		keys = keys[:shown] + "…"
	}
	r.Recorder.Eventf(node, pool, corev1.EventTypeWarning, apps.ReasonRepaired, "Repair", "Put back what NodePool %q gives: %s", pool.Name, keys)
}

// recordLost tells that the record of the node's own attributes was made anew.
func (r *Reconciler) recordLost(node *corev1.Node) {
	r.Recorder.Eventf(node, nil, corev1.EventTypeWarning, apps.ReasonRecordLost, "Repair",
		"Annotation %s could not be read: what is not as the NodePool gives it counts as the node's own from here on", apps.NodePoolAnnotation)
}

// missing tells, once a pool, that the node names a pool that takes none; ""
// lets it tell again.
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
		r.Recorder.Eventf(node, nil, corev1.EventTypeWarning, apps.ReasonPoolMissing, "Join",
			"Label %s names NodePool %q, which does not exist or is being deleted: the node is in no pool", apps.NodePoolLabel, pool)
	}
}
