package e2e

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// reconciles returns the number of reconciles of UnitedDeployments so far.
func (f *fixture) reconciles() int {
	f.Helper()
	return int(f.metric("controller_runtime_reconcile_total", `controller="uniteddeployment",result="success"`))
}

// statefulUnited makes a UnitedDeployment of StatefulSets.
func statefulUnited(name string, pools ...apps.Pool) *apps.UnitedDeployment {
	ud := united(name, pools...)
	ud.Spec.WorkloadTemplate = apps.WorkloadTemplate{StatefulSetTemplate: &apps.StatefulSetTemplateSpec{Spec: appsv1.StatefulSetSpec{
		ServiceName: name, Template: podTemplate(name),
	}}}
	return ud
}

// daemonUnited makes a UnitedDeployment of DaemonSets.
func daemonUnited(name string, pools ...string) *apps.UnitedDeployment {
	ud := united(name)
	for _, p := range pools {
		ud.Spec.Topology.Pools = append(ud.Spec.Topology.Pools, pool(p, nil))
	}
	ud.Spec.WorkloadTemplate = apps.WorkloadTemplate{DaemonSetTemplate: &apps.DaemonSetTemplateSpec{Spec: appsv1.DaemonSetSpec{Template: podTemplate(name)}}}
	return ud
}

// TestUnitedStatefulSets is scenario 53 and A11: names, ordinals and claims are those of
// a StatefulSet, the status follows, a partition keeps pods at their revision, and
// changes that a StatefulSet does not allow are refused when they are written.
func TestUnitedStatefulSets(t *testing.T) {
	f := newFixture(t)
	f.sites("sts-a", "sts-b")
	ud := statefulUnited("db", pool("sts-a", 2), pool("sts-b", 1))
	ud.Spec.WorkloadTemplate.StatefulSetTemplate.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			StorageClassName: new(""),
		},
	}}
	// Volumes are not provisioned here, so these pods wait; the next pods have no claims.
	f.create(ud)
	f.eventually(patience, "the claims are there", func() error {
		list, err := f.kube.CoreV1().PersistentVolumeClaims(f.ns).List(f.ctx, metav1.ListOptions{})
		var names []string
		for _, c := range list.Items {
			names = append(names, c.Name)
		}
		slices.Sort(names)
		if want := []string{"data-db-sts-a-0", "data-db-sts-b-0"}; err != nil || !slices.Equal(names, want) {
			return fmt.Errorf("they are %v: %w", names, err)
		}
		return nil
	})
	if err := f.client.Delete(f.ctx, f.ud("db"), client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
		t.Fatal(err)
	}

	f.create(statefulUnited("kv", pool("sts-a", 3), pool("sts-b", 1)))
	f.done("kv")
	f.eventually(patience, "the pods have their ordinals", func() error {
		var names []string
		for _, pod := range f.pods("kv") {
			names = append(names, pod.Name)
		}
		slices.Sort(names)
		if want := []string{"kv-sts-a-0", "kv-sts-a-1", "kv-sts-a-2", "kv-sts-b-0"}; !slices.Equal(names, want) {
			return fmt.Errorf("they are %v", names)
		}
		return nil
	})
	f.change("kv", func(ud *apps.UnitedDeployment) {
		ud.Spec.Topology.Pools[0].Partition = new(int32(2))
		podsOfTemplate(ud).Spec.Containers[0].Image = "nginx:1.28"
	})
	f.condition("kv", apps.PoolUpdated, metav1.ConditionFalse, apps.ReasonPartitioned)
	f.eventually(patience, "pods from the partition on are updated", func() error {
		images := map[string]string{}
		for _, pod := range f.pods("kv") {
			images[pod.Name] = pod.Spec.Containers[0].Image
		}
		if !maps.Equal(images, map[string]string{"kv-sts-a-0": "nginx:1.27", "kv-sts-a-1": "nginx:1.27", "kv-sts-a-2": "nginx:1.28", "kv-sts-b-0": "nginx:1.28"}) {
			return fmt.Errorf("they are %v", images)
		}
		return nil
	})
	if s := f.ud("kv").Status; s.CurrentRevision == s.UpdateRevision {
		t.Errorf("held in part, it is current: %s", asJSON(s))
	}
	f.change("kv", func(ud *apps.UnitedDeployment) { ud.Spec.Topology.Pools[0].Partition = nil })
	f.done("kv")
}

// TestUnitedDaemonSets is docs/sources.md, P7. Each pool has one DaemonSet on its own
// nodes, and updates go from pool to pool.
func TestUnitedDaemonSets(t *testing.T) {
	tier.All(t, "as TestUnitedStatefulSets, for another kind")
	f := newFixture(t)
	f.sites("ds-a", "ds-b")
	f.nodes(nil, "ds-none-0")
	f.create(daemonUnited("agent", "ds-a", "ds-b"))
	f.done("agent")
	if got := f.podsByPool("agent"); !maps.Equal(got, map[string]int{"ds-a": 2, "ds-b": 2}) {
		t.Errorf("the pods are %v", got)
	}
	f.setImage("agent", "nginx:1.28")
	f.done("agent")
	f.nodes(map[string]string{apps.NodePoolLabel: "ds-a"}, "ds-a-2")
	f.eventually(patience, "a new node of the pool gets a pod", func() error {
		if n := f.ud("agent").Status.PoolReplicas["ds-a"]; n != 3 {
			return fmt.Errorf("there are %d", n)
		}
		return f.isDone("agent")
	})
}

// TestUnitedTotalAndScale is scenario 60: percentages and a rest of a total
// that kubectl scale, or an autoscaler, writes.
func TestUnitedTotalAndScale(t *testing.T) {
	tier.All(t, "breadth: the scale subresource")
	f := newFixture(t)
	f.sites("total-a", "total-b", "total-c")
	ud := united("web", pool("total-a", "50%"), pool("total-b", "25%"), pool("total-c", nil))
	ud.Spec.Replicas = new(int32(4))
	f.create(ud)
	f.done("web")
	if got := f.podsByPool("web"); !maps.Equal(got, map[string]int{"total-a": 2, "total-b": 1, "total-c": 1}) {
		t.Errorf("the pods are %v", got)
	}
	scale := &autoscalingv1.Scale{}
	if err := f.client.SubResource("scale").Get(f.ctx, ud, scale); err != nil {
		t.Fatal(err)
	}
	if scale.Status.Replicas != 4 || scale.Status.Selector != "app=web" {
		t.Errorf("scale is %s", asJSON(scale))
	}
	scale.Spec.Replicas = 10
	if err := f.client.SubResource("scale").Update(f.ctx, ud, client.WithSubResourceBody(scale)); err != nil {
		t.Fatal(err)
	}
	f.done("web")
	if got := f.podsByPool("web"); !maps.Equal(got, map[string]int{"total-a": 5, "total-b": 3, "total-c": 2}) {
		t.Errorf("the pods are %v", got)
	}
	if n := len(f.revisions("web")); n != 1 {
		t.Errorf("scaling made %d revisions", n)
	}
}
