package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/record"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// refusing lets the cloud answer all requests with a code.
func (n *node) refusing(code int) {
	n.cloud.set(false, func(*http.Request) (int, string, io.ReadCloser) {
		return code, "application/json", io.NopCloser(strings.NewReader("{}"))
	})
}

// TestNodesCacheSurvivesShortRefusals: an API server that has just started may refuse what it will allow. One
// success ends the refusals. For other callers, a refused answer is removed at once.
func TestNodesCacheSurvivesShortRefusals(t *testing.T) {
	const list = "/api/v1/pods?fieldSelector=spec.nodeName%3Da"
	for name, tc := range map[string]struct {
		kept, refused string
		code          int
	}{
		"a list":             {list, list, http.StatusForbidden},
		"a watch":            {list, list + "&watch=true&resourceVersion=5", http.StatusForbidden},
		"a watch, not found": {list, list + "&watch=true&resourceVersion=5", http.StatusNotFound},
		"an object":          {"/api/v1/namespaces/default/pods/a", "/api/v1/namespaces/default/pods/a", http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, wire.JSON)
				works := func() { n.answers(5, pod("a", "1", 5, nil)) }
				asked := func(caller identity.Caller, target string, want int) {
					t.Helper()
					w := n.askAs(caller, target)
					n.Wait()
					if got := w.Code; got != want {
						t.Errorf("after %s, %s is answered %d, want %d", target, caller.Name, got, want)
					}
				}
				offline := func(caller identity.Caller, want int) {
					t.Helper()
					n.cloud.set(true, nil)
					asked(caller, tc.kept, want)
					n.cloud.set(false, nil)
				}
				self := identity.OfNode()
				for range 2 { // a success in between begins the time anew
					works()
					asked(self, tc.kept, http.StatusOK)
					asked(reader, tc.kept, http.StatusOK)
					n.refusing(tc.code)
					asked(self, tc.refused, tc.code)
					offline(self, http.StatusOK)
					time.Sleep(refusedFor - time.Second)
					asked(self, tc.refused, tc.code)
					offline(self, http.StatusOK)
				}
				asked(reader, tc.refused, tc.code)
				offline(reader, http.StatusServiceUnavailable)
				time.Sleep(time.Second)
				asked(self, tc.refused, tc.code)
				offline(self, http.StatusServiceUnavailable)
				works()
				asked(self, tc.kept, http.StatusOK)
				n.refusing(tc.code)
				asked(self, tc.refused, tc.code)
				offline(self, http.StatusOK)
			})
		})
	}
}

// TestRememberedRefusalsAreBounded: the oldest are forgotten.
func TestRememberedRefusalsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRefusals()
		for i := range 2 * record.MaxScopes {
			if r.isLasting(fmt.Sprint(i)) {
				t.Fatalf("refusal %d is lasting", i)
			}
			time.Sleep(time.Millisecond)
		}
		if n := r.since.Len(); n != record.MaxScopes {
			t.Errorf("%d are remembered", n)
		}
		time.Sleep(refusedFor)
		if !r.isLasting(fmt.Sprint(2*record.MaxScopes - 1)) {
			t.Error("the last one is forgotten")
		}
		if r.isLasting("0") {
			t.Error("the first one is remembered")
		}
	})
}

// TestClientsOfServicesSurviveShortRefusals: kube-proxy is refused once by an API server that starts, and is
// offline then.
func TestClientsOfServicesSurviveShortRefusals(t *testing.T) {
	const user = "system:serviceaccount:kube-system:kube-proxy"
	n := newNodeOn(t, wire.JSON, cache.Options{ShareOf: record.Shares(1<<20, []string{user})})
	client := identity.Caller{Name: "subject:https://issuer#" + user, Token: "x"}
	n.cloud.set(false, func(*http.Request) (int, string, io.ReadCloser) {
		return http.StatusOK, "application/json", io.NopCloser(strings.NewReader(`{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`))
	})
	n.accepting(client, "application/json", "/api/v1/services")
	n.refusing(http.StatusForbidden)
	n.accepting(client, "application/json", "/api/v1/services")
	n.cloud.set(true, nil)
	if w := n.accepting(client, "application/json", "/api/v1/services"); w.Code != http.StatusOK {
		t.Errorf("it is answered %d %s", w.Code, w.Body)
	}
}
