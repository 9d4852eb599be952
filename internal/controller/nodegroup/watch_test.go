package nodegroup

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/members"
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
		"a group is deleted":              {before: g(), nodes: "carrying", groups: "by-label"},
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
			if tc.after == nil { // the cache has no deleted object
				if err := s.Client.Delete(t.Context(), tc.before); client.IgnoreNotFound(err) != nil {
					t.Fatal(err)
				}
			}
			var nodes, groups watched.Queue
			if err := s.groupRequests.Start(t.Context(), &groups); err != nil {
				t.Fatal(err)
			}
			nodes.Send(t.Context(), s.members().NodeWatches(), tc.before, tc.after)
			groups.Send(t.Context(), s.members().GroupWatches(), tc.before, tc.after)
			if got := nodes.Take(); got != tc.nodes {
				t.Errorf("nodes %q are enqueued, want %q", got, tc.nodes)
			}
			if got := groups.Take(); got != tc.groups {
				t.Errorf("groups %q are enqueued, want %q", got, tc.groups)
			}
		})
	}
}

// TestEventsAreFollowed: of groups that are created, changed and deleted while the controllers run.
func TestEventsAreFollowed(t *testing.T) {
	ctx, s := t.Context(), newSite(t, build.NodeGroup("first", build.Selects("other")), build.Node("n", build.Label("site", "x")), build.Node("bare"))
	if _, err := s.compiled(ctx); err != nil { // as a pass before
		t.Fatal(err)
	}
	send := func(before, after client.Object, nodes string, want map[string]string) {
		t.Helper()
		var q watched.Queue
		q.Send(ctx, s.members().NodeWatches(), before, after)
		got := q.Take()
		if got != nodes {
			t.Errorf("nodes %q are enqueued, want %q", got, nodes)
		}
		for _, node := range strings.Fields(got) {
			if result, err := s.reconcileNode(ctx, request(node)); err != nil || result.RequeueAfter != 0 {
				t.Errorf("node %s comes back after %s, error %v", node, result.RequeueAfter, err)
			}
		}
		if diff := cmp.Diff(want, s.labels()); diff != "" {
			t.Errorf("wrong labels (-want +got):\n%s", diff)
		}
	}
	second := build.NodeGroup("second", selects(map[string]string{"site": "x"}), build.With(func(g *gm.NodeGroup) { g.Finalizers = []string{gm.NodeGroupFinalizer} }))
	if err := s.Client.Create(ctx, second); err != nil {
		t.Fatal(err)
	}
	if result, err := s.Reconcile(ctx, request("second")); err != nil || result.RequeueAfter != members.Debounce { // before the event
		t.Errorf("comes back after %s, error %v", result.RequeueAfter, err)
	}
	send(nil, second, "n", map[string]string{"n": "second"})

	before := s.group("second")
	changed := s.group("second")
	changed.Generation++
	changed.Spec = gm.NodeGroupSpec{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "site", Operator: metav1.LabelSelectorOpDoesNotExist}}}
	if err := s.Client.Update(ctx, changed); err != nil {
		t.Fatal(err)
	}
	send(before, changed, "bare n", map[string]string{"bare": "second"})

	before = s.group("second")
	changed = s.group("second")
	changed.Finalizers = nil // by force
	if err := errors.Join(s.Client.Update(ctx, changed), s.Client.Delete(ctx, changed)); err != nil {
		t.Fatal(err)
	}
	send(before, nil, "bare", map[string]string{})
}

// TestTheNodesOfAGroupAreFoundByEveryLabel: also by one whose key is a field of the node.
func TestTheNodesOfAGroupAreFoundByEveryLabel(t *testing.T) {
	for _, key := range []string{"site", "metadata.name", "name"} {
		s := newSite(t, build.NodeGroup("g", selects(map[string]string{key: "v"})), build.Node("n", build.Label(key, "v")))
		if got := s.nodesOf(t.Context(), "g"); len(got) != 1 {
			t.Errorf("%s: a change of the group enqueues %q", key, got)
		}
	}
}

// TestANodeIsNotForgottenByAGroupThatGoes before it has its finalizer: the next group gets it.
func TestANodeIsNotForgottenByAGroupThatGoes(t *testing.T) {
	s := newSite(t, build.NodeGroup("old", created(1), build.Selects("n")), build.NodeGroup("young", created(2), build.Selects("n")), build.Node("n"))
	_, _ = s.pass("young")
	if result, err := s.reconcileNode(t.Context(), request("n")); err != nil || result.RequeueAfter != members.AdoptedWithin {
		t.Fatalf("comes back after %s, error %v", result.RequeueAfter, err)
	}
	if err := s.Client.Delete(t.Context(), s.group("old")); err != nil {
		t.Fatal(err)
	}
	s.reconcile("young")
	if got := s.labels()["n"]; got != "young" {
		t.Errorf("the node is in group %q", got)
	}
}

// TestTheStartListsGroupsOnce, not for each of them.
func TestTheStartListsGroupsOnce(t *testing.T) {
	s := newSite(t, build.NodeGroup("a", build.Selects("n")), build.NodeGroup("b", build.Selects("n")), build.Node("n"))
	lists := 0
	s.Reconciler.Client = interceptor.NewClient(s.Client.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			lists++
			return c.List(ctx, list, opts...)
		},
	})
	var q watched.Queue
	for _, name := range []string{"a", "b"} {
		s.members().OfGroups().Create(t.Context(), event.CreateEvent{Object: s.group(name), IsInInitialList: true}, &q)
	}
	if got := q.Take(); got != "" || lists != 0 {
		t.Errorf("nodes %q are enqueued after %d lists", got, lists)
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
