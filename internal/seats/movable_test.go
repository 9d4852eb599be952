package seats

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	testingclock "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

func pod(change func(*corev1.Pod)) build.Option { return build.With(change) }

func requests(amounts map[corev1.ResourceName]string) corev1.ResourceRequirements {
	out := corev1.ResourceRequirements{Requests: corev1.ResourceList{}}
	for name, amount := range amounts {
		out.Requests[name] = resource.MustParse(amount)
	}
	return out
}

// needs adds a container with requests.
func needs(amounts map[corev1.ResourceName]string) build.Option {
	return pod(func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "c", Resources: requests(amounts)})
	})
}

func needsFirst(restart *corev1.ContainerRestartPolicy, amounts map[corev1.ResourceName]string) build.Option {
	return pod(func(p *corev1.Pod) {
		p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: "i", RestartPolicy: restart, Resources: requests(amounts)})
	})
}

func taint(effect corev1.TaintEffect) build.Option {
	return build.With(func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "site", Value: "closed", Effect: effect})
	})
}

func has(name corev1.ResourceName, amount string) build.Option {
	return build.With(func(n *corev1.Node) { n.Status.Allocatable[name] = resource.MustParse(amount) })
}

func demands(r ...corev1.NodeSelectorRequirement) build.Option {
	return pod(func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: r}},
		}}}
	})
}

func listens(ip string, port int32) build.Option {
	return pod(func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "p", Ports: []corev1.ContainerPort{
			{ContainerPort: port, HostPort: port, HostIP: ip, Protocol: corev1.ProtocolTCP},
		}})
	})
}

func pinnedTo(group string) build.Option {
	return func(o build.Object) {
		build.Seated(group)(o)
		placement.Pin(&o.(*corev1.Pod).Spec, gm.NodeGroupLabel, group)
	}
}

