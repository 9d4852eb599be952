package cache

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"slices"
	"time"
)

// log is an open log file. Store.mu guards its fields, except for those that never change. Only the holder of
// scope.io writes to the file.
type log struct {
	name  string
	file  File
	codec codec

	// size is the end of the last frame. Unless the log is sealed, nothing was ever written behind it.
	size int64
	// sealed: there may be bytes behind size, and appending is not allowed.
	sealed bool
	// rewriteAt is the size at which the log is rewritten. It grows when rewriting fails.
	rewriteAt int64
	// before are the names of older generations, oldest first. They are removed once this log
	// is durable.
	before []string
	// refs counts the scope, the views and the calls that use the file.
	refs int
}

// state is the state of a scope according to its log.
type state struct {
	head []byte
	// items are sorted by id. If a view shares them, they are copied before a change.
	items  []item
	shared bool
	// live is the size that a rewritten log would have, without the heads.
	live    int64
	written time.Time
	// isAhead is true if head and written are newer than those in the log.
	isAhead bool
	// age of the last record, see Store.age.
	age time.Duration
	// used is the wall time of the last record.
	used time.Time
}

// item is the location of the value of an item. A store has many: an item has 40 bytes.
type item struct {
	id     string
	offset int64
	size   uint32 // of the frame
	length uint32 // of the value
	sum    uint64 // of the value, with the seed
}

// seed is the seed of all sums. Sums are not stored on disk.
var seed = maphash.MakeSeed()

func newItem(r record, offset, size int64) item {
	return item{string(r.id), offset, uint32(size), uint32(len(r.value)), maphash.Bytes(seed, r.value)}
}

// is reports whether a value is the value of the item. Clients cannot construct two values with the same sum,
// because the seed is secret and random for each process.
func (i *item) is(value []byte) bool {
	return int(i.length) == len(value) && i.sum == maphash.Bytes(seed, value)
}

func (s *state) find(id string) (int, bool) {
	return slices.BinarySearchFunc(s.items, id, func(i item, id string) int { return cmp.Compare(i.id, id) })
}

// own copies the items if a view shares them, so that they can be changed.
func (s *state) own() {
	if s.shared {
		s.items, s.shared = slices.Clone(s.items), false
	}
}

func (s *state) put(i item) {
	s.own()
	at, found := s.find(i.id)
	if found {
		s.live -= int64(s.items[at].size)
		i.id = s.items[at].id
		s.items[at] = i
	} else {
		s.items = slices.Insert(s.items, at, i)
	}
	s.live += int64(i.size)
}

func (s *state) remove(id string) {
	at, found := s.find(id)
	if !found {
		return
	}
	s.own()
	s.live -= int64(s.items[at].size)
	s.items = slices.Delete(s.items, at, at+1)
}

// read reads the value of an item. It uses buf if the frame fits. The value is the last part of frame; pass
// frame as buf to the next call.
func (l *log) read(i item, buf []byte) (value, frame []byte, err error) {
	frame = slices.Grow(buf[:0], int(i.size))[:i.size]
	if n, err := l.file.ReadAt(frame, i.offset); err != nil && n < len(frame) {
		if errors.Is(err, io.EOF) { // the file was truncated
			err = ErrDamaged
		}
		return nil, frame, err
	}
	r, err := l.codec.decode(frame, i.offset)
	if err == nil && (string(r.id) != i.id || r.kind != kindItem && r.kind != kindPut && r.kind != kindPutPart) {
		err = ErrDamaged
	}
	return r.value, frame, err
}

// loader reads logs, with one buffer for all logs.
type loader struct {
	secrets secrets
	buf     []byte

	file       File
	size       int64 // of the file
	offset     int64 // of buf[start] in the file
	start, end int   // the part of buf that is read and not yet used
}

// readAhead is how many bytes a loader reads at a time.
const readAhead = 256 << 10

