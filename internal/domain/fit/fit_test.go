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

// TestTheReasonIsThatOfTheFirstCheckThatFails repairs in each case what failed in the
// case before.
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

// TestFurtherPrefersReasonsOfChecks checks that a reason that belongs to no check is used only if
// there is no other.
func TestFurtherPrefersReasonsOfChecks(t *testing.T) {
	if got := Further(Avoided, Fits); got != Avoided {
		t.Errorf("beside nothing it is %q", got)
	}
	if got := Further(Avoided, NoRoom); got != NoRoom {
		t.Errorf("beside a check's it is %q", got)
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

// TestUse checks that adding and removing a pod leaves no trace, and that a node with
// more pods takes no pod that it did not take before.
func TestUse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(demands(), 1, 6).Draw(t, "pods")
		pod := demands().Draw(t, "pod")
		n := &Node{Name: "n", Allocatable: Amounts{{"cpu", 8}, {"pods", 4}}}
		used, fits := &Use{}, true
		var parts [2]Use
		for _, d := range all {
			used.Add(d)
			parts[rapid.IntRange(0, 1).Draw(t, "part")].Add(d)
			now := NewCheck(pod, nil).Of(n, used) == Fits
			if now && !fits {
				t.Fatalf("a pod fits beside one more, and did not before")
			}
			fits = now
			for _, of := range [][]*Use{{&Use{}, used}, {&parts[0], &parts[1]}, {used, &Use{}}} {
				if split := NewCheck(pod, nil).Of(n, of...) == Fits; split != now {
					t.Fatalf("with one sum: %t, with two: %t", now, split)
				}
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

func TestRoomier(t *testing.T) {
	taint := func(key, value string, effect corev1.TaintEffect) corev1.Taint {
		return corev1.Taint{Key: key, Value: value, Effect: effect}
	}
	node := func(cpu int64, label string, taints ...corev1.Taint) *Node {
		return &Node{Labels: map[string]string{"disk": label}, Taints: taints, Allocatable: Amounts{{corev1.ResourceCPU, cpu}}}
	}
	closed := taint("closed", "yes", corev1.TaintEffectNoSchedule)
	tests := map[string]struct {
		before, now *Node
		want        bool
	}{
		"nothing changed":               {node(1, "ssd", closed), node(1, "ssd", closed), false},
		"it has more":                   {node(1, "ssd"), node(2, "ssd"), true},
		"it has less":                   {node(2, "ssd"), node(1, "ssd"), false},
		"it has a resource that is new": {&Node{}, &Node{Allocatable: Amounts{{"example.com/gpu", 1}}}, true},
		"another label":                 {node(1, "ssd"), node(1, "hdd"), true},
		"a taint goes":                  {node(1, "ssd", closed), node(1, "ssd"), true},
		"a taint comes":                 {node(1, "ssd"), node(1, "ssd", closed), false},
		"another value of it":           {node(1, "ssd", closed), node(1, "ssd", taint("closed", "no", corev1.TaintEffectNoSchedule)), true},
		"another effect of it":          {node(1, "ssd", closed), node(1, "ssd", taint("closed", "yes", corev1.TaintEffectNoExecute)), true},
		"a taint that closes nothing":   {node(1, "ssd", taint("prefer", "", corev1.TaintEffectPreferNoSchedule)), node(1, "ssd"), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.now.Roomier(tc.before); got != tc.want {
				t.Errorf("hasFreed: %t", got)
			}
		})
	}
}

func TestEqualDemands(t *testing.T) {
	if (*Demand)(nil).Equal(&Demand{}) || (&Demand{}).Equal(nil) || !(*Demand)(nil).Equal(nil) {
		t.Error("no demand is another than one of nothing")
	}
	one := func() *Demand {
		return &Demand{
			Requests: Amounts{{"cpu", 1}}, Ports: []Port{{Protocol: "TCP", Number: 80}}, NodeSelector: map[string]string{"a": "b"},
			Affinity:    &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "k", Operator: "Exists"}}}}},
			Tolerations: []corev1.Toleration{{Key: "t"}}, Claims: true,
		}
	}
	if !one().Equal(one()) {
		t.Error("two of the same are not")
	}
	for what, change := range map[string]func(*Demand){
		"requests":    func(d *Demand) { d.Requests = Amounts{{"cpu", 2}} },
		"ports":       func(d *Demand) { d.Ports = nil },
		"selector":    func(d *Demand) { d.NodeSelector = nil },
		"affinity":    func(d *Demand) { d.Affinity = nil },
		"tolerations": func(d *Demand) { d.Tolerations[0].Key = "u" },
		"claims":      func(d *Demand) { d.Claims = false },
	} {
		other := one()
		if change(other); one().Equal(other) || other.Equal(one()) {
			t.Errorf("another in %s is the same", what)
		}
	}
}

