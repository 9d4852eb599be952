package owners

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var syncedGauge = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Namespace: "atoll", Subsystem: "owners", Name: "kind_synced",
	Help: "1 if a kind of ConfigMap groupmanagement-config has been listed, else 0: its pods wait at the gate.",
}, []string{"kind"})

func init() {
	metrics.Registry.MustRegister(syncedGauge)
}