// next returns the next n bytes of the file without consuming them.
func (d *loader) next(n int) ([]byte, error) {
	if int64(n) > d.size-d.offset {
		return nil, ErrDamaged
	}
	if d.end-d.start < n {
		d.end = copy(d.buf, d.buf[d.start:d.end])
		d.start = 0
		if len(d.buf) < n {
			d.buf = append(make([]byte, 0, n), d.buf[:d.end]...)[:n]
		}
		want := int(min(int64(len(d.buf)), d.size-d.offset))
		m, err := d.file.ReadAt(d.buf[d.end:want], d.offset+int64(d.end))
		d.end += m
		if d.end < n {
			return nil, cmp.Or(err, io.ErrUnexpectedEOF)
		}
	}
	return d.buf[d.start : d.start+n], nil
}

func (d *loader) skip(n int) {
	d.start += n
	d.offset += int64(n)
}

// load reads the longest valid prefix of a log. An error means that the prefix has no complete snapshot. A log
// with bytes behind the prefix is sealed.
func (d *loader) load(name string, f File) (_ *log, _ *state, key string, err error) {
	if len(d.buf) < readAhead || len(d.buf) > 8*readAhead {
		d.buf = make([]byte, readAhead)
	}
	d.file, d.offset, d.start, d.end = f, 0, 0, 0
	if d.size, err = f.Size(); err != nil {
		return nil, nil, "", err
	}
	raw, err := d.next(preambleSize)
	if err != nil {
		return nil, nil, "", err
	}
	l := &log{name: name, file: f}
	if l.codec, err = d.secrets.codec([preambleSize]byte(raw)); err != nil {
		return nil, nil, "", err
	}
	d.skip(preambleSize)
	r, size, err := d.frame(&l.codec)
	if err != nil {
		return nil, nil, "", err
	}
	if r.kind != kindKey {
		return nil, nil, "", ErrDamaged
	}
	d.skip(int(size))
	key = string(r.value)
	s, err := d.snapshot(l, int64(preambleSize)+size)
	if err != nil {
		return nil, nil, "", err
	}
	l.size = d.events(l, s)
	l.sealed = l.size != d.size
	return l, s, key, nil
}

// frame reads a frame and returns its size, without consuming it. The record is valid until
// the next call.
func (d *loader) frame(c *codec) (record, int64, error) {
	raw, err := d.next(lengthSize)
	if err != nil {
		return record{}, 0, err
	}
	size := lengthSize + int64(binary.LittleEndian.Uint32(raw))
	if size > maxFrame {
		return record{}, 0, ErrDamaged
	}
	if raw, err = d.next(int(size)); err != nil {
		return record{}, 0, err
	}
	r, err := c.decode(raw, d.offset)
	return r, size, err
}

// snapshot reads to the end of the snapshot. live is the size of the bytes before it.
func (d *loader) snapshot(l *log, live int64) (*state, error) {
	var items []item
	for {
		offset := d.offset
		r, size, err := d.frame(&l.codec)
		if err != nil {
			return nil, err
		}
		d.skip(int(size))
		switch r.kind {
		case kindItem:
			items = append(items, newItem(r, offset, size))
		case kindEnd:
			s := newState(items, live+size)
			s.head = slices.Clone(r.head)
			s.written, s.used, s.age = r.wall, r.wall, r.age
			return s, nil
		default:
			return nil, ErrDamaged
		}
	}
}

// newState returns the state with the items of a snapshot, in any order. Of items with the same id the last one
// counts.
func newState(items []item, live int64) *state {
	slices.SortStableFunc(items, func(a, b item) int { return cmp.Compare(a.id, b.id) })
	last := items[:0]
	for i, it := range items {
		if i+1 < len(items) && items[i+1].id == it.id {
			continue
		}
		last = append(last, it)
		live += int64(it.size)
	}
	return &state{items: last, live: live}
}

// part is a change of one item.
type part struct {
	item    item
	deleted bool
}

