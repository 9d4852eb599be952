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
	// maxAnswers limits the requests of a caller that are answered at a time, and maxAllAnswers those of all but the
	// node: each may have a part of an answer in memory that its client does not read. maxStreams and maxAllStreams limit
	// watches and other protocols. maxWaiting limits the requests of a caller that wait for a slot.
	maxAnswers, maxAllAnswers = 64, 256
	maxStreams, maxAllStreams = 200, 400
	maxWaiting                = 192
	// maxStrange limits the requests of a connection, and maxAllStrange those of all, that are in progress with a
	// token that the cloud has not accepted yet: anybody can invent such tokens, and everybody begins with one.
	maxStrange, maxAllStrange = 4, 64
	// maxFiltered limits the lists that are filtered for a caller at a time, and maxAllFiltered those for all: each is
	// in memory as a whole.
	maxFiltered, maxAllFiltered = 1, 2
	// maxCached limits the collections that a caller gets from the cache at a time, and maxAllCached those that all but
	// the node get: to read one takes CPU time, of which the node needs some. Documents of more than maxSmall bytes count.
	maxCached, maxAllCached = 1, 4
	maxSmall                = 64 << 10
	// maxScopes limits the scopes of the node of which something waits to be stored, and maxOthersQueues those of all
	// others.
	maxScopes, maxOthersQueues = 3000, 512
)

// limiters are the limits of what is in progress. Those of requests are for all but the node; to filter a list the node
// takes a slot, too.
type limiters struct {
	answers, streams, strangers, strangeStreams, cached, filtered *limits.Requests
	// ofNode and ofOthers limit the bytes of answers that wait to be stored.
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

// slot is that of a request in progress.
type slot struct {
	in  *limits.Requests
	who string
}

func (s *slot) release() { s.in.Release(s.who) }

// isStream reports whether a request may last.
func (c *call) isStream() bool { return c.what.Kind == request.Watch || c.what.Kind == request.Stream }

// isKnown reports whether the cloud has accepted the caller. A token that it has not accepted may claim any name.
func (p *Proxy) isKnown(c *call) bool { return c.caller.IsNode || p.Tokens.Knows(c.caller.Token) }

// whose returns who has the slot of a request: those whom the cloud has not accepted share theirs.
func (p *Proxy) whose(c *call) string {
	if !p.isKnown(c) {
		return ""
	}
	return c.caller.Name
}

// slotFor returns the slot for a request. No answer to one for another protocol proves its token: it has a
// stranger's for as long as it lasts, and there are some of their own for it.
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

// isStrange reports whether a request has a slot of strangers that it does not keep.
func (p *Proxy) isStrange(c *call) bool { return c.slot != nil && c.slot.in == p.limits().strangers }

// admit waits for a slot for a request of others than the node. It returns the writer for the answer, and what releases
// the slot; that is nil if the request was rejected.
func (p *Proxy) admit(w http.ResponseWriter, c *call) (_ http.ResponseWriter, release func()) {
	ctx, cancel := context.WithTimeout(c.Context(), limits.WaitWithin)
	defer cancel()
	s := p.slotFor(c)
	is := s.in.Acquire(ctx, s.who)
	if is && s.in == p.limits().strangers && p.isKnown(c) { // another request has shown that meanwhile
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

// leaveStrangers gives a request that the cloud has accepted a slot of known callers, if one is free: what begins as
// a stranger's may last.
func (p *Proxy) leaveStrangers(c *call) {
	if !p.isStrange(c) {
		return
	}
	if s := p.slotFor(c); s.in.TryAcquire(s.who) {
		c.slot.release()
		*c.slot = s
	}
}

// inTurn calls answer when the caller has a slot.
func (p *Proxy) inTurn(w http.ResponseWriter, c *call, in *limits.Requests, answer func()) {
	who := p.whose(c)
	if !in.Acquire(c.Context(), who) {
		p.busy(w, c)
		return
	}
	defer in.Release(who)
	answer()
}

// fromCacheInTurn calls answer, which reads a collection of the cache. All but the node wait for their turn.
func (p *Proxy) fromCacheInTurn(w http.ResponseWriter, c *call, answer func()) {
	if c.caller.IsNode {
		answer()
		return
	}
	p.inTurn(w, c, p.limits().cached, answer)
}

// busy answers that the hub does too much of this kind at the moment.
func (p *Proxy) busy(w http.ResponseWriter, c *call) {
	if p.hasEnded(w, c.Request) {
		return
	}
	p.refuse(w, c.Request, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "the node's hub answers too many requests of this kind at the moment")
}

// bytesOf is the limit of what waits to be stored for a caller. The node has its own, and what its hub reads of the pool
// is not part of that.
func (p *Proxy) bytesOf(c *call) *limits.Bytes {
	if c.caller == identity.OfNode() {
		return p.limits().ofNode
	}
	return p.limits().ofOthers
}

// keepSized is keep for n bytes that are in memory until they are stored.
func (p *Proxy) keepSized(c *call, n int, store func(*state) error) bool {
	limit := p.bytesOf(c)
	if !limit.Take(int64(n)) {
		p.Log.V(2).Info("An answer is not kept, because too much waits to be stored", "path", c.URL.Path)
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

// isOfNode reports whether a key is one of the node's scopes.
func isOfNode(key string) bool { return strings.HasPrefix(key, identity.OfNode().Name+"\n") }
