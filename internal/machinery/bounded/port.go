// Package bounded serves HTTP on a port that strangers may reach. It bounds what one
// client, and all clients together, can take of the process: connections, and the time
// for a handshake, for headers, for a request and between requests. No client can keep
// the others from being served.
//
// Shares divides everything else of which there is an amount, such as the memory for
// requests, among clients, and Turns divides the CPU. The package knows no kind and no path.
package bounded

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
)

const (
	// roomAfter is after how long a handshake or a probe makes room for another turn. It may
	// wait for something, such as the client's certificate.
	roomAfter = 3 * time.Millisecond
	// handshakeTime bounds the wait of a handshake for its turn. A client that waits longer has
	// mostly gone, and its handshake would be computed all the same.
	handshakeTime = time.Second
	// probeTime bounds the wait of a probe for its turn. The kubelet waits a second or more.
	probeTime = 300 * time.Millisecond
	// headerTime bounds the TLS handshake, and after that the headers of each request.
	headerTime = 5 * time.Second
	// idleTime bounds the time between two requests of a connection. Clients of Go's
	// standard library close an idle connection after 90 s, so they do not send a
	// request on a connection that the server is closing.
	idleTime = 100 * time.Second
	// maxHeader bounds the headers of a request, in bytes; a token of a ServiceAccount
	// has about 1 kB.
	maxHeader = 16 << 10
	// shutdownGrace is how long running requests may take when the server stops.
	shutdownGrace = 5 * time.Second
	// pingAfter and pingTime are when an HTTP/2 connection without traffic is tried, and
	// for how long.
	pingAfter, pingTime = 15 * time.Second, 15 * time.Second
	// receiveBuffer bounds, for each HTTP/2 connection, the bytes of bodies that no
	// handler has read yet. The default is 1 MiB, also for requests that no handler
	// serves yet.
	receiveBuffer = 128 << 10
)

// Port is one port of the process. Its fields must not be changed once it serves.
type Port struct {
	// Name is a word for the port, in logs and metrics.
	Name string
	// Address is host:port.
	Address string
	// TLS is the configuration of the server; nil for plain HTTP.
	TLS     *tls.Config
	Handler http.Handler
	// Connections bounds the connections of all callers together. One caller may have
	// 3/8 of them: see Shares.
	Connections int64
	// NoOwnProbes counts connections from this machine too. A port that the process itself probes does not.
	NoOwnProbes bool
	// Streams bounds the concurrent requests on one HTTP/2 connection. With 0 the port
	// serves HTTP/1.1 only.
	Streams int
	// Once closes each connection after one request.
	Once bool
	// RequestTime bounds the time in which a request must arrive, ResponseTime that until
	// its response is written; 0 means no bound.
	RequestTime, ResponseTime time.Duration
	// Linger is how long a port that ends still serves. Each answer closes its connection meanwhile, so that
	// clients leave: a request that is sent while its connection is closed would be lost.
	Linger time.Duration
	// Log receives the address when the server starts and, at V(2), errors of
	// connections.
	Log logr.Logger
}

// Listen opens the port. The listener refuses connections above the bounds, and serves
// TLS if the port does.
func (p *Port) Listen(ctx context.Context) (net.Listener, error) {
	inner, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.Address)
	if err != nil {
		return nil, fmt.Errorf("listening for %s: %w", p.Name, err)
	}
	panicsTotal.WithLabelValues(p.Name) // 0 from the start, so that an alert sees the first
	var l net.Listener = &listener{Listener: inner, connections: NewShares(p.Connections), countsAll: p.NoOwnProbes, refuse: func() { Refused(p.Name, TooManyConnections) }}
	if p.TLS != nil {
		l = tls.NewListener(l, p.tls())
	}
	return l, nil
}

// tls returns the TLS configuration with the protocols of the port.
func (p *Port) tls() *tls.Config {
	c := p.TLS.Clone()
	c.NextProtos = []string{"http/1.1"}
	if p.Streams > 0 {
		c.NextProtos = []string{"h2", "http/1.1"}
	}
	takeTurns(c)
	return c
}

