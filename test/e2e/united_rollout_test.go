package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// TestUnitedScalesOnePool is scenario 41 and A1: only that pool's replicas
// change, no pod elsewhere restarts, and there is no new revision.
func TestUnitedScalesOnePool(t *testing.T) {
	f := newFixture(t)
	f.sites("scale-a", "scale-b", "scale-c")
	f.create(united("web", pool("scale-a", 2), pool("scale-b", 1), pool("scale-c", 1)))
	f.done("web")
	before := f.uidsByPool("web")
	f.change("web", func(ud *apps.UnitedDeployment) { ud.Spec.Topology.Pools[1].Replicas.IntVal = 3 })
	f.done("web")
	if got := f.podsByPool("web"); !maps.Equal(got, map[string]int{"scale-a": 2, "scale-b": 3, "scale-c": 1}) {
		t.Errorf("the pods are %v", got)
	}
	after := f.uidsByPool("web")
	for _, p := range []string{"scale-a", "scale-c"} {
		if !slices.Equal(before[p], after[p]) {
			t.Errorf("pods of %s were %v and are %v", p, before[p], after[p])
		}
	}
	if n := len(f.revisions("web")); n != 1 {
		t.Errorf("there are %d revisions", n)
	}
	if got := f.ud("web").Status.PoolReplicas; !maps.Equal(got, map[string]int32{"scale-a": 2, "scale-b": 3, "scale-c": 1}) {
		t.Errorf("poolReplicas are %v", got)
	}
}

// TestUnitedUpdatesInOrder is scenario 42: a release makes a revision, goes
// from pool to pool, and becomes current when all are ready.
func TestUnitedUpdatesInOrder(t *testing.T) {
	f := newFixture(t)
	f.sites("order-a", "order-b", "order-c")
	f.create(united("web", pool("order-c", 2), pool("order-a", 2), pool("order-b", 2)))
	f.done("web")
	first := f.ud("web").Status.CurrentRevision
	states := versions(f, f.ud("web"), func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		return f.client.Watch(ctx, &apps.UnitedDeploymentList{}, &client.ListOptions{Namespace: f.ns, Raw: &o})
	})
	f.setImage("web", "nginx:1.28")
	f.eventually(patience, "the release is current", func() error {
		if s := f.ud("web").Status; s.CurrentRevision == first {
			return fmt.Errorf("it is %s", asJSON(s))
		}
		return f.isDone("web")
	})
	seen := map[string]bool{}
	for _, ud := range states() {
		updating := 0
		for i, p := range ud.Status.Pools {
			if p.Phase == apps.PoolUpdating {
				updating++
			}
			if p.Phase == apps.PoolWaiting && i == 0 {
				t.Errorf("the first of the list waits: %s", asJSON(ud.Status.Pools))
			}
			seen[p.Name+" "+string(p.Phase)] = true
		}
		if updating > 1 {
			t.Errorf("two pools are updated at once: %s", asJSON(ud.Status.Pools))
		}
	}
	for _, want := range []string{"order-a Waiting", "order-b Waiting", "order-b Updating"} {
		if !seen[want] {
			t.Errorf("never saw %s, only %v", want, maps.Keys(seen))
		}
	}
	for _, pod := range f.pods("web") {
		if pod.Spec.Containers[0].Image != "nginx:1.28" {
			t.Errorf("pod %s has %s", pod.Name, pod.Spec.Containers[0].Image)
		}
	}
	if n := len(f.revisions("web")); n != 2 {
		t.Errorf("there are %d revisions", n)
	}
}

// takesReleases changes a template so that only the nodes of some pools can run it, like
// a release that fails in the others.
func takesReleases(ud *apps.UnitedDeployment, label string) {
	podsOfTemplate(ud).Spec.NodeSelector = map[string]string{label: "yes"}
}

