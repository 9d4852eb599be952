package proxy

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/filter"
	"github.com/atoll-k8s/atoll/internal/hub/panics"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
	"github.com/atoll-k8s/atoll/internal/testing/build"
	"github.com/atoll-k8s/atoll/internal/testing/faultydisk"
)

// TestPanicWhileStoringAnAnswerCausesANewList: that answer is not stored.
func TestPanicWhileStoringAnAnswerCausesANewList(t *testing.T) {
	var armed atomic.Bool
	n := newNodeOn(t, wire.JSON, cache.Options{Wrap: faultydisk.Of(func(op string) error {
		if op == "write" && armed.CompareAndSwap(true, false) {
			panic("it breaks")
		}
		return nil
	})})
	n.catchPanics()
	n.answers(1, pod("a", "1", 1, nil))
	n.ask(t.Context(), podsOfNode)
	n.Wait()
	o := n.open(podsOfNode + "&watch=1&resourceVersion=1")
	n.answers(2, pod("a", "1", 1, nil), pod("b", "1", 2, nil))
	armed.Store(true)
	o.send(event{watch.Added, pod("b", "1", 2, nil)})
	n.offline("after a panic with an event,", 2, map[string]string{"a": "1", "b": "1"})
	o.send(event{watch.Added, pod("c", "1", 3, nil)})
	n.offline("after the next event,", 3, map[string]string{"a": "1", "b": "1", "c": "1"})
	armed.Store(true)
	n.answers(4, pod("d", "1", 4, nil))
	n.ask(t.Context(), podsOfNode)
	n.Wait()
	n.ask(t.Context(), podsOfNode)
	n.offline("after a panic with a list,", 4, map[string]string{"d": "1"})
	if got := n.Panics.Caught(); got != 2 {
		t.Errorf("%d panics were caught", got)
	}
}

// breaking is a cloud that panics at some requests.
type breaking struct {
	Cloud

	mu sync.Mutex
	at func(*http.Request) bool
}

// RoundTrip implements Cloud.
func (b *breaking) RoundTrip(r *http.Request, asNode bool) (*http.Response, error) {
	b.mu.Lock()
	breaks := b.at(r)
	b.mu.Unlock()
	if breaks {
		panic("it breaks")
	}
	return b.Cloud.RoundTrip(r, asNode)
}

// TestPanicInAKeptWriteDelaysNoOtherWrite: that write is lost.
func TestPanicInAKeptWriteDelaysNoOtherWrite(t *testing.T) {
	e := newEdge(t, wire.JSON)
	e.catchPanics()
	e.Replay.Panics = e.Panics
	e.Proxy.Cloud = &breaking{Cloud: e.server, at: func(r *http.Request) bool {
		return strings.HasSuffix(r.URL.Path, "/breaks") && r.Method == http.MethodPut
	}}
	for _, name := range []string{"breaks", "other"} {
		if w := e.do(http.MethodPost, eventsPath, "application/json", e.body(anEvent(name, 1), gvks["events"])); w.Code != http.StatusCreated {
			t.Fatalf("the answer is %d %s", w.Code, w.Body)
		}
	}
	e.comeBack()
	live[*corev1.Event](e, eventsPath+"/other")
	if got := e.Panics.Caught(); got != 1 {
		t.Errorf("%d panics were caught", got)
	}
}

func TestPanicInTheHubsListIsRetried(t *testing.T) {
	n := newNode(t, wire.JSON)
	n.catchPanics()
	n.answers(10, pod("a", "1", 8, nil))
	var lists atomic.Int64
	n.Proxy.Cloud = &breaking{Cloud: n.cloud, at: func(r *http.Request) bool { return r.URL.Query().Get("watch") == "" && lists.Add(1) == 1 }}
	n.open(podsOfNode + "&watch=1&resourceVersion=10")
	build.Eventually(t, "the collection is read at the second attempt", func() bool { return lists.Load() > 1 })
	n.offline("afterwards,", 10, map[string]string{"a": "1"})
	if got := n.Panics.Caught(); got != 1 {
		t.Errorf("%d panics were caught", got)
	}
}

