package e2e

import (
	"flag"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// kills is how often TestFaultReplicasKilledUnderCreations kills a replica.
var kills = flag.Int("kills", 12, "replicas killed in TestFaultReplicasKilledUnderCreations")

// TestFaultReplicasKilledUnderCreations is F1: 64 pods are created concurrently, again
// and again, and each time one replica of the webhook after the other is killed
// meanwhile. Invariant I1 checks at every resourceVersion that at most three pods are
// on-demand. A call in flight at the killed replica fails open, by the webhook's failure
// policy, so only the final numbers are exact.
func TestFaultReplicasKilledUnderCreations(t *testing.T) {
	tier.All(t, "64 creations at a time while replicas are killed: a minute")
	f := trio.fixture(t)
	f.classes(1, 3)
	f.create(split("app", 64, "3"))
	f.eventuallyDivided("app", 3, 61)
	past := f.watchPast("app")
	for i := range *kills {
		if err := f.kube.CoreV1().Pods(f.ns).DeleteCollection(f.ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, metav1.ListOptions{LabelSelector: "app=app"}); err != nil {
			t.Fatal(err)
		}
		restart := f.killForNow(atoll.ManagerReplica(i % 3))
		f.eventually(patience, "64 pods are there again", func() error {
			if n := len(f.pods("app")); n < 64 {
				return fmt.Errorf("%d pods", n)
			}
			return nil
		})
		restart()
	}
	f.eventuallyDivided("app", 3, 61)
	t.Logf("%d pods of %d went past the webhook", past(), 64**kills)
	f.eventually(patience, "no seat is reserved without a pod", func() error { return f.noneReserved("deployment-app") })
}

// TestFaultALeaderThatHangs is F4: the leader stands still in the middle of a burst, so
// that for a time there is no leader and the others cannot forward requests. Another
// replica takes over. The old leader continues, still in the role of leader for a moment,
// and assigns no seat.
func TestFaultALeaderThatHangs(t *testing.T) {
	tier.All(t, "its leader stands still for longer than its Lease lasts")
	f := trio.fixture(t)
	f.classes(1, 3)
	f.create(split("app", 10, "5"))
	f.eventuallyDivided("app", 5, 5)
	hangs := f.leader()
	f.scale("app", 100)
	f.eventually(patience, "the burst is under way", func() error {
		if n := len(f.pods("app")); n < 20 {
			return fmt.Errorf("%d pods", n)
		}
		return nil
	})
	if err := f.cluster.Pause(f.ctx, hangs); err != nil {
		t.Fatal(err)
	}
	resumed := false
	resume := func() {
		if !resumed {
			resumed = true
			if err := f.cluster.Resume(f.ctx, hangs); err != nil {
				t.Error(err)
			}
		}
	}
	defer resume()
	f.eventually(patience, "another leads", func() error {
		if now := f.leader(); now == hangs {
			return fmt.Errorf("%s does", now)
		}
		return nil
	})
	f.annotate("app", map[string]any{gm.CapacityCountKey: "20"}) // which the hanging replica has not seen
	resume()
	f.scale("app", 150)
	f.eventually(2*patience, "exact", func() error { return f.divided("app", 20, 130) })
	f.eventually(patience, "no seat is reserved without a pod", func() error { return f.noneReserved("deployment-app") })
}

// TestFaultCountSwingsInARollout is F23: the count goes from 3 to 0 and back while
// rollouts are under way and the number of replicas goes up and down. The final numbers
// are exact, and at most as many pods are moved as the changes make surplus.
func TestFaultCountSwingsInARollout(t *testing.T) {
	tier.All(t, "80 pods and more while the number swings")
	f := trio.fixture(t)
	f.classes(2, 2)
	f.create(split("app", 8, "3"))
	f.eventuallyDivided("app", 3, 5)
	evicted := f.watchEvictions("app")
	for i, step := range []struct{ count, replicas int }{{0, 12}, {3, 5}, {0, 10}, {3, 8}} {
		f.release("app", fmt.Sprint("nginx:2.", i))
		f.annotate("app", map[string]any{gm.CapacityCountKey: fmt.Sprint(step.count)})
		f.scale("app", step.replicas)
		f.eventually(patience, "the rollout is under way", func() error {
			n := 0
			for _, pod := range f.pods("app") {
				if pod.Annotations["image"] == fmt.Sprint("nginx:2.", i) {
					n++
				}
			}
			if n < 2 {
				return fmt.Errorf("%d pods are new", n)
			}
			return nil
		})
	}
	f.eventually(patience, "the rollout is over", func() error { return f.rolledOut("app") })
	f.eventuallyDivided("app", 3, 5)
	if n := evicted(); n > 4*3 {
		t.Errorf("%d pods were moved, more than were surplus", n)
	}
}
