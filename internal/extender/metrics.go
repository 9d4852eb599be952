package extender

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	requestSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "atoll", Subsystem: "extender", Name: "request_seconds",
		Help:    "Time to answer a request of kube-scheduler, by verb.",
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1},
	}, []string{"verb"})

	filterTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "atoll", Subsystem: "extender", Name: "filter_total",
		Help: "Filter requests by result: unmanaged, seated, no_seat, not_bound, error.",
	}, []string{"result"})

	bindTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "atoll", Subsystem: "extender", Name: "bind_total",
		Help: "Bind requests by result: bound, refused, error.",
	}, []string{"result"})
)

func init() {
	metrics.Registry.MustRegister(requestSeconds, filterTotal, bindTotal)
}
