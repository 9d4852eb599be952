package cache

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// hundred is a state of 100 items of 1000 bytes.
func hundred() *content {
	c := &content{"rv 1", map[string]string{}}
	for i := range 100 {
		c.Items[fmt.Sprintf("ns/%02d", i)] = strings.Repeat("v", 1000)
	}
	return c
}

// TestUpdateWritesOnlyTheDifferences: it starts a new log only if the differences are large.
func TestUpdateWritesOnlyTheDifferences(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*content)
		most   int64 // bytes
	}{
		"nothing":          {func(*content) {}, 100},
		"one changes":      {func(c *content) { c.Items["ns/50"] = "w" }, 200},
		"its length stays": {func(c *content) { c.Items["ns/50"] = strings.Repeat("v", 999) + "w" }, 1200},
		"one is gone":      {func(c *content) { delete(c.Items, "ns/50") }, 200},
		"a first and last": {func(c *content) { c.Items["ns/"], c.Items["z"] = "first", "last" }, 300},
		"all is gone":      {func(c *content) { clear(c.Items) }, 10_000},
		"all that is there": {func(c *content) {
			for id := range c.Items {
				c.Items[id] += "w"
			}
		}, 120_000},
	} {
		d := newDisk()
		s := openOn(t, d, Options{SyncEvery: time.Hour})
		old := replace(t, s, "k", hundred())
		before := s.scopes["k"].log
		size := before.size
		view, err := s.View("k")
		must(t, err)
		want := hundred().with(func(c *content) { c.Head = "rv 2"; tc.change(c) })
		w, err := s.Update("k", []byte(want.Head), want.pairs)
		must(t, err)
		expect(t, s, "k", want)
		if got, err := readView(view); err != nil || got.Head != "rv 1" || len(got.Items) != 100 {
			t.Errorf("%s: the view before has changed, error %v", name, err)
		}
		after := s.scopes["k"].log
		wrote := after.size
		if after == before {
			wrote -= size
		}
		// A log of which nothing is used any more is rewritten.
		if wrote > tc.most || (after != before) != strings.HasPrefix(name, "all") {
			t.Errorf("%s: %d bytes were written, to another log: %t", name, wrote, after != before)
		}
		if err := old.SetHead([]byte("rv 3")); !errors.Is(err, ErrSuperseded) {
			t.Errorf("%s: the writer before gets %v", name, err)
		}
		must(t, w.SetHead([]byte("rv 4")))
		must(t, view.Close())
		want.Head = "rv 4"
		expect(t, openOn(t, d.killed(), Options{}), "k", want)
		must(t, s.Close())
	}
}

// TestUpdateWithoutStateStartsANewLog: a new scope gets a log. An update that is too large keeps the state before
// it and marks it as stale.
func TestUpdateWithoutStateStartsANewLog(t *testing.T) {
	s := openOn(t, newDisk(), Options{SyncEvery: time.Hour, MaxBytes: 400_000})
	defer s.Close()
	want := hundred()
	_, err := s.Update("new", []byte(want.Head), want.pairs)
	must(t, err)
	expect(t, s, "new", want)

	twice := func(yield func(string, []byte) bool) {
		_ = yield("ns/a", []byte("one")) && yield("ns/a", []byte("two"))
	}
	for range 2 {
		_, err = s.Update("twice", []byte("rv 1"), twice)
		must(t, err)
		expect(t, s, "twice", &content{"rv 1", map[string]string{"ns/a": "two"}})
	}

	// It is too large with the items that are gone, and not without them.
	other := &content{"rv 2", map[string]string{"ns/other": strings.Repeat("x", 150_000)}}
	_, err = s.Update("new", []byte(other.Head), other.pairs)
	must(t, err)
	expect(t, s, "new", other)
	_, err = s.Update("new", []byte("rv 3"), func(yield func(string, []byte) bool) {
		_ = yield("ns/other", []byte(other.Items["ns/other"])) && yield("ns/more", make([]byte, 60_000))
	})
	if !errors.Is(err, ErrTooLarge) {
		t.Errorf("what is too large is %v", err)
	}
	expect(t, s, "new", other)
	if stale(t, s, "new") == nil {
		t.Error("the state that could not be updated is not marked")
	}
	_, err = s.Update("new", []byte("rv 4"), other.pairs)
	must(t, err)
	if stale(t, s, "new") != nil {
		t.Error("the state is still marked")
	}
}

func TestUpdateComparesWithStateReadFromDisk(t *testing.T) {
	d := newDisk()
	s := openOn(t, d, Options{SyncEvery: time.Hour})
	replace(t, s, "k", hundred())
	must(t, s.Close())
	s = openOn(t, d, Options{SyncEvery: time.Hour})
	defer s.Close()
	before := s.scopes["k"].log
	want := hundred().with(func(c *content) { c.Head, c.Items["ns/07"] = "rv 2", "w" })
	_, err := s.Update("k", []byte(want.Head), want.pairs)
	must(t, err)
	expect(t, s, "k", want)
	if s.scopes["k"].log != before || stale(t, s, "k") != nil {
		t.Errorf("the log is another one, or the state is stale: %v", stale(t, s, "k"))
	}
}

// TestHasComparesHeadAndValueOfAScope: after a restart the scope is stale until it is updated.
func TestHasComparesHeadAndValueOfAScope(t *testing.T) {
	d := newDisk()
	s := openOn(t, d, Options{SyncEvery: time.Hour})
	if s.Has("k", []byte("head"), "", []byte("value")) {
		t.Error("it has what is not there")
	}
	replace(t, s, "k", &content{"head", map[string]string{"": "value"}})
	replace(t, s, "two", &content{"head", map[string]string{"": "value", "ns/a": "A"}})
	for _, tc := range []struct {
		key, head, id, value string
		want                 bool
	}{
		{"k", "head", "", "value", true},
		{"k", "other", "", "value", false},
		{"k", "head", "id", "value", false},
		{"k", "head", "", "valuf", false},
		{"k", "head", "", "", false},
		{"two", "head", "", "value", false},
	} {
		if got := s.Has(tc.key, []byte(tc.head), tc.id, []byte(tc.value)); got != tc.want {
			t.Errorf("%+v: it is %t", tc, got)
		}
	}
	if keys := keysOf(s); keys[1] != "k" {
		t.Errorf("the scope that was used last is %q", keys[1])
	}
	must(t, s.Close())
	s = openOn(t, d, Options{SyncEvery: time.Hour})
	defer s.Close()
	if s.Has("k", []byte("head"), "", []byte("value")) {
		t.Error("what nobody has continued since the start is not stale")
	}
	_, err := s.Update("k", []byte("head"), (&content{"head", map[string]string{"": "value"}}).pairs)
	must(t, err)
	if !s.Has("k", []byte("head"), "", []byte("value")) {
		t.Error("what was updated is not there")
	}
}
