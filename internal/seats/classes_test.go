package seats

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// classFixture is a ledger with classes and three nodes. Its pods belong to the ReplicaSet
// web-1.
type classFixture struct {
	*Ledger
	*testing.T
	clock   *testingclock.FakeClock
	classes *capacity.Classes
}

func newClassFixture(t *testing.T) *classFixture {
	t.Helper()
	classes, err := capacity.Presets()[capacity.DefaultPreset].Ready()
	if err != nil {
		t.Fatal(err)
	}
	clock := testingclock.NewFakeClock(time.Unix(1_000_000, 0))
	r := &classFixture{Ledger: NewLedger(clock), T: t, clock: clock, classes: &classes}
	r.SetClasses(&classes)
	for _, class := range []string{"on-demand", "spot"} {
		r.ObserveNode(SlimNode(build.Node(class, build.Label("node.kubernetes.io/capacity", class))))
	}
	r.ObserveNode(SlimNode(build.Node("neither")))
	return r
}

var web = build.ReplicaSet("web-1")

// ask returns a request for the class of the next pod of web-1, which is to have total pods.
func ask(token types.UID, total, count int) ClassRequest {
	return ClassRequest{Pod: token, Cohort: Cohort{Owner: "web-1"}, Total: total, Count: count}
}

// arrives makes the ledger observe a pod that was created with a token and a class. node may
// be "".
func (r *classFixture) arrives(name string, token types.UID, class capacity.Class, node string, options ...build.Option) {
	r.Helper()
	pod := build.Pod(name, append([]build.Option{build.OwnedBy(web)}, options...)...)
	if class != capacity.None {
		r.classes.Restrict(&pod.Spec, class)
		pod.Labels = map[string]string{gm.CapacityClassLabel: class.String()}
	}
	if token != "" {
		build.Annotation(gm.SeatAnnotation, string(token))(pod)
	}
	pod.Spec.NodeName = node
	r.Observe(Slim(pod))
}

func (r *classFixture) take(want capacity.Class, request ClassRequest) {
	r.Helper()
	if got, _ := r.TakeClass(request, false); got != want {
		r.Errorf("%s is %q, want %q", request.Pod, got, want)
	}
}

func (r *classFixture) counts(onDemand, spot int) {
	r.Helper()
	got := [3]int{}
	for _, c := range r.View([]types.UID{"web-1"}) {
		for _, pod := range c.Pods {
			got[pod.Class]++
		}
	}
	if got[capacity.OnDemand] != onDemand || got[capacity.Spot] != spot {
		r.Errorf("%d on-demand and %d spot pods are seen, want %d and %d", got[capacity.OnDemand], got[capacity.Spot], onDemand, spot)
	}
}

func TestClassesAreHandedOutInTurn(t *testing.T) {
	r := newClassFixture(t)
	for i, want := range []capacity.Class{capacity.OnDemand, capacity.OnDemand, capacity.Spot, capacity.Spot} {
		token := types.UID(fmt.Sprint("t", i))
		if got, _ := r.TakeClass(ask(token, 4, 2), true); got != want {
			t.Errorf("a dry run returns %q, want %q", got, want)
		}
		r.take(want, ask(token, 4, 2))
		r.take(want, ask(token, 4, 2)) // a repeated request
	}
	r.arrives("a", "t0", capacity.OnDemand, "on-demand")
	r.arrives("b", "t2", capacity.Spot, "")
	r.counts(1, 1)
	r.clock.Step(takeTTL + time.Second) // the others were never created
	r.take(capacity.OnDemand, ask("t4", 4, 2))
	r.take(capacity.Spot, ask("t5", 4, 2))
}

// TestUnstampedPodHasTheClassOfItsNode: a pod that was created without a request for its class has the
// class of its node. If the label of the node changes, the class of the pod changes with it.
func TestUnstampedPodHasTheClassOfItsNode(t *testing.T) {
	r := newClassFixture(t)
	r.arrives("free", "", capacity.None, "on-demand")
	r.arrives("lost", "", capacity.None, "neither")
	r.counts(1, 0)
	r.arrives("kept", "", capacity.Spot, "neither") // the label came off its node
	r.counts(1, 1)
	r.ObserveNode(SlimNode(build.Node("on-demand", build.Label("node.kubernetes.io/capacity", "spot"))))
	r.counts(0, 2)
	if n := r.OpenOfClass(capacity.OnDemand) + 10*r.OpenOfClass(capacity.Spot); n != 20 {
		t.Errorf("%d on-demand and %d spot nodes are open", n%10, n/10)
	}
	r.ForgetNode("spot")
	if n := r.OpenOfClass(capacity.Spot); n != 1 {
		t.Errorf("%d spot nodes are open", n)
	}
}

