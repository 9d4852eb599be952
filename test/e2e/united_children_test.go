package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// refuseWorkload makes the API server refuse to create a Deployment with the name until
// the returned function is called.
func (f *fixture) refuseWorkload(name string) (allow func()) {
	f.Helper()
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "refuse-" + name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule:       admissionv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"}},
				},
			}}},
			Validations: []admissionv1.Validation{{Expression: "object.metadata.name != '" + name + "'", Message: "there is no room for it"}},
		},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: policy.Name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: policy.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}
	f.create(policy, binding)
	allow = func() {
		for _, o := range []client.Object{binding, policy} {
			if err := client.IgnoreNotFound(f.client.Delete(context.Background(), o)); err != nil {
				f.Error(err)
			}
		}
	}
	f.Cleanup(allow)
	f.eventually(patience, "the refusal is in force", func() error {
		template := podTemplate(name)
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: name}, Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template,
		}}
		if err := f.client.Create(f.ctx, d, client.DryRunAll); err == nil {
			return fmt.Errorf("it is let pass")
		}
		return nil
	})
	return allow
}

// TestUnitedRefusedPoolBlocksNoOther is scenario 44 and A3: the workload of pool b cannot be
// created. Those of the pools before and after it are created, the status names only b,
// the creation is tried again with growing intervals, and succeeds once it is allowed.
func TestUnitedRefusedPoolBlocksNoOther(t *testing.T) {
	tier.All(t, "waits for growing pauses: 25 s")
	f := newFixture(t)
	f.sites("quota-a", "quota-b", "quota-c")
	allow := f.refuseWorkload("web-quota-b")
	before := f.writes()
	f.create(united("web", pool("quota-a", 1), pool("quota-b", 1), pool("quota-c", 1)))
	message := f.condition("web", apps.PoolFailure, metav1.ConditionTrue, apps.ReasonRefused)
	if !strings.HasPrefix(message, `pool "quota-b": `) || !strings.Contains(message, "there is no room for it") {
		t.Errorf("the message is %q", message)
	}
	f.phasesAre("web", map[string]apps.PoolPhase{"quota-a": apps.PoolReady, "quota-b": apps.PoolFailed, "quota-c": apps.PoolReady})
	s := f.ud("web").Status
	if s.ObservedGeneration != f.ud("web").Generation || len(s.Pools) != 3 || s.CurrentRevision != "" || s.Pools[1].Reason != apps.ReasonRefused ||
		s.Pools[0].Reason+s.Pools[2].Reason != "" {
		t.Errorf("status is %s", asJSON(s))
	}
	// Independent of earlier triggers, each wait from the first try on is twice the one
	// before. With a try every 100 ms there would be fifty tries in the time of five
	// doublings.
	tries := func() int { return f.writes()["POST deployments/"] - before["POST deployments/"] - 2 }
	f.eventually(patience, "it is tried five times", func() error {
		if n := tries(); n < 5 {
			return fmt.Errorf("%d times so far", n)
		}
		return nil
	})
	first := tries()
	f.always(2*time.Second, "it is tried seldom by now", func() error {
		if n := tries() - first; n > 2 {
			return fmt.Errorf("%d times more", n)
		}
		return nil
	})
	if now := f.writes()["PATCH uniteddeployments/status"]; now-before["PATCH uniteddeployments/status"] > 10 {
		t.Errorf("the status was written %d times", now-before["PATCH uniteddeployments/status"])
	}
	allow()
	f.done("web")
}

