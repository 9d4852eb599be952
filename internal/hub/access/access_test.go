package access

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/hub/kubelet"
	"github.com/atoll-k8s/atoll/internal/machinery/certs"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// node is a port before a kubelet that is a handler.
type node struct {
	*testing.T

	ca      certs.Pair
	port    *Port
	address string
	// passed are the requests that the kubelet has got.
	mu     sync.Mutex
	passed []*http.Request
	// caMissing and now are what the port sees.
	caMissing error
	now       time.Time
	// refuses is whether the kubelet refuses everybody, and tried how often the port has tried that itself.
	refuses bool
	tried   int
}

func newCA(t *testing.T) certs.Pair {
	t.Helper()
	ca, err := certs.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// start serves a port at an address.
func start(t *testing.T, address string, changes ...func(*node)) *node {
	t.Helper()
	n := &node{T: t, ca: newCA(t), now: time.Now()}
	for _, change := range changes {
		change(n)
	}
	kubeletServer := httptest.NewTLSServer(http.HandlerFunc(n.kubelet))
	t.Cleanup(kubeletServer.Close)
	file := filepath.Join(t.TempDir(), "kubelet.crt")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: kubeletServer.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	serving, err := certs.Issue(n.ca, certs.Leaf{CommonName: "system:node:a", Names: []string{"127.0.0.1"}}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(serving.Cert, serving.Key)
	if err != nil {
		t.Fatal(err)
	}
	n.port = New(Options{
		Address: address, Log: logr.Discard(), Kubelet: kubelet.New("a", strings.TrimPrefix(kubeletServer.URL, "https://"), file),
		Certificate: func() (*tls.Certificate, error) { return &pair, nil },
		CA: func() ([]byte, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.ca.Cert, n.caMissing
		},
		Now: func() time.Time {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.now
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.port.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Error("the port does not end")
		}
	})
	return n
}

// kubelet streams what it gets back, in capitals, if it is asked for a stream.
func (n *node) kubelet(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	refuses := n.refuses
	if r.Header.Get("User-Agent") == "Go-http-client/1.1" && r.URL.Path == "/metrics/resource" { // whom ask() speaks for has none
		n.tried++
	} else {
		n.passed = append(n.passed, r)
	}
	n.mu.Unlock()
	if refuses {
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
		return
	}
	protocol := r.Header.Get("Upgrade")
	if protocol == "" {
		_, _ = io.WriteString(w, "first\n")
		_ = http.NewResponseController(w).Flush()
		if r.URL.Query().Get("follow") == "true" {
			<-r.Context().Done()
		}
		return
	}
	conn, both, err := http.NewResponseController(w).Hijack()
	if err != nil {
		n.Error(err)
		return
	}
	defer conn.Close()
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", protocol)
	for {
		line, err := both.ReadString('\n')
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, strings.ToUpper(line))
	}
}

// until waits until the port is served, or is not.
func (n *node) until(served bool) {
	n.Helper()
	build.Eventually(n, "the port is as it should be", func() bool {
		address, _ := n.port.State()
		n.address = address
		return (address != "") == served
	})
}

// client returns the TLS configuration of who has a certificate of a CA.
func (n *node) client(ca certs.Pair, leaf certs.Leaf, period certs.Period) *tls.Config {
	n.Helper()
	pair, err := certs.IssueFor(ca, leaf, period)
	if err != nil {
		n.Fatal(err)
	}
	own, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		n.Fatal(err)
	}
	config := n.stranger()
	config.Certificates = []tls.Certificate{own}
	return config
}

func (n *node) stranger() *tls.Config {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(n.ca.Cert)
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: "127.0.0.1"}
}

var hour = certs.Period{From: time.Now().Add(-time.Hour), To: time.Now().Add(time.Hour)}

func (n *node) apiServer() *tls.Config {
	return n.client(n.ca, certs.Leaf{CommonName: "kube-apiserver", Groups: []string{governance.APIServerGroup}}, hour)
}