// TestClassRequestWaitsForObservedDeletion: an owner that creates a pod while the ledger has as many as
// it wants has lost a pod, and the ledger has not observed that yet.
func TestClassRequestWaitsForObservedDeletion(t *testing.T) {
	r := newClassFixture(t)
	r.arrives("a", "", capacity.OnDemand, "on-demand")
	r.arrives("b", "", capacity.Spot, "spot")
	r.take(capacity.Spot, ask("third", 3, 1)) // it wants a third
	r.Release("third")
	r.take(capacity.None, ask("t", 2, 1))
	final := ask("t", 2, 1)
	final.Final = true
	r.take(capacity.Spot, final)
	r.Release("t")
	r.Forget("a")
	r.take(capacity.OnDemand, ask("t", 2, 1))

	none := newClassFixture(t) // the deleted pod can only be a spot pod
	none.arrives("a", "", capacity.Spot, "spot")
	none.take(capacity.Spot, ask("t", 1, 0))
}

// TestExpiredClassReservationOfARefusedPodIsReused: the last pod that an owner wants waits until it is
// known which pods were refused after they got their class.
func TestExpiredClassReservationOfARefusedPodIsReused(t *testing.T) {
	r := newClassFixture(t)
	r.take(capacity.OnDemand, ask("refused", 2, 1))
	r.take(capacity.Spot, ask("a", 2, 1))
	r.arrives("a", "a", capacity.Spot, "spot")
	r.take(capacity.None, ask("b", 2, 1))
	r.clock.Step(takeTTL + time.Second)
	r.take(capacity.OnDemand, ask("b", 2, 1))
}

// TestOnDemandPodsCountOverAllRevisions: on-demand pods are counted over all revisions.
func TestOnDemandPodsCountOverAllRevisions(t *testing.T) {
	r := newClassFixture(t)
	for _, name := range []string{"a", "b"} {
		r.arrives(name, "", capacity.OnDemand, "on-demand")
	}
	next := func(siblingReplicas, surge int) ClassRequest {
		return ClassRequest{Pod: "t", Cohort: Cohort{Owner: "web-2"}, Total: 3, Count: 2, Surge: surge, Siblings: []Sibling{{Owner: "web-1", Replicas: siblingReplicas}}}
	}
	for _, tc := range []struct {
		replicas, surge int
		want            capacity.Class
	}{{2, 0, capacity.Spot}, {2, 1, capacity.OnDemand}, {1, 0, capacity.None}} {
		if got, _ := r.TakeClass(next(tc.replicas, tc.surge), true); got != tc.want {
			t.Errorf("with %d replicas of the other and surge %d the pod is %q, want %q", tc.replicas, tc.surge, got, tc.want)
		}
	}
	long := next(1, 0)
	long.Final = true
	if got, _ := r.TakeClass(long, true); got != capacity.OnDemand {
		t.Errorf("the other revision does not delete its pod, and the new one is %q in the end", got)
	}
	r.Forget("a")
	if got, _ := r.TakeClass(next(1, 0), true); got != capacity.OnDemand {
		t.Errorf("the other revision has deleted its pod, and the new one is %q", got)
	}
}

// TestPodsAtTheGateGetTheirClass: a repeated request gets the same class, and the pod keeps
// it once it is observed with it.
func TestPodsAtTheGateGetTheirClass(t *testing.T) {
	r := newClassFixture(t)
	r.arrives("a", "", capacity.None, "", build.Gated())
	r.arrives("b", "", capacity.None, "", build.Gated())
	place := func(pod types.UID, want capacity.Class) {
		t.Helper()
		if got, _ := r.PlaceClass(ask(pod, 2, 1)); got != want {
			t.Errorf("%s is %q, want %q", pod, got, want)
		}
	}
	place("a", capacity.OnDemand)
	place("a", capacity.OnDemand)
	place("b", capacity.Spot)
	r.clock.Step(takeTTL + time.Second)
	place("b", capacity.Spot) // it may be written and not observed yet
	r.clock.Step(takeTTL + time.Second)
	r.RecordLookup([]types.UID{"a", "b"}, func(types.UID) bool { return false })
	place("b", capacity.OnDemand)
	r.arrives("b", "", capacity.OnDemand, "")
	place("a", capacity.Spot)
	place("gone", capacity.None)
	r.clock.Step(takeTTL + time.Second)
	if overdue := r.Overdue(); len(overdue["ns"]) != 1 || overdue["ns"][0] != "a" {
		t.Errorf("overdue are %v, want a: b was observed", overdue)
	}
}

// TestTiedGatedPodReleasesItsClass: a pod that turns out to be tied to the other class frees
// the class that was reserved for it.
func TestTiedGatedPodReleasesItsClass(t *testing.T) {
	r := newClassFixture(t)
	r.arrives("a", "", capacity.None, "", build.Gated())
	r.arrives("b", "", capacity.None, "", build.Gated())
	tied := ask("a", 2, 1)
	for _, want := range []capacity.Class{capacity.OnDemand, capacity.Spot} {
		if got, _ := r.PlaceClass(tied); got != want {
			t.Errorf("a is %q, want %q", got, want)
		}
		tied.Class = capacity.Spot
	}
	if got, _ := r.PlaceClass(ask("b", 2, 1)); got != capacity.OnDemand {
		t.Errorf("b is %q, want the class that a freed", got)
	}
}

