package connectivity

import (
	"slices"
	"time"
)

// Pool has what this manager has heard of one pool. NewPool makes it when the manager starts to listen, and the methods
// below record what arrives. Not safe for concurrent use.
type Pool struct {
	// HasCoordinator: the coordinator of the pool is deployed. Without, all nodes are released.
	HasCoordinator bool
	// Grace is after how much silence kube-controller-manager acts: its --node-monitor-grace-period. See CheckGrace.
	Grace time.Duration
	// FrozenLimit is how long nodes stay Frozen; nil: until the pool is heard again.
	FrozenLimit *time.Duration
	// Nodes are those of the pool, by name. Add adds one; one that leaves the pool is deleted here.
	Nodes map[string]*Node

	// started is since when it listens without a gap. Nothing of before counts.
	started time.Time
	// probe is when the manager's own probe last came back. Silences do not grow until it comes back again: while the
	// API server is away, or the watch hangs, nobody can be heard.
	probe time.Time
	// pulse is when the last pulse arrived, zero for none; pulseSince is since when they come without a gap.
	pulse, pulseSince time.Time
	// heard is when anything was last heard of the pool; heardSince is since when it is, without a gap.
	heard, heardSince time.Time
}

// Node has what is known of a node.
type Node struct {
	// Record is what Annotation says on the Node now.
	Record Record

	// heard is when it was last heard, by itself or through the pool. A silence that was noted before the manager
	// started is subtracted from it.
	heard time.Time
	// own is when it was last heard by itself; zero for never.
	own time.Time
	// delegatedSince and delegated are the first and the last heartbeat through the pool since then; zero for none.
	delegatedSince, delegated time.Time
	// spoken is when the pool last spoke for it, confirmed when the node last said that the pool was right to, and doubted when
	// its kubelet last wrote a status although the pool spoke for it; zero for never.
	spoken, confirmed, doubted time.Time
	// observed is for how much of its silence the pool was observed, before the manager started.
	observed time.Duration
	beat     string
	// isInside: the last pulse names it among the nodes that reach the coordinator. isOutside: that pulse did not, when
	// its own heartbeat last arrived.
	isInside, isOutside bool
}

// NewPool returns a pool without nodes, of a manager that listens from now on and takes everything as heard now.
func NewPool(grace time.Duration, now time.Time) *Pool {
	return &Pool{Grace: grace, Nodes: map[string]*Node{}, started: now, probe: now, heard: now, heardSince: now}
}

// Add adds a node that the manager sees for the first time. beat is the renewTime of its Lease, "" without one.
func (p *Pool) Add(name string, r Record, beat string, now time.Time) {
	n := &Node{Record: r, heard: now, beat: beat}
	if r.Since.After(now) {
		n.Record.Since = now.Truncate(time.Second)
	}
	if r.Silent > 0 && r.Beat == beat {
		// Nothing was heard of it since. Part of the grace is left in any case, to hear it now.
		n.heard = now.Add(-min(r.Silent, p.Grace-listen))
		n.observed = min(r.Observed, p.Grace-listen)
	}
	p.Nodes[name] = n
}

// Heartbeat records that the Lease of a node was renewed: by itself, or through the pool.
func (p *Pool) Heartbeat(name, beat string, isDelegated bool, now time.Time) {
	n, ok := p.Nodes[name]
	if !ok {
		return
	}
	n.heard, n.observed, n.beat = now, 0, beat
	p.hear(now)
	if !isDelegated {
		n.own, n.delegated, n.delegatedSince = now, time.Time{}, time.Time{}
		n.isOutside = p.isObserved(now) && !n.isInside
		return
	}
	if n.delegatedSince.IsZero() || now.Sub(n.delegated) >= Quiet {
		n.delegatedSince = now
	}
	n.delegated, n.spoken = now, now
}

