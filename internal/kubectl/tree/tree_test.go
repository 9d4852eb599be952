package tree

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/kubectl/read"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

func lines(b *Branch, indent string) (all string) {
	all = fmt.Sprintf("%s%s %s %d/%d %s", indent, b.Kind, b.Name, b.Ready, b.Pods, b.Note)
	all = strings.TrimRight(all, " ") + "\n"
	for _, other := range b.Branches {
		all += lines(other, indent+" ")
	}
	return all
}

// TestTree: a workload's pods are found through what is between, those of others are left out, and each is at its place.
func TestTree(t *testing.T) {
	web := build.Deployment("web")
	before, after := build.ReplicaSet("web-1", build.OwnedBy(web)), build.ReplicaSet("web-2", build.OwnedBy(web))
	ready := build.With(func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	})
	revision := func(name string) build.Option { return build.Label(appsv1.DefaultDeploymentUniqueLabelKey, name) }
	kinds, err := read.Scheme()
	if err == nil {
		err = scheme.AddToScheme(kinds)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(kinds).WithObjects(
		web, before, after,
		build.Pod("a", build.OwnedBy(before), revision("1"), build.InGroup("beijing"), build.On("nodec"), ready, build.Label(gm.CapacityClassLabel, "spot")),
		build.Pod("b", build.OwnedBy(before), revision("1"), build.InGroup("beijing"), build.On("nodec"), build.Deleting("x/y")),
		build.Pod("c", build.OwnedBy(after), revision("2"), build.Gated()),
		build.Pod("d", build.OwnedBy(after), revision("2"), build.InGroup("hangzhou")),
		build.Pod("other", build.OwnedBy(build.ReplicaSet("other"))), build.Pod("bare"),
		build.DaemonSet("agent"), build.Pod("agent-1", build.OwnedBy(build.DaemonSet("agent")), build.On("noded"), ready), build.Node("noded", build.InGroup("beijing")),
	).Build()
	root, err := Of(t.Context(), read.For(c, kinds), &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "Deployment"}, ObjectMeta: web.ObjectMeta})
	if err != nil {
		t.Fatal(err)
	}
	want := `Deployment web 1/4
 Revision 1 1/2
  NodeGroup beijing 1/2
   Node nodec 1/2
    Pod a 1/1 spot
    Pod b 0/1 Terminating
 Revision 2 0/2
  NodeGroup hangzhou 0/1
   Node none yet 0/1
    Pod d 0/1 Pending
  NodeGroup none 0/1
   Node none yet 0/1
    Pod c 0/1 SchedulingGated
`
	if diff := cmp.Diff(want, lines(root, "")); diff != "" {
		t.Error(diff)
	}
	agent := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "DaemonSet"}, ObjectMeta: build.DaemonSet("agent").ObjectMeta}
	if root, err = Of(t.Context(), read.For(c, kinds), agent); err != nil || root.Branches[0].Name != "beijing" {
		t.Errorf("pods of the DaemonSet are in %+v, %v", root, err)
	}
	united := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "apps.openyurt.io/v1alpha1", Kind: "UnitedDeployment"}, ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: "all", UID: "all"}}
	web.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(united, united.GroupVersionKind())}
	if err := c.Update(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	if root, err = Of(t.Context(), read.For(c, kinds), united); err != nil || root.Pods != 4 {
		t.Errorf("the UnitedDeployment has %d pods, %v", root.Pods, err)
	}
}
