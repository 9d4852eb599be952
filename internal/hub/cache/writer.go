package cache

import (
	"errors"
	"fmt"
)

// Snapshot is a state of a scope that is being written. It is not safe for concurrent use, and must be ended
// with Commit or Abort. Several snapshots of one scope may be written at a time: the last Commit counts.
type Snapshot struct {
	store *Store
	key   string
	share Share
	draft *draft
	err   error // of the first call that failed
}

// Snapshot begins a snapshot of a scope. It is not visible before Commit, and no other call waits for it. If it
// fails, other than by Abort, the state of the scope becomes stale.
func (s *Store) Snapshot(key string) (*Snapshot, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.end()
	n := &Snapshot{store: s, key: key, share: s.shareOf(key)}
	if len(key) > maxKey {
		return nil, fmt.Errorf("beginning a snapshot: %w: a key of %d bytes", ErrTooLarge, len(key))
	}
	if n.draft, n.err = s.newDraft(key, s.now()); n.err != nil {
		return nil, n.fail("beginning a snapshot", n.err)
	}
	return n, nil
}

// Add adds an item. Of two items with the same id the later one counts.
func (n *Snapshot) Add(id string, value []byte) error {
	if n.draft == nil {
		return n.over()
	}
	if err := n.store.begin(); err != nil {
		return err
	}
	defer n.store.end()
	r := record{kind: kindItem, id: []byte(id), value: value}
	if err := n.check(r); err != nil {
		return n.fail("writing a snapshot", err)
	}
	if err := n.draft.add(r); err != nil {
		return n.fail("writing a snapshot", err)
	}
	return nil
}

// Size returns how many bytes the snapshot has so far.
func (n *Snapshot) Size() int64 {
	if n.draft == nil {
		return 0
	}
	return n.draft.size()
}

// check returns an error if a record makes the snapshot too large.
func (n *Snapshot) check(r record) error {
	if err := checkSizes(&n.draft.codec, r); err != nil {
		return err
	}
	return n.store.checkLive(n.share, n.draft.size()+n.draft.codec.size(r))
}

// checkLive returns an error if a scope has too many live bytes. A log is rewritten before it exceeds twice
// this limit.
func (s *Store) checkLive(of Share, live int64) error {
	if most := s.maxLive(of); live > most {
		return fmt.Errorf("%w: the scope would have more than %d bytes", ErrTooLarge, most)
	}
	return nil
}

// Commit makes the snapshot the state of the scope, and supersedes the writer of the scope. It does not wait
// until the snapshot is durable.
func (n *Snapshot) Commit(head []byte) (*Writer, error) {
	if n.draft == nil {
		return nil, n.over()
	}
	s := n.store
	if err := s.begin(); err != nil {
		n.Abort()
		return nil, err
	}
	defer s.end()
	end := record{kind: kindEnd, head: head}
	if err := n.check(end); err != nil {
		return nil, n.fail("writing a snapshot", err)
	}
	l, st, err := n.draft.end(head, s.now())
	if err != nil {
		return nil, n.fail("writing a snapshot", err)
	}
	sc := s.pin(n.key)
	defer s.unpin(sc)
	sc.io.Lock()
	defer sc.io.Unlock()
	if err := s.name(sc, l); err != nil {
		return nil, n.fail("writing a snapshot", err)
	}
	n.draft, n.err = nil, errors.New("the snapshot has ended")
	w := &Writer{store: s, scope: sc}
	s.mu.Lock()
	s.endWriterLocked(sc, ErrSuperseded)
	rest := s.installLocked(sc, l, st)
	sc.writer, sc.stale = w, nil
	s.touchLocked(sc, s.nowLocked())
	rest = append(rest, s.shrinkLocked(sc.share.Owner)...)
	s.mu.Unlock()
	s.remove(rest)
	s.poke()
	return w, nil
}

// Abort discards the snapshot. After Commit it does nothing.
func (n *Snapshot) Abort() {
	if n.draft != nil {
		n.store.discard(n.draft)
		n.draft = nil
	}
}

// fail discards the snapshot and marks the scope as stale.
func (n *Snapshot) fail(doing string, err error) error {
	n.err = fmt.Errorf("%s: %w", doing, err)
	if n.draft != nil {
		n.Abort()
	}
	n.store.mu.Lock()
	defer n.store.mu.Unlock()
	if sc := n.store.scopes[n.key]; sc != nil {
		n.store.failLocked(sc, n.err)
	}
	return n.err
}

func (n *Snapshot) over() error {
	if n.err != nil {
		return n.err
	}
	return errors.New("the snapshot has ended")
}

// pin returns the scope of a key, and creates it if it is missing.
func (s *Store) pin(key string) *scope {
	s.mu.Lock()
	defer s.mu.Unlock()
	sc := s.scopes[key]
	if sc == nil {
		sc = &scope{key: key, share: s.shareOf(key)}
		s.scopes[key] = sc
	}
	sc.pins++
	return sc
}

