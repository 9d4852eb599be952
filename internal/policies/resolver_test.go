package policies

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// testResolver is a Resolver over objects in memory, with its fake clock.
type testResolver struct {
	*Resolver
	clock *testingclock.FakeClock
}

// newTestResolver puts nodes into the ledger, policies into the cache, and all other
// objects into the walker.
func newTestResolver(t *testing.T, objects ...build.Object) *testResolver {
	t.Helper()
	clock := testingclock.NewFakeClock(time.Unix(1_000_000, 0))
	walker, ledger := owners.NewWalker(build.NewAPI(t).Client()), seats.NewLedger(clock)
	var cached []client.Object
	for _, o := range objects {
		switch o := o.(type) {
		case *corev1.Node:
			ledger.ObserveNode(seats.SlimNode(o))
		case *gm.PropagationPolicy, *gm.OverridePolicy:
			cached = append(cached, o.(client.Object))
		default:
			walker.Put(build.Owner(o))
		}
	}
	reader := build.Client(interceptor.Funcs{}, cached...)
	return &testResolver{Resolver: NewResolver(reader, walker, ledger, clock, true), clock: clock}
}

func TestAssignment(t *testing.T) {
	policy := build.PropagationPolicy("p", build.Weight(1, "a"))
	invalid := build.PropagationPolicy("invalid")
	node := build.Node("n", build.InGroup("a"))
	deployment := build.Deployment("d", build.Bound("p", ""), build.Replicas(10))
	replicaSet := build.ReplicaSet("rs", build.OwnedBy(deployment), build.Replicas(4))
	type want struct {
		Managed, Counted bool
		Owner            types.UID
		Total            int
		Groups           []string
		Err              bool
	}
	tests := map[string]struct {
		objects []build.Object
		pod     *corev1.Pod
		want    want
	}{
		"a pod whose owners require no policy": {
			objects: []build.Object{build.ReplicaSet("rs", build.Replicas(4))},
			pod:     build.Pod("x", build.OwnedBy(build.ReplicaSet("rs"))),
			want:    want{Counted: true, Owner: "rs", Total: 1},
		},
		"the total is the most replicas of any owner up to the workload": {
			objects: []build.Object{deployment, replicaSet, policy, node},
			pod:     build.Pod("x", build.OwnedBy(replicaSet)),
			want:    want{Managed: true, Counted: true, Owner: "rs", Total: 10, Groups: []string{"a"}},
		},
		"an owner below the workload with more replicas, as in a rollout, counts": {
			objects: []build.Object{deployment, build.ReplicaSet("rs", build.OwnedBy(deployment), build.Replicas(12)), policy, node},
			pod:     build.Pod("x", build.OwnedBy(replicaSet)),
			want:    want{Managed: true, Counted: true, Owner: "rs", Total: 12, Groups: []string{"a"}},
		},
		"an owner above the workload does not count": {
			objects: []build.Object{
				build.Deployment("d", build.Replicas(10)),
				build.ReplicaSet("rs", build.OwnedBy(deployment), build.Replicas(4), build.Bound("p", "")), policy, node,
			},
			pod:  build.Pod("x", build.OwnedBy(replicaSet)),
			want: want{Managed: true, Counted: true, Owner: "rs", Total: 4, Groups: []string{"a"}},
		},
		"the pods of a DaemonSet are not counted": {
			objects: []build.Object{build.DaemonSet("ds", build.Bound("p", "")), policy, node},
			pod:     build.Pod("x", build.OwnedBy(build.DaemonSet("ds"))),
			want:    want{Managed: true, Owner: "ds", Total: 1, Groups: []string{"a"}},
		},
		"a pod without an owner is its own cohort": {
			objects: []build.Object{policy, node},
			pod:     build.Pod("x", build.Bound("p", "")),
			want:    want{Managed: true, Counted: true, Owner: "x", Total: 1, Groups: []string{"a"}},
		},
		"a workload that is not bound has no spread and no error": {
			objects: []build.Object{build.Deployment("d", build.Requires("p", ""), build.Replicas(10)), replicaSet, policy, node},
			pod:     build.Pod("x", build.OwnedBy(replicaSet)),
			want:    want{Managed: true, Counted: true, Owner: "rs", Total: 10},
		},
		"a bound policy that is deleted is an error": {
			objects: []build.Object{deployment, replicaSet, node},
			pod:     build.Pod("x", build.OwnedBy(replicaSet)),
			want:    want{Managed: true, Counted: true, Owner: "rs", Total: 10, Err: true},
		},
		"a bound policy that cannot be used is an error": {
			objects: []build.Object{build.Deployment("d", build.Bound("invalid", "")), replicaSet, invalid, node},
			pod:     build.Pod("x", build.OwnedBy(replicaSet)),
			want:    want{Managed: true, Counted: true, Owner: "rs", Total: 4, Err: true},
		},
		"a deleted owner is an error, and the assignment is empty": {
			pod:  build.Pod("x", build.OwnedBy(build.ReplicaSet("gone"))),
			want: want{Err: true},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := seats.Slim(tc.pod)
			a, err := newTestResolver(t, tc.objects...).Assignment(t.Context(), pod.Object(), "r1")
			got := want{
				Managed: a.PolicyOwners.Managed(), Counted: a.Counted, Owner: a.Cohort.Owner,
				Total: a.Total, Groups: a.Spread.Groups(), Err: err != nil,
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("wrong assignment, error %v (-want +got):\n%s", err, diff)
			}
			if a.Cohort.Owner != "" && a.Cohort.Revision != "r1" {
				t.Errorf("the cohort is %+v: it must be of the pod's revision", a.Cohort)
			}
		})
	}
}

