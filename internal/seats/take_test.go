package seats

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
)

// atMost returns a spread that fills the groups in their order, each up to max pods.
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

// pinned returns a pod that got its seat at creation, with a token.
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

// taken returns the seats of the cohort by group, those of pods that were not observed
// included.
func taken(l *Ledger) map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[string]int{}
	if c := l.cohorts.byKey[cohortOne]; c != nil {
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
			t.Errorf("got %q, want %q", why, want)
		}
	}
	if len(l.cohorts.byPod)+len(l.cohorts.byKey)+len(l.cohorts.byOwner) != 0 {
		t.Errorf("%d seats, %d cohorts, %d owners are left", len(l.cohorts.byPod), len(l.cohorts.byKey), len(l.cohorts.byOwner))
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
		t.Errorf("200 pods at 5:3:2 are in %v, want a 100, b 60, c 40", got)
	}
}

func TestObservedPodTakesOverItsReservedSeat(t *testing.T) {
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
	if len(l.cohorts.byPod)+len(l.cohorts.byKey) != 0 {
		t.Errorf("a deleted pod left %d seats, %d cohorts", len(l.cohorts.byPod), len(l.cohorts.byKey))
	}
}

// TestUnobservedPodReservesItsAdmittedSeat: kube-scheduler's request comes before the pod is
// observed. Only nodes of the group that the pod got at creation are left, and the pod gets
// that seat.
func TestUnobservedPodReservesItsAdmittedSeat(t *testing.T) {
	l, _ := newTestLedger("a", "b")
	spread := atMost(t, 1, "a", "b")
	group := take(t, l, request("token", 2, spread))
	take(t, l, request("other", 2, spread)) // every group has its share
	asked := request("p", 2, spread, "node-"+group)
	if _, why := l.Reserve(asked); why != NoSeatOpen {
		t.Errorf("without its token it is got %q, want %q", why, NoSeatOpen)
	}
	asked.Token = "token"
	for range 2 {
		if got, why := l.Reserve(asked); got != group || why != Seated {
			t.Errorf("it is sent to %q (%s), want %q", got, why, group)
		}
	}
	l.Observe(pinned("p", "token", group, ""))
	if got := taken(l); got["a"] != 1 || got["b"] != 1 {
		t.Errorf("two pods were created, and the seats are %v", got)
	}
	again := request("q", 2, spread, "node-"+group)
	again.Token = "token"
	if _, why := l.Reserve(again); why != NoSeatOpen {
		t.Errorf("a pod with the token of another is got %q, want %q", why, NoSeatOpen)
	}
}

// TestSeatReservationsOfUncreatedPodsAreBounded: everybody who reaches the webhook can send
// requests.
func TestSeatReservationsOfUncreatedPodsAreBounded(t *testing.T) {
	l, clock := newTestLedger("a", "b")
	spread := weights("a", 1, "b", 1)
	for i := range 2 {
		name := fmt.Sprint("p", i)
		l.Observe(pinned(name, "token-"+name, take(t, l, request("token-"+name, 2, spread)), ""))
	}
	forge := func() (n int) {
		for i := range 200 {
			if _, why := l.Take(request(fmt.Sprint("forged", i), 2, spread), false); why == Seated {
				n++
			}
		}
		return n
	}
	const bound = maxUnseen + 2
	if n := forge(); n != bound {
		t.Errorf("200 forged requests got %d seats, want %d", n, bound)
	}
	if _, why := l.Take(request("real", 40, spread), false); why != Seated {
		t.Errorf("a pod of a workload that grows gets no seat: %s", why)
	}
	clock.Step(takeTTL)
	l.Lapse()
	if got := counts(l, cohortOne); got["a"] != 1 || got["b"] != 1 || len(l.cohorts.byPod) != 2 {
		t.Errorf("the seats are %v, and %d entries are left", got, len(l.cohorts.byPod))
	}
	if n := forge(); n != bound {
		t.Errorf("afterwards %d are handed out, want %d", n, bound)
	}
}

