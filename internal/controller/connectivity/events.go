package connectivity

import (
	corev1 "k8s.io/api/core/v1"

	decide "github.com/atoll-k8s/atoll/internal/domain/connectivity"
)

// concluded emits the event of a node that came into another state.
func (r *Reconciler) concluded(node *corev1.Node, v *decide.Verdict) {
	kind := corev1.EventTypeWarning
	if v.To == decide.Direct || v.To == decide.Released {
		kind = corev1.EventTypeNormal
	}
	r.Recorder.Eventf(node, nil, kind, v.Reason, "Conclude", "%s, was %s: %s", v.To, v.From, v.Message)
	transitionsTotal.WithLabelValues(string(v.To)).Inc()
}
