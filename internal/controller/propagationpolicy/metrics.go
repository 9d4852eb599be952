package propagationpolicy

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var evictionsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
	Namespace: "atoll", Subsystem: "propagationpolicy", Name: "evictions_total",
	Help: "Evictions of surplus pods by result: evicted, refused (by a PodDisruptionBudget), error.",
}, []string{"result"})

func init() {
	metrics.Registry.MustRegister(evictionsTotal)
}