// TestAPodCanBeTakenWhereKubeSchedulerWouldPlaceItsSuccessor: the pod runs in group a.
// Group b has one node, with 8 CPUs and 32Gi.
func TestAPodCanBeTakenWhereKubeSchedulerWouldPlaceItsSuccessor(t *testing.T) {
	type cpu = map[corev1.ResourceName]string
	sidecar := new(corev1.ContainerRestartPolicyAlways)
	tests := map[string]struct {
		node   []build.Option
		others [][]build.Option // pods on the node of b
		pod    []build.Option
		want   bool
	}{
		"nothing is in the way":                   {want: true},
		"a taint NoSchedule":                      {node: []build.Option{taint(corev1.TaintEffectNoSchedule)}},
		"a taint NoExecute":                       {node: []build.Option{taint(corev1.TaintEffectNoExecute)}},
		"a taint PreferNoSchedule closes no node": {node: []build.Option{taint(corev1.TaintEffectPreferNoSchedule)}, want: true},
		"a taint that the pod tolerates": {node: []build.Option{taint(corev1.TaintEffectNoSchedule)}, pod: []build.Option{pod(func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Key: "site", Operator: corev1.TolerationOpExists}}
		})}, want: true},
		"a node selector that no node matches":       {pod: []build.Option{pod(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} })}},
		"a node selector that the node matches":      {node: []build.Option{build.Label("disk", "ssd")}, pod: []build.Option{pod(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} })}, want: true},
		"a node affinity that no node matches":       {pod: []build.Option{demands(corev1.NodeSelectorRequirement{Key: "disk", Operator: corev1.NodeSelectorOpExists})}},
		"pinned to its group by us: the next is not": {pod: []build.Option{pinnedTo("a")}, want: true},
		"pinned by us, and a demand of its own": {
			pod: []build.Option{demands(corev1.NodeSelectorRequirement{Key: "disk", Operator: corev1.NodeSelectorOpExists}), pinnedTo("a")},
		},
		"init containers count by their maximum": {
			pod:  []build.Option{needsFirst(nil, cpu{"cpu": "5"}), needsFirst(nil, cpu{"cpu": "5"}), needs(cpu{"cpu": "5"})},
			want: true,
		},
		"an init container that needs more than there is": {pod: []build.Option{needsFirst(nil, cpu{"cpu": "9"}), needs(cpu{"cpu": "1"})}},
		"a sidecar runs beside the containers":            {pod: []build.Option{needsFirst(sidecar, cpu{"cpu": "5"}), needs(cpu{"cpu": "5"})}},
		"overhead of the runtime class": {
			pod: []build.Option{needs(cpu{"cpu": "8"}), pod(func(p *corev1.Pod) { p.Spec.Overhead = corev1.ResourceList{"cpu": resource.MustParse("100m")} })},
		},
		"requests of the pod as a whole": {
			pod: []build.Option{needs(cpu{"cpu": "1"}), pod(func(p *corev1.Pod) { p.Spec.Resources = new(requests(cpu{"cpu": "9"})) })},
		},
		"a resource that the node does not have": {pod: []build.Option{needs(cpu{"example.com/gpu": "1"})}},
		"a resource that the node has":           {node: []build.Option{has("example.com/gpu", "1")}, pod: []build.Option{needs(cpu{"example.com/gpu": "1"})}, want: true},
		"a resource that another pod holds": {
			node:   []build.Option{has("example.com/gpu", "1")},
			others: [][]build.Option{{needs(cpu{"example.com/gpu": "1"})}}, pod: []build.Option{needs(cpu{"example.com/gpu": "1"})},
		},
		"none of a resource is on every node": {pod: []build.Option{needs(cpu{"example.com/mark": "0"})}, want: true},
		"ephemeral storage":                   {node: []build.Option{has("ephemeral-storage", "1Gi")}, pod: []build.Option{needs(cpu{"ephemeral-storage": "2Gi"})}},
		"a pod that terminates holds its room until it is gone": {
			others: [][]build.Option{{needs(cpu{"cpu": "8"}), build.Deleting("x")}}, pod: []build.Option{needs(cpu{"cpu": "1"})},
		},
		"a pod that has finished holds none": {
			others: [][]build.Option{{needs(cpu{"cpu": "8"}), pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })}}, pod: []build.Option{needs(cpu{"cpu": "1"})},
			want: true,
		},
		"a node that is full takes a pod that asks for nothing": {others: [][]build.Option{{needs(cpu{"cpu": "9"})}}, want: true},
		"as many pods as the node may have":                     {node: []build.Option{has("pods", "1")}, others: [][]build.Option{{}}},
		"a host port that is taken":                             {others: [][]build.Option{{listens("", 80)}}, pod: []build.Option{listens("10.0.0.1", 80)}},
		"a host port that is taken at another address":          {others: [][]build.Option{{listens("10.0.0.2", 80)}}, pod: []build.Option{listens("10.0.0.1", 80)}, want: true},
		"another host port":                                     {others: [][]build.Option{{listens("", 81)}}, pod: []build.Option{listens("", 80)}, want: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l := NewLedger(testingclock.NewFakeClock(time.Unix(1_000_000, 0)))
			l.ObserveNode(SlimNode(build.Node("node-a", build.InGroup("a"))))
			l.ObserveNode(SlimNode(build.Node("node-b", append(tc.node, build.InGroup("b"))...)))
			rs := build.ReplicaSet("rs")
			for i, options := range tc.others {
				l.Observe(Slim(build.Pod(string(rune('0'+i)), append(options, build.On("node-b"))...)))
			}
			l.Observe(Slim(build.Pod("moves", append(tc.pod, build.OwnedBy(rs), build.On("node-a"))...)))
			if got := canTake(l, "b", l.Pod("moves")); got != tc.want {
				t.Errorf("group b can take the pod: %t, want %t", got, tc.want)
			}
		})
	}
}

func canTake(l *Ledger, group string, pod *Pod) bool {
	can, _ := l.CanTake(group, pod)
	return can
}

// TestLedgerDropsRemovedNodesAndGroups: nodes and groups are added and removed for years, and must
// not stay in memory.
func TestLedgerDropsRemovedNodesAndGroups(t *testing.T) {
	clock := testingclock.NewFakeClock(time.Unix(1_000_000, 0))
	l := NewLedger(clock)
	for _, name := range []string{"n1", "n2"} {
		l.ObserveNode(SlimNode(build.Node(name, build.InGroup("g-"+name))))
		l.Observe(Slim(build.Pod("on-"+name, build.On(name))))
	}
	l.ForgetNode("n1")
	l.Forget("on-n1")
	l.Forget("on-n2")
	l.ForgetNode("n2")
	l.Observe(Slim(build.Pod("unknown", build.On("n3"))))
	l.Observe(Slim(build.Pod("unknown", build.On("n3"), build.Deleting("x"))))
	l.Forget("unknown")
	if n := len(l.nodes.byName); n != 0 {
		t.Errorf("%d deleted nodes are stored", n)
	}
	clock.Step(time.Hour + time.Second)
	l.Lapse()
	if n := len(l.nodes.moved); n != 0 {
		t.Errorf("the last change of %d groups is stored after more than an hour", n)
	}
}

