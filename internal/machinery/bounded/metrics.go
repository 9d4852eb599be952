package bounded

import "github.com/prometheus/client_golang/prometheus"

// Reason is why a connection or a request was refused.
type Reason string

// The reasons.
const (
	// TooManyConnections: the caller has its share of the connections.
	TooManyConnections Reason = "connections"
	// TooManyRequests: the caller has its share of the requests in progress, or of the
	// memory for them, or its request has waited for too long.
	TooManyRequests Reason = "busy"
	// TooLarge: the request is larger than any that is served, or would take more memory
	// once it is decoded.
	TooLarge Reason = "size"
	// TooSlow: the request did not arrive in time, or ended early.
	TooSlow Reason = "time"
)

var refusedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
	Namespace: "atoll", Subsystem: "port", Name: "refused_total",
	Help: "Connections and requests that were refused by port (webhooks, extender, metrics, probes, profile; of a hub: pool) and reason: connections or busy (the client has its share, or the request has waited for too long), size, time (it did not arrive in time).",
}, []string{"port", "reason"})

var panicsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
	Namespace: "atoll", Subsystem: "port", Name: "panics_total",
	Help: "Requests whose handler panicked, by port. The connection was closed, or a pod was created without a change. The log has the stack.",
}, []string{"port"})

// Collectors returns the metrics of all ports, for a registry of the process.
func Collectors() []prometheus.Collector { return []prometheus.Collector{refusedTotal, panicsTotal} }

// Panicked counts a request whose handler panicked.
func Panicked(port string) { panicsTotal.WithLabelValues(port).Inc() }

// Refused counts a refusal.
func Refused(port string, reason Reason) {
	refusedTotal.WithLabelValues(port, string(reason)).Inc()
}
