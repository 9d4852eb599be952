package proxy

import (
	"sync"
	"time"
)

// refusedFor is how long the cloud must refuse a request of the node before what is kept of it is dropped.
// An API server that has just started refuses for a while, until it has read the rules, and so does one whose
// rules are written anew. If that took the answers of the node away, a cut of the link after it would leave a
// node that starts no pod. For the node itself little is protected by dropping them: it has had them.
const refusedFor = 5 * time.Minute

// refusals are since when the cloud refuses requests, by their scopes, and by what others than the node read.
type refusals struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// isLasting notes a refusal, and returns whether the scope has been refused for refusedFor, with no success
// between.
func (r *refusals) isLasting(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	since, is := r.since[key]
	if is && time.Since(since) >= refusedFor {
		delete(r.since, key)
		return true
	}
	if is {
		return false
	}
	r.noteLocked(key)
	return false
}

func (r *refusals) noteLocked(key string) {
	if len(r.since) >= maxScopes { // more than is kept; what is forgotten is only kept for longer
		r.forgetLocked()
	}
	if r.since == nil {
		r.since = map[string]time.Time{}
	}
	r.since[key] = time.Now()
}

// note notes something of a key, as of now.
func (r *refusals) note(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noteLocked(key)
}

// noted returns when something was noted of a key; zero if nothing was.
func (r *refusals) noted(key string) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.since[key]
}

// isNoted reports whether a refusal is noted, with no success since.
func (r *refusals) isNoted(key string) bool { return !r.noted(key).IsZero() }

// forgetLocked forgets the refusal that began first.
func (r *refusals) forgetLocked() {
	oldest, at := "", time.Time{}
	for key, since := range r.since {
		if oldest == "" || since.Before(at) {
			oldest, at = key, since
		}
	}
	delete(r.since, oldest)
}

// end notes that the cloud answers a scope.
func (r *refusals) end(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.since, key)
}
