package connectivity

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	decide "github.com/atoll-k8s/atoll/internal/domain/connectivity"
)

var (
	nodesGauge = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "connectivity", Name: "nodes",
		Help: "Nodes of pools with a coordinator, by pool and by what the cloud concludes about them: Direct, Delegated, Unobserved, Frozen, Lost, Released.",
	}, []string{"pool", "state"})

	transitionsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "atoll", Subsystem: "connectivity", Name: "transitions_total",
		Help: "Times that the cloud concluded something else about a node, by the state into which it came.",
	}, []string{"state"})

	probeGauge = prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "connectivity", Name: "last_probe_timestamp_seconds",
		Help: "When the leader last heard its own probe, the Lease atoll-probe, which it writes each five seconds; 0 if it has not yet. While it does not hear it, it concludes of no node that it is silent, so that pods of dead nodes stay.",
	})
)

func init() {
	metrics.Registry.MustRegister(nodesGauge, transitionsTotal, probeGauge)
}

// count sets the gauge for a pool.
func (r *Reconciler) count(name string, p *pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	nodes := map[decide.State]int{}
	for _, n := range p.Nodes {
		nodes[n.Record.State]++
	}
	for _, state := range []decide.State{decide.Direct, decide.Delegated, decide.Unobserved, decide.Frozen, decide.Lost, decide.Released} {
		nodesGauge.WithLabelValues(name, string(state)).Set(float64(nodes[state]))
	}
}

// uncount removes a pool from the gauge.
func uncount(name string) { nodesGauge.DeletePartialMatch(prometheus.Labels{"pool": name}) }
