package podgroup

import (
	"hash/maphash"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// rewriteFirst and rewriteLast bound the wait before the same content is written again
	// for a PodGroup. The wait doubles each time that another client reverts the write.
	rewriteFirst, rewriteLast = 200 * time.Millisecond, time.Minute
	// contestedFrom is the wait from which on an event is recorded.
	contestedFrom = 5 * time.Second
)

// rewrites holds what was written last for each PodGroup. Safe for concurrent use; the
// zero value is ready.
type rewrites struct {
	mu   sync.Mutex
	seed maphash.Seed
	last map[types.NamespacedName]rewrite
	// swept is when expired entries were removed last.
	swept time.Time
}

// rewrite is one write.
type rewrite struct {
	// content is a hash of the written content. version is the resourceVersion of the
	// result; "" if admission reverted the write itself.
	content uint64
	version string
	at      time.Time
	// wait is how long the same content must not be written again.
	wait time.Duration
}

// due returns how long to wait before a content is written for a PodGroup. seen is its
// resourceVersion in the watch, "" if it does not exist. contested reports whether other
// clients revert the content so often that an event has to be recorded.
func (r *rewrites) due(key types.NamespacedName, content, seen string, now time.Time) (left time.Duration, contested bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.last[key]
	if !ok || last.expired(now) || last.content != maphash.String(r.seed, content) || !last.reverted(seen) {
		return 0, false
	}
	return max(0, last.wait-now.Sub(last.at)), last.wait >= contestedFrom
}

// wrote records a write: the content, the resourceVersion of the result, and the one that
// the watch had shown before it.
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
		if last.reverted(seen) {
			next.wait = min(2*last.wait, rewriteLast)
		}
	}
	r.last[key] = next
}

// forget removes the entry of a PodGroup that this controller deleted.
func (r *rewrites) forget(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, key)
}

// expired reports whether the write is so old that no client can be reverting it still.
func (w *rewrite) expired(now time.Time) bool { return now.Sub(w.at) >= 2*rewriteLast }

// reverted reports whether the PodGroup was changed or deleted after the write. seen is
// its resourceVersion in the watch; a watch that is behind shows an older one.
func (w *rewrite) reverted(seen string) bool {
	if seen == "" {
		return true
	}
	was, err := parseVersion(w.version)
	is, errIs := parseVersion(seen)
	return err != nil || errIs != nil || is > was
}
