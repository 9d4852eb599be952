// Package journal keeps writes that could not be sent to the cloud, in their order, until they are.
// What it has said to be kept survives a kill of the process and a loss of power. It knows which
// write stands in place of an earlier one, and must not know HTTP, the encodings of objects or the
// connection to the cloud.
package journal

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Kind is what an entry writes. It decides which entries stand in place of which.
type Kind string

const (
	// Lease is the node's Lease, whole. Of each only the last is kept.
	Lease Kind = "Lease"
	// Status is a change of the status of a Node or of a Pod.
	Status Kind = "Status"
	// Event is an event, whole. Of each only the last version is kept.
	Event Kind = "Event"
)

// kinds are all of them. The file of a later version may have others.
var kinds = []Kind{Lease, Status, Event}

// Extent is how much of its object an entry of the kind Status says.
type Extent string

const (
	// Part is a patch that says nothing of what it does not have: entries before it stay.
	Part Extent = "Part"
	// Difference is a patch that a client computed by comparing the whole object that it wants with the
	// one that it has read. What clients read does not change while the cloud is away, so the last
	// difference alone makes the last object: a field that went back to what was read is in an earlier
	// difference, and not in the last one. It stands in place of the differences before it.
	Difference Extent = "Difference"
	// Whole is the whole status. It stands in place of everything before it.
	Whole Extent = "Whole"
)

// Entry is a write.
type Entry struct {
	// Seq is the place in the order. Keep sets it.
	Seq  uint64 `json:"seq"`
	Kind Kind   `json:"kind"`
	// Object names what is written: its path, without a subresource.
	Object string `json:"object"`
	Extent Extent `json:"extent,omitempty"`

	// Method, Target (path and query), ContentType, UserAgent and Body are those of the request. The body of
	// a Lease and of an Event is the whole object in JSON, whatever the request had.
	Method      string `json:"method"`
	Target      string `json:"target"`
	ContentType string `json:"contentType"`
	UserAgent   string `json:"userAgent,omitempty"`
	Body        []byte `json:"body"`

	// At is when the client wrote it, by the node's clock.
	At time.Time `json:"at"`
}

// size is about how much memory an entry takes, in bytes.
func (e *Entry) size() int64 {
	return int64(len(e.Object)+len(e.Target)+len(e.ContentType)+len(e.UserAgent)+len(e.Body)) + entryOverhead
}

// entryOverhead is what an entry takes beside its texts, in memory and on disk.
const entryOverhead = 256

// Limits bound what is kept. A zero field means the default.
type Limits struct {
	// Bytes bounds the sum of all entries, and Entries their number. The defaults are 8 MiB and 4096.
	Bytes   int64
	Entries int
	// Events bounds the events. Above it, and if there is no place for another entry, the oldest are
	// dropped. The default is 1000.
	Events int
	// Parts bounds the entries with the extent Part of one object. The default is 16.
	Parts int
}

func (l Limits) withDefaults() Limits {
	return Limits{
		Bytes: cmp.Or(l.Bytes, 8<<20), Entries: cmp.Or(l.Entries, 4096), Events: cmp.Or(l.Events, 1000), Parts: cmp.Or(l.Parts, 16),
	}
}

// ErrFull is the error of an entry for which there is no place.
var ErrFull = errors.New("too many writes are kept already, until the cloud is back")

// state is what is kept, without a disk. Its entries are in their order, which is that of Seq.
type state struct {
	limits  Limits
	entries []Entry
	bytes   int64
	events  int // the number of entries of the kind Event
	last    uint64
}

// add adds an entry and gives it its Seq. It returns the entries that it stands in place of, and the
// events that were dropped to make place. After an error nothing has changed.
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

// replaces reports whether nothing of an older entry is needed any more.
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

// isOver reports whether there is more than may be, apart from the number of events.
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

// remove removes an entry. It returns false if there is none, because another stands in its place.
func (s *state) remove(seq uint64) bool {
	i, found := slices.BinarySearchFunc(s.entries, seq, func(e Entry, seq uint64) int { return cmp.Compare(e.Seq, seq) })
	if found {
		s.delete(i)
	}
	return found
}

// of returns the entries of an object.
func (s *state) of(object string) (found []Entry) {
	for _, e := range s.entries {
		if e.Object == object {
			found = append(found, e)
		}
	}
	return found
}
