package top

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

func TestOf(t *testing.T) {
	requests := func(cpu string) build.Option {
		return build.With(func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}
		})
	}
	done := build.With(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	o := &Observed{}
	o.Groups.Items = []gm.NodeGroup{*build.NodeGroup("b"), *build.NodeGroup("a")}
	o.Nodes.Items = []corev1.Node{
		*build.Node("a1", build.InGroup("a")),
		*build.Node("a2", build.InGroup("a"), build.With(func(n *corev1.Node) { n.Spec.Unschedulable = true })),
		*build.Node("other"),
	}
	o.Pods.Items = []corev1.Pod{
		*build.Pod("p1", build.On("a1"), requests("1500m")), *build.Pod("p2", build.On("a2"), requests("2500m")),
		*build.Pod("done", build.On("a1"), requests("4"), done), *build.Pod("elsewhere", build.On("other"), requests("4")), *build.Pod("waits", requests("4")),
	}
	policy := build.PropagationPolicy("p")
	policy.Status.Apps = []gm.WorkloadSpread{
		{Groups: []gm.GroupSpread{{Name: "a", Desired: 3, Current: 2, Ready: 1}, {Name: "gone", Desired: 9}}},
		{Groups: []gm.GroupSpread{{Name: "a", Desired: 1, Current: 1, Ready: 1}}},
	}
	o.Propagations.Items = []gm.PropagationPolicy{*policy}
	top := Of(o)
	got, err := json.Marshal(top)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"groups":[{"name":"a","nodes":2,"nodesReady":1,"wanted":4,"pods":3,"ready":2,` +
		`"cpu":{"requests":"4","allocatable":"16"},"memory":{"requests":"0","allocatable":"64Gi"}},` +
		`{"name":"b","nodes":0,"nodesReady":0,"wanted":0,"pods":0,"ready":0,"cpu":{"requests":"0","allocatable":"0"},"memory":{"requests":"0","allocatable":"0"}}]}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if a, b := top.Groups[0].CPU.Percent(), top.Groups[1].CPU.Percent(); a != 25 || b != 0 {
		t.Errorf("%d %% and %d %%, want 25 and 0", a, b)
	}
}