// TestUnitedNewerDuplicateIsDeleted is scenario 45 and A4: of two workloads of a pool the older one
// stays.
func TestUnitedNewerDuplicateIsDeleted(t *testing.T) {
	f := newFixture(t)
	f.sites("dup-a")
	f.create(united("web", pool("dup-a", 2)))
	f.done("web")
	before := f.uidsByPool("web")
	second := f.deploymentOf("web-dup-a")
	second.ObjectMeta = metav1.ObjectMeta{
		Name: "web-dup-a-again", Labels: second.Labels, Annotations: second.Annotations, OwnerReferences: second.OwnerReferences,
	}
	f.create(second)
	f.eventually(patience, "the second goes", func() error {
		err := f.client.Get(f.ctx, client.ObjectKeyFromObject(second), &appsv1.Deployment{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("still there: %w", err)
	})
	f.done("web")
	if after := f.uidsByPool("web"); !slices.Equal(after["dup-a"], before["dup-a"]) {
		t.Errorf("the pods were %v and are %v", before, after)
	}
}

// TestUnitedHandEditsArePutBack is scenario 46 and A9: replicas, image, labels, an
// additional toleration, the selector's label on the pods, Atoll's own annotations.
func TestUnitedHandEditsArePutBack(t *testing.T) {
	tier.All(t, "ten edits one after the other: 30 s")
	f := newFixture(t)
	f.sites("edit-a")
	ud := united("web", pool("edit-a", 1))
	ud.Spec.WorkloadTemplate.DeploymentTemplate.Labels = map[string]string{"tier": "front"}
	f.create(ud)
	f.done("web")
	want := f.deploymentOf("web-edit-a")
	for name, edit := range map[string]func(*appsv1.Deployment){
		"replicas":  func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(77)) },
		"the image": func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "other:1" },
		"a container more": func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Containers = append(d.Spec.Template.Spec.Containers, corev1.Container{Name: "more", Image: "more:1"})
		},
		"where pods may run": func(d *appsv1.Deployment) { d.Spec.Template.Spec.Affinity = nil },
		"a toleration": func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		},
		"a label of the template": func(d *appsv1.Deployment) { d.Labels["tier"] = "back" },
		"the pool's label":        func(d *appsv1.Deployment) { delete(d.Labels, apps.PoolNameLabel) },
		"the revision's label":    func(d *appsv1.Deployment) { d.Labels[apps.RevisionLabel] = "none" },
		"our annotations":         func(d *appsv1.Deployment) { d.Annotations = nil },
		"the owner":               func(d *appsv1.Deployment) { d.OwnerReferences = nil },
	} {
		t.Run(name, func(t *testing.T) {
			f := &fixture{T: t, ctx: f.ctx, ns: f.ns, environment: f.environment}
			f.eventually(patience, "the edit is taken", func() error {
				d := f.deploymentOf(want.Name)
				edit(d)
				return f.client.Update(f.ctx, d)
			})
			f.eventually(patience, "it is put back", func() error {
				got := f.deploymentOf(want.Name)
				if asJSON(got.Spec) != asJSON(want.Spec) || !maps.Equal(got.Labels, want.Labels) || asJSON(got.OwnerReferences) != asJSON(want.OwnerReferences) ||
					got.Annotations[apps.PoolRevisionAnnotation] != want.Annotations[apps.PoolRevisionAnnotation] {
					return fmt.Errorf("it is %s, was %s", asJSON(got), asJSON(want))
				}
				return nil
			})
		})
	}
	f.label(want, map[string]any{"somebody-elses": "stays"})
	f.setImage("web", "nginx:1.28")
	f.done("web")
	if got := f.deploymentOf(want.Name).Labels["somebody-elses"]; got != "stays" {
		t.Error("a label that is none of ours went")
	}
}

// TestUnitedRemovedTemplateFieldsAreRemoved is scenario 47 and A10: fields that are removed from the
// template are removed from the workloads.
func TestUnitedRemovedTemplateFieldsAreRemoved(t *testing.T) {
	f := newFixture(t)
	f.sites("label-a", "label-b")
	ud := united("web", pool("label-a", 1), pool("label-b", 1))
	ud.Spec.WorkloadTemplate.DeploymentTemplate.Labels = map[string]string{"tier": "front"}
	ud.Spec.WorkloadTemplate.DeploymentTemplate.Annotations = map[string]string{"note": "x"}
	f.create(ud)
	f.done("web")
	before := f.uidsByPool("web")
	f.change("web", func(ud *apps.UnitedDeployment) {
		ud.Spec.WorkloadTemplate.DeploymentTemplate.ObjectMeta = metav1.ObjectMeta{}
	})
	f.done("web")
	for _, name := range []string{"web-label-a", "web-label-b"} {
		d := f.deploymentOf(name)
		if _, has := d.Labels["tier"]; has || d.Annotations["note"] != "" {
			t.Errorf("%s has labels %v and annotations %v", name, d.Labels, d.Annotations)
		}
	}
	if after := f.uidsByPool("web"); asJSON(after) != asJSON(before) {
		t.Errorf("pods restarted: they were %v and are %v", before, after)
	}
}

