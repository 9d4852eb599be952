package seats

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
)

var cohortOne = Cohort{Owner: "rs", Revision: "r1"}

func newTestLedger(groups ...string) (*Ledger, *testingclock.FakeClock) {
	clock := testingclock.NewFakeClock(time.Unix(1_000_000, 0))
	l := NewLedger(clock)
	for _, g := range groups {
		l.ObserveNode(openNode("node-"+g, g))
	}
	return l, clock
}

// openNode returns a node with room for one CPU and 10 pods.
func openNode(name, group string) Node {
	return Node{Name: name, Group: group, Open: true, Offer: fit.Node{
		Name: name, Allocatable: fit.Amounts{{Name: "cpu", Value: 1000}, {Name: "memory", Value: 1 << 30}, {Name: "pods", Value: 10}},
	}}
}

// needing returns the demand of a pod that requests CPU, in thousandths.
func needing(milliCPU int64) *fit.Demand {
	return &fit.Demand{Requests: fit.Amounts{{Name: "cpu", Value: milliCPU}, {Name: "pods", Value: 1}}}
}

func weights(pairs ...any) placement.Spread {
	var rules []gm.StaticNodeGroupWeight
	for i := 0; i < len(pairs); i += 2 {
		rules = append(rules, gm.StaticNodeGroupWeight{NodeGroupNames: []string{pairs[i].(string)}, Weight: int64(pairs[i+1].(int))})
	}
	return placement.StaticWeight(rules, nil, "app")
}

func request(pod string, total int, spread placement.Spread, nodes ...string) Request {
	return Request{Pod: types.UID(pod), Cohort: cohortOne, Total: total, Spread: spread, Nodes: nodes}
}

func podIn(uid, node string) *Pod {
	return &Pod{
		UID: types.UID(uid), Namespace: "ns", Name: uid, Node: node, Active: true, Ready: node != "", Revision: "r1",
		Controller: &ownership.Reference{GroupVersionKind: schema.GroupVersionKind{Kind: "ReplicaSet"}, Name: "rs", UID: "rs"},
	}
}

func counts(l *Ledger, c Cohort) map[string]int {
	out := map[string]int{}
	for _, v := range l.View([]types.UID{c.Owner}) {
		for _, p := range v.Pods {
			if v.Cohort == c && p.Seated {
				out[p.Group]++
			}
		}
	}
	return out
}

func TestReserveFollowsTheDivision(t *testing.T) {
	l, _ := newTestLedger("hz", "bj")
	spread := weights("hz", 3, "bj", 2)
	got := map[string]int{}
	for i := range 50 {
		group, why := l.Reserve(request(fmt.Sprint("p", i), 50, spread, "node-hz", "node-bj"))
		if why != Seated {
			t.Fatalf("pod %d got no seat: %s", i, why)
		}
		got[group]++
	}
	if got["hz"] != 30 || got["bj"] != 20 {
		t.Errorf("50 pods at 3:2 were seated %v, want hz 30, bj 20", got)
	}
	if _, why := l.Reserve(request("one-more", 0, weights("none", 1), "node-hz")); why != NoNodeInOpenGroup {
		t.Errorf("a pod whose group has no node among those offered got %q, want %q", why, NoNodeInOpenGroup)
	}
}

func TestConcurrentReservationsNeverOverfillAGroup(t *testing.T) {
	l, _ := newTestLedger("a", "b", "c")
	spread := weights("a", 5, "b", 3, "c", 2)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			uid := fmt.Sprint("p", i)
			group, why := l.Reserve(request(uid, 200, spread, "node-a", "node-b", "node-c"))
			if why != Seated {
				t.Errorf("pod %d got no seat: %s", i, why)
				return
			}
			l.Observe(podIn(uid, "node-"+group))
		})
	}
	wg.Wait()
	got := counts(l, cohortOne)
	if got["a"] != 100 || got["b"] != 60 || got["c"] != 40 {
		t.Errorf("200 pods at 5:3:2 are in %v, want a 100, b 60, c 40", got)
	}
}