// TestOneEntryForSeatAndClass: a pod that takes both counts once.
func TestOneEntryForSeatAndClass(t *testing.T) {
	r := newClassFixture(t)
	r.ObserveNode(SlimNode(build.Node("hz-1", build.InGroup("hz"))))
	spread := weights("hz", 1)
	r.take(capacity.OnDemand, ask("t", 2, 1))
	request := Request{Pod: "t", Cohort: Cohort{Owner: "web-1"}, Total: 2, Spread: spread}
	if group, why := r.Take(request, false); group != "hz" || why != Seated {
		t.Fatalf("seated in %q: %s", group, why)
	}
	r.take(capacity.Spot, ask("u", 2, 1)) // and not None, as if there were two already
}

func TestWhichClassCanTakeAPod(t *testing.T) {
	r := newClassFixture(t)
	r.arrives("a", "", capacity.OnDemand, "on-demand", build.With(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }))
	pod := r.Pod("a")
	if can, why := r.ClassCanTake(capacity.Spot, pod, nil, nil); can || why != fit.NoMatch {
		t.Errorf("spot can take it: %t (%s)", can, why)
	}
	r.ObserveNode(SlimNode(build.Node("spot", build.Label("node.kubernetes.io/capacity", "spot"), build.Label("disk", "ssd"))))
	if can, why := r.ClassCanTake(capacity.Spot, pod, nil, nil); !can {
		t.Errorf("spot cannot take it: %s", why)
	}
}

// TestOnlyNodesOfItsGroupTakeAPod: if a pod has a seat in a group, only nodes of that group
// can take its successor.
func TestOnlyNodesOfItsGroupTakeAPod(t *testing.T) {
	r := newClassFixture(t)
	r.arrives("a", "t", capacity.OnDemand, "on-demand", build.With(func(p *corev1.Pod) { p.Spec.NodeSelector = nil }))
	seated := *r.Pod("a")
	seated.GroupStamp = "hz"
	if can, why := r.ClassCanTake(capacity.Spot, &seated, nil, nil); can || why != fit.NoOpenNode {
		t.Errorf("a spot node of no group can take it: %t (%s)", can, why)
	}
	r.ObserveNode(SlimNode(build.Node("spot-hz", build.InGroup("hz"), build.Label("node.kubernetes.io/capacity", "spot"))))
	if can, why := r.ClassCanTake(capacity.Spot, &seated, nil, nil); !can {
		t.Errorf("a spot node of its group cannot take it: %s", why)
	}
}

// TestSuccessorHasTolerationsOfTheNewClass: the successor has the tolerations of the other class.
func TestSuccessorHasTolerationsOfTheNewClass(t *testing.T) {
	const key = "kubernetes.azure.com/scalesetpriority"
	classes, err := capacity.Presets()["aks"].Ready()
	if err != nil {
		t.Fatal(err)
	}
	ledger := NewLedger(testingclock.NewFakeClock(time.Unix(1_000_000, 0)))
	ledger.SetClasses(&classes)
	ledger.ObserveNode(SlimNode(build.Node("spot", build.Label(key, "spot"), build.With(func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: key, Value: "spot", Effect: corev1.TaintEffectNoSchedule}}
	}))))
	ledger.ObserveNode(SlimNode(build.Node("on-demand")))
	pod := build.Pod("a", build.OwnedBy(web), build.On("on-demand"), build.Label(gm.CapacityClassLabel, "on-demand"))
	classes.Restrict(&pod.Spec, capacity.OnDemand)
	ledger.Observe(Slim(pod))
	if can, why := ledger.ClassCanTake(capacity.Spot, ledger.Pod("a"), nil, nil); !can {
		t.Errorf("a spot node cannot take it: %s", why)
	}
}

// TestTheClassOfVolumes: volumes that name their nodes have the class of these nodes, if all
// have the same one.
func TestTheClassOfVolumes(t *testing.T) {
	hosts := func(names ...string) *corev1.NodeSelector {
		return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: names},
		}}}}
	}
	driver := func(name string) *corev1.NodeSelector { // TopoLVM's; others have labels of their own as well
		return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "topology.topolvm.io/node", Operator: corev1.NodeSelectorOpIn, Values: []string{name}},
		}}}}
	}
	zone := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"z"}},
	}}}}
	named := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
		{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"spot"}},
	}}}}
	unread := hosts("spot")
	unread.NodeSelectorTerms[0].MatchExpressions = append(unread.NodeSelectorTerms[0].MatchExpressions, corev1.NodeSelectorRequirement{Key: "zone", Operator: "Near"})
	tests := map[string]struct {
		volumes []*corev1.NodeSelector
		want    capacity.Class
		tied    bool
	}{
		"no volumes":                         {nil, capacity.None, false},
		"a node":                             {[]*corev1.NodeSelector{hosts("spot")}, capacity.Spot, true},
		"a node by its name":                 {[]*corev1.NodeSelector{named}, capacity.Spot, true},
		"a node by a label of a CSI driver":  {[]*corev1.NodeSelector{driver("spot")}, capacity.Spot, true},
		"one that such a driver has lost":    {[]*corev1.NodeSelector{driver("gone")}, capacity.None, false},
		"nodes of both classes":              {[]*corev1.NodeSelector{hosts("spot", "on-demand")}, capacity.None, false},
		"one of them has the other volume":   {[]*corev1.NodeSelector{hosts("spot", "on-demand"), hosts("on-demand")}, capacity.OnDemand, true},
		"a node of neither class":            {[]*corev1.NodeSelector{hosts("spot", "neither")}, capacity.None, true},
		"a node that is gone":                {[]*corev1.NodeSelector{hosts("gone")}, capacity.None, true},
		"a zone, where others may come":      {[]*corev1.NodeSelector{zone}, capacity.None, false},
		"a zone, and a node of it":           {[]*corev1.NodeSelector{zone, hosts("spot")}, capacity.Spot, true},
		"a zone, and a node of another zone": {[]*corev1.NodeSelector{zone, hosts("on-demand")}, capacity.None, true},
		"what cannot be read":                {[]*corev1.NodeSelector{unread}, capacity.None, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newClassFixture(t)
			for _, name := range []string{"on-demand", "spot", "neither"} {
				labels := []build.Option{build.Label("node.kubernetes.io/capacity", name), build.Label(corev1.LabelHostname, name), build.Label("topology.topolvm.io/node", name)}
				if name == "spot" {
					labels = append(labels, build.Label("zone", "z"))
				}
				r.ObserveNode(SlimNode(build.Node(name, labels...)))
			}
			if got, tied := r.ClassOfVolumes(tc.volumes); got != tc.want || tied != tc.tied {
				t.Errorf("got %q, tied %t, want %q, %t", got, tied, tc.want, tc.tied)
			}
		})
	}
}

