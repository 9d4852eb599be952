package hub

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/hub/limits"
)

// client is a connection of HTTP/1.1.
type client struct {
	net.Conn

	reader *bufio.Reader
}

func newClient(t *testing.T, conn net.Conn) *client {
	t.Helper()
	t.Cleanup(func() { _ = conn.Close() })
	return &client{conn, bufio.NewReader(conn)}
}

// get asks, and reports whether the answer is 200.
func (c *client) get(path, header string) bool {
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return false
	}
	if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: hub\r\n"+header+"\r\n"); err != nil {
		return false
	}
	response, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	_, err = io.ReadAll(response.Body)
	return err == nil && response.StatusCode == http.StatusOK
}

// TestConnectionsPerIdentityAreBounded: so are those of all identities together. Connections without a request
// are closed first.
func TestConnectionsPerIdentityAreBounded(t *testing.T) {
	r := runHub(t, t.TempDir(), newCloud(t))
	config := r.client.Transport.(*http.Transport).TLSClientConfig.Clone()
	config.NextProtos, config.ServerName = nil, "127.0.0.1"
	open := func(n int, token string) (clients []*client) {
		t.Helper()
		for range n {
			conn, err := tls.Dial("tcp", r.address, config)
			if err != nil {
				t.Fatal(err)
			}
			c := newClient(t, conn)
			for range 2 { // with the first answer the token is known
				if !c.get(configMapsPath, token) {
					t.Fatal("a new connection is not answered")
				}
			}
			clients = append(clients, c)
		}
		return clients
	}
	left := func(clients []*client, token string) (n int) {
		for _, c := range clients {
			if c.get(configMapsPath, token) {
				n++
			}
		}
		return n
	}
	const a, another = "Authorization: Bearer a\r\n", "Authorization: Bearer another\r\n"
	others := open(5, another)
	watching := open(1, a)[0]
	if _, err := io.WriteString(watching, "GET "+configMapsPath+"?watch=1&resourceVersion=1 HTTP/1.1\r\nHost: hub\r\n"+a+"\r\n"); err != nil {
		t.Fatal(err)
	}
	if response, err := http.ReadResponse(watching.reader, nil); err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", response, err)
	} else {
		defer response.Body.Close()
	}
	many := open(maxOfIdentity+20, a)
	if n := left(many[:21], a); n > 0 {
		t.Errorf("%d of the oldest connections of an identity are open", n)
	}
	if n := left(many[21:], a); n != maxOfIdentity-1 {
		t.Errorf("%d connections of an identity are open beside a watch, want %d", n, maxOfIdentity-1)
	}
	if err := watching.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := watching.reader.ReadByte(); err == nil || err == io.EOF {
		t.Errorf("the watch has ended: %v", err)
	}
	for i := range 4 { // with those before they are too many
		open(maxOfIdentity-14, fmt.Sprintf("Authorization: Bearer %d\r\n", i))
	}
	if n := left(others, another); n != len(others) {
		t.Errorf("beside those of others, %d connections of %d of an identity are open", n, len(others))
	}
}

// TestObserverConnectionsAreBounded: the oldest connections of the second port are closed, and idle ones after a
// time.
func TestObserverConnectionsAreBounded(t *testing.T) {
	server := newObserving(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), logr.Discard())
	if server.IdleTimeout <= 0 || server.ReadTimeout <= 0 {
		t.Error("the time of a connection is not bounded")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	var clients []*client
	for range maxObservers + 50 {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, newClient(t, conn))
		if !clients[len(clients)-1].get("/healthz", "") {
			t.Fatal("a new connection is not answered")
		}
	}
	for i, c := range clients {
		if open := c.get("/healthz", ""); open != (i >= 50) {
			t.Errorf("connection %d is open: %t", i, open)
		}
	}
}

// TestUnreadConnectionIsClosed: a client that does not read loses its connection, even if its HTTP/2 windows
// allow any amount. Otherwise the requested data would stay in memory.
func TestUnreadConnectionIsClosed(t *testing.T) {
	if within := (trial{}).http2().WriteByteTimeout; within != limits.TakeWithin {
		t.Errorf("a hub that nobody tests waits %v", within)
	}
	ended := make(chan struct{}, 1)
	cloud := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/x/without/end" {
			return
		}
		for part := make([]byte, 1<<20); r.Context().Err() == nil; {
			_, _ = w.Write(part)
		}
		select {
		case ended <- struct{}{}:
		default: // asked again
		}
	}))
	cloud.EnableHTTP2 = true
	cloud.StartTLS()
	defer cloud.Close()
	r := tryHub(t, t.TempDir(), cloud, trial{takeWithin: 500 * time.Millisecond})
	config := r.client.Transport.(*http.Transport).TLSClientConfig.Clone()
	config.NextProtos, config.ServerName = []string{"h2"}, "127.0.0.1"
	conn, err := tls.Dial("tcp", r.address, config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// The client's settings and a window for the connection, both very large, and a GET: see RFC 9113, section
	// 6, and RFC 7541, appendix A.
	get := "\x82\x87\x04\x0e/x/without/end\x01\x03hub\x00\x0dauthorization\x08Bearer x"
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+
		"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x7f\xff\xff\xff"+
		"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x7f\x00\x00\x00"+
		"\x00\x00"+string(rune(len(get)))+"\x01\x05\x00\x00\x00\x01"+get); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("what nobody takes is still there")
	}
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection is not closed")
	}
}