func TestRepeatedReserveReleasesTheOldSeatFirst(t *testing.T) {
	l, _ := newTestLedger("a", "b")
	spread := weights("a", 1, "b", 1)
	first, _ := l.Reserve(request("p", 2, spread, "node-a", "node-b"))
	for range 10 {
		if again, _ := l.Reserve(request("p", 2, spread, "node-a", "node-b")); again != first {
			t.Fatalf("the same pod was sent to %q, then to %q: its own reservation counted against it", first, again)
		}
	}
}

func TestAReservationLapsesAndItsSeatIsHandedOutAgain(t *testing.T) {
	l, clock := newTestLedger("a")
	spread := weights("a", 1)
	l.Observe(podIn("p", ""))
	l.Reserve(request("p", 1, spread, "node-a"))
	clock.Step(ReservationTTL)
	l.Lapse()
	if got := counts(l, cohortOne); got["a"] != 0 {
		t.Errorf("a reservation outlived its time: %v", got)
	}
	if why := l.Confirm(request("p", 1, spread), "node-a"); why != Seated {
		t.Errorf("binding after the reservation lapsed was refused although the seat is free: %s", why)
	}
}

// TestTheSeatOfABoundPodOutlivesAStaleView: until a bound pod is observed on its node, no
// other pod gets its seat, however late that is.
func TestTheSeatOfABoundPodOutlivesAStaleView(t *testing.T) {
	l, clock := newTestLedger("a")
	spread := weights("a", 1)
	for _, pod := range []string{"seen", "unseen"} {
		if pod == "seen" {
			l.Observe(podIn(pod, ""))
		}
		l.Reserve(request(pod, 2, spread, "node-a"))
		if why := l.Confirm(request(pod, 2, spread), "node-a"); why != Seated {
			t.Fatal(why)
		}
		l.KeepSeat(types.UID(pod))
	}
	clock.Step(10 * time.Minute)
	l.Lapse()
	if got := l.cohorts.byKey[cohortOne].counts["a"]; got != 2 {
		t.Errorf("%d seats are taken, want those of both bound pods", got)
	}
	l.Observe(podIn("seen", "node-a"))
	clock.Step(boundTTL)
	l.Lapse()
	if got := l.cohorts.byKey[cohortOne].counts["a"]; got != 1 {
		t.Errorf("%d seats, want one: the other pod was never observed, so its deletion is not either", got)
	}
}

func TestReservationsOfPodsNeverSeenLeaveNothingBehind(t *testing.T) {
	l, clock := newTestLedger("a")
	for i := range 100 {
		r := request(fmt.Sprint("p", i), 1, weights("a", 1), "node-a")
		r.Cohort = Cohort{Owner: types.UID(fmt.Sprint("rs", i))}
		l.Reserve(r)
	}
	clock.Step(ReservationTTL)
	l.Lapse()
	if len(l.cohorts.byPod)+len(l.cohorts.byKey)+len(l.cohorts.byOwner) != 0 {
		t.Errorf("%d seats, %d cohorts, %d owners are left", len(l.cohorts.byPod), len(l.cohorts.byKey), len(l.cohorts.byOwner))
	}
}

func TestConfirmRefusesAGroupThatFilledUpMeanwhile(t *testing.T) {
	l, clock := newTestLedger("a", "b")
	spread := weights("a", 1, "b", 1)
	l.Observe(podIn("late", ""))
	l.Observe(podIn("other", ""))
	group, _ := l.Reserve(request("late", 2, spread, "node-a", "node-b"))
	clock.Step(ReservationTTL)
	if taken, _ := l.Reserve(request("other", 2, spread, "node-"+group)); taken != group {
		t.Fatalf("the lapsed seat was not handed out again: got %q, want %q", taken, group)
	}
	if why := l.Confirm(request("late", 2, spread), "node-"+group); why != NoSeatOpen {
		t.Errorf("binding to a group that filled up got %q, want %q", why, NoSeatOpen)
	}
}

