package cache

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// View is one state of a scope. Later writes, Store.Remove and Store.Close do not change it. It holds a file
// open until it is closed. It is safe for concurrent use, except for Close.
type View struct {
	store   *Store
	scope   *scope
	log     *log
	head    []byte
	items   []item
	written time.Time
	stale   error
	closed  bool
}

// Head returns the head. It must not be changed.
func (v *View) Head() []byte { return v.head }

// Len returns the number of items.
func (v *View) Len() int { return len(v.items) }

// ID returns the id of the i-th item. The ids are sorted bytewise.
func (v *View) ID(i int) string { return v.items[i].id }

// Size returns the length of the value of the i-th item, in bytes, without reading it.
func (v *View) Size(i int) int { return int(v.items[i].length) }

// Written returns the wall time at which the state was written.
func (v *View) Written() time.Time { return v.written }

// Stale returns nil if, when the view was taken, a writer of this process had continued the scope and none of
// its writes had failed. Otherwise it returns why the state may be older than the last event.
func (v *View) Stale() error { return v.stale }

// Value reads the value of the i-th item from disk, into buf if buf is large enough. To read many items with
// little garbage, pass the value of one call as buf of the next one. If the value was damaged on disk, Value
// returns an error and removes the scope.
func (v *View) Value(i int, buf []byte) ([]byte, error) {
	if v.closed {
		return nil, errors.New("the view is closed")
	}
	value, frame, err := v.log.read(v.items[i], buf)
	if err != nil {
		if errors.Is(err, ErrDamaged) {
			v.damaged()
		}
		return nil, fmt.Errorf("reading an item: %w", err)
	}
	// Moved to the front of the buffer, so that the caller can reuse all of it.
	return frame[:copy(frame, value)], nil
}

// Get reads the value of an item from disk.
func (v *View) Get(id string) ([]byte, error) {
	i, found := slices.BinarySearchFunc(v.items, id, func(i item, id string) int { return cmp.Compare(i.id, id) })
	if !found {
		return nil, fmt.Errorf("item: %w", ErrNotFound)
	}
	return v.Value(i, nil)
}

// damaged drops the scope if it still uses the log of the view.
func (v *View) damaged() {
	s := v.store
	if s.begin() != nil {
		return
	}
	defer s.end()
	var rest []garbage
	s.mu.Lock()
	if v.scope.log == v.log {
		s.log.Info("Removing a stored scope that is damaged", "file", v.log.name)
		rest = s.dropLocked(v.scope, ErrDamaged)
	}
	s.mu.Unlock()
	s.remove(rest)
	s.poke()
}

// Close ends the view.
func (v *View) Close() error {
	if !v.closed {
		v.closed = true
		v.store.release(v.log)
	}
	return nil
}
