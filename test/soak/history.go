package main

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/watch"
)

// event is one event of a watch.
type event struct {
	kind watch.EventType
	// object is the namespace and name.
	object  string
	version uint64
}

func (e event) String() string { return fmt.Sprintf("%s %s at %d", e.kind, e.object, e.version) }

// state is a collection: the version of each object.
type state map[string]uint64

func (s state) apply(e event) {
	if e.kind == watch.Deleted {
		delete(s, e.object)
	} else {
		s[e.object] = e.version
	}
}

// history is what happened to a collection, as the API server tells it.
type history struct {
	// base is the state at a version, and events are all since then.
	base   state
	from   uint64
	events []event
}

// at returns the state at a version, which is not before the base.
func (h *history) at(version uint64) state {
	s := maps.Clone(h.base)
	for _, e := range h.between(h.from, version) {
		s.apply(e)
	}
	return s
}

// between returns the events after a version, up to another.
func (h *history) between(after, to uint64) []event {
	i := slices.IndexFunc(h.events, func(e event) bool { return e.version > after })
	if i < 0 {
		return nil
	}
	rest := h.events[i:]
	if end := slices.IndexFunc(rest, func(e event) bool { return e.version > to }); end >= 0 {
		return rest[:end]
	}
	return rest
}

// forget makes the state at a version the base.
func (h *history) forget(to uint64) {
	h.base = h.at(to)
	h.from, h.events = to, slices.Clone(h.between(to, ^uint64(0)))
}

// maxFaults bounds the lines about one comparison.
const maxFaults = 5

// faults collects what is wrong.
type faults struct{ lines []string }

func (f *faults) add(format string, args ...any) {
	if len(f.lines) < maxFaults {
		f.lines = append(f.lines, fmt.Sprintf(format, args...))
	} else if len(f.lines) == maxFaults {
		f.lines = append(f.lines, "… and more")
	}
}

// compareEvents returns what is wrong with the events that a client got, if these are all there were.
func compareEvents(want, got []event) []string {
	if slices.Equal(want, got) {
		return nil
	}
	var f faults
	left := map[event]int{}
	for _, e := range want {
		left[e]++
	}
	known := maps.Clone(left)
	for _, e := range got {
		switch left[e]--; {
		case known[e] == 0:
			f.add("an event that never was: %s", e)
		case left[e] < 0:
			f.add("an event came again: %s", e)
		}
	}
	for _, e := range want {
		if left[e] > 0 {
			f.add("an event was lost: %s", e)
		}
	}
	if len(f.lines) == 0 {
		f.add("events came in another order: %v, want %v", got, want)
	}
	return f.lines
}

// compareStates returns what is wrong with a list, if this is the state.
func compareStates(want, got state) []string {
	var f faults
	for _, object := range slices.Sorted(maps.Keys(want)) {
		switch version, is := got[object]; {
		case !is:
			f.add("%s is missing", object)
		case version != want[object]:
			f.add("%s is of version %d, want %d", object, version, want[object])
		}
	}
	for _, object := range slices.Sorted(maps.Keys(got)) {
		if _, is := want[object]; !is {
			f.add("%s is there, and should not be", object)
		}
	}
	return f.lines
}

// segment is what a client got from one list on.
type segment struct {
	// listed is the list; nil if the segment continues one of which the beginning was checked.
	listed state
	from   uint64
	events []event
}

// last returns the version up to which a segment that has ended is known.
func (s *segment) last() uint64 {
	if len(s.events) == 0 {
		return s.from
	}
	return s.events[len(s.events)-1].version
}

// checkSegments compares what a client got with the history, up to a version that the client has
// reached. It returns the rest.
func checkSegments(h *history, segments []segment, to uint64) (rest []segment, wrong []string) {
	for i, s := range segments {
		if s.from > to {
			return segments[i:], wrong
		}
		if s.listed != nil {
			for _, line := range compareStates(h.at(s.from), s.listed) {
				wrong = append(wrong, fmt.Sprintf("in the list of version %d, %s", s.from, line))
			}
		}
		isOpen := i == len(segments)-1
		end := to
		if !isOpen { // it ended, and a list followed
			end = min(to, s.last())
		}
		n := slices.IndexFunc(s.events, func(e event) bool { return e.version > end })
		if n < 0 {
			n = len(s.events)
		}
		wrong = append(wrong, compareEvents(h.between(s.from, end), s.events[:n])...)
		if isOpen || n < len(s.events) {
			return append([]segment{{from: end, events: slices.Clone(s.events[n:])}}, segments[i+1:]...), wrong
		}
	}
	return nil, wrong
}
