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
	// askEvery is the time between two questions to the cloud while it is reachable, and askSoon when a
	// request has just failed. While the cloud is away, the time doubles from askSoon to askEvery: an API
	// server that starts must not be asked by thousands of hubs each second. Up to a half is added by
	// chance, so that they do not ask in step.
	askEvery, askSoon = 10 * time.Second, time.Second
	// answerWithin bounds the wait for an answer to a question.
	answerWithin = 3 * time.Second
	// pingAfter is how long a connection may be silent before it is tried, and pongWithin how long
	// the answer may take: a link that is cut closes no connection.
	pingAfter, pongWithin = 10 * time.Second, 5 * time.Second
	// maxUnread bounds what of an answer to others than the node is received before their client reads it, in bytes.
	maxUnread = 256 << 10
	// maxDrain bounds what is read of an answer that nobody needs, in bytes.
	maxDrain = 64 << 10
)

// ErrOffline is the error of requests while no API server answers, and the cause of those that
// were waiting for an answer when that began.
var ErrOffline = errors.New("no API server of the cloud answers")

// Options configure an Uplink.
type Options struct {
	// Servers are the API servers, at least one: https URLs without a path.
	Servers []*url.URL
	// Roots returns the CAs of their certificates. Another pool is for new connections.
	Roots func() *x509.CertPool
	// NodeCertificate returns the certificate of the node. It is asked for each request of the node.
	NodeCertificate func() (*tls.Certificate, error)
	// NodeName is the name of the node, whose Lease is read to find out whether requests are answered.
	NodeName string
	// Return is the longest time by which requests that wait for the cloud are spread when it is
	// reachable again.
	Return time.Duration
	Log    logr.Logger
}

// Uplink is the connection to the cloud. It is safe for concurrent use.
type Uplink struct {
	options Options
	hurry   chan struct{} // a question is to be asked soon
	// answerWithin, askSoon and silence are the constants of these names, except in tests.
	answerWithin, askSoon, silence time.Duration

	mu       sync.Mutex
	evidence Evidence
	reason   error         // of the last failure
	changed  chan struct{} // closed when the state changes
	current  int           // the server that is asked first
	unready  Unready
	refused  time.Time // since when the cloud refuses the certificate of the node; zero if it does not
	// others are the transports for requests of callers with a token, and node those for requests of the
	// node. Upgrades have their own, because HTTP/2 has none.
	others, node transports
	// reachable is done, with the cause ErrOffline, while the state is Offline.
	reachable context.Context
	lose      context.CancelCauseFunc
}

// transports are one for requests, and one for upgrades, with a client certificate or nil, and CAs. An
// API server judges the certificate of a connection for each request, so a new certificate needs new
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

// ErrNoCertificate is the error of requests of the node while there is no certificate of the node. It
// says nothing of the cloud.
var ErrNoCertificate = errors.New("there is no certificate of the node")

// New returns an Uplink, which learns of the cloud by requests and, while Run runs, by its own
// questions.
func New(o Options) *Uplink {
	u := &Uplink{
		options: o, hurry: make(chan struct{}, 1), changed: make(chan struct{}),
		answerWithin: answerWithin, askSoon: askSoon, silence: silence,
	}
	u.evidence = Evidence{State: Unknown, Since: time.Now(), LastAnswer: time.Now()}
	u.reachable, u.lose = context.WithCancelCause(context.Background())
	return u
}

// newTransports returns transports with a client certificate; nil is none.
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

// transports returns those of the node or of the others, new ones if its certificate or the CAs are
// other ones. Requests that have begun go on with the old ones.
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

// Run asks the cloud from time to time whether it is reachable, until ctx is done.
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
		case <-u.hurry: // by this question
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

// askNext lets Run ask the cloud at once.
func (u *Uplink) askNext() {
	select {
	case u.hurry <- struct{}{}:
	default: // a question is due already
	}
}

// Evidence returns what is known of the cloud, and the reason of the last failure.
func (u *Uplink) Evidence() (Evidence, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.evidence, u.reason
}

// RoundTrip sends a request to an API server, as the node or, without its certificate, as whom its
// headers say. It fails with ErrOffline at once while the cloud is offline, and when that begins
// before there is an answer.
func (u *Uplink) RoundTrip(r *http.Request, asNode bool) (*http.Response, error) {
	u.mu.Lock()
	reachable := u.reachable
	u.mu.Unlock()
	if reachable.Err() != nil { // also if there is no certificate
		return nil, ErrOffline
	}
	with, err := u.transports(asNode)
	if err != nil {
		return nil, err
	}
	transport := with.of(r)
	ctx, cancel := context.WithCancelCause(r.Context())
	stop := context.AfterFunc(reachable, func() { cancel(ErrOffline) })
	slow := time.AfterFunc(u.answerWithin, u.askNext) // it may be slow by itself, or the cloud is away
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
		return 0, errors.New("the connection is for reading only")
	}
	return w.Write(p)
}

// isRead reports whether a request changes nothing, so that it may be sent to two servers.
func isRead(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions) && r.Header.Get("Upgrade") == ""
}

// isRefused reports whether a request was not sent at all.
func isRefused(err error) bool {
	dial, is := errors.AsType[*net.OpError](err)
	return is && dial.Op == "dial"
}

// inTurn returns all servers, from the one that is asked first.
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
	to := r.WithContext(r.Context()) // a copy, with the same headers: transports change none
	target := *r.URL
	target.Scheme, target.Host = server.Scheme, server.Host
	to.URL, to.Host, to.RequestURI = &target, server.Host, ""
	response, err := transport.RoundTrip(to)
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w", server.Host, err)
	}
	return response, nil
}

// try sends a request to the servers in turn until one answers. A request that may change something
// goes on to the next one only if it was not sent: it may have been carried out.
func (u *Uplink) try(r *http.Request, transport *http.Transport) (*http.Response, error) {
	servers := u.inTurn()
	var errs []error
	for i, at := range servers {
		sent := r
		if i < len(servers)-1 && r.Body != nil && r.Body != http.NoBody {
			sent = r.WithContext(r.Context())
			sent.Body = io.NopCloser(r.Body) // the next server gets it if this one cannot be dialled
		}
		response, err := u.sendTo(at, sent, transport)
		switch {
		case err == nil && response.StatusCode < http.StatusInternalServerError:
			u.observe(servers[0], at, nil)
			return response, nil
		case err == nil:
			// One thing may be out of order, for example an aggregated API. Whether the server is, ask finds out.
			u.askNext()
			return response, nil
		}
		if r.Context().Err() != nil && !errors.Is(r.Context().Err(), context.DeadlineExceeded) {
			return nil, context.Cause(r.Context()) // the client has gone, or the cloud
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

// observe adds the outcome of a request that asked the server first first. The next one asks the server
// then first, unless another request has changed that meanwhile: a late answer of a server that is not
// ready must not lead back to it.
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

// AwaitReachable waits until the cloud is not offline. If it was, spread is a time by chance by which all
// that is not urgent is delayed from then on, so that not all that waits asks at once. It returns the cause of
// ctx if that is done first.
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

// AwaitOnline is AwaitReachable, and waits for the spread, too.
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
