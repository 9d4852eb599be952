package nodepool

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/build"
	"github.com/atoll-k8s/atoll/internal/testing/watched"
)

// TestWatches sends changes through the tables of both controllers. A change of a node
// enqueues the node if a pool can give what changed, and the pools that the node
// concerned before or concerns now. A change of a pool enqueues the pool, and the nodes
// that carry its attributes, name it or match its selector.
func TestWatches(t *testing.T) {
	inX, inY := build.Label("site", "x"), build.Label("site", "y")
	carries := build.Annotation(apps.NodePoolAnnotation, `{"pool":"x"}`)
	condition := func(change func(*corev1.NodeCondition)) build.Option {
		return build.With(func(n *corev1.Node) { change(&n.Status.Conditions[0]) })
	}
	x := func(changes ...func(*apps.NodePool)) *apps.NodePool {
		p := build.NodePool("x", selects("site", "x"))
		for _, change := range changes {
			change(p)
		}
		return p
	}
	for name, tc := range map[string]struct {
		before, after client.Object
		nodes, pools  string
	}{
		"a node is created":           {after: build.Node("n", inX), nodes: "n", pools: "x"},
		"a node is deleted":           {before: build.Node("n", inX, names("chosen")), nodes: "n", pools: "chosen x"},
		"its readiness changes":       {before: build.Node("n", inX), after: build.Node("n", inX, condition(func(c *corev1.NodeCondition) { c.Status = corev1.ConditionFalse })), pools: "x"},
		"its heartbeat changes":       {before: build.Node("n", inX), after: build.Node("n", inX, condition(func(c *corev1.NodeCondition) { c.LastHeartbeatTime = metav1.Now() }))},
		"it matches another selector": {before: build.Node("n", inX), after: build.Node("n", inY), nodes: "n", pools: "x y"},
		"its label names another pool": {
			before: build.Node("n", names("other")), after: build.Node("n", names("chosen"), inX), nodes: "n", pools: "chosen other x",
		},
		"its taints change": {
			before: build.Node("n", names("other")), nodes: "n", pools: "other",
			after: build.Node("n", names("other"), build.With(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k"}} })),
		},
		"its annotation changes, and no pool concerns it": {before: build.Node("n"), after: build.Node("n", build.Annotation("a", "b")), nodes: "n"},

		"a pool is created":       {after: x(), nodes: "carrying matching naming", pools: "x"},
		"a pool is deleted":       {before: x(), nodes: "carrying naming", pools: "x"},
		"its spec changes":        {before: x(), after: x(func(p *apps.NodePool) { p.Generation++ }), nodes: "carrying matching naming", pools: "x"},
		"its finalizer is set":    {before: x(func(p *apps.NodePool) { p.Finalizers = nil }), after: x(), nodes: "carrying matching naming", pools: "x"},
		"its deletion begins":     {before: x(), after: x(func(p *apps.NodePool) { p.DeletionTimestamp = &metav1.Time{} }), nodes: "carrying matching naming", pools: "x"},
		"its status changes only": {before: x(), after: x(func(p *apps.NodePool) { p.Status.ReadyNode = 3 }), pools: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, x(), build.NodePool("y", selects("site", "y")), build.NodePool("chosen"), build.NodePool("other"),
				build.Node("matching", inX), build.Node("naming", names("x")), build.Node("carrying", carries), build.Node("unconcerned", names("y"), inY))
			if pool, is := tc.before.(*apps.NodePool); is && tc.after == nil { // the cache has no deleted object
				pool = s.pool(pool.Name)
				pool.Finalizers = nil
				if err := errors.Join(s.Client.Update(t.Context(), pool), s.Client.Delete(t.Context(), pool)); err != nil {
					t.Fatal(err)
				}
			}
			var nodes, pools watched.Queue
			if err := s.poolRequests.Start(t.Context(), &pools); err != nil {
				t.Fatal(err)
			}
			nodes.Send(t.Context(), s.members().NodeWatches(), tc.before, tc.after)
			pools.Send(t.Context(), s.members().GroupWatches(), tc.before, tc.after)
			if got := nodes.Take(); got != tc.nodes {
				t.Errorf("nodes %q are enqueued, want %q", got, tc.nodes)
			}
			if got := pools.Take(); got != tc.pools {
				t.Errorf("pools %q are enqueued, want %q", got, tc.pools)
			}
		})
	}
}
