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
		_ = s.sync() // it is logged
	}
}

// round is one round of fsync calls. done is closed when it has ended, with err.
type round struct {
	done chan struct{}
	err  error
}

func newRound() *round { return &round{done: make(chan struct{})} }

// Flush waits until everything that was written before is durable, with the next round of fsync,
// which all callers share. After an error some of it may be lost with a loss of power, also what
// another writer wrote.
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
	return cmp.Or(next.err, w.ended) // a round before may have failed, which ends the writer
}

// sync makes everything that was written before durable, and then removes the logs that were
// replaced. It runs in one goroutine at a time.
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
			failed = nil // it was replaced meanwhile, and removed by the store itself
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
			failed = nil // the file system has no such call
		}
		err = errors.Join(err, failed)
		if s.namesFailed(failed) {
			s.mu.Lock()
			// Once more, before anything that these logs replace is removed.
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

// hasLog reports whether a scope still has a log.
func (s *Store) hasLog(sc *scope, l *log) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sc.log == l
}

// Removed returns when it was last noticed that others have removed files of the store; zero if never.
func (s *Store) Removed() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removed
}

// syncFailed marks a scope whose contents may be lost: the kernel does not try again, and the
// next fsync would succeed.
func (s *Store) syncFailed(sc *scope, l *log, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch now := s.max.Now(); {
	case !errors.Is(err, errRemoved):
		s.log.Error(err, "A scope could not be made durable", "file", l.name)
	case now.Sub(s.removed).Abs() > removedEvery:
		s.log.Error(err, "Files were removed while they are in use; what they had is kept again once it changes")
		fallthrough
	default:
		s.removed = now
	}
	l.sealed = true
	if sc.log == l {
		s.failLocked(sc, err)
	}
}

// namesFailed notes whether names could be made durable, and logs a change.
func (s *Store) namesFailed(err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && s.unsynced == nil {
		s.log.Error(err, "The names of files could not be made durable")
	}
	s.unsynced = err
	return err != nil
}

// removeIdle removes the scopes of owners of which none was used for too long.
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
			s.log.V(2).Info("A scope is removed because it was not used", "lastUsed", sc.used)
			rest = append(rest, s.dropLocked(sc, ErrNotFound)...)
		}
	}
	s.mu.Unlock()
	s.remove(rest)
	if rest != nil {
		s.poke()
	}
}

// saveUses writes when scopes were used, where the log is behind by the given time or more, and heads that
// are not in the log.
// Scopes that are being written, or that cannot be, are left out.
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
	// If this fails, the state is still complete, and the next event goes to a new log.
	if err := s.appendTo(sc, l, r); err != nil {
		s.log.V(2).Info("The time of the last use was not written", "reason", err.Error())
	}
}
