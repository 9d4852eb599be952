package proxy

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/limits"
	"github.com/atoll-k8s/atoll/internal/hub/uplink"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestSlowRequestBodyDoesNotMeanOffline: its client gets an error.
func TestSlowRequestBodyDoesNotMeanOffline(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		for path, want := range map[string]int{
			"/api/v1/namespaces/x/configmaps": http.StatusRequestTimeout, "/api/v1/namespaces/x/pods/y/proxy/": 0,
			reviewsPath: http.StatusRequestTimeout, reviewsPath + "?known": http.StatusRequestTimeout,
		} {
			t.Run(fmt.Sprint("HTTP/2 ", http2, path), func(t *testing.T) {
				t.Parallel()
				n, up := newNodeWithUplink(t, needsBodies)
				if strings.HasSuffix(path, "?known") {
					n.Tokens.Accepted(reader.Token, time.Now())
				}
				hub := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { n.answer(w, r, reader) }))
				hub.EnableHTTP2 = http2
				hub.StartTLS()
				defer hub.Close()
				var all sync.WaitGroup
				for range 3 {
					all.Go(func() {
						if code := post(t, hub, path); code != want {
							t.Errorf("the answer is %d, want %d", code, want)
						}
					})
				}
				all.Wait()
				for _, in := range []*limits.Requests{n.limits.answers, n.limits.strangers, n.limits.strangeStreams} {
					build.Eventually(t, "the slots are given back", func() bool { return in.Taken() == 0 })
				}
				if e, why := up.Evidence(); e.State != uplink.Online || e.Failures != 0 {
					t.Errorf("the cloud is %s after %d failures: %v", e.State, e.Failures, why)
				}
			})
		}
	}
}

// needsBodies is a cloud that needs all of the bodies.
func needsBodies(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	_, _ = w.Write([]byte("{}"))
}

// newNodeWithUplink returns a node with a cloud, and what decides whether that is away. The node has asked it.
func newNodeWithUplink(t *testing.T, answers http.HandlerFunc) (*node, *uplink.Uplink) {
	t.Helper()
	cloud := httptest.NewUnstartedServer(answers)
	cloud.EnableHTTP2 = true
	cloud.StartTLS()
	t.Cleanup(func() {
		cloud.CloseClientConnections()
		cloud.Close()
	})
	server, err := url.Parse(cloud.URL)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(cloud.Certificate())
	up := uplink.New(uplink.Options{
		Servers: []*url.URL{server}, Roots: func() *x509.CertPool { return roots },
		NodeCertificate: func() (*tls.Certificate, error) { return &cloud.TLS.Certificates[0], nil }, Log: logr.Discard(),
	})
	n := newNode(t, wire.JSON)
	n.slowAfter = 200 * time.Millisecond
	n.Proxy.Cloud = up
	if w := n.ask(t.Context(), "/version"); w.Code == http.StatusServiceUnavailable {
		t.Fatalf("the node is answered with %d", w.Code)
	}
	return n, up
}

// post sends half a body: for a service's proxy a damaged one, and otherwise nothing after it. It returns the
// code of the answer; 0 if there is none.
func post(t *testing.T, hub *httptest.Server, path string) int {
	t.Helper()
	from, to := io.Pipe()
	defer to.Close()
	go func() {
		_, _ = to.Write([]byte("{"))
		if strings.Contains(path, "/proxy/") {
			<-time.After(50 * time.Millisecond)
			_ = to.CloseWithError(errors.New("no more"))
		}
	}()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, hub.URL+path, from)
	if err != nil {
		t.Error(err)
		return 0
	}
	response, err := hub.Client().Do(r)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	if text, _ := io.ReadAll(response.Body); response.StatusCode == http.StatusRequestTimeout && !strings.Contains(string(text), "the body did not arrive within") {
		t.Errorf("the answer is %s", text)
	}
	return response.StatusCode
}

