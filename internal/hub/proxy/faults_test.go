package proxy

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/record"
	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
	"github.com/atoll-k8s/atoll/internal/testing/build"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// reader asks for what no gate looks into.
var reader = identity.Caller{Name: "reader", Token: "x"}

// askAs sends a request of another caller.
func (n *node) askAs(caller identity.Caller, target string) *httptest.ResponseRecorder {
	n.Helper()
	r := httptest.NewRequestWithContext(n.Context(), http.MethodGet, target, nil)
	r.Header.Set("Accept", n.format.ContentType())
	w := httptest.NewRecorder()
	n.answer(w, r, caller)
	return w
}

// TestInvalidAnswersAreNotKept: a proxy or a broken server may answer anything. The client gets that answer, and
// offline the last valid one.
func TestInvalidAnswersAreNotKept(t *testing.T) {
	for _, format := range formats {
		n := newNode(t, format)
		n.Tokens.Accepted(reader.Token, time.Now())
		n.answers(1, pod("a", "1", 1, nil))
		whole := n.encode(pod("a", "1", 1, nil))
		for _, caller := range []identity.Caller{reader, {Name: "node", IsNode: true}} {
			n.answers(1, pod("a", "1", 1, nil))
			n.askAs(caller, podsOfNode)
			for name, answer := range map[string]struct{ contentType, body string }{
				"a page":                   {"text/html", "<html>Log in</html>"},
				"no content type":          {"", "x"},
				"an object in its place":   {format.ContentType(), string(whole)},
				"nothing":                  {format.ContentType(), ""},
				"half of it":               {format.ContentType(), string(whole[:len(whole)/2])},
				"another encoding":         {"application/cbor", string(whole)},
				"a number":                 {format.ContentType(), "17"},
				"deeply nested text":       {format.ContentType(), strings.Repeat("[", 100_000)},
				"text that is not unicode": {format.ContentType(), "{\"kind\":\"\xff\xfe"},
			} {
				n.cloud.set(false, func(*http.Request) (int, string, io.ReadCloser) {
					return http.StatusOK, answer.contentType, io.NopCloser(strings.NewReader(answer.body))
				})
				w := n.askAs(caller, podsOfNode)
				if !caller.IsNode && (w.Code != http.StatusOK || w.Body.String() != answer.body) {
					t.Errorf("%s %s becomes %d %q", format, name, w.Code, w.Body)
				}
				if caller.IsNode && w.Code/100 == 2 {
					t.Errorf("%s %s passes by the gate: %d %q", format, name, w.Code, w.Body)
				}
				n.Wait()
				n.cloud.set(true, nil)
				w = n.askAs(caller, podsOfNode)
				if got := n.pods(w.Body.Bytes()); w.Code != http.StatusOK || !maps.Equal(got, map[string]string{"a": "1"}) {
					t.Errorf("after %s, %s offline is %d %v", name, format, w.Code, got)
				}
			}
		}
	}
}

// TestTruncatedAnswerIsNotKept: the client gets an error.
func TestTruncatedAnswerIsNotKept(t *testing.T) {
	n := newNode(t, wire.JSON)
	n.Tokens.Accepted(reader.Token, time.Now())
	n.answers(1, pod("a", "1", 1, nil))
	n.askAs(reader, podsOfNode)
	n.cloud.set(false, func(*http.Request) (int, string, io.ReadCloser) {
		return http.StatusOK, n.format.ContentType(), io.NopCloser(io.MultiReader(strings.NewReader(`{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[`), &breaks{}))
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { n.answer(w, r, reader) }))
	defer server.Close()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+podsOfNode, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", n.format.ContentType())
	response, err := server.Client().Do(request)
	if err == nil {
		_, err = io.ReadAll(response.Body)
		_ = response.Body.Close()
	}
	if err == nil {
		t.Error("the client takes half an answer for a whole one")
	}
	n.Wait()
	n.cloud.set(true, nil)
	if got := n.pods(n.askAs(reader, podsOfNode).Body.Bytes()); !maps.Equal(got, map[string]string{"a": "1"}) {
		t.Errorf("offline the pods are %v", got)
	}
}

