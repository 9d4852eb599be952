package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// chosenBy returns a pool's spec with a selector and attributes.
func chosenBy(selector *apps.NodeSelector, spec apps.NodePoolSpec) apps.NodePoolSpec {
	spec.Selector = selector
	return spec
}

// TestPoolSelectsNodes is scenario 36: nodes that the selector matches are in the pool
// and carry its label, nodes that do not match any more leave, and a changed selector is
// evaluated again (docs/sources.md, P2).
func TestPoolSelectsNodes(t *testing.T) {
	f := newFixture(t)
	f.nodes(map[string]string{"t.io/site": "a"}, "query-0", "query-1")
	f.nodes(map[string]string{"t.io/site": "b"}, "query-2")
	f.pools(poolOf("query", chosenBy(selects("t.io/site", "a"), given("x"))))
	site := func(c carries, site string) carries {
		c.labels["t.io/site"] = site
		return c
	}
	f.eventually(patience, "two nodes match", func() error { return f.has("query", "query-0", "query-1") })
	f.becomes("query-0", "query", site(carrying("x"), "a"))
	f.editPool("query", map[string]any{"selector": map[string]any{"matchLabels": nil, "matchExpressions": []any{
		map[string]any{"key": "t.io/site", "operator": "In", "values": []string{"b", "c"}},
	}}})
	f.eventually(patience, "the other matches", func() error { return f.has("query", "query-2") })
	own := carries{labels: map[string]string{}, annotations: map[string]string{}}
	f.becomes("query-0", "", site(own, "a"))
	f.label(f.node("query-0"), map[string]any{"t.io/site": "c"})
	f.eventually(patience, "a node that matches now joins", func() error { return f.has("query", "query-0", "query-2") })
	f.label(f.node("query-0"), map[string]any{apps.NodePoolLabel: nil})
	f.becomes("query-0", "query", site(carrying("x"), "c"))
	f.label(f.node("query-0"), map[string]any{"t.io/site": nil})
	f.becomes("query-0", "", carries{labels: map[string]string{}, annotations: map[string]string{}})
	f.eventually(patience, "the status has it", func() error { return f.has("query", "query-2") })
}

// TestPoolMayOverwriteItsSelectorLabel: the selector is matched against the node's own labels.
// So a pool that gives another value under the key that it selects by keeps its nodes,
// and a label that it gives brings no node into another pool.
func TestPoolMayOverwriteItsSelectorLabel(t *testing.T) {
	f := newFixture(t)
	f.nodes(map[string]string{"t.io/l": "mine"}, "self-0")
	f.pools(poolOf("self", chosenBy(selects("t.io/l", "mine"), given("x"))), poolOf("self-other", chosenBy(selects("t.io/l", "x"), given("y"))))
	f.becomes("self-0", "self", carrying("x"))
	f.always(2*time.Second, "it stays as it is", func() error { return f.isIn("self-0", "self", carrying("x")) })
	f.eventually(patience, "the other has none", func() error { return f.has("self-other") })
	f.editPool("self", map[string]any{"selector": nil})
	f.becomes("self-0", "", carries{labels: map[string]string{"t.io/l": "mine"}, annotations: map[string]string{}})
}

// TestNodeSelectedByTwoPoolsJoinsOne: the pool that has a node keeps it, a node without a pool goes
// to the older pool, and the other pool reports it; a label that is written by hand has
// priority over all selectors.
func TestNodeSelectedByTwoPoolsJoinsOne(t *testing.T) {
	f := newFixture(t)
	f.nodes(map[string]string{"t.io/site": "two"}, "two-0")
	selector := selects("t.io/site", "two")
	f.pools(poolOf("two-z", chosenBy(selector, given("z"))))
	in := func(value string) carries {
		c := carrying(value)
		c.labels["t.io/site"] = "two"
		return c
	}
	f.becomes("two-0", "two-z", in("z"))
	f.pools(poolOf("two-a", chosenBy(selector, given("a"))))
	f.eventually(patience, "the second pool says who it lacks", func() error {
		if err := f.poolCondition("two-a", apps.ConditionUncontested, apps.ReasonNodesContested, `"two-0"`); err != nil {
			return err
		}
		return f.poolCondition("two-a", apps.ConditionReady, apps.ReasonNodesContested)
	})
	if err := f.isIn("two-0", "two-z", in("z")); err != nil {
		t.Error(err)
	}

	f.join("two-0", "two-a")
	f.becomes("two-0", "two-a", in("a"))
	f.eventually(patience, "a label by hand is not contested", func() error {
		if err := f.poolCondition("two-z", apps.ConditionUncontested, apps.ReasonUncontested); err != nil {
			return err
		}
		return f.poolCondition("two-a", apps.ConditionReady, apps.ReasonNodesReady)
	})
	f.join("two-0", "")
	f.becomes("two-0", "two-a", in("a"))
	f.eventually(patience, "the other contests it", func() error {
		return f.poolCondition("two-z", apps.ConditionUncontested, apps.ReasonNodesContested)
	})

	// The nodes of a deleted pool move to the other pool in one step, and the pool is
	// removed.
	f.deletePool("two-a")
	f.becomes("two-0", "two-z", in("z"))
	f.poolGoes("two-a")
	f.eventually(patience, "the other has it", func() error { return f.poolCondition("two-z", apps.ConditionReady, apps.ReasonNodesReady) })
}

