package hub

import (
	"cmp"
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
	"github.com/atoll-k8s/atoll/internal/hub/endpoints"
	"github.com/atoll-k8s/atoll/internal/hub/gate"
	"github.com/atoll-k8s/atoll/internal/hub/journal"
	"github.com/atoll-k8s/atoll/internal/hub/panics"
	"github.com/atoll-k8s/atoll/internal/hub/pool"
	"github.com/atoll-k8s/atoll/internal/hub/proxy"
	"github.com/atoll-k8s/atoll/internal/hub/uplink"
)

// Status is the status of the hub, served at /status.
type Status struct {
	Node        string      `json:"node"`
	Cloud       Cloud       `json:"cloud"`
	Certificate Certificate `json:"certificate"`
	// Serving is the certificate with which the hub serves clients.
	Serving Certificate `json:"serving"`
	// Held are the pods that the hub holds back from the node.
	Held []gate.Held `json:"held"`
	// Services is the status of the filter of Service endpoints.
	Services endpoints.Status `json:"services"`
	// Writes are the journaled writes; nil if the hub has no journal.
	Writes *Writes `json:"writes,omitempty"`
	// Coordinator is the coordinator of the node's pool; nil if the pool has none.
	Coordinator *pool.Status `json:"coordinator,omitempty"`
	// Access is the port for the API server of that coordinator; nil if Coordinator is nil.
	Access *Access `json:"access,omitempty"`
	// Removed is when the hub last found that another process had removed files of the cache.
	Removed time.Time `json:"removed,omitzero"`
	// Cache are the cached scopes, the most recently used first.
	Cache []Scope `json:"cache"`
}

// Cloud says whether the cloud is reachable.
type Cloud struct {
	State      uplink.State `json:"state"`
	Since      time.Time    `json:"since"`
	LastAnswer time.Time    `json:"lastAnswer"`
	// Reason is the last failure; "" if there was none.
	Reason string `json:"reason,omitempty"`
	// Unready is set while every answering API server reports not ready.
	Unready *Unready `json:"unready,omitempty"`
}

// Access is the port for the API server of the pool's coordinator.
type Access struct {
	// Address is the address of the port, "" if it is closed. Problem is why it is closed, or why the kubelet
	// refuses its requests.
	Address     string      `json:"address,omitempty"`
	Problem     string      `json:"problem,omitempty"`
	Certificate Certificate `json:"certificate"`
}

// Unready means that every answering API server reports not ready. This alone does not make the cloud offline.
type Unready struct {
	Since  time.Time `json:"since"`
	Reason string    `json:"reason"`
}

// Certificate is the status of the node's certificate, or of the hub's serving certificate.
type Certificate struct {
	// Expires is when it expires, zero if there is none.
	Expires time.Time `json:"expires,omitzero"`
	// Problem is why there is no certificate, no renewed one, or none that clients trust; "" if there is no
	// problem.
	Problem string `json:"problem,omitempty"`
	// RefusedSince is since when the cloud refuses it, zero if it does not.
	RefusedSince time.Time `json:"refusedSince,omitzero"`
}

// Writes are the journaled writes.
type Writes struct {
	Waiting int   `json:"waiting"`
	Bytes   int64 `json:"bytes"`
	// Since is when the oldest of them was made.
	Since *time.Time `json:"since,omitempty"`
	// Outcomes are the numbers of writes that left the journal, since the hub was started.
	Outcomes map[journal.Outcome]int `json:"outcomes"`
	// Problem is why writes cannot be journaled at the moment; "" if no problem is known.
	Problem string `json:"problem,omitempty"`
}

// Scope is a cached scope: one request without its position, with its caller.
type Scope struct {
	// Caller is the caller, and Request the path and the selectors, for Secrets without a name.
	Caller  string `json:"caller"`
	Request string `json:"request"`
	// Representation is the Accept header of the request.
	Representation string    `json:"representation"`
	Items          int       `json:"items"`
	Bytes          int64     `json:"bytes"`
	Written        time.Time `json:"written"`
	Used           time.Time `json:"used"`
}

