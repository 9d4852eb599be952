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
	TLS     *tls.Config
	Handler http.Handler
	Log     logr.Logger
}

// shutdownGrace is how long calls under way may take when the server stops.
const shutdownGrace = 5 * time.Second

// callsAtOnce is how many calls share a connection of HTTP/2. A replica whose
// host is lost answers none, and kube-scheduler notices that of the connection
// only after some 45 seconds; so few calls that time out use it up, and the
// next call dials anew.
const callsAtOnce = 4

// Start serves until ctx is done.
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
			_ = server.Close() // calls that outlast the grace are cut off
		}
	}()
	s.Log.Info("Serving kube-scheduler", "address", listener.Addr().String())
	if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving kube-scheduler: %w", err)
	}
	<-stopped
	return nil
}

// NeedLeaderElection is false: a replica that does not lead says so.
func (s *Server) NeedLeaderElection() bool { return false }

// errorLog hands what net/http complains of, such as bad handshakes, to the log.
type errorLog struct{ logr.Logger }

func (l errorLog) Write(p []byte) (int, error) {
	l.V(2).Info("HTTP server", "message", string(p))
	return len(p), nil
}
