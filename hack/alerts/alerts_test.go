// Package alerts tests that the alerts of the chart fire. It is a module of its own, because Prometheus'
// language needs many modules that nothing else here does.
package alerts

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
	"sigs.k8s.io/yaml"
)

// rule is an alert of a PrometheusRule.
type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// rendered returns the alerts that the chart renders.
func rendered(t *testing.T) (rules []rule) {
	t.Helper()
	render := exec.CommandContext(t.Context(), "go", "run", "./cmd/manifest", "-set", "metrics.alerts.enabled=true", "-set", "metrics.serviceMonitor.enabled=true")
	render.Dir, render.Stderr = "../chart", os.Stderr
	manifest, err := render.Output()
	if err != nil {
		t.Fatal(err)
	}
	for document := range bytes.SplitSeq(manifest, []byte("\n---\n")) {
		var object struct {
			Kind string `json:"kind"`
			Spec struct {
				Groups []struct {
					Rules []rule `json:"rules"`
				} `json:"groups"`
			} `json:"spec"`
		}
		if !bytes.Contains(document, []byte("kind: PrometheusRule")) {
			continue
		}
		if err := yaml.Unmarshal(document, &object); err != nil {
			t.Fatal(err)
		}
		for _, group := range object.Spec.Groups {
			rules = append(rules, group.Rules...)
		}
	}
	return rules
}