// parts are the parts of a hub with a status.
type parts struct {
	node        string
	cloud       *uplink.Uplink
	certificate *nodeCertificate
	serving     *serving
	proxy       *proxy.Proxy
	services    *endpoints.Filter
	pool        *pool.Pool  // or nil
	access      *poolAccess // or nil
	panics      *panics.Catcher
}

// status returns the status of the hub.
func (h *parts) status() *Status {
	e, reason := h.cloud.Evidence()
	s := &Status{
		Node: h.node, Cloud: Cloud{State: e.State, Since: e.Since, LastAnswer: e.LastAnswer},
		Held: h.proxy.Gate.Held(), Services: h.services.Status(), Cache: []Scope{},
	}
	if reason != nil {
		s.Cloud.Reason = reason.Error()
	}
	if unready := h.cloud.Unready(); unready.Reason != nil {
		s.Cloud.Unready = &Unready{unready.Since, unready.Reason.Error()}
	}
	s.Certificate, s.Serving = certificateOf(h.certificate.state()), certificateOf(h.serving.state())
	s.Certificate.RefusedSince = h.cloud.RefusedSince()
	if h.proxy.Journal != nil {
		kept := h.proxy.Journal.Summary()
		s.Writes = &Writes{Waiting: kept.Waiting, Bytes: kept.Bytes, Outcomes: kept.Outcomes}
		if kept.Problem != nil {
			s.Writes.Problem = strings.ReplaceAll(kept.Problem.Error(), "\n", "; ")
		}
		if kept.Waiting > 0 {
			s.Writes.Since = &kept.Since
		}
	}
	if h.pool != nil {
		s.Coordinator = h.pool.Status()
	}
	if h.access != nil {
		s.Access = h.access.status()
	}
	s.Removed = h.proxy.Cache.Removed()
	scopes := h.proxy.Cache.Scopes()
	for i := len(scopes) - 1; i >= 0; i-- {
		s.Cache = append(s.Cache, scopeOf(&scopes[i]))
	}
	return s
}

func certificateOf(expires time.Time, problem error) Certificate {
	c := Certificate{Expires: expires}
	if problem != nil {
		c.Problem = problem.Error()
	}
	return c
}

// scopeOf parses a key of package proxy.
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
	if before, _, is := strings.Cut(s.Request, "/secrets"); is { // every process of the node can read the status
		s.Request = before + "/secrets…"
	}
	return s
}

