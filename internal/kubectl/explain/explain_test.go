package explain

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/domain/connectivity"
	"github.com/atoll-k8s/atoll/internal/kubectl/read"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// text is an explanation as lines.
func text(e *Explanation) string {
	var lines []string
	for _, f := range e.Facts {
		lines = append(lines, f.About+": "+f.Text)
	}
	if e.Waits != nil {
		lines = append(lines, "waits: "+e.Waits.Why, e.Waits.Command)
	}
	return strings.Join(append(lines, e.Unread...), "\n")
}

// TestExplain has one case for each thing that a pod may wait for, and for what is said of one that runs.
func TestExplain(t *testing.T) {
	inGroup, onNode := build.InGroup("beijing"), build.On("nodec")
	member := func(name string, options ...build.Option) *corev1.Node {
		return build.Node(name, append(options, inGroup)...)
	}
	cordoned := build.With(func(n *corev1.Node) { n.Spec.Unschedulable = true })
	conditions := func(status metav1.ConditionStatus, reason, message string) []metav1.Condition {
		return []metav1.Condition{{Type: gm.ConditionReady, Status: status, Reason: reason, Message: message}}
	}
	policy := func(change func(*gm.PropagationPolicy)) *gm.PropagationPolicy {
		return build.PropagationPolicy("shop", build.Weight(3, "hangzhou"), build.Weight(2, "beijing"), build.With(change))
	}
	same := func(*gm.PropagationPolicy) {}
	unready := build.With(func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "web", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}}}
	})
	ready := build.With(func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	})
	for name, c := range map[string]struct {
		requires [2]string
		pod      []build.Option
		objects  []client.Object
		want     string
	}{
		"no policy": {want: `
Policy: none: kube-scheduler alone places the pod
waits: kube-scheduler has not placed the pod yet
kubectl -n ns describe pod web-1`},
		"the policy is misspelt": {requires: [2]string{"shopp", ""}, pod: []build.Option{build.Gated()}, objects: []client.Object{policy(same)}, want: `
Policy: PropagationPolicy shopp, which Deployment web requires, is not there
waits: PropagationPolicy "shopp", which Deployment web requires, is not in namespace ns; there is "shop"
kubectl -n ns label deployment.apps web groupmanagement.kubeedge.io/required-propagationpolicy=shop --overwrite`},
		"the override is not there": {requires: [2]string{"shop", "registry"}, pod: []build.Option{build.Gated()}, objects: []client.Object{policy(same)}, want: `
Policy: PropagationPolicy shop: weights hangzhou 3, beijing 2
waits: OverridePolicy "registry", which Deployment web requires, is not in namespace ns: create it, or take the label off
kubectl -n ns label deployment.apps web groupmanagement.kubeedge.io/required-overridepolicy-`},
		"the policy is invalid": {requires: [2]string{"shop", ""}, pod: []build.Option{build.Gated()}, objects: []client.Object{policy(func(p *gm.PropagationPolicy) {
			p.Status.Conditions = conditions(metav1.ConditionFalse, gm.ReasonInvalid, "spec.numRange[0].max: less than min")
		})}, want: `
Policy: PropagationPolicy shop: weights hangzhou 3, beijing 2
waits: PropagationPolicy shop: spec.numRange[0].max: less than min
kubectl -n ns edit propagationpolicy shop`},
		"the share is not decided": {requires: [2]string{"shop", ""}, pod: []build.Option{build.Gated()}, objects: []client.Object{policy(func(p *gm.PropagationPolicy) {
			p.Status.Apps = []gm.WorkloadSpread{{
				Ref: gm.WorkloadReference{Kind: "Deployment", Name: "web"}, Waiting: 1, Message: "every NodeGroup has its share",
				Groups: []gm.GroupSpread{{Name: "beijing", Desired: 2, Current: 2}, {Current: 1}},
			}}
		})}, want: `
Policy: PropagationPolicy shop: weights hangzhou 3, beijing 2
Share: beijing has 2, wants 2; no group has 1, wants 0; 1 have no node yet
waits: every NodeGroup has its share
kubectl -n ns describe propagationpolicy shop`},
		"nobody has decided": {requires: [2]string{"shop", ""}, pod: []build.Option{build.Gated()}, objects: []client.Object{policy(same)}, want: `
Policy: PropagationPolicy shop: weights hangzhou 3, beijing 2
waits: atoll-manager has not decided yet: no replica leads, or it has not seen the pod
kubectl get pods -A -l app.kubernetes.io/name=atoll-manager`},
		"another program's gate": {pod: []build.Option{build.With(func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "quota"}} })}, want: `
Policy: none: kube-scheduler alone places the pod
waits: scheduling gate "quota" of another program, which has to remove it
kubectl -n ns describe pod web-1`},
		"all nodes are cordoned or away": {requires: [2]string{"shop", ""}, pod: []build.Option{inGroup}, objects: []client.Object{
			policy(same), build.NodeGroup("beijing"), member("nodec", cordoned), member("noded", build.Lost()),
		}, want: `
Policy: PropagationPolicy shop: weights hangzhou 3, beijing 2
Group: beijing, chosen while the pod was scheduled
waits: no node of NodeGroup "beijing" takes pods: nodec is cordoned, noded is not Ready
kubectl uncordon nodec`},
		"the group is gone": {requires: [2]string{"shop", ""}, pod: []build.Option{build.Seated("beijing"), inGroup}, objects: []client.Object{policy(same)}, want: `
Policy: PropagationPolicy shop: weights hangzhou 3, beijing 2
Group: beijing, chosen when the pod was created
waits: NodeGroup "beijing" does not exist any more
kubectl get nodegroups`},
		"no room": {requires: [2]string{"shop", ""}, pod: []build.Option{inGroup, build.With(func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/5 nodes are available: 1 Insufficient cpu, 1 Insufficient example.com/gpu. no new claims to deallocate, preemption: 0/5 nodes are available: 5 Preemption is not helpful for scheduling."}}
			requests := corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse("40"), "example.com/gpu": apiresource.MustParse("2")}
			p.Spec.Containers = []corev1.Container{{Name: "web", Resources: corev1.ResourceRequirements{Requests: requests}}}
		})}, objects: []client.Object{
			policy(same), build.NodeGroup("beijing"), member("nodec", build.With(func(n *corev1.Node) {
				n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse("32")}
			})), member("noded"),
		}, want: `
Policy: PropagationPolicy shop: weights hangzhou 3, beijing 2
Group: beijing, chosen while the pod was scheduled
waits: kube-scheduler: 0/5 nodes are available: 1 Insufficient cpu, 1 Insufficient example.com/gpu. The pod requests cpu: 40; the largest node of beijing has 32. The pod requests example.com/gpu: 2; the largest node of beijing has 0.
kubectl -n ns edit deployment.apps web`},
		"no room now": {requires: [2]string{"shop", ""}, pod: []build.Option{inGroup, build.With(func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/5 nodes are available: 1 Insufficient cpu."}}
			p.Spec.Containers = []corev1.Container{{Name: "web", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse("20")}}}}
		})}, objects: []client.Object{
			policy(same), build.NodeGroup("beijing"), member("nodec", build.With(func(n *corev1.Node) {
				n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse("32")}
			})),
		}, want: `
Policy: PropagationPolicy shop: weights hangzhou 3, beijing 2
Group: beijing, chosen while the pod was scheduled
waits: kube-scheduler: 0/5 nodes are available: 1 Insufficient cpu. The pod requests cpu: 20.
kubectl describe nodes -l ` + gm.NodeGroupLabel + `=beijing`},
		"it does not start": {pod: []build.Option{onNode, unready}, objects: []client.Object{member("nodec", cordoned)}, want: `
Policy: none: kube-scheduler alone places the pod
Node: nodec: Ready, cordoned
waits: container web: ImagePullBackOff: no such image
kubectl -n ns describe pod web-1`},
		"its node is silent": {pod: []build.Option{onNode, build.With(func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "web", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		})}, objects: []client.Object{member("nodec", build.With(func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
		}))}, want: `
Policy: none: kube-scheduler alone places the pod
Node: nodec: not known whether it is Ready
waits: its node nodec: not known whether it is Ready
kubectl describe node nodec`},
		"its container has ended": {pod: []build.Option{onNode, build.With(func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "web", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}}}}
		})}, objects: []client.Object{member("nodec")}, want: `
Policy: none: kube-scheduler alone places the pod
Node: nodec: Ready
waits: container web has ended with code 137: OOMKilled
kubectl -n ns logs web-1 -c web`},
		"a readiness gate": {pod: []build.Option{onNode, build.With(func(p *corev1.Pod) {
			p.Status.StartTime = &metav1.Time{Time: time.Unix(1, 0)}
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, Message: `the status of pod readiness gate "lb" is not "True"`}}
		})}, objects: []client.Object{member("nodec")}, want: `
Policy: none: kube-scheduler alone places the pod
Node: nodec: Ready
waits: the status of pod readiness gate "lb" is not "True"
kubectl -n ns describe pod web-1`},
		"it runs": {requires: [2]string{"shop", "registry"}, pod: []build.Option{
			inGroup, onNode, ready, build.Container("web", "beijing.io/nginx:1.27"), build.Annotation(gm.OriginalImagesAnnotation, `{"web":"nginx:1.27"}`),
			build.Label(gm.CapacityClassLabel, "spot"), build.Annotation(gm.CapacityReasonAnnotation, "2 on-demand pods are enough"), build.Annotation(scheduling.GroupNameAnnotation, "web"),
		}, objects: []client.Object{
			policy(same), build.NodeGroup("beijing"), build.OverridePolicy("registry", build.Registry("beijing", "beijing.io"), build.Args("beijing", "web", "-v")),
			member("nodec", build.Annotation(connectivity.Annotation, connectivity.Record{State: connectivity.Delegated, Since: time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC), Reason: connectivity.ReasonDelegated}.String())),
			&scheduling.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: "web"}, Spec: scheduling.PodGroupSpec{MinMember: 3}},
		}, want: `
Policy: PropagationPolicy shop: weights hangzhou 3, beijing 2
Group: beijing, chosen while the pod was scheduled
Node: nodec: Ready; Delegated since 2026-11-30 09:00:00: the node is cut off from the cloud, and its pool forwards its heartbeats; the pods of the node are kept
Override: container web: beijing.io/nginx:1.27, not nginx:1.27 (OverridePolicy registry, spec.overrideRules[0])
Override: args of container web: add -v (OverridePolicy registry, spec.overrideRules[1])
Class: spot: 2 on-demand pods are enough
PodGroup: web: at least 3 pods together`},
	} {
		t.Run(name, func(t *testing.T) {
			owner := build.Deployment("web", build.Requires(c.requires[0], c.requires[1]))
			between := build.ReplicaSet("web-0", build.OwnedBy(owner))
			pod := build.Pod("web-1", append(c.pod, build.OwnedBy(between))...)
			r := reader(t, append(c.objects, owner, between, pod)...)
			o, err := Observe(t.Context(), r, build.Namespace, "web-1")
			if err != nil {
				t.Fatal(err)
			}
			e := Explain(o)
			e.Unread = r.Unread()
			want := "Owner: Deployment web › ReplicaSet web-0" + c.want
			if diff := cmp.Diff(want, text(&e)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestSurplusPodsThatStay: of a workload with more pods in a group than its policy wants, it is said why they stay, and
// which PodDisruptionBudget allows no eviction.
func TestSurplusPodsThatStay(t *testing.T) {
	const why = "pods are surplus and stay for now: a PodDisruptionBudget allows no eviction"
	budget := func(name, app string, allowed int32) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: name},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
			Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed},
		}
	}
	for name, c := range map[string]struct {
		reason  string
		budgets []client.Object
		want    *Obstacle
	}{
		"the budget is named": {gm.ReasonBlockedByPDB, []client.Object{budget("another", "api", 0), budget("loose", "web", 1), budget("tight", "web", 0)}, &Obstacle{
			`pods are surplus and stay for now: PodDisruptionBudget "tight" allows no eviction`, "kubectl -n ns describe pdb tight",
		}},
		"the budget has gone": {gm.ReasonBlockedByPDB, nil, &Obstacle{why, "kubectl -n ns describe propagationpolicy shop"}},
		"another reason":      {gm.ReasonConverging, []client.Object{budget("tight", "web", 0)}, &Obstacle{why, "kubectl -n ns describe propagationpolicy shop"}},
	} {
		t.Run(name, func(t *testing.T) {
			owner := build.Deployment("web", build.Requires("shop", ""))
			policy := build.PropagationPolicy("shop", build.Weight(1, "beijing"), build.With(func(p *gm.PropagationPolicy) {
				p.Status.Conditions = []metav1.Condition{{Type: gm.ConditionReady, Status: metav1.ConditionFalse, Reason: c.reason}}
				p.Status.Apps = []gm.WorkloadSpread{{Ref: gm.WorkloadReference{Kind: "Deployment", Name: "web"}, Message: why, Groups: []gm.GroupSpread{{Name: "beijing", Current: 2, Desired: 1, Surplus: 1}}}}
			}))
			pod := build.Pod("web-1", build.OwnedBy(owner), build.Label("app", "web"))
			r := reader(t, append(c.budgets, owner, policy, pod)...)
			workload := &metav1.PartialObjectMetadata{ObjectMeta: owner.ObjectMeta}
			workload.SetGroupVersionKind(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"})
			w, err := OfWorkload(t.Context(), r, workload)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, w.Stays); diff != "" {
				t.Error(diff)
			}
			o, err := Observe(t.Context(), r, build.Namespace, "web-1")
			if err != nil {
				t.Fatal(err)
			}
			if e := Explain(o); !strings.Contains(text(&e), "Share: "+why) {
				t.Errorf("of the pod it says:\n%s", text(&e))
			}
		})
	}
}

