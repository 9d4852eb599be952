package bounded

import (
	"context"
	"sync"
	"time"
)

// maxCalls is the number of calls to the API server that requests may cause in a second.
const maxCalls = 200

// rate bounds how often something may be done in a second, and divides that among callers:
// each may do it half as often as all together while it is alone, and the more callers did it
// in the second before, the less often. It is safe for concurrent use.
type rate struct {
	most int

	mu          sync.Mutex
	second      int64
	all         int
	now, before map[Caller]int
}

func newRate(most int) *rate { return &rate{most: most, now: map[Caller]int{}} }

// take returns false if the caller may not do it now.
func (r *rate) take(caller Caller) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if second := time.Now().Unix(); second != r.second {
		r.before = r.now
		if second != r.second+1 {
			r.before = nil
		}
		r.second, r.all, r.now = second, 0, map[Caller]int{}
	}
	others := len(r.before)
	if r.before[caller] > 0 {
		others--
	}
	// As many again as all may do are for callers that come in this second.
	if r.now[caller] >= max(1, r.most/(others+2)) || r.all >= 2*r.most {
		return false
	}
	r.now[caller]++
	r.all++
	return true
}

var sharedCalls = newRate(maxCalls)

// MayCall reports whether the request to which ctx belongs may cause one more call to the API
// server, and counts it. Whoever reaches a port can send requests that need calls: their number
// is bounded for each caller, and for all together. Work that belongs to no request, see
// WithTurn, may always call.
func MayCall(ctx context.Context) bool {
	turn, _ := ctx.Value(turnKey{}).(*Turn)
	return turn == nil || sharedCalls.take(turn.caller)
}
