package limits

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// Connections limits three numbers of connections: those of unknown clients, which have not proved their
// identity yet, those of each caller, and those of all callers together. Above a limit it closes connections:
// the oldest ones of unknown clients, and of a caller first those without a request in progress. Connections of
// the node are not limited.
type Connections struct {
	unknown, perCaller, total int

	mu  sync.Mutex
	all map[net.Conn]*connection
	// of has the connections of each caller, the oldest first; "" is the key for unknown clients.
	of map[string]*list.List
	// known is the number of connections of all callers, without those of unknown clients.
	known int
}

// NewConnections returns a Connections. If only unknown clients need a limit, perCaller and total may be 0.
func NewConnections(unknown, perCaller, total int) *Connections {
	return &Connections{unknown: unknown, perCaller: perCaller, total: total, all: map[net.Conn]*connection{}, of: map[string]*list.List{}}
}

// connection is a limited connection.
type connection struct {
	conn net.Conn
	who  string
	at   *list.Element // in connections.of[who]
	idle bool
}

type connectionKey struct{}

// Open adds a connection of an unknown client: see http.Server.ConnContext.
func (c *Connections) Open(ctx context.Context, conn net.Conn) context.Context {
	c.mu.Lock()
	one := &connection{conn: conn}
	c.all[conn] = one
	c.addLocked(one, "")
	var surplus *connection
	if unknown := c.of[""]; unknown.Len() > c.unknown {
		surplus = unknown.Front().Value.(*connection)
		c.removeLocked(surplus)
	}
	c.mu.Unlock()
	surplus.close()
	return context.WithValue(ctx, connectionKey{}, conn)
}

// Change records whether a connection has a request in progress, and removes a connection that is closed or
// hijacked: see http.Server.ConnState.
func (c *Connections) Change(conn net.Conn, state http.ConnState) {
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

// Trust records that the client of the connection of ctx has proved its identity: the node, or the caller that
// name returns. If another caller uses the same connection later, nothing changes.
func (c *Connections) Trust(ctx context.Context, isNode bool, name func() string) {
	conn, is := ctx.Value(connectionKey{}).(net.Conn)
	if !is {
		return
	}
	c.mu.Lock()
	one := c.all[conn]
	var surplus *connection
	switch {
	case one == nil: // a connection of the node, or closed
	case isNode:
		c.removeLocked(one)
	case one.who == "":
		surplus = c.assignLocked(one, name())
	}
	c.mu.Unlock()
	surplus.close()
}

// assignLocked assigns a connection to a caller, and returns a connection that must be closed, or nil.
func (c *Connections) assignLocked(one *connection, who string) *connection {
	c.dropLocked(one)
	c.addLocked(one, who)
	from := c.of[who]
	if c.known > c.total {
		for who, of := range c.of {
			if who != "" && of.Len() > from.Len() {
				from = of
			}
		}
	} else if from.Len() <= c.perCaller {
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

func (c *Connections) addLocked(one *connection, who string) {
	if c.of[who] == nil {
		c.of[who] = list.New()
	}
	one.who, one.at = who, c.of[who].PushBack(one)
	if who != "" {
		c.known++
	}
}

// dropLocked removes a connection from its caller.
func (c *Connections) dropLocked(one *connection) {
	of := c.of[one.who]
	of.Remove(one.at)
	if of.Len() == 0 {
		delete(c.of, one.who)
	}
	if one.who != "" {
		c.known--
	}
}

// removeLocked stops counting a connection.
func (c *Connections) removeLocked(one *connection) {
	c.dropLocked(one)
	delete(c.all, one.conn)
}

// close closes a connection immediately: tls.Conn.Close would wait for a client that does not read. It does
// nothing for nil.
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
