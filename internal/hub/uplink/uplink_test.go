package uplink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/machinery/certs"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// cloud is an API server that can hang.
type cloud struct {
	*httptest.Server

	hangs    atomic.Bool
	broken   atomic.Bool  // it answers 500
	names    sync.Map     // of client certificates
	writes   atomic.Int32 // other than reads
	asked    atomic.Int32
	ready    atomic.Int32  // how often it was asked whether it is ready
	mute     atomic.Int32  // the code of the answer to that, if it is not 0
	unready  atomic.Bool   // it answers that with 500
	refusal  atomic.Int32  // the code of all other answers, if it is unready; 0 is 200
	released chan struct{} // all that hang
}

func newCloud(t *testing.T) *cloud {
	t.Helper()
	c := &cloud{released: make(chan struct{})}
	c.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.asked.Add(1)
		if r.Method != http.MethodGet {
			c.writes.Add(1)
		}
		for _, peer := range r.TLS.PeerCertificates {
			c.names.Store(peer.Subject.CommonName, true)
		}
		if c.hangs.Load() || r.URL.Path == "/hang" {
			select {
			case <-r.Context().Done():
			case <-c.released:
			}
			return
		}
		if r.URL.Path == readyPath {
			c.ready.Add(1)
			if code := int(c.mute.Load()); code != 0 {
				w.WriteHeader(code)
				return
			}
		}
		if code := 0; strings.HasPrefix(r.URL.Path, "/code/") {
			_, _ = fmt.Sscanf(r.URL.Path, "/code/%d", &code)
			w.WriteHeader(code)
			return
		}
		if code := int(c.refusal.Load()); c.unready.Load() && r.URL.Path != readyPath && code != 0 {
			w.WriteHeader(code)
			return
		}
		if r.URL.Path == readyPath && c.unready.Load() || r.URL.Path == "/error" || c.broken.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = io.WriteString(w, r.Proto)
	}))
	c.EnableHTTP2 = true
	c.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	c.StartTLS()
	t.Cleanup(func() {
		close(c.released)
		c.CloseClientConnections()
		c.Close()
	})
	return c
}

// newUplink returns an Uplink to clouds, which runs.
func newUplink(t *testing.T, clouds ...*cloud) *Uplink {
	t.Helper()
	none := &tls.Certificate{}
	return newUplinkAs(t, func() (*tls.Certificate, error) { return none, nil }, clouds...)
}

func newUplinkAs(t *testing.T, certificate func() (*tls.Certificate, error), clouds ...*cloud) *Uplink {
	t.Helper()
	u := newStill(t, certificate, clouds...)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); u.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return u
}

// newStill returns an Uplink that asks nothing by itself.
func newStill(t *testing.T, certificate func() (*tls.Certificate, error), clouds ...*cloud) *Uplink {
	t.Helper()
	roots := x509.NewCertPool()
	o := Options{Roots: func() *x509.CertPool { return roots }, Log: logr.Discard(), NodeCertificate: certificate, NodeName: "a"}
	for _, c := range clouds {
		server, err := url.Parse(c.URL)
		if err != nil {
			t.Fatal(err)
		}
		o.Servers = append(o.Servers, server)
		roots.AddCert(c.Certificate())
	}
	u := New(o)
	u.answerWithin, u.askSoon, u.silence = time.Second, 50*time.Millisecond, 300*time.Millisecond
	return u
}

