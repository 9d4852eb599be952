package connectivity

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// model is the states of a pool by counters of seconds, which grow by one in each step: simpler than Pool, and without
// restarts of the manager.
type model struct {
	hasCoordinator bool
	limit          int // 0: none
	up             int
	pulse          int // since the last one; never: a large number
	pulses         int // since when they come
	heard, heardBy int // since anything was heard, and since when it is
	nodes          map[string]*modelNode
}

type modelNode struct {
	state State
	in    int // in the state
	quiet int
	own   bool // the last heartbeat was its own, and has come in this state, or in the second in which it began
	// first and last are since the first and the last heartbeat through the pool, if the last one was of those.
	first, last int
	runs        bool
	// settles: it was in another state than Direct; what was done to it is never undone in this test.
	settles bool
}

const never = 1 << 30

func (m *model) second() {
	m.up, m.pulse, m.pulses, m.heard, m.heardBy = m.up+1, m.pulse+1, m.pulses+1, m.heard+1, m.heardBy+1
	for _, n := range m.nodes {
		n.in, n.quiet, n.first, n.last = n.in+1, n.quiet+1, n.first+1, n.last+1
	}
}

// gap is that the API server was away.
func (m *model) gap(seconds int) {
	if seconds < 15 {
		return
	}
	m.up, m.pulse, m.heard, m.heardBy = 0, never, 0, 0
	for _, n := range m.nodes {
		n.quiet, n.own, n.runs = 0, false, false
	}
}

func (m *model) hear() {
	if m.heard >= 25 {
		m.heardBy = 0
	}
	m.heard = 0
}

func (m *model) beat(n *modelNode, isDelegated bool) {
	m.hear()
	n.quiet = 0
	if !isDelegated {
		n.own, n.runs = true, false
		return
	}
	if !n.runs || n.last >= 25 {
		n.first = 0
	}
	n.own, n.runs, n.last = false, true, 0
}

func (m *model) pulsed() {
	if m.pulse >= 25 {
		m.pulses = min(10, m.up)
	}
	m.pulse = 0
	m.hear()
}

func (m *model) decide() {
	silentPool := min(m.heard, m.pulse) >= 25
	for _, n := range m.nodes {
		if next := m.next(n, silentPool); next != n.state {
			n.state, n.in, n.own, n.settles = next, 0, n.own && n.quiet == 0, true
		}
	}
}

func (m *model) next(node *modelNode, silentPool bool) State {
	n := *node
	if n.own && m.hasCoordinator {
		n.state = Direct
	}
	switch {
	case !m.hasCoordinator && n.state == Direct && !n.settles:
		return Direct
	case !m.hasCoordinator:
		return Released
	case n.runs && n.first-n.last >= 15 && n.quiet < 50:
		return Delegated
	case m.pulse < 25 && n.quiet-m.pulse >= 50 && m.pulses-m.pulse >= 50:
		return Lost
	case n.state == Lost:
		return Lost
	case n.quiet >= 30 && silentPool && (n.state == Direct || n.state == Released) && n.quiet-min(m.heard, m.pulse) < 50:
		return Frozen
	case silentPool && n.state == Unobserved:
		return Frozen
	case n.quiet < 50:
		return n.state
	case n.state == Frozen && m.limit > 0 && n.in >= m.limit,
		n.state == Frozen && !silentPool && m.heardBy >= 300,
		n.state == Unobserved && n.in >= 300:
		return Lost
	case n.state == Delegated && m.pulse >= 25 && m.up >= 25:
		if silentPool {
			return Frozen
		}
		return Unobserved
	}
	return n.state
}

// walker has a pool, its nodes as they really are, and what was heard of them.
type walker struct {
	pool  *Pool
	model *model
	now   time.Time
	// cut and apart are nodes without the cloud and without the coordinator.
	dead, cut, apart map[string]bool
	phase            map[string]int
	noPulse, apiAway bool
	beats            map[string]time.Time
	pulses           []time.Time
	last             Decision
	restarted        bool
	limit            *time.Duration
	probed           time.Time
}

func newWalker(names ...string) *walker {
	w := &walker{
		now: start, dead: map[string]bool{}, cut: map[string]bool{}, apart: map[string]bool{}, phase: map[string]int{}, beats: map[string]time.Time{},
		pool: NewPool(grace, start), model: &model{hasCoordinator: true, pulse: never, nodes: map[string]*modelNode{}}, probed: start,
	}
	w.pool.HasCoordinator = true
	for i, name := range names {
		w.pool.Add(name, Record{State: Direct}, "", start)
		w.model.nodes[name] = &modelNode{state: Direct}
		w.phase[name], w.beats[name] = 3*i, start
	}
	return w
}

