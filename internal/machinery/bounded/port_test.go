package bounded

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// serve runs a port whose handler answers "ok" once it has read the body. It returns its
// address and the number of connections that count.
func serve(t *testing.T, change func(*Port)) (address string, count func() int64) {
	t.Helper()
	p := &Port{Name: "test", Address: "127.0.0.1:0", Log: logr.Discard(), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			fmt.Fprint(w, "ok ", r.Proto)
		}
	}), Connections: 16, RequestTime: 10 * time.Second}
	if change != nil {
		change(p)
	}
	config := p.TLS
	p.TLS = nil
	l, err := p.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	counted := l.(*listener).connections
	address = l.Addr().String()
	if config != nil {
		p.TLS = config
		l = tls.NewListener(l, p.tls())
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return address, counted.Used
}

// dial connects from 127.0.0.<from> and sends the text.
func dial(t *testing.T, address string, from byte, text string) net.Conn {
	t.Helper()
	conn, err := tryDial(t, address, from, text)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// tryDial is dial for a connection that the server may refuse: it is then reset at once, or
// before the text is sent, or afterwards.
func tryDial(t *testing.T, address string, from byte, text string) (net.Conn, error) {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, from)}}
	conn, err := dialer.DialContext(t.Context(), "tcp", address)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, text)
	return conn, err
}

// answered returns whether a whole request from an address is answered.
func answered(t *testing.T, address string, from byte) bool {
	t.Helper()
	conn, err := tryDial(t, address, from, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	if err != nil {
		return false
	}
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	_ = conn.Close()
	return response.StatusCode == http.StatusOK
}

// closes waits until the server closes a connection, and returns after how long.
func closes(t *testing.T, conn net.Conn) time.Duration {
	t.Helper()
	start := time.Now()
	_ = conn.SetReadDeadline(start.Add(time.Minute))
	if _, err := io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
		t.Fatal("the server keeps the connection")
	}
	return time.Since(start)
}

// TestHalfOpenConnectionsLeaveRoomForOthers: a hundred connections on which nothing is sent take
// 3/8 of the port, and only for as long as headers may take.
func TestHalfOpenConnectionsLeaveRoomForOthers(t *testing.T) {
	address, count := serve(t, nil)
	var open []net.Conn
	for range 100 {
		if conn, err := tryDial(t, address, 2, ""); err == nil {
			open = append(open, conn)
		}
	}
	build.Eventually(t, "the caller has its share", func() bool { return count() == 6 })
	if answered(t, address, 2) {
		t.Error("a caller with its share of the connections gets one more")
	}
	for range 20 {
		if !answered(t, address, 3) {
			t.Fatal("another caller is refused")
		}
	}
	for _, conn := range open {
		closes(t, conn)
	}
	build.Eventually(t, "the connections are given back", func() bool { return count() == 0 })
	if !answered(t, address, 2) {
		t.Error("the caller is refused afterwards")
	}
}

// TestManyCallersLeaveRoomForOneMore however much they ask for.
func TestManyCallersLeaveRoomForOneMore(t *testing.T) {
	address, count := serve(t, func(p *Port) { p.Connections = 100 })
	for from := byte(2); from < 11; from++ {
		for range 100 {
			_, _ = tryDial(t, address, from, "")
		}
	}
	build.Eventually(t, "the callers have their shares", func() bool { return count() >= 75 })
	// The server counts a connection until it has closed it, which is after the client has
	// read the answer: the next one is not tried before.
	before := count()
	for range 20 {
		if !answered(t, address, 77) {
			t.Fatal("another caller is refused")
		}
		build.Eventually(t, "the connection is given back", func() bool { return count() <= before })
	}
}

// TestOwnProbesPassWhenThePortIsFull: the process reaches its own port while others use up the
// port. Its own probes decide whether it gets requests at all.
func TestOwnProbesPassWhenThePortIsFull(t *testing.T) {
	address, count := serve(t, func(p *Port) { p.Connections = 4 })
	for from := byte(2); from < 9; from++ {
		for range 4 {
			_, _ = tryDial(t, address, from, "")
		}
	}
	build.Eventually(t, "the port is full", func() bool { return count() == 4 })
	if answered(t, address, 9) {
		t.Error("the port is not full")
	}
	for range 10 {
		if !answered(t, address, 1) {
			t.Fatal("the process does not reach itself")
		}
	}
}

