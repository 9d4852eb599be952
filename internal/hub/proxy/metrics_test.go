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

// TestAnswersToTheNodeAreCountedByCode, so that a cloud that refuses the node is seen.
func TestAnswersToTheNodeAreCountedByCode(t *testing.T) {
	n, registry := newNode(t, wire.JSON), prometheus.NewRegistry()
	if err := n.Register(registry); err != nil {
		t.Fatal(err)
	}
	for _, code := range []int{http.StatusUnauthorized, http.StatusUnauthorized, http.StatusOK, 499, 599} {
		n.cloud.set(false, func(*http.Request) (int, string, io.ReadCloser) {
			return code, "application/json", io.NopCloser(strings.NewReader("{}"))
		})
		n.ask(t.Context(), nodePath)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		if family.GetName() == "atoll_hub_node_answers_total" {
			for _, m := range family.GetMetric() {
				got[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	if want := map[string]float64{"401": 2, "200": 1, "other": 2}; !maps.Equal(got, want) {
		t.Errorf("counted are %v, want %v", got, want)
	}
}
