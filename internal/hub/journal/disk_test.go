package journal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// scriptedDisk is a disk that does what a test says.
type scriptedDisk struct {
	mu      sync.Mutex
	fail    error
	hang    chan struct{} // nil: it does not
	calls   int
	entries map[uint64]Entry
}

func (d *scriptedDisk) do(change func()) error {
	d.mu.Lock()
	hang := d.hang
	d.mu.Unlock()
	if hang != nil {
		<-hang
	}
	time.Sleep(time.Second) // the time of a fsync, by the clock of synctest
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	if d.fail == nil {
		change()
	}
	return d.fail
}

func (d *scriptedDisk) write(added []Entry, removed []uint64) error {
	return d.do(func() {
		for _, e := range added {
			d.entries[e.Seq] = e
		}
		for _, seq := range removed {
			delete(d.entries, seq)
		}
	})
}

func (d *scriptedDisk) writeAll(entries []Entry) error {
	return d.do(func() {
		clear(d.entries)
		for _, e := range entries {
			d.entries[e.Seq] = e
		}
	})
}

func (d *scriptedDisk) close() error { return nil }

func (d *scriptedDisk) set(fail error, hang chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail, d.hang = fail, hang
}

// has fails the test if the disk does not have what the journal has.
func (d *scriptedDisk) has(t *testing.T, j *Journal) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []Entry
	for _, seq := range slices.Sorted(maps.Keys(d.entries)) {
		list = append(list, d.entries[seq])
	}
	if diff := cmp.Diff(j.Entries(), list); diff != "" {
		t.Errorf("(-journal +disk):\n%s", diff)
	}
}

// TestConcurrentWritersShareDiskSyncs: 100 writers at once take three rounds at most.
func TestConcurrentWritersShareDiskSyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &scriptedDisk{entries: map[uint64]Entry{}}
		j := open(d, Options{}, nil, nil)
		var writers sync.WaitGroup
		for i := range 100 {
			writers.Go(func() {
				if err := j.Keep(t.Context(), entry(Event, fmt.Sprint(i), "", "1")); err != nil {
					t.Error(err)
				}
			})
		}
		writers.Wait()
		if d.calls > 3 {
			t.Errorf("it took %d rounds", d.calls)
		}
		d.has(t, j)
		// The same again needs none.
		calls := d.calls
		if err := j.Keep(t.Context(), entry(Event, "7", "", "1")); err != nil || d.calls != calls {
			t.Errorf("the same again: %v, after %d rounds more", err, d.calls-calls)
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestKeepReportsAFailingDisk: Keep returns an error in bounded time. Once the disk works, it gets every change
// that it missed.
func TestKeepReportsAFailingDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &scriptedDisk{entries: map[uint64]Entry{}}
		j := open(d, Options{}, nil, nil)
		if err := j.Keep(t.Context(), entry(Event, "l", "", "1")); err != nil {
			t.Fatal(err)
		}
		full := errors.New("no space left on device")
		d.set(full, nil)
		if err := j.Keep(t.Context(), entry(Event, "l", "", "2")); !errors.Is(err, full) {
			t.Errorf("on a full disk Keep returns %v", err)
		}
		hang := make(chan struct{})
		d.set(full, hang)
		within, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		began := time.Now()
		if err := j.Keep(within, entry(Event, "e", "", "1")); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 6*time.Second {
			t.Errorf("on a disk that hangs Keep returns %v after %s", err, time.Since(began))
		}
		j.Done(j.Of("l")[0].Seq, Outdated)
		close(hang)
		d.set(nil, nil)
		time.Sleep(2 * repairEvery)
		d.has(t, j)
		if len(d.entries) != 1 {
			t.Errorf("the disk has %v", d.entries)
		}
		if err := j.Keep(t.Context(), entry(Event, "e", "", "2")); err != nil {
			t.Errorf("afterwards Keep returns %v", err)
		}
		d.has(t, j)
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
}
