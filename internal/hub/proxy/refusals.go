package proxy

import (
	"sync"
	"time"
)

// refusedFor is how long the cloud must refuse a request of the node before its cached answer is removed. An
// API server that is starting refuses requests until it has loaded its authorization rules, and also while
// these rules are replaced. Without the cached answers, the node could not start pods in an outage after that.
// Removing them would protect little, because the node has already received them.
const refusedFor = 5 * time.Minute

// refusals has the time of the first 403, by scope, and by caller and path (see ofAnyForm). Proxy.changed uses the
// same type for other times.
type refusals struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// isLasting records a refusal, and returns whether the scope was refused for refusedFor without a success in
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
	if len(r.since) >= maxScopes { // if an entry is lost, its cached answer only stays longer
		r.forgetLocked()
	}
	if r.since == nil {
		r.since = map[string]time.Time{}
	}
	r.since[key] = time.Now()
}

// note records the current time for a key.
func (r *refusals) note(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noteLocked(key)
}

// noted returns the recorded time of a key; zero if there is none.
func (r *refusals) noted(key string) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.since[key]
}

// isNoted reports whether a refusal is recorded, without a success since.
func (r *refusals) isNoted(key string) bool { return !r.noted(key).IsZero() }

// forgetLocked removes the oldest entry.
func (r *refusals) forgetLocked() {
	oldest, at := "", time.Time{}
	for key, since := range r.since {
		if oldest == "" || since.Before(at) {
			oldest, at = key, since
		}
	}
	delete(r.since, oldest)
}

// end records that the cloud answers a scope.
func (r *refusals) end(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.since, key)
}
