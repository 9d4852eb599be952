package uniteddeployment

import (
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var actionsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
	Namespace: "atoll", Subsystem: "uniteddeployment", Name: "actions_total",
	Help: "Writes to workloads of pools by action (create, update, restore, scale, adopt, drain, delete) and result: success, conflict, error.",
}, []string{"action", "result"})

func init() { metrics.Registry.MustRegister(actionsTotal) }

// resultOf returns the value of the label result.
func resultOf(err error) string {
	switch {
	case err == nil:
		return "success"
	case apierrors.IsConflict(err):
		return "conflict"
	}
	return "error"
}