// TestAPodThatIsBeingBoundGetsNoOtherSeat: two kube-schedulers may handle the same pod. The
// second may send a request before the result of the first is observed.
func TestAPodThatIsBeingBoundGetsNoOtherSeat(t *testing.T) {
	spread := weights("a", 1, "b", 1)
	for name, seen := range map[string]bool{"a pod that was seen": true, "a pod that was not": false} {
		t.Run(name, func(t *testing.T) {
			l, clock := newTestLedger("a", "b")
			if seen {
				l.Observe(podIn("p", ""))
			}
			l.Reserve(request("p", 2, spread, "node-a"))
			if group, _ := l.Reserve(request("p", 2, spread, "node-b")); group != "b" {
				t.Errorf("before it is bound, the seat is in %q, want b, where its nodes are now", group)
			}
			if why := l.Confirm(request("p", 2, spread), "node-a"); why != Seated {
				t.Fatal(why)
			}
			if group, why := l.Reserve(request("p", 2, spread, "node-b")); group != "a" || why != Seated {
				t.Errorf("asked again, the seat is in %q (%s), want a, where it is being bound", group, why)
			}
			if why := l.Confirm(request("p", 2, spread), "node-b"); why != NoSeatOpen {
				t.Errorf("binding it elsewhere got %q, want %q", why, NoSeatOpen)
			}
			if got := l.cohorts.byKey[cohortOne].counts; got["a"] != 1 || got["b"] != 0 {
				t.Errorf("seats are %v, want one in a", got)
			}
			clock.Step(ReservationTTL)
			if group, _ := l.Reserve(request("p", 2, spread, "node-b")); group != "b" {
				t.Errorf("after its time, the seat is in %q, want b", group)
			}
			l.Confirm(request("p", 2, spread), "node-b")
			l.Release("p")
			if group, _ := l.Reserve(request("p", 2, spread, "node-a")); group != "a" {
				t.Errorf("after it was given back, the seat is in %q, want a", group)
			}
		})
	}
}

func TestConfirmKeepsTheSeatOfABoundPod(t *testing.T) {
	l, _ := newTestLedger("a", "b")
	l.Observe(podIn("p", "node-a"))
	if why := l.Confirm(request("p", 2, weights("a", 1, "b", 1)), "node-b"); why != NoSeatOpen {
		t.Errorf("binding a pod a second time, elsewhere, got %q, want %q", why, NoSeatOpen)
	}
	if got := counts(l, cohortOne); got["a"] != 1 || got["b"] != 0 {
		t.Errorf("seats are %v, want one in a", got)
	}
}

func TestConfirmRefusedForAPodNeverSeenLeavesNothingBehind(t *testing.T) {
	l, _ := newTestLedger("a", "b")
	if why := l.Confirm(request("p", 1, weights("a", 1)), "node-b"); why != NoNodeInOpenGroup {
		t.Errorf("binding to a group that takes no part got %q, want %q", why, NoNodeInOpenGroup)
	}
	if len(l.cohorts.byPod)+len(l.cohorts.byKey)+len(l.cohorts.byOwner) != 0 {
		t.Errorf("%d seats, %d cohorts, %d owners are left", len(l.cohorts.byPod), len(l.cohorts.byKey), len(l.cohorts.byOwner))
	}
}

func TestOnlyActivePodsHoldSeats(t *testing.T) {
	l, _ := newTestLedger("a")
	pod := podIn("p", "node-a")
	l.Observe(pod)
	terminating := *pod
	terminating.Active = false
	l.Observe(&terminating)
	if got := counts(l, cohortOne); got["a"] != 0 {
		t.Errorf("a terminating pod holds a seat: %v", got)
	}
	if got := taken(l); len(got) != 0 {
		t.Errorf("the seat of a terminating pod is not open: %v", got)
	}
	l.Forget("p")
	if len(l.cohorts.byKey) != 0 || len(l.cohorts.byPod) != 0 {
		t.Errorf("a deleted pod left %d cohorts, %d seats", len(l.cohorts.byKey), len(l.cohorts.byPod))
	}
}

func TestPodsMoveWithTheirNode(t *testing.T) {
	l, _ := newTestLedger("a")
	l.Observe(podIn("p", "node-a"))
	epoch := l.GroupsEpoch()
	l.ObserveNode(Node{Name: "node-a", Group: "b"})
	if got := counts(l, cohortOne); got["a"] != 0 || got["b"] != 1 {
		t.Errorf("the node went from a to b, the seats are %v", got)
	}
	if l.HasMembers("a") || !l.HasMembers("b") || l.GroupsEpoch() == epoch {
		t.Errorf("members: a %v, b %v, epoch moved: %v", l.HasMembers("a"), l.HasMembers("b"), l.GroupsEpoch() != epoch)
	}
}

