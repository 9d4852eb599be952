package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/uplink"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

const reviewsPath = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

// reviewing is a cloud that answers reviews with their body.
type reviewing struct {
	Cloud

	mu      sync.Mutex
	offline bool
	reads   int // bytes of the body, before it is offline
}

// RoundTrip implements Cloud.
func (v *reviewing) RoundTrip(r *http.Request, _ bool) (*http.Response, error) {
	v.mu.Lock()
	offline, reads := v.offline, v.reads
	v.mu.Unlock()
	if offline {
		if _, err := io.CopyN(io.Discard, r.Body, int64(reads)); err != nil {
			return nil, err
		}
		return nil, uplink.ErrOffline
	}
	if r.Header.Get("X-Large") != "" {
		_, err := io.Copy(io.Discard, r.Body)
		return &http.Response{StatusCode: http.StatusCreated, Header: http.Header{}, Body: http.NoBody}, err
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body))}, nil
}

func (v *reviewing) set(offline bool, reads int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.offline, v.reads = offline, reads
}

// review sends a review, and returns the code of the answer and its body.
func (n *node) review(caller identity.Caller, body io.Reader) (code int, answer string) {
	n.Helper()
	r := httptest.NewRequestWithContext(n.Context(), http.MethodPost, reviewsPath, body)
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	n.answer(w, r, caller)
	n.Wait()
	return w.Code, w.Body.String()
}

// TestKeptReviewsAreAnsweredOffline: also if the connection breaks while the cloud reads a review.
func TestKeptReviewsAreAnsweredOffline(t *testing.T) {
	n := newNode(t, wire.JSON)
	cloud := &reviewing{Cloud: n.cloud}
	n.Proxy.Cloud = cloud
	n.Tokens.Accepted(reader.Token, time.Now())
	asked := strings.Repeat("who may do what? ", 1000)
	for _, caller := range []identity.Caller{reader, identity.OfNode()} {
		cloud.set(false, 0)
		if code, answer := n.review(caller, strings.NewReader(asked)); code != http.StatusCreated || answer != asked {
			t.Fatalf("%s is answered %d %.20s", caller.Name, code, answer)
		}
		for _, reads := range []int{0, 10, len(asked)} {
			cloud.set(true, reads)
			if code, answer := n.review(caller, strings.NewReader(asked)); code != http.StatusCreated || answer != asked {
				t.Errorf("offline after %d bytes, %s is answered %d %.20s", reads, caller.Name, code, answer)
			}
		}
		if code, _ := n.review(caller, strings.NewReader(asked+"!")); code != http.StatusServiceUnavailable {
			t.Errorf("offline another review of %s is answered %d", caller.Name, code)
		}
	}
	cloud.set(true, 0)
	unread := strings.NewReader(asked)
	if code, _ := n.review(identity.Caller{Name: "stranger", Token: "forged"}, unread); code != http.StatusServiceUnavailable || unread.Len() != len(asked) {
		t.Errorf("offline a stranger is answered %d, and %d bytes are not read", code, unread.Len())
	}
	cloud.set(false, 0)
	for name, body := range map[string]io.Reader{
		"with its length": strings.NewReader(strings.Repeat("x", maxQuestion+1)), "without its length": io.MultiReader(strings.NewReader(strings.Repeat("x", maxQuestion+1))),
	} {
		if code, _ := n.review(reader, body); code != http.StatusRequestEntityTooLarge {
			t.Errorf("a review that is too large, %s, is answered %d", name, code)
		}
	}
}

// TestLargestReviewsAreForwarded: a user may have very many groups, and a token may be long.
func TestLargestReviewsAreForwarded(t *testing.T) {
	n := newNode(t, wire.JSON)
	n.Proxy.Cloud = &reviewing{Cloud: n.cloud}
	groups := make([]string, 1000)
	for i := range groups {
		groups[i] = fmt.Sprintf("0b16c9a4-6f27-4bd9-94c4-%012d", i)
	}
	for name, object := range map[string]any{
		"a TokenReview": &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: strings.Repeat("x", 48<<10)}},
		"a SubjectAccessReview": &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "somebody", Groups: groups, Extra: map[string]authorizationv1.ExtraValue{"scopes": {strings.Repeat("x", 8<<10)}},
		}},
	} {
		body, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		if code, answer := n.review(identity.OfNode(), bytes.NewReader(body)); code != http.StatusCreated || answer != string(body) {
			t.Errorf("%s with %d bytes is answered %d %.100s", name, len(body), code, answer)
		}
	}
}

