package membership

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

func nodeGroup(name string, modify ...func(*gm.NodeGroup)) *gm.NodeGroup {
	g := &gm.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, m := range modify {
		m(g)
	}
	return g
}

func names(nodes ...string) func(*gm.NodeGroup) {
	return func(g *gm.NodeGroup) { g.Spec.Nodes = nodes }
}

func matching(key, value string) func(*gm.NodeGroup) {
	return func(g *gm.NodeGroup) {
		if g.Spec.MatchLabels == nil {
			g.Spec.MatchLabels = map[string]string{}
		}
		g.Spec.MatchLabels[key] = value
	}
}

func expression(key string, op metav1.LabelSelectorOperator, values ...string) func(*gm.NodeGroup) {
	return func(g *gm.NodeGroup) {
		g.Spec.MatchExpressions = append(g.Spec.MatchExpressions,
			metav1.LabelSelectorRequirement{Key: key, Operator: op, Values: values})
	}
}

func createdAt(second int64) func(*gm.NodeGroup) {
	return func(g *gm.NodeGroup) { g.CreationTimestamp = metav1.Unix(second, 0) }
}

func deleting(g *gm.NodeGroup) { g.DeletionTimestamp = &metav1.Time{Time: time.Unix(99, 0)} }

func compiled(t testing.TB, groups ...*gm.NodeGroup) *Groups {
	t.Helper()
	all := make([]Group, 0, len(groups))
	for _, g := range groups {
		group, _ := Compile(g)
		all = append(all, group)
	}
	index := NewGroups(all)
	return &index
}

func TestSelectionIsTheUnionOfNamesLabelsAndExpressions(t *testing.T) {
	tests := map[string]struct {
		group  *gm.NodeGroup
		node   string
		labels map[string]string
		want   bool
	}{
		"an empty spec selects nothing": {group: nodeGroup("g"), node: "a", labels: map[string]string{"x": "1"}},
		"an empty matchLabels selects nothing": {
			group: nodeGroup("g", func(g *gm.NodeGroup) { g.Spec.MatchLabels = map[string]string{} }), node: "a",
		},
		"an empty matchExpressions selects nothing": {
			group: nodeGroup("g", func(g *gm.NodeGroup) { g.Spec.MatchExpressions = []metav1.LabelSelectorRequirement{} }), node: "a",
		},
		"a name selects":                     {group: nodeGroup("g", names("a")), node: "a", want: true},
		"another name does not":              {group: nodeGroup("g", names("a")), node: "b"},
		"a name is not folded":               {group: nodeGroup("g", names("A")), node: "a"},
		"all labels are needed":              {group: nodeGroup("g", matching("x", "1"), matching("y", "2")), node: "a", labels: map[string]string{"x": "1"}},
		"all labels together select":         {group: nodeGroup("g", matching("x", "1"), matching("y", "2")), node: "a", labels: map[string]string{"x": "1", "y": "2"}, want: true},
		"a label with an empty value":        {group: nodeGroup("g", matching("x", "")), node: "a", labels: map[string]string{"x": ""}, want: true},
		"an empty value needs the label":     {group: nodeGroup("g", matching("x", "")), node: "a"},
		"In":                                 {group: nodeGroup("g", expression("x", "In", "1", "2")), node: "a", labels: map[string]string{"x": "2"}, want: true},
		"NotIn takes nodes without the key":  {group: nodeGroup("g", expression("x", "NotIn", "1")), node: "a", want: true},
		"Exists":                             {group: nodeGroup("g", expression("x", "Exists")), node: "a", labels: map[string]string{"x": ""}, want: true},
		"DoesNotExist":                       {group: nodeGroup("g", expression("x", "DoesNotExist")), node: "a", labels: map[string]string{"x": ""}},
		"all expressions are needed":         {group: nodeGroup("g", expression("x", "Exists"), expression("y", "Exists")), node: "a", labels: map[string]string{"x": ""}},
		"labels fail and expressions select": {group: nodeGroup("g", matching("x", "1"), expression("y", "Exists")), node: "a", labels: map[string]string{"y": ""}, want: true},
		"labels fail and the name selects":   {group: nodeGroup("g", matching("x", "1"), names("a")), node: "a", want: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			group, err := Compile(tc.group)
			if err != nil {
				t.Fatal(err)
			}
			if got := group.Selects(tc.node, tc.labels); got != tc.want {
				t.Errorf("Selects(%q, %v) = %v, want %v", tc.node, tc.labels, got, tc.want)
			}
		})
	}
}

