package propagationpolicy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/time/rate"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// refused returns a pod without a group that the extender has refused on every node with
// room for the duration age.
func refused(name string, age time.Duration, owner build.Object, options ...build.Option) *corev1.Pod {
	return build.Pod(name, append([]build.Option{
		build.OwnedBy(owner), build.Created(start.Add(-age - time.Second)),
		build.With(func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
				Message: "1 " + seats.TextOtherGroup + ".", LastTransitionTime: metav1.NewTime(start.Add(-age)),
			}}
		}),
	}, options...)...)
}

func TestPodsThatWaitWithoutAGroupAreRecreated(t *testing.T) {
	deployment := build.Deployment("web", build.Bound("p", ""))
	replicaSet := build.ReplicaSet("web-1", build.OwnedBy(deployment))
	job := build.Job("batch", build.Bound("p", ""))
	text := func(message string) build.Option {
		return build.With(func(p *corev1.Pod) { p.Status.Conditions[0].Message = message })
	}
	on := func(pod *corev1.Pod, options ...build.Option) []build.Object {
		return append(base(options...), deployment, replicaSet, job, pod)
	}
	tests := map[string]struct {
		objects []build.Object
		evicted []string
		requeue time.Duration
	}{
		"after five seconds":                      {objects: on(refused("a", lateTime, replicaSet)), evicted: []string{"a"}},
		"and not before":                          {objects: on(refused("a", 3*time.Second, replicaSet)), requeue: 2 * time.Second},
		"though pods go nowhere else":             {objects: on(refused("a", lateTime, replicaSet), after(0)), evicted: []string{"a"}},
		"kube-scheduler alone finds no node":      {objects: on(refused("a", time.Hour, replicaSet, text("2 Insufficient cpu.")))},
		"a pod that has its node":                 {objects: on(refused("a", time.Hour, replicaSet, build.On("node-hz")))},
		"kube-scheduler preempts others for it":   {objects: on(refused("a", time.Hour, replicaSet, build.With(func(p *corev1.Pod) { p.Status.NominatedNodeName = "node-hz" })))},
		"a pod at the gate":                       {objects: on(refused("a", time.Hour, replicaSet, build.Gated()))},
		"a pod whose volumes may be elsewhere":    {objects: on(refused("a", time.Hour, replicaSet, claim()))},
		"a pod of a Job is never recreated":       {objects: on(refused("a", time.Hour, job))},
		"nor one without an owner":                {objects: on(refused("a", time.Hour, replicaSet, build.Bound("p", ""), build.With(func(p *corev1.Pod) { p.OwnerReferences = nil })))},
		"nor one of a DaemonSet beside a Service": {objects: append(on(refused("a", time.Hour, build.DaemonSet("agent"))), build.DaemonSet("agent", build.Bound("p", "")))},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, tc.objects...)
			s.Evictor.Pace = eviction.NewPace(rate.Every(time.Hour), 0) // pods without a node take no token
			result, err := s.pass()
			if err != nil || result.RequeueAfter != tc.requeue {
				t.Errorf("comes back after %s, want %s (error %v)", result.RequeueAfter, tc.requeue, err)
			}
			if diff := cmp.Diff(tc.evicted, s.Evicted); diff != "" {
				t.Errorf("wrong evictions (-want +got):\n%s", diff)
			}
			if len(s.events.Events) != len(tc.evicted) {
				t.Errorf("%d events for %d evictions", len(s.events.Events), len(tc.evicted))
			}
		})
	}
}

func claim() build.Option {
	return build.With(func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
	})
}

