package nodegroup

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/build"
	"github.com/atoll-k8s/atoll/internal/testing/watched"
)

func TestWatches(t *testing.T) {
	ready := func(is corev1.ConditionStatus) build.Option {
		return build.With(func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: is}}
		})
	}
	// member is a node that the group by-name selects.
	member := func(options ...build.Option) *corev1.Node {
		return build.Node("n", append([]build.Option{build.Label("zone", "a"), ready(corev1.ConditionTrue)}, options...)...)
	}
	g := func(changes ...func(*gm.NodeGroup)) *gm.NodeGroup {
		group := build.NodeGroup("by-label", selects(map[string]string{"site": "x"}))
		for _, change := range changes {
			change(group)
		}
		return group
	}
	for name, tc := range map[string]struct {
		before, after client.Object
		nodes, groups string
	}{
		"a group is created":              {after: g(), nodes: "carrying matching", groups: "by-label"},
		"a group is deleted":              {before: g(), nodes: "carrying matching", groups: "by-label"},
		"its spec changes":                {before: g(), after: g(func(g *gm.NodeGroup) { g.Generation++ }), nodes: "carrying matching", groups: "by-label"},
		"its deletion begins":             {before: g(), after: g(func(g *gm.NodeGroup) { g.DeletionTimestamp = &metav1.Time{} }), nodes: "carrying matching", groups: "by-label"},
		"its finalizer is set":            {before: g(func(g *gm.NodeGroup) { g.Finalizers = nil }), after: g(func(g *gm.NodeGroup) { g.Finalizers = []string{gm.NodeGroupFinalizer} }), nodes: "carrying matching", groups: "by-label"},
		"the status of a group":           {before: g(), after: g(func(g *gm.NodeGroup) { g.Status.Total = 3 }), groups: "by-label"},
		"a group that does not exist":     {before: build.NodeGroup("gone"), nodes: "lost", groups: "gone"},
		"a node is created":               {after: member(), nodes: "n", groups: "by-name"},
		"a node is deleted":               {before: member(), nodes: "n", groups: "by-name"},
		"no group concerns it":            {after: build.Node("x"), nodes: "x"},
		"a group selects it":              {after: build.Node("x", build.Label("site", "x")), nodes: "x", groups: "by-label"},
		"its label names a group":         {after: build.Node("x", build.InGroup("labelled")), nodes: "x", groups: "labelled"},
		"its label names no group":        {after: build.Node("x", build.InGroup("nobody")), nodes: "x", groups: "nobody"},
		"its label names one that leaves": {after: build.Node("x", build.InGroup("deleting")), nodes: "x", groups: "deleting"},
		"several groups concern it":       {after: build.Node("n", build.Label("site", "x"), build.InGroup("labelled")), nodes: "n", groups: "by-label by-name labelled"},
		"no group selects it any more":    {before: build.Node("x", build.Label("site", "x")), after: build.Node("x", build.Label("site", "y")), nodes: "x", groups: "by-label"},

		"a label changes":          {before: member(), after: member(build.Label("zone", "b")), nodes: "n", groups: "by-name"},
		"a label is new":           {before: member(), after: member(build.Label("rack", "1")), nodes: "n", groups: "by-name"},
		"the node is not Ready":    {before: member(), after: member(ready(corev1.ConditionFalse)), groups: "by-name"},
		"its readiness is Unknown": {before: member(), after: member(ready(corev1.ConditionUnknown)), groups: "by-name"},
		"another node of the name": {before: member(), after: member(build.UID("younger")), nodes: "n", groups: "by-name"},
		"nothing changes":          {before: member(), after: member()},
		"an annotation changes":    {before: member(), after: member(build.Annotation("a", "b"))},
		"a heartbeat":              {before: member(), after: member(build.With(func(n *corev1.Node) { n.Status.Conditions[0].LastHeartbeatTime = metav1.Now() }))},
		"a taint changes":          {before: member(), after: member(build.With(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k"}} }))},
	} {
		t.Run(name, func(t *testing.T) {
			s := newWatchedSite(t)
			var nodes, groups watched.Queue
			if err := s.groupRequests.Start(t.Context(), &groups); err != nil {
				t.Fatal(err)
			}
			nodes.Send(t.Context(), s.nodeWatches(), tc.before, tc.after)
			groups.Send(t.Context(), s.groupWatches(), tc.before, tc.after)
			if got := nodes.Take(); got != tc.nodes {
				t.Errorf("nodes %q are enqueued, want %q", got, tc.nodes)
			}
			if got := groups.Take(); got != tc.groups {
				t.Errorf("groups %q are enqueued, want %q", got, tc.groups)
			}
		})
	}
}

// newWatchedSite has groups that select nodes in each possible way.
func newWatchedSite(t *testing.T) *site {
	return newSite(t,
		build.NodeGroup("by-name", build.Selects("n")), build.NodeGroup("by-label", selects(map[string]string{"site": "x"})),
		build.NodeGroup("labelled"), build.NodeGroup("unconcerned", build.Selects("m")), build.NodeGroup("deleting", build.Deleting("example.com/f")),
		build.Node("matching", build.Label("site", "x")), build.Node("carrying", build.InGroup("by-label")), build.Node("lost", build.InGroup("gone")), build.Node("other"),
	)
}