// TestUnitedPoolsComeAndGo is scenarios 48 and 49, and A13 in part: when a pool is
// removed, only its workload is removed; a new pool starts at the current revision. A
// pool with the same name and other settings may be added again.
func TestUnitedPoolsComeAndGo(t *testing.T) {
	f := newFixture(t)
	f.sites("come-a", "come-b", "come-c")
	f.create(united("web", pool("come-a", 1), pool("come-b", 1)))
	f.done("web")
	before := f.uidsByPool("web")
	f.change("web", func(ud *apps.UnitedDeployment) {
		ud.Spec.Topology.Pools = []apps.Pool{pool("come-a", 1), pool("come-c", 2)}
	})
	f.done("web")
	f.eventually(patience, "the pods are those of a and c", func() error {
		if got := f.podsByPool("web"); !maps.Equal(got, map[string]int{"come-a": 1, "come-c": 2}) {
			return fmt.Errorf("they are %v", got)
		}
		return nil
	})
	if after := f.uidsByPool("web"); !slices.Equal(after["come-a"], before["come-a"]) {
		t.Errorf("pods of a were %v and are %v", before, after)
	}
	if got := f.ud("web").Status.PoolReplicas; !maps.Equal(got, map[string]int32{"come-a": 1, "come-c": 2}) {
		t.Errorf("poolReplicas are %v", got)
	}
	f.change("web", func(ud *apps.UnitedDeployment) {
		ud.Spec.Topology.Pools = append(ud.Spec.Topology.Pools, pool("come-b", 1, func(p *apps.Pool) {
			p.NodeSelectorTerm.MatchFields = []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"come-b-1"}}}
		}))
	})
	f.done("web")
	for _, pod := range f.pods("web") {
		if pod.Labels[apps.PoolNameLabel] == "come-b" && pod.Spec.NodeName != "come-b-1" {
			t.Errorf("the pod of b is on %s", pod.Spec.NodeName)
		}
	}
}

// TestUnitedToleratesThePoolsTaints is scenario 49: the NodePool's taints are tolerated, also
// after the NodePool is deleted, which the status reports. The pods do not change then
// (A13).
func TestUnitedToleratesThePoolsTaints(t *testing.T) {
	f := newFixture(t)
	f.nodeSpecs(devcluster.NodeSpec{Name: "taint-a-0", Labels: map[string]string{apps.NodePoolLabel: "taint-a"}})
	f.pools(poolOf("taint-a", apps.NodePoolSpec{Taints: []apps.NodePoolTaint{
		{Key: "site", Value: "a", Effect: corev1.TaintEffectNoSchedule}, {Key: "offline", Effect: corev1.TaintEffectNoExecute},
	}}))
	f.eventually(patience, "the node is tainted", func() error {
		n, err := f.kube.CoreV1().Nodes().Get(f.ctx, "taint-a-0", metav1.GetOptions{})
		if err != nil || len(n.Spec.Taints) != 2 {
			return fmt.Errorf("it is not: %w", err)
		}
		return nil
	})
	f.create(united("web", pool("taint-a", 2)))
	f.done("web")
	before := f.uidsByPool("web")
	f.emptyPool("taint-a")
	f.deletePool("taint-a")
	f.poolGoes("taint-a")
	message := f.condition("web", apps.PoolProvisioned, metav1.ConditionFalse, apps.ReasonNodePoolMissing)
	if !strings.Contains(message, `"taint-a"`) {
		t.Errorf("the message is %q", message)
	}
	if after := f.uidsByPool("web"); asJSON(after) != asJSON(before) {
		t.Errorf("pods were %v and are %v", before, after)
	}
	if n := len(f.deploymentOf("web-taint-a").Spec.Template.Spec.Tolerations); n != 2 {
		t.Errorf("it has %d tolerations", n)
	}
	f.pools(poolOf("taint-a", apps.NodePoolSpec{}))
	f.eventually(patience, "what the new NodePool has not is not tolerated", func() error {
		if n := len(f.deploymentOf("web-taint-a").Spec.Template.Spec.Tolerations); n != 0 {
			return fmt.Errorf("it has %d tolerations", n)
		}
		return nil
	})
}

