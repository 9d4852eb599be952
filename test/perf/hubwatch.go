package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-k8s/atoll/internal/hub/wire"
	"github.com/atoll-k8s/atoll/test/rawclient"
)

// maxEvent bounds one event of a watch, in bytes.
const maxEvent = 4 << 20

// hubWatch is an open watch.
type hubWatch struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu sync.Mutex
	// arrived is when each event arrived, by the resource version of its object; bytes are those of all
	// these events.
	arrived map[string]time.Time
	bytes   int
	next    chan struct{} // closed when an event arrives
	err     error         // why it ended
}

// openWatch lists a collection, and watches it from there.
func openWatch(ctx context.Context, c *rawclient.Client, path string) (*hubWatch, error) {
	body, _, err := c.Read(ctx, path)
	if err != nil {
		return nil, err
	}
	list, err := wire.Protobuf.DecodeList(body)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	response, err := c.Send(ctx, strings.Replace(path, "resourceVersion=0", "watch=1&resourceVersion="+list.ResourceVersion, 1)) //nolint:bodyclose // follow closes it
	if err != nil {
		cancel()
		return nil, err
	}
	w := &hubWatch{cancel: cancel, done: make(chan struct{}), arrived: map[string]time.Time{}, next: make(chan struct{})}
	go w.follow(response.Body)
	return w, nil
}

func (w *hubWatch) follow(body io.ReadCloser) {
	defer close(w.done)
	defer body.Close()
	events := wire.Protobuf.NewEventReader(body, maxEvent)
	for {
		e, err := events.Next()
		at := time.Now()
		var m wire.Meta
		if err == nil && e.Type == watch.Bookmark {
			continue
		}
		if err == nil {
			m, err = wire.Protobuf.Meta(e.Object)
		}
		w.mu.Lock()
		if w.err = err; err == nil {
			w.arrived[m.ResourceVersion] = at
			w.bytes += len(e.Frame)
		}
		close(w.next)
		w.next = make(chan struct{})
		w.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// stop ends the watch.
func (w *hubWatch) stop() {
	w.cancel()
	<-w.done
}

// await waits for the event with a resource version and returns when it arrived.
func (w *hubWatch) await(ctx context.Context, version string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, stepWithin)
	defer cancel()
	for {
		w.mu.Lock()
		at, has := w.arrived[version]
		next, err := w.next, w.err
		w.mu.Unlock()
		switch {
		case has:
			return at, nil
		case err != nil:
			return at, fmt.Errorf("watching: %w", err)
		}
		select {
		case <-ctx.Done():
			return at, fmt.Errorf("waiting for the event with the version %s: %w", version, ctx.Err())
		case <-next:
		}
	}
}

// size returns the number of events and of their bytes.
func (w *hubWatch) size() (events, bytes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.arrived), w.bytes
}
