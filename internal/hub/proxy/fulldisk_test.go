package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-k8s/atoll/internal/hub/record"
	"github.com/atoll-k8s/atoll/internal/hub/uplink"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
	"github.com/atoll-k8s/atoll/internal/testing/build"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// fillingDisk is a disk that is full at the n-th change, or from then on.
type fillingDisk struct {
	mu       sync.Mutex
	n, calls int
	isOnce   bool
	hasSpace bool // again
}

func (d *fillingDisk) fail(string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	if !d.hasSpace && (d.calls == d.n || d.calls > d.n && !d.isOnce) {
		return syscall.ENOSPC
	}
	return nil
}

// empty makes space, and returns whether the disk was full before.
func (d *fillingDisk) empty() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hasSpace = true
	return d.calls >= d.n
}

// watchedServer is an apiServer whose pods can be watched.
type watchedServer struct {
	*apiServer

	format  wire.Format
	encode  func(*corev1.Pod) []byte
	watches []chan []byte // guarded by the lock of the server
}

// RoundTrip implements Cloud.
func (s *watchedServer) RoundTrip(r *http.Request, asNode bool) (*http.Response, error) {
	if r.URL.Query().Get("watch") == "" {
		return s.apiServer.RoundTrip(r, asNode)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.offline {
		return nil, uplink.ErrOffline
	}
	events := make(chan []byte, 100)
	if r.URL.Query().Get("sendInitialEvents") != "" {
		for _, o := range s.objects {
			if pod, is := o.(*corev1.Pod); is {
				events <- s.frame(watch.Added, pod)
			}
		}
		bookmark, err := s.format.Bookmark("v1", "Pod", fmt.Sprint(s.version), true)
		if err == nil {
			bookmark, err = s.format.AppendEvent(nil, watch.Bookmark, bookmark)
		}
		if err != nil {
			return nil, err
		}
		events <- bookmark
	}
	s.watches = append(s.watches, events)
	from, to := io.Pipe()
	stop := context.AfterFunc(r.Context(), func() { _ = to.CloseWithError(context.Canceled) })
	go func() {
		defer stop()
		for frame := range events {
			if _, err := to.Write(frame); err != nil {
				return
			}
		}
		_ = to.CloseWithError(io.ErrUnexpectedEOF)
	}()
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {s.format.WatchContentType()}}, Body: from, Request: r}, nil
}

func (s *watchedServer) frame(kind watch.EventType, pod *corev1.Pod) []byte {
	frame, err := s.format.AppendEvent(nil, kind, s.encode(pod))
	if err != nil {
		panic(err)
	}
	return frame
}

// run lets a pod be there in a version, which watches tell.
func (s *watchedServer) run(name string) {
	s.lock(func() {
		pod := aPod(name, "a", corev1.PodRunning)
		pod.APIVersion, pod.Kind = "v1", "Pod"
		s.put("/api/v1/namespaces/default/pods/"+name, pod)
		for _, w := range s.watches {
			w <- s.frame(watch.Added, pod)
		}
	})
}

// cut breaks all watches off.
func (s *watchedServer) cut(offline bool) {
	s.lock(func() {
		s.offline = offline
		for _, w := range s.watches {
			close(w)
		}
		s.watches = nil
	})
}

// TestFullDiskAtAnyWriteLosesNoAnswer: any write of the cache or the journal fails, online, offline, and when the
// cloud is back. Clients get the cloud's answers, and offline a state that was true or an error. With space again
// everything is stored.
func TestFullDiskAtAnyWriteLosesNoAnswer(t *testing.T) {
	tier.All(t, "a run for each write, 35 s with the race detector; TestTheHubRunsOnAFullDisk is quicker")
	for name, isOnce := range map[string]bool{"once": true, "from then on": false} {
		t.Run(name, func(t *testing.T) {
			for n := 1; fullAt(t, n, isOnce); n++ {
			}
		})
	}
}

