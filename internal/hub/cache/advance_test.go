package cache

import (
	"errors"
	"fmt"
	"testing"
)

// SetHead writes an event without an item, as Update does when nothing differs.
func (w *Writer) SetHead(head []byte) error { return w.write(record{kind: kindHead, head: head}) }

// TestBookmarksWriteNothingToDisk: a bookmark, which comes each minute on each watch, changes the head in memory
// only. The next event writes it, and so does Close. After a kill the state is that of the last event.
func TestBookmarksWriteNothingToDisk(t *testing.T) {
	path := t.TempDir()
	s, err := Open(path, Options{})
	must(t, err)
	w, err := s.Replace("k", []byte("rv 1"), func(func(string, []byte) bool) {})
	must(t, err)
	must(t, w.Put("a", []byte("1"), []byte("rv 2")))
	must(t, w.Flush(t.Context()))
	bytes, syncs := s.Written()
	for i := range 60 {
		must(t, w.Advance(fmt.Appendf(nil, "rv %d", 3+i)))
	}
	if b, n := s.Written(); b != bytes || n != syncs {
		t.Errorf("60 bookmarks wrote %d bytes and called fsync %d times", b-bytes, n-syncs)
	}
	head := func(want string) {
		t.Helper()
		view, err := s.View("k")
		must(t, err)
		defer view.Close()
		if got := string(view.Head()); got != want || view.Len() != 1 {
			t.Errorf("the head is %q with %d items, want %q with 1", got, view.Len(), want)
		}
	}
	head("rv 62")
	must(t, s.Close())
	if err := w.Advance([]byte("rv 70")); !errors.Is(err, ErrClosed) {
		t.Errorf("the store is closed: %v", err)
	}
	s, err = Open(path, Options{})
	must(t, err)
	defer s.Close()
	head("rv 62")
	if err := w.Advance([]byte("rv 71")); !errors.Is(err, ErrClosed) {
		t.Errorf("of another store: %v", err)
	}
}