func TestCompileNamesTheFieldThatCannotBeUsed(t *testing.T) {
	tests := map[string]struct {
		group *gm.NodeGroup
		want  string
	}{
		"a bad label key":               {nodeGroup("g", matching("a b", "1")), "spec.matchLabels[a b]: "},
		"a bad label value":             {nodeGroup("g", matching("a", "b c")), "spec.matchLabels[a]: "},
		"an unknown operator":           {nodeGroup("g", expression("a", "Exists"), expression("a", "Like", "b")), "spec.matchExpressions[1].operator: "},
		"In without values":             {nodeGroup("g", expression("a", "In")), "spec.matchExpressions[0].values: "},
		"Exists with values":            {nodeGroup("g", expression("a", "Exists", "b")), "spec.matchExpressions[0].values: "},
		"our own label by value":        {nodeGroup("g", matching(gm.NodeGroupLabel, "g")), "must not select by the label"},
		"our own label by expression":   {nodeGroup("g", expression(gm.NodeGroupLabel, "DoesNotExist")), "must not select by the label"},
		"names do not hide a bad label": {nodeGroup("g", names("n"), matching("a", "b c")), "spec.matchLabels[a]: "},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			group, err := Compile(tc.group)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error %v does not contain %q", err, tc.want)
			}
			if !group.Invalid || group.Name != "g" || group.Selects("n", map[string]string{"a": "b"}) {
				t.Errorf("a group that does not compile must be Invalid, named, and select nothing: %+v", group)
			}
		})
	}
}

func TestValidateReturnsEveryFault(t *testing.T) {
	group := nodeGroup("g", matching("b", "b c"), matching("a b", "c d"), expression("x", "Like", "a"), expression("y z", "In"), expression(gm.NodeGroupLabel, "Exists"))
	var got []string
	for _, fault := range Validate(group) {
		got = append(got, fault.Field)
	}
	want := []string{
		"spec.matchLabels[a b]", "spec.matchLabels[a b]", "spec.matchLabels[b]",
		"spec.matchExpressions[0].operator", "spec.matchExpressions[1].key", "spec.matchExpressions[1].values", "spec.matchExpressions[2]",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if faults := Validate(nodeGroup("g", matching("a", "b"), expression("x", "Exists"))); len(faults) > 0 {
		t.Errorf("a group without a fault is refused: %v", faults)
	}
}

func TestAssign(t *testing.T) {
	carrying := func(group string) map[string]string {
		return map[string]string{"x": "1", gm.NodeGroupLabel: group}
	}
	old := nodeGroup("old", createdAt(1), matching("x", "1"))
	young := nodeGroup("young", createdAt(2), matching("x", "1"))
	tests := map[string]struct {
		groups []*gm.NodeGroup
		labels map[string]string
		want   string
	}{
		"no group at all":                          {labels: carrying("old")},
		"no group selects the node":                {groups: []*gm.NodeGroup{old}, labels: map[string]string{"x": "2"}},
		"the older group gets a free node":         {groups: []*gm.NodeGroup{young, old}, labels: map[string]string{"x": "1"}, want: "old"},
		"the incumbent keeps it from an older one": {groups: []*gm.NodeGroup{old, young}, labels: carrying("young"), want: "young"},
		"equal age goes by name": {
			groups: []*gm.NodeGroup{nodeGroup("b", matching("x", "1")), nodeGroup("a", matching("x", "1"))},
			labels: map[string]string{"x": "1"}, want: "a",
		},
		"an incumbent that no longer selects it loses it": {
			groups: []*gm.NodeGroup{old, nodeGroup("young", createdAt(2), matching("x", "2"))}, labels: carrying("young"), want: "old",
		},
		"an incumbent that is gone loses it": {groups: []*gm.NodeGroup{old}, labels: carrying("young"), want: "old"},
		"an incumbent that is deleted loses it": {
			groups: []*gm.NodeGroup{old, nodeGroup("young", matching("x", "1"), deleting)}, labels: carrying("young"), want: "old",
		},
		"a deleting group never wins": {groups: []*gm.NodeGroup{nodeGroup("a", matching("x", "1"), deleting)}, labels: map[string]string{"x": "1"}},
		"an invalid group keeps its nodes": {
			groups: []*gm.NodeGroup{old, nodeGroup("young", matching("x", "1 2"))}, labels: carrying("young"), want: "young",
		},
		"an invalid group gets no new node": {groups: []*gm.NodeGroup{nodeGroup("a", names("n"), matching("x", "1 2"))}, labels: map[string]string{"x": "1"}},
		"an invalid group that is deleted keeps none": {
			groups: []*gm.NodeGroup{nodeGroup("young", matching("x", "1 2"), deleting)}, labels: carrying("young"),
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := compiled(t, tc.groups...).Assign("n", tc.labels); got != tc.want {
				t.Errorf("Assign = %q, want %q", got, tc.want)
			}
		})
	}
}