func ask(t *testing.T, u *Uplink, path string) (string, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := u.RoundTrip(r, true)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

func await(t *testing.T, u *Uplink, want State) {
	t.Helper()
	build.Eventually(t, "the state is "+string(want), func() bool {
		e, _ := u.Evidence()
		return e.State == want
	})
}

// TestHangingCloudIsDetected: probes detect a cloud that hangs, and requests that wait for an answer end.
// Further requests are refused at once until the cloud answers again.
func TestHangingCloudIsDetected(t *testing.T) {
	c := newCloud(t)
	u := newUplink(t, c)
	if body, err := ask(t, u, "/"); err != nil || body != "HTTP/2.0" {
		t.Errorf("the answer is %q, %v", body, err)
	}
	await(t, u, Online)
	c.hangs.Store(true)
	if _, err := ask(t, u, "/"); !errors.Is(err, ErrOffline) {
		t.Errorf("a request that waits ends with %v", err)
	}
	if e, reason := u.Evidence(); e.State != Offline || !strings.Contains(reason.Error(), strings.TrimPrefix(c.URL, "https://")) {
		t.Errorf("the state is %+v, %v", e, reason)
	}
	if _, err := ask(t, u, "/"); !errors.Is(err, ErrOffline) {
		t.Errorf("a request ends with %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := u.AwaitOnline(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for the cloud ends with %v", err)
	}
	c.hangs.Store(false)
	if err := u.AwaitOnline(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := ask(t, u, "/"); err != nil {
		t.Error(err)
	}
}

// TestUplinkFailsOverToAnotherServer: if a server does not answer, the request goes to another one, which is
// preferred from then on.
func TestUplinkFailsOverToAnotherServer(t *testing.T) {
	gone, there := newCloud(t), newCloud(t)
	gone.Close()
	u := newUplink(t, gone, there)
	for range 5 {
		if _, err := ask(t, u, "/"); err != nil {
			t.Error(err)
		}
	}
	if e, _ := u.Evidence(); e.State != Online {
		t.Errorf("the state is %s", e.State)
	}
}

func send(t *testing.T, u *Uplink, method, path string, body io.Reader) error {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, path, body)
	if err != nil {
		t.Fatal(err)
	}
	response, err := u.RoundTrip(r, true)
	if err == nil {
		err = response.Body.Close()
	}
	return err
}

// closable is a body that cannot be read once it is closed, as that of a request to a server.
type closable struct {
	io.Reader

	closed atomic.Bool
}

// Read implements io.Reader.
func (c *closable) Read(b []byte) (int, error) {
	if c.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	return c.Reader.Read(b)
}

// Close implements io.Closer.
func (c *closable) Close() error {
	c.closed.Store(true)
	return nil
}

// TestAWriteIsSentToOneServer: after a broken connection the write may have been carried out. Only if the server
// could not be reached does the next one get it.
func TestAWriteIsSentToOneServer(t *testing.T) {
	breaks, there, gone := newCloud(t), newCloud(t), newCloud(t)
	breaks.Config.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		breaks.writes.Add(1)
		panic(http.ErrAbortHandler)
	})
	gone.Close()
	for name, body := range map[string]io.Reader{"with a body": strings.NewReader("x"), "without": nil} {
		u := newUplink(t, breaks, there)
		u.mu.Lock()
		u.current = 0
		u.mu.Unlock()
		if err := send(t, u, http.MethodPost, "/", body); err == nil {
			t.Errorf("%s: it is answered", name)
		}
		if there.writes.Load() != 0 {
			t.Errorf("%s: a second server got it", name)
		}
	}
	u := newUplink(t, gone, there)
	if err := send(t, u, http.MethodPost, "/", &closable{Reader: strings.NewReader("x")}); err != nil || there.writes.Load() != 1 {
		t.Errorf("a write whose first server is gone: %v, %d", err, there.writes.Load())
	}
}

// TestUplinkSwitchesToAReadyServer: the uplink leaves a server that is not ready for one that is. Errors of a
// server alone are no evidence that the cloud is offline.
func TestUplinkSwitchesToAReadyServer(t *testing.T) {
	broken, there := newCloud(t), newCloud(t)
	broken.broken.Store(true)
	u := newUplink(t, broken, there)
	await(t, u, Online)
	before := there.asked.Load()
	if _, err := ask(t, u, "/"); err != nil || there.asked.Load() == before {
		t.Errorf("the server that is ready is not asked: %v", err)
	}
	there.broken.Store(true)
	if _, err := ask(t, u, "/"); err != nil { // the error lets it ask whether the server is ready
		t.Error(err)
	}
	await(t, u, Offline)
	broken.broken.Store(false)
	await(t, u, Online)
	for range 20 {
		if body, err := ask(t, u, "/error"); err != nil || body != "HTTP/2.0" {
			t.Fatalf("an error of one path: %q, %v", body, err)
		}
	}
	if e, _ := u.Evidence(); e.State != Online {
		t.Errorf("the state is %s", e.State)
	}
}

