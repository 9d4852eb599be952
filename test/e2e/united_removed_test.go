package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// without removes a pool.
func without(name string) func(*apps.UnitedDeployment) {
	return func(ud *apps.UnitedDeployment) {
		ud.Spec.Topology.Pools = slices.DeleteFunc(ud.Spec.Topology.Pools, func(p apps.Pool) bool { return p.Name == name })
	}
}

// drains waits until the status has the reason why a removed pool's workload still
// exists.
func (f *fixture) drains(name, part string) {
	f.Helper()
	f.eventually(patience, "the status says why it waits", func() error {
		c := meta.FindStatusCondition(f.ud(name).Status.Conditions, apps.PoolProvisioned)
		if c == nil || c.Reason != apps.ReasonDraining || !strings.Contains(c.Message, part) {
			return fmt.Errorf("it is %+v", c)
		}
		return nil
	})
}

// TestUnitedRemovedPoolIsEmptied: the pods of a removed pool leave as a
// PodDisruptionBudget allows, one after the other; the workload is deleted afterwards,
// also after a restart of the manager. A pool that is added again before keeps its
// remaining pods.
func TestUnitedRemovedPoolIsEmptied(t *testing.T) {
	f := newFixture(t)
	f.sites("leave-a", "leave-b")
	f.create(united("web", pool("leave-a", 1), pool("leave-b", 3)))
	f.done("web")
	before := f.uidsByPool("web")
	pdb := f.budget("web", "web", "4", 4)

	f.change("web", without("leave-b"))
	f.drains("web", "a PodDisruptionBudget allows no eviction")
	if err := f.cluster.Restart(f.ctx, atoll.Manager); err != nil {
		t.Fatal(err)
	}
	f.change("web", func(ud *apps.UnitedDeployment) { ud.Spec.Topology.Pools[0].Replicas.IntVal = 2 })
	f.eventually(patience, "the other pool is scaled", func() error {
		if got := f.podsByPool("web"); got["leave-a"] != 2 { // of the others, one may have left already
			return fmt.Errorf("the pods are %v", got)
		}
		return nil
	})
	// By now five pods are healthy, and one may be evicted.
	f.eventually(patience, "one pod leaves", func() error {
		if n := *f.deploymentOf("web-leave-b").Spec.Replicas; n != 2 {
			return fmt.Errorf("it has %d replicas", n)
		}
		return nil
	})
	f.drains("web", "a PodDisruptionBudget allows no eviction")
	var left []types.UID
	// Its ReplicaSet may have replaced the pod before it was scaled down, and then chooses itself which of three goes.
	f.eventually(patience, "two are left", func() error {
		d := f.deploymentOf("web-leave-b")
		left = f.uidsByPool("web")["leave-b"]
		if d.Status.ObservedGeneration != d.Generation || d.Status.Replicas != 2 || d.Status.ReadyReplicas != 2 || len(left) != 2 {
			return fmt.Errorf("the pods are %v, the status is %+v", left, d.Status)
		}
		return nil
	})

	f.change("web", func(ud *apps.UnitedDeployment) {
		ud.Spec.Topology.Pools = append(ud.Spec.Topology.Pools, pool("leave-b", 2))
	})
	f.done("web")
	if now := f.uidsByPool("web")["leave-b"]; !slices.Equal(now, left) {
		t.Errorf("back again, its pods are %v, and were %v", now, left)
	}

	versions := f.watchDeployment("web-leave-b")
	f.change("web", without("leave-b"))
	f.drains("web", "a PodDisruptionBudget allows no eviction")
	if err := f.client.Delete(f.ctx, pdb); err != nil {
		t.Fatal(err)
	}
	f.done("web")
	f.eventually(patience, "the workload goes", func() error {
		_, err := f.kube.AppsV1().Deployments(f.ns).Get(f.ctx, "web-leave-b", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	})
	last := int32(2)
	for _, d := range versions() {
		if n := *d.Spec.Replicas; n > last || n < last-1 || d.DeletionTimestamp != nil && n > 0 {
			t.Errorf("its replicas went from %d to %d (deleted: %t)", last, n, d.DeletionTimestamp != nil)
		}
		last = *d.Spec.Replicas
	}
	if last != 0 {
		t.Errorf("it was deleted with %d replicas", last)
	}
	if now := f.uidsByPool("web"); !slices.Contains(now["leave-a"], before["leave-a"][0]) || len(now) != 1 {
		t.Errorf("pods were %v and are %v", before, now)
	}
}

// watchDeployment collects a Deployment's versions until the returned function is called.
func (f *fixture) watchDeployment(name string) func() []*appsv1.Deployment {
	f.Helper()
	return versions(f, f.deploymentOf(name), func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		return f.kube.AppsV1().Deployments(f.ns).Watch(ctx, o)
	})
}

