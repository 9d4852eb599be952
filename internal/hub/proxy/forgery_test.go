package proxy

import (
	"crypto/tls"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// TestOnlyTheAcceptedTokenIsTrusted: a client that sends a forged token with another identity's name gets no
// answers of that identity offline, even if the API server accepted another token in the same request or did not
// check any.
func TestOnlyTheAcceptedTokenIsTrusted(t *testing.T) {
	const secrets = "/api/v1/namespaces/default/secrets"
	const list = `{"kind":"SecretList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`
	n := newNode(t, wire.JSON)
	n.cloud.set(false, func(r *http.Request) (int, string, io.ReadCloser) {
		protocols := strings.Join(r.Header.Values("Sec-Websocket-Protocol"), ",")
		isWebsocket := r.Header.Get("Upgrade") == "websocket" && strings.Contains(protocols, tokenProtocol)
		if r.Header.Get("Authorization") == "Bearer good" || isWebsocket || r.Method == http.MethodOptions {
			return http.StatusOK, "application/json", io.NopCloser(strings.NewReader(list))
		}
		return http.StatusUnauthorized, "application/json", io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure"}`))
	})
	ask := func(token, method, target string, header http.Header) int {
		r := httptest.NewRequestWithContext(t.Context(), method, target, nil)
		maps.Copy(r.Header, header)
		w := httptest.NewRecorder()
		n.answer(w, r, identity.Caller{Name: "victim", Token: token})
		return w.Code
	}
	if code := ask("good", http.MethodGet, secrets, nil); code != http.StatusOK {
		t.Fatalf("the answer is %d", code)
	}
	websocket := http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Protocol": {tokenProtocol + "YQ, v4.channel.k8s.io", tokenProtocol + "YQ"},
	}
	for _, try := range []struct {
		method, target string
		header         http.Header
	}{
		{http.MethodGet, secrets, nil},
		{http.MethodGet, "/version", websocket},
		{http.MethodGet, secrets, websocket},
		{http.MethodOptions, "/version", http.Header{"Origin": {"https://example.org"}, "Access-Control-Request-Method": {"GET"}}},
	} {
		ask("forged", try.method, try.target, try.header)
	}
	n.Wait()
	n.cloud.set(true, nil)
	if code := ask("forged", http.MethodGet, secrets, nil); code == http.StatusOK {
		t.Error("without the cloud, a forged token is answered what another one was")
	}
	if code := ask("good", http.MethodGet, secrets, nil); code != http.StatusOK {
		t.Errorf("without the cloud, the token that the cloud had accepted is answered %d", code)
	}
}

// TestImpersonationIsRefused: the cloud would carry out the request without these headers with the client's own
// rights.
func TestImpersonationIsRefused(t *testing.T) {
	n := newNode(t, wire.JSON)
	var asked atomic.Int32
	n.cloud.set(false, func(*http.Request) (int, string, io.ReadCloser) {
		asked.Add(1)
		return http.StatusOK, "application/json", io.NopCloser(strings.NewReader("{}"))
	})
	for _, caller := range []identity.Caller{identity.OfNode(), {Name: "admin", Token: "good"}} {
		for _, name := range []string{"Impersonate-User", "Impersonate-Group", "Impersonate-Extra-Scopes"} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodDelete, "/api/v1/namespaces/default/pods/a", nil)
			r.Header.Set(name, "viewer")
			w := httptest.NewRecorder()
			n.answer(w, r, caller)
			if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "kubectl --as") {
				t.Errorf("%s with %s is answered %d %s", caller.Name, name, w.Code, w.Body)
			}
		}
	}
	if asked.Load() > 0 {
		t.Errorf("%d requests were passed on", asked.Load())
	}
}

// TestTokenWebsocketProtocolsAreStripped: other websocket protocols stay.
func TestTokenWebsocketProtocolsAreStripped(t *testing.T) {
	h := http.Header{"Sec-Websocket-Protocol": {"v5.channel.k8s.io, " + tokenProtocol + "YQ", "v4.channel.k8s.io"}}
	strip(h)
	if got, want := h.Values("Sec-Websocket-Protocol"), []string{"v5.channel.k8s.io", "v4.channel.k8s.io"}; !slices.Equal(got, want) {
		t.Errorf("the protocols are %q, want %q", got, want)
	}
}

// TestGateRefusesTablesAndForeignKinds: and upgraded connections.
func TestGateRefusesTablesAndForeignKinds(t *testing.T) {
	const held = "secret-of-a-held-pod"
	table := `{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"5"},"rows":[{"object":{"metadata":{"name":"` + held + `"}}}]}`
	frame := `{"type":"ADDED","object":` + table + "}\n"
	n := newNode(t, wire.JSON)
	n.cloud.set(false, func(r *http.Request) (int, string, io.ReadCloser) {
		if r.URL.Query().Has("watch") {
			return http.StatusOK, "application/json", io.NopCloser(strings.NewReader(frame))
		}
		return http.StatusOK, "application/json", io.NopCloser(strings.NewReader(table))
	})
	asTable := http.Header{"Accept": {"application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}}
	upgrade := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}
	for _, target := range []string{
		"/api/v1/namespaces/default/pods/a?includeObject=Object", podsOfNode + "&includeObject=Object", podsOfNode + "&watch=1&resourceVersion=4&includeObject=Object",
		"/api/v1/watch/pods?resourceVersion=4", "/api/v1/namespaces/default/pods/a/status",
	} {
		for name, header := range map[string]http.Header{"asked as a table": asTable, "asked by another protocol": upgrade, "with a table as the answer": {"Accept": {"application/json"}}} {
			if strings.HasSuffix(target, "/status") && name != "asked by another protocol" {
				continue // kubelets have no right to read it
			}
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
			maps.Copy(r.Header, header)
			w := httptest.NewRecorder()
			n.answer(w, r, identity.Caller{Name: "node", IsNode: true})
			if strings.Contains(w.Body.String(), held) || w.Code == http.StatusOK && !strings.Contains(target, "watch") {
				t.Errorf("%s, %s is answered %d %s", target, name, w.Code, w.Body)
			}
		}
	}
}

// TestWatchOfAnExpiredCertificateEndsOnceOnline: an expired certificate counts only while the cloud is offline.
func TestWatchOfAnExpiredCertificateEndsOnceOnline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, wire.JSON)
		n.answers(5, pod("a", "1", 5, nil))
		n.ask(t.Context(), podsOfNode)
		n.Wait()
		n.cloud.set(true, nil)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, podsOfNode+"&watch=1&resourceVersion=5", nil)
		r.Header.Set("Accept", "application/json")
		r.TLS = &tls.ConnectionState{} // nobody, by now
		ended := make(chan struct{})
		w := httptest.NewRecorder()
		go func() {
			defer close(ended)
			n.answer(w, r, identity.Caller{Name: "node", IsNode: true})
		}()
		synctest.Wait() // it has what is kept
		var asked atomic.Int32
		frame, err := n.format.AppendEvent(nil, watch.Added, n.encode(pod("b", "1", 6, nil)))
		if err != nil {
			t.Fatal(err)
		}
		n.cloud.set(false, func(*http.Request) (int, string, io.ReadCloser) {
			asked.Add(1)
			return http.StatusOK, n.format.WatchContentType(), io.NopCloser(strings.NewReader(string(frame)))
		})
		<-ended
		if asked.Load() > 0 || strings.Contains(w.Body.String(), `"b"`) {
			t.Errorf("the cloud was asked %d times, and the client got %q", asked.Load(), w.Body)
		}
	})
}
