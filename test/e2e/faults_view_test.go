package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	capacity "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// TestFaultStaleView is F3: no watch event arrives for longer than a reservation lasts,
// while pods are created and bound. No group gets more than its share, no pod is evicted,
// and the division is exact when the events arrive.
func TestFaultStaleView(t *testing.T) {
	tier.All(t, "waits until reservations end: 40 s")
	f := newFaultyFixture(t)
	f.group("stale-a", 1)
	f.group("stale-b", 1)
	f.create(rangesOf("policy", "stale-a", 2, "stale-b", 2))
	f.cordon(true, "stale-a-0", "stale-b-0")
	f.create(deployment("app", 4, "policy"))
	f.eventually(patience, "four pods wait for a node", func() error {
		if n := f.unschedulable("app"); n != 4 {
			return fmt.Errorf("%d pods wait", n)
		}
		return nil
	})
	deleted := f.watchDeletions("app")
	var view valve
	f.api.does(func(w http.ResponseWriter, r *http.Request, forward http.HandlerFunc) {
		if isWatch(r) {
			w = &throttled{ResponseWriter: w, valve: &view, ctx: r.Context()}
		}
		forward(w, r)
	})
	f.api.server.CloseClientConnections() // running watches continue through the valve
	f.eventually(patience, "the view is fresh", func() error {
		return f.reason("policy", gm.ReasonPodsWaiting)
	})
	view.close()
	defer view.open()
	f.cordon(false, "stale-a-0", "stale-b-0")
	f.eventually(patience, "the pods that waited are bound", func() error { return f.boundAre("app", 4) })
	noMore := func() error {
		for group, n := range f.spread("app") {
			if n > 2 || !strings.HasPrefix(group, "stale-") {
				return fmt.Errorf("%d pods are in NodeGroup %q", n, group)
			}
		}
		return nil
	}
	f.always(seats.ReservationTTL+2*time.Second, "no group has more than its range", noMore)
	f.scale("app", 8)
	f.eventually(patience, "there are more pods than seats", func() error {
		if n := len(f.pods("app")); n != 8 {
			return fmt.Errorf("%d pods", n)
		}
		return nil
	})
	f.always(5*time.Second, "no group has more than its range", noMore)
	view.open()
	f.eventually(patience, "the policy says that pods wait", func() error { return f.reason("policy", gm.ReasonPodsWaiting) })
	f.always(2*time.Second, "no group has more than its range", noMore)
	if n := deleted(); n != 0 {
		t.Errorf("%d pods were deleted", n)
	}
	f.scale("app", 4)
	f.settled("app", map[string]int{"stale-a": 2, "stale-b": 2})
}

