package leadership

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/atoll-k8s/atoll/internal/governance"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// rig sends beats of nodes at times since noon, when the coordinator on a node has started.
type rig struct {
	*testing.T
	*Leadership

	number uint64
}

func newRig(t *testing.T, own string) *rig { return &rig{t, New(own, noon), 0} }

func (r *rig) beat(node string, hasCloud bool, at time.Duration) bool {
	r.number++
	return r.Beat(node, &governance.Beat{Session: node, Number: r.number, HasCloud: hasCloud}, noon.Add(at))
}

func (r *rig) expect(node string, hasCloud bool, at time.Duration, leads bool) {
	r.Helper()
	if got := r.beat(node, hasCloud, at); got != leads {
		r.Errorf("after %s it is %t that %s leads", at, got, node)
	}
}

const start = governance.LeadFor + governance.LeadMargin

// TestNoHubLeadsRightAfterAWriterStart: a lead that an earlier writer gave can still last.
func TestNoHubLeadsRightAfterAWriterStart(t *testing.T) {
	r := newRig(t, "a")
	r.expect("a", true, 0, false)
	r.expect("a", true, start-1, false)
	r.expect("a", true, start, true)
}

func TestLeaderIsTheCoordinatorsNodeOrTheOldestSession(t *testing.T) {
	for name, tc := range map[string]struct {
		own   string
		first []string // those that beat before somebody may lead, a second after each other
		cut   string   // the one that has no cloud
		want  string
	}{
		"the coordinator's node":                                         {"c", []string{"b", "a", "c"}, "", "c"},
		"the oldest session, if the coordinator's node has no cloud":     {"c", []string{"b", "a", "c"}, "c", "b"},
		"the oldest session, if the coordinator's node has sent no beat": {"d", []string{"b", "a", "c"}, "", "b"},
		"the oldest session with the cloud":                              {"", []string{"b", "a", "c"}, "b", "a"},
		"the oldest session, if the coordinator's node is not known":     {"", []string{"c", "b", "a"}, "", "c"},
		"no hub, if the only one has no cloud":                           {"", []string{"a"}, "a", ""},
		"the only hub, although the coordinator is on another node":      {"b", []string{"a"}, "", "a"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, tc.own)
			for _, round := range []time.Duration{0, 4 * time.Second} {
				for i, node := range tc.first {
					r.expect(node, node != tc.cut, round+time.Duration(i)*time.Second/2, false)
				}
			}
			got := ""
			for i, node := range slices.Backward(tc.first) {
				if r.beat(node, node != tc.cut, start+time.Duration(len(tc.first)-i)) {
					got += node
				}
			}
			if got != tc.want {
				t.Errorf("%q leads, want %q", got, tc.want)
			}
		})
	}
}

// TestLeaderStaysWhileItBeats: although the hub on the coordinator's node comes later.
func TestLeaderStaysWhileItBeats(t *testing.T) {
	r := newRig(t, "a")
	r.expect("b", true, 0, false)
	at := start
	r.expect("b", true, at, true)
	for range 20 {
		at += governance.BeatEvery
		r.expect("a", true, at, false)
		r.expect("b", true, at, true)
	}
	if !r.Leads("b", noon.Add(at)) || r.Leads("a", noon.Add(at)) || r.Leads("b", noon.Add(at+start)) {
		t.Error("another one leads, or for another time")
	}
}

func TestLeaderWithoutTheCloudIsReplacedAtOnce(t *testing.T) {
	r := newRig(t, "")
	r.expect("a", true, 1, false)
	r.expect("b", true, 2, false)
	r.expect("a", true, start, true)
	r.expect("b", true, start+1, false)
	r.expect("a", false, start+2, false)
	r.expect("b", true, start+3, true)
	r.expect("a", true, start+4, false)
}

func TestABeatThatIsLateEndsNoLeadership(t *testing.T) {
	r := newRig(t, "")
	r.expect("a", true, start, true)
	late := governance.Beat{Session: "a", Number: r.number, HasCloud: false}
	r.expect("a", true, start+1, true)
	r.Beat("a", &late, noon.Add(start+2))
	r.expect("b", true, start+3, false)
	r.Beat("a", &governance.Beat{Session: "an earlier process of it", Number: 99}, noon.Add(start+4))
	r.expect("b", true, start+5, false)
}

// drift is how much slower than the coordinator's a hub's clock may go.
const drift = 0.05

// hub is one of the model.
type hub struct {
	session  int
	number   uint64
	hasCloud bool
	until    time.Time
	waits    *flight // for the answer to the beat
}

// flight is a beat on its way, or its answer.
type flight struct {
	hub     string
	beat    governance.Beat
	sent    time.Time
	leads   bool
	arrived bool
}