// TestPodsThatKeepApartNeedANodeOfTheirOwn: the pod that is recreated does not count, and
// neither do pods of other workloads.
func TestPodsThatKeepApartNeedANodeOfTheirOwn(t *testing.T) {
	r := newClassFixture(t)
	spot := func(name string) {
		r.ObserveNode(SlimNode(build.Node(name, build.Label("node.kubernetes.io/capacity", "spot"), build.Label(corev1.LabelHostname, name))))
	}
	spot("spot")
	apart := build.With(func(p *corev1.Pod) {
		build.Label("app", "web")(p)
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
		}}}
	})
	r.arrives("leaves", "", capacity.None, "on-demand", apart)
	r.Observe(Slim(build.Pod("other", build.OwnedBy(build.ReplicaSet("other")), build.On("spot"), apart)))
	takes := func(want fit.Reason) {
		t.Helper()
		if can, why := r.ClassCanTake(capacity.Spot, r.Pod("leaves"), nil, []types.UID{"nobody", "web-1"}); can != (want == fit.Fits) || why != want {
			t.Errorf("spot can take it: %t (%s), want %q", can, why, want)
		}
	}
	takes(fit.Fits)
	r.arrives("stays", "", capacity.None, "spot", apart)
	takes(fit.TooClose)
	spot("spot-2")
	takes(fit.Fits)
	r.ForgetNode("spot-2")
	r.Forget("stays")
	takes(fit.Fits)
}

// TestAntiAffinityIgnoresRecreatedAndFinishedPods: neither the pod that is recreated nor a finished pod keeps others
// from a zone.
func TestAntiAffinityIgnoresRecreatedAndFinishedPods(t *testing.T) {
	r := newClassFixture(t)
	for _, class := range []string{"on-demand", "spot"} {
		r.ObserveNode(SlimNode(build.Node(class, build.Label("node.kubernetes.io/capacity", class), build.Label("zone", "z"))))
	}
	apart := build.With(func(p *corev1.Pod) {
		build.Label("app", "web")(p)
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
		}}}
	})
	takes := func(want fit.Reason) {
		t.Helper()
		if can, why := r.ClassCanTake(capacity.Spot, r.Pod("leaves"), nil, []types.UID{"web-1"}); can != (want == fit.Fits) || why != want {
			t.Errorf("spot can take it: %t (%s), want %q", can, why, want)
		}
	}
	r.arrives("leaves", "", capacity.None, "on-demand", apart)
	takes(fit.Fits)
	over := build.With(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
	r.arrives("other", "", capacity.None, "spot", apart, over)
	takes(fit.Fits)
	r.arrives("other", "", capacity.None, "spot", apart)
	takes(fit.TooClose)
}

// TestConcurrentClassRequestsNeverExceedTheCount: many pods request a class at the same time, from all replicas
// of the webhook.
func TestConcurrentClassRequestsNeverExceedTheCount(t *testing.T) {
	r := newClassFixture(t)
	const replicas, count = 500, 50
	classes := make([]capacity.Class, replicas)
	var askers sync.WaitGroup
	for i := range replicas {
		askers.Go(func() { classes[i], _ = r.TakeClass(ask(types.UID(fmt.Sprint("t", i)), replicas, count), false) })
	}
	askers.Wait()
	onDemand := 0
	for _, class := range classes {
		if class == capacity.OnDemand {
			onDemand++
		}
		if class == capacity.None {
			t.Fatal("a pod of a burst is to wait")
		}
	}
	if onDemand != count {
		t.Errorf("%d are on-demand, want %d", onDemand, count)
	}
}