// TestFaultStaleViewAtCreation is F3 for pods that get their group, or their class of
// capacity, when they are created: no event of a created pod arrives for longer than its
// seat stays reserved. Its seat is not given to another pod, and no pod is moved
// afterwards.
func TestFaultStaleViewAtCreation(t *testing.T) {
	tier.All(t, "waits until reservations end: half a minute")
	f := newFaultyFixture(t)
	f.classes(1, 1)
	f.group("early-a", 1)
	f.group("early-b", 1)
	policy := rangesOf("policy", "early-a", 2, "early-b", 2)
	policy.Spec.Assignment = gm.AssignmentEarly
	f.create(policy)
	f.create(deployment("early", 1, "policy"))
	f.create(split("split", 1, "2"))
	f.eventually(patience, "one pod of each", func() error {
		return errors.Join(f.allReady("early", 1), f.divided("split", 1, 0))
	})
	deleted := f.watchDeletions("early")
	evicted := f.watchEvictions("split")
	var view valve
	f.api.does(func(w http.ResponseWriter, r *http.Request, forward http.HandlerFunc) {
		if isWatch(r) && resourceOf(r) == "pods" {
			w = &throttled{ResponseWriter: w, valve: &view, ctx: r.Context()}
		}
		forward(w, r)
	})
	f.api.server.CloseClientConnections()
	for _, replicas := range []int{2, 1} {
		f.scale("split", replicas)
		f.eventually(patience, "the view is fresh", func() error {
			return errors.Join(f.divided("split", replicas, 0), f.splitHas("split", replicas, 0))
		})
	}
	view.close()
	defer view.open()
	f.scale("split", 2)
	f.scale("early", 3)
	noMore := func() error {
		onDemand := 0
		for _, pod := range f.pods("split") {
			if pod.Labels[gm.CapacityClassLabel] == "on-demand" {
				onDemand++
			}
		}
		if onDemand > 2 {
			return fmt.Errorf("%d pods are on-demand", onDemand)
		}
		seats := map[string]int{}
		for _, pod := range f.pods("early") {
			if group := pod.Labels[gm.NodeGroupLabel]; group != "" {
				if seats[group]++; seats[group] > 2 {
					return fmt.Errorf("%d pods are for NodeGroup %s", seats[group], group)
				}
			}
		}
		return nil
	}
	there := func(splits, placed int) {
		t.Helper()
		f.eventually(patience, "the pods are there", func() error {
			if a, b := len(f.pods("split")), len(f.pods("early")); a != splits || b != placed {
				return fmt.Errorf("%d and %d pods", a, b)
			}
			return nil
		})
	}
	there(2, 3)
	f.always(15*time.Second, "no seat is given away", noMore)
	f.scale("split", 5)
	f.scale("early", 6)
	there(5, 6)
	f.always(5*time.Second, "no seat is given away", noMore)
	view.open()
	f.eventually(patience, "exactly divided", func() error { return f.divided("split", 2, 3) })
	f.eventually(patience, "the policy says that pods wait", func() error { return f.reason("policy", gm.ReasonPodsWaiting) })
	f.always(2*time.Second, "no seat is given away", noMore)
	if n := evicted(); n != 0 {
		t.Errorf("%d pods were moved from class to class", n)
	}
	if n := deleted(); n != 0 {
		t.Errorf("%d pods were deleted", n)
	}
	f.scale("early", 4)
	f.settled("early", map[string]int{"early-a": 2, "early-b": 2})
}

// TestFaultUncachedOwners is scenario 28: the watches of Deployments and
// ReplicaSets stand still, so that the owners of new pods are not in the cache. Atoll
// reads the owners from the API server, and the pods are divided at creation.
func TestFaultUncachedOwners(t *testing.T) {
	tier.All(t, "the cluster of faults, with relays: a minute and more")
	f := newFaultyFixture(t)
	f.classes(1, 1)
	f.create(split("before", 2, "1"))
	f.eventuallyDivided("before", 1, 1)
	var view valve
	f.api.does(func(w http.ResponseWriter, r *http.Request, forward http.HandlerFunc) {
		if resource := resourceOf(r); isWatch(r) && (resource == "replicasets" || resource == "deployments") {
			w = &throttled{ResponseWriter: w, valve: &view, ctx: r.Context()}
		}
		forward(w, r)
	})
	f.api.server.CloseClientConnections()
	f.scale("before", 3)
	f.eventually(patience, "the view is fresh", func() error { return f.splitHas("before", 1, 2) })
	view.close()
	defer view.open()
	moved := f.watchMoved("app")
	f.create(split("app", 10, "3"))
	f.eventuallyDivided("app", 3, 7)
	moved()
	view.open()
	f.eventually(patience, "it is shown", func() error { return f.splitHas("app", 3, 7) })
}