// TestUnobservedDeletionsBlockNoSuccessor: all pods are deleted at once, and
// requests for their successors come before the deletions are observed.
func TestUnobservedDeletionsBlockNoSuccessor(t *testing.T) {
	l, _ := newTestLedger("a", "b")
	spread := weights("a", 1, "b", 1)
	const n = 100
	for _, generation := range []string{"first", "second"} {
		for i := range n {
			name := fmt.Sprint(generation, i)
			group, why := l.Take(request("token-"+name, n, spread), false)
			if why != Seated {
				t.Fatalf("%s, pod %d gets no seat: %s", generation, i, why)
			}
			if generation == "first" {
				l.Observe(pinned(name, "token-"+name, group, ""))
			}
		}
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
	if len(l.cohorts.byPod)+len(l.cohorts.byKey)+len(l.cohorts.byOwner) != 0 {
		t.Errorf("%d seats, %d cohorts, %d owners are left", len(l.cohorts.byPod), len(l.cohorts.byKey), len(l.cohorts.byOwner))
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
	if len(l.cohorts.byPod)+len(l.cohorts.byKey)+len(l.cohorts.byOwner) != 0 {
		t.Errorf("%d seats, %d cohorts, %d owners are left", len(l.cohorts.byPod), len(l.cohorts.byKey), len(l.cohorts.byOwner))
	}
	if got := take(t, l, request("real", 2, spread)); got != first {
		t.Errorf("the real one got %q, the dry run %q", got, first)
	}
}

func TestAPinnedPodKeepsItsSeatWhateverIsAsked(t *testing.T) {
	l, _ := newTestLedger("a", "b")
	spread := weights("a", 0, "b", 1) // group a is to have no pods now
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
		t.Errorf("binding to another group got %q, want %q", why, NoSeatOpen)
	}
	asked("Confirm elsewhere")
	if why := l.Confirm(request("p", 1, spread), "node-a"); why != Seated {
		t.Errorf("binding to its group was refused: %s", why)
	}
	asked("Confirm")
	l.Release("p")
	asked("Release")
}

// TestAPodOnANewcomerCountsInItsGroup: kube-scheduler may bind the pod before the node has
// the label of its group. If the node does not join the group, the pod does not count
// there.
func TestAPodOnANewcomerCountsInItsGroup(t *testing.T) {
	for name, tc := range map[string]struct {
		group string        // of the node, when it is seen first
		known bool          // the node is seen before the pod
		age   time.Duration // of the node
		joins bool
		want  map[string]int // at first, and in the end
		end   map[string]int
	}{
		"it joins":                         {known: true, joins: true, want: map[string]int{"a": 1}, end: map[string]int{"a": 1}},
		"it joins, and is seen afterwards": {joins: true, want: map[string]int{"a": 1}, end: map[string]int{"a": 1}},
		"it does not":                      {known: true, want: map[string]int{"a": 1}, end: map[string]int{"": 1}},
		"it is an old node of no group":    {known: true, age: time.Hour, want: map[string]int{"": 1}, end: map[string]int{"": 1}},
		"it is a new node of another":      {group: "b", known: true, want: map[string]int{"b": 1}, end: map[string]int{"b": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			l, clock := newTestLedger("a", "b")
			node := Node{Name: "new", Group: tc.group, Open: true, Created: clock.Now().Add(-tc.age)}
			if tc.known {
				l.ObserveNode(node)
			}
			l.Observe(pinned("p", "token", "a", "new"))
			if diff := cmp.Diff(tc.want, taken(l)); diff != "" {
				t.Errorf("at first (-want +got):\n%s", diff)
			}
			if tc.joins {
				node.Group = "a"
			}
			l.ObserveNode(node)
			clock.Step(newcomerTTL)
			l.Lapse()
			if diff := cmp.Diff(tc.end, taken(l)); diff != "" {
				t.Errorf("in the end (-want +got):\n%s", diff)
			}
			l.Observe(pinned("p", "token", "a", "new"))
			if diff := cmp.Diff(tc.end, taken(l)); diff != "" {
				t.Errorf("seen again (-want +got):\n%s", diff)
			}
			l.Forget("p")
			if len(taken(l)) > 0 {
				t.Errorf("a deleted pod left %v", taken(l))
			}
		})
	}
}

func TestAnAvoidedGroupGetsNoPodWhileOthersCan(t *testing.T) {
	l, clock := newTestLedger("a", "b")
	spread := weights("a", 9, "b", 1)
	l.Avoid(podIn("avoids", ""), "a")
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
	if canTake(l, "a", podIn("p", "node-b")) || !canTake(l, "b", podIn("p", "node-a")) {
		t.Error("a pod is moved to where the next one of its owner would not come")
	}
	clock.Step(AvoidTime)
	if got := take(t, l, request("later", 10, spread)); got != "a" {
		t.Errorf("after %s the group still is avoided: got %q", AvoidTime, got)
	}
	clock.Step(maxAvoidTime + 1) // until then a new penalty would be twice as long
	l.Lapse()
	if len(l.waiting.avoided) != 0 {
		t.Errorf("never removed: %v", l.waiting.avoided)
	}
}

func TestGroupIsAvoidedUntilItHasNewRoom(t *testing.T) {
	cordoned := func(n *Node) { n.Open = false }
	tests := map[string]struct {
		before, after func(*Node)
		want          string
	}{
		"nothing changed":           {func(*Node) {}, func(*Node) {}, "b"},
		"a node closed":             {func(*Node) {}, cordoned, "b"},
		"a node stays closed":       {cordoned, cordoned, "b"},
		"a node shrank":             {func(*Node) {}, func(n *Node) { n.Offer.Allocatable = fit.Amounts{{Name: "cpu", Value: 500}, {Name: "pods", Value: 10}} }, "b"},
		"a node opened":             {cordoned, func(*Node) {}, "a"},
		"a node came from no group": {func(n *Node) { n.Group = "" }, func(*Node) {}, "a"},
		"a node grew":               {func(*Node) {}, func(n *Node) { n.Offer.Allocatable = fit.Amounts{{Name: "cpu", Value: 2000}} }, "a"},
		"a node lost a taint":       {func(n *Node) { n.Offer.Taints = []corev1.Taint{{Key: "site", Effect: corev1.TaintEffectNoSchedule}} }, func(*Node) {}, "a"},
		"a node got a taint":        {func(*Node) {}, func(n *Node) { n.Offer.Taints = []corev1.Taint{{Key: "site", Effect: corev1.TaintEffectNoSchedule}} }, "b"},
		"a node got a label":        {func(*Node) {}, func(n *Node) { n.Offer.Labels = map[string]string{"disk": "ssd"} }, "a"},
		"one of another group opened": {
			func(n *Node) { n.Group, n.Open = "b", false }, func(n *Node) { n.Group = "b" }, "b",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l, _ := newTestLedger("a", "b")
			n := openNode("new", "a")
			before, after := n, n
			tc.before(&before)
			tc.after(&after)
			l.ObserveNode(before)
			l.Avoid(podIn("avoids", ""), "a")
			l.ObserveNode(after)
			if got := take(t, l, request("t", 10, weights("a", 9, "b", 1))); got != tc.want {
				t.Errorf("the next pod goes to %q, want %q", got, tc.want)
			}
		})
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
			l.Avoid(podIn("avoids", ""), "a")
			if got := take(t, l, request("t", 2, spread)); got != "a" {
				t.Errorf("went to %q", got)
			}
		})
	}
}