// TestANewCertificateOfTheNodeIsUsedAtOnce: also while connections with the old one are open.
func TestANewCertificateOfTheNodeIsUsedAtOnce(t *testing.T) {
	c := newCloud(t)
	ca, err := certs.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	issue := func(name string) *tls.Certificate {
		pair, err := certs.Issue(ca, certs.Leaf{CommonName: name}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		return &certificate
	}
	var now atomic.Pointer[tls.Certificate]
	var fails atomic.Bool
	u := newUplinkAs(t, func() (*tls.Certificate, error) {
		if fails.Load() {
			return nil, errors.New("no such file")
		}
		return now.Load(), nil
	}, c)
	for _, name := range []string{"first", "second"} {
		now.Store(issue(name))
		if _, err := ask(t, u, "/"); err != nil {
			t.Fatal(err)
		}
		if _, used := c.names.Load(name); !used {
			t.Errorf("the certificate %s is not used", name)
		}
	}
	// One that cannot be read is no evidence against the cloud.
	await(t, u, Online)
	fails.Store(true)
	for range 10 {
		if _, err := ask(t, u, "/"); !errors.Is(err, ErrNoCertificate) {
			t.Errorf("the error is %v", err)
		}
	}
	if e, _ := u.Evidence(); e.State != Online || e.Failures != 0 {
		t.Errorf("the state is %+v", e)
	}
}

// TestNewCAsAreUsedAtOnce: for new connections.
func TestNewCAsAreUsedAtOnce(t *testing.T) {
	c := newCloud(t)
	server, err := url.Parse(c.URL)
	if err != nil {
		t.Fatal(err)
	}
	var roots atomic.Pointer[x509.CertPool]
	roots.Store(x509.NewCertPool())
	none := &tls.Certificate{}
	u := New(Options{Servers: []*url.URL{server}, Roots: roots.Load, Log: logr.Discard(), NodeCertificate: func() (*tls.Certificate, error) { return none, nil }})
	if _, err := ask(t, u, "/"); err == nil {
		t.Error("a server whose CA is not known is asked")
	}
	known := x509.NewCertPool()
	known.AddCert(c.Certificate())
	roots.Store(known)
	if _, err := ask(t, u, "/"); err != nil {
		t.Errorf("with the new CA: %v", err)
	}
	roots.Store(x509.NewCertPool())
	if _, err := ask(t, u, "/"); err == nil {
		t.Error("a CA that is gone counts")
	}
}

// TestUnreachableCloudIsProbedAtAnInterval: a cloud that cannot be reached is probed at an interval that
// doubles.
func TestUnreachableCloudIsProbedAtAnInterval(t *testing.T) {
	gone := newCloud(t)
	gone.Close()
	u := newUplink(t, gone)
	await(t, u, Offline)
	began := time.Now()
	before, _ := u.Evidence()
	build.Eventually(t, "it is asked again", func() bool {
		now, _ := u.Evidence()
		return now.Failures >= before.Failures+5
	})
	if took := time.Since(began); took < 15*u.askSoon { // 1+2+4+8
		t.Errorf("it was asked 5 times in %s", took)
	}
}

// TestServerErrorsAndCancelledRequestsDoNotMeanOffline: the client gets the server's error.
func TestServerErrorsAndCancelledRequestsDoNotMeanOffline(t *testing.T) {
	c := newCloud(t)
	u := newUplink(t, c)
	await(t, u, Online)
	if body, err := ask(t, u, "/error"); err != nil || body != "HTTP/2.0" {
		t.Errorf("the answer is %q, %v", body, err)
	}
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/hang", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := u.RoundTrip(r, true); err == nil {
			t.Error("it is answered")
		}
		cancel()
	}
	if e, _ := u.Evidence(); e.State != Online {
		t.Errorf("the state is %s", e.State)
	}
}

// TestExpiredCertificateDoesNotHideTheOfflineState: requests get ErrOffline, not the error of the certificate.
func TestExpiredCertificateDoesNotHideTheOfflineState(t *testing.T) {
	c := newCloud(t)
	var expired atomic.Bool
	u := newUplinkAs(t, func() (*tls.Certificate, error) {
		if expired.Load() {
			return nil, errors.New("it has expired")
		}
		return &tls.Certificate{}, nil
	}, c)
	await(t, u, Online)
	c.hangs.Store(true)
	await(t, u, Offline)
	expired.Store(true)
	if _, err := ask(t, u, "/"); !errors.Is(err, ErrOffline) {
		t.Errorf("the error is %v", err)
	}
}