// TestSumsEqualARecountOfAllPods: after any events, the sums of owners and nodes equal those
// computed from all pods.
func TestSumsEqualARecountOfAllPods(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clock := testingclock.NewFakeClock(time.Unix(1_000_000, 0))
		l := NewLedger(clock)
		uid := rapid.SampledFrom([]types.UID{"p0", "p1", "p2", "p3"})
		node := rapid.SampledFrom([]string{"", "n0", "n1"})
		t.Repeat(map[string]func(*rapid.T){
			"observe": func(t *rapid.T) {
				p := podIn(string(uid.Draw(t, "pod")), node.Draw(t, "node"))
				p.Controller = &ownership.Reference{UID: rapid.SampledFrom([]types.UID{"rs", "other"}).Draw(t, "owner")}
				p.Ready = rapid.Bool().Draw(t, "ready")
				p.Finished = rapid.Bool().Draw(t, "finished")
				p.Active = !p.Finished && rapid.Bool().Draw(t, "active")
				p.Demand = needing(rapid.Int64Range(0, 2).Draw(t, "cpu"))
				p.Demand.Ports = []fit.Port{{Protocol: "TCP", Number: rapid.Int32Range(1, 2).Draw(t, "port")}}
				p.Containers = []Container{{Name: "c", Restarting: rapid.Bool().Draw(t, "restarting")}}
				l.Observe(p)
			},
			"forget":  func(t *rapid.T) { l.Forget(uid.Draw(t, "pod")) },
			"disrupt": func(t *rapid.T) { l.Disrupt(uid.Draw(t, "pod"), []types.UID{"rs", "other"}, 4, 4) },
			"allow":   func(t *rapid.T) { l.Undisrupt(uid.Draw(t, "pod")) },
			"time": func(t *rapid.T) {
				clock.Step(rapid.SampledFrom([]time.Duration{time.Second, disruptionTTL}).Draw(t, "step"))
			},
			"node": func(t *rapid.T) {
				l.ObserveNode(openNode(node.Filter(func(n string) bool { return n != "" }).Draw(t, "node"), "a"))
			},
			"node is gone": func(t *rapid.T) { l.ForgetNode(node.Draw(t, "node")) },
			"": func(t *rapid.T) {
				l.Lapse()
				available, used, bound := map[types.UID]int{}, map[string]*fit.Use{}, map[string]int{}
				for _, s := range l.cohorts.byPod {
					p := s.pod
					if until, ok := l.disruptions.until[s.uid]; p.Available() && (!ok || clock.Now().After(until)) {
						available[p.Owner()]++
					}
					if p.Node == "" {
						continue
					}
					bound[p.Node]++
					if n := l.nodes.byName[p.Node]; n == nil || n.pods[s.uid] != p {
						t.Fatalf("node %s does not have the last state of pod %s", p.Node, s.uid)
					}
					if used[p.Node] == nil {
						used[p.Node] = &fit.Use{}
					}
					if !p.Finished {
						used[p.Node].Add(p.Demand)
					}
				}
				if !maps.Equal(available, l.disruptions.available) {
					t.Fatalf("owners have %v available pods, counted %v", available, l.disruptions.available)
				}
				for name, n := range l.nodes.byName {
					if len(n.pods) != bound[name] || !n.exists && len(n.pods) == 0 {
						t.Fatalf("node %s has %d pods, counted %d, exists %t", name, bound[name], len(n.pods), n.exists)
					}
					want := used[name]
					if want == nil {
						want = &fit.Use{}
					}
					if !want.Equal(&n.used) {
						t.Fatalf("node %s holds %v, counted %v", name, want, n.used)
					}
				}
			},
		})
	})
}