// TestBodiesOfReviewsTakeBoundedMemory: a client can send many before the cloud has checked its tokens. Their bodies
// are not stored. With accepted tokens, all callers together have maxAllAnswers bodies of maxQuestion in memory.
func TestBodiesOfReviewsTakeBoundedMemory(t *testing.T) {
	for name, tc := range map[string]struct {
		known            bool
		callers          int // more wait
		size, mostMemory int
	}{
		"unknown tokens": {false, maxAllStrange, 1 << 20, 20 << 20},
		"known tokens":   {true, maxAllAnswers, maxQuestion - 1, 2 * maxAllAnswers * maxQuestion},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, wire.JSON)
			n.Proxy.Cloud = &reviewing{Cloud: n.cloud}
			heap := func() int {
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return int(m.HeapAlloc)
			}
			part := bytes.Repeat([]byte(" "), tc.size)
			before := heap()
			var ends []*io.PipeWriter
			var requests sync.WaitGroup
			for i := range tc.callers {
				from, to := io.Pipe()
				ends = append(ends, to)
				caller := identity.Caller{Name: fmt.Sprint("caller", i), Token: fmt.Sprint("token", i)}
				if tc.known {
					n.Tokens.Accepted(caller.Token, time.Now())
				}
				requests.Go(func() {
					defer func() {
						if err, is := recover().(error); is && !errors.Is(err, http.ErrAbortHandler) {
							t.Error(err)
						}
					}()
					r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, reviewsPath, from)
					r.Header.Set("X-Large", "true")
					r.RemoteAddr = fmt.Sprint("192.0.2.1:", i)
					n.answer(httptest.NewRecorder(), r, caller)
				})
				if _, err := to.Write(part); err != nil {
					t.Fatal(err)
				}
			}
			if more := heap() - before; more > tc.mostMemory {
				t.Errorf("%d MiB are in memory", more>>20)
			}
			for _, to := range ends {
				_ = to.CloseWithError(io.ErrUnexpectedEOF)
			}
			requests.Wait()
		})
	}
}

// TestRequestBodyWithoutEndTimesOut: a request whose body ends in time waits for the cloud's answer.
func TestRequestBodyWithoutEndTimesOut(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		n := newNode(t, wire.JSON)
		n.Tokens.Accepted(reader.Token, time.Now())
		n.slowAfter = 200 * time.Millisecond
		answers := make(chan struct{})
		cloud := &awaiting{&reviewing{Cloud: n.cloud}, answers}
		n.Proxy.Cloud = cloud
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { n.answer(w, r, reader) }))
		server.EnableHTTP2 = http2
		server.StartTLS()
		send := func(body io.Reader) (int, error) {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+reviewsPath, body)
			if err != nil {
				t.Fatal(err)
			}
			response, err := server.Client().Do(r)
			if err != nil {
				return 0, err
			}
			return response.StatusCode, response.Body.Close()
		}
		from, to := io.Pipe()
		go func() { _, _ = io.WriteString(to, "half of it") }()
		if code, err := send(from); code != http.StatusRequestTimeout && err == nil {
			t.Errorf("HTTP/2 %t: half a body is answered %d", http2, code)
		}
		_ = to.Close()
		timer := time.AfterFunc(3*n.slowAfter, func() { close(answers) })
		if code, err := send(strings.NewReader("all of it")); code != http.StatusCreated || err != nil {
			t.Errorf("HTTP/2 %t: a whole body is answered %d, %v", http2, code, err)
		}
		timer.Stop()
		server.Close()
	}
}

// awaiting is a cloud that takes its time for answers.
type awaiting struct {
	*reviewing

	answers chan struct{}
}

// RoundTrip implements Cloud.
func (a *awaiting) RoundTrip(r *http.Request, asNode bool) (*http.Response, error) {
	response, err := a.reviewing.RoundTrip(r, asNode)
	if err == nil {
		<-a.answers
	}
	return response, err
}

// minting is a cloud that makes tokens for ServiceAccounts, and knows one token of somebody else.
type minting struct {
	Cloud

	offline atomic.Bool
}

// RoundTrip implements Cloud.
func (m *minting) RoundTrip(r *http.Request, _ bool) (*http.Response, error) {
	if m.offline.Load() {
		return nil, uplink.ErrOffline
	}
	asked, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	answer := fmt.Sprintf(`{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{"token":"x"},"status":{"authenticated":%t}}`, bytes.Contains(asked, []byte("good")))
	if strings.HasSuffix(r.URL.Path, "/token") {
		audience := "https://issuer"
		if bytes.Contains(asked, []byte("vault")) {
			audience = "vault"
		}
		answer = fmt.Sprintf(`{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{"audiences":[%q]},"status":{"token":%q}}`, audience, "for "+audience)
	}
	return &http.Response{StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(answer))}, nil
}