// TestDeletedPoolWaitsForItsNodes is scenario 34: a deleted pool with nodes stays,
// reports the reason, and changes nothing on them; no new node joins; when all nodes have
// left, by label or by selector, it is removed. An empty pool is removed at once. (Defect
// E7: there was no finalizer, and nodes kept the attributes for ever.)
func TestDeletedPoolWaitsForItsNodes(t *testing.T) {
	f := newFixture(t)
	f.nodes(nil, "end-0", "end-2")
	f.nodes(map[string]string{"t.io/site": "end"}, "end-1")
	f.pools(poolOf("end", chosenBy(selects("t.io/site", "end"), given("x"))), poolOf("end-empty", given("x")))
	f.join("end-0", "end")
	f.eventually(patience, "both join", func() error { return f.has("end", "end-0", "end-1") })
	f.deletePool("end-empty")
	f.poolGoes("end-empty")

	f.deletePool("end")
	f.eventually(patience, "it says why it stays", func() error {
		return f.poolCondition("end", apps.ConditionReady, apps.ReasonNodesLeft, `"end-0"`, `"end-1"`, apps.NodePoolLabel)
	})
	f.join("end-2", "end")
	f.eventually(patience, "a node that comes too late gets an event", func() error { return f.nodeEvent("end-2", apps.ReasonNodePoolMissing) })
	if _, _, recorded := f.on("end-2"); recorded {
		t.Error("a node joined a pool that is being deleted")
	}
	f.label(f.node("end-0"), map[string]any{"t.io/l": "other"})
	f.becomes("end-0", "end", carrying("x")) // still in force

	f.join("end-0", "")
	f.becomes("end-0", "", carries{})
	f.eventually(patience, "it waits for the other", func() error {
		return f.poolCondition("end", apps.ConditionReady, apps.ReasonNodesLeft, `"end-1"`)
	})
	f.editPool("end", map[string]any{"selector": nil})
	f.poolGoes("end")
	f.becomes("end-1", "", carries{labels: map[string]string{"t.io/site": "end"}})
}

// TestForcedAwayPoolIsCleanedUp: when the finalizer of a pool is removed by hand, nothing
// of the pool stays on its nodes.
func TestForcedAwayPoolIsCleanedUp(t *testing.T) {
	f := newFixture(t)
	f.nodes(nil, "forced-0")
	f.nodes(map[string]string{"t.io/site": "forced"}, "forced-1")
	f.pools(poolOf("forced", chosenBy(selects("t.io/site", "forced"), given("x"))))
	f.join("forced-0", "forced")
	f.eventually(patience, "both join", func() error { return f.has("forced", "forced-0", "forced-1") })
	f.kill("atoll-manager")
	f.deletePool("forced")
	f.patch(poolOf("forced", apps.NodePoolSpec{}), map[string]any{"metadata": map[string]any{"finalizers": nil}})
	f.poolGoes("forced")
	f.restart("atoll-manager")
	f.becomes("forced-1", "", carries{labels: map[string]string{"t.io/site": "forced"}})
	f.eventually(patience, "the other node keeps its owner's label only", func() error {
		got, label, recorded := f.on("forced-0")
		if label != "forced" || recorded || len(got.labels)+len(got.annotations)+len(got.taints) > 0 {
			return fmt.Errorf("it carries %v, label %q, record: %t", got, label, recorded)
		}
		return f.nodeEvent("forced-0", apps.ReasonNodePoolMissing)
	})
}

