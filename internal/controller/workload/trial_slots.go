package workload

import (
	"sync"
	"time"
)

// slotPatience is how long a namespace that waits for a slot keeps its place. It asks again
// every retryTurn.
const slotPatience = 4 * retryTurn

// slots are the workers that may try overrides at a time. Namespaces that wait for one take
// turns, so that a namespace with a thousand workloads to try delays another one by one
// trial of each worker. The zero value has maxTrying free slots.
type slots struct {
	mu   sync.Mutex
	used int
	// waiting is when each namespace that got no slot asked last.
	waiting map[string]time.Time
	// turns is when each namespace got its last slot, in the order of slots. It is emptied when
	// nobody waits.
	turns map[string]uint64
	turn  uint64
}

// take takes a slot for a namespace, and returns false if none is free for it.
func (s *slots) take(namespace string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == nil {
		s.waiting, s.turns = map[string]time.Time{}, map[string]uint64{}
	}
	for other, asked := range s.waiting {
		if now.Sub(asked) > slotPatience {
			delete(s.waiting, other)
		}
	}
	free := maxTrying - s.used
	for other := range s.waiting {
		if other != namespace && s.turns[other] < s.turns[namespace] {
			free-- // the slot is for a namespace that has waited longer
		}
	}
	if free <= 0 {
		s.waiting[namespace] = now
		return false
	}
	delete(s.waiting, namespace)
	s.used++
	s.turn++
	s.turns[namespace] = s.turn
	if len(s.waiting) == 0 {
		clear(s.turns) // nobody has waited longer than another
		s.turns[namespace] = s.turn
	}
	return true
}

// give gives a slot back.
func (s *slots) give() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used--
}
