package hub

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

	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/internal/hub/config"
	"github.com/atoll-k8s/atoll/internal/machinery/certs"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// running is a hub whose cloud is a handler of the test.
type running struct {
	*testing.T

	dir     string
	cloud   *httptest.Server
	address string
	client  *http.Client
	stop    context.CancelFunc
	ended   chan error
}

// runHub runs a hub in a directory.
func runHub(t *testing.T, dir string, cloud *httptest.Server) *running {
	t.Helper()
	return tryHub(t, dir, cloud, trial{})
}

// tryHub runs a hub of which something is changed.
func tryHub(t *testing.T, dir string, cloud *httptest.Server, changed trial, configure ...func(*config.Configuration)) *running {
	t.Helper()
	r := &running{T: t, dir: dir, cloud: cloud, ended: make(chan error, 1)}
	ca, err := certs.NewCA(time.Now())
	if err == nil {
		var leaf certs.Pair
		leaf, err = certs.Issue(ca, certs.Leaf{CommonName: "system:node:a", Groups: []string{"system:nodes"}}, time.Now())
		r.write("node.pem", append(leaf.Cert, leaf.Key...))
	}
	if err != nil {
		t.Fatal(err)
	}
	r.write("clients.crt", ca.Cert)
	r.write("cloud.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cloud.Certificate().Raw}))
	at := func(name string) string { return filepath.Join(dir, name) }
	c := &config.Configuration{
		NodeName: "a", Listen: "127.0.0.1:0", Observe: "127.0.0.1:0", ClientCAFile: at("clients.crt"), Directory: at("state"),
		Cloud: config.Cloud{
			Servers: []string{cloud.URL}, CAFile: at("cloud.crt"), CertificateFile: at("node.pem"), KeyFile: at("node.pem"),
			ReturnWithin: &metav1.Duration{},
		},
		Cache: config.Cache{MaxSize: resource.NewQuantity(64<<20, resource.BinarySI)},
	}
	for _, one := range configure {
		one(c)
	}
	serves := make(chan string, 1)
	log := funcr.New(func(_, args string) {
		if strings.Contains(args, "Recovered from panic") {
			t.Error(args)
		}
		if _, rest, is := strings.Cut(args, `"address"="`); is && strings.Contains(args, "The hub serves") {
			address, _, _ := strings.Cut(rest, `"`)
			serves <- address
		}
	}, funcr.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	r.stop = cancel
	go func() { r.ended <- run(ctx, c, log, changed) }()
	select {
	case r.address = <-serves:
	case err := <-r.ended:
		t.Fatal(err)
	}
	t.Cleanup(func() { r.end() })
	text, err := os.ReadFile(filepath.Join(dir, "state", "serving", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	r.client = &http.Client{Transport: transport, Timeout: time.Minute}
	return r
}

func (r *running) write(name string, content []byte) {
	r.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), content, 0o600); err != nil {
		r.Fatal(err)
	}
}

// end ends the hub as a signal does, and waits.
func (r *running) end() {
	r.Helper()
	if r.stop == nil {
		return
	}
	r.stop()
	r.stop = nil
	select {
	case err := <-r.ended:
		if err != nil {
			r.Error(err)
		}
	case <-time.After(time.Minute):
		r.Error("the hub does not end")
	}
}

// ask asks the hub with a token.
func (r *running) ask(path string) (code int, body string, err error) {
	request, err := http.NewRequestWithContext(r.Context(), http.MethodGet, "https://"+r.address+path, nil)
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("Authorization", "Bearer x")
	response, err := r.client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

const configMaps = `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a","namespace":"default","resourceVersion":"1"}}]}` + "\n" // as API servers end a list

// newCloud is an API server that has one ConfigMap.
func newCloud(t *testing.T) *httptest.Server {
	t.Helper()
	var watches sync.WaitGroup
	over := make(chan struct{})
	cloud := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") != "" {
			watches.Add(1)
			defer watches.Done()
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-over:
			}
			return
		}
		_, _ = io.WriteString(w, configMaps)
	}))
	cloud.EnableHTTP2 = true
	cloud.StartTLS()
	t.Cleanup(func() { close(over); watches.Wait(); cloud.Close() })
	return cloud
}

const configMapsPath = "/api/v1/namespaces/default/configmaps"