func TestStatus(t *testing.T) {
	groups := compiled(t,
		nodeGroup("old", createdAt(1), names("taken")),
		nodeGroup("edge", createdAt(2), names("z-missing", "taken", "named"), matching("x", "1")),
		nodeGroup("broken", createdAt(3), matching("x", "1 2")),
		nodeGroup("leaving", createdAt(4), names("lonely"), deleting),
	)
	nodes := []Node{
		{Name: "taken"},
		{Name: "by-label", Labels: map[string]string{"x": "1"}, Ready: gm.NodeReady},
		{Name: "named", Ready: gm.NodeNotReady},
		{Name: "kept", Labels: map[string]string{gm.NodeGroupLabel: "broken"}, Ready: gm.NodeReady},
		{Name: "lonely"},
		{Name: "foreign"},
	}
	for i := range nodes {
		nodes[i].Group = groups.Assign(nodes[i].Name, nodes[i].Labels)
	}
	tests := map[string]struct {
		group string
		want  Status
	}{
		"members, a contested node and a missing one": {"edge", Status{
			Nodes: []gm.NodeStatus{
				{NodeName: "by-label", ReadyStatus: gm.NodeReady, SelectionStatus: gm.SelectionSucceeded},
				{NodeName: "named", ReadyStatus: gm.NodeNotReady, SelectionStatus: gm.SelectionSucceeded},
				{NodeName: "taken", ReadyStatus: gm.NodeUnknown, SelectionStatus: gm.SelectionFailed, SelectionStatusReason: `node "taken" belongs to NodeGroup "old"`},
				{NodeName: "z-missing", ReadyStatus: gm.NodeUnknown, SelectionStatus: gm.SelectionFailed, SelectionStatusReason: "node does not exist"},
			},
			Contained: []string{"by-label", "named"}, Ready: 1, Failed: 2,
		}},
		"an invalid group lists what it keeps": {"broken", Status{
			Nodes:     []gm.NodeStatus{{NodeName: "kept", ReadyStatus: gm.NodeReady, SelectionStatus: gm.SelectionSucceeded}},
			Contained: []string{"kept"}, Ready: 1,
		}},
		"a deleting group has no member": {"leaving", Status{
			Nodes:  []gm.NodeStatus{{NodeName: "lonely", ReadyStatus: gm.NodeUnknown, SelectionStatus: gm.SelectionFailed, SelectionStatusReason: "NodeGroup is being deleted"}},
			Failed: 1,
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			group, found := groups.Get(tc.group)
			if !found {
				t.Fatal("group not found")
			}
			if diff := cmp.Diff(tc.want, group.Status(nodes)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestWhyANodeIsNoMember checks that the reason depends on the node, not only on the
// group.
func TestWhyANodeIsNoMember(t *testing.T) {
	nodes := []Node{{Name: "n"}}
	for name, tc := range map[string]struct {
		group *gm.NodeGroup
		of    string
		want  string
	}{
		"not assigned yet":                    {nodeGroup("g", names("n")), "", `node "n" is not assigned yet`},
		"its group goes":                      {nodeGroup("g", names("n"), deleting), "", "NodeGroup is being deleted"},
		"its group goes, and another has it":  {nodeGroup("g", names("n"), deleting), "other", `node "n" belongs to NodeGroup "other"`},
		"its group stays, and another has it": {nodeGroup("g", names("n")), "other", `node "n" belongs to NodeGroup "other"`},
	} {
		group, err := Compile(tc.group)
		if err != nil {
			t.Fatal(err)
		}
		nodes[0].Group = tc.of
		if got := group.Status(nodes).Nodes[0].SelectionStatusReason; got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// TestStatusHasEveryMissingNode checks nodes that the spec names and that do not exist,
// beside nodes that do.
func TestStatusHasEveryMissingNode(t *testing.T) {
	var nodes []Node
	var named, missing []string
	for i := range 20 {
		there, away := fmt.Sprintf("a-%02d", i), fmt.Sprintf("b-%02d", i)
		nodes = append(nodes, Node{Name: there, Group: "g"})
		named, missing = append(named, there, away), append(missing, away)
	}
	group, err := Compile(nodeGroup("g", names(named...)))
	if err != nil {
		t.Fatal(err)
	}
	status := group.Status(nodes)
	var got []string
	for _, n := range status.Nodes {
		if n.SelectionStatus == gm.SelectionFailed {
			got = append(got, n.NodeName)
		}
	}
	if !slices.Equal(got, missing) || status.Failed != 20 || len(status.Contained) != 20 {
		t.Errorf("missing are %v, %d failed, %d are members", got, status.Failed, len(status.Contained))
	}
}

func genGroups(t *rapid.T) []*gm.NodeGroup {
	values := rapid.SampledFrom([]string{"1", "2", "not valid"})
	count := rapid.IntRange(0, 5).Draw(t, "groups")
	groups := make([]*gm.NodeGroup, 0, count)
	for i := range count {
		g := nodeGroup(string(rune('a'+i)), createdAt(rapid.Int64Range(0, 2).Draw(t, "created")))
		if rapid.Bool().Draw(t, "named") {
			names("n0")(g)
		}
		if rapid.Bool().Draw(t, "labelled") {
			matching("x", values.Draw(t, "value"))(g)
		}
		if op := rapid.SampledFrom([]metav1.LabelSelectorOperator{"", metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist}).Draw(t, "operator"); op != "" {
			expression("y", op)(g)
		}
		if rapid.IntRange(0, 4).Draw(t, "deleting") == 0 {
			deleting(g)
		}
		groups = append(groups, g)
	}
	return groups
}

func TestAssignmentIsStableAndDoesNotDependOnOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		groups := genGroups(t)
		all := make([]Group, len(groups))
		for i := range groups {
			all[i], _ = Compile(groups[i])
		}
		index := NewGroups(all)
		shuffled := NewGroups(rapid.Permutation(all).Draw(t, "order"))

		node := rapid.SampledFrom([]string{"n0", "n1"}).Draw(t, "node")
		nodeLabels := map[string]string{
			"x":               rapid.SampledFrom([]string{"1", "2", "3"}).Draw(t, "x"),
			gm.NodeGroupLabel: rapid.SampledFrom([]string{"", "a", "b", "c", "gone"}).Draw(t, "incumbent"),
		}
		got := index.Assign(node, nodeLabels)
		if again := shuffled.Assign(node, nodeLabels); again != got {
			t.Fatalf("the order of the groups changed the answer from %q to %q", got, again)
		}
		if got == "" {
			for _, g := range all {
				if !g.Deleting && g.Selects(node, nodeLabels) {
					t.Fatalf("%q selects the node, but no group has it", g.Name)
				}
			}
			return
		}
		if g, found := index.Get(got); !found || g.Deleting {
			t.Fatalf("assigned to %q, which is deleting or does not exist", got)
		}
		nodeLabels[gm.NodeGroupLabel] = got
		if again := index.Assign(node, nodeLabels); again != got {
			t.Fatalf("with its label written the node moved from %q to %q", got, again)
		}
	})
}

// TestGroupIndexFindsTheSameAsAFullScan: the groups of a node, and the nodes of a group.
func TestGroupIndexFindsTheSameAsAFullScan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []Group
		for _, g := range genGroups(t) {
			group, _ := Compile(g)
			all = append(all, group)
		}
		index := NewGroups(all)
		node, nodeLabels := rapid.SampledFrom([]string{"n0", "n1"}).Draw(t, "node"), map[string]string{}
		for _, key := range []string{"x", "y"} {
			if value := rapid.SampledFrom([]string{"", "1", "3"}).Draw(t, key); value != "" {
				nodeLabels[key] = value
			}
		}
		var want, got []string
		for _, g := range index.byAge {
			if g.Selects(node, nodeLabels) {
				want = append(want, g.Name)
			}
		}
		carried := maps.Clone(nodeLabels)
		carried[NameOf(node).Key] = node
		for _, g := range index.Selecting(node, nodeLabels) {
			got = append(got, g.Name)
			if some, all := index.Labels(g.Name); !all && !carries(carried, some) {
				t.Fatalf("group %s would not be found by %v", g.Name, some)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("found %v, want %v", got, want)
		}
	})
}

func BenchmarkAssign(b *testing.B) {
	all := make([]*gm.NodeGroup, 0, 100)
	for i := range 100 {
		all = append(all, nodeGroup("g"+string(rune('A'+i)), createdAt(int64(i)), matching("x", string(rune('A'+i%26)))))
	}
	groups := compiled(b, all...)
	b.Run("incumbent", func(b *testing.B) {
		nodeLabels := map[string]string{"x": "Z", gm.NodeGroupLabel: "gZ"}
		b.ReportAllocs()
		for b.Loop() {
			groups.Assign("n", nodeLabels)
		}
	})
	b.Run("last of a hundred", func(b *testing.B) {
		nodeLabels := map[string]string{"x": "none"}
		b.ReportAllocs()
		for b.Loop() {
			groups.Assign("n", nodeLabels)
		}
	})
}

// TestNewcomersMatchTheGroupsSelector checks that a node meets one of the lists
// if, and only if, the group selects the node by its labels.
func TestNewcomersMatchTheGroupsSelector(t *testing.T) {
	fits := func(ways [][]corev1.NodeSelectorRequirement, node map[string]string) bool {
		for _, way := range ways {
			all := true
			for _, r := range way {
				value, has := node[r.Key]
				switch r.Operator {
				case corev1.NodeSelectorOpIn:
					all = all && has && slices.Contains(r.Values, value)
				case corev1.NodeSelectorOpNotIn:
					all = all && !slices.Contains(r.Values, value)
				case corev1.NodeSelectorOpExists:
					all = all && has
				case corev1.NodeSelectorOpDoesNotExist:
					all = all && !has
				default:
					t.Fatalf("operator %q", r.Operator)
				}
			}
			if all {
				return true
			}
		}
		return false
	}
	expression := func(key string, operator metav1.LabelSelectorOperator, values ...string) metav1.LabelSelectorRequirement {
		return metav1.LabelSelectorRequirement{Key: key, Operator: operator, Values: values}
	}
	for name, spec := range map[string]gm.NodeGroupSpec{
		"labels":      {MatchLabels: map[string]string{"a": "1", "b": "2"}},
		"expressions": {MatchExpressions: []metav1.LabelSelectorRequirement{expression("a", metav1.LabelSelectorOpIn, "1", "2"), expression("b", metav1.LabelSelectorOpNotIn, "2")}},
		"existence":   {MatchExpressions: []metav1.LabelSelectorRequirement{expression("a", metav1.LabelSelectorOpExists), expression("b", metav1.LabelSelectorOpDoesNotExist)}},
		"either":      {MatchLabels: map[string]string{"a": "1"}, MatchExpressions: []metav1.LabelSelectorRequirement{expression("b", metav1.LabelSelectorOpExists)}},
		"names":       {Nodes: []string{"other"}},
		"a mistake":   {MatchLabels: map[string]string{"not a key": "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := &gm.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "g"}, Spec: spec}
			group, _ := Compile(g)
			ways := Newcomers(g)
			if going := nodeGroup("g", deleting, func(g *gm.NodeGroup) { g.Spec = spec }); Newcomers(going) != nil {
				t.Error("a group that is being deleted takes nodes in")
			}
			for _, a := range []string{"", "1", "2"} {
				for _, b := range []string{"", "1", "2"} {
					node := map[string]string{}
					if a != "" {
						node["a"] = a
					}
					if b != "" {
						node["b"] = b
					}
					want := group.Selects("node", node) && !group.Deleting
					if got := fits(ways, node); got != want {
						t.Errorf("a node with %v comes: %t, want %t", node, got, want)
					}
				}
			}
		})
	}
}
