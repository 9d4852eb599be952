// Package access serves the API server of the pool's coordinator. It forwards logs, exec, attach and
// port-forward requests of users to the kubelet of the node, which does not trust that API server. It must not
// know how the kubelet is reached, and where certificates and the pool's CA come from.
package access

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/machinery/bounded"
)

const (
	// lookEvery is the time between two checks whether the port can be served.
	lookEvery = 2 * time.Second
	// tryEvery is the time between two checks whether the kubelet accepts the hub, retryAfter the time after a
	// check that it refused, and tryWithin the timeout of a check. A kubelet caches refusals for 30 seconds.
	tryEvery, retryAfter, tryWithin = 5 * time.Minute, 30 * time.Second, 10 * time.Second
	// maxConnections is the limit for the connections of all clients: each log, exec, attach and port-forward
	// uses one.
	maxConnections = 256
)

// ErrNoCoordinator is the error of Options.CA while the pool has no coordinator. The port is not needed then,
// so nothing is logged.
var ErrNoCoordinator = errors.New("the pool has no coordinator")

// Kubelet is the kubelet of the node.
type Kubelet interface {
	// Open sets whether requests are forwarded.
	Open(is bool)
	// Pass forwards a request. The caller has checked that it is allowed.
	Pass(w http.ResponseWriter, r *http.Request)
	// Try returns why the kubelet refuses such requests; nil if it accepts them or is not running.
	Try(ctx context.Context) error
}

// Options configure a Port.
type Options struct {
	// Address is host:port.
	Address string
	// CA returns the CAs of the pool, in PEM. While it returns an error, the port is closed.
	CA func() ([]byte, error)
	// Certificate returns the serving certificate of the port. While it returns an error, the port is closed.
	Certificate func() (*tls.Certificate, error)
	Kubelet     Kubelet
	// Now is the clock.
	Now func() time.Time
	Log logr.Logger
}

// Port is the port for the API server of the pool. It is safe for concurrent use.
type Port struct {
	o Options

	mu      sync.Mutex
	address string // the address of the port; "" while it is closed
	problem error  // why the port is closed
	refusal error  // why the kubelet refuses the requests; nil if it does not
}

// New returns a port. Run serves it.
func New(o Options) *Port { return &Port{o: o, problem: errors.New("not served yet")} }

// State returns the address of the port, or "" and the reason why it is closed.
func (p *Port) State() (address string, problem error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.address, p.problem
}

// Refusal returns why the kubelet refuses the requests of the port; nil if it accepts them, or if that is not
// known.
func (p *Port) Refusal() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refusal
}

// Run serves the port while there are a CA and a certificate, until ctx is done. If the address is in use, it
// retries.
func (p *Port) Run(ctx context.Context) {
	logged := ""
	for {
		err := p.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		p.settle("", err)
		text := err.Error()
		if text != logged && !errors.Is(err, ErrNoCoordinator) {
			p.o.Log.Info("Logs and exec of this node are not available at the pool's coordinator", "reason", text)
		}
		logged = text
		select {
		case <-ctx.Done():
			return
		case <-time.After(lookEvery):
		}
	}
}

func (p *Port) settle(address string, problem error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.address, p.problem, p.refusal = address, problem, nil
}

// ready returns why the port cannot be served; nil if it can.
func (p *Port) ready() error {
	_, err := p.roots()
	if err == nil {
		if _, err = p.o.Certificate(); err != nil {
			err = fmt.Errorf("reading the certificate of the port: %w", err)
		}
	}
	return err
}

// serve serves the port while it is ready, and returns why it stopped. All requests have ended when it returns.
func (p *Port) serve(ctx context.Context) error {
	if err := p.ready(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var requests sync.WaitGroup
	port := &bounded.Port{
		Name: "pool", Address: p.o.Address, Connections: maxConnections, NoOwnProbes: true, Log: p.o.Log,
		// An HTTP/1.1 connection can be upgraded to a stream. A stream has no time limit except those of its
		// two ends.
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			defer requests.Done()
			within, end := context.WithCancel(r.Context()) // the server does not end upgraded connections
			defer end()
			defer context.AfterFunc(ctx, end)()
			p.pass(&ending{w, within}, r.WithContext(within))
		}),
		TLS: &tls.Config{
			MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert, VerifyConnection: p.verify, SessionTicketsDisabled: true,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.o.Certificate() },
		},
	}
	listener, err := port.Listen(ctx)
	if err != nil {
		return err
	}
	p.settle(listener.Addr().String(), nil)
	p.o.Kubelet.Open(true)
	defer p.o.Kubelet.Open(false)
	go p.watch(ctx, cancel)
	go p.try(ctx)
	err = port.Serve(ctx, listener)
	cancel(err)
	requests.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// ending also closes the client's connection when ctx ends, if it was upgraded. Otherwise a connection whose