// TestAnswersAreStoredWhenTheHubEnds: the last answers too. Open watches end.
func TestAnswersAreStoredWhenTheHubEnds(t *testing.T) {
	dir, cloud := t.TempDir(), newCloud(t)
	r := runHub(t, dir, cloud)
	watching, cancel := context.WithCancel(t.Context())
	defer cancel()
	request, err := http.NewRequestWithContext(watching, http.MethodGet, "https://"+r.address+configMapsPath+"?watch=1&resourceVersion=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer x")
	watch, err := r.client.Do(request)
	if err != nil || watch.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", watch, err)
	}
	defer watch.Body.Close()
	for i := range 100 {
		if code, _, err := r.ask(fmt.Sprintf("%s?labelSelector=x%%3Dy%d", configMapsPath, i)); err != nil || code != http.StatusOK {
			t.Fatalf("%d, %v", code, err)
		}
	}
	r.end()
	_, _ = io.ReadAll(watch.Body) // it has ended: with or without an error, a client goes on
	// Another process, and no cloud.
	silent := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	defer silent.Close()
	again := runHub(t, dir, silent)
	for i := range 100 {
		path := fmt.Sprintf("%s?labelSelector=x%%3Dy%d", configMapsPath, i)
		build.Eventually(t, "the hub has noticed that there is no cloud", func() bool {
			code, body, err := again.ask(path)
			if err != nil {
				t.Fatal(err)
			}
			return code == http.StatusOK && body == configMaps
		})
	}
}

// TestMisbehavingClientsDoNotBlockOthers: clients that misbehave do not prevent answers to others.
func TestMisbehavingClientsDoNotBlockOthers(t *testing.T) {
	r := runHub(t, t.TempDir(), newCloud(t))
	if code, _, err := r.ask(configMapsPath); err != nil || code != http.StatusOK {
		t.Fatalf("%d, %v", code, err)
	}
	config := r.client.Transport.(*http.Transport).TLSClientConfig.Clone()
	config.NextProtos, config.ServerName = nil, "127.0.0.1" // HTTP/1.1
	dial := func() net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", r.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	// Connections on which nothing comes, or a request without an end.
	var silent []net.Conn
	for i := range maxStrangers + 100 {
		conn := dial()
		if i%2 == 0 {
			secure := tls.Client(conn, config)
			if _, err := io.WriteString(secure, "GET /version HTTP/1.1\r\nHost: hub\r\nX-"); err != nil {
				t.Fatal(err)
			}
		}
		silent = append(silent, conn)
	}
	if code, _, err := r.ask(configMapsPath); err != nil || code != http.StatusOK {
		t.Errorf("beside %d silent connections the answer is %d, %v", len(silent), code, err)
	}
	fresh := &http.Transport{TLSClientConfig: config.Clone()}
	defer fresh.CloseIdleConnections()
	one := *r
	one.client = &http.Client{Transport: fresh, Timeout: 30 * time.Second}
	if code, _, err := one.ask(configMapsPath); err != nil || code != http.StatusOK {
		t.Errorf("a new client beside %d silent connections is answered %d, %v", len(silent), code, err)
	}
	// The oldest of too many are closed.
	if err := silent[1].SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := silent[1].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the oldest silent connection is open: %v", err)
	}
	// What is no request.
	for name, text := range map[string]string{
		"no HTTP":             "\x00\x01\x02\x03\r\n\r\n",
		"too large headers":   "GET /version HTTP/1.1\r\nHost: hub\r\nX-Large: " + strings.Repeat("x", 2*maxHeader) + "\r\n\r\n",
		"two lengths":         "POST /version HTTP/1.1\r\nHost: hub\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
		"length and chunks":   "POST /version HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer \r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"a path of no server": "GET ../../etc/passwd HTTP/1.1\r\nHost: hub\r\n\r\n",
		"CONNECT":             "CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n",
		"another host":        "GET http://example.org/version HTTP/1.1\r\nHost: example.org\r\n\r\n",
	} {
		secure := tls.Client(dial(), config)
		if err := secure.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(secure, text); err != nil && name != "too large headers" {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(secure), nil)
		if err == nil {
			_ = response.Body.Close()
		}
		if err == nil && response.StatusCode/100 != 4 {
			t.Errorf("%s is answered %s", name, response.Status)
		}
	}
	if code, body, err := r.ask(configMapsPath); err != nil || code != http.StatusOK || body != configMaps {
		t.Errorf("afterwards the answer is %d, %v", code, err)
	}
}

// TestOpenExecDoesNotDelayShutdown: the stream is cut, as it is when the node restarts.
func TestOpenExecDoesNotDelayShutdown(t *testing.T) {
	over := make(chan struct{})
	cloud := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			return
		}
		conn, stream, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(stream, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_ = stream.Flush()
		<-over
	}))
	cloud.StartTLS()
	defer cloud.Close()
	defer close(over)
	r := runHub(t, t.TempDir(), cloud)
	config := r.client.Transport.(*http.Transport).TLSClientConfig.Clone()
	config.NextProtos, config.ServerName = nil, "127.0.0.1"
	conn, err := tls.Dial("tcp", r.address, config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /api/v1/namespaces/default/pods/x/exec HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", response, err)
	}
	r.end()
	if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection is open")
	}
}
