package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/uplink"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// csiNodes is a cloud with one CSINode, or none.
type csiNodes struct {
	Cloud

	offline atomic.Bool
	version int // 0: it is not there
}

// RoundTrip implements Cloud.
func (n *csiNodes) RoundTrip(r *http.Request, _ bool) (*http.Response, error) {
	if n.offline.Load() {
		return nil, uplink.ErrOffline
	}
	code := http.StatusOK
	switch r.Method {
	case http.MethodPost:
		code = http.StatusCreated
		n.version++
	case http.MethodPut:
		n.version++
	case http.MethodDelete:
		n.version = 0
	}
	body := fmt.Sprintf(`{"kind":"CSINode","apiVersion":"storage.k8s.io/v1","metadata":{"name":"edge-1","resourceVersion":"%d"}}`, n.version)
	if n.version == 0 && r.Method == http.MethodGet {
		code, body = http.StatusNotFound, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
	}
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body))}, nil
}

// TestWhatAClientCreatesIsKept: a kubelet reads that its CSINode is not there, creates it, and reads it again
// only when it is started again, maybe without the cloud.
func TestWhatAClientCreatesIsKept(t *testing.T) {
	const all, one = "/apis/storage.k8s.io/v1/csinodes", "/apis/storage.k8s.io/v1/csinodes/edge-1"
	n := newNode(t, wire.JSON)
	cloud := &csiNodes{Cloud: n.cloud}
	n.Proxy.Cloud = cloud
	do := func(method, path, accept string) (int, string) {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader("{}"))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		n.answer(w, r, identity.OfNode())
		n.Wait()
		return w.Code, w.Body.String()
	}
	offline := func(when, accept string, want int, version string) {
		t.Helper()
		cloud.offline.Store(true)
		defer cloud.offline.Store(false)
		if code, body := do(http.MethodGet, one, accept); code != want || !strings.Contains(body, version) {
			t.Errorf("%s, without the cloud it is answered %d %s", when, code, body)
		}
	}
	const accept, other = "application/json", "application/json;q=0.9,*/*"
	do(http.MethodGet, one, accept)
	do(http.MethodGet, one, other)
	offline("not there", accept, http.StatusNotFound, "NotFound")
	if code, _ := do(http.MethodPost, all, accept); code != http.StatusCreated {
		t.Fatalf("the creation is answered %d", code)
	}
	offline("created", accept, http.StatusOK, `"resourceVersion":"1"`)
	offline("created, and asked for in another form", other, http.StatusServiceUnavailable, "")
	do(http.MethodPut, one, accept)
	offline("updated", accept, http.StatusOK, `"resourceVersion":"2"`)
	do(http.MethodDelete, one, accept)
	offline("deleted", accept, http.StatusServiceUnavailable, "")
}

// TestOtherChangesLeaveNothingWrong: a Scale is not its Deployment, and a collection that was deleted is not there.
func TestOtherChangesLeaveNothingWrong(t *testing.T) {
	const deployment, maps = "/apis/apps/v1/namespaces/default/deployments/web", "/api/v1/namespaces/default/configmaps"
	n := newNode(t, wire.JSON)
	somebody := identity.Caller{Name: "subject:https://issuer#somebody", Token: "x"}
	n.cloud.set(false, func(r *http.Request) (int, string, io.ReadCloser) {
		return http.StatusOK, "application/json", io.NopCloser(strings.NewReader(`{"kind":"Of ` + r.URL.Path + `"}`))
	})
	for _, path := range []string{deployment, maps + "/c"} {
		n.accepting(somebody, "application/json", path)
	}
	for method, target := range map[string]string{http.MethodPut: deployment + "/scale", http.MethodDelete: maps} {
		r := httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader("{}"))
		r.Header.Set("Accept", "application/json")
		w := httptest.NewRecorder()
		n.answer(w, r, somebody)
		n.Wait()
		if w.Code != http.StatusOK {
			t.Fatalf("%s %s is answered %d", method, target, w.Code)
		}
	}
	n.cloud.set(true, nil)
	for _, path := range []string{deployment, maps + "/c"} {
		if w := n.accepting(somebody, "application/json", path); w.Code != http.StatusServiceUnavailable {
			t.Errorf("%s is answered %d %s", path, w.Code, w.Body)
		}
	}
}
