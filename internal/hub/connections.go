package hub

import (
	"bytes"
	"context"
	stdlog "log"
	"net/http"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/limits"
)

const (
	// maxStrangers is the limit for connections whose client has not authenticated yet. Every process on the
	// node can open such connections.
	maxStrangers = 256
	// maxOfIdentity is the limit for the connections of one identity other than the node, and maxOthers the
	// limit for all of these identities together.
	maxOfIdentity, maxOthers = 64, 256
	// maxObservers is the limit for connections to the second port.
	maxObservers = 64
)

type requestKey struct{}

// trusting returns proxy.Proxy.Trust. The contexts must come from withRequest.
func trusting(c *limits.Connections, recognizer *identity.Recognizer) func(context.Context) {
	return func(ctx context.Context) {
		r, is := ctx.Value(requestKey{}).(*http.Request)
		if !is {
			return
		}
		c.Trust(ctx, r.Header.Get("Authorization") == "", func() string {
			caller, _ := recognizer.Recognize(r) // it succeeded before
			return caller.Name
		})
	}
}

// withRequest returns a request with itself in its context.
func withRequest(r *http.Request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), requestKey{}, r))
}

// newObserving returns the server of the second port, which every process on the node can reach.
func newObserving(handler http.Handler, log logr.Logger) *http.Server {
	observers := limits.NewConnections(maxObservers, 0, 0)
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: headerWithin, ReadTimeout: time.Minute, WriteTimeout: time.Minute, IdleTimeout: idleFor, MaxHeaderBytes: maxHeader,
		ConnContext: observers.Open, ConnState: observers.Change, ErrorLog: stdlog.New(errorLog{log}, "", 0),
	}
}

// errorLog writes the messages of net/http to the log, for example about failed handshakes. Every client of the
// port can cause them.
type errorLog struct{ logr.Logger }

// Write implements io.Writer.
func (l errorLog) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("panic serving")) { // with the stack; net/http recovers from it
		l.Error(nil, "A handler panicked", "message", string(p))
	} else {
		l.V(2).Info("HTTP server", "message", string(p))
	}
	return len(p), nil
}