// TestRoomFoundForOnePodIsNotFoundAgain: pods that are recreated together do not count
// on the same room.
func TestRoomFoundForOnePodIsNotFoundAgain(t *testing.T) {
	l, _ := newTestLedger("a", "b")
	for i := range 3 {
		p := podIn(fmt.Sprint("p", i), "node-a")
		p.Demand = needing(400)
		l.Observe(p)
	}
	places := l.Places()
	var got []fit.Reason
	for i := range 3 {
		_, why := places.Take("b", l.Pod(types.UID(fmt.Sprint("p", i))), nil)
		got = append(got, why)
	}
	if diff := cmp.Diff([]fit.Reason{fit.Fits, fit.Fits, fit.NoRoom}, got); diff != "" {
		t.Errorf("a CPU has room for two pods of 400m (-want +got):\n%s", diff)
	}
}

// TestCanReturn: the successor of a pod can use at least the room that the pod uses now.
func TestCanReturn(t *testing.T) {
	big := needs(map[corev1.ResourceName]string{"cpu": "8"})
	volume := pod(func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	})
	cordoned := build.With(func(n *corev1.Node) { n.Spec.Unschedulable = true })
	tests := map[string]struct {
		node, pod, beside []build.Option // beside is the other node of the group; nil means there is none
		why               fit.Reason
	}{
		"it takes all of the node, and a port": {pod: []build.Option{big, listens("", 80)}},
		"the node was cordoned":                {node: []build.Option{cordoned}, why: fit.NoOpenNode},
		"and another of the group has room":    {node: []build.Option{cordoned}, pod: []build.Option{big}, beside: []build.Option{}},
		"but does not reach its volume":        {node: []build.Option{cordoned}, pod: []build.Option{volume}, beside: []build.Option{}, why: fit.NoOpenNode},
		"and another was cordoned too":         {node: []build.Option{cordoned}, beside: []build.Option{cordoned}, why: fit.NoOpenNode},
		"and another is closed to it":          {node: []build.Option{cordoned}, beside: []build.Option{taint(corev1.TaintEffectNoSchedule)}, why: fit.Tainted},
		"its volume is where it runs":          {pod: []build.Option{volume}},
		"the node got a taint":                 {node: []build.Option{taint(corev1.TaintEffectNoSchedule)}, why: fit.Tainted},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l := NewLedger(testingclock.NewFakeClock(time.Unix(1_000_000, 0)))
			l.ObserveNode(SlimNode(build.Node("n", append(tc.node, build.InGroup("a"))...)))
			if tc.beside != nil {
				l.ObserveNode(SlimNode(build.Node("beside", append(tc.beside, build.InGroup("a"))...)))
			}
			l.Observe(Slim(build.Pod("p", append(tc.pod, build.On("n"))...)))
			if can, why := l.CanReturn(l.Pod("p")); can != (tc.why == fit.Fits) || why != tc.why {
				t.Errorf("can return: %t, %q; want %q", can, why, tc.why)
			}
		})
	}
}

// TestAPodThatNamesANodeGoesToNoOther: only the pods of a DaemonSet name a node that their
// successors do not name.
func TestAPodThatNamesANodeGoesToNoOther(t *testing.T) {
	l, _ := newTestLedger("a", "b")
	replicaSet := build.ReplicaSet("web")
	running := Slim(build.Pod("p", build.OwnedBy(replicaSet), build.ForNode("node-a"), build.On("node-a")))
	if can, _ := l.CanTake("b", running); can {
		t.Error("group b can take a ReplicaSet's pod that demands node-a")
	}
	if can, why := l.CanTake("a", Slim(build.Pod("q", build.OwnedBy(replicaSet), build.ForNode("node-a")))); !can {
		t.Errorf("group a cannot: %v", why)
	}
}

// TestOneOpenNodeAmongMany: the only open node is found, in any order of the nodes.
func TestOneOpenNodeAmongMany(t *testing.T) {
	l, _ := newTestLedger("a", "b")
	for i := range 50 {
		closed := openNode(fmt.Sprint("closed", i), "b")
		closed.Open = false
		l.ObserveNode(closed)
	}
	for range 20 {
		if can, why := l.CanTake("b", podIn("p", "node-a")); !can {
			t.Fatalf("an open node is not found: %s", why)
		}
	}
}