func TestPodsSeenBeforeTheirNodeCountOnceItIsKnown(t *testing.T) {
	l, _ := newTestLedger()
	l.Observe(podIn("p", "later"))
	l.ObserveNode(Node{Name: "later", Group: "g"})
	if got := counts(l, cohortOne); got["g"] != 1 {
		t.Errorf("seats are %v, want one in g", got)
	}
}

func TestDisruptGivesTheLastPermissionOnce(t *testing.T) {
	l, clock := newTestLedger("a")
	for i := range 5 {
		l.Observe(podIn(fmt.Sprint("p", i), "node-a"))
	}
	owners := []types.UID{"rs"}
	var granted []string
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() {
			uid := fmt.Sprint("p", i)
			if l.Disrupt(types.UID(uid), owners, 5, 1) {
				mu.Lock()
				defer mu.Unlock()
				granted = append(granted, uid)
			}
		})
	}
	wg.Wait()
	if len(granted) != 1 {
		t.Fatalf("%v of five concurrent calls were allowed, want one", granted)
	}
	l.Undisrupt(types.UID(granted[0]))
	if !l.Disrupt("p0", owners, 5, 1) {
		t.Error("a permission that was taken back is not given again")
	}
	clock.Step(2 * disruptionTTL)
	if !l.Disrupt("p1", owners, 5, 1) {
		t.Error("a disruption whose effect was never observed blocks others for ever")
	}
}

func TestDisruptWaitsForPodsThatAreMissingOrRestarting(t *testing.T) {
	l, _ := newTestLedger("a")
	l.Observe(podIn("p0", "node-a"))
	l.Observe(podIn("p1", "node-a"))
	owners := []types.UID{"rs"}
	if l.Disrupt("p0", owners, 3, 1) {
		t.Error("allowed although one of three pods is missing")
	}
	restarting := podIn("p1", "node-a")
	restarting.Containers = []Container{{Name: "c", Restarting: true}}
	l.Observe(restarting)
	if l.Disrupt("p0", owners, 2, 1) {
		t.Error("allowed although the other pod is restarting")
	}
	if !l.Disrupt("p1", owners, 2, 1) {
		t.Error("a pod that is not available may not be disrupted")
	}
}

func TestDisruptAlwaysAllowsUnreadyPods(t *testing.T) {
	l, _ := newTestLedger("a")
	for _, uid := range []string{"p0", "p1", "p2"} {
		pod := podIn(uid, "node-a")
		pod.Ready = uid == "p0"
		l.Observe(pod)
	}
	owners := []types.UID{"rs"}
	for _, uid := range []types.UID{"p1", "p2"} {
		if !l.Disrupt(uid, owners, 9, 1) {
			t.Errorf("%s is not available and may not be disrupted", uid)
		}
	}
	if l.Disrupt("p0", owners, 9, 1) {
		t.Error("allowed although no other pod is available")
	}
}

func TestCanTakeLooksAtRoom(t *testing.T) {
	l, _ := newTestLedger("a", "b")
	full := podIn("full", "node-a")
	full.Demand = needing(900)
	l.Observe(full)
	pod := podIn("p", "node-b")
	pod.Demand = needing(200)
	if canTake(l, "a", pod) {
		t.Error("200m fit although 900m of 1000m are used")
	}
	if !canTake(l, "b", pod) || canTake(l, "nowhere", pod) {
		t.Error("an idle node has room; a group without nodes has none")
	}
	closed := openNode("node-b", "b")
	closed.Open = false
	l.ObserveNode(closed)
	if canTake(l, "b", pod) {
		t.Error("a cordoned node takes pods")
	}
}

