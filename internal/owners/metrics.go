package owners

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var syncedGauge = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Namespace: "atoll", Subsystem: "owners", Name: "kind_synced",
	Help: "1 for a kind of ConfigMap groupmanagement-config that has been listed, 0 for one that has not: its pods wait.",
}, []string{"kind"})

func init() {
	metrics.Registry.MustRegister(syncedGauge)
}
