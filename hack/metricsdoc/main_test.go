package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	const imports = "package x\nimport \"github.com/prometheus/client_golang/prometheus\"\n"
	tests := map[string]struct {
		source string
		// want is a row of the table; wantErr is part of the error.
		want, wantErr string
	}{
		"a counter with labels": {
			source: `var a = prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "atoll", Subsystem: "extender", Name: "calls_total", Help: "Calls."}, []string{"verb", "result"})`,
			want:   "| `atoll_extender_calls_total` | counter | `verb`, `result` | Calls. |",
		},
		"a gauge without labels or subsystem": {
			source: `var a = prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "atoll", Name: "leader", Help: "1 | 0."})`,
			want:   "| `atoll_leader` | gauge | – | 1 \\| 0. |",
		},
		"constants and sums of strings, and fields that do not matter": {
			source: `const ns, sub = "atoll", "seats"
				var a = prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: ns, Subsystem: sub, Name: "wait_" + "seconds",
					Help: "One " +
						"two.", Buckets: []float64{1}}, []string{"group"})`,
			want: "| `atoll_seats_wait_seconds` | histogram | `group` | One two. |",
		},
		"a gauge that calls a function": {
			source: `func f() { _ = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "atoll", Name: "pods", Help: "Pods."}, func() float64 { return 0 }) }`,
			want:   "| `atoll_pods` | gauge | – | Pods. |",
		},
		"a name from elsewhere": {
			source:  `var a = prometheus.NewCounter(prometheus.CounterOpts{Namespace: "atoll", Name: name, Help: "x"})`,
			wantErr: "metrics.go:3:9: reading a metric: Name: name is not a constant of this file",
		},
		"no help": {
			source:  `var a = prometheus.NewCounter(prometheus.CounterOpts{Namespace: "atoll", Name: "x_total"})`,
			wantErr: "needs Namespace atoll, a Name and a Help",
		},
		"two of one name": {
			source: `var a = prometheus.NewCounter(prometheus.CounterOpts{Namespace: "atoll", Name: "x_total", Help: "x"})
				var b = prometheus.NewCounter(prometheus.CounterOpts{Namespace: "atoll", Name: "x_total", Help: "x"})`,
			wantErr: "atoll_x_total is declared in",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			dir := filepath.Join(root, "internal", "x")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "metrics.go"), []byte(imports+test.source), 0o600); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			err := run(root, &out)
			switch {
			case test.wantErr != "" && (err == nil || !strings.Contains(err.Error(), test.wantErr)):
				t.Errorf("error is %v, want %q in it", err, test.wantErr)
			case test.wantErr == "" && err != nil:
				t.Error(err)
			case test.want != "" && !strings.Contains(out.String(), "\n"+test.want+"\n"):
				t.Errorf("no row %s in\n%s", test.want, out.String())
			}
		})
	}
}
