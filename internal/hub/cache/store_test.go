package cache

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/atoll-k8s/atoll/internal/testing/build"
)

func sized(n int) *content {
	return &content{"rv 1", map[string]string{"ns/a": strings.Repeat("v", n)}}
}

func keysOf(s *Store) (keys []string) {
	for _, sc := range s.Scopes() {
		keys = append(keys, sc.Key)
	}
	return keys
}

// stale returns what a view of the scope says.
func stale(t *testing.T, s *Store, key string) error {
	t.Helper()
	v, err := s.View(key)
	must(t, err)
	defer v.Close()
	return v.Stale()
}

// TestCacheFilesArePrivateAndEncrypted: modes are 0700 and 0600. With a key, neither contents nor names of files
// show what is stored.
func TestCacheFilesArePrivateAndEncrypted(t *testing.T) {
	for name, key := range map[string][]byte{"plain": nil, "encrypted": bytes.Repeat([]byte{1}, 32)} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "new", "cache")
			s, err := Open(dir, Options{Key: key})
			must(t, err)
			w := replace(t, s, "system:node:edge/secrets", &content{"first head", map[string]string{"ns/secret": "s3cr3t value"}})
			must(t, w.Put("ns/other", []byte("s3cr3t too"), []byte("second head")))
			must(t, w.Delete("ns/other", []byte("third head")))
			must(t, s.Close())

			info, err := os.Stat(dir)
			must(t, err)
			if info.Mode().Perm() != 0o700 {
				t.Errorf("the directory has the mode %v", info.Mode())
			}
			entries, err := os.ReadDir(dir)
			must(t, err)
			if len(entries) != 2 {
				t.Errorf("there are %d files, want the log and the lock", len(entries))
			}
			for _, e := range entries {
				info, err := e.Info()
				must(t, err)
				if info.Mode() != 0o600 {
					t.Errorf("%s has the mode %v", e.Name(), info.Mode())
				}
				raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
				must(t, err)
				for _, text := range []string{"system:node", "secrets", "ns/secret", "s3cr3t", "head"} {
					if key != nil && bytes.Contains(raw, []byte(text)) {
						t.Errorf("%q can be read in %s", text, e.Name())
					}
				}
				if key != nil && strings.HasPrefix(e.Name(), secrets{}.base("system:node:edge/secrets")) {
					t.Error("the name of the file tells whether a key is stored")
				}
			}
			s, err = Open(dir, Options{Key: key})
			must(t, err)
			defer s.Close()
			expect(t, s, "system:node:edge/secrets", &content{"third head", map[string]string{"ns/secret": "s3cr3t value"}})
		})
	}
}

// TestADirectoryHasOneStore: the second store gets ErrLocked.
func TestADirectoryHasOneStore(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755))
	s, err := Open(dir, Options{})
	must(t, err)
	if info, _ := os.Stat(dir); info.Mode().Perm() != 0o700 {
		t.Errorf("the directory has the mode %v", info.Mode())
	}
	if _, err := Open(dir, Options{}); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), dir) {
		t.Errorf("the second store gets %v", err)
	}
	must(t, s.Close())
	s, err = Open(dir, Options{})
	must(t, err)
	must(t, s.Close())
}

// TestStoreRemovesFilesOfOtherKeysAndTemporaryFiles: files that the store did not write stay.
func TestStoreRemovesFilesOfOtherKeysAndTemporaryFiles(t *testing.T) {
	one, two := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	for name, tc := range map[string]struct{ before, after []byte }{
		"another key":       {one, two},
		"no key any more":   {one, nil},
		"a key from now on": {nil, one},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s, err := Open(dir, Options{Key: tc.before})
			must(t, err)
			replace(t, s, "k", sized(10))
			must(t, s.Close())
			must(t, os.WriteFile(filepath.Join(dir, temporaryName(77)), []byte("half"), 0o600))
			must(t, os.WriteFile(filepath.Join(dir, "README"), []byte("mine"), 0o600))

			s, err = Open(dir, Options{Key: tc.after})
			must(t, err)
			defer s.Close()
			expect(t, s, "k", nil)
			names, err := s.dir.List()
			must(t, err)
			slices.Sort(names)
			if diff := cmp.Diff([]string{"README", "lock"}, names); diff != "" {
				t.Error(diff)
			}
			replace(t, s, "k", sized(20))
			if s.last <= 77 {
				t.Error("the number of a temporary file is used again")
			}
		})
	}
	if _, err := Open(t.TempDir(), Options{Key: []byte("short")}); err == nil {
		t.Error("a key of 5 bytes is accepted")
	}
}

