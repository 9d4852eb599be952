package capacity

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/atoll-k8s/atoll/internal/domain/capacity"
)

var (
	evictionsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "atoll", Subsystem: "capacity", Name: "evictions_total",
		Help: "Evictions of pods of the wrong class of capacity by result: evicted, refused (by a PodDisruptionBudget), error.",
	}, []string{"result"})

	workloadsGauge = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "capacity", Name: "workloads",
		Help: "Workloads that are divided over on-demand and spot nodes, by the reason of the Ready condition of their CapacitySplit.",
	}, []string{"reason"})

	podsGauge = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "capacity", Name: "pods",
		Help: "Pods of these workloads by class (on-demand, spot, none) and state: want (the target), have (pods with a node), waiting (pods without a node).",
	}, []string{"class", "state"})
)

func init() {
	metrics.Registry.MustRegister(evictionsTotal, workloadsGauge, podsGauge)
}

// tallies holds what each workload adds to the gauges, so that it can be subtracted again.
// Safe for concurrent use; the zero value is ready.
type tallies struct {
	mu         sync.Mutex
	byWorkload map[types.UID]plan
}

func (t *tallies) set(workload types.UID, next plan) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last, known := t.byWorkload[workload]; known {
		add(last, -1)
	}
	if t.byWorkload == nil {
		t.byWorkload = map[types.UID]plan{}
	}
	t.byWorkload[workload] = plan{want: next.want, have: next.have, waiting: next.waiting, reason: next.reason}
	add(next, 1)
}

func (t *tallies) drop(workload types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last, known := t.byWorkload[workload]; known {
		add(last, -1)
		delete(t.byWorkload, workload)
	}
}

// add adds a workload to the gauges, or subtracts it (sign -1).
func add(p plan, sign int) {
	workloadsGauge.WithLabelValues(p.reason).Add(float64(sign))
	for class, label := range map[capacity.Class]string{capacity.None: "none", capacity.OnDemand: "on-demand", capacity.Spot: "spot"} {
		for state, counts := range map[string][3]int{"want": p.want, "have": p.have, "waiting": p.waiting} {
			podsGauge.WithLabelValues(label, state).Add(float64(sign * counts[class]))
		}
	}
}
