package seats

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var seatsGauge = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Namespace: "atoll", Subsystem: "seats", Name: "held",
	Help: "Seats by state: reserved (for a pod that is not seen there yet), observed.",
}, []string{"state"})

func init() {
	metrics.Registry.MustRegister(seatsGauge)
}