// TestLeastRecentlyUsedScopesAreRemoved: also if the clock jumps back, and if the limits become smaller.
func TestLeastRecentlyUsedScopesAreRemoved(t *testing.T) {
	now := time.Now()
	o := Options{SyncEvery: time.Hour, MaxBytes: 100_000, Now: func() time.Time { return now }}
	d := newDisk()
	s := openOn(t, d, o)
	for _, key := range []string{"a", "b", "c"} {
		now = now.Add(-time.Hour) // a clock that jumps back does not change the order
		replace(t, s, key, sized(28_000))
	}
	expect(t, s, "a", sized(28_000)) // a use
	w := replace(t, s, "d", sized(28_000))
	if diff := cmp.Diff([]string{"c", "a", "d"}, keysOf(s)); diff != "" {
		t.Fatal(diff)
	}
	must(t, w.Put("ns/b", make([]byte, 17_000), nil))
	if diff := cmp.Diff([]string{"a", "d"}, keysOf(s)); diff != "" {
		t.Fatal(diff)
	}
	must(t, s.Close())
	if len(d.names) != 2 {
		t.Errorf("%d files are left", len(d.names))
	}
	// The bounds hold also if they became smaller, and the order lasts.
	o.MaxBytes = 60_000
	o.MaxScopes = 1
	if diff := cmp.Diff([]string{"d"}, keysOf(openOn(t, d, o))); diff != "" {
		t.Fatal(diff)
	}
}

// TestTooLargeWritesKeepTheStoredState: the write gets ErrTooLarge, the scope keeps its state and is marked as
// stale.
func TestTooLargeWritesKeepTheStoredState(t *testing.T) {
	o := Options{SyncEvery: time.Hour, MaxBytes: 400_000}
	d := newDisk()
	s := openOn(t, d, o)
	replace(t, s, "other", sized(1000))
	for name, call := range map[string]func(*Writer) error{
		"a list": func(*Writer) error {
			_, err := s.Replace("k", nil, sized(250_000).pairs)
			return err
		},
		"an event": func(w *Writer) error {
			return w.Put("ns/b", make([]byte, 60_000), nil)
		},
		"a head": func(w *Writer) error {
			return w.SetHead(make([]byte, maxText+1))
		},
		"the head of a list": func(*Writer) error {
			_, err := s.Replace("k", make([]byte, maxText+1), sized(0).pairs)
			return err
		},
		"an id": func(w *Writer) error {
			return w.Put(strings.Repeat("i", maxText+1), nil, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := call(replace(t, s, "k", sized(150_000))); !errors.Is(err, ErrTooLarge) {
				t.Fatalf("the error is %v", err)
			}
			expect(t, s, "k", sized(150_000))
			if err := stale(t, s, "k"); !errors.Is(err, ErrTooLarge) {
				t.Errorf("Stale is %v", err)
			}
			expect(t, s, "other", sized(1000))
		})
	}
	if _, err := s.Replace(strings.Repeat("k", maxText+1), nil, sized(0).pairs); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a long key: %v", err)
	}
	// An update frees what it replaces, and the log may have as many dead bytes as live ones.
	w := replace(t, s, "k", sized(150_000))
	for range 20 {
		must(t, w.Put("ns/a", make([]byte, 190_000), nil))
	}
	if s.bytes > o.MaxBytes {
		t.Errorf("%d bytes are stored", s.bytes)
	}
	must(t, s.Close())
	if len(d.names) != 2 {
		t.Errorf("%d files are left", len(d.names))
	}
}

func TestIdleScopesAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const day = 24 * time.Hour
		d := newDisk()
		var jump atomic.Int64
		o := Options{
			Now:     func() time.Time { return time.Now().Add(time.Duration(jump.Load())).Round(0) },
			ShareOf: func(key string) Share { return Share{Owner: key} },
		}
		s := openOn(t, d, o)
		replace(t, s, "idle", sized(1))
		replace(t, s, "read", sized(1))
		w := replace(t, s, "written", sized(1))
		time.Sleep(20 * day)
		expect(t, s, "read", sized(1))
		must(t, w.SetHead([]byte("rv 2")))
		must(t, s.Close())

		time.Sleep(400 * day) // the node is off
		s = openOn(t, d, o)
		if got := len(keysOf(s)); got != 3 {
			t.Fatalf("%d scopes are left after the node was off", got)
		}
		jump.Store(int64(-50 * 365 * day))
		time.Sleep(9 * day)
		if got := len(keysOf(s)); got != 3 {
			t.Fatalf("%d scopes are left after the clock went back", got)
		}
		time.Sleep(2 * day)
		if diff := cmp.Diff([]string{"read", "written"}, keysOf(s)); diff != "" {
			t.Fatal(diff)
		}
		// After a kill the use of a scope is known to the hour.
		time.Sleep(5 * day)
		expect(t, s, "read", sized(1))
		time.Sleep(3 * time.Hour)
		k := openOn(t, d.killed(), o)
		_ = s.Close()
		time.Sleep(20 * day)
		if diff := cmp.Diff([]string{"read"}, keysOf(k)); diff != "" {
			t.Fatal(diff)
		}
		time.Sleep(11 * day)
		if got := keysOf(k); got != nil {
			t.Fatal(got)
		}
		must(t, k.Close())
	})
}

// TestFsyncRunsAtMostOnceASecond: fifty scopes with a hundred events a second each.
func TestFsyncRunsAtMostOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := map[string][]time.Time{}
		var mu sync.Mutex
		d := newDisk()
		s := openOn(t, &hooked{d, func(c call) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			if c.op == "Sync" || c.op == "SyncDir" {
				calls[c.op+c.name] = append(calls[c.op+c.name], time.Now())
			}
			return 0, nil
		}}, Options{})
		var writers []*Writer
		for i := range 50 {
			writers = append(writers, replace(t, s, fmt.Sprint(i), sized(100)))
		}
		start := time.Now()
		for range 1000 {
			time.Sleep(10 * time.Millisecond)
			for _, w := range writers {
				must(t, w.Put("ns/a", make([]byte, 100), nil))
			}
		}
		time.Sleep(2 * time.Second)
		d.mu.Lock()
		for _, n := range d.names {
			if n.durable != len(n.data) {
				t.Error("an event is not durable after two seconds")
			}
		}
		d.mu.Unlock()
		if took := time.Since(start); took != 12*time.Second {
			t.Errorf("50 000 events took %v", took)
		}
		mu.Lock()
		rounds := map[time.Time]bool{}
		for name, times := range calls {
			for i, at := range times {
				rounds[at] = true
				if i > 0 && at.Sub(times[i-1]) < time.Second {
					t.Errorf("%s: fsync %v after the one before", name, at.Sub(times[i-1]))
				}
			}
		}
		if len(rounds) > 12 {
			t.Errorf("there were %d rounds in 12 s", len(rounds))
		}
		// Nothing happens without events.
		clear(calls)
		mu.Unlock()
		time.Sleep(30 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if len(calls) > 0 {
			t.Errorf("there were fsync calls without events: %v", calls)
		}
	})
}

// TestHangingDiskBlocksNoOtherScope: the disk hangs during a write, a Commit, or an fsync.
func TestHangingDiskBlocksNoOtherScope(t *testing.T) {
	for _, op := range []string{"Write", "Rename", "Sync", "Remove"} {
		t.Run(op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hang := make(chan struct{})
				var mu sync.Mutex
				var name string // of the file that hangs
				hung := false
				s := openOn(t, &hooked{newDisk(), func(c call) (int, error) {
					mu.Lock()
					hangs := name != "" && c.op == op && (name == c.name || op == "Rename")
					hung = hung || hangs
					mu.Unlock()
					if hangs {
						<-hang
					}
					return 0, nil
				}}, Options{})
				w := replace(t, s, "hangs", sized(1))
				other := replace(t, s, "other", sized(1))
				mu.Lock()
				name = s.scopes["hangs"].log.name
				if op == "Write" || op == "Sync" {
					name = s.scopes["hangs"].log.file.(*hookedFile).name // as it was created
				}
				mu.Unlock()
				before := contentOf(t, s, "hangs")
				var blocked sync.WaitGroup
				switch op {
				case "Write":
					blocked.Go(func() { must(t, w.Put("ns/a", nil, nil)) })
				case "Rename":
					blocked.Go(func() { replace(t, s, "hangs", sized(2)) })
				case "Remove":
					blocked.Go(func() { must(t, s.Remove("hangs")) })
				}
				time.Sleep(5 * time.Second)
				if op != "Remove" {
					expect(t, s, "hangs", before)
				}
				must(t, other.Put("ns/b", nil, nil))
				if op != "Rename" {
					replace(t, s, "third", sized(1))
				}
				if len(s.Scopes()) < 2 || contentOf(t, s, "other").Items["ns/b"] != "" {
					t.Error("the other scopes are gone")
				}
				mu.Lock()
				if !hung {
					t.Error("nothing has hung")
				}
				mu.Unlock()
				close(hang)
				blocked.Wait()
			})
		})
	}
}

