package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-k8s/atoll/internal/hub/wire"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// watching is a client that follows the slices as client-go does.
type watching struct {
	*filterRig

	cancel func()
	ended  chan struct{}

	mu      sync.Mutex
	has     map[string]string // the addresses of each slice
	version string
	log     []string
}

// follow opens a watch of kube-proxy.
func (r *filterRig) follow(query string, has map[string]string) *watching {
	r.Helper()
	ctx, cancel := context.WithCancel(r.Context())
	w := &watching{filterRig: r, cancel: cancel, ended: make(chan struct{}), has: map[string]string{}}
	for name, addresses := range has {
		w.has[name] = addresses
	}
	from, to := io.Pipe()
	q := httptest.NewRequestWithContext(ctx, http.MethodGet, slicesPath+"?watch=1&allowWatchBookmarks=true&"+query, nil)
	q.Header.Set("Accept", r.node.format.ContentType())
	answer := &ownAnswer{header: http.Header{}, body: to, begun: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(answer.done)
		defer to.Close()
		defer func() {
			if v := recover(); v != nil && !errors.Is(v.(error), http.ErrAbortHandler) {
				panic(v)
			}
		}()
		r.Proxy.answer(answer, q, kubeProxy)
	}()
	go func() {
		defer close(w.ended)
		events := r.node.format.NewEventReader(from, 1<<20)
		for {
			e, err := events.Next()
			if err != nil {
				return
			}
			w.take(e)
		}
	}()
	r.Cleanup(w.end)
	return w
}

func (w *watching) end() {
	w.cancel()
	<-w.ended
}

func (w *watching) take(e wire.Event) {
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
	w.log = append(w.log, fmt.Sprint(e.Type, " ", m.Name, " ", w.has[m.Name], " at ", m.ResourceVersion))
}

// expect waits until the client has these slices.
func (w *watching) expect(when string, want map[string]string) {
	w.Helper()
	var got string
	defer func() {
		if w.Failed() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.Logf("%s the client has %v, want %v, after %q", when, w.has, want, w.log)
		}
	}()
	build.Eventually(w.node.T, when+" the client has the right endpoints", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		got = fmt.Sprint(w.has)
		return got == fmt.Sprint(want)
	})
}