// TestAPortWithoutOwnProbesCountsItsOwnMachine: any pod with hostNetwork is there, and has all addresses of loopback.
func TestAPortWithoutOwnProbesCountsItsOwnMachine(t *testing.T) {
	address, count := serve(t, func(p *Port) { p.Connections, p.NoOwnProbes = 4, true })
	for from := byte(1); from < 20; from++ {
		_, _ = tryDial(t, address, from, "")
	}
	build.Eventually(t, "connections are counted", func() bool { return count() > 0 && count() < 4 })
	for from := byte(1); from < 20; from++ {
		if answered(t, address, from) {
			t.Errorf("its own machine has more than its share, from its address %d", from)
		}
	}
}

// TestASlowClientIsCutOff: one that sends a byte a second, in the TLS handshake, in the
// headers or in the body, or that does not read the answer.
func TestASlowClientIsCutOff(t *testing.T) {
	certified := httptest.NewTLSServer(nil)
	certified.Close()
	config := &tls.Config{Certificates: certified.TLS.Certificates, MinVersion: tls.VersionTLS13}
	var large atomic.Int64
	for name, tc := range map[string]struct {
		port   func(*Port)
		begins string
	}{
		"handshake": {func(p *Port) { p.TLS = config }, "\x16\x03\x01\x00\xff"},
		"headers":   {nil, "GET / HTTP/1.1\r\nHost: x\r\nX: "},
		"body":      {func(p *Port) { p.RequestTime = headerTime }, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"},
		"answer": {func(p *Port) {
			p.ResponseTime = headerTime
			p.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				for err := error(nil); err == nil; { // until the server gives up
					var n int
					n, err = w.Write(make([]byte, 1<<20))
					large.Add(int64(n))
				}
			})
		}, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, count := serve(t, tc.port)
			conn := dial(t, address, 2, tc.begins)
			build.Eventually(t, "the connection counts", func() bool { return count() == 1 })
			if name != "answer" {
				go func() { // ends with the connection
					for range time.Tick(100 * time.Millisecond) {
						if _, err := conn.Write([]byte("a")); err != nil {
							return
						}
					}
				}()
			}
			build.Eventually(t, "the connection is cut off", func() bool { return count() == 0 })
		})
	}
}

// TestHeadersAreBounded in their size.
func TestHeadersAreBounded(t *testing.T) {
	address, _ := serve(t, nil)
	conn := dial(t, address, 2, "GET / HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", 2*maxHeader)+"\r\n\r\n")
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("answered %d", response.StatusCode)
	}
}

// TestRefusedRequestsEndTheConnection: who is refused waits for a handshake before the next
// request, or at least connects again. A port can end each connection after one request.
func TestRefusedRequestsEndTheConnection(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /found", func(w http.ResponseWriter, _ *http.Request) {
		if err := http.NewResponseController(w).SetReadDeadline(time.Time{}); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	for name, tc := range map[string]struct {
		once    bool
		request string
		length  int // of a body that is not sent
		stays   bool
	}{
		"served":         {request: "GET /found", stays: true},
		"served once":    {once: true, request: "GET /found"},
		"unknown path":   {request: "GET /nowhere"},
		"another method": {request: "POST /found"},
		"redirected":     {request: "GET //found"},
		"OPTIONS":        {request: "OPTIONS *"},
		"body not sent":  {request: "POST /nowhere", length: 1000},
	} {
		t.Run(name, func(t *testing.T) {
			address, _ := serve(t, func(p *Port) { p.Once, p.Handler, p.RequestTime = tc.once, mux, time.Second })
			request := tc.request + " HTTP/1.1\r\nHost: x\r\n"
			if tc.length > 0 {
				request += fmt.Sprintf("Content-Length: %d\r\n", tc.length)
			}
			request += "\r\n"
			conn := dial(t, address, 2, request+request)
			_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
			reader := bufio.NewReader(conn)
			response, err := http.ReadResponse(reader, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, response.Body); err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if refused := response.StatusCode >= 300; refused != !strings.HasPrefix(name, "served") {
				t.Errorf("answered %d", response.StatusCode)
			}
			second, err := http.ReadResponse(reader, nil)
			if err == nil {
				_ = second.Body.Close()
			}
			if stays := err == nil; stays != tc.stays {
				t.Errorf("a second request is answered: %t, %v", stays, err)
			}
		})
	}
}

