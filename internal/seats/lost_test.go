package seats

import (
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestAWatchThatIsBehindFreesNoSeat: the pods were created, and a list shows them before
// the watch does. Their reservations are kept for as long as that lasts. The seat of a
// refused pod becomes free when a list shows that it was refused.
func TestAWatchThatIsBehindFreesNoSeat(t *testing.T) {
	classes, err := capacity.Presets()[capacity.DefaultPreset].Ready()
	if err != nil {
		t.Fatal(err)
	}
	clock := testingclock.NewFakeClock(time.Unix(1_000_000, 0))
	ledger := NewLedger(clock)
	ledger.SetClasses(&classes)
	ledger.ObserveNode(SlimNode(build.Node("hz-1", build.InGroup("hz"))))
	ledger.ObserveNode(SlimNode(build.Node("bj-1", build.InGroup("bj"))))
	api := build.NewAPI(t)
	informer := NewInformer(ledger, api.Client(), func(_ *ownership.Reference, labels map[string]string) string {
		return ownership.Revision(labels, "")
	})
	class := func(token types.UID) capacity.Class {
		got, _ := ledger.TakeClass(ClassRequest{Pod: token, Namespace: "ns", Cohort: Cohort{Owner: "web-1"}, Total: 3, Count: 1}, false)
		return got
	}
	group := func(token types.UID) string {
		got, _ := ledger.Take(Request{Pod: token, Namespace: "ns", Cohort: Cohort{Owner: "web-1"}, Total: 3, Spread: weights("hz", 1, "bj", 2)}, false)
		return got
	}
	if got := class("a"); got != capacity.OnDemand {
		t.Fatalf("the first is %q", got)
	}
	group("a")
	group("b") // is refused
	api.Put(build.Pod("a", build.OwnedBy(web), build.Annotation(gm.SeatAnnotation, "a")))
	for range 5 {
		clock.Step(takeTTL + time.Second)
		if got := class("other"); got != capacity.Spot {
			t.Errorf("another pod is %q while the first was not seen", got)
		}
		ledger.Release("other")
		informer.look(t.Context())
	}
	clock.Step(takeTTL + time.Second)
	if got := ledger.Overdue()["ns"]; len(got) != 1 || got[0] != "a" {
		t.Errorf("seats are kept for %v, want a", got)
	}
	informer.look(t.Context())
	reads := api.Lists()
	informer.look(t.Context())
	if api.Lists() != reads {
		t.Error("pods are listed although nothing is overdue")
	}
	api.Delete(build.Pod("a"))
	clock.Step(takeTTL + time.Second)
	informer.look(t.Context())
	if got := class("c"); got != capacity.OnDemand {
		t.Errorf("the first pod is gone, and the next is %q", got)
	}
}

// TestReservationsExpireWhenPodsCannotBeListed: if pods cannot be listed, their reservations expire after lookTime.
func TestReservationsExpireWhenPodsCannotBeListed(t *testing.T) {
	clock := testingclock.NewFakeClock(time.Unix(1_000_000, 0))
	ledger := NewLedger(clock)
	ledger.ObserveNode(SlimNode(build.Node("hz-1", build.InGroup("hz"))))
	api := build.NewAPI(t)
	api.Fail(500)
	informer := NewInformer(ledger, api.Client(), nil)
	cohort := Cohort{Owner: "web-1"}
	if _, why := ledger.Take(Request{Pod: "a", Namespace: "ns", Cohort: cohort, Total: 1, Spread: weights("hz", 1)}, false); why != Seated {
		t.Fatal(why)
	}
	clock.Step(takeTTL + time.Second)
	informer.look(t.Context())
	ledger.Lapse()
	if got := ledger.Overdue()["ns"]; len(got) != 1 {
		t.Errorf("seats are reserved for %v, want one: it is not known whether the pod was refused", got)
	}
	clock.Step(lookTime)
	ledger.Lapse()
	if got := ledger.Overdue(); len(got) != 0 {
		t.Errorf("seats are kept for %v long after", got)
	}
}

// TestListShowsWhichGatedPodsWerePatched: a written pod has the label of its group or
// its class.
func TestListShowsWhichGatedPodsWerePatched(t *testing.T) {
	classes, err := capacity.Presets()[capacity.DefaultPreset].Ready()
	if err != nil {
		t.Fatal(err)
	}
	clock := testingclock.NewFakeClock(time.Unix(1_000_000, 0))
	ledger := NewLedger(clock)
	ledger.SetClasses(&classes)
	ledger.ObserveNode(SlimNode(build.Node("hz-1", build.InGroup("hz"))))
	api := build.NewAPI(t)
	informer := NewInformer(ledger, api.Client(), func(*ownership.Reference, map[string]string) string { return "" })
	labels := map[string][]build.Option{
		"grouped": {build.Label(gm.NodeGroupLabel, "hz")}, "classed": {build.Label(gm.CapacityClassLabel, "spot")}, "neither": nil,
	}
	for name, options := range labels {
		cohort := Cohort{Owner: types.UID(name)}
		ledger.Observe(Slim(build.Pod(name, build.Gated())))
		if _, why := ledger.Place(Request{Pod: types.UID(name), Cohort: cohort, Total: 1, Spread: weights("hz", 1)}); why != Seated {
			t.Fatal(why)
		}
		api.Put(build.Pod(name, append(options, build.Gated())...))
	}
	clock.Step(takeTTL)
	informer.look(t.Context())
	clock.Step(takeTTL)
	kept := ledger.Overdue()["ns"]
	slices.Sort(kept)
	if want := []types.UID{"classed", "grouped"}; !slices.Equal(kept, want) {
		t.Errorf("reservations are kept for %v, want %v", kept, want)
	}
}

// TestEventsDuringAListOverrideIt: a list is older than what was observed, or reserved
// again, while it ran.
func TestEventsDuringAListOverrideIt(t *testing.T) {
	l, clock := newTestLedger("a")
	spread := weights("a", 1)
	for _, name := range []string{"shown", "asks-again", "refused"} {
		gated := podIn(name, "")
		gated.Gated = true
		l.Observe(gated)
		if _, why := l.Place(request(name, 9, spread)); why != Seated {
			t.Fatal(why)
		}
	}
	take(t, l, Request{Pod: "token", Namespace: "ns", Cohort: cohortOne, Total: 9, Spread: spread})
	clock.Step(takeTTL)
	overdue := l.Overdue()["ns"]
	if len(overdue) != 4 {
		t.Fatalf("overdue are %v, want all four", overdue)
	}
	l.Observe(pinned("shown", "s", "a", ""))
	l.Observe(pinned("created", "token", "a", ""))
	l.Place(request("asks-again", 9, spread))
	l.RecordLookup(overdue, func(types.UID) bool { return false })
	for name, want := range map[types.UID]bool{"shown": true, "created": true, "asks-again": true, "refused": false} {
		if got := l.SeatNumber(name) > 0; got != want {
			t.Errorf("%s has its seat: %t", name, got)
		}
	}
}
