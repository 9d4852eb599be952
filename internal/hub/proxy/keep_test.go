package proxy

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/record"
	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// opened is a watch of the node that stays open.
type opened struct {
	*node

	cloud io.WriteCloser
	ended chan struct{}
	hang  context.CancelFunc // the client goes
}

// open opens a watch, whose events the test writes.
func (n *node) open(target string) *opened {
	n.Helper()
	from, to := io.Pipe()
	answered := make(chan struct{})
	n.cloud.mu.Lock()
	before := n.cloud.answer
	n.cloud.answer = func(r *http.Request) (int, string, io.ReadCloser) {
		if r.URL.Query().Get("watch") == "" {
			return before(r)
		}
		close(answered)
		n.cloud.answer = before // it is called with the lock
		return http.StatusOK, n.format.WatchContentType(), from
	}
	n.cloud.mu.Unlock()
	ctx, cancel := context.WithCancel(n.Context())
	o := &opened{n, to, make(chan struct{}), cancel}
	go func() {
		defer close(o.ended)
		n.ask(ctx, target)
	}()
	<-answered
	n.Cleanup(func() { cancel(); o.end() })
	return o
}

// watchesAre lets the cloud answer watches with what comes from a reader, and lists as before.
func (n *node) watchesAre(from io.ReadCloser) {
	lists := n.cloud.answer
	n.cloud.set(false, func(r *http.Request) (int, string, io.ReadCloser) {
		if r.URL.Query().Get("watch") == "" {
			return lists(r)
		}
		return http.StatusOK, n.format.WatchContentType(), from
	})
}

// send lets the cloud send an event.
func (o *opened) send(e event) {
	o.Helper()
	frame, err := o.format.AppendEvent(nil, e.kind, o.encode(e.pod))
	if err == nil {
		_, err = o.cloud.Write(frame)
	}
	if err != nil {
		o.Fatal(err)
	}
}

// leave lets the client end the watch.
func (o *opened) leave() {
	o.hang()
	o.end()
}

// end lets the cloud end the watch.
func (o *opened) end() {
	_ = o.cloud.Close()
	<-o.ended
}

// offline waits until the list offline is this, with this version.
func (n *node) offline(when string, version int, want map[string]string) {
	n.Helper()
	var got map[string]string
	var at string
	build.Eventually(n.T, when+" the list is kept", func() bool {
		n.cloud.set(true, nil)
		defer n.cloud.set(false, nil)
		w := n.ask(n.Context(), podsOfNode)
		if w.Code != http.StatusOK {
			return false
		}
		got = n.pods(w.Body.Bytes())
		list, err := n.format.DecodeList(w.Body.Bytes())
		if err != nil {
			n.Fatal(err)
		}
		at = list.ResourceVersion
		return maps.Equal(got, want) && at == fmt.Sprint(version)
	})
}

// TestTheCacheFollowsAllWatchesOfACollection: whatever other clients read meanwhile.
func TestTheCacheFollowsAllWatchesOfACollection(t *testing.T) {
	for _, format := range formats {
		t.Run(format.String(), func(t *testing.T) {
			n := newNode(t, format)
			n.answers(1, pod("a", "1", 1, nil))
			n.ask(t.Context(), podsOfNode)
			first := n.open(podsOfNode + "&watch=1&resourceVersion=1")
			first.send(event{watch.Added, pod("b", "1", 2, nil)})
			n.offline("after an event,", 2, map[string]string{"a": "1", "b": "1"})
			// Somebody lists once. The watch brings what the list had, and then more.
			n.answers(3, pod("a", "1", 1, nil), pod("b", "1", 2, nil), pod("c", "1", 3, nil))
			n.ask(t.Context(), podsOfNode)
			first.send(event{watch.Added, pod("c", "1", 3, nil)})
			first.send(event{watch.Deleted, pod("a", "1", 4, nil)})
			n.offline("after a list between two events,", 4, map[string]string{"b": "1", "c": "1"})
			// A second watch comes and goes.
			second := n.open(podsOfNode + "&watch=1&resourceVersion=4")
			for _, o := range []*opened{second, first} {
				o.send(event{watch.Added, pod("d", "1", 5, nil)})
			}
			second.end()
			first.send(event{watch.Deleted, pod("d", "1", 6, nil)})
			n.offline("after a second watch,", 6, map[string]string{"b": "1", "c": "1"})
			// An API server that lags answers a list from its memory.
			n.answers(5, pod("b", "1", 2, nil), pod("c", "1", 3, nil), pod("d", "1", 5, nil))
			n.ask(t.Context(), podsOfNode+"&resourceVersion=0")
			n.offline("after an older list,", 6, map[string]string{"b": "1", "c": "1"})
			// A database that was restored has older versions.
			n.answers(2, pod("b", "0", 2, nil))
			n.ask(t.Context(), podsOfNode)
			n.offline("after the newest list,", 2, map[string]string{"b": "0"})
		})
	}
}

