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
	charted = "atoll.dev/site"
)

func TestAKubeletCanJoinAGroup(t *testing.T) {
	tests := map[string]struct {
		group *gm.NodeGroup
		keys  []string
		how   Joining
	}{
		"an empty spec":                             {group: nodeGroup("g")},
		"names only":                                {group: nodeGroup("g", names("a"))},
		"a free label":                              {nodeGroup("g", matching(free, "x")), []string{free}, JoinsAlone},
		"a guarded label":                           {group: nodeGroup("g", matching(guarded, "x"))},
		"a free and a guarded label":                {nodeGroup("g", matching(guarded, "x"), matching(free, "x")), []string{free}, JoinsWithOthers},
		"a free label that must be absent":          {nodeGroup("g", expression(free, "DoesNotExist"), expression(guarded, "In", "x")), []string{free}, JoinsWithOthers},
		"a free label that must have another value": {nodeGroup("g", expression(free, "NotIn", "x"), expression(guarded, "Exists")), []string{free}, JoinsWithOthers},
		"names do not guard labels":                 {nodeGroup("g", names("a"), matching(free, "x")), []string{free}, JoinsAlone},
		"either list is enough":                     {nodeGroup("g", matching(guarded, "x"), expression(free, "Exists")), []string{free}, JoinsAlone},
		"the worse list counts":                     {nodeGroup("g", matching("a", "x"), matching(guarded, "x"), expression(free, "Exists")), []string{free}, JoinsAlone},
		"both lists":                                {nodeGroup("g", matching("b", "x"), expression("a", "Exists"), expression("b", "Exists")), []string{"a", "b"}, JoinsAlone},
		"In":                                        {nodeGroup("g", expression(free, "In", "x", "y")), []string{free}, JoinsAlone},
		"In, guarded":                               {group: nodeGroup("g", expression(guarded, "In", "x", "y"))},
		"Exists, guarded":                           {group: nodeGroup("g", expression(guarded, "Exists"))},
		"NotIn takes the label's absence":           {nodeGroup("g", expression(free, "NotIn", "x")), nil, JoinsAlone},
		"NotIn, guarded, is met without it":         {nodeGroup("g", expression(guarded, "NotIn", "x")), nil, JoinsAlone},
		"DoesNotExist, guarded, is met, too":        {nodeGroup("g", expression(guarded, "DoesNotExist"), expression(free, "Exists")), []string{free}, JoinsAlone},
		"a value beside those that are excluded":    {nodeGroup("g", expression(free, "Exists"), expression(free, "NotIn", "", "0", "1")), []string{free}, JoinsAlone},
		"nothing meets both":                        {group: nodeGroup("g", expression(free, "In", "x"), expression(free, "NotIn", "x"))},
		"neither":                                   {group: nodeGroup("g", expression(free, "Exists"), expression(free, "DoesNotExist"))},
		"no node meets what is guarded":             {group: nodeGroup("g", expression(free, "Exists"), expression(guarded, "In", "x"), expression(guarded, "NotIn", "x"))},
		"the label of NodePools":                    {nodeGroup("g", matching(apps.NodePoolLabel, "hangzhou")), []string{apps.NodePoolLabel}, JoinsUnguarded},
		"a label that the chart guards":             {nodeGroup("g", matching(charted, "x")), []string{charted}, JoinsUnguarded},
		"a label below a similar name":              {nodeGroup("g", matching("my.atoll.dev/site", "x")), []string{"my.atoll.dev/site"}, JoinsAlone},
		"both kinds of guards":                      {nodeGroup("g", matching(charted, "x"), matching(guarded, "x")), []string{charted}, JoinsUnguarded},
		"the chart's guard decides beside another":  {nodeGroup("g", expression(charted, "DoesNotExist"), expression(guarded, "Exists")), []string{charted}, JoinsUnguarded},
		"the chart's guard and a free label":        {nodeGroup("g", matching(charted, "x"), matching(free, "x")), []string{free}, JoinsWithOthers},
		"the chart's guard, met without the label":  {nodeGroup("g", expression(charted, "NotIn", "x")), nil, JoinsAlone},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			group, err := Compile(tc.group)
			if err != nil {
				t.Fatal(err)
			}
			keys, how := group.CanJoin()
			if diff := cmp.Diff(tc.keys, keys, cmp.Transformer("", func(s []string) []string { return append([]string{}, s...) })); diff != "" || how != tc.how {
				t.Errorf("CanJoin = %v, %d, want %d\n%s", keys, how, tc.how, diff)
			}
		})
	}
}

