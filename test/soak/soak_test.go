package main

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

func TestParse(t *testing.T) {
	for name, test := range map[string]struct {
		args    []string
		wantErr string
	}{
		"nothing":    {},
		"all":        {args: []string{"-for", "10m", "-seed", "7", "-nodes", "3"}},
		"no time":    {args: []string{"-for", "0s"}, wantErr: "-for is 0s"},
		"no nodes":   {args: []string{"-nodes", "0"}, wantErr: "-nodes 0"},
		"a stranger": {args: []string{"x"}, wantErr: `"x" is not a flag`},
	} {
		o, err := parse(test.args)
		if (err != nil) != (test.wantErr != "") || err != nil && !strings.Contains(err.Error(), test.wantErr) {
			t.Errorf("%s: error %v, want %q", name, err, test.wantErr)
		}
		if err == nil && (o.seed == 0 || o.length == 0) {
			t.Errorf("%s: the options are %+v", name, o)
		}
	}
}

// TestASeedChoosesTheFaults: the same seed chooses the same places, and all of them are chosen at times.
func TestASeedChoosesTheFaults(t *testing.T) {
	all := []string{"a", "b", "c"}
	draw := func() (drawn [][]string) {
		random := rand.New(rand.NewPCG(7, 1))
		for range 50 {
			drawn = append(drawn, chosen(random, all))
		}
		return drawn
	}
	first := draw()
	if !slices.EqualFunc(first, draw(), slices.Equal[[]string]) {
		t.Error("one seed has chosen other places the second time")
	}
	sizes := map[int]bool{}
	for _, some := range first {
		sizes[len(some)] = true
		if some = slices.Sorted(slices.Values(some)); len(slices.Compact(some)) != len(some) {
			t.Errorf("a place was chosen twice: %v", some)
		}
	}
	if len(sizes) != len(all) {
		t.Errorf("so many places were chosen at a time: %v", sizes)
	}
	random := rand.New(rand.NewPCG(7, 1))
	for range 100 {
		if d := between(random, time.Second, 2*time.Second); d < time.Second || d >= 2*time.Second {
			t.Errorf("between 1 s and 2 s is %s", d)
		}
	}
}

// TestCollection: what followers got is compared with the truth up to a version, and the rest later.
func TestCollection(t *testing.T) {
	all := buildHistory().events
	base := state{"a": 1, "b": 2}
	c := &collection{name: "pods", truth: &follower{segments: []segment{{listed: base, from: 10, events: all[:3]}}}}
	f := &follower{name: "a client", segments: []segment{{listed: base, from: 10, events: all}}} // it is ahead
	c.others = []*follower{f}
	c.answers = []answer{
		{from: "a hub", got: state{"a": 13, "b": 2, "c": 11}, version: 13, floor: 13},
		{from: "an empty hub", got: state{}, version: 13, floor: 13},
		{from: "an old hub", got: base, version: 10, floor: 13},
	}
	wrong, err := c.check(14)
	want := []string{"an empty hub, without the cloud: a is missing", "an empty hub, without the cloud: b is missing", "an empty hub, without the cloud: c is missing", "an old hub, without the cloud: the answer is of version 10, and clients had 13 before"}
	if err != nil || !slices.Equal(wrong, want) {
		t.Errorf("wrong is %q, want %q: %v", wrong, want, err)
	}
	c.truth.segments[0].events = all[3:]
	if wrong, err := c.check(20); err != nil || wrong != nil {
		t.Errorf("wrong is %q: %v", wrong, err)
	}
	f.segments[0].events = []event{added("x", 25)}
	if wrong, err := c.check(30); err != nil || len(wrong) != 1 || !strings.HasPrefix(wrong[0], "a client: an event that never was") {
		t.Errorf("wrong is %q: %v", wrong, err)
	}
	c.truth.segments = append(c.truth.segments, segment{})
	if _, err := c.check(31); err == nil || !strings.Contains(err.Error(), "gap") {
		t.Errorf("a second list of the truth gives the error %v", err)
	}
}

func TestAFollowerKeepsWhatItSees(t *testing.T) {
	f := &follower{format: wire.JSON, version: 10, segments: []segment{{from: 10}}}
	f.see("ADDED", "ns/a", 11)
	f.see("BOOKMARK", "", 15)
	f.see("DELETED", "ns/a", 16)
	version, _ := f.at()
	if want := []event{added("ns/a", 11), deleted("ns/a", 16)}; version != 16 || !slices.Equal(f.segments[0].events, want) {
		t.Errorf("at %d it has %v, want %v", version, f.segments[0].events, want)
	}
}
