package connectivity

import (
	"maps"
	"slices"
	"time"
)

// Verdict is that a node comes into another state.
type Verdict struct {
	Node     string
	From, To State
	Since    time.Time
	// Reason is one of the reasons of this package.
	Reason string
	// Message is for people, and the same for the same Reason and node.
	Message string
}

// Decision is what is concluded about a pool.
type Decision struct {
	// Verdicts are sorted by node.
	Verdicts []Verdict
	// Records are the records that the nodes should have, by name. Besides verdicts, they change some six times in the
	// first minute of a silence: see Record.Silent.
	Records map[string]Record
	// Next is when to decide again, if no heartbeat, pulse or probe arrives before, nor a record is written.
	Next time.Time
}

// Decide concludes in which state each node of the pool is. It changes nothing: the caller writes the records to the
// Nodes, with Steps, and sets Node.Record when that is done.
//
//	any         ──its own heartbeat──────────────────────────────────────────► Direct
//	any         ──heartbeats through the pool for 15 s───────────────────────► Delegated
//	any         ──silent for the grace, all of it observed by the pool───────► Lost
//	Direct      ──silent for 30 s, and the whole pool for 25 s───────────────► Frozen
//	Delegated   ──silent for the grace, no pulse, some node is heard─────────► Unobserved
//	Delegated   ──silent for the grace, no pulse, nobody is heard────────────► Frozen
//	Unobserved  ──nobody is heard for 25 s───────────────────────────────────► Frozen
//	Unobserved  ──for 300 s──────────────────────────────────────────────────► Lost
//	Frozen      ──spec.frozenLimit; or the pool is heard for 300 s, no pulse─► Lost
//	any         ──the pool has no coordinator────────────────────────────────► Released
//
// A Direct node that is silent in a pool that nobody observes stays Direct: that is plain Kubernetes, which evicts.
func Decide(p *Pool, now time.Time) Decision {
	d := Decision{Records: map[string]Record{}}
	poolSilence := p.poolSilence(now)
	for _, name := range slices.Sorted(maps.Keys(p.Nodes)) {
		n := p.Nodes[name]
		want := n.Record
		if state, reason := p.next(n, poolSilence, now); state != n.Record.State {
			want.State, want.Since, want.Reason = state, now.Truncate(time.Second), reason
			d.Verdicts = append(d.Verdicts, Verdict{Node: name, From: n.Record.State, To: state, Since: want.Since, Reason: reason, Message: n.message(reason)})
		}
		p.note(&want, n, now)
		d.Records[name] = want
	}
	d.Next = p.nextLook(now)
	return d
}

// next returns the state that the node is in now, and the reason if that is another one than before.
func (p *Pool) next(n *Node, poolSilence time.Duration, now time.Time) (state State, reason string) {
	state = n.Record.State
	if !p.HasCoordinator {
		// A node that has just come back is Direct, and what was done to it is not undone yet: if it dies now, nobody
		// else would do that.
		if state == Direct && n.Record.Since.IsZero() {
			return Direct, ""
		}
		return Released, ReasonReleased
	}
	if state != Direct && (n.isHeardSince(n.Record.Since) || n.isDoubted(now) && !n.doubted.Before(n.Record.Since)) {
		state, reason = Direct, ReasonHeard
	}
	silence := p.silence(n, now)
	// A manager that has just started waits for a pulse, before it takes the pool for silent.
	isSilent, isPoolSilent := silence >= p.Grace, poolSilence >= Quiet && p.asOf(now).Sub(p.started) >= listen
	switch {
	case n.delegated.Sub(n.delegatedSince) >= DelegatedAfter && !isSilent && !n.isDoubted(now):
		return Delegated, ReasonDelegated
	// Until the last pulse: since then nobody has said that it could be heard.
	case p.isObserved(p.asOf(now)) && p.observed(n, p.pulse, now) >= p.Grace:
		return Lost, ReasonLost
	}
	inState := p.asOf(now).Sub(n.Record.Since)
	switch state {
	case Direct, Released:
		// A node that was silent for the grace before its pool was is not frozen: Kubernetes has acted already.
		if silence >= p.freezeAfter() && isPoolSilent && silence-poolSilence < p.Grace {
			return Frozen, ReasonFrozen
		}
	case Delegated:
		asOf := p.asOf(now)
		switch {
		case !isSilent || p.isObserved(asOf) || p.isUnknown(asOf):
		case isPoolSilent:
			return Frozen, ReasonFrozen
		default:
			return Unobserved, ReasonUnobserved
		}
	case Unobserved:
		switch {
		case isPoolSilent:
			return Frozen, ReasonFrozen
		case isSilent && inState >= UnobservedLimit:
			return Lost, ReasonUnobservedLimit
		}
	case Frozen:
		switch {
		case isSilent && p.FrozenLimit != nil && inState >= *p.FrozenLimit:
			return Lost, ReasonFrozenLimit
		case isSilent && !isPoolSilent && min(inState, p.asOf(now).Sub(p.heardSince)) >= UnobservedLimit:
			return Lost, ReasonUnobservedLimit
		}
	}
	return state, reason
}

