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
	// maxStrange bounds the requests of a connection, and maxAllStrange those of all, that are in progress with a
	// token that the cloud has not accepted yet: anybody can invent such tokens, and everybody begins with one.
	maxStrange, maxAllStrange = 4, 64
	// turnWithin bounds how long a request waits for its place.
	turnWithin = 10 * time.Second
	// maxFormed bounds the lists that are filtered for an identity at a time, and maxAllFormed those for all: each is
	// in memory as a whole.
	maxFormed, maxAllFormed = 1, 2
	// maxCached bounds the collections that an identity gets from the cache at a time, and maxAllCached those that
	// all but the node get: to read one is work for the processor, of which the node wants some. So is a document of
	// more than maxSmall bytes.
	maxCached, maxAllCached = 1, 4
	maxSmall                = 64 << 10
	// TakeWithin bounds how long a client may take for a part of an answer, or for an event.
	TakeWithin = 30 * time.Second
)

// places bounds requests in progress: ofOne of each identity, ofAll of all of them. waiting bounds those of
// an identity that wait for a place, which nobody does for long; without it nobody waits.
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
	if p.waiting == 0 {
		return p.enterNow(who)
	}
	timer := time.NewTimer(turnWithin)
	defer timer.Stop()
	return p.enterUnless(who, func(place chan<- struct{}) bool {
		select {
		case place <- struct{}{}:
			return true
		case <-timer.C:
		case <-ctx.Done():
		}
		return false
	})
}

// enterNow takes a place if there is one. If it returns true, leave must be called.
func (p *places) enterNow(who string) bool {
	return p.enterUnless(who, func(chan<- struct{}) bool { return false })
}

// enterUnless takes a place. Where there is none, wait waits for it, and returns false if it has not got it.
func (p *places) enterUnless(who string, wait func(place chan<- struct{}) bool) bool {
	one := p.use(who)
	if one == nil {
		return false
	}
	for i, places := range []chan struct{}{one.taken, p.all} {
		select {
		case places <- struct{}{}: // before nobody who waits: they get what is given back
			continue
		default:
		}
		if wait(places) {
			continue
		}
		if i > 0 {
			<-one.taken
		}
		p.forget(who)
		return false
	}
	return true
}

