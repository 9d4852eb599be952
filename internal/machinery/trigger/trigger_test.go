package trigger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/util/workqueue"
	testingclock "k8s.io/utils/clock/testing"
)

// queue is a controller's queue with a clock that the test steps.
type queue struct {
	workqueue.TypedRateLimitingInterface[string]
	clock *testingclock.FakeClock
}

func newQueue(t *testing.T) *queue {
	clock := testingclock.NewFakeClock(time.Unix(1_000_000, 0))
	q := &queue{clock: clock, TypedRateLimitingInterface: workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.DefaultTypedControllerRateLimiter[string](), workqueue.TypedRateLimitingQueueConfig[string]{Clock: clock},
	)}
	t.Cleanup(func() {
		q.ShutDown()
		synctest.Wait()
		clock.Step(time.Hour) // goroutines that wait for the clock see that the queue is shut down
	})
	return q
}

// step steps the clock and waits until the queue has added the requests that are due.
func (q *queue) step(d time.Duration) {
	synctest.Wait()
	q.clock.Step(d)
	synctest.Wait()
}

// take empties the queue.
func (q *queue) take() []string {
	synctest.Wait()
	var out []string
	for q.Len() > 0 {
		r, _ := q.Get()
		q.Done(r)
		out = append(out, r)
	}
	slices.Sort(out)
	return out
}

func TestAddBeforeTheStartIsDroppedAndAllIsAddedAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		s := &Source[string]{All: func() []string { return []string{"a", "b"} }}
		s.Add("early") // returns, and is dropped
		if err := errors.Join(s.Start(t.Context(), q), s.WaitForSync(t.Context())); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"a", "b"}, q.take()); diff != "" {
			t.Errorf("wrong requests at the start (-want +got):\n%s", diff)
		}
		s.Add("c")
		if diff := cmp.Diff([]string{"c"}, q.take()); diff != "" {
			t.Errorf("wrong requests after the start (-want +got):\n%s", diff)
		}
	})
}

func TestAllIsAddedOnceSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var synced atomic.Bool
		q := newQueue(t)
		s := &Source[string]{Synced: synced.Load, All: func() []string {
			if !synced.Load() {
				t.Error("All is called before Synced returns true")
			}
			return []string{"a", "b"}
		}}
		if err := s.Start(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- s.WaitForSync(t.Context()) }()
		s.Add("meanwhile")
		synctest.Wait()
		if len(ended) != 0 {
			t.Error("the controller runs before Synced returns true")
		}
		synced.Store(true)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"a", "b", "meanwhile"}, q.take()); diff != "" {
			t.Errorf("wrong requests (-want +got):\n%s", diff)
		}
	})
}

func TestWaitForSyncEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		s := &Source[string]{Synced: func() bool { return false }, All: func() []string { return []string{"a"} }}
		if err := s.Start(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.WaitForSync(ctx) }()
		cancel()
		<-ended
		if got := q.take(); len(got) != 0 {
			t.Errorf("%v were added although nothing is synced", got)
		}
	})
}

func TestDebounceMakesABurstOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const debounce = 200 * time.Millisecond
		q, s := newQueue(t), &Source[string]{Debounce: debounce}
		if err := s.Start(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			s.Add("a", "b")
			s.Add("a")
			q.step(debounce / 20)
		}
		if got := q.take(); len(got) != 0 {
			t.Errorf("%v were added before the delay", got)
		}
		q.step(debounce)
		if diff := cmp.Diff([]string{"a", "b"}, q.take()); diff != "" {
			t.Errorf("wrong requests of a burst (-want +got):\n%s", diff)
		}
		q.step(10 * debounce)
		if got := q.take(); len(got) != 0 {
			t.Errorf("%v were added once more", got)
		}
		s.Add("a")
		q.step(debounce)
		if diff := cmp.Diff([]string{"a"}, q.take()); diff != "" {
			t.Errorf("the next change was lost (-want +got):\n%s", diff)
		}
	})
}

func TestARequestDoesNotWaitLongerThanTheDebounceHoweverManyFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const debounce = 200 * time.Millisecond
		q, s := newQueue(t), &Source[string]{Debounce: debounce}
		if err := s.Start(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		for range 4 {
			s.Add("a")
			q.step(debounce / 4)
		}
		if diff := cmp.Diff([]string{"a"}, q.take()); diff != "" {
			t.Errorf("further changes delay the request (-want +got):\n%s", diff)
		}
	})
}

func TestConcurrentAddsDuringStartAreSafe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, s := newQueue(t), &Source[string]{}
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for range 100 {
					s.Add(fmt.Sprint(i))
				}
			})
		}
		wg.Go(func() {
			if err := s.Start(t.Context(), q); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		s.Add("last")
		if got := q.take(); !slices.Contains(got, "last") || len(got) > 9 {
			t.Errorf("the queue holds %v", got)
		}
	})
}

// TestALongPassDelaysTheNext, because passes over many objects are triggered all the time.
func TestALongPassDelaysTheNext(t *testing.T) {
	s := &Source[string]{Debounce: 200 * time.Millisecond}
	for _, tc := range []struct{ took, want time.Duration }{
		{time.Millisecond, 0}, {10 * time.Millisecond, 0}, {30 * time.Millisecond, 600 * time.Millisecond}, {time.Minute, 2 * time.Second}, {time.Millisecond, 0},
	} {
		s.Took("a", tc.took)
		if got := s.slow["a"]; got != tc.want {
			t.Errorf("after a pass of %s the next one is delayed by %s, want %s", tc.took, got, tc.want)
		}
	}
	if len(s.slow) != 0 {
		t.Errorf("requests without a delay have entries: %v", s.slow)
	}
	(*Source[string])(nil).Took("a", time.Minute)
}
