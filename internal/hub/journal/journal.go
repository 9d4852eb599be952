package journal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
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

const (
	// key is that of the only scope of the store.
	key = "journal"
	// repairEvery is the time between two attempts to write everything anew after a write has failed.
	repairEvery = 10 * time.Second
	// forever is after how long a store removes what nobody has used: never.
	forever = 1 << 62
)

// Options of a journal. A zero field means the default.
type Options struct {
	Limits Limits
	// SyncEvery is the least time between two rounds of fsync. The default is 1 s.
	SyncEvery time.Duration
	Log       logr.Logger
}

// Journal is what is kept. It is safe for concurrent use. Only one goroutine uses the disk, and nobody
// who reads waits for it.
//
// The entries in memory are what is replayed. The disk has them too, or an earlier state of them
// after a loss of power: then an entry may come back that has been sent, so each must do no harm if it
// is sent again.
type Journal struct {
	store *cache.Store
	log   logr.Logger
	wake  chan struct{}
	stop  chan struct{}
	done  chan struct{}

	mu       sync.Mutex
	state    state
	outcomes map[Outcome]int
	added    chan struct{} // closed when an entry is added
	// dirty are the entries that were added or removed since the last round began, and next is the round
	// that will write them.
	dirty map[uint64]bool
	next  *round
	// durable are the entries that are on disk for good.
	durable map[uint64]bool
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
	limits := o.Limits.withDefaults()
	store, err := cache.Open(path, storeOptions(limits, o))
	if err != nil {
		return nil, fmt.Errorf("opening the journal of writes: %w", err)
	}
	j, err := open(store, limits, o)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return j, nil
}

// storeOptions let the only scope have all entries: in JSON a body takes a third more.
func storeOptions(limits Limits, o Options) cache.Options {
	return cache.Options{MaxBytes: 8 * limits.Bytes, MaxIdle: forever, SyncEvery: o.SyncEvery, Log: o.Log}
}

func open(store *cache.Store, limits Limits, o Options) (*Journal, error) {
	if o.Log.GetSink() == nil {
		o.Log = logr.Discard()
	}
	j := &Journal{
		store: store, log: o.Log, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		state: state{limits: limits}, outcomes: map[Outcome]int{}, added: make(chan struct{}),
		dirty: map[uint64]bool{}, next: newRound(), durable: map[uint64]bool{},
	}
	writer, err := j.load()
	if err != nil {
		return nil, fmt.Errorf("reading the journal of writes: %w", err)
	}
	go j.run(writer)
	return j, nil
}

// load reads what is kept, and returns the writer that goes on; nil if there is nothing. An entry that
// cannot be understood is dropped.
func (j *Journal) load() (*cache.Writer, error) {
	view, err := j.store.View(key)
	if errors.Is(err, cache.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer view.Close()
	for i := range view.Len() {
		raw, err := view.Value(i, nil)
		if err != nil {
			return nil, err
		}
		var e Entry
		if err := json.Unmarshal(raw, &e); err != nil || id(e.Seq) != view.ID(i) {
			j.log.Info("A kept write cannot be understood, and is not sent", "id", view.ID(i))
			continue
		}
		// After a kill between the writing of an entry and the removal of those before it, both are there.
		for _, old := range j.state.of(e.Object) {
			if e.replaces(&old) {
				j.state.remove(old.Seq)
				delete(j.durable, old.Seq)
				j.dirty[old.Seq] = true
			}
		}
		j.state.append(&e)
		j.durable[e.Seq] = true
	}
	writer, _, err := j.store.Resume(key)
	return writer, err
}

// id is that of an entry in the store, which sorts by it.
func id(seq uint64) string { return fmt.Sprintf("%016x", seq) }

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

// Has reports whether an entry is still kept.
func (j *Journal) Has(seq uint64) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, found := j.state.find(seq)
	return found
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
}

// Summary returns what is kept, in numbers.
func (j *Journal) Summary() Summary {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := Summary{Waiting: len(j.state.entries), Bytes: j.state.bytes, Outcomes: maps.Clone(j.outcomes)}
	if s.Waiting > 0 {
		s.Since = slices.MinFunc(j.state.entries, func(a, b Entry) int { return a.At.Compare(b.At) }).At
	}
	return s
}

// Close writes what is not on disk yet, and ends the journal. It waits for the disk.
func (j *Journal) Close() error {
	close(j.stop)
	<-j.done
	return j.store.Close()
}

func (j *Journal) poke() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// run writes to the disk until the journal is closed. Without a writer, everything is written anew.
func (j *Journal) run(writer *cache.Writer) {
	defer close(j.done)
	repair := time.NewTicker(repairEvery)
	defer repair.Stop()
	for ended := false; !ended; {
		behind := false // since a round that failed
		select {
		case <-j.stop:
			ended, behind = true, writer == nil
		case <-j.wake:
		case <-repair.C:
			behind = writer == nil
		}
		writer = j.write(writer, behind)
	}
}

// write writes what has changed, and waits until it is durable. It returns the writer to go on with,
// nil after a failure.
func (j *Journal) write(writer *cache.Writer, behind bool) *cache.Writer {
	j.mu.Lock()
	if len(j.dirty) == 0 && !behind {
		j.mu.Unlock()
		return writer
	}
	this, dirty, entries := j.next, j.dirty, slices.Clone(j.state.entries)
	j.next, j.dirty = newRound(), map[uint64]bool{}
	j.mu.Unlock()

	began := writer
	var err error
	if writer == nil {
		writer, err = j.writeAll(entries)
	} else {
		err = writeDirty(writer, dirty, entries)
	}
	if err == nil {
		err = writer.Flush(context.Background())
	}
	if err != nil {
		if began != nil {
			j.log.Error(err, "Writes cannot be kept at the moment; it is tried again")
		}
		this.err, writer = fmt.Errorf("writing the journal of writes: %w", err), nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if err == nil {
		for _, e := range entries {
			if !j.dirty[e.Seq] { // it may be gone meanwhile
				j.durable[e.Seq] = true
			}
		}
	}
	close(this.done)
	return writer
}

// writeDirty writes the entries that were added, and then removes those that are gone: a kill in between
// leaves more than is needed, and never less.
func writeDirty(writer *cache.Writer, dirty map[uint64]bool, entries []Entry) error {
	there := map[uint64]bool{}
	for _, e := range entries {
		there[e.Seq] = true
		if !dirty[e.Seq] {
			continue
		}
		raw, err := json.Marshal(e)
		if err != nil {
			return err
		}
		if err := writer.Put(id(e.Seq), raw, nil); err != nil {
			return err
		}
	}
	for _, seq := range slices.Sorted(maps.Keys(dirty)) {
		if there[seq] {
			continue
		}
		if err := writer.Delete(id(seq), nil); err != nil {
			return err
		}
	}
	return nil
}

// writeAll writes everything anew.
func (j *Journal) writeAll(entries []Entry) (*cache.Writer, error) {
	raws := make([][]byte, len(entries))
	for i, e := range entries {
		var err error
		if raws[i], err = json.Marshal(e); err != nil {
			return nil, err
		}
	}
	return j.store.Replace(key, nil, func(yield func(string, []byte) bool) {
		for i, raw := range raws {
			if !yield(id(entries[i].Seq), raw) {
				return
			}
		}
	})
}