// TestFaultAPIServerStorm is F8: a third of atoll-manager's writes fail with 429, 500 or
// 409, half of these after they took effect; watches end after a second, and a third of
// them cannot continue from their last version. The cluster converges all the same, only
// with the evictions that are needed and with at most one pod missing. Most of the
// additional time is kube-scheduler's back-off of 1, 2, 4 seconds and so on after each
// failed binding; the test's time limit only shows that no pod waits for ever. Writes of
// the Lease do not fail, because a replica that loses its Lease ends.
func TestFaultAPIServerStorm(t *testing.T) {
	tier.All(t, "waits for kube-scheduler's growing pauses: minutes")
	f := newFaultyFixture(t)
	f.classes(1, 1)
	f.group("storm-a", 3)
	f.group("storm-b", 3)
	f.create(restless(weights("policy", "storm-a", 3, "storm-b", 2)))
	converge := func(app string) time.Duration {
		f.edit(weights("policy", "storm-a", 3, "storm-b", 2))
		began := time.Now()
		f.create(deployment(app, 20, "policy"))
		f.settled(app, map[string]int{"storm-a": 12, "storm-b": 8})
		watch := f.watchAvailability(app, 20)
		f.edit(weights("policy", "storm-a", 2, "storm-b", 3))
		f.settled(app, map[string]int{"storm-a": 8, "storm-b": 12})
		took := time.Since(began)
		divided := "divided-" + app
		f.create(split(divided, 10, "4"))
		f.eventuallyDivided(divided, 4, 6)
		f.annotate(divided, map[string]any{gm.CapacityCountKey: "6"})
		f.eventuallyDivided(divided, 6, 4)
		f.scale(divided, 0)
		if worst, deleted := watch(); worst < 19 || deleted != 4 {
			t.Errorf("of %s %d of 20 were available at the worst moment, %d were evicted, want 19 and 4", app, worst, deleted)
		}
		return took
	}
	clean := converge("clean")
	f.scale("clean", 0)
	stop, failures := f.storm()
	storm := converge("stormy")
	stop()
	t.Logf("converged in %s, and in %s while %d writes failed", clean, storm, failures())
	if storm > 2*clean+patience {
		t.Errorf("took %s, clean %s: something got stuck", storm, clean)
	}
	if failures() == 0 {
		t.Error("no write failed")
	}
}

// storm makes the API server fail a third of atoll-manager's writes, half of them after
// they took effect, end watches after a second, and lose the version of every third
// watch.
func (f *fixture) storm() (stop func(), failures func() int64) {
	f.Helper()
	var writes, watches, failed atomic.Int64
	refusals := []struct {
		code   int
		reason string
	}{
		{http.StatusTooManyRequests, "TooManyRequests"}, {http.StatusInternalServerError, "InternalError"}, {http.StatusConflict, "Conflict"},
	}
	f.api.does(func(w http.ResponseWriter, r *http.Request, forward http.HandlerFunc) {
		switch {
		case resourceOf(r) == "leases":
			forward(w, r)
		case isWatch(r):
			if watches.Add(1)%3 == 0 && r.URL.Query().Get("sendInitialEvents") == "" {
				refuse(w, http.StatusGone, "Expired")
				return
			}
			brief(w, r, forward, time.Second)
		case r.Method == http.MethodGet || writes.Add(1)%3 != 0:
			forward(w, r)
		default:
			n := failed.Add(1)
			if n%2 == 0 {
				forwarded(r, forward) // done, and answered with an error
			}
			refusal := refusals[n%3]
			refuse(w, refusal.code, refusal.reason)
		}
	})
	f.api.server.CloseClientConnections()
	return func() { f.api.does(nil) }, failed.Load
}

