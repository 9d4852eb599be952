package cache

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// modes are the options that change the format.
var modes = map[string]Options{"plain": {SyncEvery: time.Hour}, "encrypted": {SyncEvery: time.Hour, Key: bytes.Repeat([]byte{7}, 32)}}

// script is a scope's history: what each call does, and the state after it.
type script []struct {
	do   func(*Store, **Writer) error
	want *content
}

const scope1 = "user a/pods"

func scripted() script {
	list := &content{"rv 1", map[string]string{"ns/a": "A", "ns/b": strings.Repeat("B", 40), "ns/c": ""}}
	put := list.with(func(c *content) { c.Head, c.Items["ns/d"] = "rv 2", "D" })
	update := put.with(func(c *content) { c.Head, c.Items["ns/a"] = "rv 3", "AA" })
	gone := update.with(func(c *content) { c.Head = "rv 4"; delete(c.Items, "ns/b") })
	bookmark := gone.with(func(c *content) { c.Head = "rv 5" })
	another := &content{"rv 9", map[string]string{"ns/a": "AAA", "ns/c": "", "ns/e": "E", "ns/f": "F"}}
	same := another.with(func(c *content) { c.Head = "rv 10" })
	one := same.with(func(c *content) { c.Head = "rv 11"; delete(c.Items, "ns/f") })
	updated := func(to *content) func(*Store, **Writer) error {
		return func(s *Store, w **Writer) (err error) {
			*w, err = s.Update(scope1, []byte(to.Head), to.pairs)
			return err
		}
	}
	return script{
		{func(s *Store, w **Writer) (err error) {
			*w, err = s.Replace(scope1, []byte("rv 1"), list.pairs)
			return err
		}, list},
		{func(_ *Store, w **Writer) error { return (*w).Put("ns/d", []byte("D"), []byte("rv 2")) }, put},
		{func(_ *Store, w **Writer) error { return (*w).Put("ns/a", []byte("AA"), []byte("rv 3")) }, update},
		{func(_ *Store, w **Writer) error { return (*w).Delete("ns/b", []byte("rv 4")) }, gone},
		{func(_ *Store, w **Writer) error { return (*w).SetHead([]byte("rv 5")) }, bookmark},
		{updated(another), another},
		{updated(same), same},
		{updated(one), one},
	}
}

// written runs the script. ends are the sizes of the log after each call.
func written(t *testing.T, o Options) (name string, log []byte, ends []int) {
	d := newDisk()
	s := openOn(t, d, o)
	var w *Writer
	for _, step := range scripted() {
		must(t, step.do(s, &w))
		expect(t, s, scope1, step.want)
		name = s.scopes[scope1].log.name
		ends = append(ends, len(d.names[name].data))
	}
	return name, bytes.Clone(d.names[name].data), ends
}

// damagedAt opens a store on a log that is valid up to the given size, and expects the state of
// then, also after a further write and another start.
func damagedAt(t *testing.T, o Options, name string, log []byte, ends []int, valid int) {
	t.Helper()
	var want *content
	for i, end := range ends {
		if end <= valid {
			want = scripted()[i].want
		}
	}
	d := newDisk()
	d.names[name] = &inode{d: d, data: log}
	s := openOn(t, d, o)
	expect(t, s, scope1, want)
	if want == nil {
		if len(d.names) != 0 {
			t.Fatal("a log without a state is kept")
		}
		return
	}
	w, head, err := s.Resume(scope1)
	must(t, err)
	if string(head) != want.Head {
		t.Fatalf("the head is %q, want %q", head, want.Head)
	}
	must(t, w.Put("ns/z", []byte("Z"), []byte("rv 9")))
	want = want.with(func(c *content) { c.Head, c.Items["ns/z"] = "rv 9", "Z" })
	expect(t, s, scope1, want)
	expect(t, openOn(t, d.killed(), o), scope1, want)
	must(t, s.Close())
	if len(d.names) != 1 {
		t.Fatalf("%d files are left", len(d.names))
	}
}

func TestALogThatIsCutHasTheStateBeforeTheCut(t *testing.T) {
	for name, o := range modes {
		t.Run(name, func(t *testing.T) {
			name, log, ends := written(t, o)
			for size := range len(log) + 1 {
				damagedAt(t, o, name, bytes.Clone(log[:size]), ends, size)
			}
		})
	}
}

