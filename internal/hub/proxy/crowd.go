package proxy

import (
	"cmp"
	"context"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/internal/hub/request"
)

const (
	// maxAnswers bounds the requests of an identity that are answered at a time, and maxAllAnswers those of all
	// but the node: each may have a part of an answer in memory that its client does not read. maxStreams and
	// maxAllStreams bound watches and other protocols. maxWaiting bounds the requests of an identity that wait.
	maxAnswers, maxAllAnswers = 64, 256
	maxStreams, maxAllStreams = 200, 400
	maxWaiting                = 192
	// turnWithin bounds how long a request waits for its place.
	turnWithin = 10 * time.Second
	// maxFormed bounds the lists that are filtered for an identity at a time, and maxAllFormed those for all: each is
	// in memory as a whole.
	maxFormed, maxAllFormed = 1, 2
	// maxCached bounds the collections that an identity gets from the cache at a time, and maxAllCached those that
	// all but the node get: to read one is work for the processor, of which the node wants some.
	maxCached, maxAllCached = 1, 4
	// takeWithin bounds how long a client may take for a part of an answer, and bodyWithin for the body of its request.
	takeWithin, bodyWithin = 30 * time.Second, time.Minute
)

// places bounds requests in progress: ofOne of each identity, ofAll of all of them. waiting bounds those of
// an identity that wait for a place, which nobody does for long.
type places struct {
	ofOne, ofAll, waiting int

	mu  sync.Mutex
	all chan struct{}
	of  map[string]*placesOfOne
}

type placesOfOne struct {
	taken chan struct{}
	users int // who has a place, or waits for one
}

// enter waits for a place. If it returns true, leave must be called.
func (p *places) enter(ctx context.Context, who string) bool {
	p.mu.Lock()
	if p.all == nil {
		p.all, p.of = make(chan struct{}, p.ofAll), map[string]*placesOfOne{}
	}
	one := p.of[who]
	if one == nil {
		one = &placesOfOne{taken: make(chan struct{}, p.ofOne)}
		p.of[who] = one
	}
	if one.users >= p.ofOne+p.waiting {
		p.mu.Unlock()
		return false
	}
	one.users++
	p.mu.Unlock()
	timer := time.NewTimer(turnWithin)
	defer timer.Stop()
	for i, places := range []chan struct{}{one.taken, p.all} {
		select {
		case places <- struct{}{}:
			continue
		case <-timer.C:
		case <-ctx.Done():
		}
		if i > 0 {
			<-one.taken
		}
		p.forget(who)
		return false
	}
	return true
}

// leave gives a place back.
func (p *places) leave(who string) {
	p.mu.Lock()
	one := p.of[who]
	p.mu.Unlock()
	<-p.all
	<-one.taken
	p.forget(who)
}

// forget forgets a user, and an identity without users.
func (p *places) forget(who string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[who].users--; p.of[who].users == 0 {
		delete(p.of, who)
	}
}

// crowd has the places of all but the node. For a list that is filtered the node takes a place, too.
type crowd struct{ answers, streams, cached, formed places }

func newCrowd() *crowd {
	return &crowd{
		answers: places{ofOne: maxAnswers, ofAll: maxAllAnswers, waiting: maxWaiting},
		streams: places{ofOne: maxStreams, ofAll: maxAllStreams},
		cached:  places{ofOne: maxCached, ofAll: maxAllCached, waiting: maxWaiting},
		formed:  places{ofOne: maxFormed, ofAll: maxAllFormed, waiting: maxWaiting},
	}
}

// places returns the crowd's.
func (p *Proxy) places() *crowd {
	p.crowding.Do(func() { p.crowd = newCrowd() })
	return p.crowd
}

// strangers are together one identity: a token that the cloud has not accepted yet may claim any.
const strangers = ""

// whose returns who has the place of a request.
func (p *Proxy) whose(c *call) string {
	if !c.caller.IsNode && !p.Tokens.Knows(c.caller.Token) {
		return strangers
	}
	return c.caller.Name
}

// admit waits until a request of somebody else than the node may be answered, and returns with what to answer it,
// and what gives its place back; nil if it is answered already.
func (p *Proxy) admit(w http.ResponseWriter, c *call) (http.ResponseWriter, func()) {
	who, in := p.whose(c), &p.places().answers
	isStream := c.what.Kind == request.Watch || c.what.Kind == request.Stream
	if isStream {
		in = &p.places().streams
	}
	if !in.enter(c.Context(), who) {
		p.busy(w, c)
		return w, nil
	}
	if !isStream {
		if c.Body != http.NoBody {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyWithin))
		}
		w = &paced{ResponseWriter: w, controller: http.NewResponseController(w), within: cmp.Or(p.slowAfter, takeWithin)}
	}
	return w, func() { in.leave(who) }
}

// inTurn calls answer when the caller has a place.
func (p *Proxy) inTurn(w http.ResponseWriter, c *call, in *places, answer func()) {
	who := p.whose(c)
	if !in.enter(c.Context(), who) {
		p.busy(w, c)
		return
	}
	defer in.leave(who)
	answer()
}

// fromCacheInTurn calls answer, which reads a collection of the cache. All but the node have to wait for their turn.
func (p *Proxy) fromCacheInTurn(w http.ResponseWriter, c *call, answer func()) {
	if c.caller.IsNode {
		answer()
		return
	}
	p.inTurn(w, c, &p.places().cached, answer)
}

// paced ends an answer whose client does not take it. An answer that is silent, because the cloud is, goes on.
type paced struct {
	http.ResponseWriter

	controller *http.ResponseController
	within     time.Duration
	until      time.Time // bounds all of the answer; zero is none
}

// Write implements http.ResponseWriter.
func (p *paced) Write(part []byte) (n int, err error) {
	p.inTime(func() error { n, err = p.ResponseWriter.Write(part); return err })
	return n, err
}

// FlushError is for http.ResponseController.
func (p *paced) FlushError() (err error) {
	p.inTime(func() error { err = p.controller.Flush(); return err })
	return err
}

// inTime calls give, which gives the client something, and does not wait for long.
func (p *paced) inTime(give func() error) {
	limit := time.Now().Add(p.within)
	if !p.until.IsZero() && p.until.Before(limit) {
		limit = p.until
	}
	_ = p.controller.SetWriteDeadline(limit)
	if give() == nil {
		_ = p.controller.SetWriteDeadline(p.until) // else it would end an answer that is silent
	}
}

// SetWriteDeadline bounds all of the answer: see http.ResponseController.
func (p *paced) SetWriteDeadline(limit time.Time) error {
	p.until = limit
	return p.controller.SetWriteDeadline(limit)
}

// Unwrap is for http.ResponseController.
func (p *paced) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// busy answers that the hub does too much of this kind at the moment.
func (p *Proxy) busy(w http.ResponseWriter, c *call) {
	if c.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client has gone
	}
	p.refuse(w, c.Request, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "the node's hub answers too many requests of this kind at the moment")
}
