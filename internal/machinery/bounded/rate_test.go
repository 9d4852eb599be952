package bounded

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestCallsAreDividedAmongCallers: one that is alone may have half of them, and one beside eight
// that want all gets about as many as each of those.
func TestCallsAreDividedAmongCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRate(200)
		second := func(callers ...int) map[int]int {
			time.Sleep(time.Second)
			got := map[int]int{}
			for range 1000 {
				for _, c := range callers {
					if r.take(caller(c)) {
						got[c]++
					}
				}
			}
			return got
		}
		if got := second(1); got[1] != 100 {
			t.Errorf("alone it may have %d", got[1])
		}
		crowd := []int{2, 3, 4, 5, 6, 7, 8, 9}
		second(crowd...)
		for range 5 {
			got := second(append(crowd, 1)...)
			all := 0
			for _, n := range got {
				all += n
			}
			if got[1] < 15 || all > 200 {
				t.Errorf("beside eight others it may have %d of %d", got[1], all)
			}
		}
		many := make([]int, 2000)
		for i := range many {
			many[i] = i
		}
		time.Sleep(time.Minute)
		all := 0
		for _, n := range second(many...) {
			all += n
		}
		if all > 400 {
			t.Errorf("callers that come together may have %d", all)
		}
	})
}

// TestCallsPerRequestAreRateLimited: calls that requests cause are rate limited. Work that belongs
// to no request may always call.
func TestCallsPerRequestAreRateLimited(t *testing.T) {
	turns := NewTurns(2)
	turn, _ := turns.Wait(t.Context(), caller(1), false)
	defer turn.End()
	ctx := WithTurn(t.Context(), turn)
	mayCall := 0
	for range 10 * maxCalls {
		if MayCall(ctx) {
			mayCall++
		}
		if !MayCall(t.Context()) || !MayCall(WithoutTurn(ctx)) {
			t.Fatal("what belongs to no request may not call")
		}
	}
	if mayCall == 0 || mayCall > 2*maxCalls { // in one second or two
		t.Errorf("a request may call %d times", mayCall)
	}
}