// TestNoMorePodsAreAdmittedThanSeatsAreOpen: this holds whatever state the earlier pods are
// in.
func TestNoMorePodsAreAdmittedThanSeatsAreOpen(t *testing.T) {
	waits := func(uid string) *Pod { return podIn(uid, "") }
	atTheGate := func(uid string) *Pod {
		p := waits(uid)
		p.Gated = true
		return p
	}
	terminates := func(uid, node string) *Pod {
		p := podIn(uid, node)
		p.Active = false
		return p
	}
	tests := map[string]struct {
		pods []*Pod
		want int // of ten that ask
	}{
		"there are no pods":                 {nil, 4},
		"two sit":                           {[]*Pod{podIn("1", "node-a"), podIn("2", "node-b")}, 2},
		"one sits, two are on their way":    {[]*Pod{podIn("1", "node-a"), waits("2"), waits("3")}, 1},
		"those at the gate take none":       {[]*Pod{podIn("1", "node-a"), atTheGate("2"), atTheGate("3")}, 3},
		"more sit than may":                 {[]*Pod{podIn("1", "node-a"), podIn("2", "node-a"), podIn("3", "node-a"), podIn("4", "node-a")}, 2},
		"one that terminates sits no more":  {[]*Pod{podIn("1", "node-a"), terminates("1", "node-a")}, 4},
		"one on a node of no group is none": {[]*Pod{podIn("1", "node-out")}, 4},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l, _ := newTestLedger("a", "b")
			for _, p := range tc.pods {
				l.Observe(p)
			}
			admitted := 0
			for i := range 10 {
				r := request(fmt.Sprint("token", i), 50, atMost(t, 2, "a", "b"))
				if dry := l.Admit(r, true); l.Admit(r, false) != dry {
					t.Error("a dry run is answered otherwise")
				} else if dry {
					admitted++
				}
			}
			if admitted != tc.want {
				t.Errorf("%d pods were admitted, want %d", admitted, tc.want)
			}
		})
	}
}

