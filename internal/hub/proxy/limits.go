package proxy

import (
	"cmp"
	"context"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/internal/hub/identity"
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
	// maxScopes limits the scopes of the node with jobs in queues, and maxOthersQueues the scopes of all other
	// callers with jobs.
	maxScopes, maxOthersQueues = 3000, 512
)

// limiters limit work in progress. The limits for requests do not apply to the node, except that the node also
// needs a slot to filter a list.
type limiters struct {
	answers, streams, strangers, strangeStreams, cached, filtered *limits.Requests
	// ofNode and ofOthers limit the bytes of responses that wait to be stored.
	ofNode, ofOthers *limits.Bytes
}

// limits returns the limiters.
func (p *Proxy) limits() *limiters {
	p.limiting.Do(func() {
		p.limiters = limiters{
			answers:        limits.NewRequests(maxAnswers, maxAllAnswers, maxWaiting),
			streams:        limits.NewRequests(maxStreams, maxAllStreams, 0),
			strangers:      limits.NewRequests(maxStrange, maxAllStrange, maxWaiting),
			strangeStreams: limits.NewRequests(maxStrange, maxAllStrange, 0),
			cached:         limits.NewRequests(maxCached, maxAllCached, maxWaiting),
			filtered:       limits.NewRequests(maxFiltered, maxAllFiltered, maxWaiting),
			ofNode:         limits.NewBytes(maxAnswer),
			ofOthers:       limits.NewBytes(maxAnswer),
		}
	})
	return &p.limiters
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
func (p *Proxy) isKnown(c *call) bool { return c.caller.IsNode || p.Tokens.Knows(c.caller.Token) }

// whose returns the name under which a request takes slots. All callers whose token the cloud has not accepted
// share one name.
func (p *Proxy) whose(c *call) string {
	if !p.isKnown(c) {
		return ""
	}
	return c.caller.Name
}

// slotFor returns the slot for a request. A request for another protocol with an unknown token keeps its slot of
// strangers until it ends, because no response to it proves the token. It has separate slots for this reason.
func (p *Proxy) slotFor(c *call) slot {
	in, isKnown := p.limits(), p.isKnown(c)
	switch {
	case isKnown && c.isStream():
		return slot{in.streams, c.caller.Name}
	case isKnown:
		return slot{in.answers, c.caller.Name}
	case c.what.Kind == request.Stream:
		return slot{in.strangeStreams, c.RemoteAddr}
	default:
		return slot{in.strangers, c.RemoteAddr}
	}
}

// isStrange reports whether a request has a slot of strangers that it may leave: see leaveStrangers.
func (p *Proxy) isStrange(c *call) bool { return c.slot != nil && c.slot.in == p.limits().strangers }

// admit waits for a slot for a request of a caller other than the node. It returns the writer for the response,
// and a function that releases the slot. The function is nil if the request was rejected.
func (p *Proxy) admit(w http.ResponseWriter, c *call) (_ http.ResponseWriter, release func()) {
	ctx, cancel := context.WithTimeout(c.Context(), limits.WaitWithin)
	defer cancel()
	s := p.slotFor(c)
	is := s.in.Acquire(ctx, s.who)
	if is && s.in == p.limits().strangers && p.isKnown(c) { // another request has proved the token meanwhile
		s.release()
		s = p.slotFor(c)
		is = s.in.Acquire(ctx, s.who)
	}
	if !is {
		p.busy(w, c)
		return w, nil
	}
	c.slot = &s
	release = s.release
	if c.Body != http.NoBody {
		release = p.bound(w, c, release)
	}
	if c.what.Kind == request.Watch {
		return w, release
	}
	return limits.NewWriter(w, cmp.Or(p.slowAfter, limits.TakeWithin)), release
}

// leaveStrangers moves a request that the cloud has accepted from a slot of strangers to a slot of known
// callers, if one is free, so that requests that last do not take the slots of strangers.
func (p *Proxy) leaveStrangers(c *call) {
	if !p.isStrange(c) {
		return
	}
	if s := p.slotFor(c); s.in.TryAcquire(s.who) {
		c.slot.release()
		*c.slot = s
	}
}

// inTurn calls answer when the caller has a slot. Without a slot it answers 429.
func (p *Proxy) inTurn(w http.ResponseWriter, c *call, in *limits.Requests, answer func()) {
	who := p.whose(c)
	if !in.Acquire(c.Context(), who) {
		p.busy(w, c)
		return
	}
	defer in.Release(who)
	answer()
}

// fromCacheInTurn calls answer, which reads a collection from the cache. Callers other than the node wait for a
// slot.
func (p *Proxy) fromCacheInTurn(w http.ResponseWriter, c *call, answer func()) {
	if c.caller.IsNode {
		answer()
		return
	}
	p.inTurn(w, c, p.limits().cached, answer)
}

// busy answers 429: too many requests of this kind are in progress.
func (p *Proxy) busy(w http.ResponseWriter, c *call) {
	if p.hasEnded(w, c.Request) {
		return
	}
	p.refuse(w, c.Request, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "too many requests of this kind are in progress in the hub")
}

// bytesOf returns the limit for the bytes of a caller that wait to be stored. The node has its own limit, which
// does not include what the hub itself reads of the pool.
func (p *Proxy) bytesOf(c *call) *limits.Bytes {
	if c.caller == identity.OfNode() {
		return p.limits().ofNode
	}
	return p.limits().ofOthers
}

// keepSized is keep for n bytes that stay in memory until they are stored.
func (p *Proxy) keepSized(c *call, n int, store func(*state) error) bool {
	limit := p.bytesOf(c)
	if !limit.Take(int64(n)) {
		p.Log.V(2).Info("A response is not cached, because too many bytes wait to be stored", "path", c.URL.Path)
		return false
	}
	queued := p.keep(c, func(s *state) error {
		defer limit.Give(int64(n))
		return store(s)
	})
	if !queued {
		limit.Give(int64(n))
	}
	return queued
}

// isOfNode reports whether a key is the key of a scope of the node.
func isOfNode(key string) bool { return strings.HasPrefix(key, identity.OfNode().Name+"\n") }
