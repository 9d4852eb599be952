package limits

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestRequestsPerCallerAreBounded: a caller gets its slots, a few more of its requests wait, and other callers
// keep their slots.
func TestRequestsPerCallerAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRequests(2, 3, 1)
		for range 2 {
			if !r.Acquire(t.Context(), "a") {
				t.Fatal("there is no slot")
			}
		}
		began := time.Now()
		waited := make(chan bool)
		go func() { waited <- r.Acquire(t.Context(), "a") }()
		synctest.Wait()
		if r.Acquire(t.Context(), "a") || time.Since(began) > 0 {
			t.Error("a fourth request of a caller is not rejected at once")
		}
		if !r.Acquire(t.Context(), "b") {
			t.Error("another caller has no slot")
		}
		if r.TryAcquire("c") {
			t.Error("there are more slots than in all")
		}
		if r.Acquire(t.Context(), "c") || time.Since(began) != WaitWithin {
			t.Errorf("there are more slots than in all, after %s", time.Since(began))
		}
		if <-waited {
			t.Error("a caller has more slots than its own")
		}
		go func() { waited <- r.Acquire(t.Context(), "a") }()
		synctest.Wait()
		r.Release("a")
		if !<-waited {
			t.Error("a slot that is given back is not taken")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if r.Acquire(ctx, "c") {
			t.Error("a request whose client has gone has a slot")
		}
		r.Release("a")
		r.Release("a")
		r.Release("b")
		if len(r.of) != 0 || r.Taken() != 0 {
			t.Errorf("without requests, %d callers and %d slots are left", len(r.of), r.Taken())
		}
	})
}
