package proxy

import (
	"bytes"
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-k8s/atoll/internal/hub/filter"
	"github.com/atoll-k8s/atoll/internal/hub/record"
	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

const (
	// compareAfter gathers changes of what a filter depends on, before forms are compared.
	compareAfter = 100 * time.Millisecond
	// compareAgain is the time between two attempts to compare forms with a cache that is behind the client, and
	// doubles up to maxCompareAgain.
	compareAgain, maxCompareAgain = 250 * time.Millisecond, 5 * time.Second
)

// topology is the objectFilter of the clients of Services: it gives each object the form that filter.Filter says. An
// object whose form cannot be determined passes unchanged.
type topology struct {
	filter.Session

	source filter.Filter
	anew   func() filter.Session
	// sent has a sum of the form of each object that the client has from this watch, by its id; nil for a list.
	// isWhole is true once the client has no others.
	sent    map[string]uint64
	isWhole bool
	seed    maphash.Seed
	again   chan struct{} // gets something when forms are to be compared
}

// newTopology returns the topology of a list or a watch; nil if its objects are not filtered.
func newTopology(p *parts, c *call) *topology {
	anew := func() filter.Session {
		return p.Filter.Session(c.caller.User(p.Recognizer.NodeName), c.what.Group, c.what.Version, c.what.Resource)
	}
	session := anew()
	if session == nil {
		return nil
	}
	t := &topology{Session: session, source: p.Filter, anew: anew}
	if c.what.Kind == request.Watch {
		t.sent, t.seed, t.again = map[string]uint64{}, maphash.MakeSeed(), make(chan struct{}, 1)
	}
	return t
}

// list implements objectFilter. The record gets the unfiltered objects.
func (t *topology) list(l *wire.List) (forClient, forRecord *wire.List, err error) {
	filtered := &wire.List{Header: l.Header, Items: slices.Clone(l.Items)}
	t.cached(filtered)
	if slices.EqualFunc(l.Items, filtered.Items, func(a, b wire.Item) bool { return bytes.Equal(a.Raw, b.Raw) }) {
		filtered = l
	}
	return filtered, l, nil
}

// cached implements objectFilter. A watch whose initial events these are has no other objects.
func (t *topology) cached(l *wire.List) {
	for i := range l.Items {
		t.Learn(l.Format, &l.Items[i].Meta, l.Items[i].Raw)
	}
	for i := range l.Items {
		item := &l.Items[i]
		item.Raw = t.Form(l.Format, &item.Meta, item.Raw)
		if t.sent != nil {
			t.sent[record.ID(&item.Meta)] = maphash.Bytes(t.seed, item.Raw)
		}
	}
	t.isWhole = true
}

// event implements objectFilter. The record gets the unfiltered object.
func (t *topology) event(format wire.Format, e *wire.Event, m *wire.Meta, _ bool) (frame []byte, err error) {
	frame, others := e.Frame, false
	switch e.Type {
	case watch.Added, watch.Modified:
		others = t.Learn(format, m, e.Object)
		form := t.Form(format, m, e.Object)
		if !bytes.Equal(form, e.Object) {
			if frame, err = format.AppendEvent(nil, e.Type, form); err != nil {
				form, frame = e.Object, e.Frame
			}
		}
		if item, err := format.ItemOf(form, false); err == nil {
			t.sent[record.ID(m)] = maphash.Bytes(t.seed, item)
		}
	case watch.Deleted:
		others = t.Forget(m)
		delete(t.sent, record.ID(m))
	default:
	}
	if others {
		select {
		case t.again <- struct{}{}:
		default: // they will be compared
		}
	}
	return frame, nil
}

// comparing sends objects of a watch again whose form has changed. The zero value does nothing.
type comparing struct {
	*topology

	running sync.WaitGroup
	cancel  context.CancelFunc // of the watch
}

// start begins the comparing. From then on s.writing guards what is written. The client must have the beginning of
// the answer.
func (c *comparing) start(s *stream) {
	if c.topology == nil {
		return
	}
	c.running.Go(func() {
		defer c.cancel() // if the client takes nothing any more
		_ = s.Panics.Do("comparing the forms of objects", func() error { c.run(s.call.Context(), s); return nil })
	})
}

// stop ends the comparing.
func (c *comparing) stop() {
	if c.topology != nil {
		c.cancel()
		c.running.Wait()
	}
}

// run compares forms when what they depend on changes, and at first: the client may have the forms of an earlier
// time.
func (c *comparing) run(ctx context.Context, s *stream) {
	pause := compareAgain
	for {
		changed := c.source.Changed()
		done, gone := c.compare(s)
		if gone {
			return
		}
		var retry <-chan time.Time
		if done {
			pause = compareAgain
		} else {
			retry, pause = time.After(pause), min(2*pause, maxCompareAgain)
		}
		select {
		case <-ctx.Done():
			return
		case <-retry:
			continue
		case <-changed:
		case <-c.again:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(compareAfter):
		}
	}
}

// compare sends the client each object whose form differs from the one that it has, from the cache. done is false if
// the cache does not have the state that the client has, or a later one. gone is true if the client takes no more events.
//
// Objects that are later than the client are left out, because the client would go back with the events up to them.
// It gets them with these events.
func (c *comparing) compare(s *stream) (done, gone bool) {
	s.Record.Settle(s.call.key)
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.version == "" {
		return false, false // among the initial events
	}
	state, err := s.Record.Peek(s.call.key) // without a wait, because the events of the watch wait for the caller
	if err != nil {
		return false, false
	}
	defer state.Close()
	if !state.Head.IsList() || !wire.IsUpTo(s.version, state.Head.ResourceVersion) {
		return false, false
	}
	list, err := state.Head.Header()
	if err != nil || list.Format != s.format {
		return false, false
	}
	// The objects are read twice, because all together may take much memory, in each watch.
	isLater := func(item *wire.Item) bool {
		return item.ResourceVersion != "" && !wire.IsUpTo(item.ResourceVersion, s.version)
	}
	session := c.anew()
	for item, err := range itemsOf(state, list) {
		if err != nil {
			return false, false
		}
		if _, has := c.sent[record.ID(&item.Meta)]; !isLater(&item) || !c.isWhole || has {
			session.Learn(list.Format, &item.Meta, item.Raw) // if it is later, it is the best that is known of the client's version
		}
	}
	sent, wrote, isWhole := make(map[string]uint64, state.Len()), false, true
	for item, err := range itemsOf(state, list) {
		if err != nil {
			return false, false
		}
		id, later := record.ID(&item.Meta), isLater(&item)
		isWhole = isWhole && !later
		was, has := c.sent[id]
		form := session.Form(list.Format, &item.Meta, item.Raw)
		sum := maphash.Bytes(c.seed, form)
		switch {
		case later && !has:
			continue
		case later:
			sum = was
		case !has || was != sum:
			object, err := list.Format.ObjectOf(form, item.APIVersion, item.Kind)
			if err != nil || !s.send(watch.Modified, object) {
				return false, err == nil
			}
			wrote = true
		}
		sent[id] = sum
	}
	c.Session, c.sent, c.isWhole = session, sent, c.isWhole || isWhole
	if !wrote || !s.position.Bookmarks {
		return true, false
	}
	// The objects have their own versions. The client goes on from where it was.
	apiVersion, kind := list.ItemKind()
	bookmark, err := list.Format.Bookmark(apiVersion, kind, s.version, false)
	return true, err == nil && !s.send(watch.Bookmark, bookmark)
}
