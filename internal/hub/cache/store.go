package cache

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/hub/panics"
)

// Errors that callers distinguish with errors.Is.
var (
	// ErrNotFound: the scope, or the item, is not in the store.
	ErrNotFound = errors.New("not found")
	// ErrTooLarge: the scope would exceed half of Options.MaxBytes or of its Share, the frame of
	// an item 32 MiB, a head or an id 64 KiB, or a key 4 KiB.
	ErrTooLarge = errors.New("too large to be stored")
	// ErrSuperseded: the scope has another writer, or was removed, or a write of it failed.
	ErrSuperseded = errors.New("the writer was superseded")
	// ErrDamaged: what is on disk is not what was written.
	ErrDamaged = errors.New("the stored data is damaged")
	// ErrReopened: no writer has continued the scope since the store was opened.
	ErrReopened = errors.New("no writer has continued the scope since the store was opened")
	// ErrLocked: another store uses the directory.
	ErrLocked = errors.New("the directory is in use by another store")
	// ErrClosed: the store is closed.
	ErrClosed = errors.New("the store is closed")
)

const (
	// maxKey bounds a key, in bytes: all keys are in memory.
	maxKey = 4 << 10
	// minDead is how many dead bytes a log may have however small the scope is.
	minDead = 64 << 10
	// usedEvery is how exactly the time of the last use is known after a kill.
	usedEvery = time.Hour
	// removedEvery is the least time between two messages that files were removed by others.
	removedEvery = time.Minute
)

// Options of a store. A zero field means the default.
type Options struct {
	// MaxBytes bounds the sum of the logs. Above it, the scopes that were used longest ago are
	// removed, of the owner that Share.Rank tells. One scope may have half of it. Until a replaced
	// log is removed, which takes up to SyncEvery and the time of the fsync calls, the disk holds
	// both logs. The default is 256 MiB.
	MaxBytes int64
	// MaxScopes bounds the number of scopes, and so of open files and of the memory for keys,
	// like MaxBytes. The default is 4096.
	MaxScopes int
	// MaxIdle is after how long without any use of one of its scopes all scopes of an owner are
	// removed, if its Share has rank 0. Only time during which the store is open counts, so that
	// no jump of the clock, and no time that the node was off, removes anything. The default is
	// 30 days.
	MaxIdle time.Duration
	// ShareOf returns the share of the owner of a key. nil means that all scopes have one owner,
	// with the zero Share. It must not use the store.
	ShareOf func(key string) Share
	// SyncEvery is the least time between two rounds of fsync. The default is 1 s.
	SyncEvery time.Duration
	// Key encrypts with AES-256-GCM. It has 32 bytes; nil means no encryption. Logs of another
	// key are removed by Open.
	Key []byte
	// Now returns the wall time. The default is time.Now.
	Now func() time.Time
	// Panics catches those of the goroutine that makes files durable. nil catches none.
	Panics *panics.Catcher
	// Log receives what nobody is told by an error. The default discards it.
	Log logr.Logger
	// Fail is for tests of what uses a store. It is called before each change of the disk, which fails with
	// its error.
	Fail func(op string) error
}

// Store is a directory of scopes. It is safe for concurrent use.
type Store struct {
	max       Options
	dir       directory
	secrets   secrets
	log       logr.Logger
	wake      chan struct{} // something has to be made durable
	stop      chan struct{}
	done      chan struct{} // closed by the background goroutine
	usedEvery time.Duration

	// calls counts the calls that use files, for Close. It grows under mu while not closed.
	calls sync.WaitGroup

	// mu guards everything below, and the fields of scopes, logs, states and writers.
	mu     sync.Mutex
	closed bool
	scopes map[string]*scope
	owners map[string]*usage
	bytes  int64  // the sum of the sizes of the logs
	logs   int    // their number
	last   uint64 // number of the newest file

	// age is for how long this directory was open in a store, in all. No two uses have the same
	// one, so that it also tells their order. Records have it, so that it continues when the
	// store is opened again.
	age  time.Duration
	asOf time.Time // when age was computed

	// dirty has the logs with contents that are not durable, renamed whether the names of files
	// are not, and garbage what the next round of fsync removes.
	dirty   map[*log]*scope
	renamed bool
	garbage []garbage
	// next is the next round of fsync.
	next *round
	// unsynced is the last failure to make names durable, which is logged once.
	unsynced error
	// removed is when a file was last found to be removed by others.
	removed time.Time
}

