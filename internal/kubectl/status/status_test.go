package status

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	capacity "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/domain/connectivity"
	"github.com/atoll-k8s/atoll/internal/kubectl/read"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

func ready(status metav1.ConditionStatus, reason, message string) []metav1.Condition {
	return []metav1.Condition{{Type: gm.ConditionReady, Status: status, Reason: reason, Message: message}}
}

// of is the status of a cluster with these objects. refused are lists that its reader may not read.
func of(t *testing.T, namespace string, refused func(client.ObjectList) error, objects ...client.Object) (Status, error) {
	t.Helper()
	scheme, err := read.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if err := refused(list); err != nil {
				return err
			}
			return c.List(ctx, list, options...)
		},
	}).Build()
	r := read.For(c, scheme)
	o, err := Observe(t.Context(), r, namespace)
	if err != nil {
		return Status{}, err
	}
	s := Of(o)
	s.Unread = r.Unread()
	return s, nil
}

func all(client.ObjectList) error { return nil }

// TestStatus: of each kind, what is good is counted, and what is not is named with its reason.
func TestStatus(t *testing.T) {
	since := time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)
	replicas := func(wanted, ready int32) build.Option {
		return build.With(func(d *appsv1.Deployment) { d.Spec.Replicas, d.Status.ReadyReplicas = &wanted, ready })
	}
	objects := []client.Object{
		build.Deployment("lost", build.Requires("no-such", ""), replicas(2, 0), build.UID("1")),
		build.Deployment("half", build.Requires("good", "bad"), replicas(2, 1), build.UID("2")),
		build.StatefulSet("whole", build.Requires("good", ""), build.UID("3"), build.With(func(s *appsv1.StatefulSet) { s.Status.ReadyReplicas = 1 })),
		build.DaemonSet("each", build.Requires("", "none"), build.UID("4")),
		build.Job("ended", build.Requires("good", ""), build.UID("5")),
		build.Deployment("patient", build.Requires("no-such", ""), build.UID("6"), replicas(1, 1), build.Annotation(gm.MissingPolicyAnnotation, gm.MissingPolicyIgnore)),
		build.Deployment("of nobody", build.UID("7")),
		build.PropagationPolicy("good", build.With(func(p *gm.PropagationPolicy) {
			p.Status.Conditions = ready("True", "Satisfied", "")
			p.Status.Apps = []gm.WorkloadSpread{
				{Ref: gm.WorkloadReference{Kind: "Deployment", Name: "half"}, Message: "pods wait"}, {Ref: gm.WorkloadReference{Kind: "StatefulSet", Name: "uneven"}, Message: "pods are surplus"},
				{Ref: gm.WorkloadReference{Kind: "StatefulSet", Name: "whole"}}, {Ref: gm.WorkloadReference{Kind: "DaemonSet", Name: "all"}, Message: "pods of a DaemonSet run on nodes of the groups"},
			}
		})),
		build.StatefulSet("uneven", build.Requires("good", ""), build.UID("8"), build.With(func(s *appsv1.StatefulSet) { s.Status.ReadyReplicas = 1 })),
		build.PropagationPolicy("new"),
		build.PropagationPolicy("old", build.With(func(p *gm.PropagationPolicy) {
			p.Generation, p.Status.Conditions = 2, ready("True", "Satisfied", "")
			p.Status.Conditions[0].ObservedGeneration = 1
		})),
		build.DaemonSet("all", build.Requires("good", ""), build.UID("9")),
		build.OverridePolicy("bad", build.With(func(p *gm.OverridePolicy) { p.Status.Conditions = ready("False", "Invalid", "spec: wrong") })),
		build.NodeGroup("site", build.With(func(g *gm.NodeGroup) {
			g.Status.Conditions, g.Status.Ready, g.Status.Total = ready("True", "", ""), 2, 3
		})),
		build.Node("a"), build.Node("b", build.With(func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse })),
		build.Node("c", build.Annotation(connectivity.Annotation, connectivity.Record{State: connectivity.Frozen, Since: since, Reason: connectivity.ReasonFrozen}.String())),
		&apps.YurtCoordinator{ObjectMeta: metav1.ObjectMeta{Name: "site"}, Status: apps.YurtCoordinatorStatus{Conditions: ready("True", "", ""), OutsidePoolNodes: []string{"b"}}},
		&apps.UnitedDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: "stuck"}, Status: apps.UnitedDeploymentStatus{Conditions: ready("False", "Refused", `pool "y": no`)}},
		&apps.UnitedDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: "fine"}, Status: apps.UnitedDeploymentStatus{Conditions: ready("True", "PodsReady", "")}},
		&capacity.CapacitySplit{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: "s"}, Status: capacity.CapacitySplitStatus{
			Conditions: ready("True", "", ""), Workload: capacity.WorkloadReference{Name: "web"}, OnDemand: capacity.ClassStatus{Have: 2, Want: 2}, Spot: capacity.ClassStatus{Have: 1, Want: 3},
		}},
		&scheduling.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: "g"}, Spec: scheduling.PodGroupSpec{MinMember: 4}, Status: scheduling.PodGroupStatus{Phase: "Pending"}},
	}
	got, err := of(t, "", all, objects...)
	if err != nil {
		t.Fatal(err)
	}
	want := Status{Sections: []Section{
		{Name: "Workloads", Good: 4, Total: 8, Problems: []Problem{
			{"ns/each", "PolicyNotFound", "there is no OverridePolicy none", "kubectl atoll explain daemonset/each -n ns"},
			{"ns/half", "NotReady", "1 of 2 pods are Ready: pods wait", "kubectl atoll explain deployment/half -n ns"},
			{"ns/lost", "PolicyNotFound", "there is no PropagationPolicy no-such", "kubectl atoll explain deployment/lost -n ns"},
			{"ns/uneven", "NotDivided", "pods are surplus", "kubectl atoll explain statefulset/uneven -n ns"},
		}},
		{Name: "PropagationPolicies", Good: 1, Total: 3, Problems: []Problem{{"ns/new", "", "atoll-manager has written no status yet", "kubectl get pods -A -l app.kubernetes.io/name=atoll-manager"}, {"ns/old", "NotSeen", "atoll-manager has not seen its newest spec", "kubectl get pods -A -l app.kubernetes.io/name=atoll-manager"}}},
		{Name: "OverridePolicies", Total: 1, Problems: []Problem{{"ns/bad", "Invalid", "spec: wrong", ""}}},
		{Name: "NodeGroups", Good: 1, Total: 1, Facts: []string{"site 2 of 3 nodes Ready"}},
		{Name: "Nodes", Good: 1, Total: 3, Problems: []Problem{
			{"b", "NotReady", "its condition Ready is not True", "kubectl describe node b"},
			{"c", "Frozen", "since 2026-11-30 09:00:00 UTC: " + connectivity.Message(connectivity.ReasonFrozen), ""},
		}},
		{Name: "YurtCoordinators", Good: 1, Total: 1, Problems: []Problem{{"site", "OutsidePool", "they do not reach it: b", ""}}},
		{Name: "UnitedDeployments", Good: 1, Total: 2, Problems: []Problem{{"ns/stuck", "Refused", `pool "y": no`, ""}}},
		{Name: "CapacitySplits", Good: 1, Total: 1, Facts: []string{"ns/web on-demand 2 of 2, spot 1 of 3"}},
		{Name: "PodGroups", Total: 1, Problems: []Problem{{"ns/g", "Pending", "waits until 4 pods can start together", ""}}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got, err := of(t, "other", all, objects...); err != nil || len(got.Sections) != 3 {
		t.Errorf("in another namespace it says %+v, %v", got, err)
	}
}

// TestStatusOfWhatMayNotBeRead: it is named, and the rest is shown. A cluster that does not answer is an error.
func TestStatusOfWhatMayNotBeRead(t *testing.T) {
	resource := schema.GroupResource{Resource: "nodes"}
	forbidden := func(list client.ObjectList) error {
		if _, is := list.(*corev1.NodeList); is {
			return apierrors.NewForbidden(resource, "", nil)
		}
		return nil
	}
	got, err := of(t, "", forbidden, build.NodeGroup("site"), build.Node("a"))
	if err != nil || len(got.Sections) != 1 || len(got.Unread) != 1 || got.Unread[0] != "you may not list nodes: no role that is always there has the right; kubectl create clusterrole node-viewer --verb=get,list,watch --resource=nodes makes one" {
		t.Errorf("it says %+v, %v", got, err)
	}
	away := errors.New("no route to host")
	if _, err := of(t, "", func(client.ObjectList) error { return away }); !errors.Is(err, away) {
		t.Errorf("without a cluster: %v", err)
	}
}
