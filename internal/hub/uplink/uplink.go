package uplink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

const (
	// askEvery is the time between two probes while the cloud is reachable, and askSoon the time after a failed
	// request. While offline, the time doubles from askSoon to askEvery: thousands of hubs must not probe an
	// API server that is starting each second. A random delay of up to a half is added, so that hubs do not
	// probe at the same time.
	askEvery, askSoon = 10 * time.Second, time.Second
	// answerWithin is how long a probe waits for a response.
	answerWithin = 3 * time.Second
	// pingAfter is how long a connection may be silent before it is tested by a ping, and pongWithin how long
	// the response to the ping may take: an interrupted link does not close connections.
	pingAfter, pongWithin = 10 * time.Second, 5 * time.Second
	// maxUnread is how many bytes of a response to a non-node caller are received before the client reads them.
	maxUnread = 256 << 10
	// maxDrain is how many bytes are read of a response that is not used.
	maxDrain = 64 << 10
)

// ErrOffline is the error of requests while no API server answers, and the cause of requests that were waiting
// for a response when the cloud became unreachable.
var ErrOffline = errors.New("no API server of the cloud answers")

// Options configure an Uplink.
type Options struct {
	// Servers are the API servers, at least one: https URLs without a path.
	Servers []*url.URL
	// Roots returns the CAs of the servers' certificates. When it returns another pool, new connections use
	// that.
	Roots func() *x509.CertPool
	// NodeCertificate returns the certificate of the node. It is called for each request of the node.
	NodeCertificate func() (*tls.Certificate, error)
	// NodeName is the name of the node. Its Lease is read to find out whether the API servers answer requests.
	NodeName string
	// Return is the time over which waiting requests are spread when the cloud is reachable again.
	Return time.Duration
	Log    logr.Logger
}

// Uplink is the connection to the cloud. It is safe for concurrent use.
type Uplink struct {
	options Options
	hurry   chan struct{} // requests a probe soon
	// answerWithin, askSoon and silence are the constants of these names. Tests change them.
	answerWithin, askSoon, silence time.Duration

	mu       sync.Mutex
	evidence Evidence
	reason   error         // the last failure
	changed  chan struct{} // closed when the state changes
	current  int           // the server that is tried first
	unready  Unready
	refused  time.Time // since when the cloud refuses the certificate of the node; zero if it does not
	// others are the transports for requests of callers with a token, and node those for requests of the node.
	// Upgrades have their own transports, because HTTP/2 does not support them.
	others, node transports
	// reachable is done, with the cause ErrOffline, while the state is Offline.
	reachable context.Context
	lose      context.CancelCauseFunc
}

// transports are a transport for requests and one for upgrades, with the same client certificate (or nil) and
// CAs. An API server checks the certificate of the connection for each request, so a new certificate needs new
// connections.
type transports struct {
	requests, upgrades *http.Transport
	certificate        *tls.Certificate
	roots              *x509.CertPool
}

func (t *transports) of(r *http.Request) *http.Transport {
	if r.Header.Get("Upgrade") != "" {
		return t.upgrades
	}
	return t.requests
}

// ErrNoCertificate is the error of requests of the node while the hub has no certificate of the node. It says
// nothing about whether the cloud is reachable.
var ErrNoCertificate = errors.New("the hub has no certificate of the node")

// New returns an Uplink. It learns whether the cloud is reachable from requests and, while Run runs, from
// probes.
func New(o Options) *Uplink {
	u := &Uplink{
		options: o, hurry: make(chan struct{}, 1), changed: make(chan struct{}),
		answerWithin: answerWithin, askSoon: askSoon, silence: silence,
	}
	u.evidence = Evidence{State: Unknown, Since: time.Now(), LastAnswer: time.Now()}
	u.reachable, u.lose = context.WithCancelCause(context.Background())
	return u
}

// newTransports returns transports with a client certificate; nil means none.
func newTransports(certificate *tls.Certificate, roots *x509.CertPool) transports {
	one := func(http2 bool) *http.Transport {
		config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
		if certificate != nil {
			config.Certificates = []tls.Certificate{*certificate}
		}
		t := &http.Transport{
			DialContext:         (&net.Dialer{Timeout: answerWithin, KeepAlive: pingAfter}).DialContext,
			TLSClientConfig:     config,
			TLSHandshakeTimeout: answerWithin,
			IdleConnTimeout:     90 * time.Second,
			MaxIdleConnsPerHost: 16,
		}
		if http2 {
			t.ForceAttemptHTTP2 = true
			t.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pongWithin}
			if certificate == nil {
				t.HTTP2.MaxReceiveBufferPerStream = maxUnread
			}
		} else {
			t.Protocols = new(http.Protocols)
			t.Protocols.SetHTTP1(true)
		}
		return t
	}
	return transports{one(true), one(false), certificate, roots}
}

