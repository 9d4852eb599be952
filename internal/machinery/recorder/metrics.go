package recorder

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var suppressedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
	Namespace: "atoll", Subsystem: "events", Name: "suppressed_total",
	Help: "Events that were not written, by the limit that they exceeded: reason (events of one reason about one object), object, namespace.",
}, []string{"limit"})

func init() { metrics.Registry.MustRegister(suppressedTotal) }