// TestAPortThatEndsLosesNoRequest: a client sends one request after the other. When the port ends, an answer closes
// the connection, and until then, and from new connections, every request is answered.
func TestAPortThatEndsLosesNoRequest(t *testing.T) {
	for name, streams := range map[string]int{"HTTP/1.1": 0, "HTTP/2": 4} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewUnstartedServer(nil)
			server.EnableHTTP2 = streams > 0
			server.StartTLS()
			defer server.Close()
			p := &Port{
				Name: "test", Address: "127.0.0.1:0", Log: logr.Discard(), TLS: server.TLS, Connections: 16, Streams: streams, Linger: 3 * time.Second,
				Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RemoteAddr) }),
			}
			l, err := p.Listen(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ctx, end := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- p.Serve(ctx, l) }()
			from := func() string {
				t.Helper()
				response, err := server.Client().Post("https://"+l.Addr().String(), "text/plain", strings.NewReader("x"))
				if err != nil {
					t.Fatal(err)
				}
				defer response.Body.Close()
				text, err := io.ReadAll(response.Body)
				if err != nil {
					t.Fatal(err)
				}
				return string(text)
			}
			first := from()
			if again := from(); again != first {
				t.Fatalf("the second request came from %s, and the first from %s", again, first)
			}
			end()
			build.Eventually(t, "another connection is used", func() bool { return from() != first })
			server.Client().CloseIdleConnections()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestProbesTakeTurns: a client with many probes delays one of another by a turn. None is
// refused, also if its own address uses up all turns: the replica would be restarted.
func TestProbesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(2)
		hold := make(chan struct{})
		handler := InTurn(turns, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/waits" {
				<-hold
			}
		}))
		call := func(from, path string) (code int, after time.Duration) {
			began := time.Now()
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
			r.RemoteAddr = from
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			return w.Code, time.Since(began)
		}
		for range 10 {
			go call("10.0.0.1:1", "/waits")
		}
		if code, after := call("10.0.0.2:1", "/"); code != http.StatusOK || after > roomAfter {
			t.Errorf("another client is answered %d after %s", code, after)
		}
		close(hold)
		synctest.Wait()
		turns.Longest = time.Hour
		ctx, cancel := context.WithCancel(t.Context())
		flood(ctx, turns, caller(1), 1500, false, 2*time.Millisecond) // caller 1 is 10.0.0.1
		synctest.Wait()
		if code, after := call("10.0.0.1:1", "/"); code != http.StatusOK || after > probeTime {
			t.Errorf("behind a flood from its address a probe is answered %d after %s", code, after)
		}
		ends(t, turns, cancel)
	})
}

// TestPortEnforcesItsHTTPVersion: the port enforces its HTTP version, also for a client that
// prefers another.
func TestPortEnforcesItsHTTPVersion(t *testing.T) {
	for name, tc := range map[string]struct {
		streams int
		want    string
	}{
		"HTTP/1.1 only": {0, "ok HTTP/1.1"},
		"HTTP/2":        {4, "ok HTTP/2.0"},
	} {
		t.Run(name, func(t *testing.T) {
			certified := httptest.NewTLSServer(nil)
			certified.Close()
			address, _ := serve(t, func(p *Port) {
				p.Streams, p.TLS = tc.streams, &tls.Config{Certificates: certified.TLS.Certificates, MinVersion: tls.VersionTLS13}
			})
			transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // the server is this process
			defer transport.CloseIdleConnections()
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			response, err := transport.RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			if body, err := io.ReadAll(response.Body); string(body) != tc.want || err != nil {
				t.Errorf("answered %q, %v", body, err)
			}
		})
	}
}