func TestEqualUses(t *testing.T) {
	of := func(cpu int64, port int32) *Use {
		u := &Use{}
		u.Add(&Demand{Requests: Amounts{{"cpu", cpu}}, Ports: []Port{{Protocol: "TCP", Number: port}}})
		return u
	}
	if !of(1, 80).Equal(of(1, 80)) {
		t.Error("two of the same are not")
	}
	for what, other := range map[string]*Use{"more": of(2, 80), "another port": of(1, 81), "nothing": {}} {
		if of(1, 80).Equal(other) || other.Equal(of(1, 80)) {
			t.Errorf("%s is the same", what)
		}
	}
}

// TestPortsWithAndWithoutAnAddress checks that a port without an address conflicts with
// all, and that ports of two addresses do not conflict.
func TestPortsWithAndWithoutAnAddress(t *testing.T) {
	n := &Node{Name: "n", Allocatable: Amounts{{"pods", 9}}}
	of := func(ip string) *Demand { return &Demand{Ports: []Port{{Protocol: "TCP", IP: ip, Number: 80}}} }
	for _, tc := range []struct {
		held, wanted string
		want         Reason
	}{
		{"", "", PortTaken}, {"", "10.0.0.1", PortTaken}, {"10.0.0.1", "", PortTaken}, {"10.0.0.1", "10.0.0.1", PortTaken}, {"10.0.0.1", "10.0.0.2", Fits},
	} {
		u := &Use{}
		u.Add(of(tc.held))
		if got := NewCheck(of(tc.wanted), nil).Of(n, u); got != tc.want {
			t.Errorf("port of %q beside one of %q: %q, want %q", tc.wanted, tc.held, got, tc.want)
		}
	}
	// A pod that leaves frees its ports and requests.
	u, leaving := &Use{}, &Use{}
	u.Add(of("10.0.0.1"))
	leaving.Remove(of("10.0.0.1"))
	if got := NewCheck(of("10.0.0.1"), nil).Of(n, u, leaving); got != Fits {
		t.Errorf("beside one that leaves: %q", got)
	}
}

// TestReaches checks that only lasting properties of a node count, not its present state.
func TestReaches(t *testing.T) {
	node := &Node{Labels: map[string]string{"disk": "ssd"}}
	tainted := func(key string, effect corev1.TaintEffect) *Node {
		return &Node{Labels: node.Labels, Taints: []corev1.Taint{{Key: key, Effect: effect}}}
	}
	tests := map[string]struct {
		demand Demand
		node   *Node
		want   bool
	}{
		"a pod that demands nothing":                  {Demand{}, node, true},
		"more than there is":                          {Demand{Requests: Amounts{{corev1.ResourceCPU, 1}}}, node, true},
		"its node selector matches":                   {Demand{NodeSelector: map[string]string{"disk": "ssd"}}, node, true},
		"and does not":                                {Demand{NodeSelector: map[string]string{"disk": "hdd"}}, node, false},
		"a taint of a person":                         {Demand{}, tainted("site", corev1.TaintEffectNoSchedule), false},
		"which it tolerates":                          {Demand{Tolerations: []corev1.Toleration{{Key: "site", Operator: corev1.TolerationOpExists}}}, tainted("site", corev1.TaintEffectNoSchedule), true},
		"a taint that is only a preference":           {Demand{}, tainted("site", corev1.TaintEffectPreferNoSchedule), true},
		"one of Kubernetes, which comes and goes":     {Demand{}, tainted(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule), true},
		"one of a cloud's controller, which does too": {Demand{}, tainted("node.cloudprovider.kubernetes.io/uninitialized", corev1.TaintEffectNoSchedule), true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := NewCheck(&tc.demand, nil).Reaches(tc.node); got != tc.want {
				t.Errorf("reaches: %t", got)
			}
		})
	}
}

// TestReachesNeedsAllVolumes checks that a node has to reach all volumes.
func TestReachesNeedsAllVolumes(t *testing.T) {
	var volumes []*nodeaffinity.NodeSelector
	for _, terms := range [][]corev1.NodeSelectorTerm{in("zone", "z1", "z2"), in("zone", "z2", "z3")} {
		volume, err := nodeaffinity.NewNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: terms})
		if err != nil {
			t.Fatal(err)
		}
		volumes = append(volumes, volume)
	}
	for zone, want := range map[string]bool{"z1": false, "z2": true, "z3": false} {
		if got := NewCheck(&Demand{}, volumes).Reaches(&Node{Labels: map[string]string{"zone": zone}}); got != want {
			t.Errorf("a node in %s is reached: %t", zone, got)
		}
	}
}
