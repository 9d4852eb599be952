package hub

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/endpoints"
	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/pool"
	"github.com/atoll-k8s/atoll/internal/hub/proxy"
	"github.com/atoll-k8s/atoll/internal/hub/uplink"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestStatusShowsTheNodeCertificate: how long it is valid, and why there is no new one, as text and as a metric.
func TestStatusShowsTheNodeCertificate(t *testing.T) {
	for name, tc := range map[string]struct {
		expires time.Time
		problem error
		says    []string
		metric  string
	}{
		"valid":               {time.Unix(2e9, 0), nil, []string{"certificate of the node until 2033-05-18T03:33:20Z"}, "2e+09"},
		"none yet":            {time.Time{}, errors.New("it waits"), []string{"no new certificate of the node: it waits"}, "0"},
		"one that is not new": {time.Unix(2e9, 0), errors.New("it waits"), []string{"until 2033", "it waits"}, "2e+09"},
	} {
		t.Run(name, func(t *testing.T) {
			store, err := cache.Open(filepath.Join(t.TempDir(), "cache"), cache.Options{Log: logr.Discard()})
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			cloud := uplink.New(uplink.Options{Servers: []*url.URL{{Scheme: "https", Host: "a"}}, Roots: x509.NewCertPool, Log: logr.Discard()})
			cert := &nodeCertificate{run: func(context.Context) {}, state: func() (time.Time, error) { return tc.expires, tc.problem }}
			serving, err := newServing(filepath.Join(t.TempDir(), "serving"), "127.0.0.1:0", func() time.Time { return time.Unix(1.9e9, 0) }, logr.Discard())
			if err != nil {
				t.Fatal(err)
			}
			handler, err := (&parts{"edge", cloud, cert, serving, proxy.New(proxy.Options{Cache: store, Log: logr.Discard(), Recognizer: &identity.Recognizer{NodeName: "edge"}}), endpoints.New(endpoints.Options{NodeName: "edge", Log: logr.Discard()}), nil, nil, nil}).observe()
			if err != nil {
				t.Fatal(err)
			}
			server := httptest.NewServer(handler)
			defer server.Close()
			s, err := ReadStatus(t.Context(), strings.TrimPrefix(server.URL, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			if err := s.Write(&text, time.Now()); err != nil {
				t.Fatal(err)
			}
			for _, want := range append(tc.says, "\nserving certificate until 2030-06-15T17:46:40Z\n") {
				if !strings.Contains(text.String(), want) {
					t.Errorf("it does not say %q:\n%s", want, &text)
				}
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
			if want := "atoll_hub_node_certificate_expiration_timestamp_seconds " + tc.metric + "\n"; !strings.Contains(w.Body.String(), want) {
				t.Errorf("the metrics have no %q", want)
			}
		})
	}
}

// TestStatusShowsRefusals: no API server is ready, or the cloud refuses a valid certificate of the node. The
// metrics have the code.
func TestStatusShowsRefusals(t *testing.T) {
	var refuses atomic.Bool
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case refuses.Load() && r.URL.Path == "/readyz":
			w.WriteHeader(http.StatusInternalServerError)
		case refuses.Load():
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer server.Close()
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	store, err := cache.Open(filepath.Join(t.TempDir(), "cache"), cache.Options{Log: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	none := &tls.Certificate{}
	cloud := uplink.New(uplink.Options{
		Servers: []*url.URL{at}, Roots: func() *x509.CertPool { return roots }, Log: logr.Discard(),
		NodeCertificate: func() (*tls.Certificate, error) { return none, nil },
	})
	cert := &nodeCertificate{run: func(context.Context) {}, state: func() (time.Time, error) { return time.Unix(2e9, 0), nil }}
	serving, err := newServing(filepath.Join(t.TempDir(), "serving"), "127.0.0.1:0", time.Now, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	handler, err := (&parts{"edge", cloud, cert, serving, proxy.New(proxy.Options{Cloud: cloud, Cache: store, Log: logr.Discard(), Recognizer: &identity.Recognizer{NodeName: "edge"}}), endpoints.New(endpoints.Options{NodeName: "edge", Log: logr.Discard()}), nil, nil, nil}).observe()
	if err != nil {
		t.Fatal(err)
	}
	observer := httptest.NewServer(handler)
	defer observer.Close()
	get := func(path string) string {
		t.Helper()
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		return w.Body.String()
	}
	// askOnce lets the hub ask the cloud, once.
	askOnce := func(done func(*Status) bool) *Status {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		var asking sync.WaitGroup
		asking.Go(func() { cloud.Run(ctx) })
		defer asking.Wait()
		defer cancel()
		var s *Status
		build.Eventually(t, "the cloud was asked", func() bool {
			if s, err = ReadStatus(t.Context(), strings.TrimPrefix(observer.URL, "http://")); err != nil {
				t.Fatal(err)
			}
			return done(s)
		})
		return s
	}
	written := func(s *Status) string {
		var text strings.Builder
		if err := s.Write(&text, time.Now()); err != nil {
			t.Fatal(err)
		}
		return text.String()
	}
	s := askOnce(func(s *Status) bool { return s.Cloud.State == uplink.Online })
	if text := written(s); strings.Contains(text, "refuses") || strings.Contains(text, "ready") {
		t.Errorf("if all is well it says\n%s", text)
	}
	if text := get("/metrics"); !strings.Contains(text, "atoll_hub_node_certificate_refused 0\n") {
		t.Errorf("the metrics tell of a refusal:\n%s", text)
	}
	refuses.Store(true)
	s = askOnce(func(s *Status) bool { return s.Cloud.Unready != nil && !s.Certificate.RefusedSince.IsZero() })
	text := written(s)
	for _, want := range []string{
		"cloud Online for", "no API server is ready for ", at.Host + " is not ready: it answers 500",
		"the cloud refuses the node's certificate since " + s.Certificate.RefusedSince.UTC().Format(time.RFC3339),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}
	if text := get("/status"); !strings.Contains(text, `"refusedSince":"`) {
		t.Errorf("/status is %s", text)
	}
	if text := get("/metrics"); !strings.Contains(text, "atoll_hub_node_certificate_refused 1\n") {
		t.Errorf("the metrics tell of no refusal:\n%s", text)
	}
}

func TestStatusShowsTheCoordinatorOfThePool(t *testing.T) {
	now := time.Unix(1000, 0)
	for want, c := range map[string]*pool.Status{
		"coordinator of the pool: 10.0.0.7:10271, for 1m0s; 7 objects, 1 refused\n":       {Address: "10.0.0.7:10271", Since: now.Add(-time.Minute), Objects: 7, Refused: 1},
		"coordinator of the pool: :1, for 1s; 7 objects, 0 refused; this hub leads\n":     {Address: ":1", Since: now.Add(-time.Second), Objects: 7, Leads: true},
		"coordinator of the pool: not up to date for 5s: nobody answers; nor elsewhere\n": {Address: "10.0.0.7:10271", Since: now.Add(-5 * time.Second), Reason: "nobody answers\nnor elsewhere"},
	} {
		var text strings.Builder
		if err := (&Status{Coordinator: c}).Write(&text, now); err != nil || !strings.Contains(text.String(), want) {
			t.Errorf("the status is %s, want %s", text.String(), want)
		}
	}
	for want, a := range map[string]*Access{
		"logs and exec by the coordinator of the pool: served at [::]:10262, certificate until 1970-01-01T00:16:40Z\n": {Address: "[::]:10262", Certificate: Certificate{Expires: now}},
		"logs and exec by the coordinator of the pool do not work: no CA; nor elsewhere\n":                             {Problem: "no CA\nnor elsewhere"},
	} {
		var text strings.Builder
		if err := (&Status{Access: a}).Write(&text, now); err != nil || !strings.Contains(text.String(), want) {
			t.Errorf("the status is %s, want %s", text.String(), want)
		}
	}
}
