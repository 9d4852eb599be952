package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
)

// disk stores the entries for the next start. When a call returns, its changes are durable.
type disk interface {
	// write adds entries, and then removes others.
	write(added []Entry, removed []uint64) error
	// writeAll rewrites all entries.
	writeAll(entries []Entry) error
	close() error
}

const (
	// key is the key of the only scope of the store.
	key = "journal"
	// forever is the value of cache.Options.MaxIdle that never removes the scope.
	forever = 1 << 62
	// perByte is the size limit of the store in relation to the limit for all entries: one scope may have half
	// of the store, and a body is a third longer in JSON.
	perByte = 8
)

// storeDisk stores entries as the items of a scope of package cache. The scope stays consistent when files are
// truncated or damaged.
type storeDisk struct {
	store  *cache.Store
	writer *cache.Writer // nil if the scope does not exist yet
}

// openDisk opens the store in a directory. It returns its entries, and the numbers of entries that are to be
// removed.
func openDisk(path string, o Options) (d *storeDisk, entries []Entry, remove []uint64, err error) {
	store, err := cache.Open(path, cache.Options{
		MaxBytes: perByte * o.Limits.withDefaults().Bytes, MaxIdle: forever, SyncEvery: o.SyncEvery, Key: o.Key, Panics: o.Panics, Log: o.Log, Wrap: o.Wrap,
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
			o.Log.Info("Skipping a journaled write that cannot be read; it is not sent", "id", view.ID(i))
			continue
		}
		if !e.isStored() { // an earlier version of the hub stored it
			remove = append(remove, e.Seq)
			continue
		}
		// A process that was killed after writing an entry, and before removing the entries that it replaces,
		// leaves both.
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

// id is the id of an entry in the store, which sorts by id.
func id(seq uint64) string { return fmt.Sprintf("%016x", seq) }

// write implements disk. A kill between adding and removing leaves too many entries, and never too few.
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
