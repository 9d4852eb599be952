package hub

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/atoll-k8s/atoll/internal/hub/uplink"
)

// registerMetrics adds the metrics of the connection to the cloud.
func registerMetrics(registry prometheus.Registerer, cloud *uplink.Uplink) error {
	return registry.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "cloud_online",
		Help: "1 if an API server of the cloud answers, 0 if none does, or if it is not known yet.",
	}, func() float64 {
		if e, _ := cloud.Evidence(); e.State == uplink.Online {
			return 1
		}
		return 0
	}))
}
