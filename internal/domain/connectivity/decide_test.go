package connectivity

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// facts are what is known of the node "n" of a pool, in seconds before now. A pool of other nodes has the node "m".
type facts struct {
	state State
	// since is how long the node is in the state.
	since int
	// heard is when it was last heard. own: that was its own heartbeat, and it was in the state then already.
	heard int
	own   bool
	// run is for how long heartbeats had come through the pool when it was last heard; 0 for none.
	run int
	// other is when m was last heard.
	other int
	// pulse is when the last pulse came, and pulses since when they came; 0 for never.
	pulse, pulses int
	// probe is when the probe last came back.
	probe int
	// poolHeard is since when the pool is heard.
	poolHeard     int
	noCoordinator bool
	limit         int
	// started is when the manager started; 0 for long ago.
	started int
	outside bool
}

func (f *facts) pool(now time.Time) *Pool {
	ago := func(seconds int) time.Time { return now.Add(-time.Duration(seconds) * time.Second) }
	if f.started == 0 {
		f.started = 100_000
	}
	p := NewPool(grace, ago(f.started))
	p.HasCoordinator, p.probe, p.heardSince = !f.noCoordinator, ago(f.probe), ago(f.poolHeard)
	n := &Node{Record: Record{State: f.state}, heard: ago(f.heard), isOutside: f.outside}
	if f.state != Direct || f.since > 0 {
		n.Record.Since, n.Record.Reason = ago(f.since), ReasonLost
	}
	if f.own {
		n.own = n.heard
	}
	if f.run > 0 {
		n.delegatedSince, n.delegated = ago(f.heard+f.run), n.heard
	}
	p.Nodes["n"], p.Nodes["m"] = n, &Node{Record: Record{State: Direct}, heard: ago(f.other)}
	p.heard = ago(min(f.heard, f.other))
	if f.pulses > 0 {
		p.pulse, p.pulseSince = ago(f.pulse), ago(f.pulses)
	}
	if f.limit > 0 {
		limit := time.Duration(f.limit) * time.Second
		p.FrozenLimit = &limit
	}
	return p
}