// takeTurns lets handshakes take turns from when the client's first message has arrived until
// the client is verified. Without client certificates that is when the server's answer is
// made, so that no turn waits for a client.
func takeTurns(c *tls.Config) {
	inner, own := c.GetConfigForClient, c.Clone()
	c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		config := own
		if inner != nil {
			chosen, err := inner(hello)
			if err != nil {
				return nil, err
			}
			if chosen != nil {
				config = chosen
			}
		}
		ctx, cancel := context.WithTimeout(hello.Context(), handshakeTime)
		defer cancel()
		turn, granted := SharedTurns().WaitFor(ctx, CallerOf(hello.Conn.RemoteAddr().String()), false, roomAfter)
		if !granted {
			return nil, ErrBusy
		}
		once := sync.OnceFunc(turn.End)
		failed := context.AfterFunc(hello.Context(), once) // the handshake has ended, or failed
		config = config.Clone()
		verify := config.VerifyConnection
		config.VerifyConnection = func(state tls.ConnectionState) error {
			once()
			failed()
			if verify != nil {
				return verify(state)
			}
			return nil
		}
		return config, nil
	}
}

// Server returns the server of the port, for its listener.
func (p *Port) Server() *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(p.Streams > 0 && p.TLS != nil)
	server := &http.Server{
		Handler: closing(p.Handler), DisableGeneralOptionsHandler: true, Protocols: protocols,
		ReadHeaderTimeout: headerTime, ReadTimeout: p.RequestTime, WriteTimeout: p.ResponseTime, IdleTimeout: idleTime,
		MaxHeaderBytes: maxHeader,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: p.Streams, MaxReceiveBufferPerConnection: receiveBuffer, MaxReceiveBufferPerStream: receiveBuffer,
			SendPingTimeout: pingAfter, PingTimeout: pingTime, WriteByteTimeout: pingTime,
		},
		ErrorLog: log.New(errorLog{p.Log, p.Name}, "", 0),
	}
	if p.TLS != nil {
		server.TLSConfig = p.tls()
	}
	server.SetKeepAlivesEnabled(!p.Once)
	return server
}

// Start serves until ctx is done, Linger is over, and running requests have ended or shutdownGrace is over.
func (p *Port) Start(ctx context.Context) error {
	l, err := p.Listen(ctx)
	if err != nil {
		return err
	}
	return p.Serve(ctx, l)
}

// Serve is Start for a listener that Listen has returned.
func (p *Port) Serve(ctx context.Context, l net.Listener) error {
	server := p.Server()
	server.BaseContext = func(net.Listener) context.Context { return context.WithoutCancel(ctx) }
	var ending atomic.Bool
	inner := server.Handler
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ending.Load() {
			w.Header().Set("Connection", "close") // in HTTP/2 it becomes a GOAWAY
		}
		inner.ServeHTTP(w, r)
	})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		ending.Store(true)
		time.Sleep(p.Linger)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
		defer cancel()
		if server.Shutdown(grace) != nil {
			_ = server.Close() // requests that take longer are cut off
		}
	}()
	p.Log.Info("Serving "+p.Name, "address", l.Addr().String())
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving %s: %w", p.Name, err)
	}
	<-stopped
	return nil
}

// NeedLeaderElection returns false: every replica serves.
func (p *Port) NeedLeaderElection() bool { return false }

// listener refuses connections of callers that have their share already.
type listener struct {
	net.Listener
	connections *Shares
	countsAll   bool
	refuse      func()
}

// Accept returns the next connection that is not refused. A refused connection is reset.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		// The process's own checks do not fail because others use up the port: the replica
		// would be taken out of the Service, or restarted.
		caller := CallerOf(conn.RemoteAddr().String())
		if !l.countsAll && caller == CallerOf(conn.LocalAddr().String()) {
			return conn, nil
		}
		// Whoever may use one address of loopback may use millions.
		if l.countsAll && netip.Addr(caller).IsLoopback() {
			caller = CallerOf("127.0.0.1:0")
		}
		if l.connections.Take(caller, 1) {
			return &counted{Conn: conn, give: sync.OnceFunc(func() { l.connections.Give(caller, 1) })}, nil
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // nothing of the connection stays in the kernel
		}
		_ = conn.Close()
		l.refuse()
	}
}

// counted is a connection that counts until it is closed.
type counted struct {
	net.Conn
	give func()
}

func (c *counted) Close() error {
	defer c.give()
	return c.Conn.Close()
}

// errorLog writes the messages of net/http, for example about failed handshakes, to the
// log. Anybody who reaches the port can cause them.
type errorLog struct {
	logr.Logger
	port string
}

func (l errorLog) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("panic serving")) { // with the stack; net/http recovers from it
		Panicked(l.port)
		l.Error(nil, "A handler panicked", "message", string(p))
		return len(p), nil
	}
	l.V(2).Info("HTTP server", "message", string(p))
	return len(p), nil
}