// ask sends a request by hand, with any path, and returns the code and the body; 0 if the handshake fails.
func (n *node) ask(config *tls.Config, method, target string) (code int, body string) {
	n.Helper()
	conn, err := tls.Dial("tcp", n.address, config)
	if err != nil {
		return 0, err.Error()
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	_, _ = fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer theirs\r\nImpersonate-User: root\r\nX-Remote-User: root\r\nContent-Length: 0\r\n\r\n", method, target)
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		return 0, err.Error() // of TLS 1.3, a client hears of its refusal here
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(text)
}

// TestOnlyAllowedPathsReachTheKubelet: logs, exec, attach, port-forward and metrics do. The kubelet gets the
// hub's token, and no header that names the client.
func TestOnlyAllowedPathsReachTheKubelet(t *testing.T) {
	n := start(t, "127.0.0.1:0")
	n.until(true)
	config := n.apiServer()
	for _, request := range []string{
		"GET /containerLogs/default/web-0/c?tailLines=3", "POST /exec/default/web-0/c?command=ls", "GET /exec/default/web-0/c?command=%2Fbin%2Fls",
		"POST /attach/default/web.0/c", "GET /containerLogs/atoll-pools/coordinator-0/writer", "POST /portForward/default/web-0", "GET /portForward/default/web-0", "GET /stats/summary", "GET /metrics/resource",
	} {
		method, target, _ := strings.Cut(request, " ")
		n.passed = nil
		if code, body := n.ask(config, method, target); code != http.StatusOK || body != "first\n" {
			t.Errorf("%s is answered %d %s", request, code, body)
			continue
		}
		got := n.passed[0]
		if got.Method != method || got.RequestURI != target || !strings.HasPrefix(got.Header.Get("Authorization"), "Bearer ") || strings.Contains(got.Header.Get("Authorization"), "theirs") || len(got.Header.Values("Authorization")) != 1 {
			t.Errorf("the kubelet gets %s %s %v", got.Method, got.RequestURI, got.Header)
		}
		for _, name := range []string{"Impersonate-User", "X-Remote-User"} {
			if got.Header.Get(name) != "" {
				t.Errorf("the kubelet gets %s", name)
			}
		}
	}
	n.passed = nil
	for _, request := range []string{
		"POST /exec/atoll-pools/coordinator-0/writer", "POST /attach/atoll-pools/coordinator-0/etcd", "POST /portForward/atoll-pools/coordinator-0", "GET /exec/atoll-pools/coordinator-0/etcd",
		"GET /", "GET /pods", "GET /runningpods/", "GET /configz", "GET /healthz", "GET /metrics", "GET /metrics/cadvisor", "GET /stats", "GET /stats/summary/", "GET /logs/", "GET /debug/pprof/",
		"POST /run/default/web-0/c", "POST /checkpoint/default/web-0/c", "POST /stats/summary", "HEAD /stats/summary", "DELETE /containerLogs/default/web-0/c", "PUT /exec/default/web-0/c", "OPTIONS /exec/default/web-0/c",
		"GET /containerLogs/default/web-0", "GET /containerLogs/default/web-0/c/d", "POST /exec/default/web-0/uid/c", "GET /containerLogs//web-0/c", "GET /containerLogs/default/web-0/",
		"GET /containerLogs/default/../../pods", "GET /containerLogs/default/%2e%2e/c", "GET /containerLogs/default/web-0%2f..%2f../c", "GET /containerLogs/default/a%2Fb/c", "GET /containerLogs/./web-0/c",
		"GET //containerLogs/default/web-0/c", "GET /containerLogs/default/web-0/c%00", "GET /%63ontainerLogs/default/web-0/c", "GET /containerLogs/Default/web-0/c", "GET /containerLogs/default/web-0/..;",
		"GET /containerLogs/default/web-0/c%3ftail", "GET http://other/pods", "GET https://127.0.0.1/run/default/web-0/c",
	} {
		method, target, _ := strings.Cut(request, " ")
		if code, body := n.ask(config, method, target); code != http.StatusForbidden {
			t.Errorf("%s is answered %d %s", request, code, body)
		}
	}
	if len(n.passed) > 0 {
		t.Errorf("the kubelet gets %s", n.passed[0].RequestURI)
	}
}

// TestOnlyTheAPIServerOfThePoolIsServed: other client certificates are refused, also those of people and nodes,
// which the same CA signs.
func TestOnlyTheAPIServerOfThePoolIsServed(t *testing.T) {
	n := start(t, "127.0.0.1:0")
	n.until(true)
	group := certs.Leaf{CommonName: "kube-apiserver", Groups: []string{governance.APIServerGroup}}
	long := certs.Period{From: hour.From.Add(-time.Hour), To: hour.From}
	for name, config := range map[string]*tls.Config{
		"no certificate":              n.stranger(),
		"a person":                    n.client(n.ca, certs.Leaf{CommonName: "alice", Groups: []string{governance.PeopleGroup}}, hour),
		"an administrator":            n.client(n.ca, certs.Leaf{CommonName: "root", Groups: []string{"system:masters"}}, hour),
		"the group as the name":       n.client(n.ca, certs.Leaf{CommonName: governance.APIServerGroup}, hour),
		"a node of this pool's CA":    n.client(n.ca, certs.Leaf{CommonName: "system:node:b", Groups: []string{"system:nodes"}}, hour),
		"a hub's serving certificate": n.client(n.ca, certs.Leaf{CommonName: "kube-apiserver", Groups: group.Groups, Names: []string{"127.0.0.1"}}, hour),
		"an API server of another CA": n.client(newCA(t), group, hour),
		"one that has expired":        n.client(n.ca, group, long),
		"one that is not valid yet":   n.client(n.ca, group, certs.Period{From: hour.To, To: hour.To.Add(time.Hour)}),
		"a client of TLS 1.2": func() *tls.Config {
			c := n.apiServer()
			c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
			return c
		}(),
		"a certificate without its CA": n.client(newCA(t), certs.Leaf{CommonName: "system:node:a", Groups: []string{"system:nodes", governance.APIServerGroup}}, hour),
	} {
		if code, body := n.ask(config, "GET", "/stats/summary"); code != 0 {
			t.Errorf("%s is answered %d %s", name, code, body)
		}
	}
	if len(n.passed) > 0 {
		t.Error("the kubelet gets a request")
	}
	if code, body := n.ask(n.apiServer(), "GET", "/stats/summary"); code != http.StatusOK {
		t.Errorf("the API server is answered %d %s", code, body)
	}
}

func TestExpiredClientCertificateGets401OnAnOpenConnection(t *testing.T) {
	n := start(t, "127.0.0.1:0")
	n.until(true)
	transport := &http.Transport{TLSClientConfig: n.apiServer()}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	for _, want := range []int{http.StatusOK, http.StatusUnauthorized} {
		response, err := client.Get("https://" + n.address + "/stats/summary")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("the answer is %d, want %d", response.StatusCode, want)
		}
		n.mu.Lock()
		n.now = hour.To.Add(time.Second)
		n.mu.Unlock()
	}
}

