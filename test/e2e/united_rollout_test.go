package e2e

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
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
	f.setImage("web", "nginx:1.28")
	seen := map[string]bool{}
	f.eventually(patience, "the release is current", func() error {
		s := f.ud("web").Status
		updating := 0
		for i, p := range s.Pools {
			if p.Phase == apps.PoolUpdating {
				updating++
			}
			if p.Phase == apps.PoolWaiting && i == 0 {
				t.Errorf("the first of the list waits: %s", asJSON(s.Pools))
			}
			seen[p.Name+" "+string(p.Phase)] = true
		}
		if updating > 1 {
			t.Errorf("two pools are updated at once: %s", asJSON(s.Pools))
		}
		if s.CurrentRevision == first {
			return fmt.Errorf("it is %s", asJSON(s))
		}
		return f.isDone("web")
	})
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
