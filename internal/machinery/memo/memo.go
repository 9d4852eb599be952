// Package memo keeps a value that is computed from cached objects until one of them changes. It
// depends on no kind.
package memo

import (
	"sync"
	"sync/atomic"
)

// Memo keeps the last value. The zero value has none. It is safe for concurrent use.
type Memo[T any] struct {
	// changes counts the calls of Invalidate.
	changes atomic.Int64

	mu    sync.Mutex // held while a value is computed, so that no value is older than one before it
	value T
	// at is changes when value was computed, plus 1.
	at int64
}

// Invalidate must be called when an object changed, and after the cache has the change.
func (m *Memo[T]) Invalidate() { m.changes.Add(1) }

// Get returns the last value if no object has changed since. Otherwise it computes the next one. An
// object may change during that: the next call computes again.
func (m *Memo[T]) Get(compute func() (T, error)) (T, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.changes.Load() + 1
	if m.at == now {
		return m.value, nil
	}
	value, err := compute()
	if err == nil {
		m.value, m.at = value, now
	}
	return value, err
}
