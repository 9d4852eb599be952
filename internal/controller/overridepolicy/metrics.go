package overridepolicy

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var imageUpdatesTotal = prometheus.NewCounter(prometheus.CounterOpts{
	Namespace: "atoll", Subsystem: "overridepolicy", Name: "image_updates_total",
	Help: "Running pods whose images were changed in place.",
})

var replacementsTotal = prometheus.NewCounter(prometheus.CounterOpts{
	Namespace: "atoll", Subsystem: "overridepolicy", Name: "replacements_total",
	Help: "Pods replaced because what cannot change on a pod that exists was not as wanted.",
})

func init() {
	metrics.Registry.MustRegister(imageUpdatesTotal, replacementsTotal)
}