func (w *walker) names() []string { return slices.Sorted(maps.Keys(w.phase)) }

func (w *walker) leads() bool {
	return !w.noPulse && slices.ContainsFunc(w.names(), func(n string) bool { return !w.dead[n] && !w.cut[n] && !w.apart[n] })
}

func (w *walker) restart() {
	before := w.pool
	w.pool = NewPool(grace, w.now)
	w.pool.HasCoordinator, w.pool.FrozenLimit = before.HasCoordinator, w.limit
	for name, n := range before.Nodes {
		w.pool.Add(name, Parse(n.Record.String()), n.beat, w.now)
	}
	w.restarted, w.probed = true, w.now
}

// second lets a second pass, and returns what was decided.
func (w *walker) second() Decision {
	w.now = w.now.Add(time.Second)
	w.model.second()
	second, isHeard := int(w.now.Sub(start).Seconds()), false
	if !w.apiAway {
		w.pool.Probe(w.now)
		w.model.gap(int(w.now.Sub(w.probed).Seconds()))
		isHeard = w.now.Sub(w.probed) > time.Second
		w.probed = w.now
		if second%10 == 0 && w.leads() {
			w.pool.Pulse(w.names(), w.now)
			w.model.pulsed()
			w.pulses, isHeard = append(w.pulses, w.now), true
		}
		for _, name := range w.names() {
			if w.dead[name] || second%10 != w.phase[name] || w.cut[name] && (w.apart[name] || !w.leads()) {
				continue
			}
			w.pool.Heartbeat(name, w.now.Format(time.RFC3339), w.cut[name], w.now)
			w.model.beat(w.model.nodes[name], w.cut[name])
			w.beats[name], isHeard = w.now, true
		}
	}
	d := Decide(w.pool, w.now)
	if !isHeard && !w.restarted && !w.apiAway && w.now.Before(w.last.Next) {
		if !maps.Equal(w.last.Records, d.Records) {
			panic(fmt.Sprintf("nothing was heard, and something has changed before %s: %s", w.last.Next, cmp.Diff(w.last.Records, d.Records)))
		}
	}
	w.last, w.restarted = d, false
	return d
}

// check panics if a decision is wrong whatever the model says.
func (w *walker) check(d Decision) {
	for _, v := range d.Verdicts {
		silent, in := w.probed.Sub(w.beats[v.Node]), w.probed.Sub(w.pool.Nodes[v.Node].Record.Since)
		heard := w.probed.Sub(latest(slices.MaxFunc(slices.Collect(maps.Values(w.beats)), time.Time.Compare), w.lastPulse()))
		seen := 0
		for _, pulse := range w.pulses {
			if pulse.After(w.beats[v.Node]) {
				seen++
			}
		}
		bad := ""
		switch {
		case v.To == Lost && silent < grace:
			bad = "a node is Lost that was heard"
		case v.Reason == ReasonLost && (seen < 2 || w.probed.Sub(w.lastPulse()) >= Quiet):
			bad = "a node is Lost without an observer"
		case v.Reason == ReasonUnobservedLimit && (in < UnobservedLimit || heard >= Quiet):
			bad = "a limit is over too early"
		case v.Reason == ReasonFrozenLimit && (w.limit == nil || v.From != Frozen || in < *w.limit):
			bad = "frozenLimit is over too early"
		case v.To == Frozen && heard < Quiet:
			bad = "a node is Frozen in a pool that is heard"
		case v.From.isHeld() && v.To == Direct && silent > 0:
			bad = "a node is Direct that was not heard now"
		}
		if bad != "" {
			panic(fmt.Sprintf("%s: %+v; after %s, it was heard %s ago, pulses at %v", bad, v, w.now.Sub(start), silent, w.pulses))
		}
	}
	for name, r := range d.Records {
		if Parse(r.String()) != r {
			panic(fmt.Sprintf("the record %+v of %s is read as %+v", r, name, Parse(r.String())))
		}
		if w.pool.HasCoordinator && w.beats[name].Equal(w.now) && !w.cut[name] && r.State != Direct {
			panic(name + " is heard itself, and is " + string(r.State))
		}
		w.pool.Nodes[name].Record = r
	}
	again := Decide(w.pool, w.now)
	if !maps.Equal(d.Records, again.Records) || len(again.Verdicts) > 0 {
		panic(fmt.Sprintf("decided again, something changes: %s %v", cmp.Diff(d.Records, again.Records), again.Verdicts))
	}
}

