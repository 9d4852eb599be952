package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
)

// given is what the pools of these tests give: one of each, with the value.
func given(value string) apps.NodePoolSpec {
	return apps.NodePoolSpec{
		Labels: map[string]apps.LabelValue{"t.io/l": apps.LabelValue(value)}, Annotations: map[string]apps.AnnotationValue{"t.io/a": apps.AnnotationValue(value)},
		Taints: []apps.NodePoolTaint{{Key: "t.io/t", Value: apps.LabelValue(value), Effect: corev1.TaintEffectPreferNoSchedule}},
	}
}

// carrying is what a node carries that has one of each, with the value.
func carrying(value string) carries {
	return carries{
		labels: map[string]string{"t.io/l": value}, annotations: map[string]string{"t.io/a": value},
		taints: []corev1.Taint{{Key: "t.io/t", Value: value, Effect: corev1.TaintEffectPreferNoSchedule}},
	}
}

// owning describes a node that has one of each itself.
func owning(name string) devcluster.NodeSpec {
	mine := carrying("mine")
	return devcluster.NodeSpec{Name: name, Labels: mine.labels, Annotations: mine.annotations, Taints: mine.taints}
}

func (f *fixture) becomes(node, pool string, want carries) {
	f.Helper()
	f.eventually(patience, "node "+node+" is in pool "+pool, func() error { return f.isIn(node, pool, want) })
}

// TestPoolGivesAttributes is scenario 27: a node that joins by its label gets
// the pool's labels, annotations and taints; the counts are right, and an event
// tells of it.
func TestPoolGivesAttributes(t *testing.T) {
	f := newFixture(t)
	f.nodes(nil, "gives-0", "gives-1")
	f.pools(poolOf("gives", given("x")))
	f.eventually(patience, "the pool is empty", func() error {
		return f.poolCondition("gives", apps.ConditionReady, apps.ReasonNoNodes)
	})
	f.join("gives-0", "gives")
	f.becomes("gives-0", "gives", carrying("x"))
	f.eventually(patience, "the status tells", func() error {
		if err := f.poolCondition("gives", apps.ConditionReady, apps.ReasonNodesReady); err != nil {
			return err
		}
		return f.has("gives", "gives-0")
	})
	f.eventually(patience, "an event tells", func() error { return f.nodeTold("gives-0", apps.ReasonJoined) })
	if err := f.isIn("gives-1", "", carries{}); err != nil {
		t.Error(err)
	}
}