// transports returns the transports of the node or of other callers. It makes new ones if the certificate or
// the CAs have changed. Requests in progress continue with the old ones.
func (u *Uplink) transports(asNode bool) (transports, error) {
	var certificate *tls.Certificate
	if asNode {
		var err error
		if certificate, err = u.options.NodeCertificate(); err != nil {
			return transports{}, fmt.Errorf("%w: %w", ErrNoCertificate, err)
		}
	}
	roots := u.options.Roots()
	u.mu.Lock()
	defer u.mu.Unlock()
	current := &u.others
	if asNode {
		current = &u.node
	}
	if old := *current; old.requests == nil || old.certificate != certificate || old.roots != roots {
		*current = newTransports(certificate, roots)
		if old.requests != nil {
			old.requests.CloseIdleConnections()
			old.upgrades.CloseIdleConnections()
		}
	}
	return *current, nil
}

// Run probes the cloud periodically, until ctx is done.
func (u *Uplink) Run(ctx context.Context) {
	pause := func(d time.Duration, early <-chan struct{}) bool {
		timer := time.NewTimer(d + rand.N(d/2+1))
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return false
		case <-early:
		case <-timer.C:
		}
		return true
	}
	for soon := u.askSoon; ; {
		u.ask(ctx)
		select {
		case <-u.hurry: // the probe above was that one
		default:
		}
		if e, _ := u.Evidence(); e.State != Offline || e.Answers > 0 {
			soon = u.askSoon
		}
		if !pause(soon, nil) {
			return
		}
		soon = min(2*soon, askEvery)
		if e, _ := u.Evidence(); e.State == Online && e.Failures == 0 && !pause(askEvery-askSoon, u.hurry) {
			return
		}
	}
}

// askNext makes Run probe the cloud at once.
func (u *Uplink) askNext() {
	select {
	case u.hurry <- struct{}{}:
	default: // a probe is requested already
	}
}

// Evidence returns the evidence about the cloud, and the last failure.
func (u *Uplink) Evidence() (Evidence, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.evidence, u.reason
}

// RoundTrip sends a request to an API server, with the node's certificate if asNode is true, otherwise with the
// credentials in the headers. While offline it returns ErrOffline at once. It also returns ErrOffline if the
// cloud becomes unreachable before there is a response.
func (u *Uplink) RoundTrip(r *http.Request, asNode bool) (*http.Response, error) {
	u.mu.Lock()
	reachable := u.reachable
	u.mu.Unlock()
	if reachable.Err() != nil { // even if there is no certificate
		return nil, ErrOffline
	}
	with, err := u.transports(asNode)
	if err != nil {
		return nil, err
	}
	transport := with.of(r)
	ctx, cancel := context.WithCancelCause(r.Context())
	stop := context.AfterFunc(reachable, func() { cancel(ErrOffline) })
	slow := time.AfterFunc(u.answerWithin, u.askNext) // the request may be slow, or the cloud not reachable
	response, err := u.try(r.WithContext(ctx), transport)
	slow.Stop()
	stop()
	if err != nil {
		cancel(nil)
		return nil, err
	}
	if asNode {
		u.judge(with.certificate, response.StatusCode)
	}
	response.Body = &body{response.Body, cancel}
	return response, nil
}

// body ends the context of its request when it is closed.
type body struct {
	io.ReadCloser

	cancel context.CancelCauseFunc
}

// Close implements io.Closer.
func (b *body) Close() error {
	defer b.cancel(nil)
	return b.ReadCloser.Close()
}

// Write implements io.Writer, for upgrades.
func (b *body) Write(p []byte) (int, error) {
	w, is := b.ReadCloser.(io.Writer)
	if !is {
		return 0, errors.New("the connection is read-only")
	}
	return w.Write(p)
}

// isRead reports whether a request changes nothing, so that it may be sent to two servers.
func isRead(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions) && r.Header.Get("Upgrade") == ""
}