func TestALogWithAnyBitFlippedHasTheStateBeforeIt(t *testing.T) {
	for name, o := range modes {
		t.Run(name, func(t *testing.T) {
			name, log, ends := written(t, o)
			step := 1
			if testing.Short() {
				step = 13 // each bit of a byte in turn
			}
			for i := 0; i < len(log)*8; i += step {
				flipped := bytes.Clone(log)
				flipped[i/8] ^= 1 << (i % 8)
				damagedAt(t, o, name, flipped, ends, i/8)
			}
		})
	}
}

// TestMisplacedLogRecordsAreRejected: after a power failure a log can contain blocks of other logs, or blocks
// from other places. The store does not read them as records.
func TestMisplacedLogRecordsAreRejected(t *testing.T) {
	for name, o := range modes {
		t.Run(name, func(t *testing.T) {
			name, log, ends := written(t, o)
			_, other, _ := written(t, o)
			mixed := append(bytes.Clone(log[:ends[2]]), other[ends[2]:]...)
			damagedAt(t, o, name, mixed, ends, ends[2])
			again := append(bytes.Clone(log), log[ends[2]:ends[3]]...)
			damagedAt(t, o, name, again, ends, ends[len(ends)-1])
		})
	}
}

// TestDamagedSnapshotLeavesThePreviousState: this is so until the snapshot is durable.
func TestDamagedSnapshotLeavesThePreviousState(t *testing.T) {
	o := modes["plain"]
	d := newDisk()
	s := openOn(t, d, o)
	before := &content{"rv 1", map[string]string{"a": "1"}}
	after := &content{"rv 2", map[string]string{"a": "2", "b": "2"}}
	replace(t, s, "k", before)
	must(t, s.sync())
	replace(t, s, "k", after)
	name := s.scopes["k"].log.name
	for size := range len(d.names[name].data) {
		c := d.killed()
		c.names[name].data = c.names[name].data[:size]
		expect(t, openOn(t, c, o), "k", before)
	}
	// A process that is killed at once does not remove the older log before the newer one is
	// durable.
	for seed := range uint64(100) {
		c := d.killed()
		_ = openOn(t, c, o)
		again := openOn(t, c.unplugged(seeded(seed)), o)
		if got := contentOf(t, again, "k"); !gocmp.Equal(got, before) && !gocmp.Equal(got, after) {
			t.Fatalf("got %v", got)
		}
	}
	must(t, s.sync())
	if len(d.names) != 1 {
		t.Error("the log before is still there after the new one is durable")
	}
}

// TestStoreSurvivesEachFailingFileSystemCall: runs the script, with a rewrite at its end, and lets one call of
// the file system fail: this call only, this call and all later ones, or this call after half of a write.
func TestStoreSurvivesEachFailingFileSystemCall(t *testing.T) {
	for name, errno := range map[string]syscall.Errno{"disk full": syscall.ENOSPC, "I/O error": syscall.EIO, "read-only": syscall.EROFS} {
		for _, lasting := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, lasting %t", name, lasting), func(t *testing.T) {
				for n := 1; failAt(t, n, lasting, errno); n++ {
				}
			})
		}
	}
}

