package proxy

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/atoll-k8s/atoll/internal/hub/request"
)

// Sources of answers, values of the label of atoll_hub_requests_total.
const (
	fromCloud = "cloud"
	fromCache = "cache"
	fromHub   = "hub" // the hub's own, a refusal
)

// metrics are those of a Proxy. nil counts nothing.
type metrics struct {
	requests *prometheus.CounterVec
	held     *prometheus.CounterVec
}

// Register adds the metrics of the proxy to a registry, with those of what it has at the moment.
// It must be called before the first request, and at most once.
func (p *Proxy) Register(registry prometheus.Registerer) error {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "atoll", Subsystem: "hub", Name: "requests_total",
			Help: "Requests of clients of the node, by what they ask for (get, list, watch, write, stream) and whose the answer is: that of the cloud, of the cache, or the hub's own.",
		}, []string{"kind", "from"}),
		held: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "atoll", Subsystem: "hub", Name: "gate_versions_total",
			Help: "Versions of pods that required policies kept from the node, by verdict: Hold (the node does not get the pod) or Freeze (it keeps the version that it has).",
		}, []string{"verdict"}),
	}
	scopes := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "cache_scopes",
		Help: "Requests, without their position, whose answers are on disk.",
	}, func() float64 { return float64(len(p.Cache.Scopes())) })
	size := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "cache_bytes",
		Help: "Size on disk of all answers, in bytes.",
	}, func() float64 {
		total := int64(0)
		for _, s := range p.Cache.Scopes() {
			total += s.Bytes
		}
		return float64(total)
	})
	waiting := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "held_pods",
		Help: "Pods that the hub holds at the moment, because a policy that they require is not bound.",
	}, func() float64 { return float64(len(p.Held())) })
	written := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "cache_written_bytes_total",
		Help: "Bytes that were written to disk to keep answers.",
	}, func() float64 {
		bytes, _ := p.Cache.Written()
		return float64(bytes)
	})
	syncs := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "cache_syncs_total",
		Help: "Calls of fsync to make kept answers durable: at most one a second for each request whose answer changes.",
	}, func() float64 {
		_, syncs := p.Cache.Written()
		return float64(syncs)
	})
	for _, c := range []prometheus.Collector{m.requests, m.held, scopes, size, waiting, written, syncs} {
		if err := registry.Register(c); err != nil {
			return err
		}
	}
	p.metrics = m
	return nil
}

func (m *metrics) request(kind request.Kind, from string) {
	if m != nil {
		m.requests.WithLabelValues(string(kind), from).Inc()
	}
}

func (m *metrics) verdict(v string) {
	if m != nil {
		m.held.WithLabelValues(v).Inc()
	}
}