func TestAnAdmissionCountsUntilThePodIsSeenOrLapses(t *testing.T) {
	l, clock := newTestLedger("a")
	one := atMost(t, 1, "a")
	if !l.Admit(request("first", 9, one), false) || l.Admit(request("second", 9, one), false) {
		t.Fatal("one seat, and not one pod is admitted")
	}
	clock.Step(takeTTL)
	if !l.Admit(request("third", 9, one), false) {
		t.Fatal("a pod that was never created keeps others away for ever")
	}
	seen := podIn("uid", "")
	seen.Admission = "third"
	l.Observe(seen)
	if l.Admit(request("fourth", 9, one), false) {
		t.Error("the admitted pod does not count once it is observed")
	}
	r := request("uid", 9, one)
	r.Nodes = []string{"node-a"}
	if group, why := l.Reserve(r); group != "a" || why != Seated {
		t.Errorf("the pod that was admitted gets %q: %s", group, why)
	}
	l.Forget("uid")
	if !l.Admit(request("fifth", 9, one), false) {
		t.Error("the seat of a deleted pod does not become open")
	}
	l.Release("fifth")
	if len(l.cohorts.byPod)+len(l.cohorts.byKey) != 0 {
		t.Errorf("%d pods and %d cohorts are left behind", len(l.cohorts.byPod), len(l.cohorts.byKey))
	}
}

func TestConcurrentAdmissionsNeverExceedTheSeats(t *testing.T) {
	l, _ := newTestLedger("a", "b")
	spread := atMost(t, 10, "a", "b")
	for i := range 100 {
		gated := podIn(fmt.Sprint("g", i), "")
		gated.Gated = true
		l.Observe(gated)
	}
	var admitted atomic.Int32
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			if l.Admit(request(fmt.Sprint("t", i), 200, spread), false) {
				admitted.Add(1)
			}
		})
		all.Go(func() {
			if l.CanUngate(request(fmt.Sprint("g", i), 200, spread)) {
				admitted.Add(1)
			}
		})
	}
	all.Wait()
	if admitted.Load() != 20 {
		t.Errorf("%d pods were admitted to 20 seats", admitted.Load())
	}
}

