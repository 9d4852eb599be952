package e2e

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// The tests of the form Plain, in which the cluster's own kube-scheduler calls the
// extender, as in docs/sources.md, G2: the differences to the chart's default, and the
// most important promises of both.

// TestPlainSchedulerCallsExtenderForEveryPod: the cluster's own kube-scheduler places managed
// pods exactly; it calls the extender for all others too, and they are placed on any
// node.
func TestPlainSchedulerCallsExtenderForEveryPod(t *testing.T) {
	f := plain.fixture(t)
	f.group("asks-hz", 2)
	f.group("asks-bj", 3)
	f.nodes(nil, "asks-none-0")
	f.create(weights("policy", "asks-hz", 3, "asks-bj", 2))
	deleted := f.watchDeletions("app")
	f.create(deployment("app", 50, "policy"))
	f.eventually(patience, "managed pods are spread exactly", func() error {
		return f.spreadIs("app", map[string]int{"asks-hz": 30, "asks-bj": 20})
	})
	f.scheduledBy("app", corev1.DefaultSchedulerName)
	for again := range 3 { // atoll-manager counts from 0 again after it lost its Lease on a busy machine
		free := fmt.Sprint("free-", again)
		before := f.askedWithoutPolicy()
		f.create(deployment(free, 10, ""))
		f.eventually(patience, "pods without a policy are bound", func() error { return f.boundAre(free, 10) })
		f.scheduledBy(free, corev1.DefaultSchedulerName)
		if n := f.askedWithoutPolicy() - before; n >= 10 {
			break
		} else if again == 2 {
			t.Errorf("kube-scheduler asked %v times about 10 pods without a policy", n)
		}
	}
	if n := deleted(); n != 0 {
		t.Errorf("%d pods were deleted on the way", n)
	}
}

// TestPlainManagerKilledMidBurst is scenario 10 where the extender is called for every
// pod: while no replica answers, pods without a policy wait too.
func TestPlainManagerKilledMidBurst(t *testing.T) {
	tier.All(t, "the same burst in another form")
	f := plain.fixture(t)
	f.group("burst-a", 5)
	f.group("burst-b", 5)
	f.nodes(nil, "burst-none-0", "burst-none-1")
	f.managerKilledMidBurst("burst-a", "burst-b", corev1.DefaultSchedulerName)
}

// TestManagerKilledMidBurst is scenario 10 in the form Isolated, for a workload that
// names the scheduler that calls the extender.
func TestManagerKilledMidBurst(t *testing.T) {
	f := isolated.fixture(t)
	f.group("named-a", 5)
	f.group("named-b", 5)
	f.nodes(nil, "named-none-0", "named-none-1")
	f.managerKilledMidBurst("named-a", "named-b", atoll.Scheduler)
}

// managerKilledMidBurst: the only replica is killed in the middle of a burst of pods. A
// third of them are created while it is down, without the webhook; then it is started
// again. No group ever has more pods than its share, no pod is on a node without a group,
// and none is lost or moved.
func (f *fixture) managerKilledMidBurst(a, b, scheduler string) {
	f.Helper()
	const before, all = 300, 450
	share := map[string]int{a: all * 3 / 5, b: all * 2 / 5}
	f.create(weights("policy", a, 3, b, 2))
	d := deployment("burst", before, "policy")
	d.Spec.Template.Spec.SchedulerName = scheduler
	most := f.watchGroups("burst")
	deleted := f.watchDeletions("burst")
	some := f.someBound("burst", 50)
	f.create(d)
	some()
	f.kill(atoll.Manager)
	away := -1
	f.eventually(patience, "bindings that were sent before are written", func() error {
		now := f.bound("burst")
		if now != away {
			away = now
			return fmt.Errorf("%d pods are bound", now)
		}
		return nil
	})
	f.create(deployment("free", 3, ""))
	f.scale("burst", all)
	f.eventually(patience, "the other pods are created past the webhook", func() error {
		if n := len(f.pods("burst")); n != all {
			return fmt.Errorf("%d pods", n)
		}
		return nil
	})
	unseen := 0
	for _, pod := range f.pods("burst") {
		if len(pod.Spec.SchedulingGates) == 0 && pod.Spec.SchedulerName == scheduler && pod.Spec.NodeName == "" {
			unseen++
		}
	}
	if now := f.bound("burst"); now != away {
		f.Errorf("%d pods were bound while no replica answered", now-away)
	}
	if away >= before || unseen < all-before {
		f.Errorf("%d of %d pods were bound when the manager was killed, %d waited: this was no burst", away, before, unseen)
	}
	if scheduler == corev1.DefaultSchedulerName {
		f.eventually(patience, "an event says why pods without a policy wait", func() error { return f.waitWithAnEvent("free", 3) })
	} else {
		f.eventually(patience, "pods without a policy are bound", func() error { return f.boundAre("free", 3) })
	}
	f.restart(atoll.Manager)
	f.eventually(2*patience, "every pod is bound, exactly", func() error {
		return errors.Join(f.spreadIs("burst", share), f.boundAre("free", 3))
	})
	if n := deleted(); n != 0 {
		f.Errorf("%d pods were deleted", n)
	}
	peak := most()
	for group, n := range peak {
		if n > share[group] {
			f.Errorf("at one moment %d pods were in NodeGroup %q, whose share is %d", n, group, share[group])
		}
	}
	f.Logf("%d of %d pods were bound when the manager was killed; at most %v were in a group", away, before, peak)
}
