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

// tally is what one policy adds to the gauges.
type tally struct {
	workloads, waiting map[string]int
	surplus            int
}

// tallies remembers what each policy adds, to take it off again.
type tallies struct {
	mu       sync.Mutex
	byPolicy map[types.NamespacedName]tally
}

// set replaces what a policy adds; the zero tally is nothing.
func (t *tallies) set(policy types.NamespacedName, next tally) {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.byPolicy[policy]
	add(workloadsGauge, last.workloads, next.workloads)
	add(waitingGauge, last.waiting, next.waiting)
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

func add(gauge *prometheus.GaugeVec, last, next map[string]int) {
	for reason, n := range last {
		gauge.WithLabelValues(reason).Sub(float64(n))
	}
	for reason, n := range next {
		gauge.WithLabelValues(reason).Add(float64(n))
	}
}

// tallyOf counts what one pass found.
func tallyOf(s *scope) tally {
	t := tally{workloads: map[string]int{}, waiting: map[string]int{}}
	for _, a := range s.apps {
		t.workloads[a.reason]++
		t.waiting[a.reason] += int(a.plan.spread.Waiting)
		for _, g := range a.plan.spread.Groups {
			t.surplus += int(g.Surplus)
		}
	}
	return t
}
