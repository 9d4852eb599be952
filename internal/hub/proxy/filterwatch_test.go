package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-k8s/atoll/internal/hub/wire"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// watching is a client that follows the slices as client-go does: it lists, watches from there, and lists again when
// a watch has expired.
type watching struct {
	*filterRig

	cancel func()
	ended  chan struct{}

	mu      sync.Mutex
	has     map[string]string // the addresses of each slice
	version string            // "" before it has listed, and when it has to list again
	lists   int
}

// follow begins to follow the slices as kube-proxy. It goes on from a version; from "" it lists.
func (r *filterRig) follow(version string) *watching {
	r.Helper()
	ctx, cancel := context.WithCancel(r.Context())
	w := &watching{filterRig: r, cancel: cancel, ended: make(chan struct{}), has: map[string]string{}, version: version}
	go func() {
		defer close(w.ended)
		for ctx.Err() == nil {
			if w.version == "" && !w.list(ctx) {
				continue
			}
			w.watch(ctx)
			time.Sleep(time.Millisecond)
		}
	}()
	r.Cleanup(w.end)
	return w
}

func (w *watching) end() {
	w.cancel()
	<-w.ended
}

func (w *watching) list(ctx context.Context) bool {
	answer := w.request(ctx, kubeProxy, http.MethodGet, slicesPath, nil)
	if answer.Code != http.StatusOK {
		return false
	}
	list, err := w.node.format.DecodeList(answer.Body.Bytes())
	if err != nil {
		w.Error(err)
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.has, w.version = map[string]string{}, list.ResourceVersion
	w.lists++
	for _, item := range list.Items {
		object, err := w.node.format.ObjectOf(item.Raw, item.APIVersion, item.Kind)
		if err != nil {
			w.Error(err)
		}
		w.has[item.Name] = w.addressesOf(object)
	}
	return true
}

func (w *watching) watch(ctx context.Context) {
	from, to := io.Pipe()
	q := httptest.NewRequestWithContext(ctx, http.MethodGet, slicesPath+"?watch=1&allowWatchBookmarks=true&resourceVersion="+w.version, nil)
	q.Header.Set("Accept", w.node.format.ContentType())
	answer := &ownAnswer{header: http.Header{}, body: to, begun: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(answer.done)
		defer to.Close()
		defer func() {
			if v := recover(); v != nil && !errors.Is(v.(error), http.ErrAbortHandler) {
				panic(v)
			}
		}()
		w.Proxy.answer(answer, q, kubeProxy)
	}()
	select {
	case <-answer.begun:
	case <-answer.done: // it broke off
		return
	}
	if answer.code != http.StatusOK {
		w.expire(answer.code)
		_, _ = io.Copy(io.Discard, from)
		return
	}
	for events := w.node.format.NewEventReader(from, 1<<20); ; {
		e, err := events.Next()
		if err != nil {
			return
		}
		w.take(e)
	}
}

func (w *watching) expire(code int) {
	if code != http.StatusGone {
		w.Errorf("the watch is answered %d", code)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.version = ""
}

func (w *watching) take(e wire.Event) {
	if e.Type == watch.Error {
		status, err := w.node.format.DecodeStatus(e.Object)
		if err != nil {
			w.Error(err)
		}
		w.expire(int(status.Code))
		return
	}
	m, err := w.node.format.Meta(e.Object)
	if err != nil {
		w.Error(err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch e.Type {
	case watch.Added, watch.Modified:
		w.has[m.Name] = w.addressesOf(e.Object)
	case watch.Deleted:
		delete(w.has, m.Name)
	}
	w.version = m.ResourceVersion
}

// expect waits until the client has these slices.
func (w *watching) expect(when string, want map[string]string) {
	w.Helper()
	var got string
	defer func() {
		if w.Failed() {
			w.Logf("%s the client has %s, want %v", when, got, want)
		}
	}()
	build.Eventually(w.node.T, when+" the client has the right endpoints", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		got = fmt.Sprint(w.has)
		return got == fmt.Sprint(want)
	})
}

// listed returns how often the client has listed.
func (w *watching) listed() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lists
}

// current returns what the client has.
func (w *watching) current() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.has)
}
