package proxy

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

const (
	// maxJobs limits the jobs that wait to be stored for one scope. A disk that hangs must not block responses.
	maxJobs = 1024
	// spaceWithin is how long a stream waits for space in a full queue, the first time.
	spaceWithin = time.Second
	// settleWithin is how long a response from the cache waits for the jobs of its scope.
	settleWithin = 2 * time.Second
	// healEvery is the least time between two attempts to list a collection again after the cache has missed
	// events.
	healEvery = 30 * time.Second
	// giveUpFor is this time if the collection was too large to be cached.
	giveUpFor = time.Hour
	// restoredAfter is how long the cached state may be newer than the events that arrive.
	restoredAfter = 5 * time.Minute
)

// queues store responses and events after the clients have received them. The jobs of one scope run in order,
// one at a time.
type queues struct {
	mu     sync.Mutex
	of     map[string]*queue
	others int                  // the number of queues of callers other than the node
	healed map[string]time.Time // when a scope was last read by heal
	tasks  tasks
}

// tasks counts goroutines. Unlike a [sync.WaitGroup], it allows new tasks while a goroutine waits.
type tasks struct {
	mu      sync.Mutex
	running int
	none    chan struct{} // closed when no task runs; nil if no goroutine waits
}

// Go runs a task.
func (t *tasks) Go(task func()) {
	t.mu.Lock()
	t.running++
	t.mu.Unlock()
	go func() {
		defer t.done()
		task()
	}()
}

func (t *tasks) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running--; t.running == 0 && t.none != nil {
		close(t.none)
		t.none = nil
	}
}

// Wait waits until no task runs.
func (t *tasks) Wait() {
	t.mu.Lock()
	if t.running == 0 {
		t.mu.Unlock()
		return
	}
	if t.none == nil {
		t.none = make(chan struct{})
	}
	none := t.none
	t.mu.Unlock()
	<-none
}

// queue has the jobs of one scope. It exists while there are jobs.
type queue struct {
	jobs  []func(*state)
	space chan struct{} // receives a value when a job is taken
	state state
}

// state is the state of a scope's worker between two jobs: the writer that continues the cached state, and the
// head of the cached state. Both are nil if they are not known.
type state struct {
	writer *cache.Writer
	head   *head
}

// add adds a job for a scope. It waits for space in the queue. It returns false if there is none in time, or if
// too many scopes have jobs.
func (q *queues) add(key string, wait time.Duration, job func(*state)) bool {
	var timer <-chan time.Time // created only if needed: usually there is space
	for {
		q.mu.Lock()
		one := q.of[key]
		if one == nil {
			if isOfNode(key) && len(q.of)-q.others >= maxScopes || !isOfNode(key) && q.others >= maxOthersQueues {
				q.mu.Unlock()
				return false
			}
			if q.of == nil {
				q.of = map[string]*queue{}
			}
			if !isOfNode(key) {
				q.others++
			}
			one = &queue{space: make(chan struct{}, 1)}
			q.of[key] = one
			q.tasks.Go(func() { q.run(key, one) })
		}
		if len(one.jobs) < maxJobs {
			one.jobs = append(one.jobs, job)
			q.mu.Unlock()
			return true
		}
		q.mu.Unlock()
		if timer == nil {
			timer = time.After(wait)
		}
		select {
		case <-one.space:
		case <-timer:
			return false
		}
	}
}

func (q *queues) run(key string, one *queue) {
	for {
		q.mu.Lock()
		if len(one.jobs) == 0 {
			delete(q.of, key)
			if !isOfNode(key) {
				q.others--
			}
			q.mu.Unlock()
			return
		}
		job := one.jobs[0]
		one.jobs = one.jobs[1:]
		q.mu.Unlock()
		select {
		case one.space <- struct{}{}:
		default:
		}
		job(&one.state)
	}
}

// isBusy reports whether a scope has jobs.
func (q *queues) isBusy(key string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.of[key] != nil
}

