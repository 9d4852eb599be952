package journal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/atoll-k8s/atoll/internal/testing/faultydisk"
)

var at = time.Date(2026, 11, 26, 6, 0, 0, 0, time.UTC)

func entry(kind Kind, object string, extent Extent, body string) Entry {
	return Entry{Kind: kind, Object: object, Extent: extent, Method: "PATCH", Target: object, ContentType: "x", Body: []byte(body), At: at}
}

// texts are the objects and bodies of entries, in their order.
func texts(entries []Entry) (list []string) {
	for _, e := range entries {
		list = append(list, e.Object+" "+string(e.Body))
	}
	return list
}

// added adds entries to an empty state.
func added(t *testing.T, limits Limits, entries ...Entry) *state {
	t.Helper()
	s := &state{limits: limits.withDefaults()}
	for _, e := range entries {
		if _, _, err := s.add(&e); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func TestJournalDropsSupersededWrites(t *testing.T) {
	for name, test := range map[string]struct {
		entries []Entry
		want    []string
	}{
		"the last write of a Lease stays":           {[]Entry{entry(Lease, "l", "", "1"), entry(Event, "e", "", "1"), entry(Lease, "l", "", "2")}, []string{"e 1", "l 2"}},
		"the last write of an event stays":          {[]Entry{entry(Event, "e", "", "1"), entry(Event, "f", "", "1"), entry(Event, "e", "", "2")}, []string{"f 1", "e 2"}},
		"the last difference stays":                 {[]Entry{entry(Status, "n", Difference, "1"), entry(Status, "n", Difference, "2")}, []string{"n 2"}},
		"all parts stay":                            {[]Entry{entry(Status, "n", Part, "1"), entry(Status, "n", Part, "2")}, []string{"n 1", "n 2"}},
		"parts stay when a difference comes":        {[]Entry{entry(Status, "n", Part, "1"), entry(Status, "n", Difference, "2"), entry(Status, "n", Difference, "3")}, []string{"n 1", "n 3"}},
		"nothing stays when the whole status comes": {[]Entry{entry(Status, "n", Part, "1"), entry(Status, "n", Difference, "2"), entry(Status, "n", Whole, "3")}, []string{"n 3"}},
		"writes after the whole status stay":        {[]Entry{entry(Status, "n", Whole, "1"), entry(Status, "n", Difference, "2"), entry(Status, "n", Part, "3")}, []string{"n 1", "n 2", "n 3"}},
		"writes of other objects stay":              {[]Entry{entry(Status, "n", Whole, "1"), entry(Status, "m", Whole, "2")}, []string{"n 1", "m 2"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := texts(added(t, Limits{}, test.entries...).entries); !slices.Equal(got, test.want) {
				t.Errorf("kept are %q, want %q", got, test.want)
			}
		})
	}
}

// TestKeptStatusPatchesReproduceTheLastStatus: one client computes patches from what it has read, which stays the
// same. Another client sets single fields. The kept patches, sent in order, give the status that both clients
// wrote last.
func TestKeptStatusPatchesReproduceTheLastStatus(t *testing.T) {
	fields := []string{"a", "b", "c", "d"} // of the first client; the other has "x" and "y"
	rapid.Check(t, func(t *rapid.T) {
		read := map[string]int{}
		for _, f := range append(fields, "x", "y") {
			read[f] = rapid.IntRange(0, 2).Draw(t, f)
		}
		want := maps.Clone(read)
		s := &state{limits: Limits{}.withDefaults()}
		for range rapid.IntRange(0, 12).Draw(t, "writes") {
			patch, extent := map[string]int{}, Difference
			switch rapid.SampledFrom([]string{"difference", "difference", "part", "whole"}).Draw(t, "kind") {
			case "difference":
				for _, f := range fields {
					want[f] = rapid.IntRange(0, 2).Draw(t, f)
					if want[f] != read[f] {
						patch[f] = want[f]
					}
				}
			case "part":
				f := rapid.SampledFrom([]string{"x", "y"}).Draw(t, "field")
				want[f] = rapid.IntRange(0, 2).Draw(t, "value")
				patch[f], extent = want[f], Part
			case "whole": // of the first client too: it has all fields
				for f := range read {
					want[f] = rapid.IntRange(0, 2).Draw(t, f)
				}
				patch, extent = maps.Clone(want), Whole
				// From here on it compares with that.
				read = maps.Clone(want)
			}
			body, _ := json.Marshal(patch)
			e := entry(Status, "n", extent, string(body))
			if _, _, err := s.add(&e); err != nil {
				t.Fatal(err)
			}
			if extent == Whole && len(s.entries) != 1 {
				t.Fatalf("kept are %q", texts(s.entries))
			}
		}
		got := maps.Clone(read)
		for _, e := range s.entries {
			var patch map[string]int
			if err := json.Unmarshal(e.Body, &patch); err != nil {
				t.Fatal(err)
			}
			maps.Copy(got, patch)
		}
		if !maps.Equal(got, want) {
			t.Fatalf("the object is %v, want %v, by %q", got, want, texts(s.entries))
		}
	})
}

// TestJournalStaysWithinItsLimits: old events are dropped for newer writes. Nothing else is dropped.
func TestJournalStaysWithinItsLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &state{limits: Limits{Bytes: 4000, Entries: 9, Events: 4, Parts: 3}}
		for range rapid.IntRange(0, 60).Draw(t, "writes") {
			kind := rapid.SampledFrom([]Kind{Lease, Status, Event}).Draw(t, "kind")
			extent := Extent("")
			if kind == Status {
				extent = rapid.SampledFrom([]Extent{Part, Difference, Whole}).Draw(t, "extent")
			}
			e := entry(kind, fmt.Sprint(kind, rapid.IntRange(0, 7).Draw(t, "object")), extent, string(make([]byte, rapid.IntRange(0, 5000).Draw(t, "size"))))
			before, was := *s, texts(s.entries)
			replaced, dropped, err := s.add(&e)
			if err != nil {
				if !errors.Is(err, ErrFull) || !slices.Equal(texts(s.entries), was) || s.bytes != before.bytes || s.last != before.last {
					t.Fatalf("after %v there is %q, before it %q", err, texts(s.entries), was)
				}
				continue
			}
			if s.entries[len(s.entries)-1].Seq != e.Seq || len(s.entries) != len(was)+1-len(replaced)-len(dropped) {
				t.Fatalf("there are %d entries of %d, without %d and %d", len(s.entries), len(was)+1, len(replaced), len(dropped))
			}
			for _, e := range dropped {
				if e.Kind != Event {
					t.Fatalf("a %s is dropped", e.Kind)
				}
			}
			bytes, events, parts := int64(0), 0, map[string]int{}
			for i, e := range s.entries {
				bytes += e.size()
				if e.Kind == Event {
					events++
				}
				if e.Extent == Part {
					parts[e.Object]++
				}
				if i > 0 && s.entries[i-1].Seq >= e.Seq || parts[e.Object] > 3 {
					t.Fatalf("kept are %+v", s.entries)
				}
			}
			if bytes != s.bytes || events != s.events || bytes > 4000 || events > 4 || len(s.entries) > 9 {
				t.Fatalf("there are %d bytes (%d), %d events (%d), %d entries", bytes, s.bytes, events, s.events, len(s.entries))
			}
		}
	})
}