func (s *Store) unpin(sc *scope) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sc.pins--
	s.forgetLocked(sc)
}

// name renames a complete draft to the next generation. The caller holds scope.io, so that newer states have
// newer generations.
func (s *Store) name(sc *scope, l *log) error {
	name := logName(s.secrets.base(sc.key), s.number())
	if err := s.dir.Rename(l.name, name); err != nil {
		return err
	}
	l.name = name
	return nil
}

// installLocked gives a scope a new log. The files of the previous log stay until the new one is durable. It
// returns the garbage.
func (s *Store) installLocked(sc *scope, l *log, st *state) (rest []garbage) {
	if sc.log != nil {
		old := s.detachLocked(sc)
		old.before = append(old.before, old.name)
		l.before, old.before = old.before, nil
		rest = []garbage{{log: old}}
	}
	s.attachLocked(sc, l, st)
	s.renamed = true
	return rest
}

// Writer continues a state with events. A scope has at most one writer, the one of the last Commit, Replace or
// Resume: the events of an old watch never reach a later state. A failed call ends the writer. It is safe for
// concurrent use; the caller decides the order of its events.
type Writer struct {
	store *Store
	scope *scope
	ended error // the reason; guarded by Store.mu
}

// Resume returns the writer that continues the current state of a scope, and the head of that state: write the
// events after this head. It supersedes the previous writer, even a failed one, and the state is then not
// stale. The head must not be changed.
func (s *Store) Resume(key string) (w *Writer, head []byte, err error) {
	if err := s.begin(); err != nil {
		return nil, nil, err
	}
	defer s.end()
	sc := s.pin(key)
	defer s.unpin(sc)
	// A write in progress must not follow the returned head.
	sc.io.Lock()
	defer sc.io.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if sc.log == nil {
		return nil, nil, fmt.Errorf("scope: %w", ErrNotFound)
	}
	s.endWriterLocked(sc, ErrSuperseded)
	w = &Writer{store: s, scope: sc}
	sc.writer, sc.stale = w, nil
	s.touchLocked(sc, s.nowLocked())
	return w, sc.state.head, nil
}

// Put stores an item and the new head.
func (w *Writer) Put(id string, value, head []byte) error {
	return w.write(record{kind: kindPut, id: []byte(id), value: value, head: head})
}

// Delete deletes an item, if it exists, and stores the new head.
func (w *Writer) Delete(id string, head []byte) error {
	return w.write(record{kind: kindDelete, id: []byte(id), head: head})
}

// Advance sets the head, without an item. The head reaches the disk with the next event, within an hour of use,
// or by Close: after a kill, the scope may have the head of its last event.
func (w *Writer) Advance(head []byte) error {
	s, sc := w.store, w.scope
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	sc.io.Lock() // a rewrite in progress writes the previous head
	defer sc.io.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case w.ended != nil && !errors.Is(w.ended, ErrSuperseded):
		return fmt.Errorf("%w: %w", ErrSuperseded, w.ended)
	case w.ended != nil:
		return w.ended
	case len(head) > maxText:
		return fmt.Errorf("%w: a head of more than %d bytes", ErrTooLarge, maxText)
	}
	t := s.nowLocked()
	sc.state.head, sc.state.written, sc.state.isAhead = append([]byte(nil), head...), t.wall, true
	s.touchLocked(sc, t)
	return nil
}

func (w *Writer) write(r record) error {
	s, sc := w.store, w.scope
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	sc.io.Lock()
	defer sc.io.Unlock()
	if err := w.append(r); err != nil {
		err = fmt.Errorf("writing an event: %w", err)
		s.mu.Lock()
		defer s.mu.Unlock()
		if w.ended != nil { // it may have ended during the write
			if errors.Is(w.ended, ErrSuperseded) {
				return w.ended
			}
			return fmt.Errorf("%w: %w", ErrSuperseded, w.ended)
		}
		s.failLocked(sc, err)
		return err
	}
	return nil
}

// errEnded is returned by append when write must return Writer.ended.
var errEnded = errors.New("the writer has ended")

// append writes the records of an event to the log and applies them. The caller holds scope.io. If there are
// several records, the caller has checked the size of the scope.
func (w *Writer) append(event ...record) error {
	s, sc := w.store, w.scope
	s.mu.Lock()
	if w.ended != nil {
		s.mu.Unlock()
		return errEnded
	}
	l, sealed := sc.log, sc.log.sealed
	size, live := l.size, sc.state.live
	t := s.nowLocked()
	s.mu.Unlock()

	frames := int64(0)
	for i := range event {
		r := &event[i]
		if err := checkSizes(&l.codec, *r); err != nil {
			return err
		}
		frames += l.codec.size(*r)
		r.wall, r.age = t.wall, t.age
	}
	if len(event) == 1 && event[0].kind == kindPut {
		// This sum ignores the bytes that replacing an existing item frees; replaces checks them.
		if err := s.checkLive(sc.share, live+frames); err != nil && !w.replaces(string(event[0].id), frames) {
			return err
		}
	}
	if sealed || size+frames > 2*s.maxLive(sc.share) {
		if err := s.rewrite(sc); err != nil {
			return err
		}
		s.mu.Lock()
		if w.ended != nil {
			s.mu.Unlock()
			return errEnded
		}
		l = sc.log
		s.mu.Unlock()
	}
	if err := s.appendTo(sc, l, event...); err != nil {
		return err
	}
	s.mu.Lock()
	ended := w.ended != nil
	dead := sc.log != nil && sc.log.size > max(2*sc.state.live, sc.state.live+minDead, sc.log.rewriteAt)
	s.mu.Unlock()
	if ended {
		return errEnded
	}
	if dead {
		if err := s.rewrite(sc); err != nil {
			s.log.Info("Rewriting a log failed; retrying when the log has grown", "reason", err.Error())
		}
	}
	return nil
}

