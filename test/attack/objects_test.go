package attack

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

const (
	// crowd is the namespace of the tenant who stores as much as the API server takes.
	crowd = "crowd"
	// large is about the size of the largest object that the API server takes, in bytes.
	large = 1_300_000
	// largeObjects is how many of each kind there are, and smallPolicies how many policies of
	// 5 KB. Decoded they take about 1 GiB.
	largeObjects, smallPolicies = 100, 2000
	// measured is how many Deployments of another tenant are measured, one after the other.
	measured = 15
)

// TestOneTenantsObjectsAreBounded: a tenant stores objects of the largest size by the hundred
// while atoll-manager does not run, so that nothing is refused. Then it starts, stays below the
// memory limit of the chart, says which policies it does not use, and uses them once there is
// room. Another tenant's Deployments are placed meanwhile.
func TestOneTenantsObjectsAreBounded(t *testing.T) {
	klog.SetLogger(logr.Discard())
	ctrl.SetLogger(logr.Discard())
	b := newBed(t)
	b.tenant()
	if err := b.client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: crowd}}); err != nil {
		t.Fatal(err)
	}
	if err := b.client.Create(t.Context(), &gm.PropagationPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: crowd, Name: "p"},
		Spec:       gm.PropagationSpec{PropagationStrategy: "StaticWeight", StaticWeight: []gm.StaticNodeGroupWeight{{NodeGroupNames: []string{"hz"}, Weight: 1}}},
	}); err != nil {
		t.Fatal(err)
	}
	calm := b.inTurns("calm", 0, measured)
	b.refusesLarge()
	if err := b.cluster.Kill(t.Context(), atoll.Manager); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for i := range largeObjects {
		b.create(func() client.Object { return policyOf(fmt.Sprint("large-", i), large) },
			func() client.Object { return largePod(fmt.Sprint("large-", i)) },
			func() client.Object { return largeDeployment(fmt.Sprint("large-", i)) })
	}
	b.createMany(smallPolicies, func(i int) client.Object { return policyOf(fmt.Sprint("small-", i), 5_000) })
	t.Logf("%d objects of 1.3 MB and %d policies were stored in %s", 3*largeObjects, smallPolicies, time.Since(began).Round(time.Second))
	if err := b.cluster.Restart(t.Context(), atoll.Manager); err != nil {
		t.Fatal(err)
	}
	t.Logf("memory after the start: %d MiB, at most %d MiB", b.memory("VmRSS"), b.memory("VmHWM"))
	during := b.inTurns("crowded", 0, measured)
	now, peak := b.memory("VmRSS"), b.memory("VmHWM")
	t.Logf("memory %d MiB, at most %d MiB", now, peak)
	managed, plain := during.over(calm)
	t.Logf("another tenant, with the objects: %s; without: %s; changed by %.2f, without a policy by %.2f", during, calm, managed, plain)
	if peak > atoll.MemoryLimit>>20 {
		t.Errorf("the memory of atoll-manager is %d MiB", peak)
	}
	b.says("large-0", metav1.ConditionFalse, "more than the 1024 KiB that one object may take")
	last := b.unused()
	b.says(last, metav1.ConditionFalse, `of namespace "crowd" would take more than the 8192 KiB`)
	waits := deploymentOf("waits", map[string]string{gm.RequiredPropagationPolicyLabel: "p", gm.RequiredOverridePolicyLabel: last})
	if err := b.client.Create(t.Context(), waits); err != nil {
		t.Fatal(err)
	}
	if err := b.client.DeleteAllOf(t.Context(), &gm.OverridePolicy{}, client.InNamespace(crowd), client.MatchingLabels{"first": "half"}); err != nil {
		t.Fatal(err)
	}
	err := wait.PollUntilContextTimeout(t.Context(), time.Second, 3*time.Minute, true, func(ctx context.Context) (bool, error) {
		return b.client.Get(ctx, client.ObjectKeyFromObject(waits), waits) == nil && waits.Status.AvailableReplicas == 1 &&
			waits.Labels[gm.BindingOverridePolicyLabel] == last, nil
	})
	if err != nil {
		t.Errorf("a Deployment that requires the policy has %d pods and the labels %v", waits.Status.AvailableReplicas, waits.Labels)
	}
	b.says(last, metav1.ConditionTrue, "every pod is as the rules of its NodeGroup want it")
}

// deploymentOf returns a Deployment of one pod.
func deploymentOf(name string, own map[string]string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: crowd, Name: name, Labels: own},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "nginx:1"}}}},
		},
	}
}

// refusesLarge: a policy that would not be used is refused when it is created.
func (b *bed) refusesLarge() {
	b.Helper()
	err := b.client.Create(b.Context(), policyOf("refused", large))
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec: Invalid value: it takes") {
		b.Errorf("a policy of %d bytes: %v", large, err)
	}
}

func (b *bed) create(objects ...func() client.Object) {
	b.Helper()
	b.createMany(len(objects), func(i int) client.Object { return objects[i]() })
}