// TestClassOfAnAdmittedPodIsGivenOnce: pods get their class at creation, and their seat in a group
// with a max later. However the request for a seat ends, the class stays reserved until the watch
// shows the pod.
func TestClassOfAnAdmittedPodIsGivenOnce(t *testing.T) {
	next := ask("next", 3, 1)
	for name, seat := range map[string]func(r *classFixture, request Request){
		"no seat is open": func(r *classFixture, request Request) {
			request.Spread = atMost(t, 0, "hz")
			if r.Admit(request, false) {
				t.Error("admitted")
			}
		},
		"a dry run": func(r *classFixture, request Request) { r.Admit(request, true) },
		"the watch is behind for longer than a reservation lasts": func(r *classFixture, request Request) {
			r.Admit(request, false)
			r.clock.Step(takeTTL + time.Second)
			if got := r.Overdue()["ns"]; len(got) != 1 {
				t.Errorf("pods to look for are %v, want t", got)
			}
		},
		"kube-scheduler sees the pod before the watch": func(r *classFixture, request Request) {
			r.Take(request, false)
			request.Pod, request.Token, request.Nodes = "uid", "t", []string{"hz-1"}
			r.Reserve(request)
			request.Nodes = nil // then there is no node for it
			r.Reserve(request)
			r.clock.Step(ReservationTTL)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newClassFixture(t)
			r.ObserveNode(SlimNode(build.Node("hz-1", build.InGroup("hz"))))
			first := ask("t", 3, 1)
			first.Namespace = "ns"
			r.take(capacity.OnDemand, first)
			seat(r, Request{Pod: "t", Namespace: "ns", Cohort: first.Cohort, Total: 3, Spread: atMost(t, 3, "hz")})
			r.take(capacity.Spot, next)
		})
	}
}

// TestConcurrentAdmissionsNeverExceedTheCount: pods of a burst get their class, and then ask
// whether a seat is open, of which there are fewer than pods.
func TestConcurrentAdmissionsNeverExceedTheCount(t *testing.T) {
	r := newClassFixture(t)
	r.ObserveNode(SlimNode(build.Node("hz-1", build.InGroup("hz"))))
	const replicas, count = 200, 5
	var onDemand atomic.Int32
	var askers sync.WaitGroup
	for i := range replicas {
		token := types.UID(fmt.Sprint("t", i))
		askers.Go(func() {
			if class, _ := r.TakeClass(ask(token, replicas, count), false); class == capacity.OnDemand {
				onDemand.Add(1)
			}
			r.Admit(Request{Pod: token, Cohort: Cohort{Owner: "web-1"}, Total: replicas, Spread: atMost(t, 2, "hz")}, false)
		})
	}
	askers.Wait()
	if got := onDemand.Load(); got != count {
		t.Errorf("%d pods are on-demand, want %d", got, count)
	}
}

// TestRestartedLedgerCountsFromThePods: a new ledger needs nothing but the pods.
func TestRestartedLedgerCountsFromThePods(t *testing.T) {
	r := newClassFixture(t)
	for i := range 8 {
		class, node := capacity.Spot, "spot"
		if i < 3 {
			class, node = capacity.OnDemand, []string{"on-demand", ""}[i%2]
		}
		r.arrives(fmt.Sprint("pod-", i), types.UID(fmt.Sprint("t", i)), class, node)
	}
	r.counts(3, 5)
	r.take(capacity.Spot, ask("next", 10, 3))
	r.take(capacity.OnDemand, ask("more", 10, 4))
}

