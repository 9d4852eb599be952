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
	// maxJobs bounds what waits to be stored for one scope. A disk that hangs must not stop answers.
	maxJobs = 1024
	// spaceWithin is how long a stream waits for a place in a full queue, the first time.
	spaceWithin = time.Second
	// settleWithin is how long an answer from the cache waits for what is still to be stored.
	settleWithin = 2 * time.Second
	// healEvery is the time between two attempts to read a collection of which the cache has lost track.
	healEvery = 30 * time.Second
	// giveUpFor is that time if the collection was too large to be kept.
	giveUpFor = time.Hour
	// restoredAfter is for how long what is kept may be newer than the events that come.
	restoredAfter = 5 * time.Minute
)

// queues store what passes through the proxy after the clients have it: for each scope in its
// order, and one thing at a time.
type queues struct {
	mu     sync.Mutex
	of     map[string]*queue
	others int                  // those of others than the node
	healed map[string]time.Time // when a scope was last read by heal
	tasks  tasks
}

// tasks counts goroutines. Unlike a [sync.WaitGroup], it may be waited for while more begin.
type tasks struct {
	mu      sync.Mutex
	running int
	none    chan struct{} // closed when none runs; nil if nobody waits
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

// queue is the work on one scope. It is there while there is work.
type queue struct {
	jobs  []func(*state)
	space chan struct{} // gets something when a job is taken
	state state
}

// state is what the worker of a scope has between two jobs: the writer that continues what is kept,
// and its head. Both are nil if they are not known.
type state struct {
	writer *cache.Writer
	head   *head
}

// add adds a job for a scope. It waits for a place, and returns false if there is none, or if something of
// too many scopes waits.
func (q *queues) add(key string, wait time.Duration, job func(*state)) bool {
	var timer <-chan time.Time // there mostly is a place
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

// isBusy reports whether something that has been added for a scope is not stored yet.
func (q *queues) isBusy(key string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.of[key] != nil
}

// settle waits until what has been added for a scope is stored, and not for long.
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

// mayHeal reports whether it is time to read a scope again.
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

// note notes that something of a scope is not kept, and why.
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

// keep stores something of a scope after the client has its answer, and returns false if it will not be
// stored. What was kept before stays if that fails: it says of when it is.
func (p *Proxy) keep(c *call, store func(*state) error) bool {
	queued := p.queues.add(c.key, 0, func(s *state) {
		if err := p.Panics.Do("keeping an answer", func() error { return store(s) }); err != nil {
			*s = state{}
			p.queues.note(c.key, err)
			p.Log.V(2).Info("An answer is not kept", "path", c.URL.Path, "error", err.Error())
		}
	})
	if !queued {
		p.Log.V(2).Info("An answer is not kept, because the disk is slow", "path", c.URL.Path)
	}
	return queued
}

// drop removes what is kept of a scope, and of what it reads in other forms: the cloud refuses them now, and if they
// are those of the node or of a client of Services, for some time. Lists that have the object stay: they are of another right.
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

// follow keeps the state of a stream's scope as its events make it. before is the version of the
// client before the event, and passes is false if the client did not get the event.
func (s *stream) follow(e wire.Event, m wire.Meta, before string, passes bool) {
	var object []byte
	if passes {
		object = bytes.Clone(e.Object) // the frame is used again
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
		err := s.Panics.Do("keeping an event", func() error {
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
			s.Log.V(2).Info("The cache has lost track of a collection", "path", s.URL.Path, "error", err.Error())
			s.heal(s.call)
		}
	})
	if s.behind {
		limit.Give(size)
		s.lose(initial)
	}
}

// lose notes that an event is not kept. The next one of the stream finds what is missing; if it is the last
// of the initial ones, the next one may be long in coming.
func (s *stream) lose(initial bool) {
	s.behind = true
	s.isIncomplete = s.isIncomplete || initial
	if initial && !s.isInitial {
		s.heal(s.call)
	}
}

// dropSnapshot drops the initial events. Only the worker of the scope uses s.snapshot.
func (s *stream) dropSnapshot() {
	if s.snapshot != nil {
		s.snapshot.Abort()
		s.snapshot = nil
	}
}

// begin prepares the keeping of what a stream brings.
func (s *stream) begin() {
	s.isInitial = s.position.InitialEvents
	initial, version := s.isInitial, s.version
	s.behind = !s.queues.add(s.key, spaceWithin, func(st *state) {
		err := s.Panics.Do("keeping what a watch brings", func() (err error) {
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

// finish ends the keeping of what a stream brings. What is kept stays.
func (s *stream) finish() {
	if s.isInitial || s.isIncomplete {
		s.queues.tasks.Go(func() {
			for !s.queues.add(s.key, spaceWithin, func(*state) { s.dropSnapshot() }) {
				time.Sleep(againAfter) // it has a file, and what waits before it is worked on
			}
		})
	}
}

// storeInitial adds an initial event, and stores the state at the last one.
func (s *stream) storeInitial(st *state, kind watch.EventType, object []byte, m *wire.Meta) error {
	if s.snapshot == nil {
		return nil // it could not be begun, or has failed: heal was called
	}
	typed := s.format != wire.Protobuf && (isCustom(m.APIVersion) || m.Kind == "PartialObjectMetadata")
	switch kind {
	case watch.Added, watch.Modified:
		if object == nil { // it did not pass the gate
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
		return fmt.Errorf("an event %s among the initial ones", kind)
	}
}

// builtinGroups are the groups below k8s.io of the API server's own kinds. There are groups of custom
// resources, too.
var builtinGroups = []string{
	"admissionregistration", "apiextensions", "apiregistration", "authentication", "authorization", "certificates", "coordination", "discovery", "events",
	"flowcontrol.apiserver", "internal.apiserver", "networking", "node", "rbac.authorization", "resource", "scheduling", "storage", "storagemigration",
}

// isCustom reports whether an API server writes lists of a kind as it does those of custom resources,
// whose items have an apiVersion and a kind.
func isCustom(apiVersion string) bool {
	group, _, _ := strings.Cut(apiVersion, "/")
	name, isBelow := strings.CutSuffix(group, ".k8s.io")
	return strings.Contains(group, ".") && (!isBelow || !slices.Contains(builtinGroups, name))
}

// errGap means that events of a collection are missing in the cache.
var errGap = errors.New("what is kept is older than the events that come")

// storeEvent adds a change to what is kept, if that is the state before it.
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
		return st.writer.Advance(st.head.encode()) // the disk stays at rest
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

// noteOlder notes an event that is not newer than what is kept: another stream or a list has brought it. If
// what is kept stays the newer one for long, the API server's data was restored to what it was before, and it
// returns errGap: the collection is read anew.
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

// resume reads what is kept of a scope, to continue it.
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

// heal reads the collection of a stream anew, as its caller, because the cache cannot follow its
// events. It tries until it succeeds or the stream ends, and begins from time to time only.
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
			err := p.Panics.Do("reading a collection anew", func() error { return p.readAnew(list) })
			if err == nil || list.Context().Err() != nil {
				return
			}
			p.Log.V(2).Info("A collection of which the cache has lost track is not read", "path", c.URL.Path, "error", err.Error())
			select {
			case <-list.Context().Done():
			case <-time.After(pause):
			}
		}
	})
}

// errFull means that too much waits to be stored.
var errFull = errors.New("too much waits to be stored")

func (p *Proxy) readAnew(c *call) error {
	response, err := p.send(c, c.Request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the API server answers %s", response.Status)
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
