package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-k8s/atoll/internal/hub/filter"
	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

const (
	// followAgain is the time between two attempts to read a collection of the hub's own. It doubles up to
	// maxFollowPause.
	followAgain, maxFollowPause = 500 * time.Millisecond, 30 * time.Second
	// followFor is how long a watch of the hub's own lasts, in seconds. A random time of up to the same length
	// is added.
	followFor = 300
	// ownWithin is how long the hub's own requests wait for a response, and for a list the whole response.
	ownWithin = time.Minute
)

// Follow reads a collection as the node, through the proxy itself, and calls r for its changes until ctx is
// done. It is a filter.Follower. The collection is cached, so that it is available offline.
func (p *Proxy) Follow(ctx context.Context, c filter.Collection, r filter.Receiver) {
	(&follower{proxy: p, caller: identity.OfNode(), collection: c, receiver: r, from: "0"}).run(ctx)
}

// FollowAsPool is like Follow for a collection of the pool: the hub caches it apart from the node's, and always reads
// its latest state.
func (p *Proxy) FollowAsPool(ctx context.Context, c filter.Collection, r filter.Receiver) {
	(&follower{proxy: p, caller: identity.OfPool(), collection: c, receiver: r}).run(ctx)
}

// run follows the collection until ctx is done.
func (f *follower) run(ctx context.Context) {
	for pause := followAgain; ; pause = min(2*pause, maxFollowPause) {
		began := time.Now()
		if err := f.proxy.Panics.Do("following a collection", func() error { return f.follow(ctx) }); err != nil && ctx.Err() == nil {
			f.receiver.Failed(err)
		}
		if time.Since(began) > maxFollowPause {
			pause = followAgain
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause + rand.N(pause)):
		}
	}
}

// follower follows one collection.
type follower struct {
	proxy      *Proxy
	caller     identity.Caller
	collection filter.Collection
	receiver   filter.Receiver
	// from is the minimum resourceVersion of a list. version is the resourceVersion up to which the receiver
	// has all changes.
	from, version string
}

// follow lists the collection and watches it, until the watch cannot be continued.
func (f *follower) follow(ctx context.Context) error {
	if err := f.list(ctx); err != nil {
		return err
	}
	for ctx.Err() == nil {
		began := time.Now()
		if err := f.watch(ctx); err != nil {
			f.from = "" // an API server that lags could return an older state
			return err
		}
		if time.Since(began) < followAgain {
			return nil // it would end at once again
		}
	}
	return nil
}

func (f *follower) list(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ownWithin)
	defer cancel()
	body := &limited{}
	a := f.ask(ctx, "resourceVersion="+f.from, f.collection.List, body)
	<-a.done
	switch {
	case a.broke, body.tooLarge:
		return fmt.Errorf("reading %s: the response is incomplete", f.collection.Path)
	case a.code == http.StatusForbidden || a.code == http.StatusNotFound:
		return fmt.Errorf("reading %s: %w with status code %d", f.collection.Path, filter.ErrRefused, a.code)
	case a.code != http.StatusOK:
		return fmt.Errorf("reading %s: the status code is %d", f.collection.Path, a.code)
	}
	format, err := wire.FormatOf(a.header.Get("Content-Type"))
	if err != nil {
		return fmt.Errorf("reading %s: %w", f.collection.Path, err)
	}
	list, err := format.DecodeList(body.Bytes())
	if err != nil {
		return fmt.Errorf("reading %s: %w", f.collection.Path, err)
	}
	f.version = list.ResourceVersion
	f.receiver.Replace(format, list.Items)
	return nil
}

// errExpired is the error of a watch that cannot be continued from its version.
var errExpired = errors.New("the watch cannot be continued from its resourceVersion")

// watch passes changes to the receiver until the watch ends. If it returns nil, the next watch can continue
// from version.
func (f *follower) watch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*followFor*time.Second+ownWithin) // the API server ends it earlier
	from, to := io.Pipe()
	query := fmt.Sprintf("watch=true&allowWatchBookmarks=true&resourceVersion=%s&timeoutSeconds=%d", f.version, followFor+rand.N(followFor))
	a := f.ask(ctx, query, f.collection.Watch, to)
	defer func() {
		cancel()
		_ = from.Close()
		<-a.done
	}()
	go func() {
		<-a.done
		_ = to.Close()
	}()
	timer := time.AfterFunc(ownWithin, cancel)
	select {
	case <-a.begun:
	case <-a.done:
	}
	timer.Stop()
	if a.code != http.StatusOK {
		return fmt.Errorf("watching %s: the status code is %d", f.collection.Path, a.code)
	}
	format, err := wire.FormatOf(a.header.Get("Content-Type"))
	if err != nil {
		return fmt.Errorf("watching %s: %w", f.collection.Path, err)
	}
	for events := format.NewEventReader(from, maxFrame); ; {
		e, err := events.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("watching %s: %w", f.collection.Path, err)
		}
		if e.Type == watch.Error {
			return fmt.Errorf("watching %s: %w", f.collection.Path, errExpired)
		}
		m, err := format.Meta(e.Object)
		if err != nil {
			return fmt.Errorf("watching %s: %w", f.collection.Path, err)
		}
		switch e.Type {
		case watch.Added, watch.Modified:
			f.receiver.Put(format, &m, e.Object)
		case watch.Deleted:
			f.receiver.Delete(&m)
		default:
		}
		if m.ResourceVersion != "" {
			f.version = m.ResourceVersion
		}
	}
}

// ask sends a request for the collection.
func (f *follower) ask(ctx context.Context, query, accept string, body io.Writer) *ownAnswer {
	if f.collection.Selector != "" {
		query = f.collection.Selector + "&" + query
	}
	return f.proxy.askOwn(ctx, f.caller, f.collection.Path+"?"+query, accept, body)
}

// askOwn sends a request of the hub itself to the proxy as a caller, and writes the body of the response to body.
func (p *Proxy) askOwn(ctx context.Context, caller identity.Caller, target, accept string, body io.Writer) *ownAnswer {
	a := &ownAnswer{header: http.Header{}, body: body, begun: make(chan struct{}), done: make(chan struct{})}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		close(a.done)
		return a
	}
	r.Header.Set("Accept", accept)
	go func() {
		defer close(a.done)
		a.broke = p.Panics.Do("a request of the hub itself", func() error { p.answer(a, r, caller); return nil }) != nil
	}()
	return a
}

// ownAnswer is the response to the hub's own request. code, header and broke may be read once begun or done is
// closed.
type ownAnswer struct {
	code   int
	header http.Header
	body   io.Writer
	broke  bool // the response is incomplete
	begun  chan struct{}
	done   chan struct{}
}

// Header implements http.ResponseWriter.
func (a *ownAnswer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *ownAnswer) WriteHeader(code int) {
	if a.code == 0 {
		a.code = code
		close(a.begun)
	}
}

// Write implements http.ResponseWriter.
func (a *ownAnswer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}

// limited stores up to maxAnswer bytes.
type limited struct {
	bytes.Buffer

	tooLarge bool
}

// Write implements io.Writer.
func (l *limited) Write(b []byte) (int, error) {
	if l.Len()+len(b) > maxAnswer {
		l.tooLarge = true
		return 0, errors.New("the response is too large")
	}
	return l.Buffer.Write(b)
}
