// Package turns shows whether a request gives up its turn of the CPU while it waits for
// another process: see bounded.Turns.
package turns

import (
	"context"
	"testing"
	"time"

	"github.com/atoll-k8s/atoll/internal/machinery/bounded"
)

// Last returns the context of a request that has the last turn, and a function that reports
// whether another request gets a turn. It waits for ten seconds at most.
func Last(t *testing.T) (ctx context.Context, free func() bool) {
	t.Helper()
	turns := bounded.NewTurns(2)
	turns.Longest = time.Hour
	var last *bounded.Turn
	for range 2 {
		turn, granted := turns.Wait(t.Context(), bounded.Caller{}, false)
		if !granted {
			t.Fatal("there is no turn")
		}
		t.Cleanup(turn.End)
		last = turn
	}
	return bounded.WithTurn(t.Context(), last), func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		turn, granted := turns.Wait(ctx, bounded.Caller{}, false)
		turn.End()
		return granted
	}
}
