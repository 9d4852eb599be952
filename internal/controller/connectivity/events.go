package connectivity

import (
	corev1 "k8s.io/api/core/v1"

	decide "github.com/atoll-k8s/atoll/internal/domain/connectivity"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
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

// podRefused emits the event of a pod that the API server does not let be written. The steps of its node that come after
// are not taken.
func (r *Reconciler) podRefused(node *corev1.Node, pod *corev1.Pod, step string, err error) {
	const shown = 700 // bytes; the API server accepts 1024 for the whole text
	why := conditions.Truncate(conditions.Printable(err.Error()), shown)
	r.Recorder.Eventf(node, pod, corev1.EventTypeWarning, "PodNotWritten", "Conclude", "Pod %s/%s: %s: %s", pod.Namespace, pod.Name, step, why)
}
