package bounded

import (
	"context"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// The tests of waiting run under the fake clock of testing/synctest, where a sleep takes no
// time: it is how long a request has its turn, or how long others go on.

// caller returns an address of its own for each number.
func caller(n int) Caller {
	return Caller(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}))
}

// unlimited returns Turns whose requests may use all of the time.
func unlimited(places int) *Turns {
	turns := NewTurns(places)
	for size := range turns.sizes {
		turns.sizes[size].rate = float64(places)
	}
	return turns
}

// flood sends requests from a caller, so many at a time, until ctx is done. It returns the time
// that they have taken so far.
func flood(ctx context.Context, turns *Turns, from Caller, atOnce int, isLarge bool, takes time.Duration) (used *atomic.Int64) {
	used = new(atomic.Int64)
	for range atOnce {
		go func() {
			for ctx.Err() == nil {
				turn, granted := turns.Wait(ctx, from, isLarge)
				if !granted {
					return
				}
				time.Sleep(takes)
				turn.End()
				used.Add(int64(takes))
			}
		}()
	}
	return used
}

// TestSmallRequestsWaitForOneTurnOfEachOtherCaller: eight callers send as much as they can. A
// small request of another does not wait for large ones, and for one of each caller at most.
func TestSmallRequestsWaitForOneTurnOfEachOtherCaller(t *testing.T) {
	const attackers = 8
	for name, tc := range map[string]struct {
		large bool
		takes time.Duration
		most  time.Duration // that a small request waits
	}{
		"large": {large: true, takes: 30 * time.Millisecond, most: 0},
		"small": {takes: 4 * time.Millisecond, most: attackers * 4 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				turns := NewTurns(2)
				ctx, cancel := context.WithCancel(t.Context())
				for i := range attackers {
					flood(ctx, turns, caller(2+i), 100, tc.large, tc.takes)
				}
				time.Sleep(time.Second)
				for range 200 {
					began := time.Now()
					turn, granted := turns.Wait(ctx, caller(1), false)
					if waited := time.Since(began); !granted || waited > tc.most {
						t.Fatalf("granted: %t, after %s, want at most %s", granted, waited, tc.most)
					}
					time.Sleep(time.Millisecond)
					turn.End()
					time.Sleep(time.Millisecond)
				}
				ends(t, turns, cancel)
			})
		})
	}
}

// TestCallersGetTheSameTime: however long their requests take, and however many they send.
func TestCallersGetTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := unlimited(2)
		ctx, cancel := context.WithCancel(t.Context())
		few := flood(ctx, turns, caller(1), 8, false, 200*time.Microsecond)
		many := flood(ctx, turns, caller(2), 500, false, 10*time.Millisecond)
		time.Sleep(10 * time.Second)
		late := flood(ctx, turns, caller(3), 50, false, 5*time.Millisecond)
		time.Sleep(10 * time.Second)
		// The first ten seconds have 20 s of turns for two, the next ten as much for three.
		for who, got := range map[string]struct {
			used *atomic.Int64
			want time.Duration
		}{"few": {few, 16667 * time.Millisecond}, "many": {many, 16667 * time.Millisecond}, "late": {late, 6667 * time.Millisecond}} {
			used := time.Duration(got.used.Load())
			if off := used - got.want; off.Abs() > time.Second {
				t.Errorf("%s: %s, want %s", who, used, got.want)
			}
		}
		ends(t, turns, cancel)
	})
}

