package hub

import (
	"bytes"
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"

	"github.com/go-logr/logr"
)

// maxStrangers bounds the connections whose client has not shown yet who it is. Whatever runs on the
// node can open them.
const maxStrangers = 256

// connections closes connections of strangers when there are too many, those first that have been
// open for the longest time. The kubelet shows its certificate at once, so its connection is none of
// them.
type connections struct {
	mu        sync.Mutex
	strangers list.List // of net.Conn, the oldest first
	at        map[net.Conn]*list.Element
}

type connectionKey struct{}

// open adds a connection: see http.Server.ConnContext.
func (c *connections) open(ctx context.Context, conn net.Conn) context.Context {
	c.mu.Lock()
	if c.at == nil {
		c.at = map[net.Conn]*list.Element{}
	}
	c.at[conn] = c.strangers.PushBack(conn)
	var oldest net.Conn
	if c.strangers.Len() > maxStrangers {
		oldest = c.strangers.Front().Value.(net.Conn)
		c.removeLocked(oldest)
	}
	c.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close()
	}
	return context.WithValue(ctx, connectionKey{}, conn)
}

// change removes a connection that is over: see http.Server.ConnState.
func (c *connections) change(conn net.Conn, state http.ConnState) {
	if state == http.StateClosed || state == http.StateHijacked {
		c.remove(conn)
	}
}

// trust tells that the client of the connection of ctx has shown who it is.
func (c *connections) trust(ctx context.Context) {
	if conn, is := ctx.Value(connectionKey{}).(net.Conn); is {
		c.remove(conn)
	}
}

func (c *connections) remove(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(conn)
}

func (c *connections) removeLocked(conn net.Conn) {
	if at := c.at[conn]; at != nil {
		c.strangers.Remove(at)
		delete(c.at, conn)
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