// failAt lets the n-th call fail, and returns false if there are not so many.
func failAt(t *testing.T, n int, lasting bool, errno syscall.Errno) bool {
	t.Helper()
	d := newDisk()
	calls := 0
	failed := func() bool { return calls >= n }
	s := openOn(t, &hooked{d, func(c call) (int, error) {
		if c.op == "List" || c.op == "Open" || c.op == "Read" || c.op == "Size" {
			return 0, nil
		}
		if calls++; calls == n || lasting && calls > n {
			return c.size / 2, errno
		}
		return 0, nil
	}}, Options{SyncEvery: time.Hour})

	steps := scripted()
	last := steps[len(steps)-1].want
	big := strings.Repeat("X", minDead)
	for i := range 3 {
		want := last.with(func(c *content) { c.Head, c.Items["ns/big"] = fmt.Sprintf("rv %d", 10+i), big })
		steps = append(steps, script{{func(_ *Store, w **Writer) error {
			return (*w).Put("ns/big", []byte(big), []byte(want.Head))
		}, want}}...)
	}
	var w *Writer
	var state *content
	for _, step := range steps {
		err := step.do(s, &w)
		if err != nil && !errors.Is(err, errno) {
			t.Fatalf("call %d: the error is %v", n, err)
		}
		if err == nil {
			state = step.want
			expect(t, s, scope1, state)
			_ = s.sync()
			if v, _ := s.View(scope1); v.Stale() == nil {
				continue
			}
		}
		// The last good state is kept and says that it is old, and nothing is added to it.
		expect(t, s, scope1, state)
		if w != nil {
			if err := w.SetHead([]byte("no")); !errors.Is(err, ErrSuperseded) || !errors.Is(err, errno) {
				t.Fatalf("call %d: a write after a failure returns %v", n, err)
			}
		}
		expect(t, s, scope1, state)
		if state != nil {
			if v, _ := s.View(scope1); !errors.Is(v.Stale(), errno) {
				t.Fatalf("call %d: the state is not marked: %v", n, v.Stale())
			}
		}
		after := contentOf(t, openOn(t, d.killed(), Options{}), scope1)
		if !gocmp.Equal(after, state) && !gocmp.Equal(after, step.want) {
			t.Fatalf("call %d: after a restart: %v", n, after)
		}
		// The events that follow the state make the scope whole again, and so does a new list.
		if !lasting && state != nil {
			w, head, err := s.Resume(scope1)
			must(t, err)
			if string(head) != state.Head {
				t.Fatalf("call %d: the head is %q, want %q", n, head, state.Head)
			}
			must(t, w.SetHead([]byte("rv 98")))
			if v, _ := s.View(scope1); v.Stale() != nil {
				t.Fatalf("call %d: still marked: %v", n, v.Stale())
			}
			expect(t, openOn(t, d.killed(), Options{}), scope1, state.with(func(c *content) { c.Head = "rv 98" }))
		}
		if !lasting {
			fresh := &content{"rv 99", map[string]string{"ns/n": "N"}}
			w = replace(t, s, scope1, fresh)
			must(t, w.SetHead([]byte("rv 100")))
			if v, _ := s.View(scope1); v.Stale() != nil {
				t.Fatalf("call %d: still marked: %v", n, v.Stale())
			}
			expect(t, openOn(t, d.killed(), Options{}), scope1, fresh.with(func(c *content) { c.Head = "rv 100" }))
		}
		return true
	}
	_ = s.Close()
	expect(t, openOn(t, d.killed(), Options{}), scope1, state)
	return failed()
}

// TestStoreMatchesAModelUnderCrashes: random calls on a few scopes, with restarts after Close, after a kill at
// any byte, and after a power failure. After a kill each scope has its last state, or that of the interrupted
// call. After a power failure it has a state since the last fsync.
func TestStoreMatchesAModelUnderCrashes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		o := Options{SyncEvery: time.Hour}
		if rapid.Bool().Draw(rt, "encrypted") {
			o.Key = bytes.Repeat([]byte{7}, 32)
		}
		m := &model{rt: rt, t: t, o: o, histories: map[string][]*content{}, writers: map[string]*Writer{}}
		m.start(newDisk())
		rt.Repeat(map[string]func(*rapid.T){
			"replace": m.replace, "put": m.put, "delete": m.delete, "head": m.head, "remove": m.remove,
			"resume": m.resume, "update": m.update, "sync": m.sync, "close": m.close, "kill": m.kill, "unplug": m.unplug, "": m.check,
		})
		_ = m.store.Close()
	})
}

type model struct {
	t     *testing.T
	rt    *rapid.T
	o     Options
	disk  *disk
	store *Store
	// left is how many bytes and calls may be written until the process is killed.
	left int
	dead bool
	// histories are the states of each scope that it may have after a power failure; the last
	// one is the present one.
	histories map[string][]*content
	writers   map[string]*Writer
}

var (
	keys      = []string{"a", "b", "scope with a longer key"}
	errKilled = errors.New("the process was killed")
)

