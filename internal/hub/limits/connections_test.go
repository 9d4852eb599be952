package limits

import (
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"
)

// TestBusiestCallerLosesAConnection: once there are too many connections, the caller with the most loses one.
// Connections of the node are not limited.
func TestBusiestCallerLosesAConnection(t *testing.T) {
	const total = 256
	c := NewConnections(256, 64, total)
	add := func(caller string) net.Conn {
		t.Helper()
		conn, other := net.Pipe()
		t.Cleanup(func() { _ = conn.Close(); _ = other.Close() })
		ctx := c.Open(t.Context(), conn)
		for range 2 {
			c.Trust(ctx, caller == "", func() string { return caller })
		}
		return conn
	}
	isOpen := func(conn net.Conn) bool { return conn.SetDeadline(time.Time{}) == nil }
	first := add("one")
	var node []net.Conn
	for i := range 10 {
		for range 50 {
			add(fmt.Sprint(i))
			node = append(node, add(""))
		}
	}
	if c.known != total || len(c.all) != total || !isOpen(first) {
		t.Errorf("%d connections, %d in all, the only one of a caller is open: %t", c.known, len(c.all), isOpen(first))
	}
	for _, conn := range node {
		if !isOpen(conn) {
			t.Fatal("a connection of the node is closed")
		}
	}
	for conn := range c.all {
		c.Change(conn, http.StateClosed)
	}
	if c.known != 0 || len(c.all)+len(c.of) != 0 {
		t.Errorf("%d connections of %d callers are left", c.known, len(c.of))
	}
}