func TestDecide(t *testing.T) {
	const long = 1000
	tests := map[string]struct {
		facts
		want   State
		reason string
	}{
		// Its own heartbeats.
		"a Delegated node is heard":                               {facts{state: Delegated, since: 90, heard: 1, own: true, pulses: long}, Direct, ReasonHeard},
		"an Unobserved node is heard":                             {facts{state: Unobserved, since: 90, heard: 1, own: true}, Direct, ReasonHeard},
		"a Frozen node is heard":                                  {facts{state: Frozen, since: 90, heard: 1, own: true}, Direct, ReasonHeard},
		"a Lost node is heard":                                    {facts{state: Lost, since: 90, heard: 1, own: true, pulses: long}, Direct, ReasonHeard},
		"a Released node is heard, and there is a coordinator":    {facts{state: Released, since: 90, heard: 1, own: true}, Direct, ReasonHeard},
		"a node was last heard by itself before it was Delegated": {facts{state: Delegated, since: 20, heard: 45, own: true, pulses: long}, Delegated, ""},
		"a Direct node is heard":                                  {facts{state: Direct, heard: 1, own: true, pulses: long}, Direct, ""},

		// Heartbeats through the pool.
		"a Direct node is forwarded for 15 s":      {facts{state: Direct, heard: 1, run: 15, pulses: long}, Delegated, ReasonDelegated},
		"a Direct node is forwarded for 14 s":      {facts{state: Direct, heard: 1, run: 14, pulses: long}, Direct, ""},
		"an Unobserved node is forwarded":          {facts{state: Unobserved, since: 400, heard: 1, run: 15, pulses: long}, Delegated, ReasonDelegated},
		"a Frozen node is forwarded":               {facts{state: Frozen, since: 400, heard: 1, run: 15, pulses: long}, Delegated, ReasonDelegated},
		"a Lost node is forwarded":                 {facts{state: Lost, since: 400, heard: 1, run: 15, pulses: long}, Delegated, ReasonDelegated},
		"a Lost node is forwarded for 14 s":        {facts{state: Lost, since: 400, heard: 1, run: 14, pulses: long}, Lost, ""},
		"a Released node is forwarded":             {facts{state: Released, since: 400, heard: 1, run: 15, pulses: long}, Delegated, ReasonDelegated},
		"a Lost node was forwarded long ago":       {facts{state: Lost, since: 400, heard: 60, run: 15, pulses: long}, Lost, ""},
		"a Delegated node is forwarded":            {facts{state: Delegated, since: 400, heard: 1, run: 300, pulses: long}, Delegated, ""},
		"a Delegated node is silent for 49 s":      {facts{state: Delegated, since: 400, heard: 49, run: 300, pulses: long}, Delegated, ""},
		"a Delegated node waits for an own Lease":  {facts{state: Delegated, since: 400, heard: 49, pulses: long}, Delegated, ""},
		"a Delegated node just after a restart":    {facts{state: Delegated, since: 400, heard: 5, other: 5, started: 5}, Delegated, ""},
		"a Delegated node, and no pulse was heard": {facts{state: Delegated, since: 400, heard: 50, started: 20}, Delegated, ""},

		// Silence that the pool observes.
		"a Direct node is silent":                              {facts{state: Direct, heard: 53, pulse: 3, pulses: long}, Lost, ReasonLost},
		"a Delegated node is silent":                           {facts{state: Delegated, since: 400, heard: 53, run: 90, pulse: 3, pulses: long}, Lost, ReasonLost},
		"an Unobserved node is silent, and pulses came back":   {facts{state: Unobserved, since: 100, heard: 150, pulse: 3, pulses: 53}, Lost, ReasonLost},
		"a Frozen node is silent, and the pool came back":      {facts{state: Frozen, since: 100, heard: 150, pulse: 3, pulses: 53}, Lost, ReasonLost},
		"a Released node is silent":                            {facts{state: Released, since: 100, heard: 150, pulse: 3, pulses: 53}, Lost, ReasonLost},
		"a Lost node is silent":                                {facts{state: Lost, since: 100, heard: 150, pulse: 3, pulses: 90}, Lost, ""},
		"a Direct node is silent, 49 s until the last pulse":   {facts{state: Direct, heard: 52, pulse: 3, pulses: long}, Direct, ""},
		"a Delegated node is silent, as the pulse soon":        {facts{state: Delegated, since: 400, heard: 60, run: 90, pulse: 24, pulses: long}, Delegated, ""}, // the hub that leads died with it
		"a Direct node is silent for 49 s":                     {facts{state: Direct, heard: 49, pulse: 3, pulses: long}, Direct, ""},
		"a Direct node is silent, with pulses for 49 s":        {facts{state: Direct, heard: 90, pulse: 3, pulses: 49}, Direct, ""},
		"a Delegated node is silent, with pulses for 49 s":     {facts{state: Delegated, since: 400, heard: 90, pulse: 3, pulses: 49}, Delegated, ""},
		"an Unobserved node is silent, with pulses for 49 s":   {facts{state: Unobserved, since: 100, heard: 90, pulse: 3, pulses: 49}, Unobserved, ""},
		"a Frozen node is silent, with pulses for 49 s":        {facts{state: Frozen, since: 100, heard: 90, pulse: 3, pulses: 49}, Frozen, ""},
		"a Direct node is silent, the last pulse is 24 s old":  {facts{state: Direct, heard: 74, pulse: 24, pulses: long}, Lost, ReasonLost},
		"a Direct node is silent, the last pulse is 25 s old":  {facts{state: Direct, heard: 50, pulse: 25, pulses: long}, Direct, ""},
		"a Direct node is silent, and never was a pulse":       {facts{state: Direct, heard: 500}, Direct, ""},
		"silence counts up to the last probe":                  {facts{state: Delegated, since: 400, heard: 59, run: 90, pulse: 3, pulses: long, probe: 10}, Delegated, ""},
		"silence up to the last probe is long enough":          {facts{state: Delegated, since: 400, heard: 60, run: 90, pulse: 3, pulses: long, probe: 10}, Lost, ReasonLost},
		"a node that was outside of its pool is silent":        {facts{state: Direct, heard: 53, pulse: 3, pulses: long, outside: true}, Lost, ReasonLost},
		"a Direct node is silent, the API server long away":    {facts{state: Direct, heard: 600, pulse: 600, pulses: long, probe: 598, other: 600}, Direct, ""},
		"a Delegated node is silent, the API server long away": {facts{state: Delegated, since: 900, heard: 600, pulse: 600, pulses: long, probe: 598, other: 600}, Delegated, ""},

		// Silence of the whole pool.
		"a Direct node and the pool are silent":                       {facts{state: Direct, heard: 30, other: 25, pulse: 25, pulses: long}, Frozen, ReasonFrozen},
		"a Released node and the pool are silent":                     {facts{state: Released, since: 40, heard: 30, other: 25}, Frozen, ReasonFrozen},
		"a Direct node is silent for 29 s":                            {facts{state: Direct, heard: 29, other: 25}, Direct, ""},
		"the other node is silent for 24 s":                           {facts{state: Direct, heard: 30, other: 24}, Direct, ""},
		"the last pulse is 24 s old":                                  {facts{state: Direct, heard: 30, other: 25, pulse: 24, pulses: long}, Direct, ""},
		"the node was silent for 49 s before the pool":                {facts{state: Direct, heard: 74, other: 25}, Frozen, ReasonFrozen},
		"the node was silent for 50 s before the pool":                {facts{state: Direct, heard: 75, other: 25}, Direct, ""},
		"a Delegated node and the pool are silent":                    {facts{state: Delegated, since: 400, heard: 50, run: 90, other: 30, pulse: 30, pulses: long}, Frozen, ReasonFrozen},
		"an Unobserved node, and then the pool is silent":             {facts{state: Unobserved, since: 100, heard: 150, other: 25}, Frozen, ReasonFrozen},
		"a Lost node and the pool are silent":                         {facts{state: Lost, since: 100, heard: 150, other: 25}, Lost, ""},
		"a Frozen node and the pool are silent for ever":              {facts{state: Frozen, since: 9000, heard: 9030, other: 9025}, Frozen, ""},
		"frozenLimit is over":                                         {facts{state: Frozen, since: 600, heard: 630, other: 625, limit: 600}, Lost, ReasonFrozenLimit},
		"frozenLimit is not over":                                     {facts{state: Frozen, since: 599, heard: 630, other: 625, limit: 600}, Frozen, ""},
		"frozenLimit is over, but not at the last probe":              {facts{state: Frozen, since: 600, heard: 630, other: 625, limit: 600, probe: 5}, Frozen, ""},
		"frozenLimit is shorter than the grace":                       {facts{state: Frozen, since: 19, heard: 49, other: 49, limit: 1}, Frozen, ""},
		"frozenLimit is over, and the manager has just started":       {facts{state: Frozen, since: 600, heard: 20, other: 20, limit: 300, started: 20}, Frozen, ""},
		"the pool is heard again for 300 s, without a pulse":          {facts{state: Frozen, since: 600, heard: 630, other: 1, poolHeard: 300}, Lost, ReasonUnobservedLimit},
		"Frozen for 299 s in a pool that a manager hears for 300 s":   {facts{state: Frozen, since: 299, heard: 630, other: 1, poolHeard: 300}, Frozen, ""},
		"the pool is heard again for 299 s, without a pulse":          {facts{state: Frozen, since: 600, heard: 630, other: 1, poolHeard: 299}, Frozen, ""},
		"the pool was heard for 300 s, and is silent":                 {facts{state: Frozen, since: 600, heard: 630, other: 25, poolHeard: 325}, Frozen, ""},
		"the pool is heard for 300 s, and the manager has just begun": {facts{state: Frozen, since: 600, heard: 20, other: 1, poolHeard: 300}, Frozen, ""},

		// Nobody speaks for a node.
		"a Delegated node is silent, and there is no pulse":      {facts{state: Delegated, since: 400, heard: 50, run: 90, pulse: 25, pulses: long}, Unobserved, ReasonUnobserved},
		"a Delegated node is silent, and never was a pulse":      {facts{state: Delegated, since: 400, heard: 50, run: 90}, Unobserved, ReasonUnobserved},
		"an Unobserved node for 299 s":                           {facts{state: Unobserved, since: 299, heard: 350}, Unobserved, ""},
		"an Unobserved node for 300 s":                           {facts{state: Unobserved, since: 300, heard: 350}, Lost, ReasonUnobservedLimit},
		"an Unobserved node for 300 s, heard through the pool":   {facts{state: Unobserved, since: 300, heard: 5, run: 5}, Unobserved, ""},
		"an Unobserved node for 300 s, the manager just started": {facts{state: Unobserved, since: 300, heard: 49, started: 49}, Unobserved, ""},

		// No coordinator.
		"a Direct node without a coordinator":                    {facts{state: Direct, heard: 50, other: 50, noCoordinator: true}, Direct, ""},
		"a node that has just come back, without a coordinator":  {facts{state: Direct, since: 5, heard: 4, own: true, noCoordinator: true}, Released, ReasonReleased},
		"a forwarded node without a coordinator":                 {facts{state: Direct, heard: 1, run: 90, noCoordinator: true}, Direct, ""},
		"a Delegated node without a coordinator":                 {facts{state: Delegated, heard: 1, run: 90, noCoordinator: true}, Released, ReasonReleased},
		"an Unobserved node without a coordinator":               {facts{state: Unobserved, since: 60, heard: 60, noCoordinator: true}, Released, ReasonReleased},
		"a Frozen node without a coordinator":                    {facts{state: Frozen, since: 60, heard: 60, other: 60, noCoordinator: true}, Released, ReasonReleased},
		"a Lost node without a coordinator":                      {facts{state: Lost, since: 60, heard: 60, pulse: 1, pulses: long, noCoordinator: true}, Released, ReasonReleased},
		"a Released node without a coordinator":                  {facts{state: Released, since: 60, heard: 60, noCoordinator: true}, Released, ""},
		"a Released node without a coordinator speaks":           {facts{state: Released, since: 60, heard: 1, own: true, noCoordinator: true}, Released, ""},
		"a Released node, and there is a coordinator":            {facts{state: Released, since: 60, heard: 20, started: 20}, Released, ""},
		"a Delegated node speaks and there is no coordinator":    {facts{state: Delegated, since: 60, heard: 1, own: true, noCoordinator: true}, Released, ReasonReleased},
		"a Released node is silent and nobody observes the pool": {facts{state: Released, since: 60, heard: 90}, Released, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := tc.pool(start)
			before := p.Nodes["n"].Record
			d := Decide(p, start)
			var want []Verdict
			if tc.reason != "" {
				want = []Verdict{{Node: "n", From: tc.state, To: tc.want, Since: start, Reason: tc.reason, Message: p.Nodes["n"].message(tc.reason)}}
				before.Since, before.Reason = start, tc.reason
			}
			var got []Verdict
			for _, v := range d.Verdicts {
				if v.Node == "n" {
					got = append(got, v)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			before.State = tc.want
			r := d.Records["n"]
			r.Silent, r.Observed, r.Beat = 0, 0, ""
			if diff := cmp.Diff(before, r); diff != "" {
				t.Error(diff)
			}
			for _, v := range got {
				if v.Message == "" {
					t.Error("no message")
				}
			}
		})
	}
}

// TestAPoolThatLies: it speaks for a node that reaches the cloud. A kubelet writes its status ten seconds after somebody else
// has, and else each five minutes.
func TestAPoolThatLies(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	p := NewPool(grace, now)
	p.HasCoordinator = true
	p.Add("n", Record{State: Direct}, "", now)
	wrong, posted := 0, 0
	state := func() State {
		p.Nodes["n"].Record = Decide(p, now).Records["n"]
		return p.Nodes["n"].Record.State
	}
	second := func(beat func()) {
		now = now.Add(time.Second)
		p.Probe(now)
		p.Pulse([]string{"n"}, now)
		beat()
	}
	for range 3600 {
		second(func() { p.Heartbeat("n", now.String(), true, now) })
		if posted++; state() == Delegated {
			wrong++
		}
		if posted >= 300 || wrong > 0 && posted >= 10 && p.Nodes["n"].Record.State == Delegated {
			posted = 0
			p.Posted("n", now)
			if got := state(); got != Direct {
				t.Fatalf("its kubelet has written its status, and it is %s", got)
			}
		}
	}
	if wrong > 11 {
		t.Errorf("in an hour the node was Delegated for %d s", wrong)
	}
	for range int(DoubtedFor / time.Second) { // the pool lies no more
		second(func() { p.Heartbeat("n", now.String(), false, now) })
	}
	for range 20 { // the node is cut off
		second(func() { p.Heartbeat("n", now.String(), true, now) })
		state()
	}
	if got := state(); got != Delegated {
		t.Errorf("a node that is cut off later is %s", got)
	}
}

// TestALinkThatFlaps: a node comes back, its kubelet writes its status, and it is cut off again a few seconds later. Its pool is
// believed each time, because the node has confirmed what the pool said; it may do so before its kubelet has written, or after.
func TestALinkThatFlaps(t *testing.T) {
	for _, confirmsAfter := range []int{1, 3} {
		now := time.Unix(1_000_000, 0)
		p := NewPool(grace, now)
		p.HasCoordinator = true
		p.Add("n", Record{State: Direct}, "", now)
		for outage := range 5 {
			delegated := 0
			for second := range 60 {
				now = now.Add(time.Second)
				p.Probe(now)
				p.Pulse([]string{"n"}, now)
				if second%5 == 0 {
					p.Heartbeat("n", now.String(), true, now)
				}
				p.Nodes["n"].Record = Decide(p, now).Records["n"]
				if p.Nodes["n"].Record.State == Delegated {
					delegated++
				}
			}
			if delegated < 40 {
				t.Errorf("confirmed after %d s, outage %d: it was Delegated for %d s of 60", confirmsAfter, outage, delegated)
			}
			for second := range 6 {
				now = now.Add(time.Second)
				switch second {
				case 0: // it was on its way
					p.Heartbeat("n", now.String(), true, now)
				case 2:
					p.Heartbeat("n", now.String(), false, now)
					p.Posted("n", now)
				}
				if second == confirmsAfter {
					p.Confirmed("n", now)
				}
			}
			if got := Decide(p, now).Records["n"].State; got != Direct {
				t.Errorf("confirmed after %d s, outage %d: it is back, and %s", confirmsAfter, outage, got)
			}
		}
	}
}

func TestVerdictSaysThatNobodyCouldHear(t *testing.T) {
	inside := facts{state: Direct, heard: 53, pulse: 3, pulses: 100}
	outside := inside
	outside.outside = true
	said := map[string]bool{}
	for _, f := range []facts{inside, outside} {
		said[Decide(f.pool(start), start).Verdicts[0].Message] = true
	}
	if len(said) != 2 {
		t.Errorf("a node that was outside of its pool gets the message of one that was not: %v", said)
	}
}

// TestShorterGrace: nodes are frozen 15 s before kube-controller-manager acts, also if it acts after 40 s.
func TestShorterGrace(t *testing.T) {
	for seconds, want := range map[int]State{24: Direct, 25: Frozen} {
		f := facts{state: Direct, heard: seconds, other: 25}
		p := f.pool(start)
		p.Grace = 40 * time.Second
		if got := Decide(p, start).Records["n"].State; got != want {
			t.Errorf("after %d s the node is %s, want %s", seconds, got, want)
		}
	}
}

func TestCheckGrace(t *testing.T) {
	for grace, isGood := range map[time.Duration]bool{39 * time.Second: false, 40 * time.Second: true, 50 * time.Second: true} {
		if err := CheckGrace(grace); (err == nil) != isGood {
			t.Errorf("%s: %v", grace, err)
		}
	}
}

// TestNote: a silence is written down in steps, and what a manager that starts would not count is not.
func TestNote(t *testing.T) {
	for name, tc := range map[string]struct {
		facts
		grace            time.Duration
		silent, observed int
	}{
		"14 s":                             {facts{heard: 14, pulse: 2, pulses: 900}, grace, 0, 0},
		"15 s":                             {facts{heard: 15, pulse: 2, pulses: 900}, grace, 15, 10},
		"15 s, the last pulse is older":    {facts{heard: 15, pulse: 7, pulses: 900}, grace, 15, 0},
		"24 s":                             {facts{heard: 24, pulse: 2, pulses: 900}, grace, 15, 20},
		"25 s":                             {facts{heard: 25, pulse: 2, pulses: 900}, grace, 25, 20},
		"34 s, pulses for 12 s":            {facts{heard: 34, pulse: 2, pulses: 12}, grace, 25, 10},
		"49 s":                             {facts{heard: 49, pulse: 2, pulses: 900}, grace, 35, 35},
		"49 s, no pulse":                   {facts{heard: 49, pulse: 25, pulses: 900}, grace, 35, 0},
		"44 s, with a grace of 45 s":       {facts{heard: 44, pulse: 2, pulses: 900}, 45 * time.Second, 30, 30},
		"a pool without a coordinator":     {facts{heard: 44, pulse: 2, pulses: 900, noCoordinator: true}, grace, 0, 0},
		"the node was silent before pulse": {facts{heard: 10, pulse: 12, pulses: 900}, grace, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			tc.state = Direct
			p := tc.pool(start)
			p.Grace, p.Nodes["n"].beat = tc.grace, "beat"
			r := Decide(p, start).Records["n"]
			want := fmt.Sprintf("%ds %ds %t", tc.silent, tc.observed, tc.silent > 0)
			if got := fmt.Sprintf("%ds %ds %t", int(r.Silent.Seconds()), int(r.Observed.Seconds()), r.Beat == "beat"); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

// TestAdd: a manager that starts goes on with a silence that was noted, if the Lease is as it was.
func TestAdd(t *testing.T) {
	r := Record{State: Delegated, Since: start.Add(-time.Hour), Reason: ReasonDelegated, Silent: 25 * time.Second, Observed: 20 * time.Second, Beat: "b"}
	tooLong := r
	tooLong.Silent, tooLong.Observed = time.Hour, time.Hour
	for name, tc := range map[string]struct {
		record           Record
		beat             string
		silent, observed time.Duration
	}{
		"the Lease is as it was":    {r, "b", 25 * time.Second, 20 * time.Second},
		"the Lease was renewed":     {r, "c", 0, 0},
		"there is no Lease":         {r, "", 0, 0},
		"more was noted than is so": {tooLong, "b", 35 * time.Second, 35 * time.Second},
		"nothing was noted":         {Record{State: Direct}, "", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := NewPool(grace, start)
			p.Add("n", tc.record, tc.beat, start)
			n := p.Nodes["n"]
			if got := p.silence(n, start); got != tc.silent || n.observed != tc.observed {
				t.Errorf("silent for %s, observed for %s, want %s and %s", got, n.observed, tc.silent, tc.observed)
			}
		})
	}
	p := NewPool(grace, start)
	p.Add("n", Record{State: Frozen, Since: start.Add(time.Hour), Reason: ReasonFrozen}, "", start)
	if got := p.Nodes["n"].Record.Since; !got.Equal(start) {
		t.Errorf("a state that begins in the future is kept: %s", got)
	}
}

// TestPulsesMustNotPause: what an earlier manager noted as observed does not count when pulses had stopped meanwhile.
func TestPulsesMustNotPause(t *testing.T) {
	for after, want := range map[int]time.Duration{24: 45 * time.Second, 25: 10 * time.Second} {
		p := NewPool(grace, start)
		p.Add("n", Record{State: Direct, Silent: 35 * time.Second, Observed: 35 * time.Second}, "", start)
		now := start.Add(time.Duration(after) * time.Second)
		p.Probe(now.Add(-14 * time.Second))
		p.Probe(now)
		p.Pulse(nil, now)
		if got := p.observed(p.Nodes["n"], now, now); got != want {
			t.Errorf("a pulse came after %d s: observed for %s, want %s", after, got, want)
		}
	}
}

// TestOutside: who reaches the cloud, and not the coordinator, is known by a pulse that is fresh only.
func TestOutside(t *testing.T) {
	p := NewPool(grace, start)
	for _, name := range []string{"a", "b", "c", "d"} {
		p.Add(name, Record{State: Direct}, "", start)
	}
	expect := func(want ...string) {
		t.Helper()
		var got []string
		for _, name := range slices.Sorted(maps.Keys(p.Nodes)) {
			if p.Nodes[name].isOutside {
				got = append(got, name)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	now := start.Add(10 * time.Second)
	p.Heartbeat("b", "1", false, now) // Nothing is known yet of who is inside.
	p.Pulse([]string{"a", "b"}, now)
	p.Heartbeat("a", "1", false, now)
	p.Heartbeat("c", "1", false, now)
	expect("c") // d was not heard by itself.
	now = now.Add(Quiet)
	p.Heartbeat("c", "2", false, now)
	expect()
}
