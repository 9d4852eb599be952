package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/proxy"
	"github.com/atoll-k8s/atoll/internal/hub/uplink"
)

// Status is what the hub tells about itself, at /status.
type Status struct {
	Node        string      `json:"node"`
	Cloud       Cloud       `json:"cloud"`
	Certificate Certificate `json:"certificate"`
	// Held are the pods that do not reach the node.
	Held []proxy.Held `json:"held"`
	// Cache is what is kept, the answers that were used last first.
	Cache []Scope `json:"cache"`
}

// Cloud is whether the cloud is reachable.
type Cloud struct {
	State      uplink.State `json:"state"`
	Since      time.Time    `json:"since"`
	LastAnswer time.Time    `json:"lastAnswer"`
	// Reason is that of the last failure; "" if there was none.
	Reason string `json:"reason,omitempty"`
}

// Certificate is what is known of the certificate of the node.
type Certificate struct {
	// Expires is when it does, zero if there is none.
	Expires time.Time `json:"expires,omitzero"`
	// Problem is why there is none, or none that is newer; "" if all is well.
	Problem string `json:"problem,omitempty"`
}

// Scope is one request, without its position, whose answer is kept.
type Scope struct {
	// Caller is who asks, and Request the path and the selectors.
	Caller  string `json:"caller"`
	Request string `json:"request"`
	// Representation is what the client accepts.
	Representation string    `json:"representation"`
	Items          int       `json:"items"`
	Bytes          int64     `json:"bytes"`
	Written        time.Time `json:"written"`
	Used           time.Time `json:"used"`
}

// status returns the state of the hub.
func status(node string, cloud *uplink.Uplink, cert *nodeCertificate, p *proxy.Proxy) *Status {
	e, reason := cloud.Evidence()
	s := &Status{Node: node, Cloud: Cloud{State: e.State, Since: e.Since, LastAnswer: e.LastAnswer}, Held: p.Held(), Cache: []Scope{}}
	if reason != nil {
		s.Cloud.Reason = reason.Error()
	}
	expires, problem := cert.state()
	s.Certificate.Expires = expires
	if problem != nil {
		s.Certificate.Problem = problem.Error()
	}
	scopes := p.Cache.Scopes()
	for i := len(scopes) - 1; i >= 0; i-- {
		s.Cache = append(s.Cache, scopeOf(&scopes[i]))
	}
	return s
}

// scopeOf reads the key that package proxy makes.
func scopeOf(c *cache.Scope) Scope {
	s := Scope{Items: c.Items, Bytes: c.Bytes, Written: c.Written, Used: c.Used}
	parts := strings.Split(c.Key, "\n")
	s.Caller = parts[0]
	if len(parts) > 3 {
		s.Request, s.Representation = parts[1], parts[3]
		if parts[2] != "" && !strings.HasPrefix(parts[1], "POST ") {
			s.Request += "?" + parts[2]
		}
	}
	return s
}

// Write writes the status as a person reads it. now is the time to which ages refer.
func (s *Status) Write(w io.Writer, now time.Time) error {
	ago := func(at time.Time) string { return now.Sub(at).Round(time.Second).String() }
	fmt.Fprintf(w, "node %s\ncloud %s for %s, last answer %s ago\n", s.Node, s.Cloud.State, ago(s.Cloud.Since), ago(s.Cloud.LastAnswer))
	if s.Cloud.State != uplink.Online && s.Cloud.Reason != "" {
		fmt.Fprintf(w, "because %s\n", s.Cloud.Reason)
	}
	if !s.Certificate.Expires.IsZero() {
		fmt.Fprintf(w, "certificate of the node until %s\n", s.Certificate.Expires.UTC().Format(time.RFC3339))
	}
	if s.Certificate.Problem != "" {
		fmt.Fprintf(w, "no new certificate of the node: %s\n", s.Certificate.Problem)
	}
	for _, pod := range s.Held {
		fmt.Fprintf(w, "held: pod %s/%s for %s: %s\n", pod.Namespace, pod.Name, ago(pod.Since), pod.Reason)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nCALLER\tREQUEST\tITEMS\tBYTES\tSTATE OF\tUSED")
	for _, c := range s.Cache {
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%s ago\t%s ago\n", c.Caller, c.Request, c.Items, c.Bytes, ago(c.Written), ago(c.Used))
	}
	return table.Flush()
}

// observe returns the handler of the hub's second port: /healthz, /status and /metrics.
func observe(node string, cloud *uplink.Uplink, cert *nodeCertificate, p *proxy.Proxy) (http.Handler, error) {
	registry := prometheus.NewRegistry()
	if err := p.Register(registry); err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	if err := registerMetrics(registry, cloud, cert); err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	for _, c := range []prometheus.Collector{collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("registering metrics: %w", err)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(status(node, cloud, cert, p)) // the client has gone if it fails
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return mux, nil
}

// ReadStatus asks a hub at the address of its second port.
func ReadStatus(ctx context.Context, address string) (*Status, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/status", nil)
	if err != nil {
		return nil, fmt.Errorf("asking the hub: %w", err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, fmt.Errorf("asking the hub, which may not run: %w", err)
	}
	defer response.Body.Close()
	s := &Status{}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("asking the hub: it answers %s", response.Status)
	}
	if err := json.NewDecoder(response.Body).Decode(s); err != nil {
		return nil, fmt.Errorf("reading the status of the hub: %w", err)
	}
	return s, nil
}