// TestEndedPodReleasesItsClass: a deleted, finished or terminating pod does not count any more.
func TestEndedPodReleasesItsClass(t *testing.T) {
	over := map[string]build.Option{
		"succeeded":   build.With(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
		"failed":      build.With(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
		"terminating": build.Deleting("wait"),
	}
	for name, option := range over {
		t.Run(name, func(t *testing.T) {
			r := newClassFixture(t)
			r.arrives("a", "", capacity.OnDemand, "on-demand", option)
			r.take(capacity.OnDemand, ask("t", 2, 1))
		})
	}
	r := newClassFixture(t)
	r.arrives("a", "", capacity.OnDemand, "on-demand")
	r.Forget("a")
	r.take(capacity.OnDemand, ask("t", 2, 1))
}

// TestClassCountsAsEmptyAfterATime: the time starts when the last node is lost. A class is not
// empty while the other class has no node either.
func TestClassCountsAsEmptyAfterATime(t *testing.T) {
	r := newClassFixture(t)
	empty := func(want capacity.Class) {
		t.Helper()
		if got := r.EmptyClass(time.Minute); got != want {
			t.Errorf("empty is %q, want %q", got, want)
		}
	}
	spot := func() {
		r.ObserveNode(SlimNode(build.Node("spot", build.Label("node.kubernetes.io/capacity", "spot"))))
	}
	r.clock.Step(time.Hour)
	empty(capacity.None)
	r.ForgetNode("spot")
	r.clock.Step(time.Minute - 1)
	empty(capacity.None)
	r.clock.Step(1)
	empty(capacity.Spot)
	spot()
	empty(capacity.None)
	r.ForgetNode("spot")
	empty(capacity.None)
	r.clock.Step(time.Minute)
	empty(capacity.Spot)
	r.ForgetNode("on-demand")
	empty(capacity.None)
}

// TestReasonNamesTheClassMissingInAGroup: if a group has no node of the class, the reason names the class.
func TestReasonNamesTheClassMissingInAGroup(t *testing.T) {
	r := newClassFixture(t)
	r.arrives("a", "", capacity.Spot, "spot")
	r.ObserveNode(SlimNode(build.Node("hz-1", build.InGroup("hz"), build.Label("node.kubernetes.io/capacity", "on-demand"))))
	if can, why := r.CanTake("hz", r.Pod("a")); can || why != fit.NoSpot {
		t.Errorf("hz can take a spot pod: %t (%s)", can, why)
	}
	r.ObserveNode(SlimNode(build.Node("hz-2", build.InGroup("hz"), build.Label("node.kubernetes.io/capacity", "spot"))))
	if can, why := r.CanTake("hz", r.Pod("a")); !can {
		t.Errorf("hz with a spot node cannot take it: %s", why)
	}
	ssd := build.With(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} })
	r.arrives("ssd", "", capacity.Spot, "spot", ssd)
	r.arrives("free", "", capacity.None, "neither", ssd)
	for _, name := range []types.UID{"ssd", "free"} {
		if _, why := r.CanTake("hz", r.Pod(name)); why != fit.NoMatch {
			t.Errorf("hz has no such disk, and nodes of both classes, and answers the %s pod %q", name, why)
		}
	}
	r.ObserveNode(SlimNode(build.Node("bj-1", build.InGroup("bj"), build.With(func(n *corev1.Node) { n.Spec.Unschedulable = true }))))
	if _, why := r.CanTake("bj", r.Pod("a")); why != fit.NoOpenNode {
		t.Errorf("bj has no open node, and gets %q", why)
	}
}

// TestHandlerGetsOwnersOfClassChanges: the handler gets the owners of the pods on a node that changes its
// class. It gets everybody if a class got its first node or lost its last one.
func TestHandlerGetsOwnersOfClassChanges(t *testing.T) {
	r := newClassFixture(t)
	var owners []types.UID
	everybody, calls := 0, 0
	r.OnClasses(func(changed []types.UID, all bool) {
		calls++
		owners = append(owners, changed...)
		if all {
			everybody++
		}
	})
	r.arrives("a", "", capacity.OnDemand, "on-demand")
	class := func(value string) []build.Option {
		return []build.Option{build.Label("node.kubernetes.io/capacity", value)}
	}
	r.ObserveNode(SlimNode(build.Node("on-demand", class("on-demand")...)))
	if calls > 0 {
		t.Errorf("without a change the handler got owners %v, and %d times everybody", owners, everybody)
	}
	r.ObserveNode(SlimNode(build.Node("on-demand", class("spot")...)))
	if len(owners) != 1 || owners[0] != "web-1" || everybody != 1 {
		t.Errorf("for a node that is spot now the handler got owners %v, and %d times everybody", owners, everybody)
	}
	r.ObserveNode(SlimNode(build.Node("more", class("on-demand")...)))
	r.ObserveNode(SlimNode(build.Node("still-more", class("on-demand")...)))
	r.ForgetNode("more")
	if everybody != 2 {
		t.Errorf("for the first on-demand node, a second one and its deletion the handler got everybody %d times", everybody)
	}
	r.ForgetNode("still-more")
	if everybody != 3 {
		t.Error("for the deletion of the last on-demand node the handler did not get everybody")
	}
	r.ObserveNode(SlimNode(build.Node("more", class("on-demand")...)))
	owners, everybody = nil, 0
	r.ObserveNode(SlimNode(build.Node("on-demand", class("on-demand")...)))
	if len(owners) != 1 || everybody != 0 {
		t.Errorf("for one of several nodes that is on-demand now the handler got owners %v, and %d times everybody", owners, everybody)
	}
}

// TestClassReservationsOfUncreatedPodsAreBounded: everybody who reaches the webhook can send
// requests. A pod that got a class gets its seat too.
func TestClassReservationsOfUncreatedPodsAreBounded(t *testing.T) {
	r := newClassFixture(t)
	r.ObserveNode(SlimNode(build.Node("hz-1", build.InGroup("hz"))))
	const bound = maxUnseen + 2
	n := 0
	for i := range 2 * bound {
		class, why := r.TakeClass(ask(types.UID(fmt.Sprint("t", i)), 2, 0), false)
		if (class == capacity.Spot) != (why == Seated) || (class == capacity.None) != (why == NoSeatOpen) {
			t.Errorf("the pod is %q, and the reason %q", class, why)
		}
		if class == capacity.Spot {
			n++
		}
	}
	if n != bound {
		t.Errorf("%d pods that were not observed have a class, want %d", n, bound)
	}
	seat := func(token types.UID) Reason {
		_, why := r.Take(Request{Pod: token, Cohort: Cohort{Owner: "web-1"}, Total: 2, Spread: weights("hz", 1)}, false)
		return why
	}
	if why := seat("t0"); why != Seated {
		t.Errorf("a pod that got its class gets no seat: %s", why)
	}
	if why := seat("other"); why != NoSeatOpen {
		t.Errorf("another is got %q, want %q", why, NoSeatOpen)
	}
}

