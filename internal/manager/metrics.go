package manager

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/atoll-k8s/atoll/internal/machinery/bounded"
)

var bypassesTotal = prometheus.NewCounter(prometheus.CounterOpts{
	Namespace: "atoll", Subsystem: "webhook", Name: "bypasses_total",
	Help: "Pods of workloads that require a policy that were created without passing the pod webhook, as this replica saw it.",
})

func init() {
	metrics.Registry.MustRegister(bypassesTotal)
	metrics.Registry.MustRegister(bounded.Collectors()...)
}
