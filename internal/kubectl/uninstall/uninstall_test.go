package uninstall

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/attributes"
	"github.com/atoll-k8s/atoll/internal/kubectl/read"
)

func cluster(t *testing.T, objects ...client.Object) client.Client {
	t.Helper()
	scheme, err := read.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).Build()
}

// inPool returns a node as atoll-manager leaves it in a pool, and the same node as it was.
func inPool(t *testing.T, name string) (in, was *corev1.Node) {
	t.Helper()
	was = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": "own"}}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "own", Effect: corev1.TaintEffectNoSchedule}}}}
	pool := attributes.Of(&apps.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "hz"}, Spec: apps.NodePoolSpec{
		Labels: map[string]apps.LabelValue{"zone": "hz", "site": "hz"}, Annotations: map[string]apps.AnnotationValue{"a": "b"},
		Taints: []apps.NodePoolTaint{{Key: "hz", Value: "x", Effect: corev1.TaintEffectNoSchedule}},
	}})
	change, err := attributes.Read(was).Plan(&pool, true)
	if err != nil {
		t.Fatal(err)
	}
	in = was.DeepCopy()
	in.Annotations = map[string]string{}
	for key, value := range change.Labels {
		in.Labels[key] = *value
	}
	for key, value := range change.Annotations {
		in.Annotations[key] = *value
	}
	in.Spec.Taints = change.Taints
	in.Labels[gm.NodeGroupLabel] = "hz"
	return in, was
}

// TestEverythingIsPutBack: afterwards a second plan is empty, and nothing of others has changed.
func TestEverythingIsPutBack(t *testing.T) {
	in, was := inPool(t, "a")
	others := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "others", Labels: map[string]string{"zone": "own"}}}
	deleted := metav1.Now()
	pool := &apps.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "hz", Finalizers: []string{apps.NodePoolFinalizer}, DeletionTimestamp: &deleted}}
	group := &gm.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "hz", Finalizers: []string{"example.com/f", gm.NodeGroupFinalizer}}}
	gated := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1"}, Spec: corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/g"}, {Name: gm.PolicyGate}}}}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Labels: map[string]string{
		gm.RequiredPropagationPolicyLabel: "p", gm.BindingPropagationPolicyLabel: "p",
	}}}
	c := cluster(t, in, others, pool, group, gated, deployment, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "other"}})

	changes, err := Plan(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for i := range changes {
		kinds = append(kinds, changes[i].Kind+" "+changes[i].Name)
	}
	if diff := cmp.Diff([]string{"Node a", "Pod web-1", "Deployment web", "NodeGroup hz", "NodePool hz"}, kinds); diff != "" {
		t.Fatalf("the changes (-want +got):\n%s", diff)
	}
	if err := Apply(t.Context(), c, changes); err != nil {
		t.Fatal(err)
	}
	for _, o := range []client.Object{in, gated, deployment, group} {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(was.Labels, in.Labels) + cmp.Diff(0, len(in.Annotations)) + cmp.Diff(was.Spec.Taints, in.Spec.Taints); diff != "" {
		t.Errorf("the node (-before +after):\n%s", diff)
	}
	if len(gated.Spec.SchedulingGates) != 1 || deployment.Labels[gm.BindingPropagationPolicyLabel] != "" || deployment.Labels[gm.RequiredPropagationPolicyLabel] != "p" || len(group.Finalizers) != 1 {
		t.Errorf("gates %v, labels %v, finalizers %v", gated.Spec.SchedulingGates, deployment.Labels, group.Finalizers)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(pool), pool); err == nil {
		t.Error("the deleted pool is still there")
	}
	if changes, err := Plan(t.Context(), c); err != nil || len(changes) != 0 {
		t.Errorf("a second plan has %d changes, error %v", len(changes), err)
	}
}

// TestNothingIsPutBackWhileAtollRuns: it would write all again, and a pool may be cut off.
func TestNothingIsPutBackWhileAtollRuns(t *testing.T) {
	for name, tc := range map[string]struct {
		object client.Object
		want   string
	}{
		"atoll-manager":        {&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "atoll-system", Name: "atoll-manager", Labels: map[string]string{"app.kubernetes.io/name": "atoll-manager"}}}, "atoll-manager runs in namespace atoll-system"},
		"an own coordinator":   {&apps.YurtCoordinator{ObjectMeta: metav1.ObjectMeta{Name: "hz"}}, `YurtCoordinator "hz" is still there`},
		"a manager at 0 is no": {&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "atoll-system", Name: "atoll-manager", Labels: map[string]string{"app.kubernetes.io/name": "atoll-manager"}}, Spec: appsv1.DeploymentSpec{Replicas: new(int32)}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Plan(t.Context(), cluster(t, tc.object))
			if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}