// breaks is a connection that breaks.
type breaks struct{}

// Read implements io.Reader.
func (*breaks) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// TestExpiredWatchEndsWithTheCloudsError: a watch whose resource version has expired ends with the cloud's own
// error, so that the client lists again.
func TestExpiredWatchEndsWithTheCloudsError(t *testing.T) {
	for _, format := range formats {
		t.Run(format.String(), func(t *testing.T) {
			n := newNode(t, format)
			n.answers(1, pod("a", "1", 1, nil))
			n.ask(t.Context(), podsOfNode)
			gone, err := format.EncodeStatus(metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired, Code: http.StatusGone, Message: "too old"})
			if err != nil {
				t.Fatal(err)
			}
			lists, watches := n.cloud.answer, 0
			n.cloud.set(false, func(r *http.Request) (int, string, io.ReadCloser) {
				if r.URL.Query().Get("watch") == "" {
					return lists(r)
				}
				if watches++; watches > 1 {
					return http.StatusGone, format.ContentType(), io.NopCloser(strings.NewReader(string(gone)))
				}
				frame, err := format.AppendEvent(nil, watch.Added, n.encode(pod("b", "1", 2, nil)))
				if err != nil {
					t.Error(err)
				}
				return http.StatusOK, format.WatchContentType(), io.NopCloser(io.MultiReader(strings.NewReader(string(frame)), &breaks{}))
			})
			w := n.ask(t.Context(), podsOfNode+"&watch=1&resourceVersion=1")
			events := format.NewEventReader(w.Body, 1<<20)
			var got []string
			for {
				e, err := events.Next()
				if err != nil {
					break
				}
				got = append(got, string(e.Type))
				if e.Type == watch.Error {
					if status, err := format.DecodeStatus(e.Object); err != nil || status.Code != http.StatusGone {
						t.Errorf("the error is %+v, %v", status, err)
					}
				}
			}
			if !slices.Equal(got, []string{"ADDED", "ERROR"}) {
				t.Errorf("the events are %v", got)
			}
		})
	}
}

// TestUnreadWatchIsEnded: other clients and the cache do not wait for its client.
func TestUnreadWatchIsEnded(t *testing.T) {
	n := newNode(t, wire.JSON)
	n.slowAfter = 100 * time.Millisecond
	n.answers(1)
	n.ask(t.Context(), podsOfNode)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.answer(w, r, identity.Caller{Name: "node", IsNode: true})
	}))
	defer server.Close()
	from, to := io.Pipe()
	n.watchesAre(from)
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "GET %s&watch=1&resourceVersion=1 HTTP/1.1\r\nHost: hub\r\nAccept: application/json\r\n\r\n", podsOfNode); err != nil {
		t.Fatal(err)
	}
	large := strings.Repeat("x", 1<<20)
	var failed error
	version := 1
	for failed == nil && version < 1000 { // until the buffers between the two are full, and the hub gives up
		version++
		frame, err := n.format.AppendEvent(nil, watch.Added, n.encode(pod("a", large, version, nil)))
		if err != nil {
			t.Fatal(err)
		}
		_, failed = to.Write(frame)
	}
	if failed == nil {
		t.Fatal("the hub waits for a client that does not read")
	}
	// Another client of the same collection is answered, and what is kept is what the cloud has.
	n.answers(version+1, pod("b", "1", version+1, nil))
	if got := n.pods(n.ask(t.Context(), podsOfNode).Body.Bytes()); !maps.Equal(got, map[string]string{"b": "1"}) {
		t.Errorf("the pods are %v", got)
	}
	n.offline("afterwards,", version+1, map[string]string{"b": "1"})
}

// TestAnswersWaitingForTheDiskTakeBoundedMemory: the node and all other callers have a limit each, and clients
// get their answers beyond it too.
func TestAnswersWaitingForTheDiskTakeBoundedMemory(t *testing.T) {
	tier.All(t, "large answers, 45 s with the race detector")
	for _, caller := range []identity.Caller{reader, identity.OfNode()} {
		t.Run(caller.Name, func(t *testing.T) { manyLargeAnswers(t, caller) })
	}
}

