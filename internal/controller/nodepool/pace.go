package nodepool

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// A pool's status is written statusBurst times without delay and then once
	// every statusEvery, however often its nodes turn.
	statusBurst = 5
	statusEvery = 5 * time.Second
	// A node is repaired repairBurst times without delay and then once every
	// repairEvery: whoever insists on another value is not raced.
	repairBurst = 10
	repairEvery = 5 * time.Second
)

// pace bounds how often something is written, by name. Safe for concurrent use.
type pace struct {
	mu     sync.Mutex
	byName map[string]*rate.Limiter
}

// delay is how long the next write has to wait; if it has not, it is counted.
func (p *pace) delay(name string, now time.Time, every time.Duration, burst int) time.Duration {
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

// forget drops what is remembered of a name.
func (p *pace) forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byName, name)
}