// TestViewsKeepTheirState: a view does not change with later writes, and reads nothing after Close.
func TestViewsKeepTheirState(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, Options{SyncEvery: time.Millisecond})
	must(t, err)
	old := sized(5000)
	w := replace(t, s, "k", old)
	v, err := s.View("k")
	must(t, err)
	check := func(after string) {
		t.Helper()
		got, err := readView(v)
		must(t, err)
		if diff := cmp.Diff(old, got); diff != "" {
			t.Fatalf("after %s: %s", after, diff)
		}
	}
	must(t, w.Put("ns/a", []byte("new"), []byte("rv 2")))
	must(t, w.Put("ns/0", []byte("new"), []byte("rv 3")))
	must(t, w.Delete("ns/a", []byte("rv 4")))
	check("events")
	for i := range 40 {
		must(t, w.Put("ns/b", make([]byte, 5000), []byte{byte(i)}))
	}
	check("a rewrite")
	replace(t, s, "k", sized(1))
	build.Eventually(t, "the logs before are removed", func() bool {
		names, err := s.dir.List()
		return err == nil && len(names) == 2
	})
	check("a new list")
	must(t, s.Remove("k"))
	check("the removal")
	must(t, s.Close())
	check("the end of the store")
	if value, err := v.Get("ns/a"); err != nil || len(value) != 5000 {
		t.Errorf("Get: %d bytes, %v", len(value), err)
	}
	if _, err := v.Get("ns/b"); !errors.Is(err, ErrNotFound) {
		t.Errorf("Get of an item that is not there: %v", err)
	}
	must(t, v.Close())
	must(t, v.Close())
	if _, err := v.Get("ns/a"); err == nil {
		t.Error("a view is read after Close")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("%d files are left", len(entries))
	}
}

// TestOnlyTheNewestWriterOfAScopeCanWrite: Replace, Resume and Remove end the writer before them.
func TestOnlyTheNewestWriterOfAScopeCanWrite(t *testing.T) {
	s := openOn(t, newDisk(), Options{SyncEvery: time.Hour})
	first := replace(t, s, "k", sized(1))
	second := replace(t, s, "k", sized(2))
	if err := first.Put("ns/b", nil, nil); !errors.Is(err, ErrSuperseded) {
		t.Errorf("the writer of an older list: %v", err)
	}
	expect(t, s, "k", sized(2))
	third, head, err := s.Resume("k")
	if err != nil || string(head) != "rv 1" {
		t.Fatalf("Resume: %q, %v", head, err)
	}
	if err := second.SetHead(nil); !errors.Is(err, ErrSuperseded) {
		t.Errorf("the writer before Resume: %v", err)
	}
	must(t, third.SetHead([]byte("rv 2")))
	must(t, s.Remove("k"))
	must(t, s.Remove("k"))
	if err := third.SetHead(nil); !errors.Is(err, ErrSuperseded) {
		t.Errorf("the writer of a removed scope: %v", err)
	}
	if _, _, err := s.Resume("k"); !errors.Is(err, ErrNotFound) {
		t.Errorf("Resume of a removed scope: %v", err)
	}
	if len(s.scopes) != 0 || s.bytes != 0 {
		t.Error("something is left of the scope")
	}
	fourth := replace(t, s, "k", sized(1))
	if err := third.SetHead(nil); !errors.Is(err, ErrSuperseded) {
		t.Errorf("the writer of the scope that was removed: %v", err)
	}
	must(t, fourth.SetHead(nil))
}

