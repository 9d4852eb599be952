package seats

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	testingclock "k8s.io/utils/clock/testing"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
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

// TestAPodCanBeTakenWhereKubeSchedulerWouldPlaceItsSuccessor: the pod runs in
// group a, and group b has one node, of 8 CPUs and 32Gi.
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

// TestALedgerForgetsWhatIsGone: nodes and groups come and go for years.
func TestALedgerForgetsWhatIsGone(t *testing.T) {
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
	if n := len(l.nodes); n != 0 {
		t.Errorf("%d nodes are kept that are gone", n)
	}
	clock.Step(time.Hour + time.Second)
	l.Lapse()
	if n := len(l.moved); n != 0 {
		t.Errorf("of %d groups is kept when they changed, an hour later", n)
	}
}
