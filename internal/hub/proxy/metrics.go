package proxy

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/atoll-k8s/atoll/internal/hub/journal"
	"github.com/atoll-k8s/atoll/internal/hub/request"
)

// Sources of responses: values of the label from of atoll_hub_requests_total.
const (
	fromCloud   = "cloud"
	fromCache   = "cache"
	fromJournal = "journal" // a journaled write
	fromHub     = "hub"     // the hub's own response, for example a rejection
)

// metrics are the metrics of a Proxy.
type metrics struct {
	requests *prometheus.CounterVec
	answers  *prometheus.CounterVec
	held     *prometheus.CounterVec
}

func newMetrics() *metrics {
	return &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "atoll", Subsystem: "hub", Name: "requests_total",
			Help: "Requests of clients of the node, by verb (get, list, watch, write, stream) and source of the response: the cloud, the cache, the journal (a journaled write), or the hub itself.",
		}, []string{"kind", "from"}),
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "atoll", Subsystem: "hub", Name: "node_answers_total",
			Help: "Responses of the cloud to requests of the node itself, by status code: for example 401 if the cloud refuses its certificate. Codes that HTTP does not define are counted as other.",
		}, []string{"code"}),
		held: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "atoll", Subsystem: "hub", Name: "gate_versions_total",
			Help: "Versions of pods that the hub did not deliver to the node because of a required policy, by verdict: Hold (the node does not get the pod) or Freeze (the node keeps its earlier version).",
		}, []string{"verdict"}),
	}
}

// Register registers the metrics of the proxy, and of its cache and journal.
func (p *Proxy) Register(registry prometheus.Registerer) error {
	scopes := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "cache_scopes",
		Help: "Scopes in the cache: requests without their position, with their caller.",
	}, func() float64 { return float64(len(p.Cache.Scopes())) })
	size := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "cache_bytes",
		Help: "Size of the cache on disk, in bytes.",
	}, func() float64 {
		total := int64(0)
		for _, s := range p.Cache.Scopes() {
			total += s.Bytes
		}
		return float64(total)
	})
	waiting := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "held_pods",
		Help: "Pods that the hub holds back from the node at the moment, because a policy that they require is not bound.",
	}, func() float64 { return float64(len(p.Gate.Held())) })
	written := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "cache_written_bytes_total",
		Help: "Bytes that were written to disk for the cache.",
	}, func() float64 {
		bytes, _ := p.Cache.Written()
		return float64(bytes)
	})
	syncs := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "cache_syncs_total",
		Help: "Calls of fsync for the cache: at most one a second for each scope that changes.",
	}, func() float64 {
		_, syncs := p.Cache.Written()
		return float64(syncs)
	})
	for _, c := range append(journalMetrics(p.Journal), p.metrics.requests, p.metrics.answers, p.metrics.held, scopes, size, waiting, written, syncs) {
		if err := registry.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// journalMetrics returns the metrics of the journal of writes.
func journalMetrics(j *journal.Journal) []prometheus.Collector {
	if j == nil {
		return nil
	}
	waiting := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "kept_writes",
		Help: "Journaled writes of the node, which wait until they can be sent to the cloud.",
	}, func() float64 { return float64(j.Summary().Waiting) })
	size := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "kept_writes_bytes",
		Help: "Size of the journaled writes, in bytes.",
	}, func() float64 { return float64(j.Summary().Bytes) })
	since := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "kept_writes_oldest_timestamp_seconds",
		Help: "Time of the oldest journaled write, in seconds since 1970; 0 if there is none.",
	}, func() float64 {
		if s := j.Summary(); s.Waiting > 0 {
			return float64(s.Since.Unix())
		}
		return 0
	})
	count := func(o journal.Outcome) func() float64 {
		return func() float64 { return float64(j.Summary().Outcomes[o]) }
	}
	replayed := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "kept_writes_replayed_total",
		Help: "Journaled writes that were sent to the cloud.",
	}, count(journal.Replayed))
	refused := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "kept_writes_refused_total",
		Help: "Journaled writes that were dropped because the API server refused them, for example because their object was deleted, or because the hub could not send them.",
	}, count(journal.Refused))
	outdated := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "kept_writes_outdated_total",
		Help: "Journaled Leases that were not sent, because they had expired or the cloud had a newer one.",
	}, count(journal.Outdated))
	crowded := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "kept_writes_crowded_total",
		Help: "Journaled events that were dropped to make space for newer writes.",
	}, count(journal.Crowded))
	return []prometheus.Collector{waiting, size, since, replayed, refused, outdated, crowded}
}

func (m *metrics) request(kind request.Kind, from string) {
	m.requests.WithLabelValues(string(kind), from).Inc()
}

// answer counts a response of the cloud to the node.
func (m *metrics) answer(code int) {
	label := "other"
	if http.StatusText(code) != "" {
		label = strconv.Itoa(code)
	}
	m.answers.WithLabelValues(label).Inc()
}
