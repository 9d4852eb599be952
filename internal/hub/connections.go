package hub

import (
	"bytes"
	"container/list"
	"context"
	"crypto/tls"
	stdlog "log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/hub/identity"
)

const (
	// maxStrangers bounds the connections whose client has not shown yet who it is. Whatever runs on the
	// node can open them.
	maxStrangers = 256
	// maxOfIdentity bounds the connections of an identity that is not the node, and maxOthers those of all
	// of them together.
	maxOfIdentity, maxOthers = 64, 256
	// maxObservers bounds the connections of the second port.
	maxObservers = 64
)

// connections closes connections when there are too many: of strangers those first that have been open
// for the longest time, of an identity those that have no request. Those of the node are not bounded:
// the kubelet shows its certificate at once.
type connections struct {
	// max bounds the connections of strangers.
	max int

	mu  sync.Mutex
	all map[net.Conn]*connection
	// of has the connections of each identity, the oldest first. "" is that of strangers.
	of map[string]*list.List
	// others is the number of connections of identities.
	others int
}

// connection is one that is bounded.
type connection struct {
	conn net.Conn
	who  string
	at   *list.Element // in connections.of[who]
	idle bool
}

type connectionKey struct{}

// open adds a connection: see http.Server.ConnContext.
func (c *connections) open(ctx context.Context, conn net.Conn) context.Context {
	c.mu.Lock()
	if c.all == nil {
		c.all, c.of = map[net.Conn]*connection{}, map[string]*list.List{}
	}
	one := &connection{conn: conn}
	c.all[conn] = one
	c.addLocked(one, "")
	var surplus *connection
	if strangers := c.of[""]; strangers.Len() > c.max {
		surplus = strangers.Front().Value.(*connection)
		c.removeLocked(surplus)
	}
	c.mu.Unlock()
	surplus.close()
	return context.WithValue(ctx, connectionKey{}, conn)
}

// change notes that a connection has no request, or that it is over: see http.Server.ConnState.
func (c *connections) change(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.all[conn]
	if one == nil {
		return
	}
	one.idle = state == http.StateIdle
	if state == http.StateClosed || state == http.StateHijacked {
		c.removeLocked(one)
	}
}

// trust tells that the client of the connection of ctx has shown who it is: the node, or an identity
// that name returns. Another identity that uses the same connection later makes no difference.
func (c *connections) trust(ctx context.Context, isNode bool, name func() string) {
	conn, is := ctx.Value(connectionKey{}).(net.Conn)
	if !is {
		return
	}
	c.mu.Lock()
	one := c.all[conn]
	var surplus *connection
	switch {
	case one == nil: // it is that of the node, or over
	case isNode:
		c.removeLocked(one)
	case one.who == "":
		surplus = c.assignLocked(one, name())
	}
	c.mu.Unlock()
	surplus.close()
}

// assignLocked makes a connection that of an identity, and returns one that is to be closed, or nil.
func (c *connections) assignLocked(one *connection, who string) *connection {
	c.dropLocked(one)
	c.addLocked(one, who)
	from := c.of[who]
	if c.others > maxOthers {
		for who, of := range c.of {
			if who != "" && of.Len() > from.Len() {
				from = of
			}
		}
	} else if from.Len() <= maxOfIdentity {
		return nil
	}
	surplus := from.Front().Value.(*connection)
	for at := from.Front(); at != nil; at = at.Next() {
		if it := at.Value.(*connection); it.idle {
			surplus = it
			break
		}
	}
	c.removeLocked(surplus)
	return surplus
}

func (c *connections) addLocked(one *connection, who string) {
	if c.of[who] == nil {
		c.of[who] = list.New()
	}
	one.who, one.at = who, c.of[who].PushBack(one)
	if who != "" {
		c.others++
	}
}

// dropLocked takes a connection from its identity.
func (c *connections) dropLocked(one *connection) {
	of := c.of[one.who]
	of.Remove(one.at)
	if of.Len() == 0 {
		delete(c.of, one.who)
	}
	if one.who != "" {
		c.others--
	}
}

// removeLocked ends that a connection is bounded.
func (c *connections) removeLocked(one *connection) {
	c.dropLocked(one)
	delete(c.all, one.conn)
}

// close closes a connection, if it is one, at once: tls.Conn.Close would wait for a client that does not
// read.
func (one *connection) close() {
	if one == nil {
		return
	}
	if secure, is := one.conn.(*tls.Conn); is {
		_ = secure.NetConn().Close()
		return
	}
	_ = one.conn.Close()
}

type requestKey struct{}

// known returns proxy.Proxy.Trust. It needs the request of each context: see withRequest.
func (c *connections) known(recognizer *identity.Recognizer) func(context.Context) {
	return func(ctx context.Context) {
		r, is := ctx.Value(requestKey{}).(*http.Request)
		if !is {
			return
		}
		c.trust(ctx, r.Header.Get("Authorization") == "", func() string {
			caller, _ := recognizer.Recognize(r) // it has been recognized before
			return caller.Name
		})
	}
}

// withRequest returns a request whose context has it.
func withRequest(r *http.Request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), requestKey{}, r))
}

// newObserving returns the server of the second port, which everybody on the node can reach.
func newObserving(handler http.Handler, log logr.Logger) *http.Server {
	observers := &connections{max: maxObservers}
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: headerWithin, ReadTimeout: time.Minute, WriteTimeout: time.Minute, IdleTimeout: idleFor, MaxHeaderBytes: maxHeader,
		ConnContext: observers.open, ConnState: observers.change, ErrorLog: stdlog.New(errorLog{log}, "", 0),
	}
}

// errorLog writes the messages of net/http to the log, for example about failed handshakes. Anybody
// who reaches the port can cause them.
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
