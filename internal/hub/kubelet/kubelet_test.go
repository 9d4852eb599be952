package kubelet

import (
	"bytes"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// encodings are those in which a kubelet may ask.
var encodings = []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf}

func encode(t *testing.T, encoding string, object runtime.Object) []byte {
	t.Helper()
	info, found := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), encoding)
	if !found {
		t.Fatal(encoding)
	}
	var text bytes.Buffer
	if err := codecs.EncoderForVersion(info.Serializer, object.GetObjectKind().GroupVersionKind().GroupVersion()).Encode(object, &text); err != nil {
		t.Fatal(err)
	}
	return text.Bytes()
}

// TestReviewsAllowOnlyTheHubsToken: the token may read logs of this node, and may do what people need while the
// pool's access port is open. All other reviews go to the API server.
func TestReviewsAllowOnlyTheHubsToken(t *testing.T) {
	k := New("a", "", "")
	if other := New("a", "", ""); other.token == k.token || other.uid == k.uid || len(k.token) < 40 {
		t.Error("two hubs have the same token, or it is short")
	}
	tokenReview := func(token string) runtime.Object {
		r := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
		r.APIVersion, r.Kind = "authentication.k8s.io/v1", "TokenReview"
		return r
	}
	access := func(name, uid string, a *authorizationv1.ResourceAttributes) runtime.Object {
		r := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: name, UID: uid, ResourceAttributes: a}}
		r.APIVersion, r.Kind = "authorization.k8s.io/v1", "SubjectAccessReview"
		return r
	}
	proxy := &authorizationv1.ResourceAttributes{Verb: "get", Version: "v1", Resource: "nodes", Subresource: "proxy", Name: "a"}
	create, other := *proxy, *proxy
	create.Verb, other.Name = "create", "b"
	for _, encoding := range encodings {
		if r, is := k.Review(encode(t, encoding, tokenReview(k.token))).(*authenticationv1.TokenReview); !is || !r.Status.Authenticated || r.Status.User.Username != user || r.Status.User.UID != k.uid || len(r.Status.User.Groups) > 0 || r.Kind == "" {
			t.Errorf("%s: the hub's token is that of %+v", encoding, r)
		}
		for name, question := range map[string]runtime.Object{
			"another token": tokenReview("x"), "a token with more": tokenReview(k.token + "x"), "another user": access("somebody", k.uid, proxy),
			"another uid": access(user, "x", proxy), "no uid": access(user, "", proxy),
		} {
			if got := k.Review(encode(t, encoding, question)); got != nil {
				t.Errorf("%s, %s is answered %+v", encoding, name, got)
			}
		}
		for a, want := range map[*authorizationv1.ResourceAttributes]bool{proxy: true, &create: false, &other: false, nil: false} {
			if r, is := k.Review(encode(t, encoding, access(user, k.uid, a))).(*authorizationv1.SubjectAccessReview); !is || r.Status.Allowed != want || r.Kind == "" {
				t.Errorf("%s: %+v is answered %+v, want %t", encoding, a, r, want)
			}
		}
	}
	right := func(verb, subresource string) *authorizationv1.ResourceAttributes {
		return &authorizationv1.ResourceAttributes{Verb: verb, Version: "v1", Resource: "nodes", Subresource: subresource, Name: "a"}
	}
	for _, open := range []bool{false, true, false} {
		k.Open(open)
		for a, want := range map[*authorizationv1.ResourceAttributes]bool{
			right("get", "proxy"): true, right("create", "proxy"): open, right("get", "stats"): open, right("get", "metrics"): open,
			right("create", "stats"): false, right("update", "proxy"): false, right("", "proxy"): false, right("get", ""): false, right("get", "log"): false,
			right("get", "pods"): false, right("get", "configz"): false, right("create", "checkpoint"): false, right("get", "healthz"): false, right("*", "*"): false,
			{Verb: "create", Resource: "nodes", Subresource: "proxy", Name: "b"}: false, {Verb: "create", Group: "x", Resource: "nodes", Subresource: "proxy", Name: "a"}: false,
			{Verb: "create", Resource: "pods", Subresource: "proxy", Name: "a"}: false,
		} {
			if r, is := k.Review(encode(t, encodings[0], access(user, k.uid, a))).(*authorizationv1.SubjectAccessReview); !is || r.Status.Allowed != want {
				t.Errorf("open %t: %s %s of %s/%s is answered %+v, want %t", open, a.Verb, a.Subresource, a.Resource, a.Name, r, want)
			}
		}
	}
	if got := k.Review([]byte("no object " + k.token)); got != nil {
		t.Errorf("a text is answered %+v", got)
	}
}

