package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

func groupOf(name string, spec gm.NodeGroupSpec) *gm.NodeGroup {
	return &gm.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
}

// TestNodeGroupUnion is scenario 26: names, labels, or both, disjoint or
// overlapping, select their union. A condition warns of labels that a kubelet may set.
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
			var g gm.NodeGroup
			if err := f.client.Get(f.ctx, types.NamespacedName{Name: "union"}, &g); err != nil {
				t.Fatal(err)
			}
			warning := gm.ReasonNodesCannotJoin
			if len(tc.spec.MatchLabels)+len(tc.spec.MatchExpressions) > 0 {
				warning = gm.ReasonNodesCanJoin
			}
			if c := meta.FindStatusCondition(g.Status.Conditions, gm.ConditionMembershipProtected); c == nil || c.Reason != warning || c.ObservedGeneration != g.Generation {
				t.Errorf("condition %s is %+v, want %s", gm.ConditionMembershipProtected, c, warning)
			}
			f.eventually(patience, "the nodes carry its label", func() error { // the status may be there before the last label is
				for _, node := range tc.want {
					if got := f.groupLabel(node); got != "union" {
						return fmt.Errorf("node %s carries %q", node, got)
					}
				}
				return nil
			})
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

// TestNodeGroupFollowsNodes is scenario 28: nodes join and leave with their labels, all
// of which must match; Atoll's own label is restored when it is removed by hand, and
// nothing else on a node is changed.
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

// TestNamedNodeComesLater is scenario 27.
func TestNamedNodeComesLater(t *testing.T) {
	f := newFixture(t)
	f.nodeGroup(groupOf("named", gm.NodeGroupSpec{Nodes: []string{"named-0"}}))
	f.eventually(patience, "the group says that the node does not exist", func() error {
		var g gm.NodeGroup
		if err := f.client.Get(f.ctx, types.NamespacedName{Name: "named"}, &g); err != nil {
			return err
		}
		if len(g.Status.NodeStatuses) != 1 || g.Status.NodeStatuses[0].SelectionStatus != gm.SelectionFailed {
			return fmt.Errorf("status is %+v", g.Status)
		}
		return nil
	})
	f.nodes(nil, "named-0")
	f.eventually(patience, "it joins", func() error { return f.contains("named", "named-0") })
}

// TestNewNodesFindTheirGroup is scenario 30: a new node joins the group that matches it
// at once, also if there is another group that names its nodes.
func TestNewNodesFindTheirGroup(t *testing.T) {
	f := newFixture(t)
	f.nodeGroup(groupOf("finds-names", gm.NodeGroupSpec{Nodes: []string{"elsewhere"}}))
	f.nodeGroup(groupOf("finds-labels", gm.NodeGroupSpec{MatchLabels: map[string]string{"site": "finds"}}))
	f.nodes(map[string]string{"site": "finds"}, "finds-0")
	f.eventually(patience, "the node joins", func() error { return f.contains("finds-labels", "finds-0") })
}

// TestZoneLabelsNeverChange is scenario 31: the cloud's labels do not change when a node
// joins or leaves, or when the group is deleted.
func TestZoneLabelsNeverChange(t *testing.T) {
	f := newFixture(t)
	zone := map[string]string{"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/region": "r1"}
	f.nodes(zone, "zone-0")
	kept := func() error {
		node, err := f.kube.CoreV1().Nodes().Get(f.ctx, "zone-0", metav1.GetOptions{})
		for key, value := range zone {
			if err == nil && node.Labels[key] != value {
				err = fmt.Errorf("%s is %q", key, node.Labels[key])
			}
		}
		return err
	}
	f.nodeGroup(groupOf("zone", gm.NodeGroupSpec{MatchLabels: map[string]string{"topology.kubernetes.io/zone": "z1"}}))
	f.eventually(patience, "it joins", func() error { return f.contains("zone", "zone-0") })
	if err := kept(); err != nil {
		t.Errorf("after joining: %v", err)
	}
	f.deleteNodeGroup("zone")
	if got := f.groupLabel("zone-0"); got != "" {
		t.Errorf("after the group's end the node carries %q", got)
	}
	if err := kept(); err != nil {
		t.Errorf("after the group's end: %v", err)
	}
}

