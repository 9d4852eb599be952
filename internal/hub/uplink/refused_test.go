package uplink

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr/funcr"
)

// TestRefusedNodeCertificateIsReported: a node certificate that the cloud refuses is reported from the first
// 401 until an API server accepts it, with one log line for each change.
func TestRefusedNodeCertificateIsReported(t *testing.T) {
	c := newCloud(t)
	now := &tls.Certificate{}
	u := newStill(t, func() (*tls.Certificate, error) { return now, nil }, c)
	var mu sync.Mutex
	var lines []string
	u.options.Log = funcr.New(func(_, args string) {
		mu.Lock()
		defer mu.Unlock()
		if strings.Contains(args, "certificate of the node") {
			_, rest, _ := strings.Cut(args, `"msg"="`)
			line, _, _ := strings.Cut(rest, `"`)
			lines = append(lines, line)
		}
	}, funcr.Options{})
	answers := func(codes ...int) {
		t.Helper()
		for _, code := range codes {
			if _, err := ask(t, u, fmt.Sprint("/code/", code)); err != nil {
				t.Fatal(err)
			}
		}
	}
	check := func(when string, want bool) {
		t.Helper()
		if got := u.RefusedSince(); !got.IsZero() != want {
			t.Errorf("%s it is refused since %s", when, got)
		}
	}
	answers(200, 403, 404, 429, 500, 503)
	check("at first", false)
	answers(401)
	since := u.RefusedSince()
	answers(401, 429, 500, 503, 401)
	check("after some 401", true)
	if again := u.RefusedSince(); !again.Equal(since) {
		t.Errorf("it is refused since %s, then since %s", since, again)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := u.RoundTrip(r, false)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	check("after an answer to somebody else", true)
	answers(403)
	check("once a right is missing only", false)
	was := now
	now = &tls.Certificate{}
	answers(200)
	u.judge(was, 401)
	check("after a late answer to another certificate", false)
	c.unready.Store(true)
	c.refusal.Store(http.StatusUnauthorized)
	u.ask(t.Context())
	check("after a question of the hub itself", true)
	refuses, accepts := "The cloud refuses the certificate of the node", "The cloud accepts the certificate of the node again"
	if want := []string{refuses, accepts, refuses}; !slices.Equal(lines, want) {
		t.Errorf("the log has %q, want %q", lines, want)
	}
}
