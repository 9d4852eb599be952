package proxy

import (
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/kubelet"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// asksHub asks a question of a kubelet at the hub, and reads the answer into it.
func (n *node) asksHub(path string, question any) {
	n.Helper()
	text, err := json.Marshal(question)
	if err != nil {
		n.Error(err)
	}
	r := httptest.NewRequestWithContext(n.Context(), http.MethodPost, path, strings.NewReader(string(text)))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	n.answer(w, r, identity.OfNode())
	if err := json.Unmarshal(w.Body.Bytes(), question); err != nil || w.Code != http.StatusCreated {
		n.Errorf("%s is answered %d %s", path, w.Code, w.Body)
	}
}

// TestOnlyTheNodeGetsReviewsOfTheHubsToken: a client that has learned the token could otherwise check it.
func TestOnlyTheNodeGetsReviewsOfTheHubsToken(t *testing.T) {
	n := newNode(t, wire.JSON)
	var token string
	server := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		token = strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "kubelet.crt")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	n.Kubelet = kubelet.New("a", strings.TrimPrefix(server.URL, "https://"), file)
	n.accepting(identity.OfNode(), "*/*", "/api/v1/namespaces/default/pods/web/log?container=c")
	question := `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{"token":"` + token + `"}}`
	for caller, want := range map[identity.Caller]bool{identity.OfNode(): true, {Name: "subject:https://issuer#somebody", Token: "x"}: false} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/apis/authentication.k8s.io/v1/tokenreviews", strings.NewReader(question))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		n.answer(w, r, caller)
		if got := strings.Contains(w.Body.String(), `"authenticated":true`); token == "" || got != want {
			t.Errorf("%s gets %d %s", caller.Name, w.Code, w.Body)
		}
	}
}

// TestNodeReadsLogsFromItsKubelet: online and offline. The kubelet sends its reviews through the hub. Log
// requests of other callers, and reviews of other tokens, go to the cloud.
func TestNodeReadsLogsFromItsKubelet(t *testing.T) {
	n := newNode(t, wire.JSON)
	var paths []string // of what the cloud is asked
	for _, offline := range []bool{false, true} {
		n.cloud.set(offline, func(r *http.Request) (int, string, io.ReadCloser) {
			paths = append(paths, r.URL.Path)
			return http.StatusForbidden, "application/json", io.NopCloser(strings.NewReader("{}"))
		})
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			who := &authenticationv1.TokenReview{TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"}}
			who.Spec.Token = strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
			n.asksHub("/apis/authentication.k8s.io/v1/tokenreviews", who)
			may := &authorizationv1.SubjectAccessReview{TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"}}
			may.Spec = authorizationv1.SubjectAccessReviewSpec{
				User: who.Status.User.Username, UID: who.Status.User.UID,
				ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Version: "v1", Resource: "nodes", Subresource: "proxy", Name: "a"},
			}
			n.asksHub(reviewsPath, may)
			if !who.Status.Authenticated || !may.Status.Allowed || strings.Contains(r.URL.Path, "nobody") {
				http.Error(w, "no", http.StatusNotFound)
				return
			}
			_, _ = io.WriteString(w, "the log")
		}))
		file := filepath.Join(t.TempDir(), "kubelet.crt")
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
			t.Fatal(err)
		}
		n.Kubelet = kubelet.New("a", strings.TrimPrefix(server.URL, "https://"), file)
		if w := n.accepting(identity.OfNode(), "*/*", "/api/v1/namespaces/default/pods/web/log?container=c"); w.Code != http.StatusOK || w.Body.String() != "the log" {
			t.Errorf("offline %t, the log is %d %s", offline, w.Code, w.Body)
		}
		if w := n.accepting(identity.OfNode(), "application/json, */*", "/api/v1/namespaces/default/pods/nobody/log?container=c"); w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), `"Status"`) {
			t.Errorf("offline %t, the log of no pod is %d %s", offline, w.Code, w.Body)
		}
		if len(paths) > 0 {
			t.Errorf("the cloud is asked %q", paths)
		}
		server.Close()
		if w := n.accepting(identity.OfNode(), "*/*", "/api/v1/namespaces/default/pods/web/log?container=c"); w.Code != http.StatusServiceUnavailable {
			t.Errorf("offline %t, without a kubelet the log is %d %s", offline, w.Code, w.Body)
		}
	}
	n.cloud.set(false, func(r *http.Request) (int, string, io.ReadCloser) {
		paths = append(paths, r.URL.Path)
		return http.StatusForbidden, "application/json", io.NopCloser(strings.NewReader("{}"))
	})
	n.accepting(identity.Caller{Name: "somebody", Token: "x"}, "*/*", "/api/v1/namespaces/default/pods/web/log?container=c")
	n.post(reviewsPath, `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{"user":"atoll:hub"}}`)
	if len(paths) != 1 || len(n.cloud.events) != 1 { // which is all that is posted
		t.Errorf("the cloud is asked for %q, and gets %v", paths, n.cloud.events)
	}
}
