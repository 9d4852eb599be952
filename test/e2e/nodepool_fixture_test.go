package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
)

// poolOf returns a NodePool.
func poolOf(name string, spec apps.NodePoolSpec) *apps.NodePool {
	return &apps.NodePool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
}

// selects returns a selector of one label.
func selects(key string, value apps.LabelValue) *apps.NodeSelector {
	return &apps.NodeSelector{MatchLabels: map[string]apps.LabelValue{key: value}}
}

// pools creates NodePools that are deleted with the test, after the labels of the nodes
// that name them are removed.
func (f *fixture) pools(pools ...*apps.NodePool) {
	f.Helper()
	for _, p := range pools {
		f.create(p)
		f.Cleanup(func() {
			f.ctx = context.Background()
			f.emptyPool(p.Name)
			f.deletePool(p.Name)
			f.poolGoes(p.Name)
		})
	}
}

// emptyPool removes the label from the nodes of a pool, and the selector of the pool.
func (f *fixture) emptyPool(name string) {
	f.Helper()
	f.editPool(name, map[string]any{"selector": nil})
	list, err := f.kube.CoreV1().Nodes().List(f.ctx, metav1.ListOptions{LabelSelector: apps.NodePoolLabel + "=" + name})
	if err != nil {
		f.Fatal(err)
	}
	for i := range list.Items {
		f.join(list.Items[i].Name, "")
	}
}

func (f *fixture) deletePool(name string) {
	f.Helper()
	err := f.client.Delete(f.ctx, poolOf(name, apps.NodePoolSpec{}))
	if client.IgnoreNotFound(err) != nil {
		f.Fatal(err)
	}
}

func (f *fixture) poolGoes(name string) {
	f.Helper()
	f.eventually(patience, "the NodePool goes", func() error {
		var p apps.NodePool
		err := f.client.Get(f.ctx, types.NamespacedName{Name: name}, &p)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("NodePool %q is still there, %+v: %w", name, p.Status, err)
	})
}

// join writes the label of a node by hand; "" removes it.
func (f *fixture) join(node, pool string) {
	f.Helper()
	var value any = pool
	if pool == "" {
		value = nil
	}
	err := f.mergeInto(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
		map[string]any{"metadata": map[string]any{"labels": map[string]any{apps.NodePoolLabel: value}}})
	if client.IgnoreNotFound(err) != nil {
		f.Fatal(err)
	}
}

// mergeInto patches an object that may be deleted already.
func (f *fixture) mergeInto(o client.Object, patch any) error {
	f.Helper()
	raw, err := json.Marshal(patch)
	if err != nil {
		f.Fatal(err)
	}
	return f.client.Patch(f.ctx, o, client.RawPatch(types.MergePatchType, raw))
}

// editPool merges into a pool's spec.
func (f *fixture) editPool(name string, spec map[string]any) {
	f.Helper()
	err := f.mergeInto(poolOf(name, apps.NodePoolSpec{}), map[string]any{"spec": spec})
	if client.IgnoreNotFound(err) != nil {
		f.Fatal(err)
	}
}

// nodeSpecs adds simulated nodes as described; they are removed with the test.
func (f *fixture) nodeSpecs(specs ...devcluster.NodeSpec) {
	f.Helper()
	if err := f.cluster.AddNodes(f.ctx, specs...); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		for _, spec := range specs {
			err := f.kube.CoreV1().Nodes().Delete(context.Background(), spec.Name, metav1.DeleteOptions{})
			if client.IgnoreNotFound(err) != nil {
				f.Error(err)
			}
		}
	})
}

func (f *fixture) node(name string) *corev1.Node {
	f.Helper()
	n, err := f.kube.CoreV1().Nodes().Get(f.ctx, name, metav1.GetOptions{})
	if err != nil {
		f.Fatal(err)
	}
	return n
}

// has returns an error unless a status lists exactly these nodes and is up to date.
func (f *fixture) has(pool string, want ...string) error {
	var p apps.NodePool
	if err := f.client.Get(f.ctx, types.NamespacedName{Name: pool}, &p); err != nil {
		return err
	}
	if got := p.Status.Nodes; !slices.Equal(got, want) || p.Status.ObservedGeneration != p.Generation ||
		int(p.Status.ReadyNode+p.Status.NotReadyNode) != len(want) {
		return fmt.Errorf("NodePool %q has %+v, want %v", pool, p.Status, want)
	}
	return nil
}

// poolCondition returns an error unless a condition has a reason, and its message all parts.
func (f *fixture) poolCondition(pool, kind, reason string, parts ...string) error {
	var p apps.NodePool
	if err := f.client.Get(f.ctx, types.NamespacedName{Name: pool}, &p); err != nil {
		return err
	}
	c := meta.FindStatusCondition(p.Status.Conditions, kind)
	if c == nil || c.Reason != reason || c.ObservedGeneration != p.Generation {
		return fmt.Errorf("condition %s of NodePool %q is %+v, want %s", kind, pool, c, reason)
	}
	for _, part := range parts {
		if !strings.Contains(c.Message, part) {
			return fmt.Errorf("condition %s of NodePool %q does not say %q: %s", kind, pool, part, c.Message)
		}
	}
	return nil
}

// carries has the fields of a node that a test checks; other fields may not change.
type carries struct {
	labels, annotations map[string]string
	taints              []corev1.Taint
}

// on returns the labels and annotations of a node under keys that start with "t.io/", and
// all its taints that Kubernetes does not manage. The pool's own keys are separate
// fields: the label, and whether there is a record.
func (f *fixture) on(node string) (c carries, label string, recorded bool) {
	f.Helper()
	return carriedBy(f.node(node))
}

// carriedBy returns what on returns of a node.
func carriedBy(n *corev1.Node) (c carries, label string, recorded bool) {
	only := func(m map[string]string) map[string]string {
		out := maps.Clone(m)
		maps.DeleteFunc(out, func(key, _ string) bool { return !strings.HasPrefix(key, "t.io/") })
		return out
	}
	c.labels, c.annotations = only(n.Labels), only(n.Annotations)
	for _, t := range n.Spec.Taints {
		if !strings.HasPrefix(t.Key, "node.kubernetes.io/") {
			c.taints = append(c.taints, t)
		}
	}
	slices.SortFunc(c.taints, func(a, b corev1.Taint) int {
		return strings.Compare(a.Key+string(a.Effect), b.Key+string(b.Effect))
	})
	_, recorded = n.Annotations[apps.NodePoolAnnotation]
	return c, n.Labels[apps.NodePoolLabel], recorded
}

// isIn returns an error unless a node is in a pool ("" means none), and carries exactly
// the given fields.
func (f *fixture) isIn(node, pool string, want carries) error {
	f.Helper()
	got, label, recorded := f.on(node)
	if label != pool || recorded != (pool != "") {
		return fmt.Errorf("node %s carries the label %q (record: %t), want %q", node, label, recorded, pool)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		return fmt.Errorf("node %s carries %v, want %v", node, got, want)
	}
	return nil
}

// nodeEvent returns an error unless an event with a reason is about a node.
func (f *fixture) nodeEvent(node, reason string) error {
	list := &eventsv1.EventList{}
	if err := f.client.List(f.ctx, list, client.InNamespace(metav1.NamespaceDefault)); err != nil {
		return err
	}
	var seen []string
	for i := range list.Items {
		if e := &list.Items[i]; e.Regarding.Kind == "Node" && e.Regarding.Name == node {
			if e.Reason == reason {
				return nil
			}
			seen = append(seen, e.Reason)
		}
	}
	return fmt.Errorf("node %s has events %v, want %s", node, seen, reason)
}