// TestSeatRequestHasTheOtherRevisions: those of the same Deployment, and not those of another
// workload below the owner that requires the policy.
func TestSeatRequestHasTheOtherRevisions(t *testing.T) {
	app := build.ReplicaSet("app", build.Bound("p", ""), build.With(func(r *appsv1.ReplicaSet) { r.Spec.Replicas = nil }))
	web := build.Deployment("web", build.OwnedBy(app), build.Replicas(2))
	old, new := build.ReplicaSet("web-1", build.OwnedBy(web), build.Replicas(1)), build.ReplicaSet("web-2", build.OwnedBy(web), build.Replicas(1))
	db := build.StatefulSet("db", build.OwnedBy(app), build.Replicas(1))
	r := newTestResolver(t, app, web, old, new, db, build.PropagationPolicy("p", build.Weight(1, "a")), build.Node("n", build.InGroup("a")))
	for owner, want := range map[build.Object][]types.UID{new: {"web", "web-1", "web-2"}, db: {"db"}} {
		pod := seats.Slim(build.Pod("x", build.OwnedBy(owner)))
		a, err := r.Assignment(t.Context(), pod.Object(), "r")
		if err != nil {
			t.Fatal(err)
		}
		got := r.SeatRequest(&a, "x").Workload
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("wrong owners for a pod of %s (-want +got):\n%s", owner.GetName(), diff)
		}
	}
}

func TestAMissingPolicyIsNotFound(t *testing.T) {
	l := newTestResolver(t)
	if _, err := l.Propagation(t.Context(), build.Namespace, "gone"); !apierrors.IsNotFound(err) {
		t.Errorf("error is %v, want NotFound", err)
	}
	if _, err := l.Override(t.Context(), build.Namespace, "gone"); !apierrors.IsNotFound(err) {
		t.Errorf("error is %v, want NotFound", err)
	}
}

func TestSpreadIsKeptUntilPolicyOrGroupsChange(t *testing.T) {
	policy := build.PropagationPolicy("p", build.Weight(1, "a", "b"))
	l := newTestResolver(t, build.Node("na", build.InGroup("a")))
	groups := func() []string {
		t.Helper()
		spread, err := l.Spread(policy, "app")
		if err != nil {
			t.Fatal(err)
		}
		return spread.Groups()
	}
	expect := func(when string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, groups()); diff != "" {
			t.Errorf("%s: wrong groups (-want +got):\n%s", when, diff)
		}
	}
	expect("at first", "a")
	policy.Spec.StaticWeight[0].NodeGroupNames = []string{"a", "c"}
	l.ledger.ObserveNode(seats.SlimNode(build.Node("another", build.InGroup("a"))))
	expect("the spec is read once a generation", "a")
	l.ledger.ObserveNode(seats.SlimNode(build.Node("nc", build.InGroup("c"))))
	expect("a group got its first node", "a", "c")
	l.ledger.ForgetNode("nc")
	expect("a group lost its last node", "a")
	l.ledger.ObserveNode(seats.SlimNode(build.Node("nb", build.InGroup("b"))))
	policy.Spec.StaticWeight[0].NodeGroupNames, policy.Generation = []string{"b"}, 2
	expect("a new generation", "b")
}