func TestDamagedRequestBodyDoesNotMeanOffline(t *testing.T) {
	n, up := newNodeWithUplink(t, needsBodies)
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { n.answer(w, r, reader) }))
	defer hub.Close()
	for range 3 {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", hub.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "POST /api/v1/namespaces/x/pods/y/proxy/ HTTP/1.1\r\nHost: hub\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\nzz\r\n"); err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
	}
	if e, why := up.Evidence(); e.State != uplink.Online || e.Failures != 0 {
		t.Errorf("the cloud is %s after %d failures: %v", e.State, e.Failures, why)
	}
}

// TestRejectedRequestReleasesItsSlot: although its body has not ended.
func TestRejectedRequestReleasesItsSlot(t *testing.T) {
	forger := identity.Caller{Name: "subject:somebody", Token: "forged"}
	for _, http2 := range []bool{false, true} {
		for _, request := range []string{
			"POST " + reviewsPath, "POST /api/v1/namespaces/x/configmaps", "POST /api/v1/namespaces/x/pods/y/proxy/",
			"GET /api/v1/pods?watch=1", "GET /api/v1/pods", "GET /api/v1/pods/namespaces/x/pods/y",
		} {
			t.Run(fmt.Sprint("HTTP/2 ", http2, ", ", request), func(t *testing.T) {
				t.Parallel()
				n, up := newNodeWithUplink(t, func(w http.ResponseWriter, _ *http.Request) {
					w.WriteHeader(http.StatusUnauthorized)
					_, _ = w.Write(make([]byte, 8<<10)) // more than the server gathers
				})
				n.slowAfter = 0
				hub := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { n.answer(w, r, forger) }))
				hub.EnableHTTP2 = http2
				hub.StartTLS()
				defer hub.Close()
				defer hub.CloseClientConnections()
				method, path, _ := strings.Cut(request, " ")
				from, to := io.Pipe()
				defer to.Close()
				go func() { _, _ = to.Write([]byte("{")) }()
				r, err := http.NewRequestWithContext(t.Context(), method, hub.URL+path, from)
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				response, err := hub.Client().Do(r)
				if err != nil {
					t.Fatal(err)
				}
				if response.StatusCode != http.StatusUnauthorized {
					t.Errorf("the answer is %d", response.StatusCode)
				}
				for name, in := range map[string]*limits.Requests{"strangers": n.limits.strangers, "streams of strangers": n.limits.strangeStreams} {
					build.Eventually(t, "the places of "+name+" are given back", func() bool { return in.Taken() == 0 })
				}
				if waited := time.Since(began); waited >= questionWithin {
					t.Errorf("the place is given back after %s", waited)
				}
				_ = response.Body.Close()
				if e, why := up.Evidence(); e.Failures != 0 {
					t.Errorf("there are %d failures of the cloud: %v", e.Failures, why)
				}
			})
		}
	}
}

func TestConnectionIsReusedAfterARefusedRequest(t *testing.T) {
	n, _ := newNodeWithUplink(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusUnprocessableEntity)
	})
	n.slowAfter = 0
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { n.answer(w, r, reader) }))
	defer hub.Close()
	connections := map[string]bool{}
	for i := range 20 {
		for _, path := range []string{reviewsPath, "/api/v1/namespaces/x/configmaps"} {
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { connections[c.Conn.LocalAddr().String()] = true }})
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, hub.URL+path, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			response, err := hub.Client().Do(r)
			if err != nil {
				t.Fatalf("request %d: %v", i, err)
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			if response.StatusCode != http.StatusUnprocessableEntity {
				t.Errorf("the answer is %d", response.StatusCode)
			}
		}
	}
	if len(connections) != 1 {
		t.Errorf("there were %d connections", len(connections))
	}
}

