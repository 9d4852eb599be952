package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/util/retry"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
)

// given returns the attributes of the pools of these tests: a label, an annotation and a
// taint with the value.
func given(value string) apps.NodePoolSpec {
	return apps.NodePoolSpec{
		Labels: map[string]apps.LabelValue{"t.io/l": apps.LabelValue(value)}, Annotations: map[string]apps.AnnotationValue{"t.io/a": apps.AnnotationValue(value)},
		Taints: []apps.NodePoolTaint{{Key: "t.io/t", Value: apps.LabelValue(value), Effect: corev1.TaintEffectPreferNoSchedule}},
	}
}

// carrying returns the fields of a node that has one of each, with the value.
func carrying(value string) carries {
	return carries{
		labels: map[string]string{"t.io/l": value}, annotations: map[string]string{"t.io/a": value},
		taints: []corev1.Taint{{Key: "t.io/t", Value: value, Effect: corev1.TaintEffectPreferNoSchedule}},
	}
}

// owning describes a node that has one of each as its own.
func owning(name string) devcluster.NodeSpec {
	mine := carrying("mine")
	return devcluster.NodeSpec{Name: name, Labels: mine.labels, Annotations: mine.annotations, Taints: mine.taints}
}

func (f *fixture) becomes(node, pool string, want carries) {
	f.Helper()
	f.eventually(patience, "node "+node+" is in pool "+pool, func() error { return f.isIn(node, pool, want) })
}

// TestPoolGivesAttributes is scenario 27: a node that joins by its label gets the pool's
// labels, annotations and taints; the counts are right, and there is an event.
func TestPoolGivesAttributes(t *testing.T) {
	f := newFixture(t)
	f.nodes(nil, "gives-0", "gives-1")
	f.pools(poolOf("gives", given("x")))
	f.eventually(patience, "the pool is empty", func() error {
		return f.poolCondition("gives", apps.ConditionReady, apps.ReasonNoNodes)
	})
	f.join("gives-0", "gives")
	f.becomes("gives-0", "gives", carrying("x"))
	f.eventually(patience, "the status has it", func() error {
		if err := f.poolCondition("gives", apps.ConditionReady, apps.ReasonNodesReady); err != nil {
			return err
		}
		if err := f.poolCondition("gives", apps.ConditionMembershipProtected, apps.ReasonLabelGuardUnknown); err != nil {
			return err
		}
		return f.has("gives", "gives-0")
	})
	f.eventually(patience, "there is an event", func() error { return f.nodeEvent("gives-0", apps.ReasonJoinedNodePool) })
	if err := f.isIn("gives-1", "", carries{}); err != nil {
		t.Error(err)
	}
}

// TestHandEditsOnPoolsNodesArePutBack is scenario 28: the pool's attributes are restored,
// whoever changes them, and an event names them. (Defect E1: the applied attributes were
// compared with the spec, never with the node.)
func TestHandEditsOnPoolsNodesArePutBack(t *testing.T) {
	f := newFixture(t)
	f.nodes(nil, "drift-0")
	f.pools(poolOf("drift", given("x")))
	f.join("drift-0", "drift")
	f.becomes("drift-0", "drift", carrying("x"))
	metadata := func(kind string, value any) map[string]any {
		return map[string]any{"metadata": map[string]any{kind: map[string]any{"t.io/" + kind[:1]: value}}}
	}
	for what, patch := range map[string]map[string]any{
		"the label goes":            metadata("labels", nil),
		"the label changes":         metadata("labels", "other"),
		"the annotation goes":       metadata("annotations", nil),
		"the annotation changes":    metadata("annotations", "other"),
		"all taints go":             {"spec": map[string]any{"taints": nil}},
		"the taint's value changes": {"spec": map[string]any{"taints": []corev1.Taint{{Key: "t.io/t", Value: "other", Effect: corev1.TaintEffectPreferNoSchedule}}}},
	} {
		f.part(what, func(f *fixture) {
			f.patch(f.node("drift-0"), patch)
			f.becomes("drift-0", "drift", carrying("x"))
		})
	}
	f.eventually(patience, "there is an event", func() error { return f.nodeEvent("drift-0", apps.ReasonNodePoolAttributesRepaired) })
}