// TestAnAvoidedGroupWhoseNodesAreCordonedSaysSo: that is why it is avoided, and what a person can change.
func TestAnAvoidedGroupWhoseNodesAreCordonedSaysSo(t *testing.T) {
	l, _ := newTestLedger("a", "b")
	pod := podIn("p", "node-a")
	l.Observe(pod)
	l.Avoid(pod, "b")
	if _, why := l.CanTake("b", pod); why != fit.Avoided {
		t.Errorf("the reason is %q", why)
	}
	cordoned := openNode("node-b", "b")
	cordoned.Open = false
	l.ObserveNode(cordoned)
	if _, why := l.CanTake("b", pod); why != fit.NoOpenNode {
		t.Errorf("the reason is %q", why)
	}
}

func TestScoresPutTheGroupThatLacksMostFirst(t *testing.T) {
	l, _ := newTestLedger("a", "b", "c")
	for i := range 3 {
		l.Observe(podIn(fmt.Sprint("b", i), "node-b"))
	}
	l.Observe(podIn("a0", "node-a"))
	scores := l.Scores(request("new", 9, weights("a", 1, "b", 1, "c", 1), "node-a", "node-b", "node-c"))
	if scores["c"] != 10 || scores["a"] >= scores["c"] || scores["a"] <= 0 {
		t.Errorf("c lacks 3 and a lacks 2: scores are %v", scores)
	}
	if _, full := scores["b"]; full {
		t.Errorf("b has its share and is scored: %v", scores)
	}
}

// TestLedgerIsAFunctionOfThePods applies random events to a ledger and compares it with a new
// one that observes only the pods that are left.
func TestLedgerIsAFunctionOfThePods(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, clock := newTestLedger("a", "b", "c")
		spread := weights("a", 3, "b", 2, "c", 1)
		pods := map[string]*Pod{}
		nodes := []string{"node-a", "node-b", "node-c"}
		for step := range rapid.IntRange(1, 60).Draw(t, "steps") {
			uid := fmt.Sprint("p", rapid.IntRange(0, 12).Draw(t, "pod"))
			switch rapid.IntRange(0, 6).Draw(t, "event") {
			case 0:
				if pods[uid] == nil {
					pods[uid] = podIn(uid, "")
					l.Observe(pods[uid])
				}
			case 1:
				if p := pods[uid]; p != nil && p.Node == "" && p.Active {
					l.Reserve(request(uid, 8, spread, nodes...))
				}
			case 2:
				if p := pods[uid]; p != nil && p.Node == "" && p.Active {
					node := rapid.SampledFrom(nodes).Draw(t, "node")
					if l.Confirm(request(uid, 8, spread), node) == Seated {
						bound := *p
						bound.Node = node
						pods[uid] = &bound
						l.Observe(&bound)
					}
				}
			case 3:
				if p := pods[uid]; p != nil {
					done := *p
					done.Active = false
					pods[uid] = &done
					l.Observe(&done)
				}
			case 4:
				delete(pods, uid)
				l.Forget(types.UID(uid))
			case 5:
				clock.Step(ReservationTTL / 2)
			case 6:
				token := fmt.Sprint("t", step)
				group, why := l.Take(request(token, 8, spread), rapid.Bool().Draw(t, "dry run"))
				if created := rapid.Bool().Draw(t, "created"); why == Seated && created && pods[uid] == nil {
					pods[uid] = pinned(uid, token, group, "")
					l.Observe(pods[uid])
				}
			}
		}
		clock.Step(2 * ReservationTTL)
		l.Lapse()
		fresh, _ := newTestLedger("a", "b", "c")
		for _, p := range pods {
			fresh.Observe(p)
		}
		got, want := fmt.Sprint(counts(l, cohortOne)), fmt.Sprint(counts(fresh, cohortOne))
		if got != want {
			t.Fatalf("seats are %s, a new ledger has %s", got, want)
		}
		if len(l.cohorts.byPod) != len(pods) {
			t.Fatalf("%d seats are kept for %d pods", len(l.cohorts.byPod), len(pods))
		}
	})
}