func (m *model) start(d *disk) {
	m.disk, m.dead, m.left = d, false, 1<<62
	m.writers = map[string]*Writer{}
	m.store = openOn(m.t, &hooked{d, func(c call) (int, error) {
		if m.dead {
			return 0, errKilled
		}
		switch c.op {
		case "Write", "Create", "Rename", "Remove", "Sync", "SyncDir":
			if m.left -= 1 + c.size; m.left < 0 {
				m.dead = true
				return max(0, m.left+c.size), errKilled
			}
		}
		return 0, nil
	}}, m.o)
}

func (m *model) now(key string) *content {
	if h := m.histories[key]; len(h) > 0 {
		return h[len(h)-1]
	}
	return nil
}

// did notes the state after a call. If the process was killed, the state may be there or not.
func (m *model) did(key string, c *content, err error) {
	if err != nil && !m.dead {
		m.rt.Fatalf("%v", err)
	}
	if len(m.histories[key]) == 0 {
		m.histories[key] = []*content{nil}
	}
	if !m.dead {
		m.histories[key] = append(m.histories[key], c)
		return
	}
	h := append(slices.Clone(m.histories[key]), c)
	m.restart(m.disk.killed(), func(key2 string, got *content) bool {
		return key2 == key && gocmp.Equal(got, h[len(h)-1]) || key2 == key && gocmp.Equal(got, h[len(h)-2]) ||
			key2 != key && gocmp.Equal(got, m.now(key2))
	})
}

// restart starts a store on a disk, and expects possible states.
func (m *model) restart(d *disk, possible func(key string, got *content) bool) {
	m.dead = true
	_ = m.store.Close()
	m.start(d)
	for _, key := range keys {
		got := contentOf(m.t, m.store, key)
		if !possible(key, got) {
			m.rt.Fatalf("scope %q has after the start %v, which it had not", key, got)
		}
		m.histories[key] = append(m.histories[key], got)
	}
}

// armed lets the process be killed within one of four calls.
func (m *model) armed(t *rapid.T) {
	m.left = 1 << 62
	if rapid.IntRange(0, 3).Draw(t, "kill") == 0 {
		m.left = rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(0, 60_000)).Draw(t, "after")
	}
}

func drawKey(t *rapid.T) string { return rapid.SampledFrom(keys).Draw(t, "key") }
func drawID(t *rapid.T) string  { return fmt.Sprint("ns/", rapid.IntRange(0, 5).Draw(t, "id")) }
func drawHead(t *rapid.T) string {
	return fmt.Sprint("rv ", rapid.IntRange(0, 1000).Draw(t, "rv"))
}
func drawValue(t *rapid.T) string {
	n := rapid.OneOf(rapid.IntRange(0, 50), rapid.IntRange(0, 50), rapid.IntRange(0, 40_000)).Draw(t, "size")
	return strings.Repeat(string(rune('a'+rapid.IntRange(0, 25).Draw(t, "text"))), n)
}

func (m *model) replace(t *rapid.T) {
	key := drawKey(t)
	c := &content{drawHead(t), map[string]string{}}
	for range rapid.IntRange(0, 4).Draw(t, "items") {
		c.Items[drawID(t)] = drawValue(t)
	}
	m.armed(t)
	w, err := m.store.Replace(key, []byte(c.Head), c.pairs)
	m.writers[key] = w
	m.did(key, c, err)
}

// update makes a state another one by Update, which may have little or much in common with it.
func (m *model) update(t *rapid.T) {
	key := drawKey(t)
	c := &content{drawHead(t), map[string]string{}}
	if now := m.now(key); now != nil && rapid.IntRange(0, 4).Draw(t, "other") > 0 {
		c = now.with(func(c *content) { c.Head = drawHead(t) })
	}
	for range rapid.IntRange(0, 4).Draw(t, "changes") {
		if id := drawID(t); rapid.Bool().Draw(t, "put") {
			c.Items[id] = drawValue(t)
		} else {
			delete(c.Items, id)
		}
	}
	m.armed(t)
	w, err := m.store.Update(key, []byte(c.Head), c.pairs)
	m.writers[key] = w
	m.did(key, c, err)
}

