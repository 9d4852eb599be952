package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// run makes files durable and removes idle scopes until the store is closed.
func (s *Store) run() {
	defer close(s.done)
	upkeep := time.NewTicker(s.usedEvery)
	defer upkeep.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-upkeep.C:
			s.removeIdle()
			s.saveUses(s.usedEvery)
			continue
		case <-s.wake:
		}
		timer := time.NewTimer(s.max.SyncEvery)
		select {
		case <-s.stop:
			timer.Stop()
			return
		case <-timer.C:
		}
		_ = s.sync() // sync logs its errors
	}
}

// round is one round of fsync calls. When it has ended, err is set and done is closed.
type round struct {
	done chan struct{}
	err  error
}

func newRound() *round { return &round{done: make(chan struct{})} }

// Flush waits until all earlier writes are durable. All callers share the next round of fsync. After an error,
// a power failure may lose some of these writes, including those of other writers.
func (w *Writer) Flush(ctx context.Context) error {
	s := w.store
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrClosed
	}
	next := s.next
	s.mu.Unlock()
	s.poke()
	select {
	case <-next.done:
	case <-ctx.Done():
		return fmt.Errorf("waiting for the disk: %w", context.Cause(ctx))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(next.err, w.ended) // an earlier round may have failed, which ends the writer
}

// sync makes all earlier writes durable, and then removes the logs that were replaced. It runs in one goroutine
// at a time.
func (s *Store) sync() error {
	s.mu.Lock()
	this := s.next
	s.next = newRound()
	s.mu.Unlock()
	this.err = s.max.Panics.Do("making the cache durable", s.syncAll)
	close(this.done)
	return this.err
}

func (s *Store) syncAll() error {
	s.mu.Lock()
	dirty, renamed, old := s.dirty, s.renamed, s.garbage
	s.dirty, s.renamed, s.garbage = map[*log]*scope{}, false, nil
	for l := range dirty {
		l.refs++
	}
	s.mu.Unlock()

	err := s.unlink(old)
	var durable []*log
	for l, sc := range dirty {
		failed := l.file.Sync()
		if errors.Is(failed, errRemoved) && !s.hasLog(sc, l) {
			failed = nil // the store itself replaced and removed it meanwhile
		}
		if failed != nil {
			err = errors.Join(err, failed)
			s.syncFailed(sc, l, failed)
			continue
		}
		durable = append(durable, l)
	}
	if renamed {
		failed := s.dir.Sync()
		if errors.Is(failed, syscall.EINVAL) || errors.Is(failed, errors.ErrUnsupported) {
			failed = nil // the file system does not support it
		}
		err = errors.Join(err, failed)
		if s.namesFailed(failed) {
			s.mu.Lock()
			// Try again before the logs that these logs replace are removed.
			s.renamed = true
			for l, sc := range dirty {
				if sc.log == l {
					s.dirty[l] = sc
				}
			}
			s.mu.Unlock()
			durable = nil
			s.poke()
		}
	}
	var replaced []garbage
	s.mu.Lock()
	for _, l := range durable {
		if len(l.before) > 0 {
			replaced = append(replaced, garbage{names: l.before})
			l.before = nil
		}
	}
	s.mu.Unlock()
	for l := range dirty {
		s.release(l)
	}
	return errors.Join(err, s.unlink(replaced))
}

// hasLog reports whether a scope still uses a log.
func (s *Store) hasLog(sc *scope, l *log) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sc.log == l
}

// Removed returns when the store last found that another process had removed its files; zero if never.
func (s *Store) Removed() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removed
}

// syncFailed marks a scope whose contents may be lost: the kernel does not retry, and the next fsync would
// succeed without them.
func (s *Store) syncFailed(sc *scope, l *log, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch now := s.max.Now(); {
	case !errors.Is(err, errRemoved):
		s.log.Error(err, "Making a scope durable failed", "file", l.name)
	case now.Sub(s.removed).Abs() > removedEvery:
		s.log.Error(err, "Another process removed files of the cache in use; a scope is stored again when it changes")
		fallthrough
	default:
		s.removed = now
	}
	l.sealed = true
	if sc.log == l {
		s.failLocked(sc, err)
	}
}

// namesFailed records the result of making names durable, and logs the first failure.
func (s *Store) namesFailed(err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && s.unsynced == nil {
		s.log.Error(err, "Making file names durable failed")
	}
	s.unsynced = err
	return err != nil
}

// removeIdle removes the scopes of owners that used none of their scopes for Options.MaxIdle.
func (s *Store) removeIdle() {
	s.mu.Lock()
	now := s.nowLocked()
	newest := map[string]time.Duration{}
	for _, sc := range s.scopes {
		newest[sc.share.Owner] = max(newest[sc.share.Owner], sc.usedAge)
	}
	var rest []garbage
	for _, sc := range s.scopes {
		if sc.log != nil && sc.share.Rank == 0 && now.age-newest[sc.share.Owner] > s.max.MaxIdle {
			s.log.V(2).Info("Removing a scope that was not used", "lastUsed", sc.used)
			rest = append(rest, s.dropLocked(sc, ErrNotFound)...)
		}
	}
	s.mu.Unlock()
	s.remove(rest)
	if rest != nil {
		s.poke()
	}
}

// saveUses writes the time of the last use of each scope whose log is behind by the given time or more, and
// heads that are not in the log. It skips scopes that are being written or cannot be written.
func (s *Store) saveUses(behind time.Duration) {
	if s.begin() != nil {
		return
	}
	defer s.end()
	s.mu.Lock()
	var late []*scope
	for _, sc := range s.scopes {
		if sc.log != nil && !sc.log.sealed && (sc.state.isAhead || sc.usedAge-sc.state.age >= behind) {
			late = append(late, sc)
		}
	}
	s.mu.Unlock()
	for _, sc := range late {
		s.saveUse(sc)
	}
}

func (s *Store) saveUse(sc *scope) {
	if !sc.io.TryLock() {
		return
	}
	defer sc.io.Unlock()
	s.mu.Lock()
	l, r := sc.log, record{kind: kindUsed, wall: sc.used, age: sc.usedAge}
	usable := l != nil && !l.sealed
	if usable && sc.state.isAhead {
		r.kind, r.wall, r.head = kindHead, sc.state.written, sc.state.head
	}
	s.mu.Unlock()
	if !usable {
		return
	}
	// If this fails, the state is still complete, and the next event is written to a new log.
	if err := s.appendTo(sc, l, r); err != nil {
		s.log.V(2).Info("The time of the last use was not written", "reason", err.Error())
	}
}