// TestPoliciesThatMayNotBeRead: nobody is told to create a policy that is there, or to take a label off.
func TestPoliciesThatMayNotBeRead(t *testing.T) {
	owner := build.Deployment("web", build.Requires("shop", "registry"))
	r := readerWithout(t, []string{"PropagationPolicy", "OverridePolicy"}, owner, build.Pod("web-1", build.Gated(), build.OwnedBy(owner)))
	o, err := Observe(t.Context(), r, build.Namespace, "web-1")
	if err != nil {
		t.Fatal(err)
	}
	e := Explain(o)
	want := `Owner: Deployment web
Policy: PropagationPolicy shop, which Deployment web requires: you may not read it
waits: the scheduling gate of Atoll, and you may not read the policies that tell why
kubectl -n ns auth can-i get propagationpolicies.groupmanagement.kubeedge.io`
	if diff := cmp.Diff(want, text(&e)); diff != "" || len(r.Unread()) != 2 {
		t.Errorf("%s\n%v", diff, r.Unread())
	}
}

// TestOwnersThatMayNotBeRead: nobody is told that a pod has no owner or no policy, or to label what inherits its labels.
func TestOwnersThatMayNotBeRead(t *testing.T) {
	owner := build.Deployment("web", build.Requires("shop", ""))
	rs := build.ReplicaSet("web-1", build.OwnedBy(owner), build.Requires("shop", ""))
	for unread, want := range map[string]string{
		"ReplicaSet": `Owner: ReplicaSet web-1, which you may not read
Policy: not known: that of ReplicaSet web-1, which you may not read
waits: the scheduling gate of Atoll: which policies it requires is told by ReplicaSet web-1, which you may not read
kubectl -n ns describe pod web-1-x`,
		"Deployment": `Owner: Deployment web, which you may not read › ReplicaSet web-1
Policy: PropagationPolicy shop, which ReplicaSet web-1 requires, is not there
waits: the scheduling gate of Atoll: which policies it requires is told by Deployment web, which you may not read
kubectl -n ns describe pod web-1-x`,
	} {
		r := readerWithout(t, []string{unread}, owner, rs, build.Pod("web-1-x", build.Gated(), build.OwnedBy(rs)))
		o, err := Observe(t.Context(), r, build.Namespace, "web-1-x")
		if err != nil {
			t.Fatal(err)
		}
		e := Explain(o)
		if diff := cmp.Diff(want, text(&e)); diff != "" {
			t.Errorf("without %s: %s", unread, diff)
		}
	}
}