// TestSmallAndLargeRequestsShareTheSlots: neither small nor large requests keep the others from half of the
// places. Alone, small ones get all places, and large ones all but one.
func TestSmallAndLargeRequestsShareTheSlots(t *testing.T) {
	for name, tc := range map[string]struct{ smalls, larges, wantSmall, wantLarge int }{
		"both":       {smalls: 100, larges: 100, wantSmall: 20, wantLarge: 20},
		"small ones": {smalls: 100, wantSmall: 40},
		"large ones": {larges: 100, wantLarge: 30},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				turns := unlimited(4)
				ctx, cancel := context.WithCancel(t.Context())
				smalls := flood(ctx, turns, caller(1), tc.smalls, false, 4*time.Millisecond)
				larges := flood(ctx, turns, caller(2), tc.larges, true, 30*time.Millisecond)
				time.Sleep(10 * time.Second)
				for size, got := range map[string]struct {
					used *atomic.Int64
					want int
				}{"small": {smalls, tc.wantSmall}, "large": {larges, tc.wantLarge}} {
					used, want := time.Duration(got.used.Load()), time.Duration(got.want)*time.Second
					if off := used - want; off.Abs() > want/20 {
						t.Errorf("%s requests got %s, want %s", size, used, want)
					}
				}
				ends(t, turns, cancel)
			})
		})
	}
}

// TestRequestsLeaveTimeForOtherWork: however many are sent, small ones use half of the places,
// and large ones an eighth, and a burst. What they do not use for a while they may use later.
func TestRequestsLeaveTimeForOtherWork(t *testing.T) {
	for name, tc := range map[string]struct {
		large bool
		takes time.Duration
		want  time.Duration // used in 20 s
	}{
		"small": {takes: time.Millisecond, want: 40 * time.Second},
		"large": {large: true, takes: 30 * time.Millisecond, want: 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				turns := NewTurns(4)
				ctx, cancel := context.WithCancel(t.Context())
				var used [3]*atomic.Int64
				sum := func() (all time.Duration) {
					for _, u := range used {
						all += time.Duration(u.Load())
					}
					return all
				}
				for i := range used {
					used[i] = flood(ctx, turns, caller(i), 100, tc.large, tc.takes)
				}
				before := time.Duration(0)
				for i, want := range []time.Duration{burst + tc.want, tc.want, tc.want} {
					time.Sleep(20 * time.Second)
					now := sum()
					if off := now - before - want; off.Abs() > time.Second/2 {
						t.Errorf("in part %d requests used %s, want %s", i, now-before, want)
					}
					before = now
				}
				ends(t, turns, cancel)
				ctx, cancel = context.WithCancel(t.Context())
				again := flood(ctx, turns, caller(1), 100, tc.large, tc.takes)
				time.Sleep(20 * time.Second)
				if off := time.Duration(again.Load()) - (burst + tc.want); off.Abs() > time.Second/2 {
					t.Errorf("after a minute they used %s", time.Duration(again.Load()))
				}
				ends(t, turns, cancel)
			})
		})
	}
}

// TestALargeRequestKeepsItsPlaceInTheOrder: while it cannot have a turn, small requests of
// others are answered. Then it is next, before large ones of callers that have used more.
func TestALargeRequestKeepsItsPlaceInTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(2)
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 8 {
			flood(ctx, turns, caller(2+i), 10, true, 30*time.Millisecond)
		}
		flood(ctx, turns, caller(20), 10, false, time.Millisecond)
		time.Sleep(time.Second)
		for range 20 {
			began := time.Now()
			turn, granted := turns.Wait(ctx, caller(1), true)
			if waited := time.Since(began); !granted || waited > 8*4*30*time.Millisecond {
				t.Fatalf("granted: %t, after %s", granted, waited)
			}
			time.Sleep(time.Millisecond)
			turn.End()
			time.Sleep(100 * time.Millisecond)
		}
		ends(t, turns, cancel)
	})
}

