package cache

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// disk is a directory in memory, which knows what is durable.
type disk struct {
	mu    sync.Mutex
	names map[string]*inode
	// synced are the names at the last Sync, and changes the changes since then.
	synced  map[string]*inode
	changes []change
}

// change is a change of names: to create node, to rename, or, without to, to remove.
type change struct {
	from, to string
	node     *inode
}

func (c change) apply(names map[string]*inode) {
	n := c.node
	if n == nil {
		n = names[c.from]
		delete(names, c.from)
	}
	if c.to != "" {
		names[c.to] = n
	}
}

type inode struct {
	d       *disk
	data    []byte
	durable int // so much of data is durable
}

func newDisk() *disk { return &disk{names: map[string]*inode{}, synced: map[string]*inode{}} }

func (d *disk) change(c change) {
	c.apply(d.names)
	d.changes = append(d.changes, c)
}

func (d *disk) List() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.names)), nil
}

func (d *disk) Create(name string) (File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[name] != nil {
		return nil, fs.ErrExist
	}
	n := &inode{d: d}
	d.change(change{to: name, node: n})
	return n, nil
}

func (d *disk) Open(name string) (File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := d.names[name]; n != nil {
		return n, nil
	}
	return nil, fs.ErrNotExist
}

func (d *disk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[from] == nil {
		return fs.ErrNotExist
	}
	d.change(change{from: from, to: to})
	return nil
}

func (d *disk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[name] == nil {
		return fs.ErrNotExist
	}
	d.change(change{from: name})
	return nil
}

func (d *disk) Sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.synced, d.changes = maps.Clone(d.names), nil
	return nil
}

func (d *disk) Close() error { return nil }

func (n *inode) ReadAt(p []byte, off int64) (int, error) {
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	if off >= int64(len(n.data)) {
		return 0, io.EOF
	}
	m := copy(p, n.data[off:])
	if m < len(p) {
		return m, io.EOF
	}
	return m, nil
}

func (n *inode) WriteAt(p []byte, off int64) (int, error) {
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	if off != int64(len(n.data)) {
		panic(fmt.Sprintf("a write at %d of a file of %d bytes: a byte is written twice, or never", off, len(n.data)))
	}
	n.data = append(n.data, p...)
	return len(p), nil
}

func (n *inode) Size() (int64, error) {
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	return int64(len(n.data)), nil
}

func (n *inode) Sync() error {
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	n.durable = len(n.data)
	return nil
}

func (n *inode) Close() error { return nil }

// killed returns what another process finds: everything, and no more of it is durable.
func (d *disk) killed() *disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := newDisk()
	nodes := map[*inode]*inode{}
	node := func(n *inode) *inode {
		if n != nil && nodes[n] == nil {
			nodes[n] = &inode{d: c, data: bytes.Clone(n.data), durable: n.durable}
		}
		return nodes[n]
	}
	for name, n := range d.names {
		c.names[name] = node(n)
	}
	for name, n := range d.synced {
		c.synced[name] = node(n)
	}
	for _, ch := range d.changes {
		ch.node = node(ch.node)
		c.changes = append(c.changes, ch)
	}
	return c
}

// unplugged returns what is left after a power failure: all that is durable, and some of the
// rest, in which bytes may be missing.
func (d *disk) unplugged(r *rand.Rand) *disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := maps.Clone(d.synced)
	for _, change := range d.changes[:r.IntN(len(d.changes)+1)] {
		change.apply(names)
	}
	c := newDisk()
	for _, name := range slices.Sorted(maps.Keys(names)) {
		n := names[name]
		data := bytes.Clone(n.data[:n.durable+r.IntN(len(n.data)-n.durable+1)])
		if lost := data[n.durable:]; len(lost) > 0 && r.IntN(2) == 0 {
			from := r.IntN(len(lost))
			clear(lost[from : from+r.IntN(len(lost)-from)+1])
		}
		c.names[name] = &inode{d: c, data: data, durable: len(data)}
	}
	c.synced = maps.Clone(c.names)
	return c
}

// call is a call of a directory or of a file.
type call struct {
	op   string // List, Create, Open, Rename, Remove, SyncDir, Read, Write, Size, Sync
	name string
	size int
}