// replaces reports whether the scope stays small enough when an item gets a new value.
func (w *Writer) replaces(id string, frame int64) bool {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	st := w.scope.state
	if st == nil {
		return false
	}
	at, found := st.find(id)
	return found && w.store.checkLive(w.scope.share, st.live+frame-int64(st.items[at].size)) == nil
}

// appendTo writes records at the end of a log, and applies them if the scope still uses that log. The caller
// holds scope.io.
func (s *Store) appendTo(sc *scope, l *log, event ...record) error {
	s.mu.Lock()
	offset := l.size
	l.refs++
	s.mu.Unlock()
	defer s.release(l)
	size := int64(0)
	for _, r := range event {
		size += l.codec.size(r)
	}
	raw := make([]byte, 0, size)
	for _, r := range event {
		raw = l.codec.append(raw, offset+int64(len(raw)), r)
	}
	failed := writeAt(l.file, raw, offset)
	rest, err := s.apply(sc, l, event, offset, failed)
	s.remove(rest)
	s.poke()
	return err
}

// apply applies records after an attempt to write them to a log; failed is the error of that write.
func (s *Store) apply(sc *scope, l *log, event []record, offset int64, failed error) ([]garbage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if failed != nil {
		l.sealed = true
		return nil, failed
	}
	if sc.log != l {
		return nil, errEnded
	}
	s.dirty[l] = sc
	st := sc.state
	for _, r := range event {
		size := l.codec.size(r)
		switch r.kind {
		case kindPut, kindPutPart:
			st.put(newItem(r, offset, size))
		case kindDelete, kindDeletePart:
			st.remove(string(r.id))
		}
		offset += size
		l.size += size
		s.growLocked(sc, size)
	}
	last := event[len(event)-1]
	st.age, st.used = last.age, last.wall
	if last.kind != kindUsed {
		st.head, st.written, st.isAhead = append([]byte(nil), last.head...), last.wall, false
		s.touchLocked(sc, s.nowLocked())
	}
	return s.shrinkLocked(sc.share.Owner), nil
}

// rewrite copies the state of a scope to a new log. The caller holds scope.io.
func (s *Store) rewrite(sc *scope) error {
	s.mu.Lock()
	l, st := sc.log, sc.state
	if l == nil {
		s.mu.Unlock()
		return errEnded
	}
	l.refs++
	st.shared = true
	items, head, t := st.items, st.head, times{st.written, st.age}
	s.mu.Unlock()
	defer s.release(l)

	next, nextState, err := s.copy(sc, l, items, head, t)
	rest, err := s.rewritten(sc, l, next, nextState, err)
	s.remove(rest)
	s.poke()
	return err
}

// rewritten replaces a log by the rewritten one, unless rewriting failed or the scope was removed meanwhile.
func (s *Store) rewritten(sc *scope, l, next *log, st *state, failed error) ([]garbage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case failed == nil && sc.log == l:
		return s.installLocked(sc, next, st), nil
	case failed == nil:
		next.refs = 1
		return []garbage{{[]string{next.name}, next}}, errEnded
	}
	l.rewriteAt = 2 * l.size
	err := fmt.Errorf("rewriting the log: %w", failed)
	if errors.Is(failed, ErrDamaged) && sc.log == l {
		return s.dropLocked(sc, err), err
	}
	return nil, err
}

// copy writes a log of the next generation with items of another log.
func (s *Store) copy(sc *scope, from *log, items []item, head []byte, t times) (*log, *state, error) {
	d, err := s.newDraft(sc.key, t)
	if err != nil {
		return nil, nil, err
	}
	l, st, err := func() (*log, *state, error) {
		var buf []byte
		for _, it := range items {
			value, frame, err := from.read(it, buf)
			if err != nil {
				return nil, nil, err
			}
			buf = frame
			if err := d.add(record{kind: kindItem, id: []byte(it.id), value: value}); err != nil {
				return nil, nil, err
			}
		}
		l, st, err := d.end(head, t)
		if err != nil {
			return nil, nil, err
		}
		return l, st, s.name(sc, l)
	}()
	if err != nil {
		s.discard(d)
		return nil, nil, err
	}
	return l, st, nil
}
