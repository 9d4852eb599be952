package main

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/watch"
)

func added(object string, version uint64) event    { return event{watch.Added, object, version} }
func modified(object string, version uint64) event { return event{watch.Modified, object, version} }
func deleted(object string, version uint64) event  { return event{watch.Deleted, object, version} }

// buildHistory returns one with the objects a and b at first.
func buildHistory() *history {
	return &history{base: state{"a": 1, "b": 2}, from: 10, events: []event{added("c", 11), modified("a", 13), deleted("b", 14), added("b", 17), modified("c", 20)}}
}

func TestHistory(t *testing.T) {
	h := buildHistory()
	for version, want := range map[uint64]state{
		10: {"a": 1, "b": 2}, 12: {"a": 1, "b": 2, "c": 11}, 14: {"a": 13, "c": 11}, 99: {"a": 13, "b": 17, "c": 20},
	} {
		if wrong := compareStates(want, h.at(version)); wrong != nil {
			t.Errorf("at %d: %v", version, wrong)
		}
	}
	before := h.at(17)
	h.forget(14)
	if h.from != 14 || len(h.events) != 2 || compareStates(before, h.at(17)) != nil {
		t.Errorf("after the first events are forgotten, the history is %+v", h)
	}
	h.forget(30)
	if len(h.events) != 0 || compareStates(state{"a": 13, "b": 17, "c": 20}, h.at(30)) != nil {
		t.Errorf("after all events are forgotten, the history is %+v", h)
	}
}

func TestCompareEvents(t *testing.T) {
	want := []event{added("a", 1), modified("a", 2), deleted("a", 3)}
	for name, test := range map[string]struct {
		got  []event
		want string // a part of the only line
	}{
		"all":               {want, ""},
		"one lost":          {[]event{want[0], want[2]}, "lost: MODIFIED a at 2"},
		"the last one lost": {want[:2], "lost: DELETED a at 3"},
		"one twice":         {[]event{want[0], want[1], want[1], want[2]}, "again: MODIFIED a at 2"},
		"another order":     {[]event{want[1], want[0], want[2]}, "another order"},
		"one made up":       {append([]event{added("x", 1)}, want...), "never was: ADDED x at 1"},
	} {
		lines := compareEvents(want, test.got)
		if test.want == "" && lines == nil {
			continue
		}
		if len(lines) != 1 || test.want == "" || !strings.Contains(lines[0], test.want) {
			t.Errorf("%s: %q, want %q", name, lines, test.want)
		}
	}
	var many []event
	for i := range 100 {
		many = append(many, added("x", uint64(i)))
	}
	if lines := compareEvents(many, nil); len(lines) != maxFaults+1 {
		t.Errorf("100 lost events are %d lines", len(lines))
	}
}

func TestCompareStates(t *testing.T) {
	want := state{"a": 1, "b": 2}
	for name, test := range map[string]struct {
		got  state
		want []string
	}{
		"the same":    {state{"a": 1, "b": 2}, nil},
		"one missing": {state{"a": 1}, []string{"b is missing"}},
		"one older":   {state{"a": 1, "b": 1}, []string{"b is of version 1, want 2"}},
		"one more":    {state{"a": 1, "b": 2, "c": 3}, []string{"c is there, and should not be"}},
		"empty":       {nil, []string{"a is missing", "b is missing"}},
	} {
		if got := compareStates(want, test.got); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestCheckSegments(t *testing.T) {
	h := buildHistory()
	all := h.events
	for name, test := range map[string]struct {
		segments []segment
		to       uint64
		rest     []segment
		wrong    []string // parts of the lines
	}{
		"one watch": {
			segments: []segment{{listed: state{"a": 1, "b": 2}, from: 10, events: all}}, to: 20,
			rest: []segment{{from: 20}},
		},
		"a watch that is ahead": {
			segments: []segment{{from: 10, events: all}}, to: 16,
			rest: []segment{{from: 16, events: all[3:]}},
		},
		"a list among the events": {
			segments: []segment{{from: 10, events: all[:2]}, {listed: state{"a": 13, "c": 11}, from: 15, events: all[3:]}}, to: 20,
			rest: []segment{{from: 20}},
		},
		"a list that is behind what was seen": {
			segments: []segment{{from: 10, events: all[:3]}, {listed: state{"a": 13, "b": 2, "c": 11}, from: 13, events: all[2:]}}, to: 20,
			rest: []segment{{from: 20}},
		},
		"a list that is ahead": {
			segments: []segment{{from: 10, events: all[:2]}, {listed: state{}, from: 30}}, to: 20,
			rest: []segment{{listed: state{}, from: 30}},
		},
		"a lost event in the middle": {
			segments: []segment{{from: 10, events: []event{all[0], all[2], all[3], all[4]}}}, to: 20,
			rest: []segment{{from: 20}}, wrong: []string{"lost: MODIFIED a at 13"},
		},
		"the last event lost": {
			segments: []segment{{from: 10, events: all[:4]}}, to: 20,
			rest: []segment{{from: 20}}, wrong: []string{"lost: MODIFIED c at 20"},
		},
		"an event lost before a list": {
			segments: []segment{{from: 10, events: []event{all[0], all[2]}}, {listed: state{"a": 13, "c": 11}, from: 15, events: all[3:]}}, to: 20,
			rest: []segment{{from: 20}}, wrong: []string{"lost: MODIFIED a at 13"},
		},
		"a wrong list": {
			segments: []segment{{listed: state{}, from: 10, events: all}}, to: 20,
			rest: []segment{{from: 20}}, wrong: []string{"in the list of version 10, a is missing", "in the list of version 10, b is missing"},
		},
	} {
		rest, wrong := checkSegments(h, test.segments, test.to)
		if !slices.EqualFunc(wrong, test.wrong, strings.Contains) {
			t.Errorf("%s: wrong is %q, want %q", name, wrong, test.wrong)
		}
		isSame := func(a, b segment) bool {
			return a.from == b.from && (a.listed == nil) == (b.listed == nil) && slices.Equal(a.events, b.events)
		}
		if !slices.EqualFunc(rest, test.rest, isSame) {
			t.Errorf("%s: the rest is %+v, want %+v", name, rest, test.rest)
		}
	}
}