// TestHandlersGetEachPodChangeOnce: handlers get each change of an observed pod once, with its state
// before.
func TestHandlersGetEachPodChangeOnce(t *testing.T) {
	l, _ := newTestLedger("a")
	type change struct{ old, new *Pod }
	var received []change
	l.OnChange(func(old, new *Pod) { received = append(received, change{old, new}) })
	waits, bound, adopted := podIn("p", ""), podIn("p", "node-a"), podIn("p", "node-a")
	other := *adopted.Controller
	other.UID = "other"
	adopted.Controller = &other
	for _, step := range []struct {
		what string
		do   func()
		want []change
	}{
		{"it was reserved, and not observed", func() { l.Reserve(request("p", 1, weights("a", 1), "node-a")) }, nil},
		{"it is seen", func() { l.Observe(waits) }, []change{{nil, waits}}},
		{"it is bound", func() { l.Observe(bound) }, []change{{waits, bound}}},
		{"another owner adopts it", func() { l.Observe(adopted) }, []change{{bound, adopted}}},
		{"it is gone", func() { l.Forget("p") }, []change{{adopted, nil}}},
		{"it is gone once more", func() { l.Forget("p") }, nil},
		{"one that was never seen is gone", func() {
			l.Reserve(request("q", 1, weights("a", 1), "node-a"))
			l.Forget("q")
		}, nil},
	} {
		received = nil
		if step.do(); !slices.Equal(received, step.want) {
			t.Errorf("%s: the handler got %v, want %v", step.what, received, step.want)
		}
	}
}

// tally is a gauge that counts Inc and Dec.
type tally struct {
	prometheus.Gauge
	n int
}

func (t *tally) Inc() { t.n++ }
func (t *tally) Dec() { t.n-- }

// TestHeldSeatsAreCountedByTheirState: the metric is right also when calls and events are
// repeated.
func TestHeldSeatsAreCountedByTheirState(t *testing.T) {
	l, clock := newTestLedger("a")
	reserved, observed := &tally{}, &tally{}
	l.cohorts.held = map[bool]prometheus.Gauge{true: reserved, false: observed}
	r := request("p", 9, weights("a", 1), "node-a")
	for _, step := range []struct {
		what               string
		do                 func()
		reserved, observed int
	}{
		{"reserved", func() { l.Reserve(r) }, 1, 0},
		{"reserved again", func() { l.Reserve(r) }, 1, 0},
		{"about to be bound", func() { l.Confirm(r, "node-a") }, 1, 0},
		{"bound", func() { l.KeepSeat("p") }, 1, 0},
		{"seen on its node", func() { l.Observe(podIn("p", "node-a")) }, 0, 1},
		{"seen again", func() { l.Observe(podIn("p", "node-a")) }, 0, 1},
		{"kept, which is late", func() { l.KeepSeat("p") }, 0, 1},
		{"one that is never seen is kept", func() { l.KeepSeat("unknown") }, 0, 1},
		{"another is admitted, and has no seat", func() { l.Admit(request("t", 9, weights("a", 1)), false) }, 0, 1},
		{"the other does not come", func() {
			clock.Step(takeTTL)
			l.Lapse()
		}, 0, 1},
		{"one sits on a node that is about to join its group", func() { l.Observe(pinned("q", "s", "a", "new")) }, 1, 1},
		{"the node joins it", func() { l.ObserveNode(openNode("new", "a")) }, 0, 2},
		{"all are gone", func() {
			l.Forget("p")
			l.Forget("q")
		}, 0, 0},
	} {
		step.do()
		if reserved.n != step.reserved || observed.n != step.observed {
			t.Errorf("%s: %d seats are reserved and %d observed, want %d and %d", step.what, reserved.n, observed.n, step.reserved, step.observed)
		}
	}
}

// TestAnAnnouncedDisruptionLastsUntilItIsSeen: the announcement ends when the pod itself
// shows the effect.
func TestAnAnnouncedDisruptionLastsUntilItIsSeen(t *testing.T) {
	l, _ := newTestLedger("a")
	owners := []types.UID{"rs", "unknown", "other"}
	other := podIn("p2", "node-a")
	controller := *other.Controller
	controller.UID = "other"
	other.Controller = &controller
	for _, p := range []*Pod{podIn("p0", "node-a"), podIn("p1", "node-a"), other} {
		l.Observe(p)
	}
	const wanted, most = 3, 1
	if !l.Disrupt("p0", owners, wanted, most) {
		t.Fatal("all three pods of two owners are available, and none may be disrupted")
	}
	l.Observe(podIn("p0", "node-a"))
	if l.Disrupt("p1", owners, wanted, most) {
		t.Error("the pod that is about to be restarted has changed otherwise, and another may be disrupted")
	}
	restarting := podIn("p0", "node-a")
	restarting.Containers = []Container{{Name: "c", Restarting: true}}
	l.Observe(restarting)
	if l.Disrupt("p1", owners, wanted, most) {
		t.Error("the pod restarts, and another may be disrupted")
	}
	l.Observe(podIn("p0", "node-a"))
	if !l.Disrupt("p1", owners, wanted, most) {
		t.Error("the pod has restarted, and no other may be disrupted")
	}
}