func TestAKubeletCanJoinAPool(t *testing.T) {
	tests := map[string]struct {
		selector *apps.NodeSelector
		keys     []string
		how      Joining
	}{
		"no selector":                   {},
		"a free label":                  {selector: &apps.NodeSelector{MatchLabels: map[string]apps.LabelValue{free: "x"}}, keys: []string{free}, how: JoinsAlone},
		"a guarded label":               {selector: &apps.NodeSelector{MatchLabels: map[string]apps.LabelValue{guarded: "x"}}},
		"a label that the chart guards": {selector: &apps.NodeSelector{MatchLabels: map[string]apps.LabelValue{charted: "x"}}, keys: []string{charted}, how: JoinsUnguarded},
		"a free label decides beside a guarded one": {selector: &apps.NodeSelector{
			MatchLabels:      map[string]apps.LabelValue{free: "x"},
			MatchExpressions: []apps.NodeSelectorRequirement{{Key: guarded, Operator: metav1.LabelSelectorOpExists}},
		}, keys: []string{free}, how: JoinsWithOthers},
		"an invalid selector selects nothing": {selector: &apps.NodeSelector{MatchLabels: map[string]apps.LabelValue{"a b": "x"}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := &apps.NodePool{}
			p.Spec.Selector = tc.selector
			pool, _ := CompilePool(p)
			if keys, how := pool.CanJoin(); !slices.Equal(keys, tc.keys) || how != tc.how {
				t.Errorf("CanJoin = %v, %d, want %v, %d", keys, how, tc.keys, tc.how)
			}
		})
	}
}

// TestCanJoinIsExact compares CanJoin with all nodes that differ in some labels. A kubelet
// moves its node by the labels of a class if there are two nodes that differ only in these,
// and only one is a member.
func TestCanJoinIsExact(t *testing.T) {
	values := []string{"", "0", "1", "x", "none", "other"} // none: the node does not have the label
	rapid.Check(t, func(t *rapid.T) {
		g := nodeGroup("g")
		for range rapid.IntRange(1, 5).Draw(t, "expressions") {
			key := rapid.SampledFrom([]string{"a", "b", guarded, charted}).Draw(t, "key")
			op := rapid.SampledFrom([]metav1.LabelSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist"}).Draw(t, "operator")
			var of []string
			if op == "In" || op == "NotIn" {
				of = rapid.SliceOfNDistinct(rapid.SampledFrom(values[:4]), 1, 4, rapid.ID[string]).Draw(t, "values")
			}
			expression(key, op, of...)(g)
		}
		group, err := Compile(g)
		if err != nil {
			t.Fatal(err)
		}
		// selects are the nodes by their values of a, b, guarded and charted.
		selects := map[[4]string]bool{}
		for i := range len(values) * len(values) * len(values) * len(values) {
			var node [4]string
			own := map[string]string{}
			for at, key := range []string{"a", "b", guarded, charted} {
				node[at] = values[i%len(values)]
				if i /= len(values); node[at] != "none" {
					own[key] = node[at]
				}
			}
			selects[node] = group.Selects("n", own)
		}
		want := CannotJoin
		for node, is := range selects {
			if !is {
				continue
			}
			if node[2] == "none" && node[3] == "none" {
				want = JoinsAlone
			}
			for _, x := range values {
				if !selects[[4]string{node[0], node[1], node[2], x}] {
					want = max(want, JoinsUnguarded)
				}
				if !selects[[4]string{x, node[1], node[2], node[3]}] || !selects[[4]string{node[0], x, node[2], node[3]}] {
					want = max(want, JoinsWithOthers)
				}
			}
		}
		if keys, how := group.CanJoin(); how != want {
			t.Fatalf("CanJoin = %v, %d, want %d", keys, how, want)
		}
	})
}
