// Package record stores the responses of the cloud in the cache, after the clients have received them if there are
// any, and opens what is stored. A scope is what the same request of the same caller reads; its key begins with the name of the
// caller, and then has the path.
package record

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/limits"
	"github.com/atoll-k8s/atoll/internal/hub/panics"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

const (
	// maxWaiting limits the bytes of the node's responses that wait to be stored, and also those of all others.
	maxWaiting = 64 << 20
	// relistEvery is the least time between two lists of a collection after the cache has missed events.
	relistEvery = 30 * time.Second
	// giveUpFor is this time if the collection was too large to be cached.
	giveUpFor = time.Hour
)

// Recorder stores responses and events. It is safe for concurrent use.
type Recorder struct {
	// Cache, Panics and Log are set by New.
	Cache  *cache.Store
	Panics *panics.Catcher
	Log    logr.Logger

	queues   queues
	chunks   chunks
	ofNode   *limits.Bytes
	ofOthers *limits.Bytes
}

// New returns a Recorder for a cache of at most maxBytes. 0 means that incomplete chunked lists have no size
// limit. If caught is nil, the Recorder does not recover from panics.
func New(store *cache.Store, maxBytes int64, caught *panics.Catcher, log logr.Logger) *Recorder {
	return &Recorder{
		Cache: store, Panics: caught, Log: log,
		chunks: chunks{maxBytes: maxBytes / ofChunked}, ofNode: limits.NewBytes(maxWaiting), ofOthers: limits.NewBytes(maxWaiting),
	}
}

// Wait waits until all jobs and tasks so far have ended.
func (r *Recorder) Wait() { r.queues.tasks.Wait() }

// Go runs a task that Wait waits for.
func (r *Recorder) Go(task func()) { r.queues.tasks.Go(task) }

// Waiting returns the limit for the bytes that wait to be stored in scopes of the same caller; a key without a path
// is enough. The node has its
// own limit, which does not include what the hub itself reads of the pool.
func (r *Recorder) Waiting(key string) *limits.Bytes {
	if IsOfNode(key) {
		return r.ofNode
	}
	return r.ofOthers
}

// Keep stores a response of n bytes, which stay in memory until it is stored. It returns false if the response
// will not be stored. If storing fails, the previous cached state remains: it includes its own time.
func (r *Recorder) Keep(key string, n int, store func(*Job) error) bool {
	limit := r.Waiting(key)
	if n > 0 && !limit.Take(int64(n)) {
		r.Log.V(2).Info("A response is not cached, because too many bytes wait to be stored", "path", PathOf(key))
		return false
	}
	queued := r.queues.add(r, key, 0, func(j *Job) {
		defer limit.Give(int64(n))
		r.do(j, store)
	})
	if !queued {
		limit.Give(int64(n))
		r.Log.V(2).Info("A response is not cached, because the disk is slow", "path", PathOf(key))
	}
	return queued
}

func (r *Recorder) do(j *Job, change func(*Job) error) {
	if err := r.Panics.Do("changing the cache", func() error { return change(j) }); err != nil {
		j.reset()
		r.note(j.key, err)
		r.Log.V(2).Info("Changing the cache failed", "path", PathOf(j.key), "error", err.Error())
	}
}

// Remove removes a scope after its current jobs. wait is how long it waits if too many jobs of the scope wait
// already; the scope then stays.
func (r *Recorder) Remove(key string, wait time.Duration) {
	if !r.queues.add(r, key, wait, func(j *Job) { r.do(j, (*Job).remove) }) {
		r.Log.V(2).Info("A cached response is not removed, because the disk is slow", "path", PathOf(key))
	}
}

// Has reports whether the cache already has a document, so that it need not be stored. This is so for most
// repeated reads.
func (r *Recorder) Has(key string, h *Head, body []byte) bool {
	return !r.IsBusy(key) && r.Cache.Has(key, h.encode(), document, body)
}

// IsBusy reports whether a scope has jobs.
func (r *Recorder) IsBusy(key string) bool {
	r.queues.mu.Lock()
	defer r.queues.mu.Unlock()
	return r.queues.of[key] != nil
}

// AreBusy reports whether a scope whose key is among these has jobs.
func (r *Recorder) AreBusy(among func(key string) bool) bool {
	r.queues.mu.Lock()
	defer r.queues.mu.Unlock()
	for key := range r.queues.of {
		if among(key) {
			return true
		}
	}
	return false
}

// MayRelist reports whether a collection whose events the cache has missed may be listed again now, and records
// that it is: at most every relistEvery, or, if it was too large to be cached, every giveUpFor.
func (r *Recorder) MayRelist(key string) bool {
	q := &r.queues
	q.mu.Lock()
	defer q.mu.Unlock()
	if time.Since(q.relisted[key]) < relistEvery {
		return false
	}
	for other, at := range q.relisted {
		if time.Since(at) >= relistEvery {
			delete(q.relisted, other)
		}
	}
	q.relistedAtLocked(key, time.Now())
	return true
}

// note records that a response or an event of a scope was not cached. If it was too large, the next relist waits
// for giveUpFor.
func (r *Recorder) note(key string, err error) {
	if !errors.Is(err, cache.ErrTooLarge) {
		return
	}
	r.queues.mu.Lock()
	defer r.queues.mu.Unlock()
	r.queues.relistedAtLocked(key, time.Now().Add(giveUpFor-relistEvery))
}

// Retire removes the cached single objects of a caller that are deleted or replaced. uidOf returns the UID of the
// object at a path, "" if the object does not exist, and false if that is not known.
func (r *Recorder) Retire(caller identity.Caller, uidOf func(path string) (string, bool)) {
	for _, s := range r.Cache.Scopes() {
		if !strings.HasPrefix(s.Key, caller.Name+"\n") {
			continue
		}
		if uid, is := uidOf(PathOf(s.Key)); is && !r.isObject(s.Key, uid) {
			r.Remove(s.Key, 0)
		}
	}
}

// isObject reports whether a document is the object with a UID, or, for the UID "", a 404. It is true for a scope
// that is not a document, or cannot be read.
func (r *Recorder) isObject(key, uid string) bool {
	state, err := r.Peek(key)
	if err != nil {
		return true
	}
	defer state.Close()
	if state.Head.IsList() {
		return true
	}
	if state.Head.Code != http.StatusOK {
		return uid == ""
	}
	format, err := wire.FormatOf(state.Head.ContentType)
	if err != nil {
		return true
	}
	body, err := state.Document()
	if err != nil {
		return true
	}
	m, err := format.Meta(body)
	return err != nil || m.UID == uid
}