// TestRefusedPodStaysInTheLedger: an observed pod stays in the ledger. A pod that was
// not observed leaves no entry.
func TestRefusedPodStaysInTheLedger(t *testing.T) {
	l, _ := newTestLedger("a", "b")
	l.Observe(podIn("seen", ""))
	for _, name := range []string{"seen", "unseen"} {
		if _, why := l.Reserve(request(name, 1, weights("a", 1), "node-b")); why != NoNodeInOpenGroup {
			t.Errorf("it gets %q", why)
		}
	}
	if l.Pod("seen") == nil || len(l.cohorts.byPod) != 1 {
		t.Errorf("known is %v, of %d", l.Pod("seen"), len(l.cohorts.byPod))
	}
}

// TestUnknownNodesHideNoOtherNode: kube-scheduler may have a node before the ledger has
// it.
func TestUnknownNodesHideNoOtherNode(t *testing.T) {
	l, _ := newTestLedger("a")
	l.ObserveNode(Node{Name: "free", Open: true})
	if group, why := l.Reserve(request("p", 1, weights("a", 1), "unknown", "free", "node-a")); group != "a" || why != Seated {
		t.Errorf("it is sent to %q: %s", group, why)
	}
}

// TestAPolicyThatChangesCountsAtOnce: the division is computed again, also for the same
// number of pods.
func TestAPolicyThatChangesCountsAtOnce(t *testing.T) {
	l, _ := newTestLedger("a", "b")
	for i, tc := range []struct {
		spread placement.Spread
		want   string
	}{{weights("a", 1, "b", 0), "a"}, {weights("a", 0, "b", 1), "b"}, {weights("a", 0, "b", 1), "b"}, {weights("a", 1, "b", 0), "a"}} {
		if group, why := l.Reserve(request(fmt.Sprint("p", i), 4, tc.spread, "node-a", "node-b")); group != tc.want {
			t.Errorf("pod %d is sent to %q (%s), want %q", i, group, why, tc.want)
		}
	}
}

// TestViewOmitsCohortsWithoutPods: unknown owners, and revisions without an observed pod, are
// not in the view.
func TestViewOmitsCohortsWithoutPods(t *testing.T) {
	l, _ := newTestLedger("a")
	l.Observe(podIn("p", "node-a"))
	for i := range 50 {
		r := request(fmt.Sprint("token", i), 1, weights("a", 1))
		r.Cohort.Revision = fmt.Sprint("r1-", i)
		l.Take(r, false)
	}
	for range 20 { // in whatever order they come
		view := l.View([]types.UID{"unknown", "rs"})
		if len(view) != 1 || view[0].Cohort != cohortOne || len(view[0].Pods) != 1 || view[0].Pods[0].UID != "p" {
			t.Fatalf("seen are %v, want the one pod", view)
		}
	}
}

// TestGatedPodsAreThoseThatWaitAtOurGate: terminating pods and pods in creation are not in
// the result.
func TestGatedPodsAreThoseThatWaitAtOurGate(t *testing.T) {
	l, _ := newTestLedger("a")
	for _, state := range []struct{ active, gated bool }{{true, true}, {true, false}, {false, true}, {false, false}} {
		p := podIn(fmt.Sprintf("active %t, gated %t", state.active, state.gated), "")
		p.Active, p.Gated = state.active, state.gated
		l.Observe(p)
	}
	take(t, l, request("token", 9, weights("a", 1)))
	if got := l.Gated(); len(got) != 1 || got[0].UID != "active true, gated true" {
		t.Errorf("gated are %v", got)
	}
}