// TestUnitedRemovedPoolsOfOtherKinds: a StatefulSet is emptied from its highest
// ordinal, a DaemonSet node by node, and both as a PodDisruptionBudget allows.
func TestUnitedRemovedPoolsOfOtherKinds(t *testing.T) {
	tier.All(t, "as TestUnitedRemovedPoolIsEmptied, for other kinds")
	f := newFixture(t)
	f.sites("kinds-a", "kinds-b")
	f.create(statefulUnited("kv", pool("kinds-a", 1), pool("kinds-b", 3)), daemonUnited("agent", "kinds-a", "kinds-b"))
	f.done("kv")
	f.done("agent")
	kv, agent := f.budget("kv", "kv", "3", 4), f.budget("agent", "agent", "3", 4)
	f.change("kv", without("kinds-b"))
	f.change("agent", without("kinds-b"))
	for _, name := range []string{"kv", "agent"} {
		f.drains(name, "a PodDisruptionBudget allows no eviction")
	}
	running := func(app string) []string {
		var names []string
		for _, pod := range f.pods(app) {
			if pod.Spec.NodeName != "" && pod.Labels[apps.PoolNameLabel] == "kinds-b" {
				names = append(names, pod.Name)
			}
		}
		slices.Sort(names)
		return names
	}
	f.eventually(patience, "one pod of each is gone", func() error {
		if got := running("kv"); !slices.Equal(got, []string{"kv-kinds-b-0", "kv-kinds-b-1"}) {
			return fmt.Errorf("there are %v", got)
		}
		if got := running("agent"); len(got) != 1 {
			return fmt.Errorf("there are %v", got)
		}
		return nil
	})
	for _, pod := range f.pods("agent") {
		if waits := slices.ContainsFunc(pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == apps.PoolRemovedGate }); waits == (pod.Spec.NodeName != "") {
			t.Errorf("pod %s waits: %t, and its node is %q", pod.Name, waits, pod.Spec.NodeName)
		}
	}
	if err := f.client.Delete(f.ctx, kv); err != nil {
		t.Fatal(err)
	}
	if err := f.client.Delete(f.ctx, agent); err != nil {
		t.Fatal(err)
	}
	f.done("kv")
	f.done("agent")
	f.eventually(patience, "no pod of the removed pools is left", func() error {
		if a, b := f.podsByPool("kv"), f.podsByPool("agent"); !maps.Equal(a, map[string]int{"kinds-a": 1}) || !maps.Equal(b, map[string]int{"kinds-a": 2}) {
			return fmt.Errorf("there are %v and %v", a, b)
		}
		return nil
	})
}

// TestUnitedPodsAreNotEvictedByTheirPoolsTaint: a NodePool that gets a NoExecute taint
// keeps it from its nodes until the pods of its UnitedDeployments tolerate it, and these
// are replaced by their rollout and not evicted. The taint waits for pods that do not
// tolerate it for at most five minutes: see the unit tests.
func TestUnitedPodsAreNotEvictedByTheirPoolsTaint(t *testing.T) {
	tier.All(t, "breadth: a taint that its pods do not tolerate yet")
	f := newFixture(t)
	f.sites("ne-a", "ne-b")
	ud := united("web", pool("ne-a", 2), pool("ne-b", 1))
	f.create(ud)
	f.done("web")
	f.change("web", func(ud *apps.UnitedDeployment) { ud.Spec.UpdateStrategy.Paused = true })
	before := f.uidsByPool("web")
	tainted := func(node string) bool {
		return slices.ContainsFunc(f.node(node).Spec.Taints, func(t corev1.Taint) bool { return t.Key == "offline" })
	}
	f.editPool("ne-a", map[string]any{
		"labels": map[string]any{"t.io/l": "a"}, "taints": []any{map[string]any{"key": "offline", "effect": "NoExecute"}},
	})
	f.eventually(patience, "the taint waits, and nothing else does", func() error {
		if l := f.node("ne-a-0").Labels["t.io/l"] + f.node("ne-a-1").Labels["t.io/l"]; l != "aa" {
			return fmt.Errorf("the nodes have the label %q", l)
		}
		if err := f.poolCondition("ne-a", apps.ConditionAttributesSynced, apps.ReasonTaintsWait); err != nil {
			return err
		}
		return f.poolCondition("ne-a", apps.ConditionTaintsTolerated, apps.ReasonTaintsWait, f.ns+"/web-ne-a")
	})
	if tainted("ne-a-0") || tainted("ne-a-1") {
		t.Error("the taint is on a node")
	}
	if now := f.uidsByPool("web"); asJSON(now) != asJSON(before) {
		t.Errorf("pods were %v and are %v", before, now)
	}
	ends := f.watchDeployment("web-ne-a")
	f.change("web", func(ud *apps.UnitedDeployment) { ud.Spec.UpdateStrategy.Paused = false })
	f.eventually(patience, "the taint comes", func() error {
		if !tainted("ne-a-0") || !tainted("ne-a-1") {
			return fmt.Errorf("not yet")
		}
		return f.poolCondition("ne-a", apps.ConditionReady, apps.ReasonNodesReady)
	})
	f.done("web")
	for _, d := range ends() { // maxSurge 1 and maxUnavailable 0, as by the default strategy for two replicas
		if d.Status.Replicas > 0 && d.Status.AvailableReplicas < 2 {
			t.Errorf("there were %d available pods: %s", d.Status.AvailableReplicas, asJSON(d.Status))
		}
	}
	if now := f.uidsByPool("web"); !slices.Equal(now["ne-b"], before["ne-b"]) {
		t.Errorf("pods of the other pool were %v and are %v", before, now)
	}
}
