package bounded

import (
	"cmp"
	"container/heap"
	"context"
	"runtime"
	"slices"
	"sync"
	"time"
)

const (
	// longestTurn is the default of Turns.Longest.
	longestTurn = 250 * time.Millisecond
	// provisional is what a turn counts before it has ended.
	provisional = time.Millisecond
	// againTime bounds the wait for another turn after Outside. The request is as good as
	// answered then, so it does not fail because of the wait.
	againTime = 100 * time.Millisecond
	// burst is the time that the requests of a size may use at any rate.
	burst = 500 * time.Millisecond
	// maxRemembered bounds the callers of which it is known how much time they have used.
	maxRemembered = 8192
)

// Turns bounds how many requests use the CPU at a time, and divides the time fairly among
// callers: of those that wait, the one that has used the least time is next. So a request
// waits about as long as one turn of each other caller lasts, however many requests those
// send.
//
// Small and large requests are divided among callers separately. If both wait, each size gets
// half of the places, and large requests never get the last one. Small requests use half of
// the places on average, and large ones an eighth, after burst: clients can send any number of
// them, and the process has other work. For the same reason goroutines that are ready to run go
// first, as far as the runtime allows, before the next turn begins. Among them are those of
// requests that do not wait here yet: the runtime knows no callers. It is safe for concurrent
// use.
type Turns struct {
	// Longest is after how long a turn makes room for another one although it has not ended.
	// It must not be changed once Turns is in use.
	Longest time.Duration

	places int

	mu       sync.Mutex
	sizes    [2]turnsOfSize
	granting bool // goroutine grant runs
}

const small, large = 0, 1

// turnsOfSize are the turns of small or of large requests. The time that callers have used
// counts while any request has a turn or waits for one. A new caller begins with as much as
// the caller of the last turn.
type turnsOfSize struct {
	running int
	reached time.Duration // what the caller of the last turn had used before
	count   uint64        // of turns; orders them
	callers map[Caller]*turnsOf
	waiting callerHeap

	// credit is the time that requests may use at creditAt. It grows at rate, up to burst.
	// timer is set while they wait for credit.
	credit   time.Duration
	creditAt time.Time
	rate     float64
	timer    *time.Timer
}

// turnsOf are the turns of one caller, of one size.
type turnsOf struct {
	used    time.Duration
	last    uint64 // the count when its last turn began
	running int    // turns that have not ended
	queue   []*Turn
	at      int // its index in the heap
}

// Turn is the turn of one request. It is used by one goroutine at a time.
type Turn struct {
	turns   *Turns
	size    int
	caller  Caller
	longest time.Duration
	held    bool // it has begun and not ended

	// The rest is guarded by turns.mu.
	granted  chan struct{} // closed when the turn begins
	began    time.Time
	timer    *time.Timer // makes room for another turn
	roomMade bool        // another turn may begin in place of this one
}

// SharedTurns returns the Turns of the process: all ports divide the same CPUs.
var SharedTurns = sync.OnceValue(func() *Turns { return NewTurns(runtime.GOMAXPROCS(0)) })

// NewTurns returns Turns with so many places, at least two.
func NewTurns(places int) *Turns {
	t := &Turns{Longest: longestTurn, places: max(2, places)}
	for size, part := range [...]float64{small: 1. / 2, large: 1. / 8} {
		t.sizes[size] = turnsOfSize{callers: map[Caller]*turnsOf{}, credit: burst, creditAt: time.Now(), rate: part * float64(t.places)}
	}
	return t
}

// Wait waits for a turn, which must be ended. It returns false if ctx is done before.
func (t *Turns) Wait(ctx context.Context, caller Caller, isLarge bool) (*Turn, bool) {
	return t.WaitFor(ctx, caller, isLarge, t.Longest)
}