// TestSnapshotReplacesTheStateAtCommit: until Commit the old state is read and written. Abort changes nothing.
func TestSnapshotReplacesTheStateAtCommit(t *testing.T) {
	d := newDisk()
	s := openOn(t, d, Options{SyncEvery: time.Hour})
	w := replace(t, s, "k", sized(1))
	n, err := s.Snapshot("k")
	must(t, err)
	for _, id := range []string{"b", "a", "b", "c"} {
		must(t, n.Add(id, []byte(id)))
	}
	must(t, n.Add("a", []byte("last")))
	must(t, w.SetHead([]byte("rv 2"))) // nothing waits for the snapshot
	expect(t, s, "k", &content{"rv 2", sized(1).Items})
	want := &content{"rv 3", map[string]string{"a": "last", "b": "b", "c": "c"}}
	_, err = n.Commit([]byte("rv 3"))
	must(t, err)
	n.Abort()
	expect(t, s, "k", want)
	expect(t, openOn(t, d.killed(), Options{}), "k", want)
	if err := n.Add("x", nil); err == nil {
		t.Error("Add after Commit")
	}
	if _, err := n.Commit(nil); err == nil {
		t.Error("Commit after Commit")
	}

	n, err = s.Snapshot("k")
	must(t, err)
	must(t, n.Add("x", nil))
	n.Abort()
	if err := n.Add("y", nil); err == nil {
		t.Error("Add after Abort")
	}
	expect(t, s, "k", want)
	if err := stale(t, s, "k"); err != nil {
		t.Errorf("Abort made the scope stale: %v", err)
	}
	if len(d.names) != 2 {
		t.Errorf("there are %d files", len(d.names))
	}
}

