// Package journal stores writes that could not be sent to the cloud, in their order, until they are sent. An
// entry that was added survives a kill of the process and a power failure, but for a Lease. The package knows
// which write replaces an earlier one. It must not know HTTP, the encodings of objects or the connection to the cloud.
package journal

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Kind is what an entry writes. It decides which earlier entries a new entry replaces.
type Kind string

const (
	// Lease is a whole Lease of the node. Only the last one of each is in the journal, and in memory only: a Lease
	// expires within a minute.
	Lease Kind = "Lease"
	// Status is a change of the status of a Node or of a Pod.
	Status Kind = "Status"
	// Event is a whole event. Only the last version of each is in the journal.
	Event Kind = "Event"
)

// kinds are all kinds. The files of a later version may have others.
var kinds = []Kind{Lease, Status, Event}

// Extent is how much of the status an entry of kind Status sets.
type Extent string

const (
	// Part is a patch that leaves other fields unchanged: it replaces no earlier entries.
	Part Extent = "Part"
	// Difference is a patch that a client computed as the difference between the object that it read and the
	// object that it wants. While offline, the client always reads the same object, so the last Difference
	// alone leads to the wanted object: it replaces the earlier ones. For example, an earlier Difference can
	// set a field that has its old value again, and that the last Difference does not contain.
	Difference Extent = "Difference"
	// Whole is the whole status. It replaces all earlier entries.
	Whole Extent = "Whole"
)

// Entry is a journaled write.
type Entry struct {
	// Seq is the position of the entry in the order. Keep sets it.
	Seq  uint64 `json:"seq"`
	Kind Kind   `json:"kind"`
	// Object is the path of the object, without a subresource.
	Object string `json:"object"`
	Extent Extent `json:"extent,omitempty"`

	// Method, Target (path and query), ContentType, UserAgent and Body are from the request. The body of a
	// Lease or an event is always the whole object in JSON, whatever the encoding of the request.
	Method      string `json:"method"`
	Target      string `json:"target"`
	ContentType string `json:"contentType"`
	UserAgent   string `json:"userAgent,omitempty"`
	Body        []byte `json:"body"`

	// At is when the client sent the write, by the node's clock.
	At time.Time `json:"at"`
}

// size is the approximate memory of an entry, in bytes.
func (e *Entry) size() int64 {
	return int64(len(e.Object)+len(e.Target)+len(e.ContentType)+len(e.UserAgent)+len(e.Body)) + entryOverhead
}

// entryOverhead is the size of an entry without its strings, in memory and on disk.
const entryOverhead = 256

// Limits are the limits of a journal. A zero field means the default.
type Limits struct {
	// Bytes limits the size of all entries, and Entries their number. The defaults are 8 MiB and 4096.
	Bytes   int64
	Entries int
	// Events limits the number of events. Above it, and when another entry needs the space, the oldest events
	// are dropped. The default is 1000.
	Events int
	// Parts limits the number of entries with extent Part of one object. The default is 16.
	Parts int
}

func (l Limits) withDefaults() Limits {
	return Limits{
		Bytes: cmp.Or(l.Bytes, 8<<20), Entries: cmp.Or(l.Entries, 4096), Events: cmp.Or(l.Events, 1000), Parts: cmp.Or(l.Parts, 16),
	}
}

// ErrFull is returned by Keep when there is no space for an entry.
var ErrFull = errors.New("the journal of writes is full until the cloud is reachable again")

// state is the content of a journal, in memory. The entries are sorted by Seq.
type state struct {
	limits  Limits
	entries []Entry
	bytes   int64
	events  int // the number of entries of the kind Event
	last    uint64
}

// add adds an entry and sets its Seq. It returns the entries that the new one replaces, and the events that
// were dropped to make space. After an error nothing has changed.
func (s *state) add(e *Entry) (replaced, dropped []Entry, err error) {
	after := state{limits: s.limits, entries: make([]Entry, 0, len(s.entries)+1), last: s.last + 1}
	e.Seq = after.last
	parts := 0
	for _, old := range s.entries {
		if e.replaces(&old) {
			replaced = append(replaced, old)
			continue
		}
		if old.Object == e.Object && old.Extent == Part {
			parts++
		}
		after.append(&old)
	}
	if e.Extent == Part && parts >= s.limits.Parts {
		return nil, nil, fmt.Errorf("%s: %w", e.Object, ErrFull)
	}
	after.append(e)
	for i := 0; i < len(after.entries)-1 && (after.isOver() || after.events > s.limits.Events); {
		if after.entries[i].Kind != Event {
			i++
			continue
		}
		dropped = append(dropped, after.entries[i])
		after.delete(i)
	}
	if after.isOver() {
		return nil, nil, fmt.Errorf("%s: %w", e.Object, ErrFull)
	}
	*s = after
	return replaced, dropped, nil
}

// replaces reports whether an older entry is no longer needed because of e.
func (e *Entry) replaces(old *Entry) bool {
	switch {
	case old.Object != e.Object || old.Kind != e.Kind:
		return false
	case e.Kind == Status && e.Extent == Difference:
		return old.Extent == Difference
	case e.Kind == Status:
		return e.Extent == Whole
	default:
		return true
	}
}

// isOver reports whether the size or the number of entries exceeds its limit. It does not check the number of
// events.
func (s *state) isOver() bool { return s.bytes > s.limits.Bytes || len(s.entries) > s.limits.Entries }

func (s *state) append(e *Entry) {
	s.entries = append(s.entries, *e)
	s.bytes += e.size()
	s.last = max(s.last, e.Seq)
	if e.Kind == Event {
		s.events++
	}
}

func (s *state) delete(i int) {
	s.bytes -= s.entries[i].size()
	if s.entries[i].Kind == Event {
		s.events--
	}
	s.entries = slices.Delete(s.entries, i, i+1)
}

// remove removes an entry and returns it. found is false if the entry is not there, because another has replaced it.
func (s *state) remove(seq uint64) (removed Entry, found bool) {
	i, found := slices.BinarySearchFunc(s.entries, seq, func(e Entry, seq uint64) int { return cmp.Compare(e.Seq, seq) })
	if found {
		removed = s.entries[i]
		s.delete(i)
	}
	return removed, found
}

// isStored reports whether the disk has the entry.
func (e *Entry) isStored() bool { return e.Kind != Lease }

// of returns the entries of an object.
func (s *state) of(object string) (found []Entry) {
	for _, e := range s.entries {
		if e.Object == object {
			found = append(found, e)
		}
	}
	return found
}