// TestARequestThatIsNearlyAnsweredGoesFirst: after Outside it does not wait for requests of the
// same caller that came later, and it does not wait for long.
func TestARequestThatIsNearlyAnsweredGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := unlimited(2)
		turns.Longest = time.Hour
		ctx, cancel := context.WithCancel(t.Context())
		turn, _ := turns.Wait(ctx, caller(1), false)
		flood(ctx, turns, caller(1), 1000, false, 5*time.Millisecond)
		outside := func() (waited time.Duration) {
			var began time.Time
			Outside(WithTurn(ctx, turn), func() {
				time.Sleep(time.Second)
				began = time.Now()
			})
			return time.Since(began)
		}
		if waited := outside(); !turn.held || waited > 5*time.Millisecond {
			t.Errorf("it has a turn: %t, after %s", turn.held, waited)
		}
		for i := range 2 {
			go func() {
				hangs, _ := turns.Wait(ctx, caller(2+i), false)
				<-ctx.Done()
				hangs.End()
			}()
		}
		if waited := outside(); turn.held || waited != againTime {
			t.Errorf("it has a turn: %t, after %s", turn.held, waited)
		}
		ends(t, turns, cancel)
	})
}

// TestOneRequestHasOneTurn: also if it waits for something within something else, and after
// nobody waits for its answer any more. What works for several requests has no turn.
func TestOneRequestHasOneTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(2)
		ctx, cancel := context.WithCancel(t.Context())
		turn, _ := turns.Wait(ctx, caller(1), false)
		ctx = WithTurn(ctx, turn)
		running := func(when string, want int) {
			t.Helper()
			if got := turns.sizes[small].running; got != want {
				t.Errorf("%s %d have a turn, want %d", when, got, want)
			}
		}
		Outside(WithoutTurn(ctx), func() { running("without a turn", 1) })
		Outside(ctx, func() {
			running("outside", 0)
			Outside(ctx, func() { running("outside twice", 0) })
			running("outside again", 0)
		})
		running("inside", 1)
		Outside(ctx, cancel)
		running("when the client has gone", 0)
		Outside(ctx, func() {})
		turn.End()
		empty(t, turns)
	})
}

// TestAReadyRequestIsSeenBeforeTheNextTurn: a request that has used the least time gets the next
// turn also if its goroutine has not run yet when the place becomes free. The runtime does not
// promise that, and grants it nearly always.
func TestAReadyRequestIsSeenBeforeTheNextTurn(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const attempts = 40
	first := 0
	for range attempts {
		turns := unlimited(2)
		turns.Longest = time.Hour
		a, _ := turns.Wait(t.Context(), caller(1), false)
		b, _ := turns.Wait(t.Context(), caller(1), false)
		order := make(chan Caller, 2)
		request := func(from Caller) {
			turn, _ := turns.Wait(t.Context(), from, false)
			order <- from
			turn.End()
		}
		go request(caller(1))
		build.Eventually(t, "a request waits", func() bool {
			turns.mu.Lock()
			defer turns.mu.Unlock()
			return len(turns.sizes[small].waiting) == 1
		})
		go request(caller(2))
		a.End()
		if <-order == caller(2) {
			first++
		}
		<-order
		b.End()
	}
	if first < attempts/2 {
		t.Errorf("%d of %d times it was first", first, attempts)
	}
}

// TestHangingTurnBlocksNoOtherRequest: it makes room for another one, and so do requests that wait
// for something outside of their turn.
func TestHangingTurnBlocksNoOtherRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(2)
		var hanging []*Turn
		for i := range 5 {
			turn, _ := turns.Wait(t.Context(), caller(i), false)
			hanging = append(hanging, turn)
		}
		if began := time.Now(); !canTake(t, turns) || time.Since(began) > longestTurn {
			t.Errorf("a turn began after %s", time.Since(began))
		}
		for _, turn := range hanging {
			turn.End()
			turn.End()
		}
		empty(t, turns)

		done := make(chan struct{})
		for i := range 5 {
			go func() {
				turn, _ := turns.Wait(t.Context(), caller(i), true)
				defer turn.End()
				Outside(WithTurn(t.Context(), turn), func() { <-done })
				if !turn.held {
					t.Error("the request went on without a turn")
				}
			}()
		}
		synctest.Wait()
		if began := time.Now(); !canTake(t, turns) || time.Since(began) > 0 {
			t.Errorf("a turn began after %s", time.Since(began))
		}
		close(done)
		synctest.Wait()
		empty(t, turns)
	})
}

