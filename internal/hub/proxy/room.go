package proxy

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/internal/hub/identity"
)

const (
	// maxOthersQueues bounds the scopes of all others than the node of which something waits to be stored. The
	// node has maxScopes.
	maxOthersQueues = 512
	// maxForming bounds the lists that are filtered at a time, each of which is in memory as a whole, and
	// formWithin how long another one waits for its turn.
	maxForming, formWithin = 2, 10 * time.Second
)

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

// roomOf is the memory for what waits to be stored for a caller. Nobody takes that of the node.
func (p *Proxy) roomOf(c *call) *room {
	if c.caller.IsNode {
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

// turns are those of who forms lists: maxForming at a time.
type turns struct {
	once  sync.Once
	slots chan struct{}
}

// enter waits for a turn, and not for long. If it returns true, leave must be called.
func (t *turns) enter(ctx context.Context) bool {
	t.once.Do(func() { t.slots = make(chan struct{}, maxForming) })
	timer := time.NewTimer(formWithin)
	defer timer.Stop()
	select {
	case t.slots <- struct{}{}:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

func (t *turns) leave() { <-t.slots }

// busy answers that the hub does too much of this kind at the moment.
func (p *Proxy) busy(w http.ResponseWriter, c *call) {
	if c.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client has gone
	}
	p.refuse(w, c.Request, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "the node's hub answers too many requests of this kind at the moment")
}
