package seats

import (
	"fmt"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
)

// atMost divides over groups in their order, each up to a number of pods.
func atMost(t *testing.T, n int, groups ...string) placement.Spread {
	t.Helper()
	var spec gm.PropagationSpec
	for _, g := range groups {
		spec.NumRange = append(spec.NumRange, gm.NodeGroupNumRange{NodeGroupNames: []string{g}, Max: new(intstr.FromInt(n))})
	}
	spread, err := placement.New(spec, func(string) bool { return true }, "app")
	if err != nil {
		t.Fatal(err)
	}
	return spread
}

// pinned is a pod that got its seat at creation, under a token.
func pinned(uid, token, group, node string) *Pod {
	p := podIn(uid, node)
	p.Seat, p.GroupStamp = types.UID(token), group
	return p
}

func take(t *testing.T, l *Ledger, r Request) string {
	t.Helper()
	group, why := l.Take(r, false)
	if why != Seated {
		t.Fatalf("%s got no seat: %s", r.Pod, why)
	}
	return group
}

// taken counts all seats of the cohort, those of pods that nobody has seen too.
func taken(l *Ledger) map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[string]int{}
	if c := l.cohorts[cohortOne]; c != nil {
		for g, n := range c.counts {
			out[g] = n
		}
	}
	return out
}

func TestTakeFollowsTheDivision(t *testing.T) {
	l, _ := newTestLedger("hz", "bj")
	for i := range 50 {
		take(t, l, request(fmt.Sprint("t", i), 50, weights("hz", 3, "bj", 2)))
	}
	if got := taken(l); got["hz"] != 30 || got["bj"] != 20 {
		t.Errorf("50 pods at 3:2 were seated %v, want hz 30, bj 20", got)
	}
}

func TestTakeRefusedLeavesNothingBehind(t *testing.T) {
	l, _ := newTestLedger("hz")
	for want, spread := range map[Reason]placement.Spread{NoGroup: {}, NoSeatOpen: atMost(t, 0, "hz")} {
		if _, why := l.Take(request("t", 1, spread), false); why != want {
			t.Errorf("answered %q, want %q", why, want)
		}
	}
	if len(l.seats)+len(l.cohorts)+len(l.owners) != 0 {
		t.Errorf("%d seats, %d cohorts, %d owners are left", len(l.seats), len(l.cohorts), len(l.owners))
	}
}

func TestConcurrentTakesNeverOverfillAGroup(t *testing.T) {
	l, _ := newTestLedger("a", "b", "c")
	spread := weights("a", 5, "b", 3, "c", 2)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			token := fmt.Sprint("t", i)
			group, why := l.Take(request(token, 200, spread), false)
			if why != Seated {
				t.Errorf("pod %d got no seat: %s", i, why)
				return
			}
			l.Observe(pinned(fmt.Sprint("p", i), token, group, ""))
		})
	}
	wg.Wait()
	if got := counts(l, cohortOne); got["a"] != 100 || got["b"] != 60 || got["c"] != 40 {
		t.Errorf("200 pods at 5:3:2 sit %v, want a 100, b 60, c 40", got)
	}
}

func TestATakenSeatIsThePodsOnceItIsSeen(t *testing.T) {
	l, clock := newTestLedger("a", "b")
	spread := weights("a", 1, "b", 1)
	group := take(t, l, request("token", 2, spread))
	l.Observe(pinned("p", "token", group, ""))
	if got := taken(l); got[group] != 1 || len(got) != 1 {
		t.Errorf("one pod was created and seen, and the seats are %v", got)
	}
	clock.Step(takeTTL)
	l.Lapse()
	if got := counts(l, cohortOne); got[group] != 1 {
		t.Errorf("the seat of a pod that exists lapsed: %v", got)
	}
	l.Observe(pinned("p", "token", group, "node-"+group)) // bound
	l.Forget("p")
	if len(l.seats)+len(l.cohorts) != 0 {
		t.Errorf("a deleted pod left %d seats, %d cohorts", len(l.seats), len(l.cohorts))
	}
}

func TestATakenSeatLapsesWhenThePodIsNeverSeen(t *testing.T) {
	l, clock := newTestLedger("a")
	spread := atMost(t, 1, "a")
	take(t, l, request("token", 1, spread))
	clock.Step(takeTTL - 1)
	if _, why := l.Take(request("next", 1, spread), false); why != NoSeatOpen {
		t.Errorf("before its time was over the seat was handed out again: %q", why)
	}
	clock.Step(1)
	take(t, l, request("next", 1, spread))
	clock.Step(takeTTL)
	l.Lapse()
	if len(l.seats)+len(l.cohorts)+len(l.owners) != 0 {
		t.Errorf("%d seats, %d cohorts, %d owners are left", len(l.seats), len(l.cohorts), len(l.owners))
	}
}