// TestCancelledRequestTakesNoTurn: a request that has been given up is not waited for.
func TestCancelledRequestTakesNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(2)
		first, _ := turns.Wait(t.Context(), caller(1), true)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, granted := turns.Wait(ctx, caller(2), true); granted {
			t.Error("two large requests have a turn at a time")
		}
		first.End()
		empty(t, turns)
		called := false
		Outside(t.Context(), func() { called = true })
		if !called {
			t.Error("a request without a turn does nothing")
		}
	})
}

// TestTurnsAreAllGranted: whatever is sent, no more have a turn than there are places, large ones
// leave one, and everybody has had a turn at the end.
func TestTurnsAreAllGranted(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		places := rapid.IntRange(2, 4).Draw(rt, "places")
		type request struct {
			from        Caller
			large       bool
			after, uses time.Duration
		}
		var requests []request
		for range rapid.IntRange(1, 60).Draw(rt, "requests") {
			requests = append(requests, request{
				from: caller(rapid.IntRange(1, 4).Draw(rt, "from")), large: rapid.Bool().Draw(rt, "large"),
				after: time.Duration(rapid.IntRange(0, 50).Draw(rt, "after")) * time.Millisecond,
				uses:  time.Duration(rapid.IntRange(0, 20).Draw(rt, "uses")) * time.Millisecond,
			})
		}
		synctest.Test(t, func(t *testing.T) {
			turns := NewTurns(places)
			var mu sync.Mutex
			all, large := 0, 0 // that have a turn
			for _, r := range requests {
				go func() {
					time.Sleep(r.after)
					turn, granted := turns.Wait(t.Context(), r.from, r.large)
					if !granted {
						t.Error("a request got no turn")
						return
					}
					count := func(n int) {
						mu.Lock()
						defer mu.Unlock()
						if all += n; r.large {
							large += n
						}
						if all > places || large >= places {
							t.Errorf("%d have a turn, %d of them large, of %d", all, large, places)
						}
					}
					count(1)
					time.Sleep(r.uses)
					count(-1)
					turn.End()
				}()
			}
			ends(t, turns, func() {})
		})
	})
}

// TestCallersAreForgotten: new addresses without end take no memory without end.
func TestCallersAreForgotten(t *testing.T) {
	turns := NewTurns(2)
	turns.Longest = time.Hour
	busy, _ := turns.Wait(t.Context(), caller(0), false)
	for i := range 3 * maxRemembered {
		turn, _ := turns.Wait(t.Context(), caller(i+1), false)
		turn.End()
	}
	if n := len(turns.sizes[small].callers); n > maxRemembered {
		t.Errorf("%d callers are remembered, want at most %d", n, maxRemembered)
	}
	busy.End()
	empty(t, turns)
}

// canTake reports whether a caller that has not been seen before gets a turn within a minute,
// and ends it.
func canTake(t *testing.T, turns *Turns) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	turn, granted := turns.Wait(ctx, caller(99), false)
	if granted {
		turn.End()
	}
	return granted
}

// ends stops the requests, and fails the test unless nothing is left of them. Credit is there
// again afterwards.
func ends(t *testing.T, turns *Turns, stop func()) {
	t.Helper()
	stop()
	time.Sleep(time.Minute)
	synctest.Wait()
	empty(t, turns)
}

// empty fails the test unless nothing is left of requests.
func empty(t *testing.T, turns *Turns) {
	t.Helper()
	for size, s := range turns.sizes {
		if s.running != 0 || s.reached != 0 || len(s.callers) != 0 || len(s.waiting) != 0 {
			t.Errorf("size %d: %d have a turn, %s is counted, %d callers are remembered, and %d wait", size, s.running, s.reached, len(s.callers), len(s.waiting))
		}
	}
}
