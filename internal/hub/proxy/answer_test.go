package proxy

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// compressing is a cloud that compresses what is not refused. spoil, if set, changes what it sends, and slow is
// called when half of it has been sent.
type compressing struct {
	*scripted

	spoil func([]byte) []byte
	slow  func()
}

// calling is a reader that calls a function and is empty.
type calling func()

// Read implements io.Reader.
func (c calling) Read([]byte) (int, error) {
	c()
	return 0, io.EOF
}

// RoundTrip implements Cloud.
func (z *compressing) RoundTrip(r *http.Request, asNode bool) (*http.Response, error) {
	response, err := z.scripted.RoundTrip(r, asNode)
	if err != nil || r.Header.Get("Accept-Encoding") != gzipped {
		return response, err
	}
	var text bytes.Buffer
	w, err := gzip.NewWriterLevel(&text, gzip.BestSpeed) // as API servers do
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(w, response.Body); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	sent := text.Bytes()
	if z.spoil != nil {
		sent = z.spoil(sent)
	}
	response.Header.Set("Content-Encoding", gzipped)
	response.Body = io.NopCloser(bytes.NewReader(sent))
	if z.slow != nil {
		half := len(sent) / 2
		response.Body = io.NopCloser(io.MultiReader(bytes.NewReader(sent[:half]), calling(z.slow), bytes.NewReader(sent[half:])))
	}
	response.ContentLength = -1
	return response, nil
}

// askFor asks as a client that accepts encodings.
func (n *node) askFor(caller identity.Caller, target, encodings string) *httptest.ResponseRecorder {
	n.Helper()
	r := httptest.NewRequestWithContext(n.Context(), http.MethodGet, target, nil)
	r.Header.Set("Accept", n.format.ContentType())
	if encodings != "" {
		r.Header.Set("Accept-Encoding", encodings)
	}
	w := httptest.NewRecorder()
	n.answer(w, r, caller)
	n.Wait()
	return w
}

// plainOf returns the body of an answer without its encoding.
func (n *node) plainOf(w *httptest.ResponseRecorder) []byte {
	n.Helper()
	if w.Header().Get("Content-Encoding") != gzipped {
		return w.Body.Bytes()
	}
	from, err := gzip.NewReader(bytes.NewReader(w.Body.Bytes()))
	if err != nil {
		n.Fatal(err)
	}
	text, err := io.ReadAll(from)
	if err != nil {
		n.Fatal(err)
	}
	return text
}

// TestCompressedAnswersPassUnlessTheGateRemovesPods: only to clients that accept gzip. Offline all clients get
// the same objects.
func TestCompressedAnswersPassUnlessTheGateRemovesPods(t *testing.T) {
	const single = "/api/v1/namespaces/default/pods/free"
	for _, format := range formats {
		for _, caller := range []identity.Caller{identity.OfNode(), reader} {
			n := newNode(t, format)
			n.Proxy.Cloud = &compressing{scripted: n.cloud}
			n.Tokens.Accepted(reader.Token, time.Now())
			check := func(when, encodings string, compressed bool, want map[string]string) {
				t.Helper()
				w := n.askFor(caller, podsOfNode, encodings)
				body := n.plainOf(w)
				if is := w.Header().Get("Content-Encoding") == gzipped; w.Code != http.StatusOK || is != compressed {
					t.Errorf("%s, %s: the answer is %d, compressed: %t, want %t", format, when, w.Code, is, compressed)
				}
				if got := n.pods(body); !maps.Equal(got, want) {
					t.Errorf("%s, %s: the pods are %v, want %v", format, when, got, want)
				}
			}
			free := map[string]string{"free": "one"}
			n.answers(1, pod("free", "one", 1, nil))
			check("with gzip", "deflate, GZIP", true, free)
			check("without", "", false, free)
			check("with gzip refused", "gzip;q=0", false, free)
			w := n.askFor(caller, single, gzipped)
			if want := n.encode(pod("free", "one", 1, nil)); w.Header().Get("Content-Encoding") != gzipped || !bytes.Equal(n.plainOf(w), want) {
				t.Errorf("%s: the pod is %d %q, want %q", format, w.Code, n.plainOf(w), want)
			}
			n.answers(2, pod("free", "two", 2, nil), pod("held", "one", 2, unbound))
			want := map[string]string{"free": "two"}
			if !caller.IsNode {
				want["held"] = "one"
			}
			check("with a held pod", gzipped, !caller.IsNode, want)
			n.cloud.set(true, nil)
			check("offline", gzipped, false, want)
			check("offline, without gzip", "", false, want)
			w = n.askFor(caller, single, gzipped)
			if want := n.encode(pod("free", "one", 1, nil)); !bytes.Equal(w.Body.Bytes(), want) {
				t.Errorf("%s: offline the pod is %d %q, want %q", format, w.Code, w.Body, want)
			}
		}
	}
}