// stream opens an upgraded connection.
func (n *node) stream(method, target, protocol string) (net.Conn, *bufio.Reader) {
	n.Helper()
	conn, err := tls.Dial("tcp", n.address, n.apiServer())
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	_, _ = fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: %s\r\nContent-Length: 0\r\n\r\n", method, target, protocol)
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols || response.Header.Get("Upgrade") != protocol {
		n.Fatalf("the answer to %s is %+v, %v", target, response, err)
	}
	return conn, reader
}

// TestStreamsPassBothWays: they end once the CA of the pool is gone, and when the hub stops.
func TestStreamsPassBothWays(t *testing.T) {
	n := start(t, "127.0.0.1:0")
	n.until(true)
	var readers []*bufio.Reader
	for target, how := range map[string][2]string{"/exec/default/web-0/c?command=sh": {"POST", "SPDY/3.1"}, "/attach/default/web-0/c": {"GET", "websocket"}, "/portForward/default/web-0": {"GET", "websocket"}} {
		conn, reader := n.stream(how[0], target, how[1])
		for _, line := range []string{"one\n", "two\n"} {
			if _, err := io.WriteString(conn, line); err != nil {
				t.Fatal(err)
			}
			if got, err := reader.ReadString('\n'); got != strings.ToUpper(line) {
				t.Errorf("%s: the stream answers %q, %v", target, got, err)
			}
		}
		readers = append(readers, reader)
	}
	conn, err := tls.Dial("tcp", n.address, n.apiServer())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET /containerLogs/default/web-0/c?follow=true HTTP/1.1\r\nHost: x\r\n\r\n")
	follow := bufio.NewReader(conn)
	if response, err := http.ReadResponse(follow, nil); err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("a log that is followed is answered %+v, %v", response, err)
	} else if line, err := bufio.NewReader(response.Body).ReadString('\n'); line != "first\n" {
		t.Errorf("of a log that is followed comes %q, %v", line, err) // before it ends
	}
	n.mu.Lock()
	n.caMissing = errors.New("gone")
	n.mu.Unlock()
	n.until(false)
	for _, reader := range readers {
		if text, err := reader.ReadString('\n'); err == nil {
			t.Errorf("a stream goes on with %q", text)
		}
	}
	if _, err := net.Dial("tcp", n.address); err == nil {
		t.Error("the port is open")
	}
	if _, err := n.port.State(); err == nil || !strings.Contains(err.Error(), "gone") {
		t.Errorf("the reason is %v", err)
	}
	n.mu.Lock()
	n.caMissing = nil
	n.mu.Unlock()
	n.until(true)
	n.stream("POST", "/exec/default/web-0/c", "SPDY/3.1") // it is open when the test, as the hub, ends
}