// TestSeatNumbersGoUp: each pod of a burst has another number. A pod without a seat has 0.
func TestSeatNumbersGoUp(t *testing.T) {
	l, _ := newTestLedger("a")
	spread := weights("a", 1)
	for i := range 3 {
		token := fmt.Sprint("t", i)
		take(t, l, request(token, 3, spread))
		if got := l.SeatNumber(types.UID(token)); got != i+1 {
			t.Errorf("seat %d has the number %d", i+1, got)
		}
	}
	l.Observe(podIn("waits", ""))
	if unseated, unknown := l.SeatNumber("waits"), l.SeatNumber("unknown"); unseated != 0 || unknown != 0 {
		t.Errorf("without a seat: %d and %d, want 0", unseated, unknown)
	}
	l.Observe(podIn("waits", "node-a"))
	if got := l.SeatNumber("waits"); got != 4 {
		t.Errorf("once it is bound it has seat %d, want 4", got)
	}
	finished := podIn("waits", "node-a")
	finished.Active = false
	l.Observe(finished)
	if got := l.SeatNumber("waits"); got != 0 {
		t.Errorf("a finished pod has seat %d", got)
	}
}

// TestPodsOnNode: bound pods are in the result until they are deleted.
func TestPodsOnNode(t *testing.T) {
	l, _ := newTestLedger("a")
	finished := podIn("finished", "node-a")
	finished.Active, finished.Finished = false, true
	for _, p := range []*Pod{podIn("runs", "node-a"), finished, podIn("elsewhere", "other"), podIn("waits", "")} {
		l.Observe(p)
	}
	got := []string{}
	for _, p := range l.PodsOnNode("node-a") {
		got = append(got, p.Name)
	}
	slices.Sort(got)
	if want := []string{"finished", "runs"}; !slices.Equal(got, want) {
		t.Errorf("on the node are %v, want %v", got, want)
	}
	if got := l.PodsOnNode("unknown"); got != nil {
		t.Errorf("on a node that is not known are %v", got)
	}
}

// TestOpenSeats: all seats of an unknown cohort are open.
func TestOpenSeats(t *testing.T) {
	l, _ := newTestLedger("a", "b")
	r := request("", 4, weights("a", 1, "b", 1))
	open := func(what string, want int) {
		t.Helper()
		if got := l.Open(r); got != want {
			t.Errorf("%s: %d seats are open, want %d", what, got, want)
		}
	}
	open("there are no pods", 4)
	l.Observe(podIn("1", "node-a"))
	open("one sits", 3)
	for _, name := range []string{"2", "3"} {
		l.Observe(podIn(name, "node-a"))
	}
	open("one sits beyond its group's share", 2)
}

// TestScoresCountThePodsOwnSeatAsOpen: the pod's own seat counts as open. Groups that lack the
// same number have the same score.
func TestScoresCountThePodsOwnSeatAsOpen(t *testing.T) {
	l, _ := newTestLedger("a", "b", "c")
	spread := weights("a", 1, "b", 1, "c", 1)
	score := func(what, pod string, total int, want map[string]int64) {
		t.Helper()
		if diff := cmp.Diff(want, l.Scores(request(pod, total, spread))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	score("there are no pods", "p", 3, map[string]int64{"a": 10, "b": 10, "c": 10})
	l.Observe(podIn("p", ""))
	if group, _ := l.Reserve(request("p", 3, spread, "node-a")); group != "a" {
		t.Fatalf("it is sent to %q", group)
	}
	score("it has a seat in a", "p", 3, map[string]int64{"a": 10, "b": 10, "c": 10})
	score("another comes", "other", 3, map[string]int64{"b": 10, "c": 10})
	l.Observe(podIn("p", ""))
	score("a lacks one less", "other", 9, map[string]int64{"b": 10, "c": 10, "a": 8})
	l.Observe(podIn("waits", ""))
	score("another that is known has no seat", "waits", 6, map[string]int64{"b": 10, "c": 10, "a": 8})
	score("two are there, and a third comes, however many are wanted", "third", 0, map[string]int64{"b": 10, "c": 10})
	score("two are there, and one of them is asked about", "waits", 0, l.Scores(request("waits", 2, spread)))
}
