package podgroup

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	namedTotal = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "atoll", Subsystem: "podgroup", Name: "pods_named_total",
		Help: "Pods into which the controller wrote the name of their PodGroup. Usually the webhook writes it when the pod is created.",
	})
	writesTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "atoll", Subsystem: "podgroup", Name: "writes_total",
		Help: "PodGroups created, patched and deleted, by verb.",
	}, []string{"verb"})
	endedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "atoll", Subsystem: "podgroup", Name: "walks_ended_total",
		Help: "Walks up the owners of a pod that ended below the topmost owner, by reason.",
	}, []string{"reason"})
	rulesGauge = prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "podgroup", Name: "rules",
		Help: "Rules for PodGroups that are in force on this replica.",
	})
	rejectedGauge = prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "podgroup", Name: "rules_rejected",
		Help: "1 while the text of the ConfigMap is invalid and the previous rules are in force, else 0.",
	})
	unreadableGauge = prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "podgroup", Name: "rules_unreadable",
		Help: "1 while the leader cannot read the ConfigMap of the rules, else 0. Events on the ConfigMap name the error.",
	})
	problemsGauge = prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "atoll", Subsystem: "podgroup", Name: "rules_problems",
		Help: "Problems of the rules in force that the leader found: kinds that are not served, owners that it may not read. Events on the ConfigMap list them.",
	})
)

func init() {
	metrics.Registry.MustRegister(namedTotal, writesTotal, endedTotal, rulesGauge, rejectedGauge, unreadableGauge, problemsGauge)
}
