package hub

import (
	"context"
	"crypto/x509"
	"errors"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/endpoints"
	"github.com/atoll-k8s/atoll/internal/hub/proxy"
	"github.com/atoll-k8s/atoll/internal/hub/uplink"
)

// TestTheStatusTellsOfTheCertificate: until when it is valid, and what prevents a new one, for people
// and as a metric.
func TestTheStatusTellsOfTheCertificate(t *testing.T) {
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
			handler, err := (&parts{"edge", cloud, cert, &proxy.Proxy{Cache: store, Log: logr.Discard()}, endpoints.New(endpoints.Options{NodeName: "edge", Log: logr.Discard()}), nil}).observe()
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
			for _, want := range tc.says {
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
