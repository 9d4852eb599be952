package nodepool

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var patchesTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
	Namespace: "atoll", Subsystem: "nodepool", Name: "node_patches_total",
	Help: "Patches of nodes by result: joined, moved, left, updated (the pool gives something else), repaired (somebody else had changed the node), conflict, error.",
}, []string{"result"})

func init() {
	metrics.Registry.MustRegister(patchesTotal)
}
