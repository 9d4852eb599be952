package record

import (
	"slices"
	"sync"
	"time"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
)

// Limits for chunked lists that are not complete: their number, the divisor of the cache's size for their bytes,
// and how long a list waits for its next chunk. Clients may abandon any number of lists.
const (
	maxChunked  = 32
	ofChunked   = 2
	chunkWithin = 5 * time.Minute
)

// chunks are the chunked lists that are not complete, one per scope.
type chunks struct {
	maxBytes int64 // of all lists together; 0 means no limit
	mu       sync.Mutex
	waiting  []chunked // the oldest first
}

type chunked struct {
	key, next string
	snapshot  *cache.Snapshot
	at        time.Time
}

// take removes and returns the list of a scope whose next chunk has this continue token; nil if there is none.
func (s *chunks) take(key, next string) *cache.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.waiting, func(w chunked) bool { return w.key == key && w.next == next })
	if i < 0 || next == "" {
		return nil
	}
	snapshot := s.waiting[i].snapshot
	s.waiting = slices.Delete(s.waiting, i, i+1)
	return snapshot
}

// put stores a list until its next chunk arrives, for chunkWithin. It drops an older list of the same scope, and
// the oldest lists while all lists together are too large.
func (s *chunks) put(key, next string, snapshot *cache.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(func(w chunked) bool { return w.key == key })
	s.waiting = append(s.waiting, chunked{key, next, snapshot, time.Now()})
	size := int64(0)
	for _, w := range s.waiting {
		size += w.snapshot.Size()
	}
	for len(s.waiting) > maxChunked || s.maxBytes > 0 && size > s.maxBytes && len(s.waiting) > 0 {
		size -= s.waiting[0].snapshot.Size()
		s.waiting[0].snapshot.Abort()
		s.waiting = slices.Delete(s.waiting, 0, 1)
	}
	time.AfterFunc(chunkWithin, s.expire)
}

// expire drops the lists whose next chunk has not arrived in time.
func (s *chunks) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(func(w chunked) bool { return time.Since(w.at) >= chunkWithin })
}

func (s *chunks) dropLocked(is func(chunked) bool) {
	s.waiting = slices.DeleteFunc(s.waiting, func(w chunked) bool {
		drop := is(w)
		if drop {
			w.snapshot.Abort()
		}
		return drop
	})
}