// TestStaleCacheIsRelistedByTheHub: a client that continues a watch does not list again.
func TestStaleCacheIsRelistedByTheHub(t *testing.T) {
	for _, format := range formats {
		n := newNode(t, format)
		n.answers(10, pod("a", "1", 8, nil), pod("held", "1", 9, unbound))
		o := n.open(podsOfNode + "&watch=1&resourceVersion=10")
		n.offline("without a list of the client,", 10, map[string]string{"a": "1"})
		o.send(event{watch.Added, pod("b", "1", 11, nil)})
		n.offline("afterwards,", 11, map[string]string{"a": "1", "b": "1"})
		o.end()
		n.Wait()
		if err := n.Cache.Remove("node\n" + requestOf(podsOfNode, format)); err != nil {
			t.Fatal(err)
		}
	}
}

// requestOf is the scope of a request of the node.
func requestOf(target string, format wire.Format) string {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	r.Header.Set("Accept", format.ContentType())
	return request.Of(r).Scope
}

// TestOfflineAnswersOnlyTheLastState: requests for another resource version get 410 or 503.
func TestOfflineAnswersOnlyTheLastState(t *testing.T) {
	n := newNode(t, wire.JSON)
	n.answers(5, pod("a", "1", 5, nil))
	n.ask(t.Context(), podsOfNode)
	n.Wait()
	n.cloud.set(true, nil)
	for query, want := range map[string]int{
		"":                   http.StatusOK,
		"&resourceVersion=0": http.StatusOK,
		"&resourceVersion=5": http.StatusOK,
		"&resourceVersion=4": http.StatusOK,
		"&resourceVersion=6": http.StatusServiceUnavailable,
		"&limit=1":           http.StatusOK,
		"&continue=x":        http.StatusGone,
		"&resourceVersion=4&resourceVersionMatch=Exact": http.StatusGone,
		"&resourceVersion=5&resourceVersionMatch=Exact": http.StatusOK,
		"&watch=1&resourceVersion=7":                    http.StatusOK,
		"&watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&resourceVersion=7": http.StatusServiceUnavailable,
	} {
		within := time.Minute
		if strings.Contains(query, "&watch=1") {
			within = time.Second // a watch stays open
		}
		ctx, cancel := context.WithTimeout(t.Context(), within)
		w := n.ask(ctx, podsOfNode+query)
		cancel()
		if w.Code != want {
			t.Errorf("%q is answered %d, want %d", query, w.Code, want)
		}
	}
}

// TestOnlySuccessMakesATokenKnown: an API server can answer with another code before it has checked the token.
func TestOnlySuccessMakesATokenKnown(t *testing.T) {
	for code, want := range map[int]bool{200: true, 201: true, 400: false, 403: false, 404: false, 429: false, 500: false, 401: false} {
		n := newNode(t, wire.JSON)
		n.cloud.set(false, func(r *http.Request) (int, string, io.ReadCloser) {
			if got := r.Header.Get("Authorization"); got != "Bearer x" {
				t.Errorf("the token is sent as %q", got)
			}
			return code, "application/json", io.NopCloser(strings.NewReader("{}"))
		})
		r := httptest.NewRequest(http.MethodGet, "/version", nil)
		r.Header.Set("Authorization", "bearer x")
		r.TLS = &tls.ConnectionState{}
		n.ServeHTTP(httptest.NewRecorder(), r)
		if got := n.Tokens.Knows("x"); got != want {
			t.Errorf("after the answer %d the token is known: %t", code, got)
		}
	}
}

