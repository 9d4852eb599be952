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
	// ErrTooLarge: the scope would exceed half of Options.MaxBytes or of its Share, the frame of an item 32
	// MiB, a head or an id 64 KiB, or a key 4 KiB.
	ErrTooLarge = errors.New("too large to be stored")
	// ErrSuperseded: the scope has another writer, or was removed, or a write of it failed.
	ErrSuperseded = errors.New("the writer was superseded")
	// ErrDamaged: the data on disk is not the data that was written.
	ErrDamaged = errors.New("the stored data is damaged")
	// ErrReopened: no writer has continued the scope since the store was opened.
	ErrReopened = errors.New("no writer has continued the scope since the store was opened")
	// ErrLocked: another store uses the directory.
	ErrLocked = errors.New("the directory is in use by another store")
	// ErrClosed: the store is closed.
	ErrClosed = errors.New("the store is closed")
)

const (
	// maxKey is the most bytes of a key: all keys are in memory.
	maxKey = 4 << 10
	// minDead is how many dead bytes the log of even a small scope may have.
	minDead = 64 << 10
	// usedEvery is the precision of the time of the last use after a kill.
	usedEvery = time.Hour
	// removedEvery is the least time between two log messages about files that another process removed.
	removedEvery = time.Minute
)

// Options of a store. A zero field means the default.
type Options struct {
	// MaxBytes limits the sum of the sizes of the logs. Above it, the least recently used scopes of the owner
	// with the lowest Share.Rank are removed. One scope may have half of it. Until a replaced log is removed,
	// which takes up to SyncEvery and the time of the fsync calls, the disk holds both logs. The default is 256
	// MiB.
	MaxBytes int64
	// MaxScopes limits the number of scopes in the same way, and so the number of open files and the memory for
	// keys. The default is 4096.
	MaxScopes int
	// MaxIdle applies to owners whose Share has rank 0: when no scope of the owner was used for this long, all
	// its scopes are removed. Only time during which the store is open counts, so neither a jump of the clock
	// nor time with the node switched off removes anything. The default is 30 days.
	MaxIdle time.Duration
	// ShareOf returns the share of the owner of a key. nil means that all scopes have one owner, with the zero
	// Share. ShareOf must not use the store.
	ShareOf func(key string) Share
	// SyncEvery is the least time between two rounds of fsync. The default is 1 s.
	SyncEvery time.Duration
	// Key encrypts with AES-256-GCM. It has 32 bytes; nil means no encryption. Open removes logs that were
	// written with another key.
	Key []byte
	// Now returns the wall time. The default is time.Now.
	Now func() time.Time
	// Panics catches panics of the goroutine that makes files durable. nil catches none.
	Panics *panics.Catcher
	// Log receives errors that no caller receives. The default discards it.
	Log logr.Logger
	// Wrap, if it is set, replaces the access to the directory. Tests use it to let the disk fail.
	Wrap func(Directory) Directory
}

// Store is a directory of scopes. It is safe for concurrent use.
type Store struct {
	max       Options
	dir       Directory
	secrets   secrets
	log       logr.Logger
	wake      chan struct{} // there are changes to make durable
	stop      chan struct{}
	done      chan struct{} // closed by the background goroutine
	usedEvery time.Duration

	// calls counts the calls that use files; Close waits for them. It is increased under mu, and not after
	// closed is set.
	calls sync.WaitGroup

	// mu guards everything below, and the fields of scopes, logs, states and writers.
	mu     sync.Mutex
	closed bool
	scopes map[string]*scope
	owners map[string]*usage
	bytes  int64  // the sum of the sizes of the logs
	logs   int    // their number
	last   uint64 // the number of the newest file

	// age is the total time during which a store had this directory open. No two uses have the same age, so it
	// also orders them. Records contain it, so that it continues when the store is opened again.
	age  time.Duration
	asOf time.Time // when age was computed

	// dirty has the logs with contents that are not durable; renamed is whether file names are not durable;
	// garbage is removed by the next round of fsync.
	dirty   map[*log]*scope
	renamed bool
	garbage []garbage
	// next is the next round of fsync.
	next *round
	// unsynced is the last error of making names durable; it is logged once.
	unsynced error
	// removed is when the store last found that another process had removed one of its files.
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
	// stale is the reason why the state may be older than the last event.
	stale error

	used    time.Time     // the wall time at the last use
	usedAge time.Duration // Store.age at the last use
}

// garbage is the rest of a dropped or replaced log: files to remove in this order, so that an older generation
// never remains without the newer one, and a log whose reference is to be released.
type garbage struct {
	names []string
	log   *log // or nil
}

