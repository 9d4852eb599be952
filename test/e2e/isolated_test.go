package e2e

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// TestIsolatedSchedulerIgnoresUnmanagedPods: in the isolated form a second
// kube-scheduler places managed pods exactly, under its ServiceAccount. The extender is
// never called for pods without a policy, and they are bound also while parts of Atoll
// are down.
func TestIsolatedSchedulerIgnoresUnmanagedPods(t *testing.T) {
	tier.All(t, "kills processes one after the other: a minute")
	f := isolated.fixture(t)
	before := f.askedWithoutPolicy()
	f.group("isolated-a", 2)
	f.group("isolated-b", 2)
	for _, node := range []string{"isolated-a-0", "isolated-a-1", "isolated-b-0", "isolated-b-1"} {
		// The API server copies these labels into the Bindings that the extender sends.
		f.label(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, map[string]any{corev1.LabelTopologyZone: "zone", corev1.LabelTopologyRegion: "region"})
	}
	f.create(weights("policy", "isolated-a", 3, "isolated-b", 2))
	f.create(deployment("app", 5, "policy"), deployment("free", 10, ""))

	f.eventually(patience, "managed pods are spread exactly", func() error {
		return f.spreadIs("app", map[string]int{"isolated-a": 3, "isolated-b": 2})
	})
	f.eventually(patience, "pods without a policy are bound", func() error { return f.boundAre("free", 10) })
	f.scheduledBy("app", atoll.Scheduler)
	f.scheduledBy("free", corev1.DefaultSchedulerName)
	if n := f.askedWithoutPolicy() - before; n != 0 {
		t.Errorf("%v filter requests were about pods without a policy", n)
	}
	lease, err := f.kube.CoordinationV1().Leases(atoll.Namespace).Get(f.ctx, atoll.Scheduler, metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
		t.Errorf("no process holds the second scheduler's Lease: %v", err)
	}

	t.Run("the second scheduler is away: managed pods wait, all others are bound", func(t *testing.T) {
		f.kill(atoll.Scheduler)
		f.scale("app", 7)
		f.scale("free", 20)
		f.eventually(patience, "pods without a policy are bound", func() error { return f.boundAre("free", 20) })
		f.eventually(patience, "managed pods are created", func() error {
			if n := len(f.pods("app")); n != 7 {
				return fmt.Errorf("%d pods", n)
			}
			return nil
		})
		f.always(2*time.Second, "managed pods wait", func() error { return f.boundAre("app", 5) })
		f.restart(atoll.Scheduler)
		f.eventually(patience, "the pods that waited are placed exactly", func() error {
			return f.spreadIs("app", map[string]int{"isolated-a": 4, "isolated-b": 3})
		})
		f.scheduledBy("app", atoll.Scheduler)
	})

	t.Run("the manager is away: pods without a policy are bound", func(t *testing.T) {
		if n := f.askedWithoutPolicy() - before; n != 0 {
			t.Errorf("%v filter requests were about pods without a policy", n)
		}
		f.kill(atoll.Manager)
		f.scale("free", 40)
		f.eventually(patience, "pods without a policy are bound", func() error { return f.boundAre("free", 40) })
		f.scheduledBy("free", corev1.DefaultSchedulerName)
	})

	t.Run("managed pods of that time are put right when it is back", func(t *testing.T) {
		kept := f.breaks("I5", "the cluster's own kube-scheduler places pods that no webhook saw")
		f.scale("app", 15)
		f.eventually(patience, "the webhook is passed by", func() error { return f.boundAre("app", 15) })
		kept()
		t.Logf("without the manager: %v", f.spread("app"))
		f.restart(atoll.Manager)
		f.eventually(2*patience, "managed pods are spread exactly", func() error {
			if err := f.spreadIs("app", map[string]int{"isolated-a": 9, "isolated-b": 6}); err != nil {
				return err
			}
			return f.allReady("app", 15)
		})
		if n := f.askedWithoutPolicy(); n != 0 { // this counter restarted at zero
			t.Errorf("%v filter requests were about pods without a policy", n)
		}
	})
}

// boundAre returns an error unless a workload has exactly n bound pods.
func (f *fixture) boundAre(app string, n int) error {
	if got := f.bound(app); got != n {
		return fmt.Errorf("%d pods of %s are bound, want %d", got, app, n)
	}
	return nil
}

// scheduledBy fails unless every pod of a workload names the scheduler and was
// bound by it.
func (f *fixture) scheduledBy(app, scheduler string) {
	f.Helper()
	f.eventually(patience, "events say who bound the pods of "+app, func() error {
		events, err := f.kube.EventsV1().Events(f.ns).List(f.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		by := map[string]string{}
		for _, e := range events.Items {
			if e.Reason == "Scheduled" {
				by[string(e.Regarding.UID)] = e.ReportingController
			}
		}
		for _, pod := range f.pods(app) {
			if pod.Spec.SchedulerName != scheduler || by[string(pod.UID)] != scheduler {
				return fmt.Errorf("pod %s names %q and was bound by %q, want %q", pod.Name, pod.Spec.SchedulerName, by[string(pod.UID)], scheduler)
			}
		}
		return nil
	})
}

// askedWithoutPolicy returns the number of filter requests for pods without a policy that
// the extender has answered.
func (f *fixture) askedWithoutPolicy() float64 {
	f.Helper()
	return f.metric("atoll_extender_filter_total", `result="unmanaged"`)
}

func (f *fixture) kill(process string) {
	f.Helper()
	if err := f.cluster.Kill(f.ctx, process); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) restart(process string) {
	f.Helper()
	if err := f.cluster.Restart(f.ctx, process); err != nil {
		f.Fatal(err)
	}
}
