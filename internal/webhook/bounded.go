// Package webhook serves the webhooks and bounds what their requests take. The webhooks
// cannot authenticate the API server, so everybody who reaches their port may send
// requests.
package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/atoll-k8s/atoll/internal/machinery/bounded"
)

const (
	// Port is the name of the webhooks' port in logs and metrics.
	Port = "webhooks"
	// maxConnections bounds the connections of all callers together, and 3/8 of it
	// those of one. API servers use HTTP/1.1 for webhooks: a connection for each request
	// in progress, which lasts milliseconds.
	maxConnections = 4096
	// maxBody bounds the body of one request, in bytes. It is twice the largest object
	// that etcd accepts, in its JSON encoding.
	maxBody = 7 << 20
	// maxBodies bounds the memory for the bodies of all requests in progress, in bytes. It
	// is enough for pods of usual size at the rate of the largest API servers, and an
	// eighth of the memory that the chart gives to atoll-manager.
	maxBodies = 64 << 20
	// maxDecoded bounds the memory for what all requests in progress are decoded to, in
	// bytes, as bounded.Weights estimate it. 3/8 of it, for one caller, is enough for an
	// update of a NodeGroup with 5,000 nodes, with their states.
	maxDecoded = 224 << 20
	// firstRead is how much memory a body takes before anything of it has arrived.
	firstRead = 4 << 10
	// longestSmall is after how long a turn makes room for another one if the request is small,
	// or its body is read: it may wait for a lock, or for its client.
	longestSmall = 20 * time.Millisecond
	// readTimeout bounds the time in which a body must arrive. It is longer than the API
	// server waits for the answer.
	readTimeout = 3 * time.Second
	// requestTime bounds the time in which any request must arrive, also one that is refused.
	requestTime = 5 * time.Second
	// waitTimeout is how long a request waits until it may be decoded. The API server
	// waits a little longer for the answer.
	waitTimeout = time.Second
	// largeBody and largeWeight are the bytes of a body, and the weight of a request, above
	// which a request is large for bounded.Turns. Reviews of pods of usual size weigh 0.5 MiB.
	largeBody, largeWeight = 64 << 10, 2 << 20
	// responseTime bounds the time from the headers of a request to the end of its answer.
	responseTime = 10 * time.Second
	// checkTimeout bounds the connection that StartedChecker makes.
	checkTimeout = 1500 * time.Millisecond
	// checkedFor is for how long StartedChecker returns the last result.
	checkedFor = time.Second
)

// Server is a webhook server that bounds connections, the size of bodies, what they are
// decoded to, and the time in which they must arrive. It refuses all other requests, so
// that the API server continues without the webhook. All callers together are bounded.
// One caller takes at most 3/8 of connections and memory, and of the CPU as much as others
// leave.
type Server struct {
	webhook.Server // the routes
	port           bounded.Port
	bodies         *bounded.Shares // bytes of the bodies of all requests in progress
	decoded        *bounded.Shares // weight of all requests that are decoded at the moment
	turns          *bounded.Turns  // of requests that use the CPU

	mu       sync.Mutex
	address  string // where the server listens; "" before Start
	checked  time.Time
	checkErr error
}

// NewServer returns a server for host:port.
func NewServer(address string, config *tls.Config, logger logr.Logger) *Server {
	return &Server{
		Server:  webhook.NewServer(webhook.Options{}),
		port:    bounded.Port{Name: Port, Address: address, TLS: config, Connections: maxConnections, RequestTime: requestTime, ResponseTime: responseTime, Linger: time.Second, Log: logger},
		bodies:  bounded.NewShares(maxBodies),
		decoded: bounded.NewShares(maxDecoded),
		turns:   bounded.SharedTurns(),
	}
}

// ordinary are the weights for webhooks without a method Weights.
var ordinary = bounded.Weights{Byte: 8, Member: 192, Element: 2 << 10, Text: 320}

// Start implements webhook.Server.
func (s *Server) Start(ctx context.Context) error {
	listener, err := s.port.Listen(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.address = reachable(listener.Addr().String())
	s.mu.Unlock()
	port := s.port
	port.Handler = s.WebhookMux()
	return port.Serve(ctx, listener)
}

// reachable returns an address to connect to for one that a server listens on.
func reachable(address string) string {
	host, port, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err == nil && (ip == nil || ip.IsUnspecified()) {
		return net.JoinHostPort("localhost", port)
	}
	return address
}

// StartedChecker implements webhook.Server. However often it is called, it makes at most
// one connection in checkedFor.
func (s *Server) StartedChecker() healthz.Checker {
	return func(*http.Request) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.address == "" {
			return errors.New("the webhook server has not been started yet")
		}
		if time.Since(s.checked) > checkedFor {
			s.checkErr = check(s.address)
			s.checked = time.Now()
		}
		return s.checkErr
	}
}

// check connects to the server.
func check(address string) error {
	//nolint:gosec // only whether the server answers is of interest
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: checkTimeout}, "tcp", address, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		return fmt.Errorf("connecting to the webhook server: %w", err)
	}
	_ = conn.Close()
	return nil
}