// freezeAfter leaves 15 s to write before kube-controller-manager acts.
func (p *Pool) freezeAfter() time.Duration { return min(freezeAfter, p.Grace-listen) }

// isHeardSince reports whether the last heartbeat of the node was its own, and not before t.
func (n *Node) isHeardSince(t time.Time) bool {
	return !n.own.IsZero() && n.delegatedSince.IsZero() && !n.own.Before(t)
}

// message returns the message of a verdict.
func (n *Node) message(reason string) string {
	if reason == ReasonLost && n.isOutside {
		return "the node is silent, and did not reach the coordinator of its pool before, so that nobody can tell whether it is dead; the pods of the node are evicted when their tolerations end"
	}
	return messages[reason]
}

// note writes into a record for how long the node is silent: in steps of 10 s, so that it is seldom written to the Node,
// and without what a manager that starts would not count. Observed ends with the last pulse, so that it does not grow
// for a node that could not be heard because the pulse has ended, too.
func (p *Pool) note(r *Record, n *Node, now time.Time) {
	silent := p.silence(n, now)
	switch {
	case silent < listen || !p.HasCoordinator:
		r.Silent, r.Observed, r.Beat = 0, 0, ""
	case r.State != Lost || r.Beat != n.beat:
		r.Silent = p.step(silent, listen)
		r.Observed = p.step(p.observed(n, p.pulse, now), 0)
		r.Beat = n.beat
	}
}

// step rounds d down to from plus a multiple of noteEvery. What a manager that starts counts at most is the last step.
func (p *Pool) step(d, from time.Duration) time.Duration {
	if most := p.Grace - listen; d >= most {
		return most
	}
	return from + (d - from).Truncate(noteEvery)
}

// nextLook returns the first time after now at which the clock alone can change what Decide says, if the probe comes
// back until then. It may be too early.
func (p *Pool) nextLook(now time.Time) time.Time {
	at := []time.Time{p.started.Add(listen), p.started.Add(Quiet), p.pulse.Add(Quiet), p.heard.Add(Quiet), p.heardSince.Add(UnobservedLimit)}
	for _, n := range p.Nodes {
		at = append(at, n.heard.Add(Quiet), n.heard.Add(p.freezeAfter()), n.heard.Add(p.Grace), p.pulseSince.Add(p.Grace-n.observed), n.Record.Since.Add(UnobservedLimit))
		if p.FrozenLimit != nil {
			at = append(at, n.Record.Since.Add(*p.FrozenLimit))
		}
		for d := listen; d < p.Grace; d += noteEvery {
			at = append(at, n.heard.Add(d))
		}
	}
	next := now.Add(time.Hour)
	for _, t := range at {
		if t.After(now) && t.Before(next) {
			next = t
		}
	}
	return next
}