// TestOtherClientsCannotEvictTheNodesCache: with any number of different requests.
func TestOtherClientsCannotEvictTheNodesCache(t *testing.T) {
	const maxOthers = 256 // of record.Shares
	n := newNode(t, wire.JSON)
	n.answers(1, pod("a", "1", 1, nil))
	n.ask(t.Context(), podsOfNode)
	for i := range maxOthers + 50 {
		r := httptest.NewRequest(http.MethodGet, fmt.Sprint("/version?x=", i), nil)
		n.answer(httptest.NewRecorder(), r, identity.Caller{Name: "somebody", Token: "x"})
	}
	n.answer(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/version?x="+strings.Repeat("x", 4<<10), nil), identity.Caller{Name: "somebody", Token: "x"})
	n.Wait()
	kept := map[string]int{}
	for _, s := range n.Cache.Scopes() {
		caller, _, _ := strings.Cut(s.Key, "\n")
		kept[caller]++
	}
	if want := map[string]int{"node": 1, "somebody": maxOthers}; !maps.Equal(kept, want) {
		t.Errorf("kept are %v, want %v", kept, want)
	}
}

// TestIdleWatchIsNotEnded: the time limit of a client applies to each event, not to the time between events.
func TestIdleWatchIsNotEnded(t *testing.T) {
	n := newNode(t, wire.JSON)
	n.slowAfter = 50 * time.Millisecond
	n.answers(1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.answer(w, r, identity.Caller{Name: "node", IsNode: true})
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	from, to := io.Pipe()
	lists := n.cloud.answer
	n.cloud.set(false, func(r *http.Request) (int, string, io.ReadCloser) {
		if r.URL.Query().Get("watch") == "" { // of the hub itself
			return lists(r)
		}
		return http.StatusOK, n.format.WatchContentType(), from
	})
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+podsOfNode+"&watch=1&resourceVersion=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := server.Client().Do(request)
	if err != nil || response.ProtoMajor != 2 {
		t.Fatalf("%v, %v", response, err)
	}
	defer response.Body.Close()
	o := &opened{n, to, nil, nil}
	events := n.format.NewEventReader(response.Body, 1<<20)
	var got []string
	for i := range 3 {
		timer := time.NewTimer(4 * n.slowAfter)
		<-timer.C // as long as nothing happens
		o.send(event{watch.Added, pod(fmt.Sprint("pod-", i), "1", 2+i, nil)})
		e, err := events.Next()
		if err != nil {
			t.Fatalf("after %v: %v", got, err)
		}
		got = append(got, string(e.Type))
	}
	_ = to.Close()
	if !slices.Equal(got, []string{"ADDED", "ADDED", "ADDED"}) {
		t.Errorf("the events are %v", got)
	}
}

// TestRestoredEtcdIsReadAgain: after a restore of the API server's data, all resource versions are older than
// those in the cache.
func TestRestoredEtcdIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, wire.JSON)
		n.answers(90, pod("lost", "1", 90, nil))
		n.ask(t.Context(), podsOfNode)
		n.Wait()
		from, to := io.Pipe()
		n.answers(40, pod("restored", "1", 40, nil))
		lists := n.cloud.answer
		n.cloud.set(false, func(r *http.Request) (int, string, io.ReadCloser) {
			if r.URL.Query().Get("watch") == "" { // of the hub itself
				return lists(r)
			}
			return http.StatusOK, n.format.WatchContentType(), from
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			n.ask(ctx, podsOfNode+"&watch=1&resourceVersion=40")
		}()
		kept := func() string {
			synctest.Wait()
			view, err := n.Cache.Peek(n.Cache.Scopes()[0].Key)
			if err != nil {
				t.Fatal(err)
			}
			defer view.Close()
			return view.ID(0)
		}
		version := 40
		more := func() {
			version++
			frame, err := n.format.AppendEvent(nil, watch.Modified, n.encode(pod("restored", "1", version, nil)))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := to.Write(frame); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		more()
		time.Sleep(record.RestoredAfter / 2)
		more()
		if got := kept(); got != "default/lost" {
			t.Errorf("after a moment, kept is %s: an API server may lag", got)
		}
		time.Sleep(record.RestoredAfter)
		more()
		time.Sleep(time.Second) // until the list is there
		if got := kept(); got != "default/restored" {
			t.Errorf("kept is %s", got)
		}
		cancel()
		_ = to.Close()
		<-ended
	})
}
