// Package limits limits what one client of the hub, and all clients together, may use: requests in progress,
// bytes of responses that wait to be stored, connections, and the time for sending a part of a response. It must
// not know the content of requests.
package limits

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// WaitWithin is how long a request waits for a slot.
const WaitWithin = 10 * time.Second

// Requests limits the requests in progress: of each caller, and in total. It is safe for concurrent use.
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

// NewRequests returns a Requests. Of each caller, up to waiting requests wait for a slot, for WaitWithin.
// Further requests are rejected immediately.
func NewRequests(perCaller, total, waiting int64) *Requests {
	return &Requests{perCaller: perCaller, waiting: waiting, all: semaphore.NewWeighted(total), of: map[string]*caller{}}
}

// Acquire waits for a slot for a caller. If it returns true, Release must be called.
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

// use adds a request to a caller. It returns nil if the caller has too many requests.
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

// unuse removes a request, and its caller if that has no other requests. slots is the number of slots to give
// back.
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
