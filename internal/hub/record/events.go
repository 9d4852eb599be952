package record

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

const (
	// RestoredAfter is how long the cached state may be newer than the events that arrive: see Events.Add.
	RestoredAfter = 5 * time.Minute
	// dropAgain is the time between two attempts to drop the initial events of a watch that has ended.
	dropAgain = 500 * time.Millisecond
)

// Events records the events of one watch. A nil Events records nothing. It must be used by one goroutine at a time.
type Events struct {
	r      *Recorder
	key    string
	format wire.Format
	// relist is called when the cache has missed events.
	relist func()
	// isInitial is true until the initial events are complete. isBehind is true if events could not be queued.
	isInitial, isBehind bool
	isIncomplete        bool            // one of the initial events was not queued
	snapshot            *cache.Snapshot // the initial events; only jobs use it
	// newer is the cached version when an event with an older version came, and newerSince is when that first
	// happened with this version. Only jobs use them.
	newer      string
	newerSince time.Time
}

// errGap means that the cached state of a collection has missed events.
var errGap = errors.New("the cached state has missed events")

// Events begins to record a watch. initial is true if the watch begins with all objects. version is the resource
// version that the client has; "" if it has none. relist is called when the cache has missed events.
func (r *Recorder) Events(key string, format wire.Format, initial bool, version string, relist func()) *Events {
	e := &Events{r: r, key: key, format: format, relist: relist, isInitial: initial}
	e.isBehind = !r.queues.add(r, key, spaceWithin, func(j *Job) {
		err := r.Panics.Do("preparing to cache the events of a watch", func() (err error) {
			switch {
			case initial:
				e.snapshot, err = r.Cache.Snapshot(key)
			case version != "":
				if err = j.resume(); err == nil && !wire.IsUpTo(version, j.head.ResourceVersion) {
					err = errGap
				}
			}
			return err
		})
		if err != nil {
			relist()
		}
	})
	e.isIncomplete = initial && e.isBehind
	return e
}

// Add records an event after the client has received it, except that a nil object says that the client does not
// receive the object. before and after are the versions that the client has before and after the event; "" until
// it has all initial events.
//
// If the cached state stays newer than the events for RestoredAfter, the API server's data was restored from a
// backup, and the collection is listed again.
func (e *Events) Add(kind watch.EventType, object []byte, m wire.Meta, before, after string) {
	if e == nil || !e.isInitial && before == "" {
		return
	}
	object = bytes.Clone(object) // the memory of the frame is reused
	wait := spaceWithin
	if e.isBehind {
		wait = 0
	}
	initial, incomplete := e.isInitial, e.isIncomplete
	if kind == watch.Bookmark && after != "" {
		e.isInitial = false
	}
	limit, size := e.r.Waiting(e.key), int64(len(object))
	if !limit.Take(size) {
		e.lose(initial)
		return
	}
	e.isBehind = !e.r.queues.add(e.r, e.key, wait, func(j *Job) {
		defer limit.Give(size)
		err := e.r.Panics.Do("caching an event", func() error {
			switch {
			case initial && incomplete:
				return errGap
			case initial:
				return e.storeInitial(j, kind, object, &m)
			default:
				return e.store(j, kind, object, &m, before)
			}
		})
		if err != nil {
			j.reset()
			e.dropSnapshot()
			e.r.note(e.key, err)
			e.r.Log.V(2).Info("The cache has missed events of a collection", "path", PathOf(e.key), "error", err.Error())
			e.relist()
		}
	})
	if e.isBehind {
		limit.Give(size)
		e.lose(initial)
	}
}

// lose records that an event is not cached. The next event of the watch detects the gap. After the last of the
// initial events, the next event may take long to arrive, so lose calls relist.
func (e *Events) lose(initial bool) {
	e.isBehind = true
	e.isIncomplete = e.isIncomplete || initial
	if initial && !e.isInitial {
		e.relist()
	}
}