// good labels the nodes of pools so that they can run a release.
func (f *fixture) good(label string, pools ...string) {
	f.Helper()
	for _, p := range pools {
		for i := range 2 {
			f.label(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", p, i)}}, map[string]any{label: "yes"})
		}
	}
}

// TestUnitedFailureStopsTheRollout is scenario 59: the second pool fails, the third is
// not changed, the status names the pool, and the rollout continues when the failure is
// removed. Then the same with a rollback instead.
func TestUnitedFailureStopsTheRollout(t *testing.T) {
	f := newFixture(t)
	f.sites("stop-a", "stop-b", "stop-c")
	ud := united("web", pool("stop-a", 2), pool("stop-b", 2), pool("stop-c", 2))
	ud.Spec.UpdateStrategy.ProgressDeadlineSeconds = new(int32(4))
	f.create(ud)
	f.done("web")
	first := f.ud("web").Status.CurrentRevision
	before := f.uidsByPool("web")
	f.good("stop-v2", "stop-a", "stop-c")
	f.change("web", func(ud *apps.UnitedDeployment) { takesReleases(ud, "stop-v2") })
	stopped := map[string]apps.PoolPhase{"stop-a": apps.PoolReady, "stop-b": apps.PoolFailed, "stop-c": apps.PoolHeld}
	f.phasesAre("web", stopped)
	if message := f.condition("web", apps.PoolFailure, metav1.ConditionTrue, apps.ReasonProgressDeadlineExceeded); !strings.Contains(message, `"stop-b"`) {
		t.Errorf("the message is %q", message)
	}
	f.condition("web", apps.PoolUpdated, metav1.ConditionFalse, apps.ReasonStopped)
	if after := f.uidsByPool("web"); !slices.Equal(after["stop-c"], before["stop-c"]) {
		t.Errorf("pods of c were %v and are %v", before, after)
	}
	if s := f.ud("web").Status; s.CurrentRevision != first || s.UpdatedReplicas != 3 {
		t.Errorf("status is %s", asJSON(s))
	}
	f.good("stop-v2", "stop-b")
	f.done("web")

	f.good("stop-v3", "stop-a", "stop-c")
	second := f.ud("web").Status.CurrentRevision
	f.change("web", func(ud *apps.UnitedDeployment) { takesReleases(ud, "stop-v3") })
	f.phasesAre("web", stopped)
	f.change("web", func(ud *apps.UnitedDeployment) {
		ud.Annotations = map[string]string{apps.RollbackToAnnotation: apps.RollbackToPrevious}
	})
	f.done("web")
	if s := f.ud("web").Status; s.CurrentRevision != second {
		t.Errorf("it is at %s, want %s", s.CurrentRevision, second)
	}
}

// TestUnitedFailureContinuesWithTheNextPool: with onFailure Continue the third pool is
// updated all the same.
func TestUnitedFailureContinuesWithTheNextPool(t *testing.T) {
	tier.All(t, "as TestUnitedFailureStopsTheRollout, with the other setting")
	f := newFixture(t)
	f.sites("pass-a", "pass-b", "pass-c")
	ud := united("web", pool("pass-a", 1), pool("pass-b", 1), pool("pass-c", 1))
	ud.Spec.UpdateStrategy = apps.UnitedDeploymentUpdateStrategy{ProgressDeadlineSeconds: new(int32(3)), OnFailure: apps.FailureContinue}
	f.create(ud)
	f.done("web")
	f.good("pass-v2", "pass-a", "pass-c")
	f.change("web", func(ud *apps.UnitedDeployment) { takesReleases(ud, "pass-v2") })
	f.phasesAre("web", map[string]apps.PoolPhase{"pass-a": apps.PoolReady, "pass-b": apps.PoolFailed, "pass-c": apps.PoolReady})
}

// TestUnitedPartitionAndPause: a partition and a pause hold pools, which can still be
// scaled.
func TestUnitedPartitionAndPause(t *testing.T) {
	f := newFixture(t)
	f.sites("part-a", "part-b", "part-c")
	ud := united("web", pool("part-a", 1), pool("part-b", 1), pool("part-c", 1))
	ud.Spec.UpdateStrategy.Partition = new(int32(2))
	f.create(ud)
	f.done("web")
	f.setImage("web", "nginx:1.28")
	f.phasesAre("web", map[string]apps.PoolPhase{"part-a": apps.PoolReady, "part-b": apps.PoolHeld, "part-c": apps.PoolHeld})
	f.condition("web", apps.PoolUpdated, metav1.ConditionFalse, apps.ReasonPartitioned)
	f.change("web", func(ud *apps.UnitedDeployment) {
		ud.Spec.UpdateStrategy.Partition, ud.Spec.UpdateStrategy.Paused = nil, true
		ud.Spec.Topology.Pools[2].Replicas.IntVal = 2
	})
	f.condition("web", apps.PoolUpdated, metav1.ConditionFalse, apps.ReasonPaused)
	f.eventually(patience, "the held pool is scaled", func() error {
		images := map[string]int{}
		for _, pod := range f.pods("web") {
			images[pod.Labels[apps.PoolNameLabel]+" "+pod.Spec.Containers[0].Image]++
		}
		if !maps.Equal(images, map[string]int{"part-a nginx:1.28": 1, "part-b nginx:1.27": 1, "part-c nginx:1.27": 2}) {
			return fmt.Errorf("pods are %v", images)
		}
		return nil
	})
	f.change("web", func(ud *apps.UnitedDeployment) { ud.Spec.UpdateStrategy.Paused = false })
	f.done("web")
}

// TestUnitedNewPoolWaitsItsTurn is scenario 49: a pool that is added while a rollout is
// held gets the revision of the other pools, not the untried one.
func TestUnitedNewPoolWaitsItsTurn(t *testing.T) {
	tier.All(t, "breadth: a pool that comes during a rollout")
	f := newFixture(t)
	f.sites("turn-a", "turn-b", "turn-c")
	f.create(united("web", pool("turn-a", 1), pool("turn-b", 1)))
	f.done("web")
	f.change("web", func(ud *apps.UnitedDeployment) {
		ud.Spec.UpdateStrategy.Paused = true
		podsOfTemplate(ud).Spec.Containers[0].Image = "nginx:1.28"
		ud.Spec.Topology.Pools = append(ud.Spec.Topology.Pools, pool("turn-c", 1))
	})
	f.eventually(patience, "the new pool has a pod", func() error {
		for _, pod := range f.pods("web") {
			if pod.Labels[apps.PoolNameLabel] == "turn-c" {
				if image := pod.Spec.Containers[0].Image; image != "nginx:1.27" {
					t.Fatalf("it has %s", image)
				}
				return nil
			}
		}
		return fmt.Errorf("it has none")
	})
	f.change("web", func(ud *apps.UnitedDeployment) { ud.Spec.UpdateStrategy.Paused = false })
	f.done("web")
}

// TestUnitedManagerKilledInARollout is F7 and F8 in part: the manager is killed again and
// again while pools are created, updated, scaled, added and removed. The end result is
// the same as without, with one workload for each pool.
func TestUnitedManagerKilledInARollout(t *testing.T) {
	tier.All(t, "kills atoll-manager seven times, in a cluster of its own: 1.5 min")
	f := newFixtureOfItsOwn(t, atoll.Options{ManagerArgs: []string{"--leader-elect-lease-duration=3s"}})
	f.sites("kill-p0", "kill-p1", "kill-p2", "kill-p3")
	ud := united("web", pool("kill-p0", 2), pool("kill-p1", 2), pool("kill-p2", 2))
	chance := rand.New(rand.NewPCG(1, 2))
	holder := f.holder()
	kill := func() {
		f.always(time.Duration(chance.IntN(1000))*time.Millisecond, "some time passes", func() error { return nil })
		if err := f.cluster.Restart(f.ctx, atoll.Manager); err != nil {
			t.Fatal(err)
		}
		f.eventually(patience, "the next one leads", func() error {
			if now := f.holder(); now == holder || now == "" {
				return fmt.Errorf("the Lease is %q's", now)
			}
			return nil
		})
		holder = f.holder()
	}
	f.create(ud)
	kill()
	for i := range 3 {
		f.change("web", func(ud *apps.UnitedDeployment) {
			podsOfTemplate(ud).Spec.Containers[0].Image = fmt.Sprintf("nginx:2.%d", i)
			ud.Spec.Topology.Pools[0].Replicas.IntVal = int32(1 + i)
			switch i {
			case 1:
				ud.Spec.Topology.Pools = append(ud.Spec.Topology.Pools, pool("kill-p3", 1))
			case 2:
				ud.Spec.Topology.Pools = slices.Delete(ud.Spec.Topology.Pools, 1, 2)
			}
		})
		kill()
		kill()
	}
	f.done("web")
	f.eventually(patience, "there is one Deployment a pool", func() error {
		list, err := f.kube.AppsV1().Deployments(f.ns).List(f.ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) != 3 {
			return fmt.Errorf("there are %d: %w", len(list.Items), err)
		}
		return nil
	})
	f.eventually(patience, "the pods match the spec", func() error {
		if got := f.podsByPool("web"); !maps.Equal(got, map[string]int{"kill-p0": 3, "kill-p2": 2, "kill-p3": 1}) {
			return fmt.Errorf("they are %v", got)
		}
		return nil
	})
	if n := len(f.revisions("web")); n > 4 { // a template that went before anybody led has none
		t.Errorf("there are %d revisions of 4 templates", n)
	}
	last := f.writes()
	f.touch("web", 10)
	if now, want := f.writes(), after(last, 10); asJSON(now) != asJSON(want) {
		t.Errorf("at rest, writes went from %v to %v, want %v", last, now, want)
	}
}

// holder returns the holder of the Lease.
func (f *fixture) holder() string {
	f.Helper()
	lease, err := f.kube.CoordinationV1().Leases(atoll.Namespace).Get(f.ctx, atoll.Manager, metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// touch triggers n reconciles and waits until each is done.
func (f *fixture) touch(name string, n int) {
	f.Helper()
	for i := range n {
		before := f.reconciles()
		f.patch(f.ud(name), map[string]any{"metadata": map[string]any{"annotations": map[string]any{"touch": fmt.Sprint(i)}}})
		f.eventually(patience, "it is reconciled", func() error {
			if now := f.reconciles(); now <= before {
				return fmt.Errorf("%d reconciles so far", now)
			}
			return nil
		})
	}
}

// after returns the expected number of writes after some touches without other writes:
// each touch is one patch of a UnitedDeployment.
func after(writes map[string]int, touches int) map[string]int {
	out := maps.Clone(writes)
	out["PATCH uniteddeployments/"] += touches
	return out
}

// TestUnitedRestsWithoutWrites is scenario 43 and A2: fifty reconciles of six pools, for
// each kind of template, write nothing: no spec, no status, no workload, no revision.
func TestUnitedRestsWithoutWrites(t *testing.T) {
	f := newFixture(t)
	var pools []apps.Pool
	for i := range 6 {
		name := fmt.Sprintf("rest-%d", i)
		f.sites(name)
		pools = append(pools, pool(name, 1))
	}
	f.create(united("deployments", pools...), statefulUnited("statefulsets", pools...), daemonUnited("daemonsets", "rest-0", "rest-1"))
	for _, name := range []string{"deployments", "statefulsets", "daemonsets"} {
		f.done(name)
	}
	before, times := f.writes(), 50
	if testing.Short() {
		times = 10
	}
	for _, name := range []string{"deployments", "statefulsets", "daemonsets"} {
		f.touch(name, times)
	}
	if now, want := f.writes(), after(before, 3*times); asJSON(now) != asJSON(want) {
		t.Errorf("the writes were %v and are %v, want %v", before, now, want)
	}
}