// TestAtMostOneHubLeads: beats are delayed or lost, and hubs and the coordinator restart, in any order.
// TestHubWithTheCloudLeadsWithinSeconds shows that one hub does lead.
func TestAtMostOneHubLeads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := noon
		l := New("a", now)
		hubs := map[string]*hub{"a": {hasCloud: true}, "b": {hasCloud: true}, "c": {hasCloud: true}}
		var flying []*flight
		which := rapid.SampledFrom([]string{"a", "b", "c"})
		pick := func(t *rapid.T, arrived bool) *flight {
			var some []*flight
			for _, f := range flying {
				if f.arrived == arrived {
					some = append(some, f)
				}
			}
			if len(some) == 0 {
				return nil
			}
			return rapid.SampledFrom(some).Draw(t, "beat")
		}
		send := func(name string) *flight {
			h := hubs[name]
			h.number++
			if !h.hasCloud {
				h.until = time.Time{}
			}
			f := &flight{hub: name, sent: now, beat: governance.Beat{Session: fmt.Sprint(h.session), Number: h.number, HasCloud: h.hasCloud}}
			flying, h.waits = append(flying, f), f
			return f
		}
		arrive := func(f *flight) { f.arrived, f.leads = true, l.Beat(f.hub, &f.beat, now) }
		answer := func(f *flight) {
			flying = slices.DeleteFunc(flying, func(other *flight) bool { return other == f })
			if h := hubs[f.hub]; h.waits == f {
				h.waits, h.until = nil, time.Time{}
				if f.leads {
					h.until = f.sent.Add(time.Duration(float64(governance.LeadFor) * (1 + drift)))
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"send": func(t *rapid.T) { send(which.Draw(t, "hub")) },
			"arrive": func(t *rapid.T) {
				if f := pick(t, false); f != nil {
					arrive(f)
				}
			},
			"answer": func(t *rapid.T) {
				if f := pick(t, true); f != nil {
					answer(f)
				}
			},
			"beat": func(t *rapid.T) {
				f := send(which.Draw(t, "hub"))
				arrive(f)
				answer(f)
			},
			"time": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 4000).Draw(t, "ms")) * time.Millisecond)
			},
			"restart": func(*rapid.T) { l = New("a", now) },
			"restart a hub": func(t *rapid.T) {
				h := hubs[which.Draw(t, "hub")]
				*h = hub{session: h.session + 1, hasCloud: h.hasCloud}
			},
			"cloud": func(t *rapid.T) { h := hubs[which.Draw(t, "hub")]; h.hasCloud = !h.hasCloud },
			"": func(t *rapid.T) {
				leaders := 0
				for name, h := range hubs {
					if now.Before(h.until) {
						leaders++
						if !l.Leads(name, now) && l.leader != "" && now.Before(l.held) {
							t.Fatalf("%s leads, and the coordinator holds %s for the leader", name, l.leader)
						}
					}
				}
				if leaders > 1 {
					t.Fatalf("%d hubs lead", leaders)
				}
			},
		})
	})
}

// TestHubWithTheCloudLeadsWithinSeconds: within 8.5 seconds of the last event of another hub or of the
// coordinator, a running hub with the cloud leads, and stays leader.
func TestHubWithTheCloudLeadsWithinSeconds(t *testing.T) {
	const within = 8500 * time.Millisecond
	rapid.Check(t, func(t *rapid.T) {
		l := New("a", noon)
		type node struct {
			isThere, hasCloud bool
			next              time.Time
			number            uint64
			until             time.Time
		}
		nodes := map[string]*node{}
		names := []string{"a", "b", "c", "d"}
		ms := func(most int, label string) time.Duration {
			return time.Duration(rapid.IntRange(0, most).Draw(t, label)) * time.Millisecond
		}
		for _, name := range names {
			nodes[name] = &node{isThere: true, hasCloud: true, next: noon.Add(ms(2000, "first"))}
		}
		now := noon
		// run lets those that are there beat for a time, each at most two seconds after the last.
		run := func(until time.Time, check func()) {
			for ; now.Before(until); now = now.Add(50 * time.Millisecond) {
				for _, name := range names {
					n := nodes[name]
					if !n.isThere || now.Before(n.next) {
						continue
					}
					n.number++
					n.next, n.until = now.Add(governance.BeatEvery-50*time.Millisecond), time.Time{}
					if l.Beat(name, &governance.Beat{Session: name, Number: n.number, HasCloud: n.hasCloud}, now) {
						n.until = now.Add(governance.LeadFor)
					}
				}
				check()
			}
		}
		for range rapid.IntRange(0, 6).Draw(t, "events") {
			run(now.Add(ms(9000, "pause")), func() {})
			n := nodes[rapid.SampledFrom(names).Draw(t, "node")]
			switch rapid.SampledFrom([]string{"dies", "lives", "cloud", "restart"}).Draw(t, "what") {
			case "dies":
				n.isThere = false
			case "lives":
				n.isThere, n.next = true, now
			case "cloud":
				n.hasCloud = !n.hasCloud
			case "restart":
				l = New("a", now)
			}
		}
		could := 0
		for _, n := range nodes {
			if n.isThere && n.hasCloud {
				could++
			}
		}
		last := now
		run(now.Add(30*time.Second), func() {
			leaders := 0
			for _, n := range nodes {
				if now.Before(n.until) {
					leaders++
				}
			}
			if leaders > 1 || leaders == 0 && could > 0 && now.Sub(last) > within {
				t.Fatalf("%s after the last event %d hubs lead, and %d could", now.Sub(last), leaders, could)
			}
		})
	})
}
