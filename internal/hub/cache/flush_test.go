package cache

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestFlushMakesEarlierWritesDurable: one round of fsync serves all callers that wait.
func TestFlushMakesEarlierWritesDurable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		var mu sync.Mutex
		syncs := 0
		s := openOn(t, &hooked{d, func(c call) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			if c.op == "Sync" {
				syncs++
			}
			return 0, nil
		}}, Options{})
		c := &content{"rv 1", map[string]string{"a": "1"}}
		w := replace(t, s, "k", c)
		must(t, w.Flush(t.Context()))
		syncs = 0
		var group sync.WaitGroup
		for range 50 {
			group.Go(func() {
				if err := w.Put("a", []byte("2"), []byte("rv 2")); err != nil {
					t.Error(err)
				}
				if err := w.Flush(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if syncs != 1 {
			t.Errorf("50 writers that wait took %d rounds", syncs)
		}
		expect(t, openOn(t, d.unplugged(seeded(1)), Options{}), "k", &content{"rv 2", map[string]string{"a": "2"}})
		must(t, s.Close())
		if err := w.Flush(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close Flush returns %v", err)
		}
	})
}

// TestFlushReportsAFailingOrHangingDisk: also if the failed round of fsync began before the call.
func TestFlushReportsAFailingOrHangingDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var fail error
		var hang chan struct{}
		s := openOn(t, &hooked{newDisk(), func(c call) (int, error) {
			mu.Lock()
			err, wait := fail, hang
			mu.Unlock()
			if c.op != "Sync" {
				return 0, nil
			}
			if wait != nil {
				<-wait
			}
			return 0, err
		}}, Options{})
		set := func(err error, wait chan struct{}) {
			mu.Lock()
			defer mu.Unlock()
			fail, hang = err, wait
		}
		w := replace(t, s, "k", &content{"rv 1", nil})
		set(syscall.EIO, nil)
		if err := w.Flush(t.Context()); !errors.Is(err, syscall.EIO) {
			t.Errorf("Flush returns %v", err)
		}
		w = replace(t, s, "k", &content{"rv 2", nil})
		time.Sleep(2 * time.Second) // a round fails
		set(nil, nil)
		if err := w.Flush(t.Context()); !errors.Is(err, syscall.EIO) {
			t.Errorf("after a round that failed Flush returns %v", err)
		}
		w = replace(t, s, "k", &content{"rv 3", nil})
		wait := make(chan struct{})
		set(nil, wait)
		within, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		began := time.Now()
		if err := w.Flush(within); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 5*time.Second {
			t.Errorf("on a disk that hangs Flush returns %v after %s", err, time.Since(began))
		}
		close(wait)
		set(nil, nil)
		if err := w.Flush(t.Context()); err != nil {
			t.Errorf("afterwards Flush returns %v", err)
		}
	})
}