// TestPodsOfADeletedGroupMoveOneByOne is scenario 32: the nodes of a deleted group lose its
// label, and its pods move one by one to groups with room.
func TestPodsOfADeletedGroupMoveOneByOne(t *testing.T) {
	tier.All(t, "pods move one by one after their group is deleted, in two forms: 15 s")
	inBothWays(t, func(t *testing.T, f *fixture) {
		f.group("end-a", 1)
		f.group("end-b", 1)
		f.create(weights("policy", "end-a", 1, "end-b", 1))
		f.create(deployment("app", 4, "policy"))
		f.eventually(patience, "2:2", func() error {
			if err := f.allReady("app", 4); err != nil {
				return err
			}
			return f.spreadIs("app", map[string]int{"end-a": 2, "end-b": 2})
		})
		f.cordon(true, "end-a-0")
		f.deleteNodeGroup("end-b")
		f.eventually(patience, "the policy says that there is no room", func() error { return f.reason("policy", gm.ReasonNoFeasibleTarget) })
		f.always(2*time.Second, "nothing moves", func() error { return f.spreadIs("app", map[string]int{"end-a": 2, "": 2}) })
		watch := f.watchAvailability("app", 4)
		f.cordon(false, "end-a-0")
		f.eventually(patience, "all are in the group that is left", func() error {
			if err := f.allReady("app", 4); err != nil {
				return err
			}
			return f.spreadIs("app", map[string]int{"end-a": 4})
		})
		if worst, gone := watch(); worst < 3 || gone != 2 {
			t.Errorf("at the worst moment %d of 4 were available, %d were evicted, want 3 and 2", worst, gone)
		}
	})
}

// TestPodsFromBeforeThePolicyCount is scenario 40: pods that ran before are counted where
// they are; pods that are in the right place are not restarted or moved.
func TestPodsFromBeforeThePolicyCount(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fixture) {
		f.group("old-a", 1)
		f.group("old-b", 1)
		f.cordon(true, "old-b-0")
		others := f.cordonAllBut("old-a-0", "old-b-0")
		defer f.cordon(false, others...)
		f.create(deployment("app", 3, ""))
		f.eventually(patience, "three in a", func() error { return f.spreadIs("app", map[string]int{"old-a": 3}) })
		f.cordon(true, "old-a-0")
		f.cordon(false, "old-b-0")
		f.scale("app", 5)
		f.eventually(patience, "two in b", func() error {
			if err := f.allReady("app", 5); err != nil {
				return err
			}
			return f.spreadIs("app", map[string]int{"old-a": 3, "old-b": 2})
		})
		f.cordon(false, "old-a-0")
		deleted := f.watchDeletions("app")
		f.create(weights("policy", "old-a", 3, "old-b", 2))
		f.label(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "app"}}, map[string]any{gm.RequiredPropagationPolicyLabel: "policy"})
		f.eventually(patience, "the policy is satisfied", func() error { return f.reason("policy", gm.ReasonSatisfied) })
		f.scale("app", 10)
		f.eventually(patience, "6:4", func() error { return f.spreadIs("app", map[string]int{"old-a": 6, "old-b": 4}) })
		if n := deleted(); n != 0 {
			t.Errorf("%d pods were deleted", n)
		}
	})
}

// cordonAllBut cordons every open node except the given ones, and returns the names of
// the cordoned nodes.
func (f *fixture) cordonAllBut(keep ...string) []string {
	f.Helper()
	list, err := f.kube.CoreV1().Nodes().List(f.ctx, metav1.ListOptions{})
	if err != nil {
		f.Fatal(err)
	}
	var names []string
	for _, node := range list.Items {
		if !node.Spec.Unschedulable && !slices.Contains(keep, node.Name) {
			names = append(names, node.Name)
		}
	}
	f.cordon(true, names...)
	return names
}