// events applies the events after the snapshot, up to the first invalid frame, and returns the end of the last
// event.
func (d *loader) events(l *log, s *state) (end int64) {
	// Events are applied to a map: inserting into the sorted items would take time in proportion to their
	// number.
	var items map[string]item
	var parts []part // of the next event
	fixed := s.live
	for _, it := range s.items {
		fixed -= int64(it.size)
	}
	for end = d.offset; ; {
		r, size, err := d.frame(&l.codec)
		if err != nil || r.kind < kindPut || r.kind > kindDeletePart || r.kind == kindUsed && len(parts) > 0 {
			break
		}
		switch r.kind {
		case kindPut, kindPutPart:
			parts = append(parts, part{newItem(r, d.offset, size), false})
		case kindDelete, kindDeletePart:
			parts = append(parts, part{item{id: string(r.id)}, true})
		}
		d.skip(int(size))
		if r.kind == kindPutPart || r.kind == kindDeletePart {
			continue
		}
		if items == nil && len(parts) > 0 {
			items = make(map[string]item, len(s.items))
			for _, it := range s.items {
				items[it.id] = it
			}
		}
		for _, p := range parts {
			if p.deleted {
				delete(items, p.item.id)
			} else {
				items[p.item.id] = p.item
			}
		}
		parts, end = parts[:0], d.offset
		s.age, s.used = r.age, r.wall
		if r.kind != kindUsed {
			s.head, s.written = append(s.head[:0], r.head...), r.wall
		}
	}
	if items == nil {
		return end
	}
	list := make([]item, 0, len(items))
	for _, it := range items {
		list = append(list, it)
	}
	changed := newState(list, fixed)
	s.items, s.live = changed.items, changed.live
	return end
}

// draft is a log that is being written.
type draft struct {
	name  string
	file  File
	codec codec
	buf   []byte // bytes that are not written yet
	done  int64  // how many bytes are written
	fixed int64  // the size of everything except items
	items []item
}

// newDraft creates a temporary file with the preamble and the key.
func (s *Store) newDraft(key string, t times) (*draft, error) {
	c, err := s.secrets.newCodec()
	if err != nil {
		return nil, err
	}
	d := &draft{name: temporaryName(s.number()), codec: c}
	if d.file, err = s.dir.Create(d.name); err != nil {
		return nil, err
	}
	d.buf = append(d.buf, c.preamble[:]...)
	if err := d.add(record{kind: kindKey, wall: t.wall, age: t.age, value: []byte(key)}); err != nil {
		s.discard(d)
		return nil, err
	}
	d.fixed = d.size()
	return d, nil
}

// size returns the size that the file will have.
func (d *draft) size() int64 { return d.done + int64(len(d.buf)) }

func (d *draft) add(r record) error {
	offset := d.size()
	d.buf = d.codec.append(d.buf, offset, r)
	if r.kind == kindItem {
		d.items = append(d.items, newItem(r, offset, d.size()-offset))
	}
	if len(d.buf) < readAhead {
		return nil
	}
	return d.flush()
}

func (d *draft) flush() error {
	if len(d.buf) == 0 {
		return nil
	}
	if err := writeAt(d.file, d.buf, d.done); err != nil {
		return err
	}
	d.done += int64(len(d.buf))
	d.buf = d.buf[:0]
	if cap(d.buf) > 4*readAhead {
		d.buf = nil
	}
	return nil
}

func writeAt(f File, b []byte, offset int64) error {
	n, err := f.WriteAt(b, offset)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	return err
}

// end writes the end of the snapshot, and returns the state and the log.
func (d *draft) end(head []byte, t times) (*log, *state, error) {
	start := d.size()
	if err := d.add(record{kind: kindEnd, wall: t.wall, age: t.age, head: head}); err != nil {
		return nil, nil, err
	}
	if err := d.flush(); err != nil {
		return nil, nil, err
	}
	s := newState(d.items, d.fixed+d.size()-start)
	s.head, s.written, s.used, s.age = slices.Clone(head), t.wall, t.wall, t.age
	return &log{name: d.name, file: d.file, codec: d.codec, size: d.size()}, s, nil
}

// discard closes and removes a draft that failed.
func (s *Store) discard(d *draft) {
	_ = d.file.Close()
	if err := s.dir.Remove(d.name); err != nil {
		s.log.V(2).Info("The next start removes a temporary file", "file", d.name, "reason", err.Error())
	}
}

// checkSizes returns an error for a record that is too large to be stored.
func checkSizes(c *codec, r record) error {
	if len(r.id) > maxText || len(r.head) > maxText {
		return fmt.Errorf("%w: an id or a head of more than %d bytes", ErrTooLarge, maxText)
	}
	if c.size(r) > maxFrame {
		return fmt.Errorf("%w: an item of %d bytes", ErrTooLarge, len(r.value))
	}
	return nil
}
