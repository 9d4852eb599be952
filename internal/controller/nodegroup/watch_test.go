package nodegroup

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
	for name, tc := range map[string]struct {
		before, after client.Object
		want          string
	}{
		"a group is created":                            {after: build.NodeGroup("g"), want: "g"},
		"a group is deleted":                            {before: build.NodeGroup("g"), want: "g"},
		"the status of a group":                         {before: build.NodeGroup("g"), after: build.NodeGroup("g"), want: "g"},
		"a node is created":                             {after: member(), want: "by-name"},
		"a node is deleted":                             {before: member(), want: "by-name"},
		"no group concerns it":                          {after: build.Node("x")},
		"a group selects it":                            {after: build.Node("x", build.Label("site", "x")), want: "by-label"},
		"its label names a group":                       {after: build.Node("x", build.InGroup("labelled")), want: "labelled"},
		"its label names a group that is being deleted": {after: build.Node("x", build.InGroup("deleting")), want: "deleting"},
		"several groups concern it":                     {after: build.Node("n", build.Label("site", "x"), build.InGroup("labelled")), want: "by-label by-name labelled"},
		"no group selects it any more":                  {before: build.Node("x", build.Label("site", "x")), after: build.Node("x", build.Label("site", "y")), want: "by-label"},

		"a label changes":          {before: member(), after: member(build.Label("zone", "b")), want: "by-name"},
		"a label is new":           {before: member(), after: member(build.Label("rack", "1")), want: "by-name"},
		"the node is not Ready":    {before: member(), after: member(ready(corev1.ConditionFalse)), want: "by-name"},
		"its readiness is Unknown": {before: member(), after: member(ready(corev1.ConditionUnknown)), want: "by-name"},
		"another node of the name": {before: member(), after: member(build.UID("younger")), want: "by-name"},
		"nothing changes":          {before: member(), after: member()},
		"an annotation changes":    {before: member(), after: member(build.Annotation("a", "b"))},
		"a heartbeat":              {before: member(), after: member(build.With(func(n *corev1.Node) { n.Status.Conditions[0].LastHeartbeatTime = metav1.Now() }))},
		"a taint changes":          {before: member(), after: member(build.With(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k"}} }))},
	} {
		t.Run(name, func(t *testing.T) {
			var queue watched.Queue
			queue.Send(t.Context(), newWatchedSite(t).watches(), tc.before, tc.after)
			if got := queue.Take(); got != tc.want {
				t.Errorf("%q are enqueued, want %q", got, tc.want)
			}
		})
	}
	t.Run("the label of a node names no group", func(t *testing.T) {
		var queue watched.Queue
		queue.Send(t.Context(), newWatchedSite(t).watches(), nil, build.Node("x", build.InGroup("nobody")))
		if got := queue.Take(); got != "nobody" {
			t.Errorf("%q are enqueued, want what the label names", got)
		}
	})
}

// newWatchedSite has groups that select nodes in each possible way.
func newWatchedSite(t *testing.T) *site {
	return newSite(t,
		build.NodeGroup("by-name", build.Selects("n")), build.NodeGroup("by-label", selects(map[string]string{"site": "x"})),
		build.NodeGroup("labelled"), build.NodeGroup("unconcerned", build.Selects("m")), build.NodeGroup("deleting", build.Deleting("example.com/f")),
	)
}