// TestADryRunOfAClassTakesNothing: a dry run reserves nothing, and does not end a
// reservation.
func TestADryRunOfAClassTakesNothing(t *testing.T) {
	r := newClassFixture(t)
	if class, why := r.TakeClass(ask("t", 2, 1), true); class != capacity.OnDemand || why != Seated {
		t.Errorf("a dry run returns %q (%s)", class, why)
	}
	if left := len(r.cohorts.byPod) + len(r.cohorts.byKey) + len(r.cohorts.byOwner); left != 0 {
		t.Errorf("a dry run left %d entries", left)
	}
	r.take(capacity.OnDemand, ask("t", 2, 1))
	if class, _ := r.TakeClass(ask("t", 2, 1), true); class != capacity.OnDemand {
		t.Errorf("asked again in a dry run the pod is %q", class)
	}
	r.take(capacity.Spot, ask("next", 2, 1))
}

// TestAllOnDemandPodsOfAWorkloadCount: the on-demand pods of other revisions of the same
// owner count, and those of its siblings, whatever number the siblings are to keep.
func TestAllOnDemandPodsOfAWorkloadCount(t *testing.T) {
	r := newClassFixture(t)
	for i, pod := range []struct{ owner, revision string }{{"web-2", "new"}, {"web-2", "old"}, {"web-1", "a"}, {"web-1", "b"}, {"web-3", "c"}} {
		r.Observe(Slim(build.Pod(fmt.Sprint("p", i), build.OwnedBy(build.ReplicaSet(pod.owner)), build.Label("pod-template-hash", pod.revision), build.On("on-demand"))))
	}
	for count, want := range map[int]capacity.Class{5: capacity.None, 6: capacity.OnDemand} {
		request := ClassRequest{
			Pod: "t", Cohort: Cohort{Owner: "web-2", Revision: "new"}, Total: 9, Count: count,
			Siblings: []Sibling{{Owner: "unknown"}, {Owner: "web-2"}, {Owner: "web-1"}, {Owner: "web-3"}},
		}
		if got, _ := r.TakeClass(request, true); got != want {
			t.Errorf("five pods are on-demand, %d may be, and the next is %q, want %q", count, got, want)
		}
	}
}

// TestClassLabelAloneDoesNotRestrictAPod: a label alone does not restrict a pod to nodes.
func TestClassLabelAloneDoesNotRestrictAPod(t *testing.T) {
	r := newClassFixture(t)
	says := func(class capacity.Class) build.Option { return build.Label(gm.CapacityClassLabel, class.String()) }
	kept := func(class capacity.Class) build.Option {
		return build.With(func(p *corev1.Pod) { r.classes.Restrict(&p.Spec, class) })
	}
	selects := build.With(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"node.kubernetes.io/capacity": "spot"} })
	for name, tc := range map[string]struct {
		options []build.Option
		want    capacity.Class
	}{
		"it demands nothing":                         {nil, capacity.None},
		"a label alone":                              {[]build.Option{says(capacity.OnDemand)}, capacity.None},
		"a label, and kept to the class":             {[]build.Option{says(capacity.OnDemand), kept(capacity.OnDemand)}, capacity.OnDemand},
		"a demand without a label":                   {[]build.Option{kept(capacity.Spot)}, capacity.Spot},
		"a node selector without a label":            {[]build.Option{selects}, capacity.Spot},
		"a label that the demand contradicts":        {[]build.Option{says(capacity.OnDemand), selects}, capacity.Spot},
		"kept to one class, and demanding the other": {[]build.Option{says(capacity.OnDemand), kept(capacity.OnDemand), selects}, capacity.OnDemand},
	} {
		t.Run(name, func(t *testing.T) {
			r.Observe(Slim(build.Pod("p", tc.options...)))
			if got := r.Pod("p").Class; got != tc.want {
				t.Errorf("it is %q, want %q", got, tc.want)
			}
		})
	}
}

// TestGrantedClassLastsUntilThePodIsBound: once the pod is bound, it has the class of
// its node.
func TestGrantedClassLastsUntilThePodIsBound(t *testing.T) {
	r := newClassFixture(t)
	r.arrives("a", "", capacity.None, "", build.Gated())
	if class, _ := r.PlaceClass(ask("a", 2, 1)); class != capacity.OnDemand {
		t.Fatalf("it is %q", class)
	}
	r.arrives("a", "", capacity.None, "", build.Gated(), build.Unschedulable())
	r.counts(1, 0)
	r.arrives("a", "", capacity.None, "neither") // another client took the gate off
	r.counts(0, 0)
}

