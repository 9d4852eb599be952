package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

func groupOf(name string, spec gm.NodeGroupSpec) *gm.NodeGroup {
	return &gm.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
}

// TestNodeGroupUnion is scenario 26: names, labels, or both, disjoint or
// overlapping, select their union.
func TestNodeGroupUnion(t *testing.T) {
	f := newFixture(t)
	f.nodes(map[string]string{"site": "union"}, "union-a", "union-b")
	f.nodes(nil, "union-c", "union-d")
	labels := map[string]string{"site": "union"}
	for name, tc := range map[string]struct {
		spec gm.NodeGroupSpec
		want []string
	}{
		"names only":             {gm.NodeGroupSpec{Nodes: []string{"union-c"}}, []string{"union-c"}},
		"labels only":            {gm.NodeGroupSpec{MatchLabels: labels}, []string{"union-a", "union-b"}},
		"names beside labels":    {gm.NodeGroupSpec{Nodes: []string{"union-d"}, MatchLabels: labels}, []string{"union-a", "union-b", "union-d"}},
		"names within labels":    {gm.NodeGroupSpec{Nodes: []string{"union-a"}, MatchLabels: labels}, []string{"union-a", "union-b"}},
		"expressions":            {gm.NodeGroupSpec{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "site", Operator: metav1.LabelSelectorOpExists}}}, []string{"union-a", "union-b"}},
		"no selection":           {gm.NodeGroupSpec{}, nil},
		"matchLabels: {}":        {gm.NodeGroupSpec{MatchLabels: map[string]string{}}, nil},
		"labels that nobody has": {gm.NodeGroupSpec{MatchLabels: map[string]string{"site": "elsewhere"}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fixture{T: t, ctx: f.ctx, environment: f.environment}
			f.nodeGroup(groupOf("union", tc.spec))
			f.eventually(patience, "the group has its members", func() error {
				var g gm.NodeGroup
				if err := f.client.Get(f.ctx, types.NamespacedName{Name: "union"}, &g); err != nil {
					return err
				}
				if g.Status.ObservedGeneration != g.Generation || g.Status.Total != int32(len(tc.want)) {
					return fmt.Errorf("status is %+v", g.Status)
				}
				return f.contains("union", tc.want...)
			})
			for _, node := range tc.want {
				if got := f.groupLabel(node); got != "union" {
					t.Errorf("node %s carries %q", node, got)
				}
			}
		})
		f.eventually(patience, "no label is left", func() error {
			for _, node := range []string{"union-a", "union-b", "union-c", "union-d"} {
				if got := f.groupLabel(node); got != "" {
					return fmt.Errorf("node %s carries %q", node, got)
				}
			}
			return nil
		})
	}
}

func (f *fixture) groupLabel(node string) string {
	f.Helper()
	n, err := f.kube.CoreV1().Nodes().Get(f.ctx, node, metav1.GetOptions{})
	if err != nil {
		f.Fatal(err)
	}
	return n.Labels[gm.NodeGroupLabel]
}

// TestNodeGroupFollowsNodes is scenario 28: nodes join and leave with their
// labels, all of which must match; our own label comes back when it is taken
// off by hand, and nothing else on a node is touched.
func TestNodeGroupFollowsNodes(t *testing.T) {
	f := newFixture(t)
	f.nodes(map[string]string{"site": "follow", "topology.kubernetes.io/zone": "cloud-zone"}, "follow-a")
	f.nodes(map[string]string{"site": "follow", "tier": "edge"}, "follow-b")
	f.nodeGroup(groupOf("follow", gm.NodeGroupSpec{MatchLabels: map[string]string{"site": "follow", "tier": "edge"}}))
	f.eventually(patience, "only the node with both labels is a member", func() error { return f.contains("follow", "follow-b") })

	node := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	f.label(node("follow-a"), map[string]any{"tier": "edge"})
	f.eventually(patience, "the node joins", func() error { return f.contains("follow", "follow-a", "follow-b") })

	f.label(node("follow-a"), map[string]any{gm.NodeGroupLabel: nil})
	f.eventually(patience, "the label comes back", func() error {
		if got := f.groupLabel("follow-a"); got != "follow" {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
	f.label(node("follow-a"), map[string]any{gm.NodeGroupLabel: "somebody-else"})
	f.eventually(patience, "the label is put right", func() error {
		if got := f.groupLabel("follow-a"); got != "follow" {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})

	f.label(node("follow-a"), map[string]any{"tier": nil})
	f.eventually(patience, "the node leaves", func() error {
		if got := f.groupLabel("follow-a"); got != "" {
			return fmt.Errorf("it carries %q", got)
		}
		return f.contains("follow", "follow-b")
	})
	n, err := f.kube.CoreV1().Nodes().Get(f.ctx, "follow-a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n.Labels["topology.kubernetes.io/zone"] != "cloud-zone" {
		t.Errorf("the cloud's zone label is %q", n.Labels["topology.kubernetes.io/zone"])
	}
}
