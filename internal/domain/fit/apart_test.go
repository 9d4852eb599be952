package fit

import (
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// TestApartUsesRequiredSelfMatchingRules checks that only required rules count whose selector matches the
// pod itself.
func TestApartUsesRequiredSelfMatchingRules(t *testing.T) {
	selects := func(app string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	term := func(selector *metav1.LabelSelector, change ...func(*corev1.PodAffinityTerm)) corev1.PodSpec {
		term := corev1.PodAffinityTerm{LabelSelector: selector, TopologyKey: "zone"}
		for _, c := range change {
			c(&term)
		}
		return corev1.PodSpec{Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}}}
	}
	spread := func(selector *metav1.LabelSelector, when corev1.UnsatisfiableConstraintAction) corev1.PodSpec {
		return corev1.PodSpec{TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{TopologyKey: "host", MaxSkew: 2, WhenUnsatisfiable: when, LabelSelector: selector}}}
	}
	spreadWith := func(change func(*corev1.TopologySpreadConstraint)) corev1.PodSpec {
		spec := spread(selects("web"), corev1.DoNotSchedule)
		change(&spec.TopologySpreadConstraints[0])
		return spec
	}
	in := func(namespaces ...string) func(*corev1.PodAffinityTerm) {
		return func(t *corev1.PodAffinityTerm) { t.Namespaces = namespaces }
	}
	zone := []Apart{{Key: "zone"}}
	tests := map[string]struct {
		spec corev1.PodSpec
		want []Apart
	}{
		"nothing":                                {},
		"anti-affinity to its own":               {term(selects("web")), zone},
		"to another workload's":                  {term(selects("db")), nil},
		"without a selector":                     {term(nil), nil},
		"a selector that cannot be read":         {term(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Like"}}}), nil},
		"in its namespace":                       {term(selects("web"), in("other", "own")), zone},
		"in another one":                         {term(selects("web"), in("other")), nil},
		"in those that a selector finds":         {term(selects("web"), in("other"), func(t *corev1.PodAffinityTerm) { t.NamespaceSelector = &metav1.LabelSelector{} }), zone},
		"anti-affinity that is only preferred":   {corev1.PodSpec{Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{}}}, nil},
		"affinity":                               {corev1.PodSpec{Affinity: &corev1.Affinity{PodAffinity: &corev1.PodAffinity{}}}, nil},
		"topology spread":                        {spread(selects("web"), corev1.DoNotSchedule), []Apart{{Key: "host", Skew: 2}}},
		"topology spread over so many domains":   {spreadWith(func(c *corev1.TopologySpreadConstraint) { c.MinDomains = new(int32(3)) }), []Apart{{Key: "host", Skew: 2, MinDomains: 3}}},
		"over the nodes that it may go to":       {spreadWith(func(c *corev1.TopologySpreadConstraint) { c.NodeAffinityPolicy = new(corev1.NodeInclusionPolicyHonor) }), []Apart{{Key: "host", Skew: 2}}},
		"over all nodes":                         {spreadWith(func(c *corev1.TopologySpreadConstraint) { c.NodeAffinityPolicy = new(corev1.NodeInclusionPolicyIgnore) }), []Apart{{Key: "host", Skew: 2, Everywhere: true}}},
		"topology spread of others":              {spread(selects("db"), corev1.DoNotSchedule), nil},
		"topology spread that is only preferred": {spread(selects("web"), corev1.ScheduleAnyway), nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "own", Labels: map[string]string{"app": "web"}}, Spec: tc.spec}
			got := DemandOf(pod, nil)
			if diff := cmp.Diff(tc.want, got.Apart); diff != "" {
				t.Errorf("wrong rules (-want +got):\n%s", diff)
			}
			if plain := DemandOf(&corev1.Pod{}, nil); got.Equal(plain) != (len(tc.want) == 0) {
				t.Errorf("it is equal to a pod without rules: %t", got.Equal(plain))
			}
			if none := NewCheck(got, nil).Domains() == nil; none != (len(tc.want) == 0) {
				t.Errorf("there is nothing to count: %t", none)
			}
		})
	}
}