// scope is one scope. It is in Store.scopes while it has a log or a pin.
type scope struct {
	key   string
	share Share

	// io is held while the log is written or replaced. It is locked before Store.mu.
	io sync.Mutex

	pins   int  // calls of Commit in progress
	log    *log // nil: the scope has no state
	state  *state
	writer *Writer
	// stale is why the state may be older than the last event.
	stale error

	used    time.Time     // the wall time at the last use
	usedAge time.Duration // Store.age then
}

// garbage is what remains of a dropped or replaced log: files that are to be removed in this
// order, so that no older generation is left without the newer one, and a log whose reference
// is to be released.
type garbage struct {
	names []string
	log   *log // or nil
}

// times are the times of a record.
type times struct {
	wall time.Time
	age  time.Duration
}

// Open opens the store in a directory, which it creates if it is missing and whose permissions
// it sets to 0700. It removes what is left of incomplete snapshots and what cannot be read.
func Open(path string, o Options) (*Store, error) {
	sec, err := newSecrets(o.Key)
	if err != nil {
		return nil, fmt.Errorf("opening the cache in %s: %w", path, err)
	}
	dir, err := openDirectory(path)
	if err != nil {
		return nil, fmt.Errorf("opening the cache in %s: %w", path, err)
	}
	if o.Fail != nil {
		dir = &faulty{dir, o.Fail}
	}
	s, err := open(dir, sec, o)
	if err != nil {
		_ = dir.Close()
		return nil, fmt.Errorf("opening the cache in %s: %w", path, err)
	}
	return s, nil
}

func open(dir directory, secrets secrets, o Options) (*Store, error) {
	o.Key = nil
	o.MaxBytes = cmp.Or(o.MaxBytes, 256<<20)
	o.MaxScopes = cmp.Or(o.MaxScopes, 4096)
	o.MaxIdle = cmp.Or(o.MaxIdle, 30*24*time.Hour)
	o.SyncEvery = cmp.Or(o.SyncEvery, time.Second)
	if o.MaxBytes < 0 || o.MaxScopes < 0 || o.MaxIdle < 0 || o.SyncEvery < 0 {
		return nil, errors.New("an option is negative")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log.GetSink() == nil {
		o.Log = logr.Discard()
	}
	s := &Store{
		max: o, dir: dir, secrets: secrets, log: o.Log,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		usedEvery: max(time.Second, min(usedEvery, o.MaxIdle/8)),
		scopes:    map[string]*scope{}, owners: map[string]*usage{}, dirty: map[*log]*scope{}, next: newRound(),
		asOf: o.Now(),
	}
	names, err := dir.List()
	if err != nil {
		return nil, fmt.Errorf("listing the files: %w", err)
	}
	// A process that was killed may have made neither files nor names durable.
	s.renamed = true
	s.poke()
	if err := s.load(names); err != nil {
		s.closeFiles()
		return nil, err
	}
	s.mu.Lock()
	var over []garbage
	for owner := range s.owners {
		over = append(over, s.shrinkLocked(owner)...)
	}
	s.mu.Unlock()
	s.remove(over)
	s.removeIdle()
	go s.run()
	return s, nil
}

// load reads all logs.
func (s *Store) load(names []string) error {
	type named struct {
		name, base string
		number     uint64
	}
	var files []named
	for _, name := range names {
		f := named{name: name}
		var ok bool
		if f.base, f.number, ok = parseName(name); !ok {
			continue // the lock, or not a file of this package
		}
		s.last = max(s.last, f.number)
		if f.base == "" {
			s.remove([]garbage{{names: []string{name}}})
			continue
		}
		files = append(files, f)
	}
	// The newest generation of each scope first.
	slices.SortFunc(files, func(a, b named) int {
		return cmp.Or(cmp.Compare(a.base, b.base), cmp.Compare(b.number, a.number))
	})
	d := &loader{secrets: s.secrets}
	var found *scope // of the base before
	var base string
	for _, f := range files {
		if f.base == base && found != nil {
			// The newer log may not be durable yet.
			found.log.before = slices.Insert(found.log.before, 0, f.name)
			continue
		}
		var err error
		if found, err = s.loadOne(d, f.name, f.base); err != nil {
			return err
		}
		base = f.base
	}
	if len(files) > 0 && len(s.scopes) == 0 {
		s.log.Info("Nothing in the cache can be read, for example because the encryption key is another one: the cache is begun anew", "files", len(files))
	}
	for _, sc := range s.scopes {
		s.age = max(s.age, sc.usedAge)
	}
	return nil
}

// loadOne reads a log, and removes it if it has no state. An error says nothing of the log.
func (s *Store) loadOne(d *loader, name, base string) (*scope, error) {
	var l *log
	var st *state
	var key string
	f, err := s.dir.Open(name)
	for _, ours := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EACCES, syscall.EPERM} {
		if errors.Is(err, ours) {
			return nil, err
		}
	}
	if err == nil {
		l, st, key, err = d.load(name, f)
		if err == nil && s.secrets.base(key) != base {
			err = ErrDamaged
		}
		if err != nil {
			_ = f.Close()
		}
	}
	if err != nil {
		s.log.Info("A stored scope cannot be read and is removed", "file", name, "reason", err.Error())
		s.remove([]garbage{{names: []string{name}}})
		return nil, nil
	}
	sc := &scope{key: key, share: s.shareOf(key), stale: ErrReopened, used: st.used, usedAge: st.age}
	s.scopes[key] = sc
	s.attachLocked(sc, l, st)
	return sc, nil
}