// Write writes the status as text. now is the reference for ages.
func (s *Status) Write(w io.Writer, now time.Time) error {
	ago := func(at time.Time) string { return now.Sub(at).Round(time.Second).String() }
	fmt.Fprintf(w, "node %s\ncloud %s for %s, last answer %s ago\n", s.Node, s.Cloud.State, ago(s.Cloud.Since), ago(s.Cloud.LastAnswer))
	if s.Cloud.State != uplink.Online && s.Cloud.Reason != "" {
		fmt.Fprintf(w, "because %s\n", s.Cloud.Reason)
	}
	if unready := s.Cloud.Unready; unready != nil {
		fmt.Fprintf(w, "no API server is ready for %s: %s\n", ago(unready.Since), unready.Reason)
	}
	if !s.Certificate.Expires.IsZero() {
		fmt.Fprintf(w, "certificate of the node until %s\n", s.Certificate.Expires.UTC().Format(time.RFC3339))
	}
	if since := s.Certificate.RefusedSince; !since.IsZero() {
		fmt.Fprintf(w, "the cloud refuses the node's certificate since %s (401 Unauthorized)\n", since.UTC().Format(time.RFC3339))
	}
	if s.Certificate.Problem != "" {
		fmt.Fprintf(w, "no new certificate of the node: %s\n", s.Certificate.Problem)
	}
	if !s.Serving.Expires.IsZero() {
		fmt.Fprintf(w, "serving certificate until %s\n", s.Serving.Expires.UTC().Format(time.RFC3339))
	}
	if s.Serving.Problem != "" {
		fmt.Fprintf(w, "serving certificate: %s\n", s.Serving.Problem)
	}
	for _, pod := range s.Held {
		fmt.Fprintf(w, "held: pod %s/%s for %s: %s\n", pod.Namespace, pod.Name, ago(pod.Since), pod.Reason)
	}
	for _, input := range s.Services.Inputs {
		if !input.Known || input.Reason != "" {
			fmt.Fprintf(w, "topology of Services: the %s is known: %t; %s\n", input.Name, input.Known, cmp.Or(input.Reason, "not read yet"))
		}
	}
	switch writes := s.Writes; {
	case writes == nil:
		fmt.Fprintln(w, "writes: the hub rejects writes of the node while offline; see its log")
	case writes.Since != nil:
		fmt.Fprintf(w, "writes: %d wait for the cloud, the first for %s (%d bytes)\n", writes.Waiting, ago(*writes.Since), writes.Bytes)
	default:
		fmt.Fprintln(w, "writes: none waits for the cloud")
	}
	if c := s.Coordinator; c != nil && c.Reason == "" {
		leads := ""
		if c.Leads {
			leads = "; this hub leads"
		}
		fmt.Fprintf(w, "coordinator of the pool: %s, for %s; %d objects, %d refused%s\n", c.Address, ago(c.Since), c.Objects, c.Refused, leads)
	} else if c != nil {
		fmt.Fprintf(w, "coordinator of the pool: not up to date for %s: %s\n", ago(c.Since), strings.ReplaceAll(c.Reason, "\n", "; "))
	}
	if c := s.Coordinator; c != nil && c.Pulse != "" {
		fmt.Fprintf(w, "the state of the pool is not reported to the cloud: %s\n", strings.ReplaceAll(c.Pulse, "\n", "; "))
	}
	if a := s.Access; a != nil && a.Problem == "" {
		fmt.Fprintf(w, "logs and exec by the coordinator of the pool: served at %s, certificate until %s\n", a.Address, a.Certificate.Expires.UTC().Format(time.RFC3339))
	} else if a != nil {
		fmt.Fprintf(w, "logs and exec by the coordinator of the pool do not work: %s\n", strings.ReplaceAll(a.Problem, "\n", "; "))
	}
	if !s.Removed.IsZero() {
		fmt.Fprintf(w, "cache: another process removed files of the hub's directory, noticed %s ago\n", ago(s.Removed))
	}
	if writes := s.Writes; writes != nil {
		if writes.Problem != "" {
			fmt.Fprintf(w, "writes: cannot be stored at the moment: %s\n", writes.Problem)
		}
		for _, outcome := range journal.Outcomes() {
			if n := writes.Outcomes[outcome]; n > 0 {
				fmt.Fprintf(w, "writes: %d %s since the hub was started\n", n, strings.ToLower(string(outcome)))
			}
		}
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nCALLER\tREQUEST\tITEMS\tBYTES\tSTATE OF\tUSED")
	for _, c := range s.Cache {
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%s ago\t%s ago\n", c.Caller, c.Request, c.Items, c.Bytes, ago(c.Written), ago(c.Used))
	}
	return table.Flush()
}

// observe returns the handler of the hub's second port: /healthz, /status and /metrics.
func (h *parts) observe() (http.Handler, error) {
	registry := prometheus.NewRegistry()
	if err := h.proxy.Register(registry); err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	if err := registerMetrics(registry, h.cloud, h.certificate, h.panics); err != nil {
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
		_ = json.NewEncoder(w).Encode(h.status()) // fails only if the client has disconnected
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return mux, nil
}

// ReadStatus reads the status of a hub from the address of its second port.
func ReadStatus(ctx context.Context, address string) (*Status, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/status", nil)
	if err != nil {
		return nil, fmt.Errorf("requesting the status of the hub: %w", err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, fmt.Errorf("requesting the status of the hub, which may not be running: %w", err)
	}
	defer response.Body.Close()
	s := &Status{}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("requesting the status of the hub: %s", response.Status)
	}
	if err := json.NewDecoder(response.Body).Decode(s); err != nil {
		return nil, fmt.Errorf("reading the status of the hub: %w", err)
	}
	return s, nil
}
