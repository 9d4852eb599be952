package extender

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// lossyHost dials a server. After cut, whatever is sent on the connections that exist is
// lost, and they stay open: like the connections to a host that has failed.
type lossyHost struct {
	mu    sync.Mutex
	conns []*lossyConn
}

type lossyConn struct {
	net.Conn
	cut atomic.Bool
}

func (c *lossyConn) Write(p []byte) (int, error) {
	if c.cut.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (h *lossyHost) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns = append(h.conns, &lossyConn{Conn: conn})
	return h.conns[len(h.conns)-1], nil
}

func (h *lossyHost) cut() (connections int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.conns {
		c.cut.Store(true)
	}
	return len(h.conns)
}

// serve runs a server on a free port. It returns its address and the TLS configuration of a
// client that trusts it.
func serve(t *testing.T, handler http.Handler) (address string, client *tls.Config) {
	t.Helper()
	certified := httptest.NewTLSServer(nil)
	certified.Close() // only its certificate is needed
	roots := x509.NewCertPool()
	roots.AddCert(certified.Certificate())
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = free.Addr().String()
	_ = free.Close()
	server := NewServer(address, &tls.Config{Certificates: certified.TLS.Certificates, MinVersion: tls.VersionTLS13}, handler, logr.Discard())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return address, &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}
}

// TestClientDropsALostHostAfterFewCalls uses an HTTP client that is configured as
// kube-scheduler's.
func TestClientDropsALostHostAfterFewCalls(t *testing.T) {
	address, trust := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	host := &lossyHost{}
	transport := utilnet.SetTransportDefaults(&http.Transport{TLSClientConfig: trust, DialContext: host.dial})
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	call := func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, response.Body)
		if response.ProtoMajor != 2 {
			t.Errorf("the server speaks %s", response.Proto)
		}
		_ = response.Body.Close()
		return err
	}
	deadline := time.Now().Add(time.Minute)
	for err := call(t.Context()); err != nil; err = call(t.Context()) { // the server may not listen yet
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	for range 20 {
		if err := call(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := host.cut(); n > 2 {
		t.Errorf("%d connections for calls that came one after the other", n)
	}
	// A call is cancelled as soon as it was sent on a lost connection. A timeout would not
	// do: a slow machine may need longer than that to send it.
	lost := 0
	for ; lost < 2*callsAtOnce; lost++ {
		ctx, cancel := context.WithCancel(t.Context())
		onLost := false
		err := call(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
			GotConn: func(info httptrace.GotConnInfo) {
				secure, is := info.Conn.(*tls.Conn)
				onLost = is && secure.NetConn().(*lossyConn).cut.Load()
			},
			WroteRequest: func(httptrace.WroteRequestInfo) {
				if onLost {
					cancel()
				}
			},
		}))
		cancel()
		if err == nil {
			break
		}
	}
	// On a busy machine the client does not count every call whose end meets its sending.
	if lost == 2*callsAtOnce {
		t.Errorf("%d calls were sent on a lost connection, want about %d", lost, callsAtOnce)
	}
}