// post sends a question of the node, and returns the code of the answer.
func (n *node) post(path, body string) int {
	n.Helper()
	r := httptest.NewRequestWithContext(n.Context(), http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	n.answer(w, r, identity.OfNode())
	n.Wait()
	return w.Code
}

const tokenPath = "/api/v1/namespaces/default/serviceaccounts/default/token"

func askToken(audiences string) string {
	return `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{"audiences":` + audiences + `}}`
}

// TestReviewsOfInventedTokensEvictNothing: any client can send such tokens to the kubelet's port, any number of
// times.
func TestReviewsOfInventedTokensEvictNothing(t *testing.T) {
	const path = "/apis/authentication.k8s.io/v1/tokenreviews"
	n := newNode(t, wire.JSON)
	cloud := &minting{Cloud: n.cloud}
	n.Proxy.Cloud = cloud
	review := func(token string) string {
		return `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{"token":"` + token + `"}}`
	}
	n.post(tokenPath, askToken("[]"))
	n.post(path, review("good"))
	for i := range 500 + 10 {
		n.post(path, review(fmt.Sprint("invented-", i)))
	}
	cloud.offline.Store(true)
	if code := n.post(tokenPath, askToken("[]")); code != http.StatusCreated {
		t.Errorf("without the cloud, the request for a token is answered %d", code)
	}
	if code := n.post(path, review("good")); code != http.StatusCreated {
		t.Errorf("without the cloud, the review of a token that the cloud knows is answered %d", code)
	}
	if code := n.post(path, review("invented-1")); code != http.StatusServiceUnavailable {
		t.Errorf("without the cloud, the review of an invented token is answered %d", code)
	}
}

// TestTokenIsKnownOnceTheCloudHasIssuedIt: a pod may not have used it before the cloud goes offline. A token for
// another audience is not known.
func TestTokenIsKnownOnceTheCloudHasIssuedIt(t *testing.T) {
	n := newNode(t, wire.JSON)
	n.Proxy.Cloud = &minting{Cloud: n.cloud}
	n.post(tokenPath, askToken("[]"))
	n.post(tokenPath, askToken(`["vault"]`))
	if !n.Tokens.Knows("for https://issuer") {
		t.Error("the token that the kubelet got for a pod is not known")
	}
	if n.Tokens.Knows("for vault") {
		t.Error("a token for another audience is known")
	}
}

// TestDeniedReviewsAreNotKept: any pod's token makes a kubelet send them, any number of times.
func TestDeniedReviewsAreNotKept(t *testing.T) {
	n := newNode(t, wire.JSON)
	allowed := true
	n.Proxy.Cloud = &roundTrips{n.cloud, func() *http.Response {
		body := fmt.Sprintf(`{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":%t}}`, allowed)
		return &http.Response{StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body))}
	}}
	n.post(reviewsPath, `{"a":1}`)
	allowed = false
	for i := range 500 + 10 {
		n.post(reviewsPath, fmt.Sprintf(`{"b":%d}`, i))
	}
	if got := len(n.Cache.Scopes()); got != 1 {
		t.Errorf("%d reviews are kept", got)
	}
	n.post(reviewsPath, `{"a":1}`) // an API server that starts denies everything
	if got := len(n.Cache.Scopes()); got != 1 {
		t.Errorf("after a first denial of what was allowed, %d reviews are kept", got)
	}
}

// TestReviewsThatAreDeniedForLongAreDropped: an API server that starts may deny for a while what it allowed.
func TestReviewsThatAreDeniedForLongAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, wire.JSON)
		allowed := true
		n.Proxy.Cloud = &roundTrips{n.cloud, func() *http.Response {
			body := fmt.Sprintf(`{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":%t}}`, allowed)
			return &http.Response{StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body))}
		}}
		n.post(reviewsPath, `{}`)
		allowed = false
		for minute := range 7 {
			n.post(reviewsPath, `{}`)
			if got, want := len(n.Cache.Scopes()) == 1, minute < 5; got != want && minute != 5 {
				t.Errorf("it is kept after %d minutes of denials: %t", minute, got)
			}
			time.Sleep(time.Minute)
		}
	})
}

// roundTrips is a cloud that answers by a function.
type roundTrips struct {
	Cloud

	answer func() *http.Response
}

// RoundTrip implements Cloud.
func (t *roundTrips) RoundTrip(*http.Request, bool) (*http.Response, error) { return t.answer(), nil }