// breakingReceiver is a Receiver that panics at the first list.
type breakingReceiver struct {
	mu     sync.Mutex
	lists  int
	failed []error
}

func (r *breakingReceiver) Replace(wire.Format, []wire.Item) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lists++; r.lists == 1 {
		panic("it breaks")
	}
}

func (r *breakingReceiver) Put(wire.Format, *wire.Meta, []byte) {}
func (r *breakingReceiver) Delete(*wire.Meta)                   {}

func (r *breakingReceiver) Failed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = append(r.failed, err)
}

// TestPanicInAFollowedCollectionCausesANewList: the panic is in the receiver, or in the answer to the hub itself.
// It is reported.
func TestPanicInAFollowedCollectionCausesANewList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, wire.JSON)
		n.catchPanics()
		n.answers(1)
		requests := 0
		n.Proxy.Cloud = &breaking{Cloud: n.cloud, at: func(*http.Request) bool { requests++; return requests == 1 }}
		r := &breakingReceiver{}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		n.Follow(ctx, filter.Collection{Path: "/api/v1/configmaps", List: "application/json", Watch: "application/json"}, r)
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.failed) < 2 || r.lists < 2 || n.Panics.Caught() != 2 {
			t.Errorf("after %d panics it was told %v, and has read %d lists", n.Panics.Caught(), r.failed, r.lists)
		}
	})
}

// TestPanicInARequestEndsItsAnswerOnly: it is counted.
func TestPanicInARequestEndsItsAnswerOnly(t *testing.T) {
	n := newNode(t, wire.JSON)
	n.catchPanics()
	n.answers(1, pod("a", "1", 1, nil))
	n.Proxy.Cloud = &breaking{Cloud: n.cloud, at: func(r *http.Request) bool { return r.URL.Path == "/breaks" }}
	ask := func(path string) (ended any) {
		defer func() { ended = recover() }()
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("Authorization", "Bearer x")
		n.ServeHTTP(httptest.NewRecorder(), r)
		return nil
	}
	if err, is := ask("/breaks").(error); !is || !errors.Is(err, http.ErrAbortHandler) || n.Panics.Caught() != 1 {
		t.Errorf("the answer ends with %v after %d panics", err, n.Panics.Caught())
	}
	if ended := ask("/api/v1/pods"); ended != nil || n.Panics.Caught() != 1 {
		t.Errorf("the next answer ends with %v", ended)
	}
}

// breakingFilter is a Filter whose sessions after the first one panic.
type breakingFilter struct {
	filter.Filter

	sessions atomic.Int64
}

func (f *breakingFilter) Session(user, group, version, resource string) filter.Session {
	session := f.Filter.Session(user, group, version, resource)
	if session != nil && f.sessions.Add(1) > 1 {
		panic("it breaks")
	}
	return session
}

// TestPanicWhileFormsAreComparedEndsTheWatch ends that watch, so that its client begins anew.
func TestPanicWhileFormsAreComparedEndsTheWatch(t *testing.T) {
	r := newFilterRig(t, wire.JSON)
	r.listed(kubeProxy)
	r.stop()
	r.node.Wait()
	r.catchPanics()
	r.wrap = func(f filter.Filter) filter.Filter { return &breakingFilter{Filter: f} }
	r.start()
	w := r.follow("resourceVersion=1", nil)
	<-w.ended
	if got := r.Panics.Caught(); got != 1 {
		t.Errorf("%d panics were caught", got)
	}
}

// catchPanics lets the proxy recover from panics, as in a hub.
func (n *node) catchPanics() {
	caught := panics.New(logr.Discard())
	n.Panics, n.Record.Panics, n.Gate.Panics = caught, caught, caught
}
