package proxy

import (
	"time"

	"k8s.io/utils/lru"

	"github.com/atoll-k8s/atoll/internal/hub/record"
)

// refusedFor is how long the cloud must refuse a request of the node before its cached answer is removed. An
// API server that is starting refuses requests until it has loaded its authorization rules, and also while
// these rules are replaced. Without the cached answers, the node could not start pods in an outage after that.
// Removing them would protect little, because the node has already received them.
const refusedFor = 5 * time.Minute

// refusals has the time of the first 403, by scope, and by caller and path (see ofAnyForm). parts.changed uses the
// same type for other times.
type refusals struct{ since *lru.Cache } // of time.Time

// newRefusals returns refusals. If a time is lost because there are too many, a cached answer is used for longer.
func newRefusals() *refusals { return &refusals{lru.New(record.MaxScopes)} }

// isLasting records a refusal, and returns whether the scope was refused for refusedFor without a success in
// between.
func (r *refusals) isLasting(key string) bool {
	switch since := r.noted(key); {
	case since.IsZero():
		r.note(key)
	case time.Since(since) >= refusedFor:
		r.end(key)
		return true
	}
	return false
}

// note records the current time for a key.
func (r *refusals) note(key string) { r.since.Add(key, time.Now()) }

// noted returns the recorded time of a key; zero if there is none.
func (r *refusals) noted(key string) time.Time {
	value, _ := r.since.Get(key)
	since, _ := value.(time.Time)
	return since
}

// isNoted reports whether a refusal is recorded, without a success since.
func (r *refusals) isNoted(key string) bool { return !r.noted(key).IsZero() }

// end records that the cloud answers a scope.
func (r *refusals) end(key string) { r.since.Remove(key) }