func (w *walker) lastPulse() time.Time {
	if len(w.pulses) == 0 {
		return time.Time{}
	}
	return w.pulses[len(w.pulses)-1]
}

// change changes one thing in the world.
func (w *walker) change(t *rapid.T, canRestart bool) {
	name := rapid.SampledFrom(w.names()).Draw(t, "node")
	oneIn := func(n int) bool { return rapid.IntRange(1, n).Draw(t, "one in") == n }
	switch rapid.SampledFrom([]string{"dies", "cut", "cut", "apart", "all cut", "pulse", "API server", "coordinator", "restart"}).Draw(t, "change") {
	case "dies":
		w.dead[name] = oneIn(3)
	case "cut":
		w.cut[name] = oneIn(2)
	case "apart":
		w.apart[name] = oneIn(4)
	case "all cut":
		isCut := oneIn(3)
		for _, name := range w.names() {
			w.cut[name] = isCut
		}
	case "pulse":
		w.noPulse = oneIn(2)
	case "API server":
		w.apiAway = oneIn(4)
	case "coordinator":
		w.pool.HasCoordinator = !oneIn(4)
		w.model.hasCoordinator, w.restarted = w.pool.HasCoordinator, true
	case "restart":
		if canRestart && !w.apiAway {
			w.restart()
		}
	}
}

// TestWalk compares Decide with the model over some 10^5 seconds, and checks what must hold in any case.
func TestWalk(t *testing.T) {
	seconds, seen := 0, map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		w := newWalker("a", "b", "c")
		canRestart := rapid.Bool().Draw(t, "restarts")
		if rapid.Bool().Draw(t, "has a limit") {
			w.model.limit = 200
			limit := 200 * time.Second
			w.limit, w.pool.FrozenLimit = &limit, &limit
		}
		for range 50 {
			w.change(t, canRestart)
			for range rapid.SampledFrom([]int{3, 12, 20, 40, 80, 130}).Draw(t, "seconds") {
				seconds++
				d := w.second()
				if w.apiAway {
					continue // Nothing can be written.
				}
				for _, v := range d.Verdicts {
					seen[fmt.Sprintf("%s → %s, %s", v.From, v.To, v.Reason)]++
				}
				w.check(d)
				w.model.decide()
				for name, n := range w.model.nodes {
					if got := d.Records[name].State; got != n.state && !canRestart {
						t.Fatalf("after %s %s is %s, and in the model %s", w.now.Sub(start), name, got, n.state)
					}
				}
			}
		}
	})
	t.Logf("%d seconds", seconds)
	for _, transition := range slices.Sorted(maps.Keys(seen)) {
		t.Logf("%6d %s", seen[transition], transition)
	}
}

// TestRestartsOnlyDelay: in a pool that is observed, a manager that restarts comes to the same end, never earlier, and
// not much later if it lives for 25 s each time: what is observed grows with pulses only, each 10 s.
func TestRestartsOnlyDelay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		steady, restarts := newWalker("a", "b", "c"), newWalker("a", "b", "c")
		isCut, cutFor := rapid.Bool().Draw(t, "cut"), rapid.IntRange(0, 200).Draw(t, "seconds")
		lost := map[*walker]time.Time{}
		for i := range 14 {
			pause := rapid.IntRange(25, 70).Draw(t, "until the next restart")
			for range pause {
				for _, w := range []*walker{steady, restarts} {
					second := int(w.now.Sub(start).Seconds())
					w.cut["b"] = isCut && second > 40
					w.dead["b"] = second > 60+cutFor
					d := w.second()
					w.check(d)
					if _, known := lost[w]; !known && d.Records["b"].State == Lost {
						lost[w] = w.now
					}
				}
			}
			if i < 13 {
				restarts.restart()
			}
		}
		early, late := lost[steady], lost[restarts]
		if early.IsZero() || late.Before(early) || late.Sub(early) > 70*time.Second {
			t.Fatalf("b is Lost after %s, and with restarts after %s", early.Sub(start), late.Sub(start))
		}
	})
}