func TestUngateIsRepeatableUntilThePodIsObserved(t *testing.T) {
	l, _ := newTestLedger("a")
	one := atMost(t, 1, "a")
	gated := func(uid string, still bool) {
		p := podIn(uid, "")
		p.Gated = still
		l.Observe(p)
	}
	gated("1", true)
	gated("2", true)
	for range 2 {
		if !l.CanUngate(request("1", 2, one)) {
			t.Fatal("a pod may not take the one seat, or not ask again")
		}
	}
	if l.CanUngate(request("2", 2, one)) {
		t.Fatal("two pods may take the one seat")
	}
	gated("1", false)
	if l.CanUngate(request("2", 2, one)) {
		t.Error("the pod that may go does not count once it is observed")
	}
	l.Forget("1")
	if !l.CanUngate(request("2", 2, one)) {
		t.Error("the seat of a deleted pod does not become open")
	}
}

// TestRepeatedPlaceExtendsTheReservation: the patch of the pod may take some seconds.
func TestRepeatedPlaceExtendsTheReservation(t *testing.T) {
	l, clock := newTestLedger("a", "b")
	l.Observe(&Pod{UID: "p", Name: "p", Active: true, Gated: true})
	r := Request{Pod: "p", Cohort: Cohort{Owner: "p"}, Total: 1, Spread: weights("a", 1, "b", 1)}
	for range 3 {
		if _, why := l.Place(r); why != Seated {
			t.Fatalf("it gets no seat: %s", why)
		}
		clock.Step(takeTTL - time.Second)
		l.Lapse()
		if got := counts(l, r.Cohort); got["a"]+got["b"] != 1 {
			t.Fatalf("the seat is gone: %v", got)
		}
	}
}

// TestADemandForOneNodeIsFoundAmongMany: reachSlice nodes are checked at a time.
func TestADemandForOneNodeIsFoundAmongMany(t *testing.T) {
	l, _ := newTestLedger()
	for i := range 5 * reachSlice {
		name := fmt.Sprint("n", i)
		group := "a"
		if i%2 == 0 {
			group = "b"
		}
		l.ObserveNode(Node{Name: name, Group: group, Open: true, Ready: true, Offer: fit.Node{Name: name, Labels: map[string]string{"name": name}}})
	}
	for i := range 5 * reachSlice {
		want := "a"
		if i%2 == 0 {
			want = "b"
		}
		r := request(fmt.Sprint("p", i), 2, weights("a", 1, "b", 1))
		r.Check = fit.NewCheck(&fit.Demand{NodeSelector: map[string]string{"name": fmt.Sprint("n", i)}}, nil)
		if group, why := l.Take(r, true); group != want || why != Seated {
			t.Fatalf("the pod for node %d gets group %q (%s), want %q", i, group, why, want)
		}
	}
}

// TestPodOfAnotherOwnerGetsNoSeat: the pod in the request has another owner now.
func TestPodOfAnotherOwnerGetsNoSeat(t *testing.T) {
	l, _ := newTestLedger("a")
	l.Observe(&Pod{UID: "p", Name: "p", Active: true, Gated: true})
	r := Request{Pod: "p", Cohort: Cohort{Owner: "other"}, Total: 1, Spread: weights("a", 1)}
	if group, why := l.Place(r); why != NoSeatOpen {
		t.Errorf("it is placed in %q: %s", group, why)
	}
	if group, why := l.Place(Request{Pod: "gone", Cohort: Cohort{Owner: "gone"}, Total: 1, Spread: weights("a", 1)}); why != NoSeatOpen {
		t.Errorf("a pod that is gone is placed in %q: %s", group, why)
	}
}

// TestBehind: an owner that has as many pods as it creates requests another, so one of them
// is deleted. If more is requested than the owner can create, Behind is false.
func TestBehind(t *testing.T) {
	l, _ := newTestLedger("a")
	spread := weights("a", 1)
	const total = 2
	behind := func(want bool, when string) {
		t.Helper()
		if got := l.Behind(cohortOne.Owner, "token-next", total); got != want {
			t.Errorf("%s: behind is %t", when, got)
		}
	}
	behind(false, "before anything is known of the owner")
	l.Observe(pinned("p0", "token-p0", take(t, l, request("token-p0", total, spread)), ""))
	behind(false, "one of two is there")
	take(t, l, request("token-next", total, spread))
	behind(false, "the other is the one that is asked about")
	take(t, l, request("token-p1", total, spread))
	behind(true, "two are there")
	l.Forget("p0")
	behind(false, "one is seen to go")
	for i := range maxUnseen {
		take(t, l, request(fmt.Sprint("token-forged-", i), total, spread))
	}
	behind(false, "more are asked for than the owner makes")
}