// readerWithout reads these objects, but may not get those of some kinds.
func readerWithout(t *testing.T, unread []string, objects ...client.Object) *read.Reader {
	t.Helper()
	kinds, err := read.Scheme()
	if err == nil {
		err = scheme.AddToScheme(kinds)
	}
	if err != nil {
		t.Fatal(err)
	}
	return read.For(fake.NewClientBuilder().WithScheme(kinds).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
			if kind, err := apiutil.GVKForObject(object, kinds); err != nil || slices.Contains(unread, kind.Kind) {
				return apierrors.NewForbidden(schema.GroupResource{Resource: kind.Kind}, key.Name, err)
			}
			return c.Get(ctx, key, object, options...)
		},
	}).Build(), kinds)
}

// reader reads these objects.
func reader(t *testing.T, objects ...client.Object) *read.Reader {
	t.Helper()
	return readerWithout(t, nil, objects...)
}

// TestNearest: a name that is wrong by one or two letters is recognized, and no other one.
func TestNearest(t *testing.T) {
	for name, want := range map[string]string{"shop": "shop", "shopp": "shop", "shpo": "shop", "hsop": "shop", "sho": "shop", "off": "office", "bakery": "", "fol": "", "": ""} {
		if got := nearest(name, []string{"office", "shop"}); got != want {
			t.Errorf("%q is taken for %q, want %q", name, got, want)
		}
	}
	if got := fmt.Sprint(distance("kitten", "sitting"), distance("", "abc"), distance("abc", "")); got != "3 3 3" {
		t.Errorf("distances are %s", got)
	}
}
