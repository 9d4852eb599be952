// Package turns shows whether a request gives up its turn of the CPU while it waits for
// another process: see bounded.Turns.
package turns

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-k8s/atoll/internal/machinery/bounded"
)

// callers is the number of callers so far: each has calls of its own, see bounded.MayCall.
var callers atomic.Uint32

// Last returns the context of a request of a new caller that has the last turn, and a function that reports
// whether another request gets a turn. It waits for ten seconds at most.
func Last(t *testing.T) (ctx context.Context, free func() bool) {
	t.Helper()
	turns := bounded.NewTurns(2)
	turns.Longest = time.Hour
	n := callers.Add(1)
	caller := bounded.CallerOf(fmt.Sprintf("10.%d.%d.%d:1", byte(n>>16), byte(n>>8), byte(n)))
	var last *bounded.Turn
	for range 2 {
		turn, granted := turns.Wait(t.Context(), caller, false)
		if !granted {
			t.Fatal("there is no turn")
		}
		t.Cleanup(turn.End)
		last = turn
	}
	return bounded.WithTurn(t.Context(), last), func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		turn, granted := turns.Wait(ctx, caller, false)
		turn.End()
		return granted
	}
}
