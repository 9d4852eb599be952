package uplink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// cloud is an API server that can hang.
type cloud struct {
	*httptest.Server

	hangs    atomic.Bool
	asked    atomic.Int32
	released chan struct{} // all that hang
}

func newCloud(t *testing.T) *cloud {
	t.Helper()
	c := &cloud{released: make(chan struct{})}
	c.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.asked.Add(1)
		if c.hangs.Load() {
			select {
			case <-r.Context().Done():
			case <-c.released:
			}
			return
		}
		if r.URL.Path == "/error" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = io.WriteString(w, r.Proto)
	}))
	c.EnableHTTP2 = true
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
	o := Options{Roots: x509.NewCertPool(), Log: logr.Discard(), NodeCertificate: func() (*tls.Certificate, error) { return &tls.Certificate{}, nil }}
	for _, c := range clouds {
		server, err := url.Parse(c.URL)
		if err != nil {
			t.Fatal(err)
		}
		o.Servers = append(o.Servers, server)
		o.Roots.AddCert(c.Certificate())
	}
	u := New(o)
	u.answerWithin, u.askSoon, u.silence = 200*time.Millisecond, 50*time.Millisecond, 300*time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); u.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
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

// TestACloudThatHangs is noticed by questions, and ends requests that wait for an answer. Requests
// are refused at once until it answers again.
func TestACloudThatHangs(t *testing.T) {
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
	before := time.Now()
	if _, err := ask(t, u, "/"); !errors.Is(err, ErrOffline) || time.Since(before) > time.Second {
		t.Errorf("a request ends with %v after %s", err, time.Since(before))
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

// TestAnotherServerIsAsked if one does not answer, and is asked first from then on.
func TestAnotherServerIsAsked(t *testing.T) {
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
	// A write goes to one server only: it may have been carried out.
	u = New(Options{Servers: u.options.Servers, Roots: u.options.Roots, Log: logr.Discard(), NodeCertificate: u.options.NodeCertificate})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	asked := there.asked.Load()
	if _, err := u.RoundTrip(r, true); err == nil || there.asked.Load() != asked {
		t.Errorf("a write whose server is gone ends with %v", err)
	}
	r.Body = io.NopCloser(strings.NewReader("x"))
	response, err := u.RoundTrip(r, false) // the next one
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
}

// TestACloudThatRefusesIsAskedFromTimeToTime, and not without a pause.
func TestACloudThatRefusesIsAskedFromTimeToTime(t *testing.T) {
	gone := newCloud(t)
	gone.Close()
	u := newUplink(t, gone)
	await(t, u, Offline)
	before, _ := u.Evidence()
	began := time.Now()
	build.Eventually(t, "it is asked again", func() bool {
		now, _ := u.Evidence()
		return now.Failures >= before.Failures+5
	})
	if took := time.Since(began); took < 4*u.askSoon {
		t.Errorf("it was asked 5 times in %s", took)
	}
}

// TestAnErrorOfTheServerIsItsAnswer, and a client that goes is no evidence.
func TestAnErrorOfTheServerIsItsAnswer(t *testing.T) {
	c := newCloud(t)
	u := newUplink(t, c)
	await(t, u, Online)
	if body, err := ask(t, u, "/error"); err != nil || body != "HTTP/2.0" {
		t.Errorf("the answer is %q, %v", body, err)
	}
	c.hangs.Store(true)
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
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