// TestKubeletRefusalIsReportedWhileThePortIsOpen: the hub asks the kubelet once the port is open, before a person
// needs logs.
func TestKubeletRefusalIsReportedWhileThePortIsOpen(t *testing.T) {
	for _, refuses := range []bool{false, true} {
		n := start(t, "127.0.0.1:0", func(n *node) { n.refuses = refuses })
		n.until(true)
		build.Eventually(t, "the kubelet is tried", func() bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.tried > 0
		})
		if refuses {
			build.Eventually(t, "what the kubelet says is known", func() bool {
				err := n.port.Refusal()
				return err != nil && strings.Contains(err.Error(), "authentication.webhook.enabled") && strings.Contains(err.Error(), "Unauthorized")
			})
		} else if err := n.port.Refusal(); err != nil {
			t.Error(err)
		}
		n.mu.Lock()
		n.caMissing = ErrNoCoordinator
		n.mu.Unlock()
		n.until(false)
		if err := n.port.Refusal(); err != nil {
			t.Errorf("with the port closed: %v", err)
		}
	}
}

func TestPortInUseIsRetried(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := start(t, other.Addr().String())
	build.Eventually(t, "the reason is told", func() bool {
		_, err := n.port.State()
		return err != nil && strings.Contains(err.Error(), "in use")
	})
	_ = other.Close()
	n.until(true)
	if code, _ := n.ask(n.apiServer(), "GET", "/stats/summary"); code != http.StatusOK {
		t.Errorf("the answer is %d", code)
	}
}

// TestOneClientCannotTakeAllConnections: one address gets at most three eighths of them.
func TestOneClientCannotTakeAllConnections(t *testing.T) {
	n := start(t, "127.0.0.1:0")
	n.until(true)
	var connections []net.Conn
	for range maxConnections {
		if conn, err := net.Dial("tcp", n.address); err == nil {
			t.Cleanup(func() { _ = conn.Close() })
			connections = append(connections, conn)
		}
	}
	open := 0
	for _, conn := range connections {
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond)) // that of one that was refused ends at once
		if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			open++
		}
	}
	if open == 0 || open > maxConnections*3/8 {
		t.Errorf("it has %d of %d", open, maxConnections)
	}
}