// spoilers damage what a cloud sends.
var spoilers = map[string]func([]byte) []byte{
	"half of it":       func(sent []byte) []byte { return sent[:len(sent)/2] },
	"without its end":  func(sent []byte) []byte { return sent[:len(sent)-1] },
	"a wrong checksum": func(sent []byte) []byte { sent[len(sent)-5] ^= 1; return sent },
	"a wrong length":   func(sent []byte) []byte { sent[len(sent)-1] ^= 0x80; return sent },
	"not compressed":   func([]byte) []byte { return []byte("text") },
	"nothing":          func([]byte) []byte { return nil },
}

// TestDamagedCompressedAnswersAreNotKept: the gate rejects them.
func TestDamagedCompressedAnswersAreNotKept(t *testing.T) {
	for name, spoil := range spoilers {
		for _, caller := range []identity.Caller{identity.OfNode(), reader} {
			n := newNode(t, wire.Protobuf)
			n.Tokens.Accepted(reader.Token, time.Now())
			cloud := &compressing{scripted: n.cloud}
			n.Proxy.Cloud = cloud
			n.answers(1, pod("a", "one", 1, nil))
			n.askFor(caller, podsOfNode, gzipped)
			n.answers(2, pod("a", "two", 2, nil))
			cloud.spoil = spoil
			if w := n.askFor(caller, podsOfNode, gzipped); caller.IsNode && w.Code/100 == 2 {
				t.Errorf("%s passes by the gate", name)
			}
			n.cloud.set(true, nil)
			w := n.askFor(caller, podsOfNode, gzipped)
			if got := n.pods(w.Body.Bytes()); !maps.Equal(got, map[string]string{"a": "one"}) {
				t.Errorf("after %s, offline the pods are %v", name, got)
			}
			if taken := n.Record.Waiting("others\n").Taken(); taken != 0 {
				t.Errorf("after %s, %d bytes are still taken", name, taken)
			}
		}
	}
}

// TestOversizedCompressedAnswerIsNotKept: the limit applies to the answer without its compression.
func TestOversizedCompressedAnswerIsNotKept(t *testing.T) {
	n := newNode(t, wire.JSON)
	n.Proxy.Cloud = &compressing{scripted: n.cloud}
	n.Tokens.Accepted(reader.Token, time.Now())
	n.cloud.set(false, func(*http.Request) (int, string, io.ReadCloser) {
		return http.StatusOK, "text/plain", io.NopCloser(bytes.NewReader(make([]byte, 4<<20)))
	})
	for _, tc := range []struct {
		path  string
		taken int64
		kept  bool
	}{{"/openapi/v3?x=1", maxAnswer - 5<<20, true}, {"/openapi/v3?x=2", maxAnswer - 3<<20, false}} {
		n.Record.Waiting("others\n").Take(tc.taken - n.Record.Waiting("others\n").Taken())
		n.cloud.set(false, nil)
		if w := n.askFor(reader, tc.path, gzipped); len(n.plainOf(w)) != 4<<20 {
			t.Errorf("the answer has %d bytes", len(n.plainOf(w)))
		}
		if got := n.Record.Waiting("others\n").Taken(); got != tc.taken {
			t.Errorf("%d bytes are taken, want %d", got, tc.taken)
		}
		n.cloud.set(true, nil)
		if w := n.askFor(reader, tc.path, gzipped); (w.Code == http.StatusOK) != tc.kept {
			t.Errorf("with %d bytes taken, offline the answer is %d", tc.taken, w.Code)
		}
	}
}