var fast = Options{SyncEvery: time.Millisecond}

func openAt(t *testing.T, dir string) *Journal {
	t.Helper()
	j, err := Open(dir, fast)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// TestTruncatedJournalHasTheWritesBeforeTheCut: the file is cut at each byte. Every write that Keep acknowledged
// while the file was as long is there, and no other write.
func TestTruncatedJournalHasTheWritesBeforeTheCut(t *testing.T) {
	dir := t.TempDir()
	j := openAt(t, dir)
	log := func() (name string, content []byte) {
		names, err := filepath.Glob(filepath.Join(dir, "*.log"))
		if err != nil || len(names) != 1 {
			t.Fatalf("the files are %v, %v", names, err)
		}
		if content, err = os.ReadFile(names[0]); err != nil {
			t.Fatal(err)
		}
		return filepath.Base(names[0]), content
	}
	type moment struct {
		size    int
		entries []Entry
		sent    uint64 // is done before the next moment, so it may be gone in any longer file
	}
	var moments []moment
	steps := []Entry{
		entry(Status, "n", Difference, "1"), entry(Event, "l", "", "1"), entry(Event, "e", "", "1"), entry(Status, "n", Part, "p"),
		entry(Event, "l", "", "2"), entry(Status, "n", Difference, "2"), entry(Event, "e", "", "2"), entry(Status, "n", Whole, "3"),
	}
	for i, e := range steps {
		if i == 5 { // one is sent meanwhile
			sent := j.Of("e")[0].Seq
			moments[i-1].sent = sent
			j.Done(sent, Replayed)
		}
		if err := j.Keep(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		_, content := log()
		moments = append(moments, moment{size: len(content), entries: j.Entries()})
	}
	name, content := log()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	const workers = 32 // they wait for the disk
	var group sync.WaitGroup
	for first := range workers {
		group.Go(func() {
			for size := first; size <= len(content) && !t.Failed(); size += workers {
				// The moments before and after the cut.
				var before, after []Entry
				var sent uint64
				for _, m := range moments {
					after = m.entries
					if m.size > size {
						break
					}
					before, sent = m.entries, 0
					if m.size < size {
						sent = m.sent
					}
				}
				checkCut(t, filepath.Join(t.TempDir(), name), content[:size], before, after, sent)
			}
		})
	}
	group.Wait()
}

// checkCut reads a log of which the rest is missing. The next entry may be there already, and only once
// it is there those are gone that it replaces. The one that was sent may be gone or not.
func checkCut(t *testing.T, path string, content []byte, before, after []Entry, sent uint64) {
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Error(err)
		return
	}
	d, got, _, err := openDisk(filepath.Dir(path), fast)
	if err != nil {
		t.Error(err)
		return
	}
	_ = d.close()
	all := true
	for _, e := range after {
		all = all && has(got, e)
	}
	for _, e := range got {
		if !has(before, e) && !has(after, e) {
			t.Errorf("cut at %d there is %+v, which was not kept", len(content), e)
		}
	}
	for _, e := range before {
		if !has(got, e) && !all && e.Seq != sent {
			t.Errorf("cut at %d there is no %+v", len(content), e)
		}
	}
}

func has(entries []Entry, e Entry) bool {
	return slices.ContainsFunc(entries, func(other Entry) bool { return cmp.Equal(e, other) })
}

// TestKilledJournalKeepsAcknowledgedWrites: after a kill, the journal has every entry that Keep acknowledged,
// and no entry that was done before.
func TestKilledJournalKeepsAcknowledgedWrites(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			rt.Fatal(err)
		}
		j := openAt(t, dir)
		for range rapid.IntRange(1, 8).Draw(rt, "steps") {
			switch rapid.SampledFrom([]string{"keep", "keep", "keep", "done", "kill"}).Draw(rt, "step") {
			case "keep":
				e := entry(Status, rapid.SampledFrom([]string{"n", "m"}).Draw(rt, "object"), rapid.SampledFrom([]Extent{Part, Difference, Whole}).Draw(rt, "extent"), rapid.StringN(0, 20, 40).Draw(rt, "body"))
				if err := j.Keep(t.Context(), e); err != nil {
					rt.Fatal(err)
				}
			case "done":
				if entries := j.Entries(); len(entries) > 0 {
					j.Done(rapid.SampledFrom(entries).Draw(rt, "done").Seq, Refused)
					if err := j.Keep(t.Context(), entry(Event, "later", "", rapid.StringN(1, 20, 40).Draw(rt, "body"))); err != nil {
						rt.Fatal(err)
					}
				}
			case "kill":
				copied, err := os.MkdirTemp(t.TempDir(), "")
				if err != nil {
					rt.Fatal(err)
				}
				if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
					rt.Fatal(err)
				}
				killed := j
				j = openAt(t, copied)
				if diff := cmp.Diff(killed.Entries(), j.Entries()); diff != "" {
					rt.Fatalf("after a kill (-before +after):\n%s", diff)
				}
				_ = killed.Close()
				dir = copied
			}
		}
		if err := j.Close(); err != nil {
			rt.Fatal(err)
		}
	})
}

