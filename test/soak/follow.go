package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-k8s/atoll/internal/hub/proxy"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
	"github.com/atoll-k8s/atoll/test/rawclient"
)

const (
	// listWithin bounds a list.
	listWithin = 30 * time.Second
	// againAfter is the time between two attempts of a follower.
	againAfter = 200 * time.Millisecond
	// maxEvent bounds one event, in bytes.
	maxEvent = 4 << 20
)

// follower lists a collection and watches it, for as long as it runs: a watch that ends is opened
// again at its last version, as clients do.
type follower struct {
	name   string
	client *rawclient.Client
	// path is that of the collection, with a query.
	path   string
	format wire.Format

	mu       sync.Mutex
	segments []segment
	// version is the last one that the client knows of; 0 before the first list.
	version uint64
	// lists, events and breaks count lists after the first, events, and watches that ended.
	lists, events, breaks int
	// last is the last error.
	last error
}

func newFollower(name string, client *rawclient.Client, path, accept string) (*follower, error) {
	format, err := wire.FormatOf(accept)
	return &follower{name: name, client: client, path: path, format: format}, err
}

// run follows until ctx is done.
func (f *follower) run(ctx context.Context) {
	listed := false
	for ctx.Err() == nil {
		var err error
		if !listed {
			err = f.list(ctx)
			listed = err == nil
		}
		if err == nil {
			listed, err = f.watch(ctx)
		}
		f.mu.Lock()
		f.last = err
		f.mu.Unlock()
		pause(ctx, againAfter)
	}
}

// pause waits, or until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// list begins a new segment.
func (f *follower) list(ctx context.Context) error {
	got, version, _, err := f.read(ctx)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.version > 0 {
		f.lists++
	}
	f.segments = append(f.segments, segment{listed: got, from: version})
	f.version = version
	return nil
}

// read reads the whole collection, and whether the answer is from the cache of a hub.
func (f *follower) read(ctx context.Context) (got state, version uint64, cached bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, listWithin)
	defer cancel()
	body, header, err := f.client.Read(ctx, f.path)
	if err != nil {
		return nil, 0, false, err
	}
	list, err := f.format.DecodeList(body)
	if err != nil {
		return nil, 0, false, fmt.Errorf("%s: reading the list: %w", f.name, err)
	}
	if version, err = strconv.ParseUint(list.ResourceVersion, 10, 64); err != nil {
		return nil, 0, false, fmt.Errorf("%s: reading the version of the list: %w", f.name, err)
	}
	got = state{}
	for _, item := range list.Items {
		if got[item.Meta.Namespace+"/"+item.Meta.Name], err = strconv.ParseUint(item.Meta.ResourceVersion, 10, 64); err != nil {
			return nil, 0, false, fmt.Errorf("%s: reading the version of an item: %w", f.name, err)
		}
	}
	return got, version, header.Get(proxy.AsOf) != "", nil
}

// watch watches from the last version on, and returns whether the next watch may go on from there.
func (f *follower) watch(ctx context.Context) (goOn bool, err error) {
	f.mu.Lock()
	from := f.version
	f.mu.Unlock()
	response, err := f.client.Send(ctx, fmt.Sprintf("%s&watch=1&allowWatchBookmarks=true&resourceVersion=%d", f.path, from))
	if err != nil {
		var status *rawclient.StatusError
		return !errors.As(err, &status) || status.Code != http.StatusGone, err
	}
	defer response.Body.Close()
	for events := f.format.NewEventReader(response.Body, maxEvent); ; {
		e, err := events.Next()
		if err != nil {
			f.ended()
			return true, err
		}
		if e.Type == watch.Error {
			return false, fmt.Errorf("%s: the watch ends with %q", f.name, e.Object)
		}
		m, err := f.format.Meta(e.Object)
		if err != nil {
			return false, fmt.Errorf("%s: reading an event: %w", f.name, err)
		}
		version, err := strconv.ParseUint(m.ResourceVersion, 10, 64)
		if err != nil {
			return false, fmt.Errorf("%s: reading the version of an event: %w", f.name, err)
		}
		f.see(e.Type, m.Namespace+"/"+m.Name, version)
	}
}

// ended counts a watch that has ended.
func (f *follower) ended() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.breaks++
}

// see adds an event. A bookmark only has a version.
func (f *follower) see(kind watch.EventType, object string, version uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version = max(f.version, version)
	if kind == watch.Bookmark {
		return
	}
	f.events++
	last := &f.segments[len(f.segments)-1]
	last.events = append(last.events, event{kind, object, version})
}

// at returns the last version, and the last error.
func (f *follower) at() (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.version, f.last
}

// collection is what followers follow: one of the API server, whose events are the truth, and others
// through hubs.
type collection struct {
	name    string
	truth   *follower
	others  []*follower
	history *history
	// answers are those of hubs without a cloud.
	answers []answer
}

// answer is that of a hub without a cloud.
type answer struct {
	from    string
	got     state
	version uint64
	// floor is the version up to which the hub has sent events to its clients.
	floor uint64
}

// errGap is what is wrong with a watch that had to list anew.
var errGap = errors.New("it had to list anew")

// learn adds the new events of the truth to the history.
func (c *collection) learn() error {
	c.truth.mu.Lock()
	defer c.truth.mu.Unlock()
	if len(c.truth.segments) != 1 {
		return fmt.Errorf("the watch of %s at the API server has a gap: %w", c.name, errors.Join(errGap, c.truth.last))
	}
	s := &c.truth.segments[0]
	if c.history == nil {
		c.history = &history{base: s.listed, from: s.from}
	}
	c.history.events = append(c.history.events, s.events...)
	s.events = nil
	return nil
}

// check returns what is wrong up to a version that all followers have reached, and forgets it.
func (c *collection) check(to uint64) (wrong []string, err error) {
	if err := c.learn(); err != nil {
		return nil, err
	}
	for _, f := range c.others {
		f.mu.Lock()
		rest, lines := checkSegments(c.history, f.segments, to)
		f.segments = rest
		f.mu.Unlock()
		for _, line := range lines {
			wrong = append(wrong, f.name+": "+line)
		}
	}
	for _, a := range c.answers {
		for _, line := range checkAnswer(c.history, a) {
			wrong = append(wrong, a.from+", without the cloud: "+line)
		}
	}
	c.answers = nil
	c.history.forget(to)
	return wrong, nil
}

// checkAnswer returns what is wrong with an answer.
func checkAnswer(h *history, a answer) []string {
	if a.version < a.floor {
		return []string{fmt.Sprintf("the answer is of version %d, and clients had %d before", a.version, a.floor)}
	}
	return compareStates(h.at(a.version), a.got)
}
