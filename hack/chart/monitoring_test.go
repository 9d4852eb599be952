package chart

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// TestExtrasAreLeftOutByDefault: none of them is needed, and a ServiceMonitor
// cannot be created where its kind is not known.
func TestExtrasAreLeftOutByDefault(t *testing.T) {
	for key := range render(t, load(t), nil) {
		for _, extra := range []string{"ServiceMonitor/", "NetworkPolicy/", "ConfigMap/atoll-dashboard", "ClusterRoleBinding/atoll-metrics-reader"} {
			if strings.HasPrefix(key, extra) {
				t.Errorf("%s is rendered", key)
			}
		}
	}
}

func TestServiceMonitor(t *testing.T) {
	got := render(t, load(t), map[string]any{"metrics": map[string]any{
		"serviceMonitor": map[string]any{"enabled": true, "labels": map[string]any{"release": "prometheus"}, "interval": "1m"},
		"readers":        []any{map[string]any{"namespace": "monitoring", "name": "prometheus"}},
	}})
	monitor := get[*monitoringv1.ServiceMonitor](t, got, "ServiceMonitor/atoll-manager")
	service := get[*corev1.Service](t, got, "Service/atoll-manager")
	selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
	if err != nil || selector.Empty() || !selector.Matches(labels.Set(service.Labels)) {
		t.Errorf("it selects %v (%v), the Service carries %v", monitor.Spec.Selector, err, service.Labels)
	}
	if n := monitor.Spec.NamespaceSelector.MatchNames; len(n) != 1 || n[0] != namespace || monitor.Labels["release"] != "prometheus" {
		t.Errorf("it looks in %v and is labelled %v", n, monitor.Labels)
	}
	if len(monitor.Spec.Endpoints) != 1 {
		t.Fatalf("%d endpoints", len(monitor.Spec.Endpoints))
	}
	endpoint := monitor.Spec.Endpoints[0]
	served := false
	for _, port := range service.Spec.Ports {
		served = served || port.Name == endpoint.Port && port.Port == 8080
	}
	if !served || endpoint.Path != "/metrics" || endpoint.Scheme == nil || *endpoint.Scheme != "https" || endpoint.Interval != "1m" {
		t.Errorf("it asks %s %s by %v every %s", endpoint.Port, endpoint.Path, endpoint.Scheme, endpoint.Interval)
	}
	tls := endpoint.TLSConfig
	if tls == nil || tls.ServerName == nil || *tls.ServerName != "atoll-manager."+namespace+".svc" || tls.InsecureSkipVerify != nil ||
		tls.CA.Secret == nil || tls.CA.Secret.Name != "atoll-extender-client" || tls.CA.Secret.Key != "ca.crt" {
		t.Errorf("it does not check whom it asks: %+v", tls)
	}
	binding := get[*rbacv1.ClusterRoleBinding](t, got, "ClusterRoleBinding/atoll-metrics-reader")
	if s := binding.Subjects; len(s) != 1 || s[0].Namespace != "monitoring" || s[0].Name != "prometheus" || got["ClusterRole/"+binding.RoleRef.Name] == nil {
		t.Errorf("bound to %v: %v", binding.RoleRef, s)
	}

	got = render(t, load(t), map[string]any{"metrics": map[string]any{"serviceMonitor": map[string]any{
		"enabled": true, "authorization": map[string]any{"credentials": map[string]any{"name": "token", "key": "token"}},
	}}})
	endpoint = get[*monitoringv1.ServiceMonitor](t, got, "ServiceMonitor/atoll-manager").Spec.Endpoints[0]
	if endpoint.Authorization == nil || endpoint.Authorization.Credentials.Name != "token" || endpoint.BearerTokenFile != "" { //nolint:staticcheck // what else there is to be absent
		t.Errorf("it shows another token than it was told to: %+v", endpoint)
	}
}

// dashboard is as much of a Grafana dashboard as is checked here.
type dashboard struct {
	Title, UID string
	Panels     []struct {
		ID      int
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ Expr string }
	}
}

// TestDashboardUsesDocumentedMetricsOnly reads docs/metrics.md, which is
// generated from the code.
func TestDashboardUsesDocumentedMetricsOnly(t *testing.T) {
	values := map[string]any{"metrics": map[string]any{"dashboard": map[string]any{"enabled": true}}}
	config := get[*corev1.ConfigMap](t, render(t, load(t), values), "ConfigMap/atoll-dashboard")
	if config.Labels["grafana_dashboard"] != "1" {
		t.Errorf("Grafana's sidecar does not find it by %v", config.Labels)
	}
	var board dashboard
	if err := json.Unmarshal([]byte(config.Data["atoll.json"]), &board); err != nil {
		t.Fatal(err)
	}
	if board.Title == "" || board.UID == "" || len(board.Panels) == 0 {
		t.Errorf("nothing to see: %+v", board)
	}
	known := documentedMetrics(t)
	name := regexp.MustCompile(`atoll_[a-z_]+`)
	by := regexp.MustCompile(`by \(([a-z, ]+)\)`)
	taken := map[[2]int]string{}
	ids := map[int]bool{}
	for _, panel := range board.Panels {
		if ids[panel.ID] {
			t.Errorf("two panels have the id %d", panel.ID)
		}
		ids[panel.ID] = true
		for x := panel.GridPos.X; x < panel.GridPos.X+panel.GridPos.W; x++ {
			for y := panel.GridPos.Y; y < panel.GridPos.Y+panel.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" && other != panel.Title {
					t.Fatalf("%q lies on %q", panel.Title, other)
				}
				taken[[2]int{x, y}] = panel.Title
			}
		}
		for _, target := range panel.Targets {
			if strings.Count(target.Expr, "(") != strings.Count(target.Expr, ")") {
				t.Errorf("%q: parentheses of %s", panel.Title, target.Expr)
			}
			for _, metric := range name.FindAllString(target.Expr, -1) {
				for _, suffix := range []string{"_bucket", "_sum", "_count"} {
					metric = strings.TrimSuffix(metric, suffix)
				}
				has, ok := known[metric]
				if !ok {
					t.Errorf("%q: there is no metric %s", panel.Title, metric)
				}
				for _, match := range by.FindAllStringSubmatch(target.Expr, -1) {
					for label := range strings.SplitSeq(match[1], ", ") {
						if label != "le" && !strings.Contains(has, "`"+label+"`") {
							t.Errorf("%q: %s has no label %s", panel.Title, metric, label)
						}
					}
				}
			}
		}
	}
}

// documentedMetrics are the rows of docs/metrics.md: labels by metric.
func documentedMetrics(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) > 4 && strings.HasPrefix(cells[1], " `atoll_") {
			known[strings.Trim(cells[1], " `")] = cells[3]
		}
	}
	if len(known) == 0 {
		t.Fatal("docs/metrics.md lists no metrics")
	}
	return known
}
