package fit

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"pgregory.net/rapid"
)

func in(key string, values ...string) []corev1.NodeSelectorTerm {
	return []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}}}}
}

func TestDemandOf(t *testing.T) {
	always, seconds := corev1.ContainerRestartPolicyAlways, int64(300)
	cpu := func(amount string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}}
	}
	affinity := &corev1.NodeSelector{NodeSelectorTerms: in("disk", "ssd")}
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		NodeSelector: map[string]string{"arch": "arm64"},
		Tolerations:  []corev1.Toleration{{Key: "site", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds}},
		InitContainers: []corev1.Container{
			{Name: "sidecar", RestartPolicy: &always, Resources: cpu("100m"), Ports: []corev1.ContainerPort{{HostPort: 9100}}},
			{Name: "setup", Resources: cpu("2"), Ports: []corev1.ContainerPort{{HostPort: 9999}}},
		},
		Containers: []corev1.Container{{Name: "c", Resources: cpu("500m"), Ports: []corev1.ContainerPort{
			{ContainerPort: 80}, {ContainerPort: 53, HostPort: 53, HostIP: "0.0.0.0", Protocol: corev1.ProtocolUDP},
		}}},
		Overhead: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Mi")},
		Volumes:  []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}},
	}}
	want := &Demand{
		Requests:     Amounts{{"cpu", 2100}, {"memory", 1 << 20}, {"pods", 1}},
		Ports:        []Port{{Protocol: "TCP", Number: 9100}, {Protocol: "UDP", Number: 53}},
		NodeSelector: pod.Spec.NodeSelector, Affinity: affinity, Claims: true,
		Tolerations: []corev1.Toleration{{Key: "site", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}},
	}
	got := DemandOf(pod, affinity)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("wrong demand (-want +got):\n%s", diff)
	}
	if pod.Spec.Tolerations[0].TolerationSeconds == nil {
		t.Error("the pod was changed")
	}
	pod.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
	if DemandOf(pod, affinity).Claims {
		t.Error("a claim that goes with the pod ties its successor to nothing")
	}
}

// TestTheReasonIsThatOfTheFirstCheckThatFails: each case mends what the one
// before it failed for.
func TestTheReasonIsThatOfTheFirstCheckThatFails(t *testing.T) {
	volume, err := nodeaffinity.NewNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: in("zone", "z1")})
	if err != nil {
		t.Fatal(err)
	}
	d := &Demand{
		Requests: Amounts{{"cpu", 100}, {"pods", 1}}, Ports: []Port{{Protocol: "TCP", Number: 80}},
		NodeSelector: map[string]string{"arch": "arm64"}, Affinity: &corev1.NodeSelector{NodeSelectorTerms: in("disk", "ssd")},
	}
	n := &Node{Name: "n", Taints: []corev1.Taint{{Key: "site", Effect: corev1.TaintEffectNoExecute}, {Key: "busy", Effect: corev1.TaintEffectPreferNoSchedule}}}
	used := &Use{}
	other := &Demand{Requests: Amounts{{"cpu", 950}}, Ports: []Port{{Protocol: "TCP", IP: "10.0.0.1", Number: 80}}}
	used.Add(other)
	for _, step := range []struct {
		want Reason
		mend func()
	}{
		{NoMatch, func() { n.Labels = map[string]string{"arch": "arm64"} }},
		{NoMatch, func() { n.Labels["disk"] = "ssd" }},
		{OutOfReach, func() { n.Labels["zone"] = "z1" }},
		{Tainted, func() { d.Tolerations = []corev1.Toleration{{Key: "site", Operator: corev1.TolerationOpExists}} }},
		{PortTaken, func() { used.Remove(other); used.Add(&Demand{Requests: Amounts{{"cpu", 950}}}) }},
		{NoRoom, func() { n.Allocatable = Amounts{{"cpu", 1049}, {"pods", 1}} }},
		{NoRoom, func() { n.Allocatable = Amounts{{"cpu", 1050}, {"pods", 1}} }},
		{Fits, func() {}},
	} {
		if got := NewCheck(d, []*nodeaffinity.NodeSelector{volume}).Of(n, used); got != step.want {
			t.Fatalf("got %q, want %q", got, step.want)
		}
		step.mend()
	}
}

func TestFurther(t *testing.T) {
	for i, a := range order {
		for j, b := range order {
			if got := Further(a, b); got != order[max(i, j)] {
				t.Errorf("of %q and %q: got %q", a, b, got)
			}
		}
	}
}

func demands() *rapid.Generator[*Demand] {
	return rapid.Custom(func(t *rapid.T) *Demand {
		d := &Demand{Requests: Amounts{{"cpu", rapid.Int64Range(1, 4).Draw(t, "cpu")}, {"pods", 1}}}
		for range rapid.IntRange(0, 2).Draw(t, "ports") {
			d.Ports = append(d.Ports, Port{
				Protocol: "TCP", IP: rapid.SampledFrom([]string{"", "10.0.0.1", "10.0.0.2"}).Draw(t, "ip"), Number: rapid.Int32Range(80, 81).Draw(t, "port"),
			})
		}
		return d
	})
}

// TestUse: what is added and removed again leaves nothing behind, and a node
// that holds more takes nothing that it did not take before.
func TestUse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(demands(), 1, 6).Draw(t, "pods")
		pod := demands().Draw(t, "pod")
		n := &Node{Name: "n", Allocatable: Amounts{{"cpu", 8}, {"pods", 4}}}
		used, fits := &Use{}, true
		for _, d := range all {
			used.Add(d)
			now := NewCheck(pod, nil).Of(n, used) == Fits
			if now && !fits {
				t.Fatalf("a pod fits beside one more, and did not before")
			}
			fits = now
			if split := NewCheck(pod, nil).Of(n, &Use{}, used) == Fits; split != now {
				t.Fatalf("one sum says %t, two say %t", now, split)
			}
		}
		for _, d := range rapid.Permutation(all).Draw(t, "order") {
			used.Remove(d)
		}
		if !used.Equal(&Use{}) {
			t.Fatalf("left behind: %+v", used)
		}
	})
}
