package eviction

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Patience is how long a namespace has a share after it last requested an eviction. Those
// that were refused request again after Retry, or later if their controllers are behind.
const Patience = 12 * Retry

// minRetry is the shortest delay before an eviction that Pace has refused is requested again.
const minRetry = 200 * time.Millisecond

// whole is the part of a token that counts as one. Sums of many short times are not exact.
const whole = 1 - 1e-9

// Pace bounds the evictions of all workloads together, by a bucket of tokens, and divides
// them fairly among namespaces: as long as there are too few tokens, each new one goes to
// the namespace that has not got one for longest. So a namespace with a thousand workloads
// delays the evictions of another one no more than one with a single workload. Safe for
// concurrent use.
//
// Tokens that a namespace does not use, it keeps up to an equal part of the bucket. The
// others get all further ones, so no eviction per second is lost.
type Pace struct {
	limit rate.Limit
	burst int
	now   func() time.Time

	mu sync.Mutex
	// spare are the tokens that no namespace holds. Together with those that are held or
	// under way they are at most burst, and one more after a namespace held one.
	spare    float64
	underWay int // tokens of evictions that are not answered yet
	updated  time.Time
	// shares has the namespaces that were refused a token and still request some.
	shares map[string]*share
	turns  uint64
}

// share is what Pace keeps about a namespace.
type share struct {
	held    int       // tokens that only this namespace may take
	refused int       // requests that were refused since it got the last token
	seen    time.Time // the last request
	turn    uint64    // the lowest gets the next token
}

// NewPace returns a Pace of limit evictions per second, and burst without delay.
func NewPace(limit rate.Limit, burst int) *Pace {
	return &Pace{limit: limit, burst: burst, now: time.Now, spare: float64(burst), shares: map[string]*share{}}
}

// begin takes a token for an eviction in a namespace. If there is none for it, it returns
// after how long there will be one: the longer, the more requests of the namespace were
// refused before, and Retry at most.
func (p *Pace) begin(namespace string) (ok bool, again time.Duration) {
	if p.limit == rate.Inf {
		return true, 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	p.refillLocked(now)
	p.divideLocked(now)
	s := p.shares[namespace]
	if s != nil {
		s.seen = now
	}
	switch {
	case s != nil && s.held > 0:
		s.held--
	case p.spare >= whole:
		p.spare--
	default:
		if s == nil {
			p.turns++
			s = &share{seen: now, turn: p.turns}
			p.shares[namespace] = s
		}
		s.refused++
		return false, p.againLocked(s)
	}
	p.underWay++
	return true, 0
}

// againLocked returns after how long a namespace gets the token for the request that was
// refused last, if all others go on requesting, and Retry at most.
func (p *Pace) againLocked(s *share) time.Duration {
	tokens := 1 - p.spare
	for _, other := range p.shares {
		if other.turn < s.turn {
			tokens++
		}
	}
	tokens += float64((s.refused - 1) * len(p.shares))
	return min(Retry, max(minRetry, time.Duration(tokens/float64(p.limit)*float64(time.Second))))
}

// end spends the token of an eviction that was granted. The token of one that was not is
// there for other evictions.
func (p *Pace) end(granted bool) {
	if p.limit == rate.Inf {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refillLocked(p.now())
	p.underWay--
	if !granted {
		p.spare++
	}
}

// refillLocked adds the tokens of the time since the last call.
func (p *Pace) refillLocked(now time.Time) {
	if !p.updated.IsZero() && now.After(p.updated) {
		p.spare += now.Sub(p.updated).Seconds() * float64(p.limit)
	}
	if now.After(p.updated) {
		p.updated = now
	}
	held := 0
	for _, s := range p.shares {
		held += s.held
	}
	// A token that is held waits for the next request of its namespace, up to Retry. With a
	// burst of 1, no token would be added meanwhile if it counted.
	p.spare = min(p.spare, float64(p.burst-p.underWay-max(0, held-1)))
}

// divideLocked gives whole spare tokens to namespaces, in turn. It takes back those of
// namespaces that request no evictions any more, and those above an equal part.
func (p *Pace) divideLocked(now time.Time) {
	for namespace, s := range p.shares {
		if now.Sub(s.seen) > Patience {
			p.spare += float64(s.held)
			delete(p.shares, namespace)
		}
	}
	if len(p.shares) == 0 {
		return
	}
	most := (p.burst + len(p.shares) - 1) / len(p.shares)
	for _, s := range p.shares {
		if s.held > most {
			p.spare += float64(s.held - most)
			s.held = most
		}
	}
	for p.spare >= whole {
		var next *share
		for _, s := range p.shares {
			if s.held < most && (next == nil || s.turn < next.turn) {
				next = s
			}
		}
		if next == nil {
			return
		}
		p.turns++
		next.held, next.turn, next.refused = next.held+1, p.turns, 0
		p.spare--
	}
}