// TestKeepWaitsForTheDisk: Keep does not return before the round of fsync.
func TestKeepWaitsForTheDisk(t *testing.T) {
	j, err := Open(t.TempDir(), Options{SyncEvery: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{"1", "2"} { // the first makes the file
		within, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := j.Keep(within, entry(Event, "l", "", body)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Keep returns %v", err)
		}
		cancel()
		if err := j.Keep(t.Context(), entry(Event, "l", "", body)); err != nil {
			t.Error(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
	if err := j.Keep(t.Context(), entry(Event, "l", "", "3")); err == nil {
		t.Error("a journal that is closed keeps something")
	}
}

// TestCloseStoresPendingWrites: Close stores every entry that waits, and entries that are done are not there
// after a restart.
func TestCloseStoresPendingWrites(t *testing.T) {
	dir := t.TempDir()
	j := openAt(t, dir)
	for i := range 5 {
		if err := j.Keep(t.Context(), entry(Event, fmt.Sprint(i), "", "x")); err != nil {
			t.Fatal(err)
		}
	}
	j.Done(j.Entries()[1].Seq, Replayed)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = openAt(t, dir)
	defer j.Close()
	if got, want := texts(j.Entries()), []string{"0 x", "2 x", "3 x", "4 x"}; !slices.Equal(got, want) {
		t.Errorf("kept are %q, want %q", got, want)
	}
	if s := j.Summary(); s.Waiting != 4 || !s.Since.Equal(at) || s.Bytes == 0 {
		t.Errorf("the summary is %+v", s)
	}
	if _, err := Open(dir, fast); err == nil {
		t.Error("two journals have one directory")
	}
	if !bytes.Equal(j.Entries()[0].Body, []byte("x")) {
		t.Errorf("the body is %q", j.Entries()[0].Body)
	}
}

// TestLeaseIsNotStored: a Lease is in the journal at once, also while the disk fails, and not after a restart.
func TestLeaseIsNotStored(t *testing.T) {
	failing := false
	dir := t.TempDir()
	fail := func(string) error {
		if failing {
			return errors.New("no space left on device")
		}
		return nil
	}
	j, err := Open(dir, Options{SyncEvery: time.Millisecond, Wrap: faultydisk.Of(fail)})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Keep(t.Context(), entry(Event, "e", "", "1")); err != nil {
		t.Fatal(err)
	}
	failing = true
	for _, body := range []string{"1", "2"} {
		if err := j.Keep(t.Context(), entry(Lease, "l", "", body)); err != nil {
			t.Errorf("on a full disk: %v", err)
		}
	}
	if got := texts(j.Entries()); len(got) != 2 || got[1] != "l 2" {
		t.Errorf("there is %v", got)
	}
	failing = false
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if j, err = Open(dir, Options{}); err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if got := texts(j.Entries()); len(got) != 1 || got[0] != "e 1" {
		t.Errorf("after a restart there is %v", got)
	}
}