// TestPoolComesAfterItsNodes is scenario 38: a node may name a pool that does not exist
// yet; an event reports it, and the node joins when the pool is created.
func TestPoolComesAfterItsNodes(t *testing.T) {
	f := newFixture(t)
	f.nodes(map[string]string{apps.NodePoolLabel: "late"}, "late-0")
	f.eventually(patience, "there is an event", func() error { return f.nodeEvent("late-0", apps.ReasonNodePoolMissing) })
	f.pools(poolOf("late", given("x")))
	f.becomes("late-0", "late", carrying("x"))
	f.eventually(patience, "the status has it", func() error { return f.has("late", "late-0") })
}

// TestNodeGroupsUsePools: a NodeGroup selects the nodes of a pool by the pool's label,
// and a policy divides pods over two pools.
func TestNodeGroupsUsePools(t *testing.T) {
	f := newFixture(t)
	for _, site := range []string{"used-a", "used-b"} {
		f.nodes(map[string]string{"t.io/site": site}, site+"-0", site+"-1")
		f.pools(poolOf(site, chosenBy(selects("t.io/site", apps.LabelValue(site)), apps.NodePoolSpec{})))
		f.nodeGroup(groupOf(site, gm.NodeGroupSpec{MatchLabels: map[string]string{apps.NodePoolLabel: site}}))
	}
	f.eventually(patience, "the groups have the pools' nodes", func() error {
		if err := f.contains("used-a", "used-a-0", "used-a-1"); err != nil {
			return err
		}
		return f.contains("used-b", "used-b-0", "used-b-1")
	})
	f.create(weights("policy", "used-a", 3, "used-b", 2))
	f.create(deployment("app", 10, "policy"))
	f.eventually(patience, "6:4", func() error { return f.spreadIs("app", map[string]int{"used-a": 6, "used-b": 4}) })
	f.label(f.node("used-a-1"), map[string]any{"t.io/site": "used-b"})
	f.eventually(patience, "the groups follow the pools", func() error {
		if err := f.contains("used-a", "used-a-0"); err != nil {
			return err
		}
		return f.contains("used-b", "used-a-1", "used-b-0", "used-b-1")
	})
}

const nodePool = "apiVersion: apps.openyurt.io/v1alpha1\nkind: NodePool\nmetadata: {name: %s}\nspec: %s"