// Close makes everything durable and ends the store. Writers and snapshots return ErrClosed
// from then on; views stay readable. It waits for the calls in progress, and for the disk.
func (s *Store) Close() error {
	s.saveUses(min(time.Minute, s.usedEvery))
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.calls.Wait()
	close(s.stop)
	<-s.done
	// Once more for the names of the logs that the first round removes.
	err := cmp.Or(s.sync(), s.sync())
	s.closeFiles()
	if err2 := s.dir.Close(); err == nil {
		err = err2
	}
	if err != nil {
		return fmt.Errorf("closing the cache: %w", err)
	}
	return nil
}

// closeFiles closes the logs that no view has.
func (s *Store) closeFiles() {
	s.mu.Lock()
	var logs []*log
	for key, sc := range s.scopes {
		logs = append(logs, sc.log)
		delete(s.scopes, key)
	}
	s.mu.Unlock()
	for _, l := range logs {
		s.release(l)
	}
}

// begin begins a call that uses files, which end ends.
func (s *Store) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	s.calls.Add(1)
	return nil
}

func (s *Store) end() { s.calls.Done() }

// number returns a number for a file that no other file has.
func (s *Store) number() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	return s.last
}

func (s *Store) now() times {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nowLocked()
}

// nowLocked returns the wall time, and an age after all others.
func (s *Store) nowLocked() times {
	now := s.max.Now()
	s.age += max(1, now.Sub(s.asOf))
	s.asOf = now
	return times{now.Round(0), s.age}
}

// touchLocked notes that a scope is used.
func (s *Store) touchLocked(sc *scope, t times) {
	sc.used, sc.usedAge = t.wall, t.age
}

// View returns the present state of a scope, and counts as a use of it. It does not wait for
// the disk.
func (s *Store) View(key string) (*View, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.viewLocked(key)
	if err == nil {
		s.touchLocked(v.scope, s.nowLocked())
	}
	return v, err
}

// Peek is View, but does not count as a use.
func (s *Store) Peek(key string) (*View, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.viewLocked(key)
}

func (s *Store) viewLocked(key string) (*View, error) {
	sc, err := s.findLocked(key)
	if err != nil {
		return nil, err
	}
	sc.log.refs++
	sc.state.shared = true
	return &View{store: s, scope: sc, log: sc.log, head: sc.state.head, items: sc.state.items, written: sc.state.written, stale: sc.stale}, nil
}

func (s *Store) findLocked(key string) (*scope, error) {
	if s.closed {
		return nil, ErrClosed
	}
	sc := s.scopes[key]
	if sc == nil || sc.log == nil {
		return nil, fmt.Errorf("scope: %w", ErrNotFound)
	}
	return sc, nil
}

// Scope describes a scope.
type Scope struct {
	Key   string
	Items int
	Bytes int64 // the size of the log
	// Written is when the state was written, Used when the scope was last read or written.
	Written, Used time.Time
	// Stale is as View.Stale.
	Stale error
}

