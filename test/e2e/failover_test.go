package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// leader returns the name of the process that leads.
func (f *fixture) leader() string {
	f.Helper()
	var name string
	f.eventually(patience, "a replica leads", func() error {
		lease, err := f.kube.CoordinationV1().Leases(atoll.Namespace).Get(f.ctx, atoll.Manager, metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
			return fmt.Errorf("the Lease has no holder: %w", err)
		}
		address, _, _ := strings.Cut(*lease.Spec.HolderIdentity, "_")
		for i, replica := range f.atoll.Extenders {
			if strings.HasSuffix(address, replica[strings.LastIndexByte(replica, ':'):]) {
				name = atoll.ManagerReplica(i)
				return nil
			}
		}
		return fmt.Errorf("holder %s is none of %v", *lease.Spec.HolderIdentity, f.atoll.Extenders)
	})
	return name
}

// killForNow kills processes until the returned function is called, or the test
// ends.
func (f *fixture) killForNow(processes ...string) (restart func()) {
	f.Helper()
	for _, process := range processes {
		f.kill(process)
	}
	var once sync.Once
	restart = func() {
		once.Do(func() {
			for _, process := range processes {
				if err := f.cluster.Restart(context.Background(), process); err != nil {
					f.Error(err)
				}
			}
		})
	}
	f.Cleanup(restart)
	return restart
}

// TestLeaderKilledMidBurst is scenario 11: with two replicas, the leader is killed while
// many pods are created. The other replica takes over; the spread is exact and no pod is
// lost. If a scheduler calls the extender, no pod is placed against the policy and none
// is moved. Otherwise a webhook call in flight at the killed replica fails open, and its
// pod is corrected.
func TestLeaderKilledMidBurst(t *testing.T) {
	tier.All(t, "three clusters of two replicas, 300 pods in each: 2.5 min")
	for form, pair := range pairs {
		t.Run(string(form), func(t *testing.T) {
			t.Parallel()
			f := pair.fixture(t)
			f.group("kill-a", 5)
			f.group("kill-b", 5)
			f.nodes(nil, "kill-none-0", "kill-none-1")
			f.create(weights("policy", "kill-a", 3, "kill-b", 2))
			deleted := f.watchDeletions("burst")
			past := map[types.UID]bool{} // the webhook
			arrivals := f.watchPods(metav1.ListOptions{LabelSelector: "app=burst"}, func(_ watch.EventType, pod *corev1.Pod) {
				if form == atoll.Pinned && pod.Annotations[gm.SeatAnnotation] == "" && len(pod.Spec.SchedulingGates) == 0 {
					past[pod.UID] = true
				}
			})
			d := deployment("burst", 300, "policy")
			if form == atoll.Isolated { // a pod that did not pass the webhook would be placed by the cluster's own kube-scheduler
				d.Spec.Template.Spec.SchedulerName = atoll.Scheduler
			}
			if form == atoll.Pinned {
				f.breaks("I5", "pods that no webhook saw go anywhere")
			}
			f.create(d)
			f.eventually(patience, "a part of the pods is bound", func() error {
				if n := f.bound("burst"); n < 30 {
					return fmt.Errorf("%d pods are bound", n)
				}
				return nil
			})
			killed := f.leader()
			f.killForNow(killed)
			t.Logf("killed %s when %d pods were bound", killed, f.bound("burst"))
			f.eventually(2*patience, "all 300 pods are bound, exactly", func() error {
				return f.spreadIs("burst", map[string]int{"kill-a": 180, "kill-b": 120})
			})
			f.eventually(patience, "another replica leads", func() error { // a Lease outlives its holder by seconds
				if now := f.leader(); now == killed {
					return fmt.Errorf("%s still leads", now)
				}
				return nil
			})
			n := deleted()
			arrivals.stopAfter("burst")
			t.Logf("%d pods went past the webhook, %d were moved", len(past), n)
			if n > len(past) {
				t.Errorf("%d pods were deleted on the way, %d went past the webhook", n, len(past))
			}
		})
	}
}

// TestAnyReplicaAnswersTheScheduler: a replica that does not lead forwards.
func TestAnyReplicaAnswersTheScheduler(t *testing.T) {
	tier.All(t, "needs a cluster of two replicas, which takes half a minute to start")
	f := pairs[atoll.Isolated].fixture(t)
	c := newCaller(f)
	f.group("any", 1)
	f.nodes(nil, "any-none")
	f.create(weights("policy", "any", 1))
	c.pausedApp("app", 0, "policy")
	pod := c.waitBound("app", "policy", "any-0")
	for _, replica := range f.atoll.Extenders {
		c.http.CloseIdleConnections()
		c.url = "https://" + replica
		f.eventually(patience, "the replica answers", func() error {
			response, err := c.http.Post(c.url+"/scheduler/filter", "application/json", strings.NewReader("{}"))
			if err != nil {
				return err
			}
			_ = response.Body.Close()
			if response.StatusCode != http.StatusBadRequest {
				return fmt.Errorf("an empty request got %s", response.Status)
			}
			return nil
		})
		if result := c.filter(pod, "any-0", "any-none"); strings.Join(*result.NodeNames, " ") != "any-0" {
			t.Errorf("%s kept %v", replica, *result.NodeNames)
		}
	}
}

// bound counts a workload's pods that have a node.
func (f *fixture) bound(app string) int {
	n := 0
	for _, count := range f.spread(app) {
		n += count
	}
	return n
}

// TestEarlyPodsWaitForALeader: pods that are created while there is no leader wait at the
// gate, and the next leader divides them exactly, with their overrides.
func TestEarlyPodsWaitForALeader(t *testing.T) {
	tier.All(t, "needs a cluster of two replicas, which takes half a minute to start")
	f := pairs[atoll.Pinned].fixture(t)
	f.group("lead-a", 2)
	f.group("lead-b", 2)
	f.create(weights("policy", "lead-a", 3, "lead-b", 2))
	f.create(overrides("rules", argsRule("lead-a", "--site=a"), argsRule("lead-b", "--site=b")))
	f.create(deployment("app", 5, "policy", requiresOverride("rules")))
	args := map[string]string{"lead-a": "--site=a", "lead-b": "--site=b"}
	f.eventually(patience, "3:2", func() error {
		if err := f.spreadIs("app", map[string]int{"lead-a": 3, "lead-b": 2}); err != nil {
			return err
		}
		return f.argsAre("app", args)
	})
	f.killForNow(f.leader())
	f.scale("app", 40)
	f.eventually(2*time.Minute, "24:16, each with the arguments of its group", func() error {
		if err := f.allReady("app", 40); err != nil {
			return err
		}
		if err := f.spreadIs("app", map[string]int{"lead-a": 24, "lead-b": 16}); err != nil {
			return err
		}
		return f.argsAre("app", args)
	})
}