// TestPendingPodsAreNotRecreatedEndlessly: fifty pods wait for an hour, and so do their successors,
// with a group or, if the webhook is not called, without one.
func TestPendingPodsAreNotRecreatedEndlessly(t *testing.T) {
	for name, withGroup := range map[string]bool{"with their group": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			deployment := build.Deployment("web", build.Bound("p", ""), build.Replicas(50))
			replicaSet := build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(50))
			s := newFixture(t, append(base(), deployment, replicaSet)...)
			full := func(group string) {
				s.World.Ledger.ObserveNode(seats.SlimNode(build.Node("node-"+group, build.InGroup(group), build.With(func(n *corev1.Node) {
					n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("0")
				}))))
			}
			full("hz")
			full("bj")
			waiting := map[string]*corev1.Pod{}
			n, discards := 0, 0
			create := func(options ...build.Option) {
				n++
				name := fmt.Sprint("web-1-", n)
				now := s.World.Clock.Now()
				pod := refused(name, 0, replicaSet, append([]build.Option{build.Created(now)}, options...)...)
				pod.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now)
				waiting[name] = pod
				s.World.See(pod)
			}
			for range 50 {
				create()
			}
			for range 720 { // an hour
				s.World.Clock.Step(5 * time.Second)
				if _, err := s.pass(); err != nil {
					t.Fatal(err)
				}
				for _, name := range s.Evicted {
					discards++
					s.World.Ledger.Forget(waiting[name].UID)
					delete(waiting, name)
					if withGroup {
						create(build.Seated([]string{"hz", "bj"}[n%2]))
					} else {
						create()
					}
				}
				for len(s.events.Events) > 0 {
					<-s.events.Events
				}
			}
			most := 50
			if !withGroup {
				most = 13 * 50 // once in five minutes
			}
			if discards < 50 || discards > most {
				t.Errorf("fifty pods were recreated %d times in an hour, want 50 to %d", discards, most)
			}
		})
	}
}

// TestOwnerAtItsQuotaLosesOneWaitingPodAtMost: if a quota has no room for
// successors, only one waiting pod is lost.
func TestOwnerAtItsQuotaLosesOneWaitingPodAtMost(t *testing.T) {
	const quota = `pods "web-1-" is forbidden: exceeded quota: few`
	for name, waits := range map[string]func(name string, owner build.Object) *corev1.Pod{
		"pods without a group": func(name string, owner build.Object) *corev1.Pod { return refused(name, time.Hour, owner) },
		"pods of a full group": func(name string, owner build.Object) *corev1.Pod { return stuck(name, "hz", time.Hour, owner) },
	} {
		t.Run(name, func(t *testing.T) {
			deployment := build.Deployment("web", build.Bound("p", ""), build.Replicas(20))
			replicaSet := build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(20))
			objects := append(base(), deployment, replicaSet)
			for i := range 20 {
				objects = append(objects, waits(fmt.Sprint("web-1-", i), replicaSet))
			}
			s := newFixture(t, objects...)
			pass := func() []string {
				t.Helper()
				if _, err := s.pass(); err != nil {
					t.Fatal(err)
				}
				for _, gone := range s.Evicted {
					s.World.Ledger.Forget(types.UID(gone))
				}
				return s.Evicted
			}
			if first := pass(); len(first) != 1 {
				t.Fatalf("%v are recreated before their owner is known to be able to create pods, want one", first)
			}
			s.World.Walker.Put(build.Owner(build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(20), build.With(func(rs *appsv1.ReplicaSet) {
				rs.Status.Conditions = []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Message: quota}}
			}))))
			for range 20 {
				s.World.Clock.Step(time.Minute)
				if more := pass(); len(more) > 0 {
					t.Fatalf("%v are recreated though their owner cannot create pods", more)
				}
			}
			if s.reason() != gm.ReasonPodsRefused || !strings.Contains(s.message(), quota) {
				t.Errorf("the condition is %s: %s", s.reason(), s.message())
			}
			s.World.Walker.Put(build.Owner(build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(20))))
			s.World.See(build.Pod("web-1-20", build.OwnedBy(replicaSet), build.Seated("hz"), build.Created(s.World.Clock.Now()), build.On("node-hz")))
			if more := pass(); len(more) != 3 {
				t.Errorf("a successor came, and %v are recreated, want 3", more)
			}
		})
	}
}