// TestBehindCountsAllRevisions: pods of all revisions of the owner count, observed or in
// creation.
func TestBehindCountsAllRevisions(t *testing.T) {
	l, _ := newTestLedger("a")
	const total = 2
	for _, revision := range []string{"r1", "r2"} {
		p := podIn("p-"+revision, "")
		p.Revision = revision
		l.Observe(p)
	}
	behind := func(want bool, when string) {
		t.Helper()
		if got := l.Behind(cohortOne.Owner, "token-next", total); got != want {
			t.Errorf("%s: behind is %t", when, got)
		}
	}
	behind(true, "one pod of each of two revisions is there")
	ask := func(i int) {
		for _, revision := range []string{"r1", "r2"} {
			r := request(fmt.Sprint("token-", revision, i), total, weights("a", 1))
			r.Cohort.Revision = revision
			take(t, l, r)
		}
	}
	for i := range maxUnseen / 2 {
		ask(i)
	}
	behind(true, "as many were asked for as a busy owner makes")
	ask(maxUnseen)
	behind(false, "more were asked for than the owner makes, over both")
}

// TestReusedTokenCannotTakeAnObservedSeat: a later request with its token does not take the seat.
func TestReusedTokenCannotTakeAnObservedSeat(t *testing.T) {
	l, _ := newTestLedger("a", "b")
	spread := weights("a", 1, "b", 1)
	l.Observe(pinned("p", "token", "a", ""))
	if group := take(t, l, request("token", 2, spread)); group != "b" {
		t.Fatalf("another pod goes to %q", group)
	}
	r := request("p", 2, spread, "node-a", "node-b")
	r.Token = "token"
	if group, why := l.Reserve(r); group != "a" || why != Seated {
		t.Errorf("it is sent to %q: %s", group, why)
	}
}

// TestOnlyPodsAtTheGateAreHeldThere: a pod that was deleted, or has no gate, may go.
func TestOnlyPodsAtTheGateAreHeldThere(t *testing.T) {
	l, _ := newTestLedger("a")
	full := atMost(t, 0, "a")
	l.Observe(podIn("passed", ""))
	gated := podIn("gated", "")
	gated.Gated = true
	l.Observe(gated)
	for name, want := range map[string]bool{"gone": true, "passed": true, "gated": false} {
		if got := l.CanUngate(request(name, 9, full)); got != want {
			t.Errorf("%s: it may go: %t", name, got)
		}
	}
}

// ranges returns a spread that fills the groups in their order, after each has its min.
func ranges(t *testing.T, rules ...gm.NodeGroupNumRange) placement.Spread {
	t.Helper()
	spread, err := placement.New(gm.PropagationSpec{NumRange: rules}, func(string) bool { return true }, "app")
	if err != nil {
		t.Fatal(err)
	}
	return spread
}

// TestOrderOfGroupsWithAnAvoidedGroup: a group that lacks pods is next, then one that
// gets pods on loan, and the avoided group last.
func TestOrderOfGroupsWithAnAvoidedGroup(t *testing.T) {
	for name, tc := range map[string]struct {
		avoided string
		spread  placement.Spread
		want    []string
	}{
		"the last in order lacks its min, and the first has it": {"b", ranges(t,
			gm.NodeGroupNumRange{NodeGroupNames: []string{"c"}, Min: new(intstr.FromString("50%"))},
			gm.NodeGroupNumRange{NodeGroupNames: []string{"b"}},
			gm.NodeGroupNumRange{NodeGroupNames: []string{"a"}, Min: new(intstr.FromString("50%"))},
		), []string{"c", "a"}},
		"the last is avoided, and the first has its share":  {"b", weights("a", 1, "b", 1), []string{"a", "a"}},
		"the first is avoided, and the last has its share":  {"a", weights("a", 1, "b", 1), []string{"b", "b"}},
		"the middle is avoided, and the others have shares": {"b", weights("a", 1, "b", 1, "c", 0), []string{"a", "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := newTestLedger("a", "b", "c")
			l.Avoid(podIn("avoids", ""), tc.avoided)
			for i, want := range tc.want {
				if got := take(t, l, request(fmt.Sprint("t", i), 2, tc.spread)); got != want {
					t.Errorf("pod %d goes to %q, want %q", i, got, want)
				}
			}
		})
	}
}

