package proxy

import (
	"strings"

	"github.com/atoll-k8s/atoll/internal/hub/identity"
)

// maxScopes bounds the scopes of the node of which something waits to be stored, and maxOthersQueues those of all
// others.
const maxScopes, maxOthersQueues = 3000, 512

// take takes n bytes, if there is room for them until give is called.
func (r *room) take(n int) bool {
	if r.taken.Add(int64(n)) <= maxAnswer {
		return true
	}
	r.give(n)
	return false
}

// give gives back what was taken.
func (r *room) give(n int) { r.taken.Add(-int64(n)) }

// roomOf is the memory for what waits to be stored for a caller. Nobody takes that of the node, nor does what it reads
// of its pool.
func (p *Proxy) roomOf(c *call) *room {
	if c.caller == identity.OfNode() {
		return &p.own
	}
	return &p.others
}

// keepSized is keep for what is in memory, n bytes, until it is stored.
func (p *Proxy) keepSized(c *call, n int, store func(*state) error) bool {
	room := p.roomOf(c)
	if !room.take(n) {
		p.Log.V(2).Info("An answer is not kept, because too much waits to be stored", "path", c.URL.Path)
		return false
	}
	queued := p.keep(c, func(s *state) error {
		defer room.give(n)
		return store(s)
	})
	if !queued {
		room.give(n)
	}
	return queued
}

// isOfNode reports whether a key is one of the node's scopes.
func isOfNode(key string) bool { return strings.HasPrefix(key, identity.OfNode().Name+"\n") }
