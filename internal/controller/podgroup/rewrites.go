package podgroup

import (
	"hash/maphash"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// rewriteFirst and rewriteLast bound how long is waited before the same is written
	// once more for a PodGroup: somebody may take it away each time.
	rewriteFirst, rewriteLast = 200 * time.Millisecond, time.Minute
	// contestedFrom is the wait from which on people are told.
	contestedFrom = 5 * time.Second
)

// rewrites are what was written last for each PodGroup. The zero value is ready.
type rewrites struct {
	mu   sync.Mutex
	seed maphash.Seed
	last map[types.NamespacedName]rewrite
	// swept is when old ones were forgotten.
	swept time.Time
}

type rewrite struct {
	// content is a hash of what was written, and version the resourceVersion that it got; ""
	// if it was taken away in the write itself.
	content uint64
	version string
	at      time.Time
	// wait is how long the same is not written again.
	wait time.Duration
}

// due tells how long to wait before a content is written for a PodGroup that was seen in a
// version, "" if it was not there; and whether somebody has taken the same away so often
// that people are to know.
func (r *rewrites) due(key types.NamespacedName, content, seen string, now time.Time) (left time.Duration, contested bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.last[key]
	if !ok || last.expired(now) || last.content != maphash.String(r.seed, content) || !last.takenAway(seen) {
		return 0, false
	}
	return max(0, last.wait-now.Sub(last.at)), last.wait >= contestedFrom
}

// wrote records that a content was written for a PodGroup that was seen in a version, and
// the version that it has since.
func (r *rewrites) wrote(key types.NamespacedName, content, version, seen string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.seed, r.last = maphash.MakeSeed(), map[types.NamespacedName]rewrite{}
	}
	if now.Sub(r.swept) >= rewriteLast {
		r.swept = now
		maps.DeleteFunc(r.last, func(_ types.NamespacedName, last rewrite) bool { return last.expired(now) })
	}
	next := rewrite{content: maphash.String(r.seed, content), version: version, at: now, wait: rewriteFirst}
	if last, ok := r.last[key]; ok && !last.expired(now) && last.content == next.content {
		next.wait = last.wait
		if last.takenAway(seen) {
			next.wait = min(2*last.wait, rewriteLast)
		}
	}
	r.last[key] = next
}

// forget is told when a PodGroup is deleted by us.
func (r *rewrites) forget(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, key)
}

// expired: whoever took it away has stopped.
func (w *rewrite) expired(now time.Time) bool { return now.Sub(w.at) >= 2*rewriteLast }

// takenAway tells whether somebody has changed the PodGroup since, or deleted it. A watch
// that is behind shows a version from before.
func (w *rewrite) takenAway(seen string) bool {
	if seen == "" {
		return true
	}
	was, err := parseVersion(w.version)
	is, errIs := parseVersion(seen)
	return err != nil || errIs != nil || is > was
}
