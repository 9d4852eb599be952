package hub

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/atoll-k8s/atoll/internal/hub/panics"
	"github.com/atoll-k8s/atoll/internal/hub/uplink"
	"github.com/atoll-k8s/atoll/internal/machinery/bounded"
)

// registerMetrics registers the metrics of the connection to the cloud, of the node's certificate, of panics, and
// of the port for the pool's API server.
func registerMetrics(registry prometheus.Registerer, cloud *uplink.Uplink, cert *nodeCertificate, caught *panics.Catcher) error {
	online := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "cloud_online",
		Help: "1 if an API server of the cloud answers, 0 if none does or if it is not known yet.",
	}, func() float64 {
		if e, _ := cloud.Evidence(); e.State == uplink.Online {
			return 1
		}
		return 0
	})
	expires := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "node_certificate_expiration_timestamp_seconds",
		Help: "Expiry of the certificate of the node that the hub uses, in seconds since 1970; 0 if there is none.",
	}, func() float64 {
		if at, _ := cert.state(); !at.IsZero() {
			return float64(at.Unix())
		}
		return 0
	})
	refused := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "node_certificate_refused",
		Help: "1 if the cloud refuses the certificate of the node (401), 0 if it does not.",
	}, func() float64 {
		if cloud.RefusedSince().IsZero() {
			return 0
		}
		return 1
	})
	panicked := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "panics_total",
		Help: "Panics from which the hub recovered. The request or task with the panic fails, and the log has the stack. None is expected.",
	}, func() float64 { return float64(caught.Caught()) })
	var errs []error
	for _, c := range append(bounded.Collectors(), online, expires, refused, panicked) {
		errs = append(errs, registry.Register(c))
	}
	return errors.Join(errs...)
}