// TestUnitedAffinityOfTheTemplate is scenario 51: the pool's term is added to
// each of the template's.
func TestUnitedAffinityOfTheTemplate(t *testing.T) {
	f := newFixture(t)
	f.sites("aff-a", "aff-b")
	ud := united("web", pool("aff-a", 2), pool("aff-b", 2))
	in := func(name string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{name}}}}
	}
	podsOfTemplate(ud).Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{in("aff-a-1"), in("aff-b-0")}},
	}}
	f.create(ud)
	f.done("web")
	for _, pod := range f.pods("web") {
		if want := map[string]string{"aff-a": "aff-a-1", "aff-b": "aff-b-0"}[pod.Labels[apps.PoolNameLabel]]; pod.Spec.NodeName != want {
			t.Errorf("pod %s is on %s, want %s", pod.Name, pod.Spec.NodeName, want)
		}
	}
}

// TestUnitedOrphansAreAdopted is scenario 57: a UnitedDeployment takes over the orphaned
// workloads of an earlier one with the same name without changing a pod; workloads of
// other owners are not changed.
func TestUnitedOrphansAreAdopted(t *testing.T) {
	tier.All(t, "breadth: the main scenarios are TestUnitedUpdatesInOrder and TestUnitedPoolsComeAndGo")
	f := newFixture(t)
	f.sites("orphan-a", "orphan-b")
	f.create(united("web", pool("orphan-a", 2), pool("orphan-b", 1)))
	f.done("web")
	before := f.uidsByPool("web")
	f.orphaning(f.ud("web"))
	f.eventually(patience, "it goes and leaves its workloads", func() error {
		err := f.client.Get(f.ctx, types.NamespacedName{Namespace: f.ns, Name: "web"}, &apps.UnitedDeployment{})
		if !apierrors.IsNotFound(err) || len(f.deploymentOf("web-orphan-a").OwnerReferences) > 0 {
			return fmt.Errorf("not yet: %w", err)
		}
		return nil
	})
	// The other workload has another owner by now.
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}
	f.create(owner)
	b := f.deploymentOf("web-orphan-b")
	b.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("ConfigMap"))}
	if err := f.client.Update(f.ctx, b); err != nil {
		t.Fatal(err)
	}
	f.create(united("web", pool("orphan-a", 2), pool("orphan-b", 1)))
	f.eventually(patience, "both pools have a workload", func() error {
		s := f.ud("web").Status
		if len(s.Pools) != 2 || s.Pools[0].Workload != "web-orphan-a" || !strings.HasPrefix(s.Pools[1].Workload, "web-orphan-b-") {
			return fmt.Errorf("they are %s", asJSON(s))
		}
		return nil
	})
	if !metav1.IsControlledBy(f.deploymentOf("web-orphan-b"), owner) {
		t.Error("it stole another owner's workload")
	}
	after := f.uidsByPool("web")
	if !slices.Equal(after["orphan-a"], before["orphan-a"]) {
		t.Errorf("the pods of a were %v and are %v", before, after)
	}
	if err := f.client.Delete(f.ctx, f.ud("web"), client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
		t.Fatal(err)
	}
	f.eventually(patience, "all of ours goes", func() error {
		list, err := f.kube.AppsV1().Deployments(f.ns).List(f.ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 || list.Items[0].Name != "web-orphan-b" {
			return fmt.Errorf("there are %d: %w", len(list.Items), err)
		}
		return nil
	})
}

