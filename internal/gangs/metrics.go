package gangs

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var clampedTotal = prometheus.NewCounter(prometheus.CounterOpts{
	Namespace: "atoll", Subsystem: "podgroup", Name: "levels_clamped_total",
	Help: "Times that a rule pointed beyond an end of a pod's owners, so that the end got the PodGroup.",
})

func init() { metrics.Registry.MustRegister(clampedTotal) }
