package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
)

// disk has the entries after a restart. What a call has written is durable when it returns.
type disk interface {
	// write adds entries, and then removes some.
	write(added []Entry, removed []uint64) error
	// writeAll writes all entries anew.
	writeAll(entries []Entry) error
	close() error
}

const (
	// key is that of the only scope of the store.
	key = "journal"
	// forever is after how long the store removes a scope that nobody uses.
	forever = 1 << 62
	// perByte is how many times the size of all entries the store may have: half of it is for one scope,
	// and a body takes a third more in JSON.
	perByte = 8
)

// storeDisk keeps entries as the items of a scope of a store of package cache, which stays whole
// whatever is cut off or damaged.
type storeDisk struct {
	store  *cache.Store
	writer *cache.Writer // nil if the scope is not there yet
}

// openDisk opens the store in a directory, and returns its entries, and those that are to be removed.
func openDisk(path string, o Options) (d *storeDisk, entries []Entry, remove []uint64, err error) {
	store, err := cache.Open(path, cache.Options{
		MaxBytes: perByte * o.Limits.withDefaults().Bytes, MaxIdle: forever, SyncEvery: o.SyncEvery, Key: o.Key, Panics: o.Panics, Log: o.Log, Fail: o.Fail,
	})
	if err != nil {
		return nil, nil, nil, err
	}
	d = &storeDisk{store: store}
	if entries, remove, err = d.read(o); err != nil {
		return nil, nil, nil, errors.Join(err, store.Close())
	}
	return d, entries, remove, nil
}

func (d *storeDisk) read(o Options) (entries []Entry, remove []uint64, err error) {
	view, err := d.store.View(key)
	if errors.Is(err, cache.ErrNotFound) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	defer view.Close()
	var found state
	for i := range view.Len() {
		raw, err := view.Value(i, nil)
		if err != nil {
			return nil, nil, err
		}
		var e Entry
		if err := json.Unmarshal(raw, &e); err != nil || id(e.Seq) != view.ID(i) || !slices.Contains(kinds, e.Kind) {
			o.Log.Info("A kept write cannot be understood, and is not sent", "id", view.ID(i))
			continue
		}
		// After a kill between the writing of an entry and the removal of those before it, both are there.
		for _, old := range found.of(e.Object) {
			if e.replaces(&old) {
				found.remove(old.Seq)
				remove = append(remove, old.Seq)
			}
		}
		found.append(&e)
	}
	d.writer, _, err = d.store.Resume(key)
	return found.entries, remove, err
}

// id is that of an entry in the store, which sorts by it.
func id(seq uint64) string { return fmt.Sprintf("%016x", seq) }

// write implements disk. A kill between the two leaves more than is needed, and never less.
func (d *storeDisk) write(added []Entry, removed []uint64) error {
	if d.writer == nil {
		return d.writeAll(added)
	}
	for _, e := range added {
		raw, err := json.Marshal(e)
		if err != nil {
			return err
		}
		if err := d.writer.Put(id(e.Seq), raw, nil); err != nil {
			return err
		}
	}
	for _, seq := range removed {
		if err := d.writer.Delete(id(seq), nil); err != nil {
			return err
		}
	}
	return d.writer.Flush(context.Background())
}

// writeAll implements disk.
func (d *storeDisk) writeAll(entries []Entry) error {
	raws := make([][]byte, len(entries))
	for i, e := range entries {
		var err error
		if raws[i], err = json.Marshal(e); err != nil {
			return err
		}
	}
	writer, err := d.store.Replace(key, nil, func(yield func(string, []byte) bool) {
		for i, raw := range raws {
			if !yield(id(entries[i].Seq), raw) {
				return
			}
		}
	})
	if err != nil {
		return err
	}
	d.writer = writer
	return writer.Flush(context.Background())
}

func (d *storeDisk) close() error { return d.store.Close() }
