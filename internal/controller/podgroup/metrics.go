package podgroup

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	namedTotal = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "atoll", Subsystem: "podgroup", Name: "pods_named_total",
		Help: "Pods into which the controller wrote the name of their PodGroup. The webhook writes it where it can, at their creation.",
	})
	writesTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "atoll", Subsystem: "podgroup", Name: "writes_total",
		Help: "PodGroups created, patched and deleted, by verb.",
	}, []string{"verb"})
	endedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "atoll", Subsystem: "podgroup", Name: "walks_ended_total",
		Help: "Times that the owners of a pod could not be followed to the topmost, by reason.",
	}, []string{"reason"})
	rulesGauge = prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "podgroup", Name: "rules",
		Help: "Rules for PodGroups that are in force on this replica.",
	})
	rejectedGauge = prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "podgroup", Name: "rules_rejected",
		Help: "1 while the ConfigMap's text cannot be used and the rules before are in force, else 0.",
	})
	unreadableGauge = prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "podgroup", Name: "rules_unreadable",
		Help: "1 while the leading replica cannot read the ConfigMap of the rules, else 0. Events on the ConfigMap say why.",
	})
	problemsGauge = prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "podgroup", Name: "rules_problems",
		Help: "What is wrong with rules that are in force, as the leading replica has found: kinds that are not served, owners that may not be read. Events on the ConfigMap say which.",
	})
)

func init() {
	metrics.Registry.MustRegister(namedTotal, writesTotal, endedTotal, rulesGauge, rejectedGauge, unreadableGauge, problemsGauge)
}