// port80 is the demand of a pod that listens on a port of its node.
var port80 = &fit.Demand{Requests: fit.Amounts{{Name: "pods", Value: 1}}, Ports: []fit.Port{{Protocol: "TCP", Number: 80}}}

// ofOwner makes a pod belong to another owner.
func ofOwner(pod *Pod, owner types.UID) *Pod {
	pod.Controller = &ownership.Reference{UID: owner}
	return pod
}

// TestSuccessorTakesTheSeatThatWasLeft: in a rollout a new pod goes to the group that an old one
// left, and not to the one that is first by the division, where an old pod still runs. At the end
// the division is exact.
func TestSuccessorTakesTheSeatThatWasLeft(t *testing.T) {
	for _, left := range []string{"a", "b"} {
		l, _ := newTestLedger("a", "b")
		for _, g := range []string{"a", "b"} {
			l.Observe(ofOwner(pinned("old-"+g, "t-"+g, g, "node-"+g), "old"))
		}
		l.Forget(types.UID("old-" + left))
		r := request("t", 2, weights("a", 1, "b", 1))
		r.Workload = []types.UID{"old", "rs"}
		if got := take(t, l, r); got != left {
			t.Errorf("the successor of the pod in %s goes to %s", left, got)
		}
		r.Pod = "next" // by the extender, before the other old pod is gone
		r.Nodes = []string{"node-a", "node-b"}
		group, _ := l.Reserve(r)
		if counts := taken(l); group == left || counts["a"] != 1 || counts["b"] != 1 {
			t.Errorf("the next goes to %s: %v", group, counts)
		}
	}
}

// TestAGroupWithRoomComesFirst: of the groups that lack pods, one whose nodes have room now is
// next, as long as there is one. Pods on their way to a group have taken their room.
func TestAGroupWithRoomComesFirst(t *testing.T) {
	l, _ := newTestLedger("a", "b")
	l.ObserveNode(openNode("node-b2", "b"))
	other := ofOwner(podIn("other", "node-a"), "other")
	other.Demand = port80
	l.Observe(other)
	spread := weights("a", 2, "b", 2)
	next := func(pod string) string {
		r := request(pod, 4, spread)
		r.Check = fit.NewCheck(port80, nil)
		return take(t, l, r)
	}
	for i, want := range []string{"b", "b", "a"} { // the third waits: there is room for none
		if got := next(fmt.Sprint("t", i)); got != want {
			t.Errorf("pod %d goes to %s, want %s", i, got, want)
		}
	}
	l.Release("t0")
	l.Release("t2")
	leaving := *other
	leaving.Active = false
	l.Observe(&leaving)
	if got := next("t3"); got != "a" {
		t.Errorf("a pod that terminates makes room in a, and the next goes to %s", got)
	}
}

// TestNoSeatBeyondTheMaxOfARollout: pods that the ranges have no seat for get none in a rollout
// either.
func TestNoSeatBeyondTheMaxOfARollout(t *testing.T) {
	l, _ := newTestLedger("a")
	l.Observe(ofOwner(pinned("old", "t-old", "a", "node-a"), "old"))
	r := request("t", 2, atMost(t, 1, "a"))
	r.Workload, r.Check = []types.UID{"old", "rs"}, fit.NewCheck(nothing, nil)
	take(t, l, r)
	r.Pod = "u"
	if group, why := l.Take(r, false); why != NoSeatOpen {
		t.Errorf("a second pod gets a seat in %q, whose max is 1", group)
	}
}

