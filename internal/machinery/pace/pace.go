// Package pace bounds how often an object is written. It depends on no kind.
package pace

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// StatusBurst is the number of writes of a status without delay. Further writes are
	// StatusEvery apart, so that a state that changes back and forth does not load the API
	// server.
	StatusBurst = 5
	// StatusEvery is the delay between later writes of a status.
	StatusEvery = 5 * time.Second
)

// ByName bounds the writes of objects, by name. Safe for concurrent use; the zero value is
// ready for use.
type ByName struct {
	mu     sync.Mutex
	byName map[string]*rate.Limiter
}

// Delay returns how long the next write of name has to wait. 0 counts the write as done:
// burst writes may be done at once, and one more after each duration every. every and
// burst count only in the first call for a name.
func (p *ByName) Delay(name string, now time.Time, every time.Duration, burst int) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	limiter, known := p.byName[name]
	if !known {
		limiter = rate.NewLimiter(rate.Every(every), burst)
		if p.byName == nil {
			p.byName = map[string]*rate.Limiter{}
		}
		p.byName[name] = limiter
	}
	reservation := limiter.ReserveN(now, 1)
	delay := reservation.DelayFrom(now)
	if delay > 0 {
		reservation.CancelAt(now)
	}
	return delay
}

// Forget drops the history of a name.
func (p *ByName) Forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byName, name)
}

// Since records since when something is so of objects, by name. Safe for concurrent use; the zero
// value is ready for use.
type Since struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// For returns for how long it has been so: 0 for the first call, and after a call with false.
func (s *Since) For(name string, now time.Time, isSo bool) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !isSo {
		delete(s.since, name)
		return 0
	}
	since, known := s.since[name]
	if known {
		return now.Sub(since)
	}
	if s.since == nil {
		s.since = map[string]time.Time{}
	}
	s.since[name] = now
	return 0
}