// TestSlowWatchFromTheCacheIsAborted: a normal end among the initial events would look like a complete list.
func TestSlowWatchFromTheCacheIsAborted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, wire.JSON)
		n.answers(2, pod("a", "1", 1, nil), pod("b", "1", 2, nil))
		n.askAs(reader, podsOfNode)
		n.Wait()
		n.cloud.set(true, nil)
		defer func() {
			if recover() == nil {
				t.Error("it ends")
			}
		}()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, podsOfNode+"&watch=1&resourceVersion=0", nil)
		r.Header.Set("Accept", n.format.ContentType())
		n.answer(&slow{httptest.NewRecorder(), localWithin}, r, reader)
	})
}

// slow is the writer of a client that takes its time.
type slow struct {
	*httptest.ResponseRecorder

	each time.Duration
}

func (s *slow) Write(part []byte) (int, error) {
	<-time.After(s.each)
	return s.ResponseRecorder.Write(part)
}

// TestCallerGetsOneLargeDocumentAtATime: a large table or other document is in memory as a whole.
func TestCallerGetsOneLargeDocumentAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, wire.JSON)
		paths := map[string]int{"/api/v1/namespaces/x/pods": http.StatusTooManyRequests, "/openapi/v2": http.StatusTooManyRequests, "/version": http.StatusOK}
		for path, want := range paths {
			size := maxSmall
			if want == http.StatusOK {
				size = 10
			}
			body := `{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1"},"rows":["` + strings.Repeat("x", size) + `"]}`
			n.cloud.set(false, func(*http.Request) (int, string, io.ReadCloser) {
				return http.StatusOK, "application/json", io.NopCloser(strings.NewReader(body))
			})
			n.askAs(reader, path)
			n.Wait()
		}
		n.cloud.set(true, nil)
		in := n.limits.cached
		in.Acquire(t.Context(), reader.Name)
		for path, want := range paths {
			if w := n.askAs(reader, path); w.Code != want {
				t.Errorf("while another is answered, %s is answered with %d, want %d", path, w.Code, want)
			}
		}
		in.Release(reader.Name)
		for path := range paths {
			if w := n.askAs(reader, path); w.Code != http.StatusOK {
				t.Errorf("%s is answered with %d", path, w.Code)
			}
		}
	})
}

// frame is one of HTTP/2.
func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	n := len(payload)
	header := []byte{byte(n >> 16), byte(n >> 8), byte(n), kind, flags, byte(stream >> 24), byte(stream >> 16), byte(stream >> 8), byte(stream)}
	return append(header, payload...)
}

// TestUnreadShortAnswersEnd: although the server sends them after the handler has returned. A client without a
// window leaves nothing in memory.
func TestUnreadShortAnswersEnd(t *testing.T) {
	const streams = 200
	n := newNode(t, wire.JSON)
	n.slowAfter = 100 * time.Millisecond
	answered := make(chan struct{}, streams)
	hub := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.Proxy.ServeHTTP(w, r)
		answered <- struct{}{}
	}))
	hub.EnableHTTP2 = true
	hub.StartTLS()
	defer hub.Close()
	defer hub.CloseClientConnections()
	before := runtime.NumGoroutine()
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}}).DialContext(t.Context(), "tcp", hub.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var out bytes.Buffer
	out.WriteString("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	const settings, headers, windowSize, endStream, endHeaders = 4, 1, 4, 1, 4
	out.Write(frame(settings, 0, 0, []byte{0, windowSize, 0, 0, 0, 0}))
	for i := range uint32(streams) {
		// GET, https, and a literal path and authority: see RFC 7541, appendix A.
		path := fmt.Sprint("/api/v1/namespaces/x/configmaps/", i)
		block := append([]byte{0x82, 0x87, 0x04, byte(len(path))}, path...)
		block = append(append(block, 0x01, 3), "hub"...)
		out.Write(frame(headers, endStream|endHeaders, 2*i+1, block))
	}
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	if _, err := conn.Write(out.Bytes()); err != nil {
		t.Fatal(err)
	}
	for range streams {
		<-answered
	}
	build.Eventually(t, "the answers end", func() bool { return runtime.NumGoroutine() < before+streams/2 })
}