// TestAnAvoidedGroupIsNotAvoidedOnceAPodLeavesIt, if that pod made room for the one that found
// none.
func TestAnAvoidedGroupIsNotAvoidedOnceAPodLeavesIt(t *testing.T) {
	apart := &fit.Demand{Requests: port80.Requests, Apart: []fit.Apart{{Key: "kubernetes.io/hostname"}}}
	for name, tc := range map[string]struct {
		leaving *Pod
		demand  *fit.Demand // of the pod that found no node
		avoided bool
	}{
		"a pod of the same owner":       {podIn("x", "node-a"), nothing, false},
		"a pod that used the port":      {ofOwner(podIn("x", "node-a"), "other"), port80, false},
		"a pod of another revision":     {ofOwner(podIn("x", "node-a"), "older"), apart, false},
		"a stranger with the same rule": {ofOwner(podIn("x", "node-a"), "other"), apart, true},
		"a pod that was in no way":      {ofOwner(podIn("x", "node-a"), "other"), needing(10), true},
		"a pod of another group":        {podIn("x", "node-b"), nothing, true},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := newTestLedger("a", "b")
			tc.leaving.Demand = tc.demand
			l.Observe(tc.leaving)
			waits := podIn("waits", "")
			waits.Demand = tc.demand
			l.Avoid(waits, "a", "older")
			if canTake(l, "a", waits) {
				t.Fatal("a is not avoided")
			}
			other := podIn("p", "")
			if other.Revision = "r2"; !canTake(l, "a", other) {
				t.Error("a pod of another revision avoids a too")
			}
			gone := *tc.leaving
			gone.Active = false
			l.Observe(&gone)
			l.Forget("x")
			if got := !canTake(l, "a", waits); got != tc.avoided {
				t.Errorf("avoided: %t, want %t", got, tc.avoided)
			}
		})
	}
}

// TestAStrangersRoomKeepsTheSpanOfAPenalty: the room may not fit the pod that found none, so the
// next time lasts longer.
func TestAStrangersRoomKeepsTheSpanOfAPenalty(t *testing.T) {
	l, clock := newTestLedger("a", "b")
	waits := podIn("waits", "")
	waits.Demand = port80
	for _, span := range []time.Duration{AvoidTime, 2 * AvoidTime, 4 * AvoidTime} {
		stranger := ofOwner(podIn("x", "node-a"), "other")
		stranger.Demand = port80
		l.Observe(stranger)
		l.Avoid(waits, "a")
		clock.Step(span - time.Second)
		if canTake(l, "a", waits) {
			t.Fatalf("a is not avoided for %s", span)
		}
		l.Forget("x")
		if !canTake(l, "a", waits) {
			t.Fatal("a is avoided although it has room")
		}
	}
}

// TestPodsOnADeletedNodeHoldNoSeat: nobody counts on them, although Kubernetes deletes them only
// after a while and their conditions change in between.
func TestPodsOnADeletedNodeHoldNoSeat(t *testing.T) {
	l, _ := newTestLedger("a", "b")
	l.Observe(pinned("p", "t", "a", "node-a"))
	l.ForgetNode("node-a")
	notReady := pinned("p", "t", "a", "node-a")
	notReady.Ready = false
	l.Observe(notReady)
	for _, c := range l.View([]types.UID{"rs"}) {
		if pod := c.Pods[0]; pod.Group != "" || !pod.Lost {
			t.Errorf("its pod has a seat in %q, lost: %t", pod.Group, pod.Lost)
		}
	}
	if got := take(t, l, request("successor", 1, weights("a", 1, "b", 1))); got != "a" {
		t.Errorf("the successor goes to %q: a has no pod", got)
	}
	l.ObserveNode(openNode("node-a", "a")) // it is back
	if c := l.View([]types.UID{"rs"}); c[0].Pods[0].Lost || c[0].Pods[0].Group != "a" {
		t.Errorf("the node is back, and the pod's seat is in %q", c[0].Pods[0].Group)
	}
}