// TestNodesOwnAttributesAreRestored is scenario 29: a node's own value under a key of the pool
// is restored when the pool drops the key, when the node leaves, and when it joins and
// leaves again. (Defects E3: the value was lost; E2: a second join applied nothing.)
func TestNodesOwnAttributesAreRestored(t *testing.T) {
	f := newFixture(t)
	f.nodeSpecs(owning("back-0"))
	f.pools(poolOf("back", given("x")))
	for range 2 {
		f.join("back-0", "back")
		f.becomes("back-0", "back", carrying("x"))
		f.editPool("back", map[string]any{"labels": nil, "annotations": nil, "taints": nil})
		f.becomes("back-0", "back", carrying("mine"))
		spec := given("y")
		f.editPool("back", map[string]any{"labels": spec.Labels, "annotations": spec.Annotations, "taints": spec.Taints})
		f.becomes("back-0", "back", carrying("y"))
		f.join("back-0", "")
		f.becomes("back-0", "", carrying("mine"))
		f.editPool("back", map[string]any{"labels": map[string]string{"t.io/l": "x"}, "annotations": map[string]string{"t.io/a": "x"}, "taints": given("x").Taints})
	}
	f.eventually(patience, "there is an event", func() error { return f.nodeEvent("back-0", apps.ReasonLeftNodePool) })
}

// TestNodeLeavingItsPoolLosesItsAttributes is scenario 30: when the label is removed, all attributes of
// the pool and the record are removed; the node's own attributes stay, also those that it
// got in the meantime. (Defect E2: all of them stayed for ever.)
func TestNodeLeavingItsPoolLosesItsAttributes(t *testing.T) {
	f := newFixture(t)
	f.nodes(map[string]string{"t.io/own": "1"}, "leave-0")
	f.pools(poolOf("leave", given("x")))
	f.join("leave-0", "leave")
	f.eventually(patience, "it joins", func() error { return f.has("leave", "leave-0") })
	f.label(f.node("leave-0"), map[string]any{"t.io/later": "2"})
	f.join("leave-0", "")
	f.becomes("leave-0", "", carries{labels: map[string]string{"t.io/own": "1", "t.io/later": "2"}, annotations: map[string]string{}})
	f.eventually(patience, "the status has it", func() error { return f.has("leave") })
}

// TestNodeMovesInOneStep is scenario 31: a node that moves has the attributes of the old
// pool or of the new one and never a mixture, both statuses follow, and at the end the
// node's own attributes are restored. (Defect E5: relabelling a node triggered neither
// pool.)
func TestNodeMovesInOneStep(t *testing.T) {
	f := newFixture(t)
	f.nodeSpecs(owning("move-0"))
	only := func(spec apps.NodePoolSpec, key string) apps.NodePoolSpec {
		spec.Labels[key] = "1"
		return spec
	}
	f.pools(poolOf("move-a", only(given("a"), "t.io/only-a")), poolOf("move-b", only(given("b"), "t.io/only-b")))
	in := func(pool string) carries {
		c := carrying(pool)
		c.labels["t.io/only-"+pool] = "1"
		return c
	}
	f.join("move-0", "move-a")
	f.becomes("move-0", "move-a", in("a"))
	seen := f.watchNode("move-0")
	f.join("move-0", "move-b")
	f.becomes("move-0", "move-b", in("b"))
	asked, moved := false, false
	for _, n := range seen() {
		if asked = asked || n.Labels[apps.NodePoolLabel] == "move-b"; !asked {
			continue // other components also write new nodes
		}
		got := n.Labels["t.io/l"] + n.Labels["t.io/only-a"] + n.Labels["t.io/only-b"] + n.Annotations["t.io/a"]
		taints := 0
		for _, taint := range n.Spec.Taints {
			if strings.HasPrefix(taint.Key, "t.io/") {
				got += taint.Value
				taints++
			}
		}
		record := struct{ Pool string }{}
		if err := json.Unmarshal([]byte(n.Annotations[apps.NodePoolAnnotation]), &record); err != nil {
			t.Fatalf("on the way, the record was %q: %v", n.Annotations[apps.NodePoolAnnotation], err)
		}
		got += " " + record.Pool
		// The label is the one that was written by hand, from the first version on.
		if n.Labels[apps.NodePoolLabel] != "move-b" || taints != 1 || got != "a1aa move-a" && got != "b1bb move-b" || moved && got != "b1bb move-b" {
			t.Errorf("on the way, the node carried %v, %v, %v", n.Labels, n.Annotations, n.Spec.Taints)
		}
		moved = moved || got == "b1bb move-b"
	}
	if !moved {
		t.Error("nothing was seen of the move")
	}
	f.eventually(patience, "both statuses tell", func() error {
		if err := f.has("move-a"); err != nil {
			return err
		}
		return f.has("move-b", "move-0")
	})
	f.eventually(patience, "there is an event", func() error { return f.nodeEvent("move-0", apps.ReasonMovedNodePool) })
	f.join("move-0", "")
	f.becomes("move-0", "", carrying("mine"))
}

// watchNode collects a node's versions until the returned function is called.
func (f *fixture) watchNode(name string) func() []*corev1.Node {
	f.Helper()
	return versions(f, f.node(name), func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		return f.kube.CoreV1().Nodes().Watch(ctx, o)
	})
}