// workers is how many objects are created at a time.
const workers = 8

// createMany creates objects.
func (b *bed) createMany(n int, object func(int) client.Object) {
	b.Helper()
	var running sync.WaitGroup
	next := make(chan int)
	failed := make(chan error, workers)
	for range workers {
		running.Go(func() {
			for i := range next {
				o := object(i)
				if err := b.client.Create(b.Context(), o); err != nil {
					select {
					case failed <- fmt.Errorf("creating %T %s: %w", o, o.GetName(), err):
					default: // one is enough
					}
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	running.Wait()
	select {
	case err := <-failed:
		b.Fatal(err)
	default:
	}
}

// policyOf returns an OverridePolicy of about so many bytes. Half of them have a label.
func policyOf(name string, size int) *gm.OverridePolicy {
	value, err := json.Marshal(strings.Repeat("x", size))
	if err != nil {
		panic(err) // a text is always valid
	}
	half := "first"
	if strings.TrimLeft(name, "smalrge-")[0] >= '5' {
		half = "second"
	}
	return &gm.OverridePolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: crowd, Name: name, Labels: map[string]string{half: "half"}},
		Spec: gm.OverrideSpec{OverrideRules: []gm.RuleWithNodeGroup{{
			TargetNodeGroup: []string{"hz"},
			Overriders: &gm.Overriders{Plaintext: []gm.PlaintextOverrider{{
				Path: "/metadata/annotations/text", Operator: "add", Value: &apiextensionsv1.JSON{Raw: value},
			}}},
		}}},
	}
}

// largePod returns a pod with an affinity to as many nodes as fit into an object. It has a gate,
// so that kube-scheduler does not read the affinity again and again.
func largePod(name string) *corev1.Pod {
	var nodes []string
	for size := 0; size < large; size += len(nodes[len(nodes)-1]) + 2 {
		nodes = append(nodes, fmt.Sprintf("a-node-with-a-name-of-usual-length-%s-%d", name, len(nodes)))
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: crowd, Name: name},
		Spec: corev1.PodSpec{
			SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/never"}},
			Containers:      []corev1.Container{{Name: "c", Image: "nginx:1"}},
			Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "name", Operator: corev1.NodeSelectorOpIn, Values: nodes}}}},
			}}},
		},
	}
}

// largeDeployment returns a Deployment without pods that looks like one of a UnitedDeployment,
// and is as large as an object may be. Its selector has 500 keys only: kube-controller-manager
// compares it with every pod that has no owner.
func largeDeployment(name string) *appsv1.Deployment {
	d := deploymentOf(name, map[string]string{apps.PoolNameLabel: "p"})
	d.Spec.Replicas, d.Spec.Paused = new(int32(0)), true
	for i := range 500 {
		d.Spec.Selector.MatchExpressions = append(d.Spec.Selector.MatchExpressions,
			metav1.LabelSelectorRequirement{Key: fmt.Sprintf("%s-key-%d", name, i), Operator: metav1.LabelSelectorOpDoesNotExist})
	}
	for i := range large / 50 {
		d.Spec.Template.Spec.Containers[0].Env = append(d.Spec.Template.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprintf("V%d", i), Value: "a value of some length"})
	}
	return d
}

// says waits until a policy of the crowd has the condition Ready.
func (b *bed) says(name string, status metav1.ConditionStatus, part string) {
	b.Helper()
	var last string
	err := wait.PollUntilContextTimeout(b.Context(), 500*time.Millisecond, 3*time.Minute, true, func(ctx context.Context) (bool, error) {
		policy := &gm.OverridePolicy{}
		if err := b.client.Get(ctx, client.ObjectKey{Namespace: crowd, Name: name}, policy); err != nil {
			last = err.Error()
			return false, nil //nolint:nilerr // the API server is asked again
		}
		c := meta.FindStatusCondition(policy.Status.Conditions, gm.ConditionReady)
		if c == nil {
			last = "no condition"
			return false, nil
		}
		last = fmt.Sprint(c.Status, ": ", c.Message)
		return c.Status == status && strings.Contains(c.Message, part), nil
	})
	if err != nil {
		b.Errorf("policy %s does not say %s, %q; it says %s", name, status, part, last)
	}
}

// unused returns the name of a small policy of the second half that is not used.
func (b *bed) unused() (name string) {
	b.Helper()
	err := wait.PollUntilContextTimeout(b.Context(), time.Second, 3*time.Minute, true, func(ctx context.Context) (bool, error) {
		var list gm.OverridePolicyList
		if err := b.client.List(ctx, &list, client.InNamespace(crowd), client.MatchingLabels{"second": "half"}); err != nil {
			return false, nil //nolint:nilerr // the API server is asked again
		}
		for i := range list.Items {
			p := &list.Items[i]
			if strings.HasPrefix(p.Name, "small-") && meta.IsStatusConditionFalse(p.Status.Conditions, gm.ConditionReady) {
				name = p.Name
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		b.Fatal("every small policy is used")
	}
	return name
}