// Register implements webhook.Server.
func (s *Server) Register(path string, hook http.Handler) {
	weights := ordinary
	if own, ok := hook.(interface{ Weights() bounded.Weights }); ok {
		weights = own.Weights()
	}
	var within time.Duration
	if own, ok := hook.(interface{ AnswersWithin() time.Duration }); ok {
		within = own.AnswersWithin()
	}
	s.Server.Register(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived := time.Now()
		caller := bounded.CallerOf(r.RemoteAddr)
		body := body{shares: s.bodies, turns: s.turns, caller: caller}
		defer body.release()
		if err := body.read(w, r); err != nil {
			refuse(w, err)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), waitTimeout)
		defer cancel()
		weight, err := s.weigh(ctx, caller, weights, body.bytes)
		if err != nil {
			refuse(w, err)
			return
		}
		if !s.decoded.Wait(ctx, caller, weight) {
			refuse(w, bounded.ErrBusy)
			return
		}
		defer s.decoded.Give(caller, weight)
		isLarge, longest := false, longestSmall
		if weight > largeWeight {
			isLarge, longest = true, s.turns.Longest
		}
		turn, granted := s.turns.WaitFor(ctx, caller, isLarge, longest)
		if !granted {
			refuse(w, bounded.ErrBusy)
			return
		}
		defer turn.End() // also if the webhook panics
		hookCtx := bounded.WithTurn(r.Context(), turn)
		if within > 0 {
			var done context.CancelFunc
			hookCtx, done = context.WithDeadline(hookCtx, arrived.Add(within))
			defer done()
		}
		r = r.WithContext(hookCtx)
		r.Body = io.NopCloser(bytes.NewReader(body.bytes))
		answer := &answer{ResponseWriter: w}
		hook.ServeHTTP(answer, r)
		turn.End()
		answer.send()
	}))
}

// answer keeps what a webhook answers until send, so that a client that reads slowly keeps no
// turn.
type answer struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

// Write implements http.ResponseWriter.
func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(p)
}

func (a *answer) send() {
	a.WriteHeader(http.StatusOK)
	a.ResponseWriter.WriteHeader(a.status)
	_, _ = a.ResponseWriter.Write(a.body.Bytes()) // a write fails only if the client has gone
}

// weigh returns the weight of a request. Large ones wait for their turn.
func (s *Server) weigh(ctx context.Context, caller bounded.Caller, weights bounded.Weights, raw []byte) (int64, error) {
	if len(raw) > largeBody {
		turn, granted := s.turns.Wait(ctx, caller, true)
		if !granted {
			return 0, bounded.ErrBusy
		}
		defer turn.End()
	}
	return weights.Weigh(raw, s.decoded.Largest())
}

// refuse answers a request that is not passed to its webhook.
func refuse(w http.ResponseWriter, err error) {
	status, reason := http.StatusBadRequest, bounded.TooSlow
	switch {
	case errors.Is(err, bounded.ErrTooLarge):
		status, reason = http.StatusRequestEntityTooLarge, bounded.TooLarge
	case errors.Is(err, bounded.ErrBusy):
		status, reason = http.StatusServiceUnavailable, bounded.TooManyRequests
	}
	bounded.Refused(Port, reason)
	http.Error(w, err.Error(), status)
}

// body is the body of a request. Its memory counts until release.
type body struct {
	bytes  []byte
	shares *bounded.Shares
	turns  *bounded.Turns
	caller bounded.Caller
	held   int64
	turn   *bounded.Turn // of a large body; nil before
}

// read reads the body of a request. Memory is taken as the body arrives, and not for its
// Content-Length, which may be a lie.
func (b *body) read(w http.ResponseWriter, r *http.Request) error {
	if r.ContentLength > maxBody {
		return fmt.Errorf("%w: %d bytes, more than %d", bounded.ErrTooLarge, r.ContentLength, maxBody)
	}
	connection := http.NewResponseController(w)
	if err := connection.SetReadDeadline(time.Now().Add(readTimeout)); err != nil {
		return fmt.Errorf("setting the deadline of the request: %w", err)
	}
	limit := int64(maxBody)
	if r.ContentLength >= 0 {
		limit = r.ContentLength
	}
	if err := b.grow(min(firstRead, limit+1)); err != nil {
		return err
	}
	defer func() {
		if b.turn != nil {
			b.turn.End()
		}
	}()
	for {
		if err := b.takeTurn(r.Context()); err != nil {
			return err
		}
		n, err := r.Body.Read(b.bytes[len(b.bytes):cap(b.bytes)])
		b.bytes = b.bytes[:len(b.bytes)+n]
		switch {
		case int64(len(b.bytes)) > limit:
			return fmt.Errorf("%w: more than %d bytes", bounded.ErrTooLarge, maxBody)
		case errors.Is(err, io.EOF):
			_ = connection.SetReadDeadline(time.Time{}) // setting the deadline above succeeded, so this does
			return nil
		case err != nil:
			return fmt.Errorf("reading the request: %w", err)
		case len(b.bytes) == cap(b.bytes):
			if err := b.grow(min(2*int64(cap(b.bytes)), limit+1)); err != nil {
				return err
			}
		}
	}
}

// takeTurn waits for a turn once much of the body has been read.
func (b *body) takeTurn(ctx context.Context) error {
	if b.turn != nil || len(b.bytes) < largeBody {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	turn, granted := b.turns.WaitFor(ctx, b.caller, true, longestSmall)
	if !granted {
		return bounded.ErrBusy
	}
	b.turn = turn
	return nil
}

// grow gives the body a larger buffer. While it is copied, both buffers count.
func (b *body) grow(size int64) error {
	if !b.shares.Take(b.caller, size) {
		return bounded.ErrBusy
	}
	larger := make([]byte, len(b.bytes), size)
	copy(larger, b.bytes)
	b.bytes = larger
	b.shares.Give(b.caller, b.held)
	b.held = size
	return nil
}

func (b *body) release() { b.shares.Give(b.caller, b.held) }
