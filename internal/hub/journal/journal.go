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

// Outcome is how an entry left the journal.
type Outcome string

const (
	// Replayed means that an API server accepted it.
	Replayed Outcome = "Replayed"
	// Refused means that an API server refused it for good, for example because its object is gone.
	Refused Outcome = "Refused"
	// Outdated means that the cloud has something newer, or that it would say too late that the node is alive.
	Outdated Outcome = "Outdated"
	// Crowded means that newer entries took its place: an event.
	Crowded Outcome = "Crowded"
)

// Outcomes returns all of them.
func Outcomes() []Outcome { return []Outcome{Replayed, Refused, Outdated, Crowded} }

// repairEvery is the time between two attempts to write everything anew after a write has failed.
const repairEvery = 10 * time.Second

// Options of a journal. A zero field means the default.
type Options struct {
	Limits Limits
	// SyncEvery is the least time between two rounds of fsync. The default is 1 s.
	SyncEvery time.Duration
	// Key encrypts: see cache.Options. Writes of another key are removed by Open.
	Key []byte
	// Panics catches those of the goroutine that writes. nil catches none.
	Panics *panics.Catcher
	Log    logr.Logger
	// Fail is for tests of what uses a journal: see cache.Options.
	Fail func(op string) error
}

// Journal is what is kept. It is safe for concurrent use. Only one goroutine uses the disk, and nobody
// who reads waits for it.
//
// The entries in memory are what is replayed. The disk has them too, or an earlier state of them
// after a loss of power: then an entry may come back that has been sent, so each must do no harm if it
// is sent again.
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
	// dirty are the entries that were added or removed since the last round began, and next is the round
	// that will write them.
	dirty map[uint64]bool
	next  *round
	// durable are the entries that are on disk for good.
	durable map[uint64]bool
	// problem is why the last round has failed; nil if it has not.
	problem error
}

// round is a round of writing, which all that was added before it shares. done is closed when it has
// ended, with err.
type round struct {
	done chan struct{}
	err  error
}

func newRound() *round { return &round{done: make(chan struct{})} }

// Open opens the journal in a directory, which it creates if it is missing.
func Open(path string, o Options) (*Journal, error) {
	d, entries, changed, err := openDisk(path, o)
	if err != nil {
		return nil, fmt.Errorf("opening the journal of writes: %w", err)
	}
	return open(d, o, entries, changed), nil
}

// open returns a journal with the entries that the disk has. Those in changed are not as the disk has
// them.
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

// Keep keeps an entry, and returns once it is durable. After an error it may be kept or not.
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

// add adds an entry, and returns the round that makes it durable; nil if it is already.
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
		delete(j.durable, old.Seq)
		j.dirty[old.Seq] = true
	}
	if len(dropped) > 0 {
		j.outcomes[Crowded] += len(dropped)
		j.log.Info("Events are dropped, because too many are kept", "number", len(dropped), "oldest", dropped[0].At)
	}
	j.dirty[e.Seq] = true
	close(j.added)
	j.added = make(chan struct{})
	return j.next, nil
}

// says reports whether two entries write the same, so that the second is not needed: a client tries
// again when it does not see what it wrote in what it reads.
func (e *Entry) says(other *Entry) bool {
	return e.Extent != Part && e.Kind == other.Kind && e.Extent == other.Extent && e.Method == other.Method &&
		e.Target == other.Target && e.ContentType == other.ContentType && bytes.Equal(e.Body, other.Body)
}

// Done removes an entry. If another stands in its place already, nothing happens.
func (j *Journal) Done(seq uint64, outcome Outcome) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.state.remove(seq) {
		return
	}
	j.outcomes[outcome]++
	delete(j.durable, seq)
	j.dirty[seq] = true
	j.poke()
}

// Entries returns what is kept, in its order.
func (j *Journal) Entries() []Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.state.entries)
}

// Each calls a function with each entry in its order. It must not call the journal, or change the entry.
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

// Of returns what is kept of an object, in its order.
func (j *Journal) Of(object string) []Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.state.of(object)
}

// With returns what would be kept of an object with a further entry, in its order.
func (j *Journal) With(e Entry) ([]Entry, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	after := j.state
	if _, _, err := after.add(&e); err != nil {
		return nil, err
	}
	return after.of(e.Object), nil
}

// Await waits until something is kept.
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

// Summary is what is kept, in numbers.
type Summary struct {
	Waiting int
	Bytes   int64
	// Since is when the oldest entry was written; zero if there is none.
	Since time.Time
	// Outcomes are the numbers of entries that left the journal since it was opened.
	Outcomes map[Outcome]int
	// Problem is why none can be kept at the moment; nil if that is not known.
	Problem error
}

// Summary returns what is kept, in numbers.
func (j *Journal) Summary() Summary {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := Summary{Waiting: len(j.state.entries), Bytes: j.state.bytes, Outcomes: maps.Clone(j.outcomes), Problem: j.problem}
	if s.Waiting > 0 {
		s.Since = slices.MinFunc(j.state.entries, func(a, b Entry) int { return a.At.Compare(b.At) }).At
	}
	return s
}

// Close writes what is not on disk yet, and ends the journal. It waits for the disk.
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

// run writes to the disk until the journal is closed. After a failure everything is written anew, also
// if nothing is added any more: what was sent must not be there after a restart.
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

// write makes durable what has changed, and returns whether that failed. anew tells that the disk has
// something else than it should, and again that it is time to write that even if nothing has changed.
func (j *Journal) write(anew, again bool) (failed bool) {
	j.mu.Lock()
	if len(j.dirty) == 0 && !again {
		j.mu.Unlock()
		return anew
	}
	this, dirty, entries := j.next, j.dirty, slices.Clone(j.state.entries)
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
			j.log.Error(err, "Writes of the node cannot be kept at the moment; it is tried again")
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.problem = err
	if err == nil {
		for _, e := range entries {
			if !j.dirty[e.Seq] { // else it is gone meanwhile
				j.durable[e.Seq] = true
			}
		}
	}
	close(this.done)
	return err != nil
}