// Scopes lists the scopes, the one used longest ago first. It does not wait for the disk.
func (s *Store) Scopes() []Scope {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := make([]*scope, 0, len(s.scopes))
	for _, sc := range s.scopes {
		if sc.log != nil {
			found = append(found, sc)
		}
	}
	slices.SortFunc(found, func(a, b *scope) int { return cmp.Compare(a.usedAge, b.usedAge) })
	list := make([]Scope, 0, len(found))
	for _, sc := range found {
		list = append(list, Scope{
			Key: sc.key, Items: len(sc.state.items), Bytes: sc.log.size,
			Written: sc.state.written, Used: sc.used, Stale: sc.stale,
		})
	}
	return list
}

// Written returns how many bytes the store has written since it was opened, and how often it has
// called fsync.
func (s *Store) Written() (bytes, syncs int64) {
	d, ok := s.dir.(*osDirectory)
	if !ok {
		return 0, 0 // of a test
	}
	return d.written.bytes.Load(), d.written.syncs.Load()
}

// Remove removes a scope, if it is there, and ends its writer. After an error the scope is not
// served any more, and its file is removed later or by the next Open.
func (s *Store) Remove(key string) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	s.mu.Lock()
	var rest []garbage
	if sc := s.scopes[key]; sc != nil {
		rest = s.dropLocked(sc, ErrNotFound)
	}
	s.mu.Unlock()
	if err := s.unlink(rest); err != nil {
		return fmt.Errorf("removing a scope: %w", err)
	}
	s.poke()
	return nil
}

// Replace makes the items the state of a scope, as Snapshot, Add and Commit do.
func (s *Store) Replace(key string, head []byte, items iter.Seq2[string, []byte]) (*Writer, error) {
	n, err := s.Snapshot(key)
	if err != nil {
		return nil, err
	}
	defer n.Abort()
	for id, value := range items {
		if err := n.Add(id, value); err != nil {
			return nil, err
		}
	}
	return n.Commit(head)
}

// dropLocked takes the state away from a scope. It returns what is to be removed.
func (s *Store) dropLocked(sc *scope, cause error) []garbage {
	s.endWriterLocked(sc, cause)
	if sc.log == nil {
		return nil
	}
	l := s.detachLocked(sc)
	rest := garbage{append(l.before, l.name), l}
	l.before = nil
	s.forgetLocked(sc)
	return []garbage{rest}
}

// forgetLocked removes a scope that has no state, unless a Commit is about to give it one.
func (s *Store) forgetLocked(sc *scope) {
	if sc.log == nil && sc.pins == 0 && s.scopes[sc.key] == sc {
		delete(s.scopes, sc.key)
	}
}

// release releases a reference of a log, and closes it after the last one.
func (s *Store) release(l *log) {
	s.mu.Lock()
	l.refs--
	last := l.refs == 0
	s.mu.Unlock()
	if last {
		// It is durable, or not needed any more: an error has no consequence.
		_ = l.file.Close()
	}
}

// endWriterLocked ends the writer of a scope.
func (s *Store) endWriterLocked(sc *scope, cause error) {
	if sc.writer != nil {
		sc.writer.ended = cause
		sc.writer = nil
	}
}

// failLocked ends the writer of a scope after a write that is missing in its state.
func (s *Store) failLocked(sc *scope, cause error) {
	s.endWriterLocked(sc, cause)
	if sc.log != nil {
		sc.stale = cause
	}
}

// unlink removes garbage. What fails is tried again in the background.
func (s *Store) unlink(list []garbage) error {
	var errs []error
	var failed []garbage
	removed := false
	for _, g := range list {
		for i, name := range g.names {
			if err := s.dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
				failed = append(failed, garbage{names: g.names[i:]})
				break
			}
			removed = true
		}
		if g.log != nil {
			s.release(g.log)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renamed = s.renamed || removed
	s.garbage = append(s.garbage, failed...)
	return errors.Join(errs...)
}

// remove is unlink for callers whose own work is done.
func (s *Store) remove(list []garbage) {
	if err := s.unlink(list); err != nil {
		s.log.Info("Files of removed scopes are still there; they are removed later", "reason", err.Error())
	}
}

// poke wakes the background goroutine.
func (s *Store) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