// TestPodsGoOnLoanOnlyWhereThereIsRoom, and at most lendWidth at a time.
func TestPodsGoOnLoanOnlyWhereThereIsRoom(t *testing.T) {
	deployment := build.Deployment("web", build.Bound("p", ""), build.Replicas(20))
	replicaSet := build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(20))
	closed := func(group string) *corev1.Node {
		return build.Node("node-"+group, build.InGroup(group), build.With(func(n *corev1.Node) { n.Spec.Unschedulable = true }))
	}
	objects := append(base(), deployment, replicaSet)
	for i := range 20 {
		objects = append(objects, stuck(fmt.Sprint("web-1-", i), "hz", time.Hour, replicaSet))
	}
	s := newFixture(t, objects...)
	s.World.Ledger.ObserveNode(seats.SlimNode(closed("hz")))
	s.World.Ledger.ObserveNode(seats.SlimNode(closed("bj")))
	result, err := s.pass()
	if len(s.Evicted) > 0 || result.RequeueAfter != retryFeasible || err != nil {
		t.Errorf("no group has room: %v are recreated; comes back after %s (error %v)", s.Evicted, result.RequeueAfter, err)
	}
	s.World.Ledger.ObserveNode(seats.SlimNode(build.Node("node-bj", build.InGroup("bj"))))
	for pass, want := range []int{1, 3, lendWidth, lendWidth} { // one first: its owner may not be able to create the next
		if _, err := s.pass(); len(s.Evicted) != want || err != nil {
			t.Errorf("pass %d: %v are recreated, want %d (error %v)", pass, s.Evicted, want, err)
		}
		for i, gone := range s.Evicted {
			s.World.Ledger.Forget(types.UID(gone))
			s.World.See(build.Pod(fmt.Sprintf("web-1-%d-%d", pass, i), build.OwnedBy(replicaSet), build.Created(s.World.Clock.Now()), build.On("node-bj")))
		}
	}
	s.World.See(build.Pod("web-1-20", build.OwnedBy(replicaSet), build.Seated("bj"), build.Created(s.World.Clock.Now())))
	if _, err := s.pass(); len(s.Evicted) != 0 || err != nil {
		t.Errorf("one is on its way there, and %v are recreated (error %v)", s.Evicted, err)
	}
}

// TestPodsOfAnOrderedStatefulSetGoOnLoan: it creates no further pod until those that it has are
// Ready. A ReplicaSet that has fewer pods than it wants cannot create them.
func TestPodsOfAnOrderedStatefulSetGoOnLoan(t *testing.T) {
	deployment := build.Deployment("web", build.Bound("p", ""), build.Replicas(3))
	replicaSet := build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(3))
	set := build.StatefulSet("set", build.Bound("p", ""), build.Replicas(3))
	objects := append(base(), deployment, replicaSet, set)
	for name, owner := range map[string]build.Object{"web-1": replicaSet, "set": set} {
		objects = append(objects, runningPod(name+"-0", "bj", 0, build.OwnedBy(owner)), stuck(name+"-1", "hz", time.Hour, owner))
	}
	s := newFixture(t, objects...)
	if _, err := s.pass(); err != nil || !slices.Equal(s.Evicted, []string{"set-1"}) {
		t.Errorf("%v are recreated, want set-1 (error %v)", s.Evicted, err)
	}
}