// TestRequestsAtATimeAreBounded for each caller.
func TestRequestsAtATimeAreBounded(t *testing.T) {
	hold := make(chan struct{})
	var running atomic.Int64
	handler := AtOnce("test", 6, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		running.Add(1)
		defer running.Add(-1)
		if r.RemoteAddr == "10.0.0.1:1" {
			<-hold
		}
	}))
	call := func(from string) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		r.RemoteAddr = from
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}
	done := make(chan int)
	for range 2 {
		go func() { done <- call("10.0.0.1:1") }()
	}
	build.Eventually(t, "both requests run", func() bool { return running.Load() == 2 })
	if code := call("10.0.0.1:2"); code != http.StatusTooManyRequests {
		t.Errorf("a third request at a time is answered %d", code)
	}
	if code := call("10.0.0.2:1"); code != http.StatusOK {
		t.Errorf("another caller is answered %d", code)
	}
	close(hold)
	for range 2 {
		if code := <-done; code != http.StatusOK {
			t.Errorf("answered %d", code)
		}
	}
	if code := call("10.0.0.1:2"); code != http.StatusOK {
		t.Errorf("afterwards the caller is answered %d", code)
	}
}

// TestBytesOfBodiesAreBounded for each caller, from when they are read until the answer.
func TestBytesOfBodiesAreBounded(t *testing.T) {
	var inner http.Handler
	var read error
	handler := Bodies("test", 100, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, read = io.ReadAll(r.Body)
		if inner != nil {
			next := inner
			inner = nil
			next.ServeHTTP(w, r)
		}
	}))
	call := func(from string, n int) error {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(strings.Repeat("x", n)))
		r.RemoteAddr = from
		handler.ServeHTTP(httptest.NewRecorder(), r)
		return read
	}
	inner = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { // while 30 bytes count
		if err := call("10.0.0.1:1", 11); err != ErrBusy { //nolint:errorlint // it is returned as it is
			t.Errorf("11 more bytes are read: %v", err)
		}
		if err := call("10.0.0.2:1", 20); err != nil {
			t.Errorf("20 bytes of another caller: %v", err)
		}
	})
	if err := call("10.0.0.1:1", 30); err != nil && err != ErrBusy { //nolint:errorlint // the inner calls replace it
		t.Error(err)
	}
	if err := call("10.0.0.1:1", 37); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// TestHandshakesInTurnVerifyCertificates: what the configuration of the port verifies, or the
// one that it chooses for a client, is verified. Turns are given back however a handshake ends.
func TestHandshakesInTurnVerifyCertificates(t *testing.T) {
	certified := httptest.NewTLSServer(nil)
	certified.Close()
	base := func() *tls.Config {
		return &tls.Config{Certificates: certified.TLS.Certificates, MinVersion: tls.VersionTLS13}
	}
	refuse := func(tls.ConnectionState) error { return errors.New("refused") }
	for name, tc := range map[string]struct {
		change func(*tls.Config)
		served bool
	}{
		"nothing more":         {func(*tls.Config) {}, true},
		"the port refuses":     {func(c *tls.Config) { c.VerifyConnection = refuse }, false},
		"no client is refused": {func(c *tls.Config) { c.VerifyConnection = func(tls.ConnectionState) error { return nil } }, true},
		"the chosen one refuses": {func(c *tls.Config) {
			chosen := base()
			chosen.VerifyConnection = refuse
			c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return chosen, nil }
		}, false},
		"none is chosen": {func(c *tls.Config) {
			c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, nil }
		}, true},
		"choosing fails": {func(c *tls.Config) {
			c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, errors.New("refused") }
		}, false},
		"a certificate is required": {func(c *tls.Config) { c.ClientAuth = tls.RequireAnyClientCert }, false},
	} {
		t.Run(name, func(t *testing.T) {
			config := base()
			tc.change(config)
			address, _ := serve(t, func(p *Port) { p.TLS = config })
			transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // the server is this process
			defer transport.CloseIdleConnections()
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			response, err := transport.RoundTrip(request)
			if err == nil {
				_ = response.Body.Close()
			}
			if served := err == nil; served != tc.served {
				t.Errorf("served: %t, %v", served, err)
			}
			_ = dial(t, address, 2, "\x16\x03\x01").Close() // a handshake that ends early
			turns := SharedTurns()
			build.Eventually(t, "all turns are given back", func() bool {
				turns.mu.Lock()
				defer turns.mu.Unlock()
				return len(turns.sizes[small].callers) == 0
			})
		})
	}
}