// TestTokenIsSentToTheKubeletOnly: the server must have the key of the certificate in the kubelet's file.
func TestTokenIsSentToTheKubeletOnly(t *testing.T) {
	var asked []string
	status := http.StatusOK
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.String()+" "+r.Header.Get("Authorization"))
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "text\n")
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "kubelet.crt")
	signed := filepath.Join(t.TempDir(), "kubelet-server-current.pem") // comes later
	k := New("a", strings.TrimPrefix(server.URL, "https://"), signed, file)
	ask := func(query url.Values) (string, error) {
		response, err := k.Log(t.Context(), "default", "web", query)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return string(text), err
	}
	query := func() url.Values { return url.Values{"container": {"c"}, "tailLines": {"3"}} }
	if _, err := ask(query()); err == nil {
		t.Error("without the file the kubelet is asked")
	}
	write := func(certificate []byte) {
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	wrong := bytes.Clone(server.Certificate().Raw)
	wrong[len(wrong)-1] ^= 1
	write(wrong)
	if _, err := ask(query()); err == nil || len(asked) > 0 {
		t.Errorf("somebody else is asked %q, %v", asked, err)
	}
	write(server.Certificate().Raw)
	if text, err := ask(query()); err != nil || text != "text\n" || len(asked) != 1 || asked[0] != "/containerLogs/default/web/c?tailLines=3 Bearer "+k.token {
		t.Errorf("the log is %q, %v, and the kubelet was asked %q", text, err, asked)
	}
	for code, want := range map[int]int{http.StatusNotFound: http.StatusNotFound, http.StatusUnauthorized: http.StatusServiceUnavailable, http.StatusForbidden: http.StatusServiceUnavailable} {
		status = code
		_, err := ask(query())
		if got, text := ReasonOf(err); got != want || !strings.Contains(text, "text") {
			t.Errorf("%d is answered %d %s", code, got, text)
		}
	}
	k.transport.CloseIdleConnections()
	if err := os.WriteFile(signed, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: wrong}), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(query()); err == nil || !strings.Contains(err.Error(), signed) {
		t.Errorf("with another certificate in the first file, asking ends with %v", err)
	}
	if _, err := ask(url.Values{"container": {"../../../pods"}}); err == nil {
		t.Error("a path is taken for a container")
	}
	if k.transport.ResponseHeaderTimeout != 0 {
		t.Error("a request that follows a quiet container ends")
	}
	if _, err := ask(url.Values{}); err == nil {
		t.Error("without a container the kubelet is asked")
	} else if got, _ := ReasonOf(err); got != http.StatusBadRequest || errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a container the answer is %d", got)
	}
}

// TestKubeletErrorsAreExplainedWithoutTheToken: a request that the kubelet cannot answer gets 503 with the
// reason, and the reason does not contain the token.
func TestKubeletErrorsAreExplainedWithoutTheToken(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "Forbidden (user=atoll:hub)", http.StatusForbidden)
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "kubelet.crt")
	k := New("a", strings.TrimPrefix(server.URL, "https://"), file)
	pass := func() (int, string) {
		w := httptest.NewRecorder()
		k.Pass(w, httptest.NewRequest(http.MethodPost, "/exec/default/web/c?command=ls", nil))
		return w.Code, w.Body.String()
	}
	if code, text := pass(); code != http.StatusServiceUnavailable || !strings.Contains(text, "serving certificate") {
		t.Errorf("without the kubelet's certificate the answer is %d %s", code, text)
	}
	if err := k.Try(t.Context()); err != nil {
		t.Errorf("a kubelet that cannot be asked refuses the hub: %v", err)
	}
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, text := pass(); code != http.StatusServiceUnavailable || !strings.Contains(text, "authentication.webhook.enabled") || !strings.Contains(text, "user=atoll:hub") || strings.Contains(text, k.token) {
		t.Errorf("if the kubelet does not ask the hub, the answer is %d %s", code, text)
	}
	if err := k.Try(t.Context()); err == nil || !strings.Contains(err.Error(), "authentication.webhook.enabled") || strings.Contains(err.Error(), k.token) {
		t.Errorf("a kubelet that refuses the hub is told as %v", err)
	}
}