// isRefused reports whether a request was not sent because dialing failed.
func isRefused(err error) bool {
	dial, is := errors.AsType[*net.OpError](err)
	return is && dial.Op == "dial"
}

// inTurn returns all servers, in the order in which they are tried.
func (u *Uplink) inTurn() []int {
	u.mu.Lock()
	defer u.mu.Unlock()
	var all []int
	for i := range u.options.Servers {
		all = append(all, (u.current+i)%len(u.options.Servers))
	}
	return all
}

// sendTo sends a request to one server.
func (u *Uplink) sendTo(at int, r *http.Request, transport *http.Transport) (*http.Response, error) {
	server := u.options.Servers[at]
	to := r.WithContext(r.Context()) // a shallow copy: transports do not change the headers
	target := *r.URL
	target.Scheme, target.Host = server.Scheme, server.Host
	to.URL, to.Host, to.RequestURI = &target, server.Host, ""
	response, err := transport.RoundTrip(to)
	if err != nil {
		return nil, fmt.Errorf("sending a request to %s: %w", server.Host, err)
	}
	return response, nil
}

// try sends a request to the servers in turn until one answers. A request that may change something is sent to
// the next server only if it was not sent to this one: otherwise it may have been executed.
func (u *Uplink) try(r *http.Request, transport *http.Transport) (*http.Response, error) {
	servers := u.inTurn()
	var errs []error
	for i, at := range servers {
		sent := r
		if i < len(servers)-1 && r.Body != nil && r.Body != http.NoBody {
			sent = r.WithContext(r.Context())
			sent.Body = io.NopCloser(r.Body) // the body is sent to the next server if dialing this one fails
		}
		response, err := u.sendTo(at, sent, transport)
		switch {
		case err == nil && response.StatusCode < http.StatusInternalServerError:
			u.observe(servers[0], at, nil)
			return response, nil
		case err == nil:
			// A 5xx may come from one part only, for example an aggregated API. A probe decides whether the
			// server is ready.
			u.askNext()
			return response, nil
		}
		if r.Context().Err() != nil && !errors.Is(r.Context().Err(), context.DeadlineExceeded) {
			return nil, context.Cause(r.Context()) // the client has disconnected, or the cloud became unreachable
		}
		errs = append(errs, err)
		if !isRead(r) && !isRefused(err) {
			break
		}
		if r.Context().Err() != nil {
			break
		}
	}
	err := errors.Join(errs...)
	u.observe(servers[0], u.after(servers[0]), err)
	return nil, err
}

// after returns the server that follows another one.
func (u *Uplink) after(server int) int { return (server + 1) % len(u.options.Servers) }

// observe records the outcome of a request that tried the server first before others. The next request tries
// the server then before others, unless another request has changed the order meanwhile: a late response of a
// server that is not ready must not change it back.
func (u *Uplink) observe(first, then int, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	before := u.evidence.State
	u.evidence = next(u.evidence, err == nil, time.Now(), u.silence)
	if u.current == first {
		u.current = then
	}
	if err != nil {
		u.reason = err
		u.askNext()
	}
	if now := u.evidence.State; now != before {
		close(u.changed)
		u.changed = make(chan struct{})
		if now == Offline {
			u.lose(ErrOffline)
		} else if before == Offline {
			u.reachable, u.lose = context.WithCancelCause(context.Background())
		}
		why := []any{"from", before, "to", now}
		if err != nil {
			why = append(why, "reason", err.Error())
		}
		u.options.Log.Info("The reachability of the cloud changed", why...)
	}
}

// AwaitReachable waits until the cloud is not offline. If it had to wait, spread is a random delay up to
// Options.Return: the caller delays all that is not urgent by it, so that not all waiting requests are sent at
// once. If ctx is done first, AwaitReachable returns the cause of ctx.
func (u *Uplink) AwaitReachable(ctx context.Context) (spread time.Duration, err error) {
	for waited := false; ; waited = true {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		u.mu.Lock()
		state, changed := u.evidence.State, u.changed
		u.mu.Unlock()
		if state != Offline {
			if waited && u.options.Return > 0 {
				spread = rand.N(u.options.Return)
			}
			return spread, nil
		}
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-changed:
		}
	}
}

// AwaitOnline is like AwaitReachable, and also waits for the spread.
func (u *Uplink) AwaitOnline(ctx context.Context) error {
	spread, err := u.AwaitReachable(ctx)
	if err != nil || spread == 0 {
		return err
	}
	timer := time.NewTimer(spread)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
