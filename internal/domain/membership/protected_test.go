package membership

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// TestKubeletMaySet follows the admission plugin NodeRestriction of Kubernetes 1.36.
func TestKubeletMaySet(t *testing.T) {
	for key, want := range map[string]bool{
		"location":                                true,
		"example.com/location":                    true,
		apps.NodePoolLabel:                        true,
		gm.NodeGroupLabel:                         true,
		"notkubernetes.io/x":                      true,
		"kubernetes.io/hostname":                  true,
		"kubernetes.io/os":                        true,
		"kubernetes.io/arch":                      true,
		"topology.kubernetes.io/zone":             true,
		"topology.kubernetes.io/region":           true,
		"node.kubernetes.io/instance-type":        true,
		"node.kubernetes.io/anything":             true,
		"deep.node.kubernetes.io/anything":        true,
		"kubelet.kubernetes.io/anything":          true,
		"deep.kubelet.kubernetes.io/anything":     true,
		"beta.kubernetes.io/arch":                 true,
		"beta.kubernetes.io/instance-type":        true,
		"failure-domain.beta.kubernetes.io/zone":  true,
		"node-restriction.kubernetes.io/site":     false,
		"com.node-restriction.kubernetes.io/site": false,
		"mynode-restriction.kubernetes.io/site":   false,
		"node-role.kubernetes.io/control-plane":   false,
		"topology.kubernetes.io/rack":             false,
		"kubernetes.io/site":                      false,
		"k8s.io/site":                             false,
		"example.k8s.io/site":                     false,
	} {
		if got := KubeletMaySet(key); got != want {
			t.Errorf("KubeletMaySet(%q) = %t", key, got)
		}
	}
}

const (
	free    = "location"
	guarded = "shop.node-restriction.kubernetes.io/site"
)

func TestAKubeletCanJoinAGroup(t *testing.T) {
	tests := map[string]struct {
		group *gm.NodeGroup
		keys  []string
		can   bool
	}{
		"an empty spec":                          {group: nodeGroup("g")},
		"names only":                             {group: nodeGroup("g", names("a"))},
		"a free label":                           {nodeGroup("g", matching(free, "x")), []string{free}, true},
		"a guarded label":                        {group: nodeGroup("g", matching(guarded, "x"))},
		"a free and a guarded label":             {group: nodeGroup("g", matching(guarded, "x"), matching(free, "x"))},
		"names do not guard labels":              {nodeGroup("g", names("a"), matching(free, "x")), []string{free}, true},
		"either list is enough":                  {nodeGroup("g", matching(guarded, "x"), expression(free, "Exists")), []string{free}, true},
		"both lists":                             {nodeGroup("g", matching("b", "x"), expression("a", "Exists"), expression("b", "Exists")), []string{"a", "b"}, true},
		"In":                                     {nodeGroup("g", expression(free, "In", "x", "y")), []string{free}, true},
		"In, guarded":                            {group: nodeGroup("g", expression(guarded, "In", "x", "y"))},
		"Exists, guarded":                        {group: nodeGroup("g", expression(guarded, "Exists"))},
		"NotIn takes the label's absence":        {nodeGroup("g", expression(free, "NotIn", "x")), nil, true},
		"NotIn, guarded, is met without it":      {nodeGroup("g", expression(guarded, "NotIn", "x")), nil, true},
		"DoesNotExist, guarded, is met, too":     {nodeGroup("g", expression(guarded, "DoesNotExist"), expression(free, "Exists")), []string{free}, true},
		"DoesNotExist beside a guarded In":       {group: nodeGroup("g", expression(free, "DoesNotExist"), expression(guarded, "In", "x"))},
		"a value beside those that are excluded": {nodeGroup("g", expression(free, "Exists"), expression(free, "NotIn", "", "0", "1")), []string{free}, true},
		"nothing meets both":                     {group: nodeGroup("g", expression(free, "In", "x"), expression(free, "NotIn", "x"))},
		"neither":                                {group: nodeGroup("g", expression(free, "Exists"), expression(free, "DoesNotExist"))},
		"the label of NodePools":                 {nodeGroup("g", matching(apps.NodePoolLabel, "hangzhou")), []string{apps.NodePoolLabel}, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			group, err := Compile(tc.group)
			if err != nil {
				t.Fatal(err)
			}
			keys, can := group.CanJoin()
			if diff := cmp.Diff(tc.keys, keys, cmp.Transformer("", func(s []string) []string { return append([]string{}, s...) })); diff != "" || can != tc.can {
				t.Errorf("CanJoin = %v, %t, want %t\n%s", keys, can, tc.can, diff)
			}
		})
	}
}

func TestAKubeletCanJoinAPool(t *testing.T) {
	tests := map[string]struct {
		selector *apps.NodeSelector
		keys     []string
		can      bool
	}{
		"no selector":     {},
		"a free label":    {selector: &apps.NodeSelector{MatchLabels: map[string]apps.LabelValue{free: "x"}}, keys: []string{free}, can: true},
		"a guarded label": {selector: &apps.NodeSelector{MatchLabels: map[string]apps.LabelValue{guarded: "x"}}},
		"both must match": {selector: &apps.NodeSelector{
			MatchLabels:      map[string]apps.LabelValue{free: "x"},
			MatchExpressions: []apps.NodeSelectorRequirement{{Key: guarded, Operator: metav1.LabelSelectorOpExists}},
		}},
		"an invalid selector selects nothing": {selector: &apps.NodeSelector{MatchLabels: map[string]apps.LabelValue{"a b": "x"}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := &apps.NodePool{}
			p.Spec.Selector = tc.selector
			pool, _ := CompilePool(p)
			if keys, can := pool.CanJoin(); !slices.Equal(keys, tc.keys) || can != tc.can {
				t.Errorf("CanJoin = %v, %t, want %v, %t", keys, can, tc.keys, tc.can)
			}
		})
	}
}

// TestCanJoinIsExact: if a kubelet can join, the labels that were found make a node a member;
// if it cannot, no labels do that a kubelet may set.
func TestCanJoinIsExact(t *testing.T) {
	keys := []string{"a", "b", guarded}
	values := []string{"", "0", "1", "x"}
	rapid.Check(t, func(t *rapid.T) {
		g := nodeGroup("g")
		for range rapid.IntRange(1, 5).Draw(t, "expressions") {
			key := rapid.SampledFrom(keys).Draw(t, "key")
			op := rapid.SampledFrom([]metav1.LabelSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist"}).Draw(t, "operator")
			var of []string
			if op == "In" || op == "NotIn" {
				of = rapid.SliceOfNDistinct(rapid.SampledFrom(values), 1, 4, rapid.ID[string]).Draw(t, "values")
			}
			expression(key, op, of...)(g)
		}
		group, err := Compile(g)
		if err != nil {
			t.Fatal(err)
		}
		requirements, _ := group.expressions.Requirements()
		set, met := meetAlone(requirements)
		if _, can := group.CanJoin(); can != met {
			t.Fatalf("CanJoin = %t, meetAlone = %t", can, met)
		}
		if met {
			if _, has := set[guarded]; has || !group.Selects("n", set) {
				t.Fatalf("%v does not make a node a member", set)
			}
			return
		}
		for _, a := range append(values, "none", "other") {
			for _, b := range append(values, "none", "other") {
				node := map[string]string{"a": a, "b": b}
				for key, value := range node {
					if value == "none" {
						delete(node, key)
					}
				}
				if group.Selects("n", node) {
					t.Fatalf("%v makes a node a member", node)
				}
			}
		}
	})
}