func manyLargeAnswers(t *testing.T, caller identity.Caller) {
	n := newNode(t, wire.JSON)
	limit := n.Record.Waiting(caller.Name + "\n")
	large := strings.Repeat("x", maxAnswer/3)
	n.cloud.set(false, func(*http.Request) (int, string, io.ReadCloser) {
		return http.StatusOK, "text/plain", io.NopCloser(strings.NewReader(large))
	})
	hangs := make(chan struct{})
	for i := range 5 {
		r := httptest.NewRequest(http.MethodGet, fmt.Sprint("/openapi/v3?x=", i), nil)
		r.Header.Set("Accept", n.format.ContentType())
		key := caller.Name + "\n" + request.Of(r).Scope
		n.Record.Keep(key, 0, func(*record.Job) error { <-hangs; return nil }) // as a disk that is slow
		w := httptest.NewRecorder()
		n.answer(w, r, caller)
		if w.Code != http.StatusOK || w.Body.Len() != len(large) {
			t.Errorf("answer %d is %d with %d bytes", i, w.Code, w.Body.Len())
		}
		if taken := limit.Taken(); taken > maxAnswer {
			t.Fatalf("%d bytes wait to be stored", taken)
		}
	}
	close(hangs)
	n.Wait()
	if taken := limit.Taken(); taken != 0 {
		t.Errorf("%d bytes are not given back", taken)
	}
	n.cloud.set(true, nil)
	n.Tokens.Accepted(reader.Token, time.Now())
	kept := 0
	for i := range 5 {
		if n.askAs(caller, fmt.Sprint("/openapi/v3?x=", i)).Body.Len() == len(large) {
			kept++
		}
	}
	if kept == 0 || kept > 3 {
		t.Errorf("%d of the answers are kept", kept)
	}
}

// ending is a cloud whose lists end with their request only, as those over a slow link do.
type ending struct {
	*scripted

	lists atomic.Int64
}

// RoundTrip implements Cloud.
func (e *ending) RoundTrip(r *http.Request, asNode bool) (*http.Response, error) {
	if r.URL.Query().Get("watch") == "" {
		e.lists.Add(1)
		<-r.Context().Done()
		return nil, context.Cause(r.Context())
	}
	return e.scripted.RoundTrip(r, asNode)
}

// TestCacheRepairEndsWithItsWatch: no other client needs the collection.
func TestCacheRepairEndsWithItsWatch(t *testing.T) {
	n := newNode(t, wire.JSON)
	n.answers(10)
	cloud := &ending{scripted: n.cloud}
	n.Proxy.Cloud = cloud
	o := n.open(podsOfNode + "&watch=1&resourceVersion=10")
	build.Eventually(t, "the hub lists the collection", func() bool { return cloud.lists.Load() > 0 })
	o.leave()
	n.Wait()
	if lists := cloud.lists.Load(); lists != 1 {
		t.Errorf("it was listed %d times", lists)
	}
}

// TestStreamedListsSurviveAFailingDisk: the client gets its list and the later events, whenever the disk fails.
func TestStreamedListsSurviveAFailingDisk(t *testing.T) {
	for _, format := range formats {
		for failsAt := range 3 {
			t.Run(fmt.Sprint(format, " before event ", failsAt), func(t *testing.T) {
				n := newNode(t, format)
				n.answers(10, pod("a", "1", 3, nil), pod("b", "1", 10, nil))
				events := n.open(podsOfNode + streamed)
				for i, e := range []event{{watch.Added, pod("a", "1", 3, nil)}, endOfInitial("9"), {watch.Added, pod("b", "1", 10, nil)}} {
					if i == failsAt {
						if err := n.Cache.Close(); err != nil {
							t.Fatal(err)
						}
					}
					events.send(e)
				}
				events.leave()
				n.Wait()
			})
		}
	}
}
