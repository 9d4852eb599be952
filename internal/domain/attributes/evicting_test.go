package attributes

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
)

// TestDelayedTaintIsAppliedLikeAnImmediateOne checks that, after the wait, the node carries the
// pool's NoExecute taints as if there had been no wait, and later gives back its own;
// during the wait it keeps the values that it had.
func TestDelayedTaintIsAppliedLikeAnImmediateOne(t *testing.T) {
	pool := func(value apps.LabelValue) Pool {
		return Of(&apps.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: apps.NodePoolSpec{Taints: []apps.NodePoolTaint{
			{Key: "k", Value: value, Effect: corev1.TaintEffectNoExecute}, {Key: "k", Effect: corev1.TaintEffectNoSchedule},
		}}})
	}
	for name, tc := range map[string]struct {
		own, waiting []corev1.Taint
		// before is the value that the pool gave before; "" means that the node was not in the
		// pool.
		before apps.LabelValue
	}{
		"a node without taints":     {nil, []corev1.Taint{taint("k", "", corev1.TaintEffectNoSchedule)}, ""},
		"a taint of the same value": {[]corev1.Taint{taint("k", "v", corev1.TaintEffectNoExecute)}, []corev1.Taint{taint("k", "v", corev1.TaintEffectNoExecute), taint("k", "", corev1.TaintEffectNoSchedule)}, ""},
		"a taint of another value":  {[]corev1.Taint{taint("k", "own", corev1.TaintEffectNoExecute)}, []corev1.Taint{taint("k", "own", corev1.TaintEffectNoExecute), taint("k", "", corev1.TaintEffectNoSchedule)}, ""},
		"the pool gave another":     {[]corev1.Taint{taint("k", "own", corev1.TaintEffectNoExecute)}, []corev1.Taint{taint("k", "w", corev1.TaintEffectNoExecute), taint("k", "", corev1.TaintEffectNoSchedule)}, "w"},
	} {
		t.Run(name, func(t *testing.T) {
			change := func(n *corev1.Node, p *Pool) *corev1.Node {
				t.Helper()
				c, err := Read(n).Plan(p, false)
				if err != nil {
					t.Fatal(err)
				}
				out := n.DeepCopy()
				apply(out, c)
				return out
			}
			own := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{apps.NodePoolLabel: "p"}}, Spec: corev1.NodeSpec{Taints: tc.own}}
			node := own
			if tc.before != "" {
				before := pool(tc.before)
				node = change(own, &before)
			}
			full := pool("v")
			waiting := full.WithoutEvicting(Read(node))
			held := change(node, &waiting)
			if diff := cmp.Diff(tc.waiting, held.Spec.Taints); diff != "" {
				t.Errorf("while it waits (-want +got):\n%s", diff)
			}
			again := full.WithoutEvicting(Read(held))
			if c, err := Read(held).Plan(&again, false); err != nil || !c.Empty() {
				t.Errorf("a second pass changes %+v, error %v", c, err)
			}
			direct := change(own, &full)
			if got := change(held, &full); !cmp.Equal(got.Annotations, direct.Annotations) || len(Read(got).now.Taints) != len(direct.Spec.Taints) {
				t.Errorf("in the end it is %+v, and at once %+v", got, direct)
			}
			if got := change(change(held, &full), nil); !cmp.Equal(got.Spec.Taints, tc.own) && len(got.Spec.Taints)+len(tc.own) > 0 {
				t.Errorf("it gets %v back, and had %v", got.Spec.Taints, tc.own)
			}
		})
	}
}

// TestTaintsThatWouldEvict checks that Evicting returns the taints that the node does not
// have with the same value.
func TestTaintsThatWouldEvict(t *testing.T) {
	pool := Of(poolWith("p", nil, nil, taint("k", "v", corev1.TaintEffectNoExecute), taint("l", "v", corev1.TaintEffectNoSchedule)))
	for name, tc := range map[string]struct {
		has  []corev1.Taint
		want []corev1.Taint
	}{
		"a node without taints":       {nil, []corev1.Taint{taint("k", "v", corev1.TaintEffectNoExecute)}},
		"it has the same":             {[]corev1.Taint{taint("k", "v", corev1.TaintEffectNoExecute)}, nil},
		"it has another value":        {[]corev1.Taint{taint("k", "w", corev1.TaintEffectNoExecute)}, []corev1.Taint{taint("k", "v", corev1.TaintEffectNoExecute)}},
		"it has another effect":       {[]corev1.Taint{taint("k", "v", corev1.TaintEffectNoSchedule)}, []corev1.Taint{taint("k", "v", corev1.TaintEffectNoExecute)}},
		"it has another of the value": {[]corev1.Taint{taint("m", "v", corev1.TaintEffectNoExecute)}, []corev1.Taint{taint("k", "v", corev1.TaintEffectNoExecute)}},
	} {
		if diff := cmp.Diff(tc.want, pool.Evicting(Read(nodeWith(nil, nil, tc.has...)))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
