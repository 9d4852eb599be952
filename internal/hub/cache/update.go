package cache

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
)

// difference is the changes that lead from one state to another.
type difference struct {
	records []record // without the head
	bytes   int64    // of their frames
}

// Update makes the items the state of a scope, like Replace. If they differ little from the current state, it
// writes only the difference. items may be read twice.
func (s *Store) Update(key string, head []byte, items iter.Seq2[string, []byte]) (*Writer, error) {
	w, err := s.update(key, head, items)
	if errors.Is(err, errOther) {
		return s.Replace(key, head, items)
	}
	return w, err
}

// Has reports whether a scope has this head and one item with this id and value, and is not stale. It counts
// as a use of the scope. It does not wait for the disk.
func (s *Store) Has(key string, head []byte, id string, value []byte) bool {
	want := newItem(record{id: []byte(id), value: value}, 0, 0)
	s.mu.Lock()
	defer s.mu.Unlock()
	sc, err := s.findLocked(key)
	if err != nil || sc.stale != nil {
		return false
	}
	items := sc.state.items
	if len(items) != 1 || items[0].id != id || items[0].length != want.length || items[0].sum != want.sum || !bytes.Equal(sc.state.head, head) {
		return false
	}
	s.touchLocked(sc, s.nowLocked())
	return true
}

// errOther means that the scope has no state from which a small difference leads to the new one.
var errOther = errors.New("the difference from the current state is too large")

func (s *Store) update(key string, head []byte, items iter.Seq2[string, []byte]) (*Writer, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.end()
	sc := s.pin(key)
	defer s.unpin(sc)
	sc.io.Lock() // the state does not change, unless the scope is removed
	defer sc.io.Unlock()
	s.mu.Lock()
	l, st := sc.log, sc.state
	usable := l != nil && !l.sealed && (sc.stale == nil || errors.Is(sc.stale, ErrReopened))
	if !usable {
		s.mu.Unlock()
		return nil, errOther
	}
	present, live := st.items, st.live
	s.mu.Unlock()

	// A difference within the limit for dead bytes may always be appended: writing a new file takes longer.
	most := min(max(live/2, minDead/2), s.maxLive(sc.share)-live)
	d, ok := differenceTo(&l.codec, present, items, most)
	if !ok {
		return nil, errOther
	}
	w := &Writer{store: s, scope: sc}
	err := w.append(d.event(head)...)
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(err, errEnded) { // the scope was removed meanwhile
		return nil, errOther
	}
	if err != nil {
		err = fmt.Errorf("writing changes: %w", err)
		s.failLocked(sc, err)
		return nil, err
	}
	s.endWriterLocked(sc, ErrSuperseded)
	sc.writer, sc.stale = w, nil
	return w, nil
}

// differenceTo returns the difference from the present items to the given ones, and false if it exceeds most
// bytes.
func differenceTo(codec *codec, present []item, items iter.Seq2[string, []byte], most int64) (d difference, ok bool) {
	has := make([]bool, len(present))
	next := 0 // the items mostly have the same order as present
	add := func(r record) bool {
		d.records = append(d.records, r)
		d.bytes += codec.size(r)
		return d.bytes <= most
	}
	before := &state{items: present}
	fresh := map[string]bool{}
	for id, value := range items {
		at, found := next, next < len(present) && present[next].id == id
		if !found {
			at, found = before.find(id)
		}
		if found && has[at] || fresh[id] {
			return d, false // the id is there twice: the later item counts
		}
		if found {
			next, has[at] = at+1, true
			if present[at].is(value) {
				continue
			}
		} else {
			next, fresh[id] = at, true
		}
		if !add(record{kind: kindPut, id: []byte(id), value: value}) {
			return d, false
		}
	}
	for i := range present {
		if !has[i] && !add(record{kind: kindDelete, id: []byte(present[i].id)}) {
			return d, false
		}
	}
	return d, true
}

// event returns the records of a difference as one event with a head.
func (d *difference) event(head []byte) []record {
	if len(d.records) == 0 {
		return []record{{kind: kindHead, head: head}}
	}
	for i := range d.records {
		r := &d.records[i]
		switch {
		case i == len(d.records)-1:
			r.head = head
		case r.kind == kindPut:
			r.kind = kindPutPart
		default:
			r.kind = kindDeletePart
		}
	}
	return d.records
}