func TestClosedStoreReturnsErrClosed(t *testing.T) {
	s := openOn(t, newDisk(), Options{})
	w := replace(t, s, "k", sized(1))
	n, err := s.Snapshot("k")
	must(t, err)
	must(t, s.Close())
	must(t, s.Close())
	_, viewErr := s.View("k")
	_, commitErr := n.Commit(nil)
	_, _, resumeErr := s.Resume("k")
	_, snapshotErr := s.Snapshot("k")
	for name, err := range map[string]error{
		"Put": w.Put("a", nil, nil), "View": viewErr, "Commit": commitErr, "Resume": resumeErr,
		"Snapshot": snapshotErr, "Remove": s.Remove("k"),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDamageFoundOnReadDropsTheScope: a scope is removed if a view cannot read one of its values, or if a rewrite
// cannot copy one.
func TestDamageFoundOnReadDropsTheScope(t *testing.T) {
	for name, find := range map[string]func(*testing.T, *Store, *Writer){
		"a view": func(t *testing.T, s *Store, _ *Writer) {
			v, err := s.View("k")
			must(t, err)
			defer v.Close()
			if _, err := v.Get("ns/a"); !errors.Is(err, ErrDamaged) {
				t.Errorf("Get: %v", err)
			}
		},
		"a rewrite": func(_ *testing.T, _ *Store, w *Writer) {
			for range 8 {
				_ = w.Put("ns/b", make([]byte, 50_000), nil)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk()
			s := openOn(t, d, Options{SyncEvery: time.Hour})
			w := replace(t, s, "k", sized(100_000))
			d.names[s.scopes["k"].log.name].data[50_000] ^= 1
			find(t, s, w)
			expect(t, s, "k", nil)
			if err := w.SetHead(nil); !errors.Is(err, ErrSuperseded) || !errors.Is(err, ErrDamaged) {
				t.Errorf("the writer gets %v", err)
			}
			must(t, s.Close())
			if len(d.names) != 0 {
				t.Errorf("%d files are left", len(d.names))
			}
		})
	}
}

// TestFailedFsyncStartsANewLog: after a failed fsync the kernel forgets what it could not write. The log is not
// written any more, and the previous log is kept.
func TestFailedFsyncStartsANewLog(t *testing.T) {
	d := newDisk()
	fail := ""
	s := openOn(t, &hooked{d, func(c call) (int, error) {
		if c.op == fail {
			return 0, syscall.EIO
		}
		return 0, nil
	}}, Options{SyncEvery: time.Hour})
	replace(t, s, "k", sized(1))
	must(t, s.sync())
	for _, op := range []string{"Sync", "SyncDir"} {
		fail = op
		w := replace(t, s, "k", sized(2))
		if err := s.sync(); !errors.Is(err, syscall.EIO) {
			t.Fatalf("sync: %v", err)
		}
		if len(d.names) < 2 {
			t.Error("the log before was removed")
		}
		if err := stale(t, s, "k"); (err != nil) != (fail == "Sync") {
			t.Errorf("%s: Stale is %v", fail, err)
		}
		if err := w.SetHead([]byte("rv 1")); (err != nil) != (fail == "Sync") {
			t.Errorf("%s: a write: %v", fail, err)
		}
		name := s.scopes["k"].log.name
		w, _, err := s.Resume("k")
		must(t, err)
		must(t, w.SetHead([]byte("rv 1")))
		if (s.scopes["k"].log.name != name) != (fail == "Sync") {
			t.Errorf("%s: the next event went to %s, after %s", fail, s.scopes["k"].log.name, name)
		}
	}
	fail = ""
	must(t, s.sync())
	must(t, s.sync())
	if len(d.names) != 1 {
		t.Error("the logs before are kept")
	}
	expect(t, openOn(t, d.unplugged(seeded(3)), Options{}), "k", sized(2))
}

func TestFailedFileRemovalIsRetried(t *testing.T) {
	d := newDisk()
	full := true
	s := openOn(t, &hooked{d, func(c call) (int, error) {
		if c.op == "Remove" && full {
			return 0, fs.ErrPermission
		}
		return 0, nil
	}}, Options{SyncEvery: time.Hour})
	replace(t, s, "k", sized(1))
	if err := s.Remove("k"); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("Remove: %v", err)
	}
	expect(t, s, "k", nil)
	full = false
	must(t, s.sync())
	if len(d.names) != 0 {
		t.Error("the file is still there")
	}
}

func TestScopeTimesSurviveARestart(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	d := newDisk()
	o := Options{SyncEvery: time.Hour, Now: func() time.Time { return now }}
	s := openOn(t, d, o)
	w := replace(t, s, "k", sized(1))
	now = now.Add(time.Minute)
	written := now
	must(t, w.SetHead(nil))
	now = now.Add(time.Hour)
	v, err := s.View("k")
	must(t, err)
	defer v.Close()
	used := now
	check := func(s *Store) {
		t.Helper()
		got := s.Scopes()[0]
		if !got.Written.Equal(written) || !got.Used.Equal(used) || got.Items != 1 || got.Bytes == 0 {
			t.Errorf("got %+v", got)
		}
	}
	check(s)
	now = now.Add(time.Hour)
	must(t, s.Close())
	check(openOn(t, d, o))
	if !v.Written().Equal(written) {
		t.Errorf("the view was written at %v", v.Written())
	}
}

// TestConcurrentViewsSeeOneStateEach: all items of a view have the number of its head. The race detector checks
// the rest.
func TestConcurrentViewsSeeOneStateEach(t *testing.T) {
	s, err := Open(t.TempDir(), Options{SyncEvery: time.Millisecond, MaxBytes: 2 << 20, Key: bytes.Repeat([]byte{1}, 32)})
	must(t, err)
	var writers, readers sync.WaitGroup
	stop := make(chan struct{})
	value := func(i int) []byte { return bytes.Repeat(fmt.Appendf(nil, "%04d", i), 500) }
	for k := range 4 {
		key := fmt.Sprint("scope ", k%3) // two writers of one scope
		writers.Go(func() {
			for i := range 300 {
				if i%50 == 49 {
					_ = s.Remove(key)
				}
				w, err := s.Replace(key, fmt.Appendf(nil, "%04d", i), func(yield func(string, []byte) bool) {
					_ = yield("a", value(i)) && yield("b", value(i))
				})
				if err != nil {
					t.Error(err)
					return
				}
				for range 10 {
					// The same value again makes dead bytes.
					if err := w.Put("a", value(i), fmt.Appendf(nil, "%04d", i)); err != nil {
						if !errors.Is(err, ErrSuperseded) {
							t.Error(err)
						}
						break
					}
				}
			}
		})
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				v, err := s.View(key)
				if err != nil {
					continue
				}
				c, err := readView(v)
				if err != nil {
					t.Error(err)
				} else if c.Items["a"] != strings.Repeat(c.Head, 500) || c.Items["b"] != c.Items["a"] {
					t.Errorf("a mixture: %q", c.Head)
				}
				_ = v.Close()
				_ = s.Scopes()
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
	must(t, s.Close())
}

// TestWrittenBytesAndFsyncsAreCounted: one scope needs one fsync, however many events there are in a second.
func TestWrittenBytesAndFsyncsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s, err := Open(dir, Options{})
		must(t, err)
		defer s.Close()
		w := replace(t, s, "pods", sized(100))
		const quiet = 2500 * time.Millisecond // no round of fsync is at the same time
		time.Sleep(quiet)
		_, before := s.Written()
		for i := range 100 {
			must(t, w.Put(fmt.Sprint("ns/", i), []byte("value"), []byte("head")))
		}
		time.Sleep(quiet)
		bytes, syncs := s.Written()
		if n := syncs - before; n != 1 {
			t.Errorf("fsync was called %d times for 100 events in one second, want 1", n)
		}
		if size := s.Scopes()[0].Bytes; bytes != size {
			t.Errorf("%d bytes are counted, and the log has %d", bytes, size)
		}
	})
}