// TestLostRecordHealsItself is scenario 33: a record that was made invalid by hand is
// created again, with an event; the pool's other nodes and its status are not affected.
// (Defect E8: one such node stopped the whole pool.)
func TestLostRecordHealsItself(t *testing.T) {
	f := newFixture(t)
	f.nodes(map[string]string{"t.io/own": "1"}, "record-0", "record-1")
	f.pools(poolOf("record", given("x")))
	f.join("record-0", "record")
	f.join("record-1", "record")
	f.eventually(patience, "both join", func() error { return f.poolCondition("record", apps.ConditionReady, apps.ReasonNodesReady) })
	f.patch(f.node("record-0"), map[string]any{"metadata": map[string]any{"annotations": map[string]any{apps.NodePoolAnnotation: "{"}}})
	f.editPool("record", map[string]any{"labels": map[string]any{"t.io/more": "1"}})
	more := carrying("x")
	more.labels["t.io/more"], more.labels["t.io/own"] = "1", "1"
	f.becomes("record-1", "record", more)
	f.becomes("record-0", "record", more)
	f.eventually(patience, "there is an event", func() error { return f.nodeEvent("record-0", apps.ReasonNodePoolRecordLost) })
	f.join("record-0", "")
	f.becomes("record-0", "", carries{labels: map[string]string{"t.io/own": "1"}, annotations: map[string]string{}})
	f.eventually(patience, "the status has it", func() error { return f.has("record", "record-1") })
}

// TestPoolsTaintWins is scenario 35: of two taints with the same key and effect the
// pool's has priority, another effect is another taint, and the node's taint is restored.
// (Defect E4: the node's taint had priority without a message, and was removed with the
// pool's.)
func TestPoolsTaintWins(t *testing.T) {
	f := newFixture(t)
	prefer, no := corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoSchedule
	mine := []corev1.Taint{{Key: "t.io/t", Value: "mine", Effect: no}, {Key: "t.io/t", Value: "mine", Effect: prefer}}
	f.nodeSpecs(devcluster.NodeSpec{Name: "taint-0", Taints: mine})
	f.pools(poolOf("taint", apps.NodePoolSpec{Taints: given("pool").Taints}))
	f.join("taint-0", "taint")
	none := map[string]string{}
	f.becomes("taint-0", "taint", carries{none, none, []corev1.Taint{mine[0], {Key: "t.io/t", Value: "pool", Effect: prefer}}})
	f.editPool("taint", map[string]any{"taints": nil})
	f.becomes("taint-0", "taint", carries{none, none, mine})
	f.editPool("taint", map[string]any{"taints": given("pool").Taints})
	f.becomes("taint-0", "taint", carries{none, none, []corev1.Taint{mine[0], {Key: "t.io/t", Value: "pool", Effect: prefer}}})
	f.join("taint-0", "")
	f.becomes("taint-0", "", carries{none, none, mine})
}

// TestConcurrentNodeWritesAreNotLost: while a pool is edited again and again, another client writes
// the node's labels, annotations and taints all the time. No write of either is lost.
// (Defect E9: a whole Node from a cache was written back.)
func TestConcurrentNodeWritesAreNotLost(t *testing.T) {
	f := newFixture(t)
	f.nodes(nil, "others-0")
	f.pools(poolOf("others", given("0")))
	f.join("others-0", "others")
	const rounds = 60
	last := fmt.Sprint(rounds)
	for i := 1; i <= rounds; i++ {
		if i%3 == 0 {
			f.editPool("others", map[string]any{"labels": map[string]string{"t.io/l": fmt.Sprint(i)}, "annotations": map[string]string{"t.io/a": fmt.Sprint(i)}})
		}
		err := retry.RetryOnConflict(wait.Backoff{Steps: 50, Duration: time.Millisecond}, func() error {
			n := f.node("others-0")
			n.Labels["t.io/theirs"] = fmt.Sprint(i)
			n.Annotations["t.io/theirs"] = fmt.Sprint(i)
			n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "t.io/theirs" })
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "t.io/theirs", Value: fmt.Sprint(i), Effect: corev1.TaintEffectPreferNoSchedule})
			_, err := f.kube.CoreV1().Nodes().Update(f.ctx, n, metav1.UpdateOptions{})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	theirs := corev1.Taint{Key: "t.io/theirs", Value: last, Effect: corev1.TaintEffectPreferNoSchedule}
	f.becomes("others-0", "others", carries{
		labels:      map[string]string{"t.io/l": last, "t.io/theirs": last},
		annotations: map[string]string{"t.io/a": last, "t.io/theirs": last},
		taints:      []corev1.Taint{{Key: "t.io/t", Value: "0", Effect: corev1.TaintEffectPreferNoSchedule}, theirs},
	})
	f.join("others-0", "")
	f.becomes("others-0", "", carries{map[string]string{"t.io/theirs": last}, map[string]string{"t.io/theirs": last}, []corev1.Taint{theirs}})
}
