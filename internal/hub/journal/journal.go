package journal

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/panics"
)

// Outcome is the reason why an entry left the journal.
type Outcome string

const (
	// Replayed means that an API server accepted it.
	Replayed Outcome = "Replayed"
	// Refused means that an API server refused it permanently, for example because its object is deleted.
	Refused Outcome = "Refused"
	// Outdated means that the cloud has a newer version, or that the Lease expired before it could be sent.
	Outdated Outcome = "Outdated"
	// Crowded means that the entry, an event, was dropped to make space for newer entries.
	Crowded Outcome = "Crowded"
)

// Outcomes returns all outcomes.
func Outcomes() []Outcome { return []Outcome{Replayed, Refused, Outdated, Crowded} }

// repairEvery is the time between two attempts to rewrite all entries after a failed write.
const repairEvery = 10 * time.Second

// Options of a journal. A zero field means the default.
type Options struct {
	Limits Limits
	// SyncEvery is the least time between two rounds of fsync. The default is 1 s.
	SyncEvery time.Duration
	// Key encrypts: see cache.Options. Open removes entries that were written with another key.
	Key []byte
	// Panics catches panics of the goroutine that writes. nil catches none.
	Panics *panics.Catcher
	Log    logr.Logger
	// Wrap is for tests: see cache.Options.
	Wrap func(cache.Directory) cache.Directory
}

// Journal is the list of journaled writes. It is safe for concurrent use. Only one goroutine uses the disk, and
// readers do not wait for it.
//
// The entries in memory are replayed. The disk has the same entries without Leases, or an earlier state of them after a power
// failure: an entry that was already sent can then come back, so sending an entry twice must do no harm.
type Journal struct {
	disk   disk // only for the goroutine of run
	log    logr.Logger
	panics *panics.Catcher
	wake   chan struct{}
	stop   chan struct{}
	done   chan struct{}

	mu       sync.Mutex
	closed   bool
	state    state
	outcomes map[Outcome]int
	added    chan struct{} // closed when an entry is added
	// dirty are the entries that were added or removed since the last round began; the round next will write
	// them.
	dirty map[uint64]bool
	next  *round
	// durable are the entries that are durable on disk.
	durable map[uint64]bool
	// problem is the error of the last round; nil if it succeeded.
	problem error
}

// round is one round of writes to disk. It is shared by all entries that were added before it begins. When it
// has ended, err is set and done is closed.
type round struct {
	done chan struct{}
	err  error
}

func newRound() *round { return &round{done: make(chan struct{})} }

// Open opens the journal in a directory. It creates the directory if it is missing.
func Open(path string, o Options) (*Journal, error) {
	d, entries, changed, err := openDisk(path, o)
	if err != nil {
		return nil, fmt.Errorf("opening the journal of writes: %w", err)
	}
	return open(d, o, entries, changed), nil
}

// open returns a journal with the entries that were read from disk. changed are the entries that differ from
// those on disk.
func open(d disk, o Options, entries []Entry, changed []uint64) *Journal {
	if o.Log.GetSink() == nil {
		o.Log = logr.Discard()
	}
	j := &Journal{
		disk: d, log: o.Log, panics: o.Panics, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		state: state{limits: o.Limits.withDefaults()}, outcomes: map[Outcome]int{}, added: make(chan struct{}),
		dirty: map[uint64]bool{}, next: newRound(), durable: map[uint64]bool{},
	}
	for i := range entries {
		j.state.append(&entries[i])
		j.durable[entries[i].Seq] = true
	}
	for _, seq := range changed {
		j.dirty[seq] = true
	}
	go j.run()
	return j
}

// Keep adds an entry, and returns once it is durable, or at once for a Lease. After an error the entry may be in the journal or not.
func (j *Journal) Keep(ctx context.Context, e Entry) error {
	next, err := j.add(&e)
	if err != nil || next == nil {
		return err
	}
	j.poke()
	select {
	case <-next.done:
		return next.err
	case <-ctx.Done():
		return fmt.Errorf("waiting until a write is on disk: %w", context.Cause(ctx))
	}
}

// add adds an entry, and returns the round that makes it durable. It returns nil if the same entry is durable
// already.
func (j *Journal) add(e *Entry) (*round, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil, cache.ErrClosed
	}
	if of := j.state.of(e.Object); len(of) > 0 {
		if last := &of[len(of)-1]; last.says(e) && j.durable[last.Seq] {
			return nil, nil
		}
	}
	replaced, dropped, err := j.state.add(e)
	if err != nil {
		return nil, err
	}
	for _, old := range slices.Concat(replaced, dropped) {
		j.removedLocked(&old)
	}
	if len(dropped) > 0 {
		j.outcomes[Crowded] += len(dropped)
		j.log.Info("Dropped events, because the journal is full", "number", len(dropped), "oldest", dropped[0].At)
	}
	close(j.added)
	j.added = make(chan struct{})
	if !e.isStored() {
		return nil, nil
	}
	j.dirty[e.Seq] = true
	return j.next, nil
}