// WaitFor is Wait for a turn that makes room for another one after longest, because the
// request may then wait for its client.
func (t *Turns) WaitFor(ctx context.Context, caller Caller, isLarge bool, longest time.Duration) (*Turn, bool) {
	turn := &Turn{turns: t, caller: caller, longest: longest}
	if isLarge {
		turn.size = large
	}
	turn.held = turn.wait(ctx, false)
	return turn, turn.held
}

// wait waits for the turn, behind the caller's other requests or in front of them.
func (turn *Turn) wait(ctx context.Context, first bool) bool {
	t := turn.turns
	granted := make(chan struct{})
	t.mu.Lock()
	turn.granted = granted
	t.sizes[turn.size].enqueue(turn, first)
	t.startGrantingLocked()
	t.mu.Unlock()
	select {
	case <-granted:
		return true
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-granted: // in the meantime
		return true
	default:
	}
	t.sizes[turn.size].cancel(turn)
	t.restLocked()
	return false
}

// End ends the turn, if it has begun and not ended yet.
func (turn *Turn) End() {
	if !turn.held {
		return
	}
	turn.held = false
	t := turn.turns
	t.mu.Lock()
	defer t.mu.Unlock()
	turn.timer.Stop()
	t.sizes[turn.size].callers[turn.caller].running--
	turn.makeRoomLocked(time.Since(turn.began))
	t.restLocked()
}

type turnKey struct{}

// WithTurn returns a context for a request that has a turn. It must be used by one goroutine
// at a time; WithoutTurn returns one for others.
func WithTurn(ctx context.Context, turn *Turn) context.Context {
	return context.WithValue(ctx, turnKey{}, turn)
}

// WithoutTurn returns a context that belongs to no request with a turn, for a goroutine that
// works for several requests or after one.
func WithoutTurn(ctx context.Context) context.Context {
	return context.WithValue(ctx, turnKey{}, (*Turn)(nil))
}

// Outside ends the turn of the request to which ctx belongs, calls f, which may wait for
// something, and waits a little for another turn. If there is none, or ctx is done, the
// request goes on without. A request without a turn just calls f.
func Outside(ctx context.Context, f func()) {
	turn, _ := ctx.Value(turnKey{}).(*Turn)
	if turn == nil || !turn.held {
		f()
		return
	}
	turn.End()
	f()
	if ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, againTime)
	defer cancel()
	turn.held = turn.wait(ctx, true)
}

// startGrantingLocked lets turns begin soon, while there are places.
func (t *Turns) startGrantingLocked() {
	if waiting := len(t.sizes[small].waiting) + len(t.sizes[large].waiting); waiting > 0 && !t.granting {
		t.granting = true
		go t.grant()
	}
}

// grant grants turns, each after it has let other goroutines run, until no more can be granted.
func (t *Turns) grant() {
	for again := true; again; {
		runtime.Gosched()
		t.mu.Lock()
		again = t.grantLocked()
		t.granting = again
		t.mu.Unlock()
	}
}

// grantLocked grants a turn, and returns false if there is no place or no request that may have
// it.
func (t *Turns) grantLocked() bool {
	smalls, larges := &t.sizes[small], &t.sizes[large]
	if smalls.running+larges.running >= t.places {
		return false
	}
	var next *turnsOfSize
	if t.readyLocked(smalls) {
		next = smalls
	}
	if (next == nil || larges.running <= smalls.running) && larges.running < t.places-1 && t.readyLocked(larges) {
		next = larges
	}
	if next == nil {
		return false
	}
	t.beginLocked(next.grant())
	return true
}

// readyLocked reports whether a request of this size waits and may use time now. If it may
// later, startGrantingLocked is called then.
func (t *Turns) readyLocked(s *turnsOfSize) bool {
	if len(s.waiting) == 0 {
		return false
	}
	now := time.Now()
	s.credit = min(burst, s.credit+time.Duration(s.rate*float64(now.Sub(s.creditAt))))
	s.creditAt = now
	if s.credit > 0 {
		return true
	}
	if s.timer == nil {
		s.timer = time.AfterFunc(time.Duration(float64(-s.credit)/s.rate)+provisional, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			s.timer = nil
			t.startGrantingLocked()
		})
	}
	return false
}

