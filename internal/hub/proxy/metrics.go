package proxy

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/atoll-k8s/atoll/internal/hub/journal"
	"github.com/atoll-k8s/atoll/internal/hub/request"
)

// Sources of answers, values of the label of atoll_hub_requests_total.
const (
	fromCloud   = "cloud"
	fromCache   = "cache"
	fromJournal = "journal" // a write that is kept
	fromHub     = "hub"     // the hub's own, a refusal
)

// metrics are those of a Proxy. nil counts nothing.
type metrics struct {
	requests *prometheus.CounterVec
	answers  *prometheus.CounterVec
	held     *prometheus.CounterVec
}

// Register adds the metrics of the proxy to a registry, with those of what it has at the moment.
// It must be called before the first request, and at most once.
func (p *Proxy) Register(registry prometheus.Registerer) error {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "atoll", Subsystem: "hub", Name: "requests_total",
			Help: "Requests of clients of the node, by what they ask for (get, list, watch, write, stream) and whose the answer is: that of the cloud, of the cache, of the journal (a write that is kept), or the hub's own.",
		}, []string{"kind", "from"}),
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "atoll", Subsystem: "hub", Name: "node_answers_total",
			Help: "Answers of the cloud to requests of the node itself, by their code: for example 401 if the cloud refuses its certificate. Codes that HTTP does not define are counted as other.",
		}, []string{"code"}),
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
	for _, c := range append(p.journalMetrics(), m.requests, m.answers, m.held, scopes, size, waiting, written, syncs) {
		if err := registry.Register(c); err != nil {
			return err
		}
	}
	p.metrics = m
	return nil
}

// journalMetrics returns the metrics of the journal of writes.
func (p *Proxy) journalMetrics() []prometheus.Collector {
	if p.Journal == nil {
		return nil
	}
	waiting := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "kept_writes",
		Help: "Writes of the node that are kept until they can be sent to the cloud.",
	}, func() float64 { return float64(p.Journal.Summary().Waiting) })
	size := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "kept_writes_bytes",
		Help: "Size of the writes that are kept, in bytes.",
	}, func() float64 { return float64(p.Journal.Summary().Bytes) })
	since := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "kept_writes_oldest_timestamp_seconds",
		Help: "When the oldest write that is kept was made, in seconds since 1970. 0 if none is kept.",
	}, func() float64 {
		if s := p.Journal.Summary(); s.Waiting > 0 {
			return float64(s.Since.Unix())
		}
		return 0
	})
	count := func(o journal.Outcome) func() float64 {
		return func() float64 { return float64(p.Journal.Summary().Outcomes[o]) }
	}
	replayed := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "kept_writes_replayed_total",
		Help: "Kept writes that were sent to the cloud.",
	}, count(journal.Replayed))
	refused := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "kept_writes_refused_total",
		Help: "Kept writes that the API server refused, for example because their object was gone, or that the hub could not make a request of. They are dropped.",
	}, count(journal.Refused))
	outdated := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "kept_writes_outdated_total",
		Help: "Kept Leases that were not sent, because they had expired or the cloud had a newer one.",
	}, count(journal.Outdated))
	crowded := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Namespace: "atoll", Subsystem: "hub", Name: "kept_writes_crowded_total",
		Help: "Kept events that were dropped to make place for newer writes.",
	}, count(journal.Crowded))
	return []prometheus.Collector{waiting, size, since, replayed, refused, outdated, crowded}
}

func (m *metrics) request(kind request.Kind, from string) {
	if m != nil {
		m.requests.WithLabelValues(string(kind), from).Inc()
	}
}

// answer counts an answer of the cloud to the node.
func (m *metrics) answer(code int) {
	if m == nil {
		return
	}
	label := "other"
	if http.StatusText(code) != "" {
		label = strconv.Itoa(code)
	}
	m.answers.WithLabelValues(label).Inc()
}

func (m *metrics) verdict(v string) {
	if m != nil {
		m.held.WithLabelValues(v).Inc()
	}
}