// removedLocked records that an entry is no longer there.
func (j *Journal) removedLocked(e *Entry) {
	if e.isStored() {
		delete(j.durable, e.Seq)
		j.dirty[e.Seq] = true
	}
}

// says reports whether two entries write the same, so that the second is not needed: a client repeats its write
// if a read does not return what it wrote.
func (e *Entry) says(other *Entry) bool {
	return e.Extent != Part && e.Kind == other.Kind && e.Extent == other.Extent && e.Method == other.Method &&
		e.Target == other.Target && e.ContentType == other.ContentType && bytes.Equal(e.Body, other.Body)
}

// Done removes an entry. It does nothing if another entry has replaced it.
func (j *Journal) Done(seq uint64, outcome Outcome) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, found := j.state.remove(seq)
	if !found {
		return
	}
	j.outcomes[outcome]++
	j.removedLocked(&e)
	j.poke()
}

// Entries returns all entries in their order.
func (j *Journal) Entries() []Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.state.entries)
}

// Each calls visit with each entry in order. visit must not call the journal or change the entry.
func (j *Journal) Each(visit func(*Entry)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range j.state.entries {
		visit(&j.state.entries[i])
	}
}

// Len returns how many entries there are.
func (j *Journal) Len() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.state.entries)
}

// Of returns the entries of an object in their order.
func (j *Journal) Of(object string) []Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.state.of(object)
}

// With returns the entries that an object would have after e is added, in their order.
func (j *Journal) With(e Entry) ([]Entry, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	after := j.state
	if _, _, err := after.add(&e); err != nil {
		return nil, err
	}
	return after.of(e.Object), nil
}

// Await waits until the journal has an entry.
func (j *Journal) Await(ctx context.Context) error {
	for {
		j.mu.Lock()
		waiting, added := len(j.state.entries), j.added
		j.mu.Unlock()
		if waiting > 0 {
			return nil
		}
		select {
		case <-added:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Summary has the numbers of the journal.
type Summary struct {
	Waiting int
	Bytes   int64
	// Since is when the oldest entry was written; zero if there is none.
	Since time.Time
	// Outcomes are the numbers of entries that left the journal since it was opened.
	Outcomes map[Outcome]int
	// Problem is why the journal cannot store entries at the moment; nil if no problem is known.
	Problem error
}

// Summary returns the numbers of the journal.
func (j *Journal) Summary() Summary {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := Summary{Waiting: len(j.state.entries), Bytes: j.state.bytes, Outcomes: maps.Clone(j.outcomes), Problem: j.problem}
	if s.Waiting > 0 {
		s.Since = slices.MinFunc(j.state.entries, func(a, b Entry) int { return a.At.Compare(b.At) }).At
	}
	return s
}

// Close writes the entries that are not on disk yet, and ends the journal. It waits for the disk.
func (j *Journal) Close() error {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	close(j.stop)
	<-j.done
	return j.disk.close()
}

func (j *Journal) poke() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// run writes to the disk until the journal is closed. After a failure it rewrites all entries, even if no entry
// is added: entries that were sent must not be on disk after a restart.
func (j *Journal) run() {
	defer close(j.done)
	repair := time.NewTicker(repairEvery)
	defer repair.Stop()
	failed := false
	for ended := false; !ended; {
		again := failed
		select {
		case <-j.stop:
			ended = true
		case <-j.wake:
			again = false
		case <-repair.C:
		}
		failed = j.write(failed, again)
	}
}

// write makes changes durable, and returns whether that failed. anew means that the disk differs from memory,
// so that all entries must be rewritten; again means to do that now even if nothing has changed.
func (j *Journal) write(anew, again bool) (failed bool) {
	j.mu.Lock()
	if len(j.dirty) == 0 && !again {
		j.mu.Unlock()
		return anew
	}
	this, dirty, entries := j.next, j.dirty, slices.DeleteFunc(slices.Clone(j.state.entries), func(e Entry) bool { return !e.isStored() })
	j.next, j.dirty = newRound(), map[uint64]bool{}
	j.mu.Unlock()

	err := j.panics.Do("writing the journal of writes", func() error {
		if anew {
			return j.disk.writeAll(entries)
		}
		var added []Entry
		for _, e := range entries {
			if dirty[e.Seq] {
				added = append(added, e)
				delete(dirty, e.Seq)
			}
		}
		return j.disk.write(added, slices.Sorted(maps.Keys(dirty)))
	})
	if err != nil {
		this.err = fmt.Errorf("writing the journal of writes: %w", err)
		if !anew {
			j.log.Error(err, "Storing journaled writes on disk failed; retrying")
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.problem = err
	if err == nil {
		for _, e := range entries {
			if !j.dirty[e.Seq] { // otherwise it was removed meanwhile
				j.durable[e.Seq] = true
			}
		}
	}
	close(this.done)
	return err != nil
}
