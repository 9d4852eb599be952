package extender

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
)

// Server serves the handler over mutual TLS, on every replica.
type Server struct {
	// Address is host:port.
	Address string
	// TLS holds the server's certificate and requires a client certificate.
	TLS     *tls.Config
	Handler http.Handler
	// Log receives the address when the server starts and, at V(2), errors of connections.
	Log logr.Logger
}

// shutdownGrace is how long running requests may take when the server stops.
const shutdownGrace = 5 * time.Second

// callsAtOnce is the maximum number of concurrent requests on one HTTP/2 connection. If the
// host of a replica is lost, kube-scheduler closes its connection to it only after about 45
// seconds. Until then, requests on that connection time out. When callsAtOnce requests are
// stuck on it, kube-scheduler opens a new connection, and may reach another replica.
const callsAtOnce = 4

// Start serves until ctx is done and running requests have ended or shutdownGrace is over.
func (s *Server) Start(ctx context.Context) error {
	listener, err := net.Listen("tcp", s.Address)
	if err != nil {
		return fmt.Errorf("listening for kube-scheduler: %w", err)
	}
	server := &http.Server{
		Handler: s.Handler, TLSConfig: s.TLS,
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: 5 * time.Minute,
		MaxHeaderBytes: 64 << 10,
		HTTP2:          &http.HTTP2Config{MaxConcurrentStreams: callsAtOnce},
		ErrorLog:       log.New(errorLog{s.Log}, "", 0),
		BaseContext:    func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
		defer cancel()
		if server.Shutdown(grace) != nil {
			_ = server.Close() // requests that take longer are cut off
		}
	}()
	s.Log.Info("Serving kube-scheduler", "address", listener.Addr().String())
	if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving kube-scheduler: %w", err)
	}
	<-stopped
	return nil
}

// NeedLeaderElection returns false: a replica that is not the leader forwards requests, or
// answers 503.
func (s *Server) NeedLeaderElection() bool { return false }

// errorLog writes the messages of net/http, for example about failed handshakes, to the log.
type errorLog struct{ logr.Logger }

func (l errorLog) Write(p []byte) (int, error) {
	l.V(2).Info("HTTP server", "message", string(p))
	return len(p), nil
}
