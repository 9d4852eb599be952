// Package limits bounds what one client of the hub, and all of them together, may take: requests in progress, bytes of
// answers that wait to be stored, connections, and the time for a part of an answer. It must not know what is asked for.
package limits

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// WaitWithin is how long a request waits for a slot.
const WaitWithin = 10 * time.Second

// Requests limits requests in progress: so many of each caller, and so many in all. It is safe for concurrent use.
type Requests struct {
	perCaller, waiting int64
	all                *semaphore.Weighted

	mu sync.Mutex
	of map[string]*caller
	// taken is the number of slots in use.
	taken int
}

type caller struct {
	slots *semaphore.Weighted
	users int64 // requests that have a slot, or wait for one
}

// NewRequests returns a limit. Of each caller, as many requests as waiting wait for a slot, for WaitWithin; all others
// are rejected at once.
func NewRequests(perCaller, total, waiting int64) *Requests {
	return &Requests{perCaller: perCaller, waiting: waiting, all: semaphore.NewWeighted(total), of: map[string]*caller{}}
}

// Acquire waits for a slot of a caller. If it returns true, Release must be called.
func (r *Requests) Acquire(ctx context.Context, who string) bool {
	if r.waiting == 0 {
		return r.TryAcquire(who)
	}
	ctx, cancel := context.WithTimeout(ctx, WaitWithin)
	defer cancel()
	return r.acquire(who, func(s *semaphore.Weighted) bool { return s.Acquire(ctx, 1) == nil })
}

// TryAcquire takes a slot if one is free and no request waits for it. If it returns true, Release must be called.
func (r *Requests) TryAcquire(who string) bool {
	return r.acquire(who, func(s *semaphore.Weighted) bool { return s.TryAcquire(1) })
}

func (r *Requests) acquire(who string, take func(*semaphore.Weighted) bool) bool {
	one := r.use(who)
	if one == nil {
		return false
	}
	if !take(one.slots) {
		r.unuse(who, 0)
		return false
	}
	if !take(r.all) {
		one.slots.Release(1)
		r.unuse(who, 0)
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken++
	return true
}

// use adds a request to those of a caller; nil if it has too many.
func (r *Requests) use(who string) *caller {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := r.of[who]
	if one == nil {
		one = &caller{slots: semaphore.NewWeighted(r.perCaller)}
		r.of[who] = one
	}
	if one.users >= r.perCaller+r.waiting {
		return nil
	}
	one.users++
	return one
}

// Release gives a slot back.
func (r *Requests) Release(who string) {
	r.mu.Lock()
	one := r.of[who]
	r.mu.Unlock()
	r.all.Release(1)
	one.slots.Release(1)
	r.unuse(who, 1)
}

// unuse forgets a request, and a caller without requests.
func (r *Requests) unuse(who string, slots int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken -= slots
	if r.of[who].users--; r.of[who].users == 0 {
		delete(r.of, who)
	}
}

// Taken returns the number of slots in use.
func (r *Requests) Taken() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.taken
}
