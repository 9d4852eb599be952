package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/kubectl/read"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// shop is a cluster with a Deployment of six pods, three in each of two NodeGroups.
func shop() []client.Object {
	registry := build.OverridePolicy("registry")
	web := build.Deployment("web", build.Replicas(6), build.Requires("shop", "registry"), build.Bound("shop", "registry"))
	rs := build.ReplicaSet("web-1", build.Replicas(6), build.OwnedBy(web))
	objects := []client.Object{
		build.NodeGroup("beijing", build.Selects("b1", "b2")), build.NodeGroup("hangzhou", build.Selects("h1")),
		build.PropagationPolicy("shop", build.Weight(1, "beijing"), build.Weight(1, "hangzhou")), registry, web, rs,
	}
	for i, node := range []string{"b1", "b1", "b2", "h1", "h1", "h1"} {
		group := map[byte]string{'b': "beijing", 'h': "hangzhou"}[node[0]]
		objects = append(objects, build.Pod(fmt.Sprint("web-1-", i), build.OwnedBy(rs), build.On(node), build.InGroup(group), build.Container("app", "nginx"), build.Running(0), build.Label("app", "web")))
	}
	for node, group := range map[string]string{"b1": "beijing", "b2": "beijing", "h1": "hangzhou", "h2": ""} {
		options := []build.Option{build.Label("site", node)}
		if group != "" {
			options = append(options, build.InGroup(group))
		}
		objects = append(objects, build.Node(node, options...))
	}
	return objects
}