// TestFaultConflicts is scenario 13: every second write of atoll-manager is answered with
// a conflict, and not done, while the leader is killed and pods are created, most of them
// while there is no leader. No creation is refused, and pods at the gate get their class
// after a replica leads. The numbers become exact and pods are moved
// before the conflicts end: conflicts delay writes and stop none.
func TestFaultConflicts(t *testing.T) {
	tier.All(t, "1.5 min")
	f := ganged.fixture(t)
	f.classes(1, 2)
	f.create(split("app", 10, "20"))
	f.eventuallyDivided("app", 10, 0)
	stop, conflicts := f.conflicts()
	gated, moved := f.watchGated("app"), f.watchMoved("app")
	killed := f.leader()
	restart := f.killForNow(killed)
	f.scale("app", 80)
	f.eventually(patience, "all pods are created", func() error {
		if n := len(f.pods("app")); n != 80 {
			return fmt.Errorf("%d pods, %d creations were refused", n, f.creationsRefused())
		}
		return nil
	})
	f.eventually(patience, "another leads", func() error {
		if now := f.leader(); now == killed {
			return fmt.Errorf("%s does", now)
		}
		return nil
	})
	began := time.Now()
	f.eventually(patience, "no pod waits at the gate", func() error {
		if n := f.behindGates("app"); n > 0 {
			return fmt.Errorf("%d pods do", n)
		}
		return nil
	})
	t.Logf("none waits %s after another led", time.Since(began).Round(time.Millisecond))
	f.eventuallyDivided("app", 20, 60)
	if n := gated(); n < 20 {
		t.Errorf("%d pods came to the gate: too few to show anything", n)
	}
	moved()
	if n := f.creationsRefused(); n > 0 {
		t.Errorf("%d creations were refused", n)
	}
	availability := f.watchAvailability("app", 80)
	f.annotate("app", map[string]any{gm.CapacityCountKey: "24"})
	f.eventuallyDivided("app", 24, 56)
	f.eventually(patience, "the status reports it", func() error { return f.splitSays("deployment-app", capacity.ReasonSatisfied) })
	if worst, deleted := availability(); worst < 79 || deleted != 4 {
		t.Errorf("%d of 80 were available at the worst moment, %d were deleted, want 79 and 4", worst, deleted)
	}
	stop()
	t.Logf("%d writes met a conflict", conflicts())
	if conflicts() < 40 {
		t.Error("too few to show anything")
	}
	restart()
}

// conflicts makes the API server answer every second write of atoll-manager with a
// conflict. Writes of the Lease get no conflict, because a replica that loses its Lease
// ends.
func (f *fixture) conflicts() (stop func(), met func() int64) {
	f.Helper()
	var writes, conflicts atomic.Int64
	f.api.does(func(w http.ResponseWriter, r *http.Request, forward http.HandlerFunc) {
		if r.Method == http.MethodGet || resourceOf(r) == "leases" || writes.Add(1)%2 != 0 {
			forward(w, r)
			return
		}
		conflicts.Add(1)
		refuse(w, http.StatusConflict, "Conflict")
	})
	stop = func() { f.api.does(nil) }
	f.Cleanup(stop)
	return stop, conflicts.Load
}

