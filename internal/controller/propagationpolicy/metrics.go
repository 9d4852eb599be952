package propagationpolicy

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	evictionsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "atoll", Subsystem: "propagationpolicy", Name: "evictions_total",
		Help: "Evictions of surplus pods by result: evicted, refused (by a PodDisruptionBudget), error.",
	}, []string{"result"})

	workloadsGauge = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "propagationpolicy", Name: "workloads",
		Help: "Workloads that require a PropagationPolicy, by the reason of their state, as in the policy's Ready condition.",
	}, []string{"reason"})

	waitingGauge = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "propagationpolicy", Name: "waiting_pods",
		Help: "Pods without a node, by the reason of their workload's state.",
	}, []string{"reason"})

	surplusGauge = prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "propagationpolicy", Name: "surplus_pods",
		Help: "Pods that are to leave their NodeGroup.",
	})
)

func init() {
	metrics.Registry.MustRegister(evictionsTotal, workloadsGauge, waitingGauge, surplusGauge)
}

// tally is the part of the gauges that belongs to one policy.
type tally struct {
	workloads, waiting map[string]int
	surplus            int
}

// tallies holds the tally of each policy, so that the next one replaces it in the gauges.
// Safe for concurrent use; the zero value is empty.
type tallies struct {
	mu       sync.Mutex
	byPolicy map[types.NamespacedName]tally
}

// set replaces the tally of a policy in the gauges. The zero tally removes the policy.
func (t *tallies) set(policy types.NamespacedName, next tally) {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.byPolicy[policy]
	replace(workloadsGauge, last.workloads, next.workloads)
	replace(waitingGauge, last.waiting, next.waiting)
	surplusGauge.Add(float64(next.surplus - last.surplus))
	if next.workloads == nil {
		delete(t.byPolicy, policy)
		return
	}
	if t.byPolicy == nil {
		t.byPolicy = map[types.NamespacedName]tally{}
	}
	t.byPolicy[policy] = next
}

func replace(gauge *prometheus.GaugeVec, last, next map[string]int) {
	for reason, n := range last {
		gauge.WithLabelValues(reason).Sub(float64(n))
	}
	for reason, n := range next {
		gauge.WithLabelValues(reason).Add(float64(n))
	}
}

// tallyOf returns the tally of what one pass observed.
func tallyOf(s *scope) tally {
	t := tally{workloads: map[string]int{}, waiting: map[string]int{}}
	for _, w := range s.workloads {
		t.workloads[w.plan.Reason]++
		t.waiting[w.plan.Reason] += int(w.plan.Spread.Waiting)
		for _, g := range w.plan.Spread.Groups {
			t.surplus += int(g.Surplus)
		}
	}
	return t
}