// settle waits until the current jobs of a scope are done, for at most settleWithin.
func (q *queues) settle(key string) {
	if !q.isBusy(key) {
		return
	}
	done := make(chan struct{})
	if !q.add(key, 0, func(*state) { close(done) }) {
		return
	}
	select {
	case <-done:
	case <-time.After(settleWithin):
	}
}

// mayHeal reports whether a scope may be listed again now, and records that it is.
func (q *queues) mayHeal(key string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if time.Since(q.healed[key]) < healEvery {
		return false
	}
	for other, at := range q.healed {
		if time.Since(at) >= healEvery {
			delete(q.healed, other)
		}
	}
	if q.healed == nil {
		q.healed = map[string]time.Time{}
	}
	q.healed[key] = time.Now()
	return true
}

// note records that a response or an event of a scope was not cached. If it was too large, the next heal waits
// for giveUpFor.
func (q *queues) note(key string, err error) {
	if !errors.Is(err, cache.ErrTooLarge) {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.healed == nil {
		q.healed = map[string]time.Time{}
	}
	q.healed[key] = time.Now().Add(giveUpFor - healEvery)
}

// keep stores a response after the client has received it, and returns false if it will not be stored. If
// storing fails, the previous cached state remains: it includes its own time.
func (p *Proxy) keep(c *call, store func(*state) error) bool {
	queued := p.queues.add(c.key, 0, func(s *state) {
		if err := p.Panics.Do("caching a response", func() error { return store(s) }); err != nil {
			*s = state{}
			p.queues.note(c.key, err)
			p.Log.V(2).Info("Caching a response failed", "path", c.URL.Path, "error", err.Error())
		}
	})
	if !queued {
		p.Log.V(2).Info("A response is not cached, because the disk is slow", "path", c.URL.Path)
	}
	return queued
}

// drop removes a scope from the cache, and the scopes with other forms of the same content, because the cloud
// refuses the request now. Scopes of the node and of clients of Services are removed only after the cloud has
// refused them for some time. Cached lists that contain a refused object remain, because lists need another
// permission.
func (p *Proxy) drop(c *call) {
	if isLasting := p.refusals.isLasting(c.key); p.Cache.RankOf(c.key) > 0 && !isLasting {
		return
	}
	p.refusals.isLasting(c.ofAnyForm())
	keys := []string{c.key}
	for _, s := range p.Cache.Scopes() {
		if s.Key != c.key && c.isPartOf(s.Key) && (c.what.Kind != request.Get || strings.HasPrefix(s.Key, c.ofAnyForm()+"\n")) {
			keys = append(keys, s.Key)
		}
	}
	for _, key := range keys {
		of := *c
		of.key = key
		p.keep(&of, func(st *state) error {
			*st = state{}
			return p.Cache.Remove(key)
		})
	}
}

// follow updates the cached state of a stream's scope with an event. before is the version that the client had
// before the event. passes is false if the client does not receive the event.
func (s *stream) follow(e wire.Event, m wire.Meta, before string, passes bool) {
	var object []byte
	if passes {
		object = bytes.Clone(e.Object) // the memory of the frame is reused
	}
	wait := spaceWithin
	if s.behind {
		wait = 0
	}
	initial, incomplete := s.isInitial, s.isIncomplete
	if e.Type == watch.Bookmark && initial && s.version != "" {
		s.isInitial = false
	}
	limit, size := s.bytesOf(s.call), int64(len(object))
	if !limit.Take(size) {
		s.lose(initial)
		return
	}
	s.behind = !s.queues.add(s.key, wait, func(st *state) {
		defer limit.Give(size)
		err := s.Panics.Do("caching an event", func() error {
			switch {
			case initial && incomplete:
				return errGap
			case initial:
				return s.storeInitial(st, e.Type, object, &m)
			default:
				return s.storeEvent(st, e.Type, object, &m, before)
			}
		})
		if err != nil {
			*st = state{}
			s.dropSnapshot()
			s.queues.note(s.key, err)
			s.Log.V(2).Info("The cache has missed events of a collection", "path", s.URL.Path, "error", err.Error())
			s.heal(s.call)
		}
	})
	if s.behind {
		limit.Give(size)
		s.lose(initial)
	}
}

// lose records that an event is not cached. The next event of the stream detects the gap. After the last of the
// initial events, the next event may take long to arrive, so lose calls heal.
func (s *stream) lose(initial bool) {
	s.behind = true
	s.isIncomplete = s.isIncomplete || initial
	if initial && !s.isInitial {
		s.heal(s.call)
	}
}

// dropSnapshot discards the initial events. Only the worker of the scope uses s.snapshot.
func (s *stream) dropSnapshot() {
	if s.snapshot != nil {
		s.snapshot.Abort()
		s.snapshot = nil
	}
}

// begin prepares the caching of a stream's events.
func (s *stream) begin() {
	s.isInitial = s.position.InitialEvents
	initial, version := s.isInitial, s.version
	s.behind = !s.queues.add(s.key, spaceWithin, func(st *state) {
		err := s.Panics.Do("preparing to cache the events of a watch", func() (err error) {
			switch {
			case initial:
				s.snapshot, err = s.Cache.Snapshot(s.key)
			case version != "":
				if err = st.resume(s.Proxy, s.key); err == nil && !wire.IsUpTo(version, st.head.ResourceVersion) {
					err = errGap
				}
			}
			return err
		})
		if err != nil {
			s.heal(s.call)
		}
	})
	s.isIncomplete = initial && s.behind
}

// finish ends the caching of a stream's events. The cached state remains.
func (s *stream) finish() {
	if s.isInitial || s.isIncomplete {
		s.queues.tasks.Go(func() {
			for !s.queues.add(s.key, spaceWithin, func(*state) { s.dropSnapshot() }) {
				time.Sleep(againAfter) // the snapshot has a file, so it must be dropped once there is space in the queue
			}
		})
	}
}

// storeInitial adds an initial event to the snapshot, and commits the snapshot at the last one.
func (s *stream) storeInitial(st *state, kind watch.EventType, object []byte, m *wire.Meta) error {
	if s.snapshot == nil {
		return nil // it could not be created, or has failed: heal was called
	}
	typed := s.format != wire.Protobuf && (isCustom(m.APIVersion) || m.Kind == "PartialObjectMetadata")
	switch kind {
	case watch.Added, watch.Modified:
		if object == nil { // the gate holds it
			return nil
		}
		item, err := s.format.ItemOf(object, typed)
		if err != nil {
			return err
		}
		return s.snapshot.Add(id(m), item)
	case watch.Bookmark:
		list := &wire.Header{Format: s.format, APIVersion: m.APIVersion, Kind: m.Kind + "List", ItemsHaveType: typed, ResourceVersion: m.ResourceVersion}
		h, err := headOf(list, s.format.ContentType())
		if err != nil {
			return err
		}
		writer, err := s.snapshot.Commit(h.encode())
		s.snapshot = nil
		*st = state{writer, h}
		return err
	default:
		return fmt.Errorf("an event %s among the initial events", kind)
	}
}

// builtinGroups are the API groups of built-in kinds, without the suffix .k8s.io. Other groups with this suffix
// have custom resources.
var builtinGroups = []string{
	"admissionregistration", "apiextensions", "apiregistration", "authentication", "authorization", "certificates", "coordination", "discovery", "events",
	"flowcontrol.apiserver", "internal.apiserver", "networking", "node", "rbac.authorization", "resource", "scheduling", "storage", "storagemigration",
}

// isCustom reports whether an API server encodes lists of a kind like lists of custom resources, whose items
// have an apiVersion and a kind.
func isCustom(apiVersion string) bool {
	group, _, _ := strings.Cut(apiVersion, "/")
	name, isBelow := strings.CutSuffix(group, ".k8s.io")
	return strings.Contains(group, ".") && (!isBelow || !slices.Contains(builtinGroups, name))
}

// errGap means that the cached state of a collection has missed events.
var errGap = errors.New("the cached state has missed events")

// storeEvent applies an event to the cached state, if that is the state before the event.
func (s *stream) storeEvent(st *state, kind watch.EventType, object []byte, m *wire.Meta, before string) error {
	if st.writer == nil {
		if err := st.resume(s.Proxy, s.key); err != nil {
			return err
		}
	}
	switch format, err := wire.FormatOf(st.head.ContentType); {
	case err != nil:
		return err
	case st.head.List == nil || format != s.format || !wire.IsUpTo(before, st.head.ResourceVersion):
		return errGap
	case wire.IsUpTo(m.ResourceVersion, st.head.ResourceVersion):
		return s.noteOlder(m.ResourceVersion, st.head.ResourceVersion)
	}
	st.head.ResourceVersion = m.ResourceVersion
	switch {
	case object == nil || kind == watch.Bookmark:
		return st.writer.Advance(st.head.encode()) // without a write to the disk
	case kind == watch.Deleted:
		return st.writer.Delete(id(m), st.head.encode())
	default:
		item, err := s.format.ItemOf(object, st.head.ItemsHaveType)
		if err != nil {
			return err
		}
		return st.writer.Put(id(m), item, st.head.encode())
	}
}

// noteOlder handles an event that is not newer than the cached state, because another stream or a list has
// already stored it. If the cached state stays newer for longer than restoredAfter, the API server's data was
// restored from a backup, and noteOlder returns errGap: the collection is then listed again.
func (s *stream) noteOlder(event, kept string) error {
	switch {
	case event == kept:
		s.newer = ""
	case s.newer != kept:
		s.newer, s.newerSince = kept, time.Now()
	case time.Since(s.newerSince) > cmp.Or(s.slowAfter, restoredAfter):
		s.newer = ""
		return errGap
	}
	return nil
}

// resume opens the cached state of a scope to continue it.
func (st *state) resume(p *Proxy, key string) error {
	if st.writer != nil {
		return nil
	}
	writer, raw, err := p.Cache.Resume(key)
	if err != nil {
		return err
	}
	h, err := decodeHead(raw)
	if err == nil {
		*st = state{writer, h}
	}
	return err
}

// heal lists the collection of a stream again, as its caller, because the cache has missed events. It retries
// until it succeeds or the stream ends. It does nothing if the last heal of the scope was less than healEvery
// ago.
func (p *Proxy) heal(c *call) {
	if c.Context().Err() != nil || !p.queues.mayHeal(c.key) {
		return
	}
	list := &call{Request: c.Clone(c.Context()), caller: c.caller, what: c.what, key: c.key}
	list.what.Kind = request.List
	query := c.URL.Query()
	for _, name := range request.Positions() {
		query.Del(name)
	}
	list.URL = &url.URL{Path: c.what.Path, RawQuery: query.Encode()}
	list.Header.Set("Accept", strings.ReplaceAll(strings.Join(c.Header.Values("Accept"), ","), "as=PartialObjectMetadata;", "as=PartialObjectMetadataList;"))
	p.queues.tasks.Go(func() {
		for pause := againAfter; p.Cloud.AwaitOnline(list.Context()) == nil; pause = min(2*pause, healEvery) {
			err := p.Panics.Do("listing a collection again", func() error { return p.readAnew(list) })
			if err == nil || list.Context().Err() != nil {
				return
			}
			p.Log.V(2).Info("Listing a collection with missed events failed", "path", c.URL.Path, "error", err.Error())
			select {
			case <-list.Context().Done():
			case <-time.After(pause):
			}
		}
	})
}

// errFull means that too many bytes wait to be stored.
var errFull = errors.New("too many bytes wait to be stored")

func (p *Proxy) readAnew(c *call) error {
	response, err := p.send(c, c.Request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the API server answered %s", response.Status)
	}
	answer, err := receive(response)
	if err != nil {
		return err
	}
	contentType := response.Header.Get("Content-Type")
	if !c.isGated() {
		if !p.keepSized(c, len(answer.body), func(s *state) error { return p.storeCollection(s, c, contentType, answer.body) }) {
			return errFull
		}
		return nil
	}
	list, _, err := p.passable(c, contentType, answer.body)
	if err != nil {
		return err
	}
	if !p.keepSized(c, len(answer.body), func(s *state) error { return p.storeList(s, c, contentType, list) }) {
		return errFull
	}
	return nil
}