// fullAt lets the disk be full at the n-th change, and returns false if there are not so many.
func fullAt(t *testing.T, n int, isOnce bool) (wasFull bool) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		disk := &fillingDisk{n: n, isOnce: isOnce}
		e := newEdgeOn(t, wire.JSON, disk.fail)
		server := &watchedServer{apiServer: e.server, format: e.format, encode: func(p *corev1.Pod) []byte { return e.encode(p) }}
		e.Proxy.Cloud = server
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		running.Go(func() { e.Replay.Run(ctx) })
		e.server.lock(func() { e.server.offline = false })
		const initial = podsOfNode + "&watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
		watches := func(name string) {
			running.Go(func() {
				w := e.ask(ctx, initial)
				if w.Code != http.StatusOK || !bytes.Contains(w.Body.Bytes(), []byte(`"`+name+`"`)) {
					t.Errorf("full at %d: a watch is answered %d %s", n, w.Code, w.Body)
				}
			})
			time.Sleep(2 * time.Second)
		}
		watches("later")
		server.run("later")
		time.Sleep(2 * time.Second)

		server.cut(true)
		before := map[string]string{"web": "i", "other": "i"}
		after := map[string]string{"web": "i", "other": "i", "later": "i"}
		w := e.ask(ctx, podsOfNode)
		if got := e.podsOf(w); w.Code != http.StatusServiceUnavailable && !maps.Equal(got, before) && !maps.Equal(got, after) {
			t.Errorf("full at %d: offline the list is %d %v", n, w.Code, got)
		}
		pod := live[*corev1.Pod](e, ownPodPath)
		ended := pod.DeepCopy()
		ended.Status.Phase = corev1.PodFailed
		for _, write := range [][3]string{
			{http.MethodPut, leasePath, string(e.body(aLease(time.Now(), ""), gvks["leases"]))},
			{http.MethodPatch, ownPodPath + "/status", string(podPatch(t, pod, ended))},
			{http.MethodPost, eventsPath, string(e.body(anEvent("e", 1), gvks["events"]))},
		} {
			contentType := e.format.ContentType()
			if write[0] == http.MethodPatch {
				contentType = strategic
			}
			if w := e.do(write[0], write[1], contentType, []byte(write[2])); w.Code/100 != 2 && w.Code != http.StatusServiceUnavailable {
				t.Errorf("full at %d: a write is answered %d %s", n, w.Code, w.Body)
			}
		}

		e.server.lock(func() { e.server.offline = false })
		watches("later") // a kubelet whose watch broke off among its initial events begins anew
		server.run("last")
		time.Sleep(time.Minute)
		if left := e.Journal.Entries(); len(left) > 0 {
			t.Errorf("full at %d: not sent are %+v", n, left)
		}

		wasFull = disk.empty()
		time.Sleep(time.Minute)
		server.run("afterwards")
		time.Sleep(time.Minute)
		server.cut(true)
		want := map[string]string{"web": "i", "other": "i", "later": "i", "last": "i", "afterwards": "i"}
		if got := e.podsOf(e.ask(ctx, podsOfNode)); !maps.Equal(got, want) {
			t.Errorf("full at %d: afterwards the list is %v", n, got)
		}
		if w := e.do(http.MethodPut, leasePath, e.format.ContentType(), e.body(aLease(time.Now(), ""), gvks["leases"])); w.Header().Get(Kept) == "" {
			t.Errorf("full at %d: afterwards a write is answered %d %s", n, w.Code, w.Body)
		}
	})
	return wasFull
}

// podsOf returns the pods of an answer; nil if it has none.
func (e *edge) podsOf(w *httptest.ResponseRecorder) map[string]string {
	e.Helper()
	if w.Code != http.StatusOK {
		return nil
	}
	return e.pods(w.Body.Bytes())
}

// TestInitialEventsAreStoredCompletelyOrNot: if the disk is slow, the state is stored with all initial events or
// not at all.
func TestInitialEventsAreStoredCompletelyOrNot(t *testing.T) {
	for name, lastOneToo := range map[string]bool{"some": false, "and not the last one": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, wire.JSON)
			var all []*corev1.Pod
			want := map[string]string{}
			for i := range 1024 + 10 { // more than one scope may have waiting
				p := pod(fmt.Sprintf("pod-%04d", i), "1", i+1, nil)
				all = append(all, p)
				want[p.Name] = "1"
			}
			version := len(all) + 1
			n.answers(version, all...)
			hangs := make(chan struct{})
			n.Record.Keep("node\n"+requestOf(podsOfNode, n.format), 0, func(*record.Job) error { <-hangs; return nil })
			o := n.open(podsOfNode + streamed)
			for _, p := range all {
				o.send(event{watch.Added, p})
			}
			if lastOneToo {
				o.send(endOfInitial("2000"))
				o.isRead()
				close(hangs)
			} else {
				o.isRead()
				close(hangs)
				n.isStored()
				o.send(endOfInitial("2000"))
				o.isRead()
			}
			n.isStored()
			n.cloud.set(true, nil)
			if w := n.ask(t.Context(), podsOfNode); w.Code == http.StatusOK {
				if got := n.pods(w.Body.Bytes()); !maps.Equal(got, want) {
					t.Errorf("%d of %d pods are kept", len(got), len(want))
				}
			}
			n.cloud.set(false, nil)
			n.offline("once it was read anew,", version, want)
		})
	}
}

// isRead waits until the hub has passed on all that the cloud has sent.
func (o *opened) isRead() { _, _ = o.cloud.Write(nil) } // a pipe: it returns when the next read has begun

// isStored waits until nothing waits to be stored.
func (n *node) isStored() {
	build.Eventually(n.T, "the queue is empty", func() bool {
		return !n.Record.AreBusy(func(string) bool { return true })
	})
}