// TestStalledRolloutIsBalancedAfterAWait: a rollout is balanced once no pod has come or gone
// for the stabilization time, and not before.
func TestStalledRolloutIsBalancedAfterAWait(t *testing.T) {
	deployment := build.Deployment("web", build.Bound("p", ""), build.Replicas(5))
	first := build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(3))
	second := build.ReplicaSet("web-2", build.OwnedBy(deployment), build.Replicas(2))
	revision := func(hash string) build.Option { return build.Label("pod-template-hash", hash) }
	objects := append(base(), deployment, first, second)
	for i := range 3 {
		objects = append(objects, runningPod(fmt.Sprint("web-1-", i), "bj", i, build.OwnedBy(first), revision("1")))
	}
	for i := range 2 {
		objects = append(objects, runningPod(fmt.Sprint("web-2-", i), []string{"hz", "bj"}[i], i, build.OwnedBy(second), revision("2")))
	}
	s := newFixture(t, objects...)
	s.Settle(t)
	result, err := s.pass()
	if len(s.Evicted) > 0 || result.RequeueAfter != gm.DefaultStabilization || err != nil || s.reason() != gm.ReasonConverging {
		t.Fatalf("at first sight %v are evicted; comes back after %s, reason %s (error %v)", s.Evicted, result.RequeueAfter, s.reason(), err)
	}
	s.World.Clock.Step(gm.DefaultStabilization)
	if _, err := s.pass(); len(s.Evicted) != 1 || s.Evicted[0] != "web-1-2" || err != nil {
		t.Fatalf("evicted %v, want web-1-2 (error %v)", s.Evicted, err)
	}
	// Its successor finds no room in hz.
	s.World.Ledger.Forget("web-1-2")
	again := func() {
		t.Helper()
		s.World.Clock.Step(gm.DefaultStabilization)
		if _, err := s.pass(); len(s.Evicted) != 0 || err != nil {
			t.Fatalf("evicted %v (error %v)", s.Evicted, err)
		}
	}
	again() // a pod is missing: the rollout moves
	s.World.See(runningPod("web-1-3", "bj", 3, build.OwnedBy(first), revision("1")))
	again() // one has come
	again() // it came to the group of the evicted pod, so no other pod is moved there
	again()
	if s.reason() != gm.ReasonNoFeasibleTarget {
		t.Errorf("reason is %s", s.reason())
	}
}

// TestAPartialRolloutOfAStatefulSetIsBalanced: the pods of both revisions have the same
// owner, and their sum is what it wants.
func TestAPartialRolloutOfAStatefulSetIsBalanced(t *testing.T) {
	db := build.StatefulSet("db", build.Bound("p", ""), build.Replicas(4))
	objects := append(base(), db)
	for i, at := range []string{"bj", "bj", "bj", "hz"} {
		hash := build.Label("controller-revision-hash", fmt.Sprint(i/3))
		objects = append(objects, runningPod(fmt.Sprint("db-", i), at, i, build.OwnedBy(db), hash))
	}
	s := newFixture(t, objects...)
	s.Settle(t)
	if _, err := s.pass(); len(s.Evicted) != 0 || err != nil {
		t.Fatalf("evicted %v at first sight (error %v)", s.Evicted, err)
	}
	s.World.Clock.Step(gm.DefaultStabilization)
	if _, err := s.pass(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"db-2"}, s.Evicted); diff != "" {
		t.Errorf("wrong evictions (-want +got):\n%s", diff)
	}
	if got := s.policy().Status.Apps[0].Groups; got[0].Desired+got[1].Desired != 4 {
		t.Errorf("of four pods %d and %d are desired", got[0].Desired, got[1].Desired)
	}
}

// TestStatusNamesWhyPodsStayAtTheGate: the status says why pods stay at the gate, and not that
// they wait for a node.
func TestStatusNamesWhyPodsStayAtTheGate(t *testing.T) {
	deployment := build.Deployment("web", build.Bound("p", ""))
	overridden := build.Deployment("web", build.Bound("p", ""), build.Label(gm.RequiredOverridePolicyLabel, "o"))
	tests := map[string]struct {
		owner build.Object
		held  string
		gated build.Option
		want  string
	}{
		"a refusal":                     {deployment, "no change of pods here", build.Gated(), "refuses the change that would take the gate off: no change of pods here"},
		"an OverridePolicy":             {overridden, "", build.Gated(), `OverridePolicy "o" is not bound to their workload`},
		"nothing keeps a pod elsewhere": {overridden, "no", build.With(func(*corev1.Pod) {}), "pods wait for a node: NodeGroup"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			replicaSet := build.ReplicaSet("web-1", build.OwnedBy(tc.owner))
			s := newFixture(t, append(base(), tc.owner, replicaSet, build.Pod("a", build.OwnedBy(replicaSet), tc.gated))...)
			s.World.Policies.SetHeld("web-1", tc.held)
			if _, err := s.pass(); err != nil {
				t.Fatal(err)
			}
			if s.reason() != gm.ReasonPodsWaiting || !strings.Contains(s.message(), tc.want) {
				t.Errorf("the condition is %s: %s", s.reason(), s.message())
			}
		})
	}
}