// TestUnitedEmptyPool is scenario 58 and A8: a pool without pods is ready.
func TestUnitedEmptyPool(t *testing.T) {
	tier.All(t, "breadth: a pool without pods")
	f := newFixture(t)
	f.sites("empty-a", "empty-b")
	f.create(united("web", pool("empty-a", 0), pool("empty-b", 1)))
	f.done("web")
	f.setImage("web", "nginx:1.28")
	f.done("web")
}

// TestUnitedLongNames is scenario 61: names stay valid and distinct, and the workloads of
// two UnitedDeployments that would have the same name get different ones.
func TestUnitedLongNames(t *testing.T) {
	tier.All(t, "breadth: names at their limits")
	f := newFixture(t)
	long := strings.Repeat("p", 63)
	f.nodes(map[string]string{apps.NodePoolLabel: long}, "long-0")
	f.pools(poolOf(long, apps.NodePoolSpec{}))
	f.sites("b-c", "c")
	name := strings.Repeat("u", 63)
	ud := united(name, pool(long, 1))
	f.create(ud)
	f.eventually(patience, "it is done", func() error { return f.isDone(name) })
	f.create(united("a", pool("b-c", 1)), united("a-b", pool("c", 1)))
	f.done("a")
	f.done("a-b")
	one, two := f.ud("a").Status.Pools[0].Workload, f.ud("a-b").Status.Pools[0].Workload
	if one == two || !slices.Contains([]string{one, two}, "a-b-c") {
		t.Errorf("their workloads are %q and %q", one, two)
	}
}

// TestUnitedPatches: a patch changes only its pool, and creates no revision. A patch that
// cannot be applied changes nothing and is reported.
func TestUnitedPatches(t *testing.T) {
	tier.All(t, "breadth: patches of single pools, one by one")
	f := newFixture(t)
	f.sites("patch-a", "patch-b")
	f.create(united("web", pool("patch-a", 1), pool("patch-b", 1)))
	f.done("web")
	before := f.uidsByPool("web")
	f.change("web", func(ud *apps.UnitedDeployment) {
		patchedBy(`{"spec":{"template":{"spec":{"containers":[{"name":"app","env":[{"name":"SITE","value":"b"}]}]}}}}`)(&ud.Spec.Topology.Pools[1])
	})
	f.done("web")
	c := f.deploymentOf("web-patch-b").Spec.Template.Spec.Containers[0]
	if len(c.Env) != 1 || c.Env[0].Value != "b" || c.Image != "nginx:1.27" {
		t.Errorf("the container is %s", asJSON(c))
	}
	if after := f.uidsByPool("web"); !slices.Equal(after["patch-a"], before["patch-a"]) || slices.Equal(after["patch-b"], before["patch-b"]) {
		t.Errorf("pods were %v and are %v", before, after)
	}
	if n := len(f.revisions("web")); n != 1 {
		t.Errorf("there are %d revisions", n)
	}
	f.change("web", func(ud *apps.UnitedDeployment) {
		patchedBy(`{"spec":{"template":{"spec":{"nodeSelektor":{}}}}}`)(&ud.Spec.Topology.Pools[1])
		ud.Spec.Topology.Pools[0].Replicas.IntVal = 2
	})
	message := f.condition("web", apps.PoolFailure, metav1.ConditionTrue, apps.ReasonPatchInvalid)
	if !strings.Contains(message, "topology.pools[patch-b].patch") || !strings.Contains(message, "nodeSelektor") {
		t.Errorf("the message is %q", message)
	}
	f.eventually(patience, "the other pool is scaled", func() error {
		if got := f.podsByPool("web"); !maps.Equal(got, map[string]int{"patch-a": 2, "patch-b": 1}) {
			return fmt.Errorf("the pods are %v", got)
		}
		return nil
	})
	f.eventually(patience, "there is an event", func() error {
		list, err := f.kube.EventsV1().Events(f.ns).List(f.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Reason == apps.ReasonPatchInvalid && e.Regarding.Name == "web" {
				return nil
			}
		}
		return fmt.Errorf("none of %d does", len(list.Items))
	})
	f.change("web", func(ud *apps.UnitedDeployment) { ud.Spec.Topology.Pools[1].Patch = nil })
	f.done("web")
}