// TestFaultEmptyLists is the rest of F8: the API server loses the versions of watches and
// returns empty lists. No pod is evicted because of them, and no state is lost when the
// lists are complete again.
func TestFaultEmptyLists(t *testing.T) {
	tier.All(t, "restarts atoll-manager for each of its lists: a minute")
	f := newFaultyFixture(t)
	f.group("empty-a", 2)
	f.group("empty-b", 2)
	f.create(restless(weights("policy", "empty-a", 3, "empty-b", 2)))
	f.create(deployment("app", 5, "policy"))
	want := map[string]int{"empty-a": 3, "empty-b": 2}
	f.settled("app", want)
	f.classes(1, 1)
	f.create(split("split", 4, "2"))
	f.eventuallyDivided("split", 2, 2)
	deleted, splitDeleted := f.watchDeletions("app"), f.watchDeletions("split")
	for _, resource := range []string{"nodes", "pods", "replicasets"} {
		list, err := f.kube.CoreV1().Nodes().List(f.ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		kind := map[string][2]string{
			"nodes": {"v1", "Node"}, "pods": {"v1", "Pod"}, "replicasets": {"apps/v1", "ReplicaSet"},
		}[resource]
		var lied atomic.Int64
		f.api.does(func(w http.ResponseWriter, r *http.Request, forward http.HandlerFunc) {
			query := r.URL.Query()
			switch {
			case resourceOf(r) != resource || r.Method != http.MethodGet || strings.HasSuffix(r.URL.Path, "/status"):
				forward(w, r)
			case !isWatch(r):
				lied.Add(1)
				w.Header().Set("Content-Type", "application/json")
				_, _ = fmt.Fprintf(w, `{"kind":"%sList","apiVersion":%q,"metadata":{"resourceVersion":%q},"items":[]}`, kind[1], kind[0], list.ResourceVersion)
			case query.Get("sendInitialEvents") == "true":
				lied.Add(1)
				w.Header().Set("Content-Type", "application/json")
				_, _ = fmt.Fprintf(w, `{"type":"BOOKMARK","object":{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":%q,"annotations":{"k8s.io/initial-events-end":"true"}}}}`+"\n",
					kind[1], kind[0], list.ResourceVersion)
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			case lied.Load() == 0:
				refuse(w, http.StatusGone, "Expired")
			default:
				<-r.Context().Done() // nothing changes
			}
		})
		f.api.server.CloseClientConnections()
		f.eventually(patience, "nothing is listed: "+resource, func() error {
			if lied.Load() == 0 {
				return fmt.Errorf("no list of %s was asked for", resource)
			}
			return nil
		})
		if resource == "nodes" {
			f.eventually(patience, "atoll-manager knows no node", func() error { return f.reason("policy", gm.ReasonNodeGroupsMissing) })
		}
		f.always(3*time.Second, "nothing moves", func() error { return errors.Join(f.spreadIs("app", want), f.divided("split", 2, 2)) })
		// A watch with the real objects cannot begin at once, because these were never
		// listed.
		var once sync.Map
		f.api.does(func(w http.ResponseWriter, r *http.Request, forward http.HandlerFunc) {
			if resourceOf(r) == resource && isWatch(r) && r.URL.Query().Get("sendInitialEvents") == "" {
				if _, told := once.LoadOrStore(r.UserAgent()+r.URL.RawQuery, true); !told {
					refuse(w, http.StatusGone, "Expired")
					return
				}
			}
			forward(w, r)
		})
		f.api.server.CloseClientConnections()
		// client-go waits for up to a minute after a watch that fails repeatedly, and
		// this one has failed twice in a row.
		f.eventually(2*patience, "the policy is satisfied", func() error { return f.reason("policy", gm.ReasonSatisfied) })
	}
	f.api.does(nil)
	if n := deleted() + splitDeleted(); n != 0 {
		t.Errorf("%d pods were deleted for what was not listed", n)
	}
	f.scale("app", 10)
	f.scale("split", 6)
	f.settled("app", map[string]int{"empty-a": 6, "empty-b": 4})
	f.eventuallyDivided("split", 2, 4)
}

// TestFaultPartialStart is F9: atoll-manager starts with pods to move, and the list of
// one of its kinds is refused or incomplete. It evicts no pod until all lists are
// complete.
func TestFaultPartialStart(t *testing.T) {
	tier.All(t, "starts atoll-manager once for each of its lists: minutes")
	f := newFaultyFixture(t)
	f.group("part-a", 2)
	f.group("part-b", 2)
	f.create(restless(weights("policy", "part-a", 3, "part-b", 2)))
	f.create(deployment("app", 5, "policy"))
	f.settled("app", map[string]int{"part-a": 3, "part-b": 2})
	turn := []map[string]int{{"part-a": 1, "part-b": 4}, {"part-a": 3, "part-b": 2}}
	for i, tc := range []struct {
		name, resource string
		// bytes that are sent before it stalls; below zero the list is refused.
		bytes int
	}{
		{"nodes are refused", "nodes", -1},
		{"half of a list of pods", "pods", 3000},
		{"nothing of the owners", "replicasets", 0},
		{"policies are refused", "propagationpolicies", -1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := &fixture{T: t, ctx: f.ctx, ns: f.ns, environment: f.environment}
			want := turn[i%2]
			f.kill(atoll.Manager)
			deleted := f.watchDeletions("app")
			f.edit(weights("policy", "part-a", want["part-a"], "part-b", want["part-b"]))
			var rest valve
			rest.close()
			defer rest.open()
			var asked atomic.Bool
			f.api.does(func(w http.ResponseWriter, r *http.Request, forward http.HandlerFunc) {
				if resourceOf(r) != tc.resource || r.Method != http.MethodGet {
					forward(w, r)
					return
				}
				asked.Store(true)
				if tc.bytes < 0 {
					refuse(w, http.StatusInternalServerError, "InternalError")
					return
				}
				forward(&throttled{ResponseWriter: w, valve: &rest, ctx: r.Context(), free: tc.bytes}, r)
			})
			restarted := make(chan error, 1)
			go func() { restarted <- f.cluster.Restart(f.ctx, atoll.Manager) }()
			f.eventually(patience, "the list is asked for", func() error {
				if !asked.Load() {
					return fmt.Errorf("no request for %s", tc.resource)
				}
				return nil
			})
			f.always(7*time.Second, "nothing moves", func() error { return f.spreadIs("app", turn[(i+1)%2]) })
			f.api.does(nil)
			rest.open()
			if err := <-restarted; err != nil {
				t.Fatal(err)
			}
			f.settled("app", want)
			if n := deleted(); n != 2 {
				t.Errorf("%d pods were deleted, want 2", n)
			}
		})
	}
}