// TestBadPoolsAreRefused is scenario 37: attributes that cannot be on a node are refused
// when the pool is applied, with a message that names field and error, and without a
// webhook.
func TestBadPoolsAreRefused(t *testing.T) {
	f := newFixture(t)
	long := strings.Repeat("x", 64)
	for name, tc := range map[string]struct {
		name, spec string
		// want are parts of the refusal; none means that the pool is accepted.
		want []string
	}{
		"all that there is": {"p", "{type: Edge, selector: {matchLabels: {a: b}, matchExpressions: [{key: c, operator: Exists}]}, labels: {d.io/e: f}, " +
			"annotations: {g: 'any text: at all'}, taints: [{key: h, effect: NoSchedule}, {key: h, effect: NoExecute, value: i}]}", nil},
		"nothing":                        {"p", "{}", nil},
		"geography":                      {"p", "{labels: {topology.kubernetes.io/zone: hangzhou, topology.kubernetes.io/region: cn}}", nil},
		"an empty value":                 {"p", "{labels: {a: ''}, annotations: {a: ''}}", nil},
		"a time":                         {"p", "{taints: [{key: a, effect: NoExecute, timeAdded: '2020-12-11T00:00:00Z'}]}", nil},
		"a name of 64 characters":        {long, "{}", []string{"metadata.name", "at most 63 characters"}},
		"a type that is none":            {"p", "{type: Fog}", []string{"spec.type", `"Edge", "Cloud"`}},
		"a field that is none":           {"p", "{label: {a: b}}", []string{"unknown field", "spec.label"}},
		"a label key with a space":       {"p", "{labels: {'a b': c}}", []string{"spec.labels", "no label key"}},
		"a label key with two slashes":   {"p", "{labels: {a/b/c: d}}", []string{"spec.labels", "no label key"}},
		"a label key in upper case DNS":  {"p", "{labels: {A.io/b: c}}", []string{"spec.labels", "no label key"}},
		"a label key of 64 characters":   {"p", "{labels: {" + long + ": c}}", []string{"spec.labels", "no label key"}},
		"a long prefix":                  {"p", "{labels: {'" + strings.Repeat("a.", 127) + "b/c': d}}", []string{"spec.labels", "no label key"}},
		"an empty label key":             {"p", "{labels: {'': c}}", []string{"spec.labels", "no label key"}},
		"a label value with a space":     {"p", "{labels: {ok: fine, a: 'b c'}}", []string{"spec.labels.a"}},
		"a label value of 64 characters": {"p", "{labels: {a: " + long + "}}", []string{"spec.labels.a"}},
		"too many labels":                {"p", "{labels: {" + many(65, "k%d: v") + "}}", []string{"spec.labels", "64"}},
		"the host name":                  {"p", "{labels: {kubernetes.io/hostname: x}}", []string{"spec.labels", "cannot give"}},
		"the pool's label":               {"p", "{labels: {apps.openyurt.io/nodepool: x}}", []string{"spec.labels", "cannot give"}},
		"the group's label":              {"p", "{labels: {groupmanagement.kubeedge.io/nodegroup: x}}", []string{"spec.labels", "cannot give"}},
		"our annotations":                {"p", "{annotations: {atoll.dev/nodepool: x}}", []string{"spec.annotations", "cannot give"}},
		"kubectl's annotation":           {"p", "{annotations: {kubectl.kubernetes.io/last-applied-configuration: x}}", []string{"spec.annotations", "cannot give"}},
		"an annotation key with a space": {"p", "{annotations: {'a b': c}}", []string{"spec.annotations", "no annotation key"}},
		"a long annotation":              {"p", "{annotations: {a: " + strings.Repeat("x", 1025) + "}}", []string{"spec.annotations.a", "1024"}},
		"an effect that is none":         {"p", "{taints: [{key: a, effect: Maybe}]}", []string{"spec.taints[0].effect", "NoSchedule"}},
		"no effect":                      {"p", "{taints: [{key: a}]}", []string{"spec.taints[0].effect"}},
		"no key":                         {"p", "{taints: [{effect: NoSchedule}]}", []string{"spec.taints[0].key"}},
		"a taint key with a space":       {"p", "{taints: [{key: 'a b', effect: NoSchedule}]}", []string{"spec.taints[0].key"}},
		"a taint value with a space":     {"p", "{taints: [{key: a, value: 'b c', effect: NoSchedule}]}", []string{"spec.taints[0].value"}},
		"the same taint twice":           {"p", "{taints: [{key: a, effect: NoSchedule}, {key: a, value: b, effect: NoSchedule}]}", []string{"spec.taints[1]", "Duplicate value"}},
		"Kubernetes' taint":              {"p", "{taints: [{key: node.kubernetes.io/not-ready, effect: NoExecute}]}", []string{"spec.taints[0].key", "not a pool's to give"}},
		"an empty selector":              {"p", "{selector: {}}", []string{"spec.selector", "every node of the cluster"}},
		"a selector of nothing":          {"p", "{selector: {matchLabels: {}, matchExpressions: []}}", []string{"spec.selector", "every node of the cluster"}},
		"a bad key to select by":         {"p", "{selector: {matchLabels: {'a b': c}}}", []string{"spec.selector.matchLabels", "no label key"}},
		"a bad value to select by":       {"p", "{selector: {matchLabels: {a: 'b c'}}}", []string{"spec.selector.matchLabels.a"}},
		"a NodeGroup to select by":       {"p", "{selector: {matchLabels: {groupmanagement.kubeedge.io/nodegroup: x}}}", []string{"spec.selector", "NodeGroup"}},
		"an operator that is none":       {"p", "{selector: {matchExpressions: [{key: a, operator: Gt, values: ['1']}]}}", []string{"spec.selector.matchExpressions[0].operator"}},
		"In nothing":                     {"p", "{selector: {matchExpressions: [{key: a, operator: In}]}}", []string{"spec.selector.matchExpressions[0].values", "at least one"}},
		"Exists of a value":              {"p", "{selector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}", []string{"spec.selector.matchExpressions[0].values", "no value"}},
		"a bad expression's key":         {"p", "{selector: {matchExpressions: [{key: 'a b', operator: Exists}]}}", []string{"spec.selector.matchExpressions[0].key"}},
		"a bad expression's value":       {"p", "{selector: {matchExpressions: [{key: a, operator: In, values: ['b c']}]}}", []string{"spec.selector.matchExpressions[0].values[0]"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := f.dryRun(fmt.Appendf(nil, nodePool, tc.name, tc.spec))
			if len(tc.want) == 0 && err != nil {
				t.Errorf("refused: %v", err)
			}
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("the refusal does not say %q: %v", want, err)
				}
			}
		})
	}
}