// Posted records that the kubelet of a node has written its status into the Node. Nobody else in the pool can: so the node
// reaches the cloud, and if the pool speaks for it all the same, somebody there lies, and is not believed for DoubtedFor; unless
// the node confirms that it has just come back.
func (p *Pool) Posted(name string, now time.Time) {
	n, ok := p.Nodes[name]
	if !ok {
		return
	}
	p.Heartbeat(name, n.beat, false, now)
	if !n.spoken.IsZero() && now.Sub(n.spoken) < Quiet && n.spoken.Sub(n.confirmed) > inFlight {
		n.doubted = now
	}
}

// Confirmed records that the node itself says that it reaches the cloud again, and was cut off while its pool spoke for it.
func (p *Pool) Confirmed(name string, now time.Time) {
	if n, ok := p.Nodes[name]; ok {
		n.confirmed, n.doubted = now, time.Time{}
	}
}

// isDoubted reports whether the pool is not believed that the node is cut off.
func (n *Node) isDoubted(now time.Time) bool {
	return !n.doubted.IsZero() && now.Sub(n.doubted) < DoubtedFor
}

// Pulse records a pulse of the pool: the hub that leads has the cloud and the coordinator. inside are the nodes whose
// hubs have reached the coordinator.
func (p *Pool) Pulse(inside []string, now time.Time) {
	if !p.isObserved(now) {
		if !p.isUnknown(now) {
			for _, n := range p.Nodes {
				n.observed = 0
			}
		}
		// The hub led before it wrote its first pulse.
		p.pulseSince = latest(p.started, now.Add(-pulsePeriod))
	}
	p.pulse = now
	p.hear(now)
	for name, n := range p.Nodes {
		n.isInside = slices.Contains(inside, name)
	}
}

// Probe records that the manager's own probe came back through the watch by which it hears heartbeats.
func (p *Pool) Probe(now time.Time) {
	if now.Sub(p.probe) >= probeGap {
		p.started, p.heard, p.heardSince = now, now, now
		p.pulse, p.pulseSince = time.Time{}, time.Time{}
		for _, n := range p.Nodes {
			n.heard, n.observed = now, 0
			n.own, n.delegated, n.delegatedSince = time.Time{}, time.Time{}, time.Time{}
		}
	}
	p.probe = now
}

func (p *Pool) hear(now time.Time) {
	if now.Sub(p.heard) >= Quiet {
		p.heardSince = now
	}
	p.heard = now
}

// asOf is the time up to which silences count.
func (p *Pool) asOf(now time.Time) time.Time {
	if p.probe.Before(now) {
		return p.probe
	}
	return now
}

// isObserved reports whether the pool has a fresh pulse.
func (p *Pool) isObserved(asOf time.Time) bool {
	return !p.pulse.IsZero() && asOf.Sub(p.pulse) < Quiet
}

// isUnknown reports whether the pool may have a pulse that was not heard yet, because the manager has just started.
func (p *Pool) isUnknown(asOf time.Time) bool {
	return p.pulse.IsZero() && asOf.Sub(p.started) < Quiet
}

// silence is for how long the node is silent.
func (p *Pool) silence(n *Node, now time.Time) time.Duration {
	return max(0, p.asOf(now).Sub(n.heard))
}

// observed is for how much of the node's silence, until upTo, the pool was observed; 0 without a fresh pulse.
func (p *Pool) observed(n *Node, upTo, now time.Time) time.Duration {
	asOf := p.asOf(now)
	switch {
	case p.isUnknown(asOf):
		return n.observed
	case p.isObserved(asOf):
		return max(0, min(upTo.Sub(n.heard), n.observed+upTo.Sub(p.pulseSince)))
	}
	return 0
}

// poolSilence is for how long nothing is heard of the pool.
func (p *Pool) poolSilence(now time.Time) time.Duration {
	silence := time.Duration(1<<63 - 1)
	for _, n := range p.Nodes {
		silence = min(silence, p.silence(n, now))
	}
	if !p.pulse.IsZero() {
		silence = min(silence, max(0, p.asOf(now).Sub(p.pulse)))
	}
	return silence
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