// times are the times of a record.
type times struct {
	wall time.Time
	age  time.Duration
}

// Open opens the store in a directory. It creates the directory if it is missing and sets its permissions to
// 0700. It removes incomplete snapshots and files that cannot be read.
func Open(path string, o Options) (*Store, error) {
	sec, err := newSecrets(o.Key)
	if err != nil {
		return nil, fmt.Errorf("opening the cache in %s: %w", path, err)
	}
	dir, err := openDirectory(path)
	if err != nil {
		return nil, fmt.Errorf("opening the cache in %s: %w", path, err)
	}
	if o.Wrap != nil {
		dir = o.Wrap(dir)
	}
	s, err := open(dir, sec, o)
	if err != nil {
		_ = dir.Close()
		return nil, fmt.Errorf("opening the cache in %s: %w", path, err)
	}
	return s, nil
}

func open(dir Directory, secrets secrets, o Options) (*Store, error) {
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
	// A process that was killed may have left files and names that are not durable.
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
	var found *scope // the scope of the previous base
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
		s.log.Info("No file in the cache can be read, for example because the encryption key has changed: starting with an empty cache", "files", len(files))
	}
	for _, sc := range s.scopes {
		s.age = max(s.age, sc.usedAge)
	}
	return nil
}

// loadOne reads a log, and removes it if it has no state. It returns an error only for failures that are not
// the fault of the log.
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
		s.log.Info("Removing a stored scope that cannot be read", "file", name, "reason", err.Error())
		s.remove([]garbage{{names: []string{name}}})
		return nil, nil
	}
	sc := &scope{key: key, share: s.shareOf(key), stale: ErrReopened, used: st.used, usedAge: st.age}
	s.scopes[key] = sc
	s.attachLocked(sc, l, st)
	return sc, nil
}

// Close makes everything durable and ends the store. Afterwards writers and snapshots return ErrClosed; views
// stay readable. Close waits for the calls in progress, and for the disk.
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
	// The second round makes durable that the first one removed replaced logs.
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

// begin marks the start of a call that uses files; end marks its end.
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

// number returns a number that no other file has.
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

// nowLocked returns the wall time, and an age greater than all earlier ones.
func (s *Store) nowLocked() times {
	now := s.max.Now()
	s.age += max(1, now.Sub(s.asOf))
	s.asOf = now
	return times{now.Round(0), s.age}
}

// touchLocked records that a scope is used.
func (s *Store) touchLocked(sc *scope, t times) {
	sc.used, sc.usedAge = t.wall, t.age
}

// View returns the current state of a scope, and counts as a use of it. It does not wait for the disk.
func (s *Store) View(key string) (*View, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.viewLocked(key)
	if err == nil {
		s.touchLocked(v.scope, s.nowLocked())
	}
	return v, err
}

// Peek is like View, but does not count as a use.
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
	// Stale is the same as View.Stale.
	Stale error
}

// Scopes lists the scopes, the least recently used first. It does not wait for the disk.
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
		return 0, 0 // a directory of a test
	}
	return d.written.bytes.Load(), d.written.syncs.Load()
}

// Remove removes a scope, if it exists, and ends its writer. After an error the store does not return the scope
// any more; its file is removed later or by the next Open.
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

// Replace makes the items the state of a scope, like Snapshot, Add and Commit together.
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

// dropLocked removes the state of a scope. It returns the garbage.
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

// forgetLocked removes a scope that has no state, unless a Commit in progress will give it one.
func (s *Store) forgetLocked(sc *scope) {
	if sc.log == nil && sc.pins == 0 && s.scopes[sc.key] == sc {
		delete(s.scopes, sc.key)
	}
}

// release releases a reference of a log, and closes the log after the last reference.
func (s *Store) release(l *log) {
	s.mu.Lock()
	l.refs--
	last := l.refs == 0
	s.mu.Unlock()
	if last {
		// The log is durable or no longer needed, so an error of Close does not matter.
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

// failLocked ends the writer of a scope after a failed write, so that the state lacks that write.
func (s *Store) failLocked(sc *scope, cause error) {
	s.endWriterLocked(sc, cause)
	if sc.log != nil {
		sc.stale = cause
	}
}

// unlink removes garbage. The background goroutine retries what failed.
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

// remove is unlink for callers that do not depend on its success.
func (s *Store) remove(list []garbage) {
	if err := s.unlink(list); err != nil {
		s.log.Info("Files of removed scopes could not be removed; retrying later", "reason", err.Error())
	}
}

// poke wakes the background goroutine.
func (s *Store) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