// event runs a call of a writer, if there is one.
func (m *model) event(t *rapid.T, change func(*content), call func(*Writer) error) {
	key := drawKey(t)
	now, w := m.now(key), m.writers[key]
	if now == nil || w == nil {
		t.Skip("no writer")
	}
	m.armed(t)
	err := call(w)
	m.did(key, now.with(change), err)
}

func (m *model) put(t *rapid.T) {
	id, value, head := drawID(t), drawValue(t), drawHead(t)
	m.event(t, func(c *content) { c.Head, c.Items[id] = head, value },
		func(w *Writer) error { return w.Put(id, []byte(value), []byte(head)) })
}

func (m *model) delete(t *rapid.T) {
	id, head := drawID(t), drawHead(t)
	m.event(t, func(c *content) { c.Head = head; delete(c.Items, id) },
		func(w *Writer) error { return w.Delete(id, []byte(head)) })
}

func (m *model) head(t *rapid.T) {
	head := drawHead(t)
	m.event(t, func(c *content) { c.Head = head }, func(w *Writer) error { return w.SetHead([]byte(head)) })
}

func (m *model) remove(t *rapid.T) {
	key := drawKey(t)
	m.armed(t)
	delete(m.writers, key)
	err := m.store.Remove(key)
	m.did(key, nil, err)
}

func (m *model) resume(t *rapid.T) {
	key := drawKey(t)
	w, head, err := m.store.Resume(key)
	now := m.now(key)
	if (err == nil) != (now != nil) || err == nil && string(head) != now.Head {
		t.Fatalf("the head is %q, %v", head, err)
	}
	m.writers[key] = w
}

func (m *model) sync(t *rapid.T) {
	m.armed(t)
	err := m.store.sync()
	if m.dead {
		m.restart(m.disk.killed(), m.same)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	m.durable()
}

func (m *model) durable() {
	for key := range m.histories {
		m.histories[key] = []*content{m.now(key)}
	}
}

func (m *model) same(key string, got *content) bool { return gocmp.Equal(got, m.now(key)) }

func (m *model) close(t *rapid.T) {
	m.left = 1 << 62
	if err := m.store.Close(); err != nil {
		t.Fatal(err)
	}
	m.durable()
	m.restart(m.disk.unplugged(seeded(1)), m.same)
	for _, sc := range m.store.Scopes() {
		if !errors.Is(sc.Stale, ErrReopened) {
			t.Fatalf("Stale is %v", sc.Stale)
		}
	}
}

func (m *model) kill(*rapid.T) { m.restart(m.disk.killed(), m.same) }

func (m *model) unplug(t *rapid.T) {
	seed := rapid.Uint64().Draw(t, "seed")
	m.restart(m.disk.unplugged(seeded(seed)), func(key string, got *content) bool {
		h := m.histories[key]
		return len(h) == 0 && got == nil || slices.ContainsFunc(h, func(c *content) bool { return gocmp.Equal(c, got) })
	})
	m.durable() // what was found is durable
}

func (m *model) check(t *rapid.T) {
	m.left = 1 << 62
	var bytes int64
	for _, key := range keys {
		if got := contentOf(m.t, m.store, key); !gocmp.Equal(got, m.now(key)) {
			t.Fatalf("scope %q: %s", key, gocmp.Diff(m.now(key), got))
		}
		if sc := m.store.scopes[key]; sc != nil {
			bytes += sc.log.size
			if want := max(2*sc.state.live, sc.state.live+minDead); sc.log.size > want+50_000 && sc.log.rewriteAt == 0 {
				t.Fatalf("the log has %d bytes, %d are live", sc.log.size, sc.state.live)
			}
			if live := liveOf(sc); live != sc.state.live {
				t.Fatalf("live is %d, want %d", sc.state.live, live)
			}
		}
	}
	if bytes != m.store.bytes {
		t.Fatalf("the sum is %d, want %d", m.store.bytes, bytes)
	}
}

// liveOf returns what a loader counts as live.
func liveOf(sc *scope) int64 {
	d := &loader{secrets: secrets{}}
	if sc.log.codec.aead != nil {
		d.secrets, _ = newSecrets(bytes.Repeat([]byte{7}, 32))
	}
	_, st, _, err := d.load(sc.log.name, sc.log.file)
	if err != nil {
		return -1
	}
	return st.live
}
