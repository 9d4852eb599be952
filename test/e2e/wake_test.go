package e2e

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// TestMovedNodeReconcilesPoliciesOfItsGroups: when a group gets its first node or
// loses its last, the policies that name it, in upper or lower case, are reconciled;
// policies of other groups are not.
func TestMovedNodeReconcilesPoliciesOfItsGroups(t *testing.T) {
	f := newFixture(t)
	f.group("wake-a", 2)
	f.nodeGroup(&gm.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "wake-b"}, Spec: gm.NodeGroupSpec{MatchLabels: map[string]string{"test-group": "wake-b"}}})
	const others = 100
	for i := range others {
		f.create(weights(fmt.Sprint("other-", i), fmt.Sprint("wake-none-", i), 1))
	}
	f.create(weights("policy", "wake-a", 1, "Wake-B", 1), deployment("app", 1, "policy", func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "wake-a-0"}
	}))
	f.eventually(patience, "all policies have been looked at", func() error {
		var list gm.PropagationPolicyList
		if err := f.client.List(f.ctx, &list); err != nil {
			return err
		}
		for i := range list.Items {
			if len(list.Items[i].Status.Conditions) == 0 {
				return fmt.Errorf("%s has no condition", list.Items[i].Name)
			}
		}
		return nil
	})
	f.eventually(patience, "the group without a node is reported", func() error { return f.reason("policy", gm.ReasonNodeGroupsMissing) })
	reconciles := func() (n float64) {
		for _, result := range []string{"success", "requeue_after", "error"} {
			n += f.metric("controller_runtime_reconcile_total", fmt.Sprintf("controller=%q,result=%q", "propagationpolicy", result))
		}
		return n
	}
	before := reconciles()
	move := func(group string) {
		f.label(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "wake-a-1"}}, map[string]any{"test-group": group})
	}
	for range 3 {
		move("wake-b")
		f.eventually(patience, "no group is without a node", func() error {
			if f.reason("policy", gm.ReasonNodeGroupsMissing) == nil {
				return fmt.Errorf("a group is missing")
			}
			return nil
		})
		move("wake-a")
		f.eventually(patience, "the group has lost its last node", func() error { return f.reason("policy", gm.ReasonNodeGroupsMissing) })
	}
	if n := reconciles() - before; n == 0 || n > others/2 {
		t.Errorf("%v reconciles while a node moved 6 times, beside %d policies of other groups", n, others)
	}
}