// hooked is a directory whose calls can fail or wait.
type hooked struct {
	Directory
	// hook runs before each call, which fails with its error. A write that fails writes the
	// first n bytes.
	hook func(call) (n int, err error)
}

func (h *hooked) before(op, name string) error {
	_, err := h.hook(call{op: op, name: name})
	return err
}

func (h *hooked) List() ([]string, error) {
	if err := h.before("List", ""); err != nil {
		return nil, err
	}
	return h.Directory.List()
}

func (h *hooked) Create(name string) (File, error) {
	if err := h.before("Create", name); err != nil {
		return nil, err
	}
	f, err := h.Directory.Create(name)
	return &hookedFile{f, h, name}, err
}

func (h *hooked) Open(name string) (File, error) {
	if err := h.before("Open", name); err != nil {
		return nil, err
	}
	f, err := h.Directory.Open(name)
	return &hookedFile{f, h, name}, err
}

func (h *hooked) Rename(from, to string) error {
	if err := h.before("Rename", from); err != nil {
		return err
	}
	return h.Directory.Rename(from, to)
}

func (h *hooked) Remove(name string) error {
	if err := h.before("Remove", name); err != nil {
		return err
	}
	return h.Directory.Remove(name)
}

func (h *hooked) Sync() error {
	if err := h.before("SyncDir", ""); err != nil {
		return err
	}
	return h.Directory.Sync()
}

type hookedFile struct {
	File
	h    *hooked
	name string
}

func (f *hookedFile) ReadAt(p []byte, off int64) (int, error) {
	if _, err := f.h.hook(call{"Read", f.name, len(p)}); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f *hookedFile) WriteAt(p []byte, off int64) (int, error) {
	n, err := f.h.hook(call{"Write", f.name, len(p)})
	if err != nil {
		if n > 0 {
			_, _ = f.File.WriteAt(p[:n], off)
		}
		return n, err
	}
	return f.File.WriteAt(p, off)
}

func (f *hookedFile) Size() (int64, error) {
	if err := f.h.before("Size", f.name); err != nil {
		return 0, err
	}
	return f.File.Size()
}

func (f *hookedFile) Sync() error {
	if err := f.h.before("Sync", f.name); err != nil {
		return err
	}
	return f.File.Sync()
}

// content is the state of a scope. nil means that there is none.
type content struct {
	Head  string
	Items map[string]string
}

func (c *content) with(change func(*content)) *content {
	next := &content{c.Head, maps.Clone(c.Items)}
	change(next)
	return next
}

func (c *content) pairs(yield func(string, []byte) bool) {
	for id, value := range c.Items {
		if !yield(id, []byte(value)) {
			return
		}
	}
}

// contentOf reads a whole view.
func contentOf(t testing.TB, s *Store, key string) *content {
	t.Helper()
	v, err := s.View(key)
	if err != nil {
		return nil
	}
	defer v.Close()
	c, err := readView(v)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func readView(v *View) (*content, error) {
	c := &content{string(v.Head()), map[string]string{}}
	var buf []byte
	var err error
	for i := range v.Len() {
		if i > 0 && v.ID(i-1) >= v.ID(i) {
			return nil, fmt.Errorf("%q is before %q", v.ID(i-1), v.ID(i))
		}
		if buf, err = v.Value(i, buf); err == nil && len(buf) != v.Size(i) {
			err = fmt.Errorf("item %q has %d bytes, and its size is %d", v.ID(i), len(buf), v.Size(i))
		}
		if err != nil {
			return nil, err
		}
		c.Items[v.ID(i)] = string(buf)
	}
	return c, nil
}

func expect(t testing.TB, s *Store, key string, want *content) {
	t.Helper()
	if diff := cmp.Diff(want, contentOf(t, s, key)); diff != "" {
		t.Fatalf("scope %q (-want +got):\n%s", key, diff)
	}
}

// openOn opens a store on a directory of a test.
func openOn(t testing.TB, d Directory, o Options) *Store {
	t.Helper()
	secrets, err := newSecrets(o.Key)
	if err != nil {
		t.Fatal(err)
	}
	s, err := open(d, secrets, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func replace(t testing.TB, s *Store, key string, c *content) *Writer {
	t.Helper()
	w, err := s.Replace(key, []byte(c.Head), c.pairs)
	must(t, err)
	return w
}