// brief ends a watch after a short time.
func brief(w http.ResponseWriter, r *http.Request, forward http.HandlerFunc, after time.Duration) {
	ctx, cancel := context.WithTimeout(r.Context(), after)
	defer cancel()
	forward(w, r.WithContext(ctx))
}

// TestFaultListsWithoutEnd: the API server loses the versions of watches, and sends no
// bookmark at the end of a streamed list. client-go waits for it without end. Every kind is
// listed in the old way soon, so what is created meanwhile is divided as the policy says.
func TestFaultListsWithoutEnd(t *testing.T) {
	tier.All(t, "waits until lists are given up: a minute")
	f := newFaultyFixture(t)
	f.group("endless-a", 2)
	f.group("endless-b", 2)
	f.create(restless(weights("policy", "endless-a", 3, "endless-b", 2)))
	f.create(deployment("app", 5, "policy"))
	f.settled("app", map[string]int{"endless-a": 3, "endless-b": 2})
	var streams atomic.Int64
	var expired sync.Map
	f.api.does(func(w http.ResponseWriter, r *http.Request, forward http.HandlerFunc) {
		switch {
		case !isWatch(r):
			forward(w, r)
		case r.URL.Query().Get("sendInitialEvents") == "true":
			streams.Add(1)
			w.Header().Set("Content-Type", "application/json")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			if _, again := expired.LoadOrStore(r.UserAgent()+r.URL.Path, true); !again {
				refuse(w, http.StatusGone, "Expired")
				return
			}
			forward(w, r)
		}
	})
	f.api.server.CloseClientConnections()
	f.eventually(patience, "lists are streamed", func() error {
		if n := streams.Load(); n < 3 {
			return fmt.Errorf("%d streamed lists were asked for", n)
		}
		return nil
	})
	f.group("endless-c", 2)
	f.create(restless(weights("more", "endless-c", 1, "endless-b", 1)))
	f.create(deployment("later", 4, "more"))
	f.eventually(2*patience, "what was created meanwhile is divided", func() error {
		return f.spreadIs("later", map[string]int{"endless-b": 2, "endless-c": 2})
	})
	f.settled("later", map[string]int{"endless-b": 2, "endless-c": 2})
}
