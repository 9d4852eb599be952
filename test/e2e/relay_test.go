package e2e

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

// relay is a proxy between two programs, on loopback, that applies a test's faults to
// requests.
type relay struct {
	// URL is its base URL.
	URL    string
	server *httptest.Server
	fault  atomic.Pointer[fault]
}

// fault answers a request itself, or forwards it to the other side by calling forward
// with a ResponseWriter.
type fault func(w http.ResponseWriter, r *http.Request, forward http.HandlerFunc)

func newRelay(target string, to *tls.Config, secure bool) (*relay, error) {
	parsed, err := url.Parse(target)
	if err != nil {
		return nil, fmt.Errorf("relaying to %s: %w", target, err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(parsed) },
		Transport:     &http.Transport{TLSClientConfig: to, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 64},
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	l := &relay{}
	l.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f := l.fault.Load(); f != nil {
			(*f)(w, r, proxy.ServeHTTP)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	l.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	if secure {
		l.server.StartTLS()
	} else {
		l.server.Start()
	}
	l.URL = l.server.URL
	return l, nil
}

// authority is the certificate authority of a relay that is reached over TLS.
func (l *relay) authority() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: l.server.Certificate().Raw})
}

// does sets the fault for requests from now on; nil means none.
func (l *relay) does(f fault) {
	if f == nil {
		l.fault.Store(nil)
		return
	}
	l.fault.Store(&f)
}

func relayAPI(c *devcluster.Cluster) (*relay, error) {
	config := c.AdminConfig()
	to, err := rest.TLSConfigFor(&rest.Config{Host: config.Host, TLSClientConfig: rest.TLSClientConfig{CAData: config.CAData, CAFile: config.CAFile}})
	if err != nil {
		return nil, fmt.Errorf("relaying to the API server: %w", err)
	}
	return newRelay(config.Host, to, true) // clients send no token without TLS
}

// relayExtender restarts the second kube-scheduler so that it calls the relay. A new
// process leads within seconds after the old one was killed.
func relayExtender(ctx context.Context, e environment) (*relay, error) {
	dir := e.atoll.TLSDir
	to, err := rest.TLSConfigFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{
		CAFile: filepath.Join(dir, "ca.crt"), CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key"),
	}})
	if err != nil {
		return nil, fmt.Errorf("relaying to the extender: %w", err)
	}
	l, err := newRelay(e.atoll.ExtenderURL, to, false)
	if err != nil {
		return nil, err
	}
	if err := e.cluster.RemoveProcess(ctx, atoll.Scheduler); err != nil {
		return nil, err
	}
	return l, startScheduler(ctx, e, l, atoll.Scheduler, true)
}

// startScheduler starts a kube-scheduler for managed pods that calls the relay.
func startScheduler(ctx context.Context, e environment, l *relay, name string, elect bool) error {
	var config map[string]any
	if err := yaml.Unmarshal(e.atoll.SchedulerConfig, &config); err != nil {
		return fmt.Errorf("reading the configuration of kube-scheduler: %w", err)
	}
	for _, x := range config["extenders"].([]any) {
		extender := x.(map[string]any)
		extender["urlPrefix"] = l.URL + "/scheduler"
		extender["enableHTTPS"] = false
		delete(extender, "tlsConfig")
	}
	election := config["leaderElection"].(map[string]any)
	election["leaderElect"] = elect
	election["leaseDuration"], election["renewDeadline"], election["retryPeriod"] = "4s", "3s", "1s"
	raw, err := yaml.Marshal(config)
	if err != nil {
		return fmt.Errorf("writing the configuration of kube-scheduler: %w", err)
	}
	kubeconfig, err := e.cluster.ServiceAccountKubeconfig(ctx, atoll.Namespace, atoll.Scheduler)
	if err != nil {
		return err
	}
	return e.cluster.StartSchedulerAs(ctx, name, kubeconfig, raw)
}

func isWatch(r *http.Request) bool {
	value := r.URL.Query().Get("watch")
	return value == "true" || value == "1"
}

// resourceOf returns the resource of a request to the API server, with the subresource if
// there is one: "pods/eviction".
func resourceOf(r *http.Request) string {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch parts[0] {
	case "api":
		parts = parts[min(2, len(parts)):]
	case "apis":
		parts = parts[min(3, len(parts)):]
	default:
		return ""
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	switch len(parts) {
	case 0:
		return ""
	case 1, 2:
		return parts[0]
	default:
		return parts[0] + "/" + parts[2]
	}
}

// refuse answers like the API server when it refuses a request.
func refuse(w http.ResponseWriter, code int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	if code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(code)
	_, _ = fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"message":"a fault","code":%d}`, reason, code)
}

// hangUp ends the connection without an answer.
func hangUp() { panic(http.ErrAbortHandler) }

// valve holds writes through it while it is shut.
type valve struct {
	mu   sync.Mutex
	shut chan struct{} // nil when open; closed when it opens
}

func (v *valve) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.shut == nil {
		v.shut = make(chan struct{})
	}
}

func (v *valve) open() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.shut != nil {
		close(v.shut)
		v.shut = nil
	}
}

// pass returns when the valve is open, or ctx is done.
func (v *valve) pass(ctx context.Context) {
	v.mu.Lock()
	shut := v.shut
	v.mu.Unlock()
	if shut == nil {
		return
	}
	select {
	case <-shut:
	case <-ctx.Done():
	}
}

// throttled writes through a valve, except for a first few bytes.
type throttled struct {
	http.ResponseWriter
	valve *valve
	ctx   context.Context
	free  int
}

func (t *throttled) Write(p []byte) (int, error) {
	first := min(t.free, len(p))
	t.free -= first
	if first > 0 {
		if n, err := t.ResponseWriter.Write(p[:first]); err != nil {
			return n, err
		}
		t.Flush()
	}
	if first < len(p) {
		t.valve.pass(t.ctx)
		if _, err := t.ResponseWriter.Write(p[first:]); err != nil {
			return first, err
		}
	}
	return len(p), nil
}

func (t *throttled) Flush() { t.ResponseWriter.(http.Flusher).Flush() }