func TestRulesAreKeptUntilThePolicyChanges(t *testing.T) {
	l := newTestResolver(t)
	policy := build.OverridePolicy("o", build.Registry("a", "a.io"))
	first, errs := l.Rules(policy)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	policy.Spec.OverrideRules[0].TargetNodeGroup = []string{"b"}
	if again, _ := l.Rules(policy); again != first {
		t.Error("rules of one generation were compiled twice")
	}
	policy.Generation++
	if next, _ := l.Rules(policy); next == first || !slices.Equal(next.Groups(), []string{"b"}) {
		t.Errorf("rules of the next generation are about %v", next.Groups())
	}
	other := build.OverridePolicy("another", build.Registry("c", "c.io"))
	if rules, _ := l.Rules(other); !slices.Equal(rules.Groups(), []string{"c"}) {
		t.Errorf("another policy has rules about %v", rules.Groups())
	}
}

func TestSettlesAt(t *testing.T) {
	zero, minute := int32(0), int32(60)
	stabilization := func(seconds *int32) build.Option {
		return build.With(func(p *gm.PropagationPolicy) { p.Spec.Rescheduling.StabilizationSeconds = seconds })
	}
	tests := map[string]struct {
		seconds *int32
		change  func(l *testResolver, p *gm.PropagationPolicy)
		// want is after the change, which is an hour after the start.
		want time.Duration
	}{
		"nothing changed":              {want: -time.Hour + gm.DefaultStabilization},
		"nothing changed, no time":     {seconds: &zero, want: -time.Hour},
		"the policy divides otherwise": {seconds: &minute, want: time.Minute, change: func(_ *testResolver, p *gm.PropagationPolicy) { p.Spec.StaticWeight[0].Weight, p.Generation = 9, 2 }},
		"the policy divides as before": {seconds: &minute, want: time.Minute - time.Hour, change: func(_ *testResolver, p *gm.PropagationPolicy) { p.Generation = 2 }},
		"a node joined one of its groups": {
			seconds: &minute, want: time.Minute,
			change: func(l *testResolver, _ *gm.PropagationPolicy) {
				l.ledger.ObserveNode(seats.SlimNode(build.Node("na2", build.InGroup("a"))))
			},
		},
		"a node left one of its groups": {
			seconds: &minute, want: time.Minute,
			change: func(l *testResolver, _ *gm.PropagationPolicy) { l.ledger.ForgetNode("na1") },
		},
		"the last node left one of its groups": {
			seconds: &minute, want: time.Minute,
			change: func(l *testResolver, _ *gm.PropagationPolicy) { l.ledger.ForgetNode("nb") },
		},
		"a node joined another group": {
			seconds: &minute, want: time.Minute - time.Hour,
			change: func(l *testResolver, _ *gm.PropagationPolicy) {
				l.ledger.ObserveNode(seats.SlimNode(build.Node("nz", build.InGroup("z"))))
			},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l := newTestResolver(t, build.Node("na1", build.InGroup("a")), build.Node("na", build.InGroup("a")), build.Node("nb", build.InGroup("b")))
			p := build.PropagationPolicy("p", build.Weight(1, "a"), build.Weight(2, "b"), stabilization(tc.seconds))
			l.SettlesAt(p)
			l.clock.Step(time.Hour)
			if tc.change != nil {
				tc.change(l, p)
			}
			if got := l.SettlesAt(p).Sub(l.clock.Now()); got != tc.want {
				t.Errorf("settles %s from now, want %s", got, tc.want)
			}
		})
	}
}

func TestResolverIsSafeForConcurrentUse(t *testing.T) {
	l := newTestResolver(t, build.Node("n", build.InGroup("a")))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			policy := build.PropagationPolicy(fmt.Sprint("p", i%2), build.Weight(1, "a"))
			rules := build.OverridePolicy("o", build.Registry("a", "a.io"))
			for range 100 {
				if _, err := l.Spread(policy, "app"); err != nil {
					t.Error(err)
				}
				if _, errs := l.Rules(rules); len(errs) > 0 {
					t.Error(errs)
				}
				l.SettlesAt(policy)
				l.ledger.ObserveNode(seats.SlimNode(build.Node("m", build.InGroup([]string{"", "b"}[i%2]))))
			}
		})
	}
	wg.Wait()
}