// TestPlan has one case for each thing that may happen, and for what may be in its way.
func TestPlan(t *testing.T) {
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: "all"}}
	budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	pool := build.NodePool("edge", build.With(func(p *apps.NodePool) {
		p.Spec.Selector = &apps.NodeSelector{MatchLabels: map[string]apps.LabelValue{"site": "h1"}}
		p.Spec.Taints = []apps.NodePoolTaint{{Key: "site", Value: "s", Effect: corev1.TaintEffectNoExecute}}
		p.Spec.Annotations = map[string]apps.AnnotationValue{"owner": "me"}
	}))
	template := build.With(func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "app", Image: "nginx:2"}}
	})
	for name, c := range map[string]struct {
		also, applied []client.Object
		want          string
	}{
		"nothing": {applied: []client.Object{build.NodeGroup("hangzhou", build.Selects("h1"))}, want: `
Nothing changes.`},
		"other weights": {applied: []client.Object{build.PropagationPolicy("shop", build.Weight(1, "beijing"), build.Weight(2, "hangzhou"))}, want: `
Deployment ns/web
  NODEGROUP, BY shop                          NOW   THEN
  beijing                                       3      2
  hangzhou                                      3      4
  Leave their NodeGroup, in this order, 1 at a time:
    web-1-2  in beijing`},
		"a budget": {also: []client.Object{budget}, applied: []client.Object{build.PropagationPolicy("shop", build.Weight(1, "beijing"), build.Weight(2, "hangzhou"))}, want: `
Deployment ns/web
  NODEGROUP, BY shop                          NOW   THEN
  beijing                                       3      2
  hangzhou                                      3      4
  Leave their NodeGroup, in this order, 1 at a time:
    web-1-2  in beijing
  Blocked: PodDisruptionBudget "all" allows no eviction now: kubectl describe pdb -n ns all`},
		"another registry": {applied: []client.Object{build.OverridePolicy("registry", build.Registry("hangzhou", "h.io"))}, want: `
Deployment ns/web
  NODEGROUP, BY shop                          NOW   THEN
  beijing                                       3      3
  hangzhou                                      3      3
  Restart in place with other images, in this order, 1 at a time:
    web-1-3  in hangzhou
      app: nginx → h.io/nginx
    web-1-4  in hangzhou
      app: nginx → h.io/nginx
    web-1-5  in hangzhou
      app: nginx → h.io/nginx`},
		"other arguments": {applied: []client.Object{build.OverridePolicy("registry", build.Args("hangzhou", "app", "-v"))}, want: `
Deployment ns/web
  NODEGROUP, BY shop                          NOW   THEN
  beijing                                       3      3
  hangzhou                                      3      3
  Are replaced, because other fields change, in this order, 1 at a time:
    web-1-3  in hangzhou
    web-1-4  in hangzhou
    web-1-5  in hangzhou`},
		"a node changes its group": {applied: []client.Object{build.NodeGroup("beijing", build.Selects("b1", "b2", "h2"))}, want: `
Node h2
  NodeGroup (none) → beijing`},
		"a pool with a taint": {applied: []client.Object{pool}, want: `
Node h1
  NodePool (none) → edge
  annotation owner=me
  taint site:NoExecute=s
  evicts pod ns/web-1-3, which does not tolerate the taint
  evicts pod ns/web-1-4, which does not tolerate the taint
  evicts pod ns/web-1-5, which does not tolerate the taint`},
		"another template": {applied: []client.Object{build.Deployment("web", build.Replicas(6), build.Requires("shop", "registry"), template)}, want: `
Deployment ns/web
  A rollout replaces its pods: its pod template changes
  NODEGROUP, BY shop                          NOW   THEN
  beijing                                       3      3
  hangzhou                                      3      3`},
		"more replicas": {applied: []client.Object{build.Deployment("web", build.Replicas(10), build.Requires("shop", "registry"))}, want: `
Deployment ns/web
  NODEGROUP, BY shop                          NOW   THEN
  beijing                                       3      5
  hangzhou                                      3      5`},
		"no policy any more": {applied: []client.Object{build.Deployment("web", build.Replicas(6))}, want: `
Deployment ns/web
  Its pods stay where they are: no policy that it requires exists any more`},
		"two policies that were not there before": {also: []client.Object{build.Deployment("lost", build.Requires("no-such", "neither"))}, applied: []client.Object{build.NodeGroup("hangzhou", build.Selects("h1"))}, want: `
Nothing changes.`},
		"a policy that is not there": {applied: []client.Object{
			build.Deployment("web", build.Replicas(6), build.Requires("shop", "registri")), build.Deployment("new", build.Replicas(4), build.Requires("shopp", "")),
			build.Deployment("patient", build.Requires("shopp", ""), build.Annotation(gm.MissingPolicyAnnotation, gm.MissingPolicyIgnore)),
		}, want: `
Deployment ns/new
  Blocked: PropagationPolicy "shopp" is not in namespace ns: new pods wait at the scheduling gate
Deployment ns/web
  NODEGROUP, BY shop                          NOW   THEN
  beijing                                       3      3
  hangzhou                                      3      3
  Blocked: OverridePolicy "registri" is not in namespace ns: new pods wait at the scheduling gate`},
		"a new workload": {applied: []client.Object{
			build.Deployment("new", build.Replicas(4), build.Requires("shop", "")),
		}, want: `
Deployment ns/new
  NODEGROUP, BY shop                          NOW   THEN
  beijing                                       0      2
  hangzhou                                      0      2`},
		"a new workload with a pod more than equal groups can share": {applied: []client.Object{
			build.Deployment("new", build.Replicas(5), build.Requires("shop", ""), build.UID("b")),
		}, want: `
Deployment ns/new
  NODEGROUP, BY shop                          NOW   THEN
  beijing                                       0      2
  hangzhou                                      0      3
  Not known: which of equal NodeGroups gets a pod more: its UID decides that`},
		"new workloads that are not divided before they have pods": {applied: []client.Object{
			build.Job("once", build.Requires("shop", "")), build.DaemonSet("everywhere", build.Requires("shop", "")), build.Pod("alone", build.Requires("shop", "")),
		}, want: `
DaemonSet ns/everywhere
  Not known: on which nodes it runs: its controller decides that, and no policy divides its pods
Job ns/once
  Not known: where it runs: the policy decides that for each pod as it is created, and never moves such a pod
Pod ns/alone
  Not known: where it runs: the policy decides that for each pod as it is created, and never moves such a pod`},
	} {
		t.Run(name, func(t *testing.T) {
			scheme, err := read.Scheme()
			if err != nil {
				t.Fatal(err)
			}
			reader := read.For(fake.NewClientBuilder().WithScheme(scheme).WithObjects(append(shop(), c.also...)...).Build(), scheme)
			cluster, err := Observe(t.Context(), reader)
			if err != nil {
				t.Fatal(err)
			}
			p, err := cluster.Of(t.Context(), c.applied, kubefake.NewClientset())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.TrimPrefix(c.want, "\n"), strings.TrimSuffix(p.Text(), "\n")); diff != "" {
				t.Errorf("wrong plan (-want +got):\n%s", diff)
			}
		})
	}
}