// TestTakeReturnsNodesForOneMorePod checks that Take returns the nodes on which one more pod keeps
// all rules.
func TestTakeReturnsNodesForOneMorePod(t *testing.T) {
	type site struct {
		name, zone string
		pods       int
		foreign    bool // the pod may not go there
	}
	tests := map[string]struct {
		rules []Apart
		sites []site
		want  []string
	}{
		"one a zone": {[]Apart{{Key: "zone"}}, []site{{"a", "1", 1, false}, {"b", "1", 0, false}, {"c", "2", 0, false}}, []string{"c"}},
		"one a zone, and one is where it may not go": {[]Apart{{Key: "zone"}}, []site{{"a", "1", 0, false}, {"b", "1", 1, true}}, nil},
		"a node without a zone has no neighbours":    {[]Apart{{Key: "zone"}}, []site{{"a", "", 3, false}}, []string{"a"}},
		"spread":                              {[]Apart{{Key: "zone", Skew: 1}}, []site{{"a", "1", 2, false}, {"b", "1", 0, false}, {"c", "2", 1, false}}, []string{"c"}},
		"spread with more room":               {[]Apart{{Key: "zone", Skew: 2}}, []site{{"a", "1", 2, false}, {"c", "2", 1, false}}, []string{"a", "c"}},
		"spread over one zone":                {[]Apart{{Key: "zone", Skew: 1}}, []site{{"a", "1", 5, false}}, []string{"a"}},
		"spread looks at no other nodes":      {[]Apart{{Key: "zone", Skew: 1}}, []site{{"a", "1", 5, false}, {"b", "2", 0, true}}, []string{"a"}},
		"spread over all nodes":               {[]Apart{{Key: "zone", Skew: 1, Everywhere: true}}, []site{{"a", "1", 1, false}, {"b", "2", 0, true}, {"c", "1", 0, false}}, nil},
		"and those it may not go to count":    {[]Apart{{Key: "zone", Skew: 1, Everywhere: true}}, []site{{"a", "1", 0, false}, {"b", "1", 2, true}, {"c", "2", 0, true}}, nil},
		"spread over fewer zones than wanted": {[]Apart{{Key: "zone", Skew: 1, MinDomains: 2}}, []site{{"a", "1", 1, false}}, nil},
		"and over as many as wanted":          {[]Apart{{Key: "zone", Skew: 1, MinDomains: 2}}, []site{{"a", "1", 1, false}, {"b", "2", 1, false}}, []string{"a", "b"}},
		"spread without a zone":               {[]Apart{{Key: "zone", Skew: 9}}, []site{{"a", "", 0, false}}, nil},
		"both":                                {[]Apart{{Key: "name"}, {Key: "zone", Skew: 1}}, []site{{"a", "1", 1, false}, {"b", "1", 0, false}, {"c", "2", 1, false}, {"d", "2", 0, false}}, []string{"b", "d"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			domains := NewCheck(&Demand{Apart: tc.rules}, nil).Domains()
			node := func(s site) *Node {
				n := &Node{Name: s.name, Labels: map[string]string{"name": s.name}}
				if s.zone != "" {
					n.Labels["zone"] = s.zone
				}
				return n
			}
			for _, s := range tc.sites {
				domains.Add(node(s), !s.foreign, s.pods)
			}
			var got []string
			for _, s := range tc.sites {
				if !s.foreign && domains.Take(node(s)) {
					got = append(got, s.name)
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%v take one more, want %v", got, tc.want)
			}
		})
	}
}

// TestTakeCountsPodsAddedLater checks that pods added after Take count too.
func TestTakeCountsPodsAddedLater(t *testing.T) {
	domains := NewCheck(&Demand{Apart: []Apart{{Key: "zone", Skew: 1}}}, nil).Domains()
	a, b := &Node{Labels: map[string]string{"zone": "a"}}, &Node{Labels: map[string]string{"zone": "b"}}
	domains.Add(a, true, 1)
	domains.Add(b, true, 0)
	if domains.Take(a) {
		t.Error("a takes one more than b has room for")
	}
	domains.Add(b, true, 1)
	if !domains.Take(a) {
		t.Error("b has a pod now, and a takes no other")
	}
}

// BenchmarkDomainsOfManyNodes checks 5,000 nodes, each a domain of its own.
func BenchmarkDomainsOfManyNodes(b *testing.B) {
	nodes := make([]*Node, 5000)
	for i := range nodes {
		nodes[i] = &Node{Labels: map[string]string{"name": strconv.Itoa(i)}}
	}
	for b.Loop() {
		domains := NewCheck(&Demand{Apart: []Apart{{Key: "name", Skew: 1}}}, nil).Domains()
		for i, n := range nodes {
			domains.Add(n, true, min(1, i))
		}
		for _, n := range nodes[1:] {
			if domains.Take(n) {
				b.Fatal("a node takes a second pod before one has none")
			}
		}
	}
}

// TestSpreadIsKept checks that pods placed only where Take allows one never exceed the
// skew, and that there is always a node for the next pod.
func TestSpreadIsKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		skew := rapid.Int32Range(1, 3).Draw(t, "skew")
		zones := rapid.IntRange(1, 4).Draw(t, "zones")
		pods := make([]int, zones)
		for range rapid.IntRange(1, 20).Draw(t, "pods") {
			domains := NewCheck(&Demand{Apart: []Apart{{Key: "zone", Skew: skew}}}, nil).Domains()
			nodes := make([]*Node, zones)
			for i := range nodes {
				nodes[i] = &Node{Labels: map[string]string{"zone": string(rune('a' + i))}}
				domains.Add(nodes[i], true, pods[i])
			}
			var open []int
			for i, n := range nodes {
				if domains.Take(n) {
					open = append(open, i)
				}
			}
			if len(open) == 0 {
				t.Fatalf("no zone takes one more than %v", pods)
			}
			pods[rapid.SampledFrom(open).Draw(t, "zone")]++
			if slices.Max(pods)-slices.Min(pods) > int(skew) {
				t.Fatalf("%v are further apart than %d", pods, skew)
			}
		}
	})
}