// TestAlertsFire: each alert fires for series of the time of its fault, and for none of a good time. The
// steps are minutes. Each metric of Atoll's is one that docs/metrics.md has, and each alert has a
// section in docs/troubleshooting.md.
func TestAlertsFire(t *testing.T) {
	rules := rendered(t)
	of := func(series ...string) string {
		return "load 1m\n" + strings.ReplaceAll(strings.Join(series, "\n"), "{", `{job="atoll-manager", namespace="atoll-system", `)
	}
	cases := map[string]struct{ fault, good string }{
		"AtollDown": {of(`up{instance="a"} 0x90`), of(`up{instance="a"} 0x90`, `up{instance="b"} 1x90`)},
		"AtollHasNoLeader": {
			of(`leader_election_master_status{instance="a"} 0x90`, `leader_election_master_status{instance="b"} 0x90`),
			of(`leader_election_master_status{instance="a"} 0x90`, `leader_election_master_status{instance="b"} 1x90`),
		},
		"AtollIsPassedBy": {of(`atoll_webhook_bypasses_total{} 0+1x90`), of(`atoll_webhook_bypasses_total{} 7x90`)},
		"AtollPodsWait": {
			of(`atoll_propagationpolicy_waiting_pods{reason="PodsWaiting"} 1x90`),
			of(`atoll_propagationpolicy_waiting_pods{reason="PodsWaiting"} 1x10 0x5 1x10 0x5 1x10 0x5 1x10 0x5 1x10 0x15`),
		},
		"AtollPodsCannotMove": {
			of(`atoll_propagationpolicy_workloads{reason="BlockedByPDB"} 2x90`),
			of(`atoll_propagationpolicy_workloads{reason="BlockedByPDB"} 2x40 0x10 3x40`, `atoll_propagationpolicy_workloads{reason="Converging"} 2x90`),
		},
		"AtollKindIsNotRead": {of(`atoll_owners_kind_synced{kind="CloneSet"} 0x90`), of(`atoll_owners_kind_synced{kind="CloneSet"} 1x90`)},
		"AtollPodGroupRules": {
			of(`atoll_podgroup_rules_rejected{} 0x90`, `atoll_podgroup_rules_unreadable{} 1x90`),
			of(`atoll_podgroup_rules_rejected{} 0x90`, `atoll_podgroup_rules_unreadable{} 0x90`),
		},
		"AtollDoesNotHearItself": {
			of(`atoll_connectivity_last_probe_timestamp_seconds{} 0x90`, `atoll_connectivity_nodes{pool="p", state="Direct"} 3x90`),
			of(`atoll_connectivity_last_probe_timestamp_seconds{instance="a"} 0+60x90`, `atoll_connectivity_last_probe_timestamp_seconds{instance="b"} 0x90`, `atoll_connectivity_nodes{pool="p", state="Direct"} 3x90`),
		},
		"AtollNodesAreCutOff": {
			of(`atoll_connectivity_nodes{pool="p", state="Delegated"} 3x90`, `atoll_connectivity_nodes{pool="p", state="Direct"} 0x90`),
			of(`atoll_connectivity_nodes{pool="p", state="Delegated"} 0x90`, `atoll_connectivity_nodes{pool="p", state="Direct"} 3x90`),
		},
		"AtollNodesAreLost":    {of(`atoll_connectivity_nodes{pool="p", state="Lost"} 1x90`), of(`atoll_connectivity_nodes{pool="p", state="Lost"} 0x90`)},
		"AtollReconcilesFail":  {of(`controller_runtime_reconcile_errors_total{controller="c"} 0+1x90`), of(`controller_runtime_reconcile_errors_total{controller="c"} 0x40 7x50`)},
		"AtollRefusesRequests": {of(`atoll_port_refused_total{port="webhooks", reason="busy"} 0+9x90`), of(`atoll_port_refused_total{port="webhooks", reason="busy"} 0x40 5x50`)},
		"AtollPanics": {
			of(`atoll_port_panics_total{port="webhooks"} 0x40 1x50`, `controller_runtime_reconcile_panics_total{} 0x90`),
			of(`atoll_port_panics_total{port="webhooks"} 0x90`, `controller_runtime_reconcile_panics_total{} 0x90`),
		},
	}
	metrics := readFile(t, "../../docs/metrics.md")
	runbook := readFile(t, "../../docs/troubleshooting.md")
	for _, rule := range rules {
		t.Run(rule.Alert, func(t *testing.T) {
			c, is := cases[rule.Alert]
			if !is || rule.For == "" || rule.Labels["severity"] == "" || rule.Annotations["summary"] == "" {
				t.Fatalf("it is not tested, or lacks something: %+v", rule)
			}
			if !fires(t, rule, c.fault) {
				t.Error("it does not fire")
			}
			if fires(t, rule, c.good) {
				t.Error("it fires when all is well")
			}
			for _, name := range regexp.MustCompile(`atoll_[a-z_]+`).FindAllString(rule.Expr, -1) {
				if !strings.Contains(metrics, "| `"+name+"` |") {
					t.Errorf("there is no metric %s", name)
				}
			}
			if !strings.Contains(runbook, "\n### "+rule.Alert+"\n") || !strings.HasSuffix(rule.Annotations["runbook_url"], "docs/troubleshooting.md#"+strings.ToLower(rule.Alert)) {
				t.Error("it has no section for the person on call")
			}
		})
	}
	if len(rules) != len(cases) {
		t.Errorf("%d alerts, and %d are tested", len(rules), len(cases))
	}
}

// fires reports whether a rule's expression is true for as long as the rule says, in 90 minutes of
// series.
func fires(t *testing.T, rule rule, series string) bool {
	t.Helper()
	storage := promqltest.LoadedStorage(t, series)
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1_000_000, Timeout: time.Minute})
	t.Cleanup(func() { _ = engine.Close() })
	query, err := engine.NewRangeQuery(context.Background(), storage, nil, rule.Expr, time.Unix(0, 0), time.Unix(0, 0).Add(90*time.Minute), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer query.Close()
	result := query.Exec(t.Context())
	matrix, err := result.Matrix()
	if err != nil {
		t.Fatal(err)
	}
	atLeast, err := model.ParseDuration(rule.For)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range matrix {
		since := one.Floats[0].T
		for i, point := range one.Floats {
			if i > 0 && point.T-one.Floats[i-1].T > time.Minute.Milliseconds() {
				since = point.T
			}
			if point.T-since >= time.Duration(atLeast).Milliseconds() {
				return true
			}
		}
	}
	return false
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