func many(n int, format string) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(parts, ", ")
}

// TestPoolTypeIsImmutableAndShown is scenario 40: a type that is set cannot be
// changed, and kubectl shows the columns that users know from OpenYurt under the short name
// and in the category.
func TestPoolTypeIsImmutableAndShown(t *testing.T) {
	f := newFixture(t)
	f.nodes(map[string]string{apps.NodePoolLabel: "typed"}, "typed-0")
	f.pools(poolOf("typed", apps.NodePoolSpec{}))
	f.editPool("typed", map[string]any{"type": "Edge"})
	for _, other := range []any{map[string]any{"type": "Cloud"}, map[string]any{"type": nil}, nil} {
		err := f.mergeInto(poolOf("typed", apps.NodePoolSpec{}), map[string]any{"spec": other})
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.type") {
			t.Errorf("a change of spec to %v was answered with %v", other, err)
		}
	}
	f.eventually(patience, "the node is counted", func() error { return f.has("typed", "typed-0") })

	table := &metav1.Table{}
	err := f.kube.CoreV1().RESTClient().Get().AbsPath("/apis/apps.openyurt.io/v1alpha1/nodepools/typed").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(f.ctx).Into(table)
	if err != nil || len(table.Rows) != 1 {
		t.Fatalf("the table has %d rows: %v", len(table.Rows), err)
	}
	var columns, cells []string
	for i, c := range table.ColumnDefinitions {
		if c.Priority == 0 {
			columns, cells = append(columns, c.Name), append(cells, fmt.Sprint(table.Rows[0].Cells[i]))
		}
	}
	if got := strings.Join(columns, " "); got != "Name Type ReadyNodes NotReadyNodes Age" {
		t.Errorf("the columns are %s", got)
	}
	if got := strings.Join(cells[:4], " "); got != "typed Edge 1 0" {
		t.Errorf("the row says %s", got)
	}
	resources, err := discovery.NewDiscoveryClient(f.kube.CoreV1().RESTClient()).ServerResourcesForGroupVersion(apps.GroupVersion.String())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range resources.APIResources {
		if r.Name == "nodepools" && (r.Namespaced || fmt.Sprint(r.ShortNames, r.Categories) != "[np] [all]") {
			t.Errorf("the resource is %+v", r)
		}
	}
}

// TestRecreatedNodeCountsAsNew: a node that is deleted and registers again under its name
// is a new node.
func TestRecreatedNodeCountsAsNew(t *testing.T) {
	f := newFixture(t)
	f.pools(poolOf("again", chosenBy(selects("t.io/site", "again"), given("x"))))
	for _, mine := range []string{"first", "second"} {
		f.nodes(map[string]string{"t.io/site": "again", "t.io/l": mine}, "again-0")
		in := carrying("x")
		in.labels["t.io/site"] = "again"
		f.becomes("again-0", "again", in)
		f.label(f.node("again-0"), map[string]any{"t.io/site": nil})
		f.becomes("again-0", "", carries{labels: map[string]string{"t.io/l": mine}})
		if err := f.kube.CoreV1().Nodes().Delete(f.ctx, "again-0", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		f.eventually(patience, "the node is gone", func() error {
			_, err := f.kube.CoreV1().Nodes().Get(f.ctx, "again-0", metav1.GetOptions{})
			if !apierrors.IsNotFound(err) {
				return fmt.Errorf("still there: %w", err)
			}
			return f.has("again")
		})
	}
	var p apps.NodePool
	if err := f.client.Get(f.ctx, types.NamespacedName{Name: "again"}, &p); err != nil || len(p.Finalizers) != 1 {
		t.Errorf("finalizers are %v: %v", p.Finalizers, err)
	}
}
