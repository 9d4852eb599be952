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
	// maxFollowPause is the longest time between two attempts to read a collection of the hub's own.
	maxFollowPause = 30 * time.Second
	// followFor is how long a watch of the hub's own lasts, in seconds. As much is added by chance.
	followFor = 300
	// ownWithin bounds the wait for an answer to the hub itself, and for a list the whole answer.
	ownWithin = time.Minute
)

// Follow reads a collection as the node, through the proxy itself, and tells its changes until ctx is
// done: a filter.Follower. So what it reads is kept, and is there without the cloud.
func (p *Proxy) Follow(ctx context.Context, c filter.Collection, r filter.Receiver) {
	(&follower{Proxy: p, caller: identity.OfNode(), collection: c, receiver: r, from: "0"}).run(ctx)
}

// run follows the collection until ctx is done.
func (f *follower) run(ctx context.Context) {
	for pause := againAfter; ; pause = min(2*pause, maxFollowPause) {
		began := time.Now()
		if err := f.Panics.Do("following a collection", func() error { return f.follow(ctx) }); err != nil && ctx.Err() == nil {
			f.receiver.Failed(err)
		}
		if time.Since(began) > maxFollowPause {
			pause = againAfter
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
	*Proxy

	caller     identity.Caller
	collection filter.Collection
	receiver   filter.Receiver
	// from is the version from which a list may be, and version the one up to which the receiver has
	// everything.
	from, version string
}

// follow lists the collection and watches it, until the watch cannot go on.
func (f *follower) follow(ctx context.Context) error {
	if err := f.list(ctx); err != nil {
		return err
	}
	for ctx.Err() == nil {
		began := time.Now()
		if err := f.watch(ctx); err != nil {
			f.from = "" // what an API server that lags has may be what was there before
			return err
		}
		if time.Since(began) < againAfter {
			return nil // it ends at once, each time
		}
	}
	return nil
}

func (f *follower) list(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ownWithin)
	defer cancel()
	body := &limited{}
	a := f.askOwn(ctx, "resourceVersion="+f.from, f.collection.List, body)
	<-a.done
	switch {
	case a.broke, body.tooLarge:
		return fmt.Errorf("reading %s: the answer broke off", f.collection.Path)
	case a.code == http.StatusForbidden || a.code == http.StatusNotFound:
		return fmt.Errorf("reading %s: %w with the code %d", f.collection.Path, filter.ErrRefused, a.code)
	case a.code != http.StatusOK:
		return fmt.Errorf("reading %s: the answer has the code %d", f.collection.Path, a.code)
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
var errExpired = errors.New("the watch cannot go on from where it was")

// watch tells the changes until the watch ends. Without an error it may go on from the version.
func (f *follower) watch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*followFor*time.Second+ownWithin) // the API server ends it before
	from, to := io.Pipe()
	query := fmt.Sprintf("watch=true&allowWatchBookmarks=true&resourceVersion=%s&timeoutSeconds=%d", f.version, followFor+rand.N(followFor))
	a := f.askOwn(ctx, query, f.collection.Watch, to)
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
		return fmt.Errorf("watching %s: the answer has the code %d", f.collection.Path, a.code)
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

// askOwn asks the proxy as the node, and writes the answer's body to a writer.
func (f *follower) askOwn(ctx context.Context, query, accept string, body io.Writer) *ownAnswer {
	a := &ownAnswer{header: http.Header{}, body: body, begun: make(chan struct{}), done: make(chan struct{})}
	if f.collection.Selector != "" {
		query = f.collection.Selector + "&" + query
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, f.collection.Path+"?"+query, nil)
	if err != nil {
		close(a.done)
		return a
	}
	r.Header.Set("Accept", accept)
	go func() {
		defer close(a.done)
		a.broke = f.Panics.Do("a request of the hub itself", func() error { f.answer(a, r, f.caller); return nil }) != nil
	}()
	return a
}

// ownAnswer is an answer to the hub itself. code, header and broke may be read once begun, or done, is
// closed.
type ownAnswer struct {
	code   int
	header http.Header
	body   io.Writer
	broke  bool // all of it did not come
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

// limited keeps up to maxAnswer bytes.
type limited struct {
	bytes.Buffer

	tooLarge bool
}

// Write implements io.Writer.
func (l *limited) Write(b []byte) (int, error) {
	if l.Len()+len(b) > maxAnswer {
		l.tooLarge = true
		return 0, errors.New("the answer is too large")
	}
	return l.Buffer.Write(b)
}