// TestUnreachableVolumesAffectOnePodOnly: the next pod has an equal demand but other
// volumes.
func TestUnreachableVolumesAffectOnePodOnly(t *testing.T) {
	l, _ := newTestLedger("a", "b")
	elsewhere, err := nodeaffinity.NewNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpExists}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	places, p := l.Places(), podIn("p", "node-a")
	if _, why := places.Take("b", p, []*nodeaffinity.NodeSelector{elsewhere}); why != fit.OutOfReach {
		t.Errorf("a pod whose volume is in no zone of group b gets %q", why)
	}
	if can, why := places.Take("b", p, nil); !can {
		t.Errorf("a pod without volumes finds no node there: %s", why)
	}
}

// TestTheRoomOfAPodThatFinishesIsFree: a finished pod uses nothing, although it still exists.
func TestTheRoomOfAPodThatFinishesIsFree(t *testing.T) {
	l, _ := newTestLedger("a", "b")
	runs := podIn("job", "node-b")
	runs.Demand = needing(900)
	l.Observe(runs)
	next := podIn("next", "node-a")
	next.Demand = needing(200)
	if canTake(l, "b", next) {
		t.Error("200m fit although 900m of 1000m are used")
	}
	finished := *runs
	finished.Active, finished.Finished = false, true
	l.Observe(&finished)
	if !canTake(l, "b", next) {
		t.Error("a finished pod uses its room")
	}
}

// TestPodsAreNotMovedBesidePodsOfTheirWorkload: with required anti-affinity or topology spread, a
// pod leaves only for a node where the rules let its successor run.
func TestPodsAreNotMovedBesidePodsOfTheirWorkload(t *testing.T) {
	named := func(name, group string) Node {
		n := openNode(name, group)
		n.Offer.Labels = map[string]string{"kubernetes.io/hostname": name, "zone": "z-" + group}
		return n
	}
	type pod struct{ name, node string }
	for name, tc := range map[string]struct {
		rule    fit.Apart
		others  []pod
		further string // a further node of group b
		want    []fit.Reason
	}{
		"each node of the group has one":             {fit.Apart{Key: "kubernetes.io/hostname"}, []pod{{"q", "b-0"}}, "", []fit.Reason{fit.TooClose}},
		"one node of the group has none, for one":    {fit.Apart{Key: "kubernetes.io/hostname"}, []pod{{"q", "b-0"}}, "b-1", []fit.Reason{fit.Fits, fit.TooClose}},
		"the zone has one":                           {fit.Apart{Key: "zone"}, []pod{{"q", "b-0"}}, "b-1", []fit.Reason{fit.TooClose}},
		"spread over all nodes":                      {fit.Apart{Key: "kubernetes.io/hostname", Skew: 1, Everywhere: true}, []pod{{"q", "b-0"}, {"r", "a-1"}}, "", []fit.Reason{fit.TooClose}},
		"spread over the nodes of its own group":     {fit.Apart{Key: "kubernetes.io/hostname", Skew: 1}, []pod{{"q", "b-0"}}, "", []fit.Reason{fit.Fits}},
		"it leaves the domain to which it would go ": {fit.Apart{Key: "other"}, []pod{{"q", "b-0"}}, "", []fit.Reason{fit.Fits}},
	} {
		t.Run(name, func(t *testing.T) {
			l := NewLedger(testingclock.NewFakeClock(time.Unix(1_000_000, 0)))
			for _, n := range []Node{named("a-0", "a"), named("a-1", "a"), named("b-0", "b")} {
				l.ObserveNode(n)
			}
			if tc.further != "" {
				l.ObserveNode(named(tc.further, "b"))
			}
			demand := &fit.Demand{Requests: nothing.Requests, Apart: []fit.Apart{tc.rule}}
			for i, other := range tc.others {
				p := pinned(other.name, "t-"+other.name, other.node[:1], other.node)
				p.Demand = demand
				if i == 0 {
					p.Controller = &ownership.Reference{UID: "old"} // of another revision
				}
				l.Observe(p)
			}
			places := l.Places("old", "rs")
			for i, want := range tc.want {
				p := pinned(fmt.Sprint("p", i), fmt.Sprint("t", i), "a", "a-0")
				p.Demand = demand
				l.Observe(p)
				if _, why := places.Take("b", p, nil); why != want {
					t.Errorf("pod %d: %q, want %q", i, why, want)
				}
			}
		})
	}
}