// use adds a user to those of an identity; nil if it has too many.
func (p *places) use(who string) *placesOfOne {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == nil {
		p.all, p.of = make(chan struct{}, p.ofAll), map[string]*placesOfOne{}
	}
	one := p.of[who]
	if one == nil {
		one = &placesOfOne{taken: make(chan struct{}, p.ofOne)}
		p.of[who] = one
	}
	if one.users >= p.ofOne+p.waiting {
		return nil
	}
	one.users++
	return one
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
type crowd struct{ answers, streams, strangers, strangeStreams, cached, formed places }

func newCrowd() *crowd {
	return &crowd{
		answers:        places{ofOne: maxAnswers, ofAll: maxAllAnswers, waiting: maxWaiting},
		streams:        places{ofOne: maxStreams, ofAll: maxAllStreams},
		strangers:      places{ofOne: maxStrange, ofAll: maxAllStrange, waiting: maxWaiting},
		strangeStreams: places{ofOne: maxStrange, ofAll: maxAllStrange},
		cached:         places{ofOne: maxCached, ofAll: maxAllCached, waiting: maxWaiting},
		formed:         places{ofOne: maxFormed, ofAll: maxAllFormed, waiting: maxWaiting},
	}
}

// places returns the crowd's.
func (p *Proxy) places() *crowd {
	p.crowding.Do(func() { p.crowd = newCrowd() })
	return p.crowd
}

// place is that of a request in progress.
type place struct {
	in  *places
	who string
}

func (p *place) leave() { p.in.leave(p.who) }

// isStream reports whether a request may last.
func (c *call) isStream() bool { return c.what.Kind == request.Watch || c.what.Kind == request.Stream }

// isKnown reports whether the cloud has accepted the caller. A token that it has not accepted may claim any name.
func (p *Proxy) isKnown(c *call) bool { return c.caller.IsNode || p.Tokens.Knows(c.caller.Token) }

// whose returns who has the place of a request: those whom the cloud has not accepted have theirs together.
func (p *Proxy) whose(c *call) string {
	if !p.isKnown(c) {
		return ""
	}
	return c.caller.Name
}

// placeFor returns the place for a request. No answer to one for another protocol proves its token: it has a
// stranger's for as long as it lasts, and there are some of their own for it.
func (p *Proxy) placeFor(c *call) place {
	in, isKnown := p.places(), p.isKnown(c)
	switch {
	case isKnown && c.isStream():
		return place{&in.streams, c.caller.Name}
	case isKnown:
		return place{&in.answers, c.caller.Name}
	case c.what.Kind == request.Stream:
		return place{&in.strangeStreams, c.RemoteAddr}
	default:
		return place{&in.strangers, c.RemoteAddr}
	}
}

// isStrange reports whether a request has a place of strangers that it does not keep.
func (p *Proxy) isStrange(c *call) bool { return c.place != nil && c.place.in == &p.places().strangers }

// admit waits until a request of somebody else than the node may be answered, and returns with what to answer it,
// and what gives its place back; nil if it is answered already.
func (p *Proxy) admit(w http.ResponseWriter, c *call) (_ http.ResponseWriter, leave func()) {
	ctx, cancel := context.WithTimeout(c.Context(), turnWithin)
	defer cancel()
	at := p.placeFor(c)
	is := at.in.enter(ctx, at.who)
	if is && at.in == &p.places().strangers && p.isKnown(c) { // another request has shown that meanwhile
		at.leave()
		at = p.placeFor(c)
		is = at.in.enter(ctx, at.who)
	}
	if !is {
		p.busy(w, c)
		return w, nil
	}
	c.place = &at
	leave = at.leave
	if c.Body != http.NoBody {
		leave = p.bound(w, c, leave)
	}
	if c.what.Kind == request.Watch {
		return w, leave
	}
	return &paced{ResponseWriter: w, controller: http.NewResponseController(w), within: cmp.Or(p.slowAfter, TakeWithin)}, leave
}

// leaveStrangers gives a request that the cloud has accepted a place among such, if there is one: what begins as
// a stranger's may last.
func (p *Proxy) leaveStrangers(c *call) {
	if !p.isStrange(c) {
		return
	}
	if at := p.placeFor(c); at.in.enterNow(at.who) {
		c.place.leave()
		*c.place = at
	}
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

// paced ends an answer whose client does not take it. An answer that is silent, because the cloud is, goes on. It
// sets a deadline only then: one with each part is a message to the server of HTTP/2.
type paced struct {
	http.ResponseWriter

	controller *http.ResponseController
	within     time.Duration
	timer      *time.Timer // nil before the first part

	mu    sync.Mutex
	began time.Time // to give a part; zero is between two
}

// Write implements http.ResponseWriter.
func (p *paced) Write(part []byte) (int, error) {
	defer p.begin()()
	return p.ResponseWriter.Write(part)
}

// FlushError is for http.ResponseController.
func (p *paced) FlushError() error {
	defer p.begin()()
	return p.controller.Flush()
}

// begin is called before the client is given a part, and what it returns when it has taken it.
func (p *paced) begin() (taken func()) {
	p.set(time.Now())
	if p.timer == nil {
		p.timer = time.AfterFunc(p.within, p.end)
	} else {
		p.timer.Reset(p.within)
	}
	return p.taken
}

func (p *paced) taken() {
	p.timer.Stop()
	p.set(time.Time{})
}

func (p *paced) set(began time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.began = began
}

// end ends the answer if its client takes too long for a part. It never runs after the answer, when the writer is not
// to be used any more.
func (p *paced) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.began.IsZero() && time.Since(p.began) >= p.within {
		_ = p.controller.SetWriteDeadline(time.Now())
	}
}

// Unwrap is for http.ResponseController.
func (p *paced) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// busy answers that the hub does too much of this kind at the moment.
func (p *Proxy) busy(w http.ResponseWriter, c *call) {
	if p.hasEnded(w, c.Request) {
		return
	}
	p.refuse(w, c.Request, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "the node's hub answers too many requests of this kind at the moment")
}