// other end was closed normally would stay open until the client sends something.
type ending struct {
	http.ResponseWriter

	ctx context.Context //nolint:containedctx // the context of this one request
}

// Hijack is for http.ResponseController.
func (e *ending) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(e.ResponseWriter).Hijack()
	if err == nil {
		context.AfterFunc(e.ctx, func() { _ = conn.Close() })
	}
	return conn, buffered, err
}

// Unwrap is for http.ResponseController.
func (e *ending) Unwrap() http.ResponseWriter { return e.ResponseWriter }

// watch ends ctx when the port can no longer be served.
func (p *Port) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := p.ready(); err != nil {
			cancel(err)
		}
	}
}

// try checks periodically whether the kubelet accepts the hub, so that users without logs can read the reason
// in the cloud before the node goes offline.
func (p *Port) try(ctx context.Context) {
	for {
		within, cancel := context.WithTimeout(ctx, tryWithin)
		err := p.o.Kubelet.Try(within)
		cancel()
		p.mu.Lock()
		if ctx.Err() == nil {
			if err != nil && p.refusal == nil {
				p.o.Log.Info("Logs and exec of this node are not available at the pool's coordinator", "reason", err.Error())
			}
			p.refusal = err
		}
		p.mu.Unlock()
		pause := tryEvery
		if err != nil {
			pause = retryAfter
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

func (p *Port) roots() (*x509.CertPool, error) {
	text, err := p.o.CA()
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, errors.New("reading the CA of the pool: no certificate in PEM")
	}
	return roots, nil
}

// verify returns an error unless the client is the API server of the pool. The pool's CA also signs the
// certificates of users.
func (p *Port) verify(c tls.ConnectionState) error {
	roots, err := p.roots()
	if err != nil {
		return err
	}
	if len(c.PeerCertificates) == 0 {
		return errors.New("a client certificate is required")
	}
	leaf := c.PeerCertificates[0]
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: p.o.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return err
	}
	if !slices.Contains(leaf.Subject.Organization, governance.APIServerGroup) {
		return fmt.Errorf("the certificate of %q is not for an API server of the pool", leaf.Subject.CommonName)
	}
	return nil
}

// pass forwards a request, or rejects it.
func (p *Port) pass(w http.ResponseWriter, r *http.Request) {
	if err := p.verify(*r.TLS); err != nil { // it may have expired since the connection began
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	if !isAllowed(r) {
		http.Error(w, "this port serves only logs, exec, attach, port-forward, stats/summary and metrics/resource, and for pods of coordinators only logs", http.StatusForbidden)
		return
	}
	p.o.Kubelet.Pass(w, r)
}

// names is, for each kubelet endpoint that is forwarded, how many names follow in the path: namespace, pod,
// container.
var names = map[string]int{"containerLogs": 3, "exec": 3, "attach": 3, "portForward": 2}

// isAllowed reports whether a request may be forwarded.
func isAllowed(r *http.Request) bool {
	if r.URL.RawPath != "" { // the path has escapes, which a kubelet could parse differently
		return false
	}
	switch r.URL.Path {
	case "/stats/summary", "/metrics/resource":
		return r.Method == http.MethodGet
	}
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if len(parts) > 1 && parts[0] != "containerLogs" && parts[1] == governance.Namespace {
		return false // users could change the data of the coordinator in its own pod, and use the network of its node
	}
	want, known := names[parts[0]]
	return known && len(parts) == want+1 && (r.Method == http.MethodGet || r.Method == http.MethodPost) &&
		!slices.ContainsFunc(parts[1:], func(name string) bool { return len(validation.IsDNS1123Subdomain(name)) > 0 })
}
