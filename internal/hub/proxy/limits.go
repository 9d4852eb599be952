package proxy

import (
	"cmp"
	"context"
	"net/http"

	"github.com/atoll-k8s/atoll/internal/hub/limits"
	"github.com/atoll-k8s/atoll/internal/hub/request"
)

const (
	// maxAnswers limits the concurrent requests of a caller, and maxAllAnswers the concurrent requests of all
	// callers but the node: each may have a part of a response in memory that its client does not read.
	// maxStreams and maxAllStreams limit watches and requests for other protocols. maxWaiting limits the
	// requests of a caller that wait for a slot.
	maxAnswers, maxAllAnswers = 64, 256
	maxStreams, maxAllStreams = 200, 400
	maxWaiting                = 192
	// maxStrange limits the concurrent requests of strangers on one connection, and maxAllStrange those on all
	// connections. A stranger is a caller with a token that the cloud has not accepted yet: anyone can invent
	// such a token, and every caller begins as a stranger.
	maxStrange, maxAllStrange = 4, 64
	// maxFiltered limits the lists that are filtered concurrently for a caller, and maxAllFiltered for all
	// callers: each list is completely in memory.
	maxFiltered, maxAllFiltered = 1, 2
	// maxCached limits the collections that a caller reads concurrently from the cache, and maxAllCached those
	// of all callers but the node: reading a collection takes CPU time, and the node needs some. Documents of
	// more than maxSmall bytes count as collections.
	maxCached, maxAllCached = 1, 4
	maxSmall                = 64 << 10
)

// limiters limit work in progress. The limits for requests do not apply to the node, except that the node also
// needs a slot for a list with a topology.
type limiters struct {
	*Options

	errors *errorAnswers

	answers, streams, strangers, strangeStreams, cached, filtered *limits.Requests
}

func newLimiters(o *Options, errors *errorAnswers) *limiters {
	return &limiters{
		Options: o, errors: errors,
		answers:        limits.NewRequests(maxAnswers, maxAllAnswers, maxWaiting),
		streams:        limits.NewRequests(maxStreams, maxAllStreams, 0),
		strangers:      limits.NewRequests(maxStrange, maxAllStrange, maxWaiting),
		strangeStreams: limits.NewRequests(maxStrange, maxAllStrange, 0),
		cached:         limits.NewRequests(maxCached, maxAllCached, maxWaiting),
		filtered:       limits.NewRequests(maxFiltered, maxAllFiltered, maxWaiting),
	}
}

// slot is the slot of a request in progress.
type slot struct {
	in  *limits.Requests
	who string
}

func (s *slot) release() { s.in.Release(s.who) }

// isStream reports whether a request may last long.
func (c *call) isStream() bool { return c.what.Kind == request.Watch || c.what.Kind == request.Stream }

// isKnown reports whether the cloud has accepted the caller's token, or the caller is the node. A token that the
// cloud has not accepted may contain any name.
func (l *limiters) isKnown(c *call) bool { return c.caller.IsNode || l.Tokens.Knows(c.caller.Token) }

// whose returns the name under which a request takes slots. All callers whose token the cloud has not accepted
// share one name.
func (l *limiters) whose(c *call) string {
	if !l.isKnown(c) {
		return ""
	}
	return c.caller.Name
}

// slotFor returns the slot for a request. A request for another protocol with an unknown token keeps its slot of
// strangers until it ends, because no response to it proves the token. It has separate slots for this reason.
func (l *limiters) slotFor(c *call) slot {
	isKnown := l.isKnown(c)
	switch {
	case isKnown && c.isStream():
		return slot{l.streams, c.caller.Name}
	case isKnown:
		return slot{l.answers, c.caller.Name}
	case c.what.Kind == request.Stream:
		return slot{l.strangeStreams, c.RemoteAddr}
	default:
		return slot{l.strangers, c.RemoteAddr}
	}
}

// isStrange reports whether a request has a slot of strangers that it may leave: see leaveStrangers.
func (l *limiters) isStrange(c *call) bool { return c.slot != nil && c.slot.in == l.strangers }

// admit waits for a slot for a request of a caller other than the node. It returns the writer for the response,
// and a function that releases the slot. The function is nil if the request was rejected.
func (l *limiters) admit(w http.ResponseWriter, c *call) (_ http.ResponseWriter, release func()) {
	ctx, cancel := context.WithTimeout(c.Context(), limits.WaitWithin)
	defer cancel()
	s := l.slotFor(c)
	is := s.in.Acquire(ctx, s.who)
	if is && s.in == l.strangers && l.isKnown(c) { // another request has proved the token meanwhile
		s.release()
		s = l.slotFor(c)
		is = s.in.Acquire(ctx, s.who)
	}
	if !is {
		l.errors.busy(w, c)
		return w, nil
	}
	c.slot = &s
	release = s.release
	if c.Body != http.NoBody {
		release = l.boundBody(w, c, release)
	}
	if c.what.Kind == request.Watch {
		return w, release
	}
	return limits.NewWriter(w, cmp.Or(l.slowAfter, limits.TakeWithin)), release
}

// leaveStrangers moves a request that the cloud has accepted from a slot of strangers to a slot of known
// callers, if one is free, so that requests that last do not take the slots of strangers.
func (l *limiters) leaveStrangers(c *call) {
	if !l.isStrange(c) {
		return
	}
	if s := l.slotFor(c); s.in.TryAcquire(s.who) {
		c.slot.release()
		*c.slot = s
	}
}

// inTurn calls answer when the caller has a slot. Without a slot it answers 429.
func (l *limiters) inTurn(w http.ResponseWriter, c *call, in *limits.Requests, answer func()) {
	who := l.whose(c)
	if !in.Acquire(c.Context(), who) {
		l.errors.busy(w, c)
		return
	}
	defer in.Release(who)
	answer()
}

// fromCacheInTurn calls answer, which reads a collection from the cache. Callers other than the node wait for a
// slot.
func (l *limiters) fromCacheInTurn(w http.ResponseWriter, c *call, answer func()) {
	if c.caller.IsNode {
		answer()
		return
	}
	l.inTurn(w, c, l.cached, answer)
}
