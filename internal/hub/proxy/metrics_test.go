package proxy

import (
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// TestAnswersToTheNodeAreCountedByCode: so a cloud that refuses the node is visible.
func TestAnswersToTheNodeAreCountedByCode(t *testing.T) {
	n := newNode(t, wire.JSON)
	count := n.counters()
	for _, code := range []int{http.StatusUnauthorized, http.StatusUnauthorized, http.StatusOK, 499, 599} {
		n.cloud.set(false, func(*http.Request) (int, string, io.ReadCloser) {
			return code, "application/json", io.NopCloser(strings.NewReader("{}"))
		})
		n.ask(t.Context(), nodePath)
	}
	got := count("atoll_hub_node_answers_total")
	if want := map[string]float64{"401": 2, "200": 1, "other": 2}; !maps.Equal(got, want) {
		t.Errorf("counted are %v, want %v", got, want)
	}
}

// counters registers the metrics of the hub, and returns what returns the values of a counter, by its label.
func (n *node) counters() func(name string) map[string]float64 {
	registry := prometheus.NewRegistry()
	if err := n.Register(registry); err != nil {
		n.Fatal(err)
	}
	return func(name string) map[string]float64 {
		families, err := registry.Gather()
		if err != nil {
			n.Fatal(err)
		}
		values := map[string]float64{}
		for _, family := range families {
			if family.GetName() != name {
				continue
			}
			for _, m := range family.GetMetric() {
				label := ""
				if labels := m.GetLabel(); len(labels) > 0 {
					label = labels[0].GetValue()
				}
				values[label] = m.GetCounter().GetValue()
			}
		}
		return values
	}
}