// TestSeatedPodMovesOnlyWithinItsGroup: the successor is pinned to the group.
func TestSeatedPodMovesOnlyWithinItsGroup(t *testing.T) {
	r := newClassFixture(t)
	r.ForgetNode("spot")
	r.arrives("seated", "", capacity.None, "on-demand", build.InGroup("hz"))
	r.arrives("free", "", capacity.None, "on-demand")
	spot := func(name, group string, options ...build.Option) {
		r.ObserveNode(SlimNode(build.Node(name, append(options, build.InGroup(group), build.Label("node.kubernetes.io/capacity", "spot"))...)))
	}
	takes := func(what, pod string, want bool) {
		t.Helper()
		if can, why := r.ClassCanTake(capacity.Spot, r.Pod(types.UID(pod)), nil, nil); can != want || !can && why != fit.NoOpenNode {
			t.Errorf("%s: spot can take the %s pod: %t (%s)", what, pod, can, why)
		}
	}
	takes("no node is spot", "free", false)
	spot("bj-1", "bj")
	takes("one of another group is", "seated", false)
	takes("one of some group is", "free", true)
	spot("hz-1", "hz", build.With(func(n *corev1.Node) { n.Spec.Unschedulable = true }))
	takes("one of its group is cordoned", "seated", false)
	spot("hz-1", "hz")
	takes("one of its group is open", "seated", true)
}

// TestTopologySpreadIgnoresNodesOfTheOtherClass: nodes of the other class do not count for
// topology spread.
func TestTopologySpreadIgnoresNodesOfTheOtherClass(t *testing.T) {
	r := newClassFixture(t)
	node := func(name, class, zone string, options ...build.Option) {
		r.ObserveNode(SlimNode(build.Node(name, append(options, build.Label("node.kubernetes.io/capacity", class), build.Label("zone", zone))...)))
	}
	node("on-demand", "on-demand", "z1")
	node("spot", "spot", "z1")
	node("closed", "spot", "z2", build.With(func(n *corev1.Node) { n.Spec.Unschedulable = true }))
	spread := build.With(func(p *corev1.Pod) {
		build.Label("app", "web")(p)
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			TopologyKey: "zone", MaxSkew: 1, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		}}
	})
	for _, name := range []string{"leaves", "stays", "stays-too"} {
		r.arrives(name, "", capacity.None, "on-demand", spread)
	}
	takes := func(what string, want fit.Reason) {
		t.Helper()
		if can, why := r.ClassCanTake(capacity.Spot, r.Pod("leaves"), nil, []types.UID{"web-1"}); can != (want == fit.Fits) || why != want {
			t.Errorf("%s: spot can take it: %t (%s), want %q", what, can, why, want)
		}
	}
	takes("all are on the on-demand node of the zone", fit.Fits)
	r.arrives("there", "", capacity.None, "spot", spread)
	takes("one is on the spot node, and none in the other zone", fit.TooClose)
}

// TestAntiAffinityIgnoresTerminatingAndUnboundPods: neither the pod that is recreated, nor terminating
// pods, nor pods that are not bound.
func TestAntiAffinityIgnoresTerminatingAndUnboundPods(t *testing.T) {
	r := newClassFixture(t)
	for _, class := range []string{"on-demand", "spot"} {
		r.ObserveNode(SlimNode(build.Node(class, build.Label("node.kubernetes.io/capacity", class), build.Label("zone", "z"))))
	}
	apart := build.With(func(p *corev1.Pod) {
		build.Label("app", "web")(p)
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
		}}}
	})
	r.arrives("leaves", "", capacity.None, "on-demand", apart)
	takes := func(what string, want fit.Reason) {
		t.Helper()
		if _, why := r.ClassCanTake(capacity.Spot, r.Pod("leaves"), nil, []types.UID{"web-1"}); why != want {
			t.Errorf("%s: spot gets %q, want %q", what, why, want)
		}
	}
	takes("it is in the same zone itself", fit.Fits)
	r.TakeClass(ask("token", 9, 9), false)
	takes("one is being created", fit.Fits)
	r.arrives("waits", "", capacity.None, "", apart)
	takes("one has no node", fit.Fits)
	r.arrives("goes", "", capacity.None, "spot", apart, build.Deleting("x"))
	takes("one terminates", fit.Fits)
	r.arrives("stays", "", capacity.None, "spot", apart)
	takes("one stays", fit.TooClose)
}

// TestReservedOfClass: a class is reserved until the pod is observed, or the reservation
// expires.
func TestReservedOfClass(t *testing.T) {
	r := newClassFixture(t)
	is := func(what string, onDemand, spot int) {
		t.Helper()
		if got := r.ReservedOfClass([]types.UID{"unknown", "web-1"}); got != [3]int{capacity.OnDemand: onDemand, capacity.Spot: spot} {
			t.Errorf("%s: reserved are %v, want %d and %d", what, got, onDemand, spot)
		}
	}
	is("there are no pods", 0, 0)
	for i, want := range []capacity.Class{capacity.OnDemand, capacity.OnDemand, capacity.Spot} {
		r.take(want, ask(types.UID(fmt.Sprint("t", i)), 9, 2))
	}
	is("three were asked about", 2, 1)
	r.arrives("a", "t0", capacity.OnDemand, "")
	is("one is seen", 1, 1)
	r.arrives("gated", "", capacity.None, "", build.Gated())
	r.PlaceClass(ask("gated", 9, 2))
	is("one at the gate is known already", 1, 1)
	r.clock.Step(takeTTL)
	is("the others did not come", 0, 0)
}
