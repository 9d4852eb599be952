package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// TestFaultExtenderAnswersWrongly is F5: the extender is down, slow, sends an endless
// answer, or names nodes that do not exist. Pods without a policy are bound all the same;
// managed pods wait, with an event, and are placed exactly within seconds once the
// extender answers. The test ends the endless answer before it fills kube-scheduler's
// memory, which has no limit.
func TestFaultExtenderAnswersWrongly(t *testing.T) {
	tier.All(t, "waits for timeouts of kube-scheduler: 35 s")
	f := newFaultyFixture(t)
	f.group("wrong-a", 1)
	f.group("wrong-b", 1)
	f.create(weights("policy", "wrong-a", 1, "wrong-b", 1))
	f.create(deployment("app", 2, "policy"), deployment("free", 2, ""))
	f.settled("app", map[string]int{"wrong-a": 1, "wrong-b": 1})
	deleted := f.watchDeletions("app")
	const endless = 64 << 20
	n := 2
	for _, tc := range []struct {
		name string
		is   fault
	}{
		{"down", func(http.ResponseWriter, *http.Request, http.HandlerFunc) { hangUp() }},
		{"an error", func(w http.ResponseWriter, _ *http.Request, _ http.HandlerFunc) {
			http.Error(w, "out of order", http.StatusInternalServerError)
		}},
		{"slower than kube-scheduler waits", func(w http.ResponseWriter, r *http.Request, forward http.HandlerFunc) {
			select {
			case <-time.After(6 * time.Second):
			case <-r.Context().Done():
			}
			forward(w, r)
		}},
		{"a reply without end", func(w http.ResponseWriter, _ *http.Request, _ http.HandlerFunc) {
			_, _ = w.Write([]byte(`{"NodeNames":["`))
			for range endless >> 16 {
				if _, err := w.Write([]byte(strings.Repeat("x", 1<<16))); err != nil {
					return
				}
			}
			hangUp()
		}},
		{"nodes that are not", func(w http.ResponseWriter, _ *http.Request, _ http.HandlerFunc) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"NodeNames":["no-such-node"]}`))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := &fixture{T: t, ctx: f.ctx, ns: f.ns, environment: f.environment}
			f.extender.does(tc.is)
			n += 2
			f.scale("app", n)
			f.scale("free", n)
			f.eventually(patience, "pods without a policy are bound", func() error { return f.boundAre("free", n) })
			f.eventually(patience, "an event says why the managed pod waits", func() error { return f.waitWithAnEvent("app", 2) })
			if err := f.boundAre("app", n-2); err != nil {
				t.Error(err)
			}
			f.extender.does(nil)
			// kube-scheduler tries again within 10 seconds.
			f.eventually(patience, "all are placed exactly", func() error {
				return f.spreadIs("app", map[string]int{"wrong-a": n / 2, "wrong-b": n / 2})
			})
		})
	}
	if n := deleted(); n != 0 {
		t.Errorf("%d pods were deleted", n)
	}
}

// waitWithAnEvent returns an error unless n pods of a workload wait, one of them at least
// with an event of kube-scheduler's.
func (f *fixture) waitWithAnEvent(app string, n int) error {
	events, err := f.kube.EventsV1().Events(f.ns).List(f.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	failed := map[string]bool{}
	for _, e := range events.Items {
		if e.Reason == "FailedScheduling" {
			failed[string(e.Regarding.UID)] = true
		}
	}
	waiting, told := 0, 0
	for _, pod := range f.pods(app) {
		if pod.Spec.NodeName == "" {
			waiting++
			if failed[string(pod.UID)] {
				told++
			}
		}
	}
	if waiting != n || told == 0 {
		return fmt.Errorf("%d pods of %s wait, %d of them with an event, want %d", waiting, app, told, n)
	}
	return nil
}

// TestFaultSchedulerBetweenFilterAndBind is F6: kube-scheduler is killed between filter
// and bind, killed when the binding is done and the answer not sent, and then two of them
// serve the same pods. No pod is in a wrong group, none is lost, and none has to be
// moved.
func TestFaultSchedulerBetweenFilterAndBind(t *testing.T) {
	tier.All(t, "the cluster of faults, with relays and two kube-schedulers: a minute and more")
	f := newFaultyFixture(t)
	f.group("twice-a", 2)
	f.group("twice-b", 2)
	f.create(weights("policy", "twice-a", 3, "twice-b", 2))
	f.create(deployment("app", 0, "policy"))
	deleted := f.watchDeletions("app")
	killed := func(replicas int, bound bool) {
		f.Helper()
		asked := make(chan struct{})
		var once sync.Once
		f.extender.does(func(w http.ResponseWriter, r *http.Request, forward http.HandlerFunc) {
			if !strings.HasSuffix(r.URL.Path, "/bind") {
				forward(w, r)
				return
			}
			if bound {
				forwarded(r, forward)
			}
			once.Do(func() { close(asked) })
			<-r.Context().Done() // until kube-scheduler has ended
			hangUp()
		})
		f.scale("app", replicas)
		select {
		case <-asked:
		case <-time.After(patience):
			f.Fatal("nothing was to be bound")
		}
		f.kill(atoll.Scheduler)
		f.extender.does(nil)
		f.restart(atoll.Scheduler)
		f.settled("app", map[string]int{"twice-a": replicas * 3 / 5, "twice-b": replicas * 2 / 5})
	}
	killed(10, false)
	killed(20, true)

	const twin = "atoll-scheduler-twin"
	if err := startScheduler(f.ctx, f.environment, f.extender, twin, false); err != nil {
		t.Fatal(err)
	}
	f.scale("app", 100)
	f.settled("app", map[string]int{"twice-a": 60, "twice-b": 40})
	if err := f.cluster.RemoveProcess(f.ctx, twin); err != nil {
		t.Fatal(err)
	}
	if n := deleted(); n != 0 {
		t.Errorf("%d pods were deleted", n)
	}
}

// TestFaultManagerKilledBetweenTwoWrites is F7: atoll-manager is killed before one of its
// writes is done, or after it and before the answer. The next process continues from
// there: no pod is evicted without need, none twice, and the final division is exact.
func TestFaultManagerKilledBetweenTwoWrites(t *testing.T) {
	tier.All(t, "kills atoll-manager around each of its writes: a minute")
	f := newFaultyFixture(t)
	f.group("killed-a", 2)
	f.group("killed-b", 2)
	f.create(restless(weights("policy", "killed-a", 3, "killed-b", 2)))
	f.create(overrideOfImages("images"))
	labelled := deployment("app", 5, "policy")
	// Pods that are created while no replica answers wait for the scheduler that calls
	// the extender.
	labelled.Spec.Template.Spec.SchedulerName = atoll.Scheduler
	labelled.Labels[gm.RequiredOverridePolicyLabel] = "images"
	f.create(labelled)
	turns := []map[string]int{{"killed-a": 1, "killed-b": 4}, {"killed-a": 3, "killed-b": 2}}
	f.settled("app", turns[1])
	for i, tc := range []struct {
		name, method, resource string
		done                   bool
	}{
		{"before it evicts", http.MethodPost, "pods/eviction", false},
		{"when it has evicted", http.MethodPost, "pods/eviction", true},
		{"before it writes the status", http.MethodPatch, "propagationpolicies/status", false},
		{"when it has changed a pod's images, before it binds", http.MethodPost, "pods/binding", false},
		{"when it has bound", http.MethodPost, "pods/binding", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := &fixture{T: t, ctx: f.ctx, ns: f.ns, environment: f.environment}
			want := turns[i%2]
			deleted := f.watchDeletions("app")
			f.killManagerAt(tc.method, tc.resource, tc.done, func() {
				f.edit(weights("policy", "killed-a", want["killed-a"], "killed-b", want["killed-b"]))
			})
			f.settled("app", want)
			f.eventually(patience, "the policy is satisfied", func() error { return f.reason("policy", gm.ReasonSatisfied) })
			if n := deleted(); n != 2 {
				t.Errorf("%d pods were deleted, want 2", n)
			}
			f.eventually(patience, "all images are overridden", func() error {
				var errs []error
				for _, pod := range f.pods("app") {
					if image := pod.Spec.Containers[0].Image; image != "killed.io/nginx:1.27" {
						errs = append(errs, fmt.Errorf("pod %s has %s", pod.Name, image))
					}
				}
				return errors.Join(errs...)
			})
		})
	}
}

// killManagerAt kills atoll-manager at its first write of a kind that a given action
// causes, before the write is done, or after it and before the answer. Then it restarts
// atoll-manager.
func (f *fixture) killManagerAt(method, resource string, done bool, cause func()) {
	f.Helper()
	reached := make(chan struct{})
	var once sync.Once
	f.api.does(func(w http.ResponseWriter, r *http.Request, forward http.HandlerFunc) {
		if r.Method != method || resourceOf(r) != resource || !strings.Contains(r.URL.Path, "/"+f.ns+"/") {
			forward(w, r)
			return
		}
		first := false
		once.Do(func() { first = true })
		if first {
			if done {
				forwarded(r, forward)
			}
			close(reached)
		}
		<-r.Context().Done() // until atoll-manager has ended
		hangUp()
	})
	cause()
	select {
	case <-reached:
	case <-time.After(patience):
		f.Fatal("the write was not reached")
	}
	f.kill(atoll.Manager)
	f.api.does(nil)
	f.restart(atoll.Manager)
}

// TestFaultManagerKilledWhileItMovesClasses is F7 for classes of capacity.
func TestFaultManagerKilledWhileItMovesClasses(t *testing.T) {
	tier.All(t, "kills atoll-manager around each of its writes: half a minute")
	f := newFaultyFixture(t)
	f.classes(1, 1)
	f.create(split("app", 4, "1"))
	f.eventuallyDivided("app", 1, 3)
	for i, tc := range []struct {
		name, method, resource string
		done                   bool
	}{
		{"before it evicts", http.MethodPost, "pods/eviction", false},
		{"when it has evicted", http.MethodPost, "pods/eviction", true},
		{"before it writes the status", http.MethodPatch, "capacitysplits/status", false},
		{"when it has written the status", http.MethodPatch, "capacitysplits/status", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := &fixture{T: t, ctx: f.ctx, ns: f.ns, environment: f.environment}
			count := []int{3, 1}[i%2]
			deleted := f.watchDeletions("app")
			f.killManagerAt(tc.method, tc.resource, tc.done, func() {
				f.annotate("app", map[string]any{gm.CapacityCountKey: fmt.Sprint(count)})
			})
			f.eventuallyDivided("app", count, 4-count)
			f.eventually(patience, "the status reports it", func() error { return f.splitHas("app", count, 4-count) })
			// A pod that was created while no replica answered may be on any node.
			if n := deleted(); n < 2 || n > 3 {
				t.Errorf("%d pods were deleted, want 2, or 3", n)
			}
		})
	}
}

// overrideOfImages gives all pods another registry.
func overrideOfImages(name string) *gm.OverridePolicy {
	return &gm.OverridePolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: gm.OverrideSpec{OverrideRules: []gm.RuleWithNodeGroup{{InlineOverriders: gm.InlineOverriders{ImageOverrider: []gm.ImageOverrider{
			{Component: gm.Registry, Operator: gm.OverriderOpReplace, Value: "killed.io"},
		}}}}},
	}
}