// beginLocked lets a turn begin.
func (t *Turns) beginLocked(turn *Turn) {
	turn.began, turn.roomMade = time.Now(), false
	granted := turn.granted
	turn.timer = time.AfterFunc(turn.longest, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if turn.granted == granted { // else the request has another turn by now
			turn.makeRoomLocked(turn.longest)
		}
	})
	close(granted)
}

// makeRoomLocked lets another turn begin in place of this one, which has lasted for the given
// time. What comes after that does not count.
func (turn *Turn) makeRoomLocked(lasted time.Duration) {
	if turn.roomMade {
		return
	}
	turn.roomMade = true
	s := &turn.turns.sizes[turn.size]
	s.running--
	s.use(s.callers[turn.caller], lasted-provisional)
	s.credit -= lasted
	turn.turns.startGrantingLocked()
}

// restLocked forgets all times once no request has a turn or waits for one.
func (t *Turns) restLocked() {
	for size := range t.sizes {
		if s := &t.sizes[size]; s.running > 0 || len(s.waiting) > 0 {
			return
		}
	}
	for size := range t.sizes {
		s := &t.sizes[size]
		s.forget()
		for _, of := range s.callers { // their turns have made room, and not ended
			of.used = 0
		}
		s.reached = 0
	}
}

// enqueue lets a turn wait.
func (s *turnsOfSize) enqueue(turn *Turn, first bool) {
	of := s.callers[turn.caller]
	if of == nil {
		if len(s.callers) >= maxRemembered {
			s.forget()
		}
		of = &turnsOf{}
		s.callers[turn.caller] = of
	}
	if !of.active() {
		of.used = max(of.used, s.reached)
	}
	if first {
		of.queue = slices.Insert(of.queue, 0, turn)
	} else {
		of.queue = append(of.queue, turn)
	}
	if len(of.queue) == 1 {
		heap.Push(&s.waiting, of)
	}
}

// cancel removes a turn that waits.
func (s *turnsOfSize) cancel(turn *Turn) {
	of := s.callers[turn.caller]
	of.queue = slices.DeleteFunc(of.queue, func(other *Turn) bool { return other == turn })
	if len(of.queue) == 0 {
		heap.Remove(&s.waiting, of.at)
	}
}

// grant returns the next turn, and counts it as one that has begun.
func (s *turnsOfSize) grant() *Turn {
	of := s.waiting[0]
	turn := of.queue[0]
	if of.queue = of.queue[1:]; len(of.queue) == 0 {
		of.queue = nil
		heap.Remove(&s.waiting, of.at)
	}
	s.running++
	s.reached = max(s.reached, of.used)
	s.count++
	of.running++
	of.last = s.count
	s.use(of, provisional)
	return turn
}

// use adds to the time that a caller has used.
func (s *turnsOfSize) use(of *turnsOf, more time.Duration) {
	of.used += more
	if len(of.queue) > 0 {
		heap.Fix(&s.waiting, of.at)
	}
}

// forget forgets the callers without a turn and without a request that waits.
func (s *turnsOfSize) forget() {
	for caller, of := range s.callers {
		if !of.active() {
			delete(s.callers, caller)
		}
	}
}

func (of *turnsOf) active() bool { return of.running > 0 || len(of.queue) > 0 }

// callerHeap is a heap of the callers that wait, the next one first: the one that has used
// the least time, and of several the one whose last turn began first.
type callerHeap []*turnsOf

func (h callerHeap) Len() int { return len(h) }

func (h callerHeap) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].used, h[j].used), cmp.Compare(h[i].last, h[j].last)) < 0
}

func (h callerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push implements heap.Interface.
func (h *callerHeap) Push(caller any) {
	of, _ := caller.(*turnsOf)
	of.at = len(*h)
	*h = append(*h, of)
}

// Pop implements heap.Interface.
func (h *callerHeap) Pop() any {
	last := len(*h) - 1
	of := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return of
}