func TestAPodThatIsOverWhenItIsSeenHoldsNoSeat(t *testing.T) {
	l, _ := newTestLedger("a")
	take(t, l, request("token", 1, weights("a", 1)))
	over := pinned("p", "token", "a", "")
	over.Active = false
	l.Observe(over)
	if got := taken(l); len(got) != 0 {
		t.Errorf("seats are %v", got)
	}
}

func TestADryRunTakesNothing(t *testing.T) {
	l, _ := newTestLedger("a", "b")
	spread := weights("a", 1, "b", 1)
	first, _ := l.Take(request("dry", 2, spread), true)
	for range 3 {
		if again, why := l.Take(request("dry", 2, spread), true); again != first || why != Seated {
			t.Fatalf("asked again a dry run got %q (%s), first %q: it took a seat", again, why, first)
		}
	}
	if len(l.seats)+len(l.cohorts)+len(l.owners) != 0 {
		t.Errorf("%d seats, %d cohorts, %d owners are left", len(l.seats), len(l.cohorts), len(l.owners))
	}
	if got := take(t, l, request("real", 2, spread)); got != first {
		t.Errorf("the real one got %q, the dry run %q", got, first)
	}
}

func TestAPinnedPodKeepsItsSeatWhateverIsAsked(t *testing.T) {
	l, _ := newTestLedger("a", "b")
	spread := weights("a", 0, "b", 1) // by now a is wanted by nobody
	l.Observe(pinned("p", "token", "a", ""))
	asked := func(what string) {
		t.Helper()
		if got := counts(l, cohortOne); got["a"] != 1 || got["b"] != 0 {
			t.Errorf("%s: seats are %v, want one in a", what, got)
		}
	}
	if group, why := l.Reserve(request("p", 1, spread, "node-a", "node-b")); group != "a" || why != Seated {
		t.Errorf("asked for a seat it is sent to %q (%s)", group, why)
	}
	asked("Reserve")
	if why := l.Confirm(request("p", 1, spread), "node-b"); why != NoSeatOpen {
		t.Errorf("binding to another group answered %q, want %q", why, NoSeatOpen)
	}
	asked("Confirm elsewhere")
	if why := l.Confirm(request("p", 1, spread), "node-a"); why != Seated {
		t.Errorf("binding to its group was refused: %s", why)
	}
	asked("Confirm")
	l.Release("p")
	asked("Release")
}

func TestAnAvoidedGroupGetsNoPodWhileOthersCan(t *testing.T) {
	l, clock := newTestLedger("a", "b")
	spread := weights("a", 9, "b", 1)
	l.Avoid("rs", "a")
	for i := range 5 { // beyond b's share: a share is no bound
		if got := take(t, l, request(fmt.Sprint("t", i), 10, spread)); got != "b" {
			t.Fatalf("pod %d went to %q, which is avoided", i, got)
		}
	}
	other := request("other", 10, spread)
	other.Cohort.Owner = "another-rs"
	if got := take(t, l, other); got != "a" {
		t.Errorf("another owner's pod went to %q: it avoids nothing", got)
	}
	if l.CanTake("a", podIn("p", "node-b")) || !l.CanTake("b", podIn("p", "node-a")) {
		t.Error("a pod is moved to where the next one of its owner would not come")
	}
	clock.Step(AvoidTime)
	if got := take(t, l, request("later", 10, spread)); got != "a" {
		t.Errorf("after %s the group still is avoided: got %q", AvoidTime, got)
	}
	clock.Step(1)
	l.Lapse()
	if len(l.avoided) != 0 {
		t.Errorf("kept for ever: %v", l.avoided)
	}
}

func TestAnAvoidedGroupGetsThePodWhenNoOtherMay(t *testing.T) {
	for name, spread := range map[string]placement.Spread{
		"it is the only one":              weights("a", 1),
		"the others have weight 0":        weights("a", 1, "b", 0),
		"the other's range ends below it": atMost(t, 1, "b", "a"),
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := newTestLedger("a", "b")
			l.Observe(podIn("p", "node-b"))
			l.Avoid("rs", "a")
			if got := take(t, l, request("t", 2, spread)); got != "a" {
				t.Errorf("went to %q", got)
			}
		})
	}
}
