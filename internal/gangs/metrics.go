package gangs

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var clampedTotal = prometheus.NewCounter(prometheus.CounterOpts{
	Namespace: "atoll", Subsystem: "podgroup", Name: "levels_clamped_total",
	Help: "Times that a rule chose a level above the topmost owner of a pod or below the pod: the owner at that end has the PodGroup.",
})

func init() { metrics.Registry.MustRegister(clampedTotal) }
