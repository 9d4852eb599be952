// Package pace bounds how often something is written, whoever causes it. It
// knows no kind.
package pace

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// StatusBurst is how often a status is written without delay. From then on it
	// is written once every StatusEvery, however often what it tells of turns.
	StatusBurst = 5
	// StatusEvery is the delay between later writes of a status.
	StatusEvery = 5 * time.Second
)

// ByName bounds how often something is written, by name. Safe for concurrent
// use; the zero value is useful.
type ByName struct {
	mu     sync.Mutex
	byName map[string]*rate.Limiter
}

// Delay is how long the next write has to wait; if it has not, it is counted.
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

// Forget drops what is remembered of a name.
func (p *ByName) Forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byName, name)
}