// Close ends the recording. The cached state remains.
func (e *Events) Close() {
	if e == nil || !e.isInitial && !e.isIncomplete {
		return
	}
	e.r.Go(func() {
		for !e.r.queues.add(e.r, e.key, spaceWithin, func(*Job) { e.dropSnapshot() }) {
			time.Sleep(dropAgain) // the snapshot has a file, so it must be dropped once there is space in the queue
		}
	})
}

// dropSnapshot discards the initial events. Only jobs call it.
func (e *Events) dropSnapshot() {
	if e.snapshot != nil {
		e.snapshot.Abort()
		e.snapshot = nil
	}
}

// storeInitial adds an initial event to the snapshot, and commits the snapshot at the last one.
func (e *Events) storeInitial(j *Job, kind watch.EventType, object []byte, m *wire.Meta) error {
	if e.snapshot == nil {
		return nil // it could not be created, or has failed: relist was called
	}
	typed := e.format != wire.Protobuf && (isCustom(m.APIVersion) || m.Kind == "PartialObjectMetadata")
	switch kind {
	case watch.Added, watch.Modified:
		if object == nil {
			return nil
		}
		item, err := e.format.ItemOf(object, typed)
		if err != nil {
			return err
		}
		return e.snapshot.Add(ID(m), item)
	case watch.Bookmark:
		list := &wire.Header{Format: e.format, APIVersion: m.APIVersion, Kind: m.Kind + "List", ItemsHaveType: typed, ResourceVersion: m.ResourceVersion}
		h := headOfList(list, e.format.ContentType())
		snapshot := e.snapshot
		e.snapshot = nil
		j.reset()
		return j.commit(snapshot, h)
	default:
		return fmt.Errorf("an event %s among the initial events", kind)
	}
}

// builtinGroups are the API groups of built-in kinds, without the suffix .k8s.io. Other groups with this suffix
// have custom resources.
var builtinGroups = []string{
	"admissionregistration", "apiextensions", "apiregistration", "authentication", "authorization", "certificates", "coordination", "discovery", "events",
	"flowcontrol.apiserver", "internal.apiserver", "networking", "node", "rbac.authorization", "resource", "scheduling", "storage", "storagemigration",
}

// isCustom reports whether an API server encodes lists of a kind like lists of custom resources, whose items
// have an apiVersion and a kind.
func isCustom(apiVersion string) bool {
	group, _, _ := strings.Cut(apiVersion, "/")
	name, isBelow := strings.CutSuffix(group, ".k8s.io")
	return strings.Contains(group, ".") && (!isBelow || !slices.Contains(builtinGroups, name))
}

// store applies an event to the cached state, if that is the state before the event.
func (e *Events) store(j *Job, kind watch.EventType, object []byte, m *wire.Meta, before string) error {
	if err := j.resume(); err != nil {
		return err
	}
	switch format, err := wire.FormatOf(j.head.ContentType); {
	case err != nil:
		return err
	case !j.head.IsList() || format != e.format || !wire.IsUpTo(before, j.head.ResourceVersion):
		return errGap
	case wire.IsUpTo(m.ResourceVersion, j.head.ResourceVersion):
		return e.noteOlder(m.ResourceVersion, j.head.ResourceVersion)
	}
	j.head.ResourceVersion = m.ResourceVersion
	switch {
	case object == nil || kind == watch.Bookmark:
		return j.writer.Advance(j.head.encode()) // without a write to the disk
	case kind == watch.Deleted:
		return j.writer.Delete(ID(m), j.head.encode())
	default:
		item, err := e.format.ItemOf(object, j.head.ItemsHaveType)
		if err != nil {
			return err
		}
		return j.writer.Put(ID(m), item, j.head.encode())
	}
}

// noteOlder handles an event that is not newer than the cached state, because another watch or a list has already
// stored it.
func (e *Events) noteOlder(event, kept string) error {
	switch {
	case event == kept:
		e.newer = ""
	case e.newer != kept:
		e.newer, e.newerSince = kept, time.Now()
	case time.Since(e.newerSince) > RestoredAfter:
		e.newer = ""
		return errGap
	}
	return nil
}