// TestReusedBuffersHaveNothingOfOtherAnswers: many compressed lists are answered and stored at the same time.
func TestReusedBuffersHaveNothingOfOtherAnswers(t *testing.T) {
	n := newNode(t, wire.Protobuf)
	n.Proxy.Cloud = &compressing{scripted: n.cloud}
	n.Tokens.Accepted(reader.Token, time.Now())
	listOf := func(who string, version int) map[string]string {
		pods := map[string]string{}
		for i := range 20 {
			pods[fmt.Sprintf("%s-%d", who, i)] = fmt.Sprint(who, version, strings.Repeat("x", 20<<10))
		}
		return pods
	}
	n.cloud.set(false, func(r *http.Request) (int, string, io.ReadCloser) {
		version, _ := strconv.Atoi(r.Header.Get("X-Version"))
		list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: fmt.Sprint(1 + version)}}
		for name, image := range listOf(r.URL.Query().Get("who"), version) {
			list.Items = append(list.Items, *pod(name, image, 1+version, nil))
		}
		return http.StatusOK, n.format.ContentType(), io.NopCloser(bytes.NewReader(n.encode(list)))
	})
	ask := func(who string, version int) map[string]string {
		caller := reader
		if strings.HasPrefix(who, "node") {
			caller = identity.OfNode()
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/pods?who="+who, nil)
		for name, value := range map[string]string{"Accept": n.format.ContentType(), "Accept-Encoding": gzipped, "X-Version": fmt.Sprint(version)} {
			r.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		n.answer(w, r, caller)
		return n.pods(n.plainOf(w))
	}
	const versions = 20
	callers := []string{"node-1", "node-2", "other-1", "other-2"}
	var all sync.WaitGroup
	for _, who := range callers {
		all.Go(func() {
			for version := range versions {
				if got := ask(who, version); !maps.Equal(got, listOf(who, version)) {
					t.Errorf("the list %d of %s is not its own", version, who)
				}
			}
		})
	}
	all.Wait()
	n.Wait()
	n.cloud.set(true, nil)
	for _, who := range callers {
		if got := ask(who, 0); !maps.Equal(got, listOf(who, versions-1)) {
			t.Errorf("offline the list of %s is not its own", who)
		}
	}
}

// TestClientsThatPreferCBORGetJSON: the hub does not read CBOR. All these clients share one stored answer.
func TestClientsThatPreferCBORGetJSON(t *testing.T) {
	n := newNode(t, wire.JSON)
	for _, accept := range []string{"application/json;q=0.9", "application/cbor, application/json;q=0.9", "Application/CBOR,application/json;q=0.9"} {
		n.cloud.set(false, func(r *http.Request) (int, string, io.ReadCloser) {
			if got := strings.TrimSpace(r.Header.Get("Accept")); got != "application/json;q=0.9" {
				t.Errorf("of %q the cloud gets %q", accept, got)
			}
			return http.StatusOK, wire.JSON.ContentType(), io.NopCloser(bytes.NewReader(n.encode(pod("a", "1", 1, nil))))
		})
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/namespaces/default/pods/a", nil)
		r.Header.Set("Accept", accept)
		n.answer(httptest.NewRecorder(), r, identity.OfNode())
		n.Wait()
	}
	if scopes := n.Cache.Scopes(); len(scopes) != 1 {
		t.Errorf("%d answers are kept: %+v", len(scopes), scopes)
	}
}
