package seats

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/domain/placement"
)

// TestRecreationRoundsOfGatedPodsBackOff: each round takes twice as long
// as the one before, five minutes at most. After five minutes without a round, the first one
// is short again.
func TestRecreationRoundsOfGatedPodsBackOff(t *testing.T) {
	l, clock := newTestLedger("a")
	r := Request{Cohort: cohortOne} // a spread without groups: any pod may be recreated
	created := clock.Now().Add(-time.Minute)
	expect := func(what string, may bool, after time.Duration) {
		t.Helper()
		if is, in := l.MayRecreateGated(r, created); is != may || in != after {
			t.Fatalf("%s: it may be recreated: %t, after %s, want %t and %s", what, is, in, may, after)
		}
	}
	expect("the first", true, 0)
	expect("one as old", true, 0)
	for _, seconds := range []int{2, 4, 8, 16, 32, 64, 128, 256, 300, 300} {
		span := time.Duration(seconds) * time.Second
		created = clock.Now() // the successor
		expect("in a round", false, span)
		clock.Step(span - time.Second)
		expect("just before its end", false, time.Second)
		clock.Step(time.Second)
		expect("at its end", true, 0)
		expect("another of that round", true, 0)
	}
	created = clock.Now()
	clock.Step(maxRound + maxRound) // the last round has ended as long ago as a round may take
	expect("after a long time", true, 0)
	created = clock.Now()
	expect("in the first of new rounds", false, firstRound)
}

// TestSeatedPodEndsTheRecreationRounds: the reason why pods of the owner got no seat is gone.
func TestSeatedPodEndsTheRecreationRounds(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(p *Pod, began time.Time)
		ended  bool
	}{
		"a pinned pod":      {func(p *Pod, _ time.Time) { p.Seat, p.GroupStamp = "s", "a" }, true},
		"an overridden pod": {func(p *Pod, _ time.Time) { p.CreatedFor = "rs" }, true},
		"a pinned pod that was created before the round": {func(p *Pod, began time.Time) { p.Seat, p.GroupStamp, p.Created = "s", "a", began.Add(-time.Second) }, false},
		"a pod that got no seat":                         {func(*Pod, time.Time) {}, false},
		"a pod of another owner": {func(p *Pod, _ time.Time) {
			other := *p.Controller
			other.UID = "other"
			p.Controller, p.Seat, p.GroupStamp = &other, "s", "a"
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			l, clock := newTestLedger("a")
			began := clock.Now()
			l.MayRecreateGated(Request{Cohort: cohortOne}, began.Add(-time.Minute))
			pod := podIn("p", "")
			pod.Created = began
			tc.change(pod, began)
			l.Observe(pod)
			if ended := len(l.waiting.rounds) == 0; ended != tc.ended {
				t.Errorf("the rounds have ended: %t", ended)
			}
		})
	}
}

// TestExpectedSuccessorsTakeOpenSeats: an expected successor takes one of the seats,
// until it arrives or the time for it is over.
func TestExpectedSuccessorsTakeOpenSeats(t *testing.T) {
	l, clock := newTestLedger("a")
	spread := weights("a", 1)
	for _, name := range []string{"p0", "p1"} {
		l.Observe(podIn(name, "node-a"))
	}
	created := clock.Now().Add(-time.Minute)
	r := request("", 4, spread) // two seats are open
	expect := func(what string, pods int) {
		t.Helper()
		for i := range pods + 1 {
			if may, after := l.MayRecreateGated(r, created); may != (i < pods) || !may && after != retryOpen {
				t.Fatalf("%s: pod %d may be recreated: %t, after %s; want %d in all", what, i, may, after, pods)
			}
		}
	}
	expect("as many as there are open seats", 2)
	l.CancelRecreation(r)
	expect("one for the pod that was not deleted", 1)
	clock.Step(takeTTL)
	expect("those that did not arrive in time are not expected any more", 2)
	l.CancelRecreation(Request{Cohort: Cohort{Owner: "unknown"}}) // the ledger does not have it
}

// TestPodThatNeedsNoSeatMayBeRecreated: this is a pod of a spread without groups, even if other pods
// of its owner have seats, and a pod of an owner that the ledger does not have.
func TestPodThatNeedsNoSeatMayBeRecreated(t *testing.T) {
	l, clock := newTestLedger("a")
	l.Observe(podIn("p", "node-a"))
	created := clock.Now().Add(-time.Minute)
	if may, after := l.MayRecreateGated(request("", 1, placement.Spread{}), created); !may {
		t.Errorf("without groups it waits for %s", after)
	}
	unknown := Request{Cohort: Cohort{Owner: "unknown"}, Total: 1, Spread: weights("a", 1)}
	if may, after := l.MayRecreateGated(unknown, created); !may {
		t.Errorf("of an unknown owner it waits for %s", after)
	}
}

// TestArrivedSuccessorIsNoLongerExpected: a successor arrives once, and only a pod at the
// gate without a seat counts as one. CancelRecreation without an expected successor has no effect.
func TestArrivedSuccessorIsNoLongerExpected(t *testing.T) {
	l, clock := newTestLedger("a")
	l.Observe(podIn("p", "node-a"))
	created := clock.Now().Add(-time.Minute)
	r := request("", 20, atMost(t, 3, "a")) // two seats are open
	l.CancelRecreation(r)
	expect := func(what string, pods int) {
		t.Helper()
		for i := range pods + 1 {
			if may, _ := l.MayRecreateGated(r, created); may != (i < pods) {
				t.Fatalf("%s: pod %d may be recreated: %t, want %d in all", what, i, may, pods)
			}
		}
	}
	gated := func(name string) *Pod {
		p := podIn(name, "")
		p.Gated = true
		return p
	}
	expect("as many as there are open seats", 2)
	l.Observe(gated("successor"))
	expect("one has arrived", 1)
	l.Observe(gated("successor"))
	expect("it is observed again", 0)
	l.Observe(podIn("free", ""))
	expect("a pod without our gate", 0)
}

// TestExpectedSuccessorsCountInTheTotal: a deleted pod whose successor is expected
// counts in the total, even if the owner states a smaller one.
func TestExpectedSuccessorsCountInTheTotal(t *testing.T) {
	l, clock := newTestLedger("a", "b")
	l.Observe(podIn("bound", "node-a"))
	for _, name := range []string{"first", "second"} {
		gated := podIn(name, "")
		gated.Gated = true
		l.Observe(gated)
	}
	r, created := request("", 0, weights("a", 1, "b", 1)), clock.Now().Add(-time.Minute)
	for _, name := range []types.UID{"first", "second"} {
		if may, _ := l.MayRecreateGated(r, created); !may {
			t.Fatalf("one of three pods is bound, and the %s is not recreated", name)
		}
		l.Forget(name)
	}
}
