package united

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
)

// away counts the pools that an update made unavailable and that are not complete again.
// Failed pools count unless the rollout goes on without them.
func (w *world) away() int {
	n := 0
	for _, p := range w.state.Pools {
		if c := w.children["web-"+p.Name]; c != nil && c.Established && !c.Settled && (!w.state.Strategy.Continue || c.Failure == "") {
			n++
		}
	}
	return n
}

// TestRolloutsStayWithinBounds simulates rollouts with pools that are added, removed,
// scaled, edited, broken and refused. At no step are more pools unavailable than allowed,
// and in the end every pool has one workload, of the last release.
func TestRolloutsStayWithinBounds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		strategy := Strategy{
			MaxUpdating: rapid.IntRange(1, 3).Draw(rt, "max"), Continue: rapid.Bool().Draw(rt, "continue"),
			Partition: rapid.IntRange(0, 2).Draw(rt, "partition"),
		}
		w := newWorld(t, rapid.Uint64().Draw(rt, "seed"), strategy)
		next := rapid.IntRange(1, 6).Draw(rt, "pools")
		for i := range next {
			w.add(fmt.Sprintf("p%d", i))
		}
		w.release("r0")
		for tick := range rapid.IntRange(5, 60).Draw(rt, "ticks") {
			switch rapid.IntRange(0, 19).Draw(rt, "event") {
			case 0:
				w.release(fmt.Sprintf("r%d", tick))
			case 1:
				w.add(fmt.Sprintf("p%d", next))
				next++
			case 2:
				if n := len(w.state.Pools); n > 1 {
					i := rapid.IntRange(0, n-1).Draw(rt, "removed")
					w.state.Pools = slices.Delete(w.state.Pools, i, i+1)
				}
			case 3:
				w.state.Pools[0].Replicas++
			case 4:
				for _, c := range w.children {
					c.Edited = true
				}
			case 5:
				w.broken["*"] = append(w.broken["*"], w.state.Update)
			case 6:
				w.state.Strategy.Paused = !w.state.Strategy.Paused
			case 7:
				w.refuses[w.state.Pools[0].Name] = !w.refuses[w.state.Pools[0].Name]
			}
			w.check(rt)
		}
		w.state.Strategy.Paused, w.state.Strategy.Partition = false, 0
		clear(w.refuses)
		w.release("last")
		for range 60 + 20*len(w.state.Pools) {
			w.check(rt)
		}
		for _, p := range w.state.Pools {
			if c := w.children["web-"+p.Name]; c == nil || c.Revision != "last" || c.Replicas != p.Replicas || c.Edited {
				rt.Fatalf("pool %s ended as %+v:\n%s", p.Name, c, w.log.String())
			}
		}
		if len(w.children) != len(w.state.Pools) || w.state.Current != "last" {
			rt.Fatalf("%d workloads for %d pools, current is %q:\n%s", len(w.children), len(w.state.Pools), w.state.Current, w.log.String())
		}
	})
}

// check runs one step. The step may begin updates of complete pools only up to the allowed
// number of unavailable pools, and writes to each workload once.
func (w *world) check(t *rapid.T) {
	w.observe()
	away, taken := w.away(), 0
	up := map[string]bool{}
	for name, c := range w.children {
		up[name] = c.Complete()
	}
	touched := map[string]bool{}
	for _, a := range w.step().Actions {
		if touched[a.Pool] && a.Verb != Delete {
			t.Fatalf("%s, in one step with another write", a)
		}
		touched[a.Pool] = true
		if a.Verb == Update && up[a.Child] {
			taken++
		}
	}
	if taken > 0 && away+taken > w.state.Strategy.MaxUpdating {
		t.Fatalf("%d pools are away and %d more were taken, of at most %d:\n%s", away, taken, w.state.Strategy.MaxUpdating, w.log.String())
	}
}

func TestPlanOfOneStep(t *testing.T) {
	at := func(revision string) Child {
		return Child{
			Name: "web-a", Pool: "a", Revision: revision, PoolRevision: revision + "/a", Replicas: 2,
			RolloutComplete: true, Available: true, Settled: true, Established: true,
		}
	}
	with := func(c Child, change func(*Child)) Child { change(&c); return c }
	second := with(at("r1"), func(c *Child) { c.Name = "other"; c.Created = 5 })
	for name, tc := range map[string]struct {
		pool     Pool
		strategy Strategy
		unsized  bool
		children []Child
		want     []string
		phase    apps.PoolPhase
		complete bool
	}{
		"nothing to do": {
			pool: Pool{Replicas: 2}, children: []Child{at("r1")}, phase: apps.PoolReady, complete: true,
		},
		"A8: no replicas and none wanted is complete": {
			pool: Pool{Replicas: 0}, children: []Child{with(at("r1"), func(c *Child) { c.Replicas = 0 })}, phase: apps.PoolReady, complete: true,
		},
		"A1: scaling is not an update": {
			pool: Pool{Replicas: 3}, children: []Child{at("r1")}, phase: apps.PoolReady,
			want: []string{"scale a (web-a): 3 replicas, not 2 replicas"},
		},
		"A4: of two the older is kept": {
			pool: Pool{Replicas: 2}, children: []Child{second, at("r1")}, phase: apps.PoolReady, complete: true,
			want: []string{"delete a (other): the pool also has web-a"},
		},
		"of two the available one is kept": {
			pool: Pool{Replicas: 2}, children: []Child{second, with(at("r1"), func(c *Child) { c.Available = false })}, phase: apps.PoolReady, complete: true,
			want: []string{"delete a (web-a): the pool also has other"},
		},
		"A9: an edit is undone although the rollout is paused": {
			pool: Pool{Replicas: 2}, strategy: Strategy{Paused: true}, children: []Child{with(at("r0"), func(c *Child) { c.Edited = true })},
			want: []string{"restore a (web-a) at r0: it was edited by hand"}, phase: apps.PoolHeld,
		},
		"a partition is scaled, not updated": {
			pool: Pool{Replicas: 2, Partition: 1}, children: []Child{at("r1")}, phase: apps.PoolReady,
			want: []string{"scale a (web-a): 2 replicas, partition 1, not 2 replicas"},
		},
		"a partition holds pods: it is not complete": {
			pool: Pool{Replicas: 2, Partition: 1}, children: []Child{with(at("r1"), func(c *Child) { c.Partition = 1 })}, phase: apps.PoolReady,
		},
		"the pool is held": {
			pool: Pool{Replicas: 2}, strategy: Strategy{Partition: 1}, children: []Child{at("r0")}, phase: apps.PoolHeld,
		},
		"the pool is held, and its patch changes": {
			pool: Pool{Replicas: 2, Contents: map[string]string{"r0": "r0/a-patched"}}, strategy: Strategy{Partition: 1}, children: []Child{at("r0")}, phase: apps.PoolUpdating,
			want: []string{"update a (web-a) at r0: pool 1 of at most 1 at a time"},
		},
		"its workload is being deleted": {
			pool: Pool{Replicas: 2}, children: []Child{with(at("r1"), func(c *Child) { c.Deleting = true })}, phase: apps.PoolPending,
		},
		"it was refused: no second attempt in the same pass": {
			pool: Pool{Replicas: 3, Refused: true}, children: []Child{at("r0")}, phase: apps.PoolFailed,
		},
		"it was refused: the workload is not created": {
			pool: Pool{Replicas: 2, Refused: true}, phase: apps.PoolFailed,
		},
		"it was refused: the workload is not adopted": {
			pool: Pool{Replicas: 2, Refused: true}, children: []Child{with(at("r1"), func(c *Child) { c.Owner = Unowned })}, phase: apps.PoolFailed,
		},
		"a workload without an owner is adopted first": {
			pool: Pool{Replicas: 2}, children: []Child{with(at("r1"), func(c *Child) { c.Owner = Unowned })}, phase: apps.PoolPending,
			want: []string{"adopt a (web-a): the workload of the pool has no owner"},
		},
		"edited: it is not complete before it is restored": {
			pool: Pool{Replicas: 2}, children: []Child{with(at("r1"), func(c *Child) { c.Edited = true })}, phase: apps.PoolReady,
			want: []string{"restore a (web-a) at r1: it was edited by hand"},
		},
		"edited, at a revision that cannot be built": {
			pool: Pool{Replicas: 2}, strategy: Strategy{Paused: true}, children: []Child{with(at("gone"), func(c *Child) { c.Edited = true })}, phase: apps.PoolHeld,
		},
		"held at a revision that cannot be built": {
			pool: Pool{Replicas: 2}, strategy: Strategy{Partition: 1}, children: []Child{at("gone")}, phase: apps.PoolUpdating,
			want: []string{"update a (web-a) at r1: pool 1 of at most 1 at a time"},
		},
		"its NodePool has changed": {
			pool: Pool{Replicas: 2, Contents: map[string]string{"r1": "r1/a-tainted"}}, children: []Child{at("r1")}, phase: apps.PoolUpdating,
			want: []string{"update a (web-a) at r1: pool 1 of at most 1 at a time"},
		},
		"the label of its revision was edited": {
			pool: Pool{Replicas: 2}, children: []Child{with(at("r0"), func(c *Child) { c.PoolRevision, c.Edited = "r1/a", true })}, phase: apps.PoolUpdating,
			want: []string{"update a (web-a) at r1: pool 1 of at most 1 at a time"},
		},
		"a partition without replicas": {
			pool: Pool{Partition: 1}, children: []Child{with(at("r1"), func(c *Child) { c.Replicas, c.Partition = 0, 1 })}, phase: apps.PoolReady, complete: true,
		},
		"a DaemonSet has no replicas": {
			pool: Pool{Replicas: 3}, unsized: true, children: []Child{with(at("r1"), func(c *Child) { c.Replicas = 0 })}, phase: apps.PoolReady, complete: true,
		},
		"one that is being deleted is not kept": {
			pool: Pool{Replicas: 2}, children: []Child{
				with(at("r1"), func(c *Child) { c.Deleting = true }),
				with(second, func(c *Child) { c.Owner, c.Available, c.Established = Unowned, false, false }),
			},
			want: []string{"adopt a (other): the workload of the pool has no owner"}, phase: apps.PoolPending,
		},
		"ours is kept, although another one is available": {
			pool: Pool{Replicas: 2}, children: []Child{
				with(at("r1"), func(c *Child) { c.Owner = Unowned }),
				with(second, func(c *Child) { c.Available, c.RolloutComplete, c.Established, c.Settled = false, false, false, false }),
			},
			phase: apps.PoolUpdating,
		},
		"one without pods does not count as available": {
			pool: Pool{Replicas: 2}, children: []Child{with(second, func(c *Child) { c.Replicas = 0 }), with(at("r1"), func(c *Child) { c.Available = false })}, phase: apps.PoolUnavailable,
			want: []string{"delete a (other): the pool also has web-a"},
		},
		"its update is not finished": {
			pool: Pool{Replicas: 2}, children: []Child{with(at("r1"), func(c *Child) { c.Available, c.Settled = false, false })}, phase: apps.PoolUpdating,
		},
		"it is new": {
			pool: Pool{Replicas: 2}, children: []Child{with(at("r1"), func(c *Child) { c.Available, c.Settled, c.Established = false, false, false })}, phase: apps.PoolUpdating,
		},
		"its pods are being replaced": {
			pool: Pool{Replicas: 2}, children: []Child{with(at("r1"), func(c *Child) { c.RolloutComplete = false })}, phase: apps.PoolUpdating,
		},
		"its pods became unavailable after the update": {
			pool: Pool{Replicas: 2}, children: []Child{with(at("r1"), func(c *Child) { c.Available = false })}, phase: apps.PoolUnavailable,
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.pool.Name = "a"
			if tc.pool.Contents == nil {
				tc.pool.Contents = map[string]string{"r0": "r0/a", "r1": "r1/a"}
			}
			tc.strategy.MaxUpdating = 1
			s := State{Pools: []Pool{tc.pool}, Children: tc.children, Strategy: tc.strategy, Update: "r1", Current: "r1", Base: "r1", HasReplicas: !tc.unsized}
			plan := s.Plan()
			var got []string
			for _, a := range plan.Actions {
				got = append(got, a.String())
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("it does %q, want %q", got, tc.want)
			}
			if plan.Pools[0].Phase != tc.phase || plan.Complete != tc.complete {
				t.Errorf("phase %s, complete %t; want %s, %t", plan.Pools[0].Phase, plan.Complete, tc.phase, tc.complete)
			}
		})
	}
}

// TestPlanOfSeveralPools covers which states of a pool make other pools wait.
func TestPlanOfSeveralPools(t *testing.T) {
	// read parses "a:r0". "a:r0!" has pods that are not available, "a:r0?" failed too, and
	// "a:-r0" was never complete. "a" has no workload. "x" at the end: a write was refused.
	read := func(text string) (pools []Pool, children []Child) {
		for field := range strings.FieldsSeq(text) {
			name, is, found := strings.Cut(strings.TrimSuffix(field, "x"), ":")
			p := Pool{Name: name, Replicas: 2, Refused: strings.HasSuffix(field, "x"), Contents: map[string]string{}}
			for _, revision := range []string{"r0", "r1", "r2"} {
				p.Contents[revision] = content(revision, name)
			}
			pools = append(pools, p)
			if !found {
				continue
			}
			revision := strings.Trim(is, "-!?")
			away := strings.HasSuffix(is, "!") || strings.HasSuffix(is, "?")
			c := Child{
				Name: "web-" + name, Pool: name, Revision: revision, PoolRevision: content(revision, name), Replicas: 2,
				RolloutComplete: !away, Available: !away, Settled: !away, Established: !strings.HasPrefix(is, "-"),
			}
			if strings.HasSuffix(is, "?") {
				c.Failure = "no progress"
			}
			children = append(children, c)
		}
		return pools, children
	}
	// The update revision is r2. r0 is the last that all pools had, r1 one that was abandoned.
	for name, tc := range map[string]struct {
		pools    string
		strategy Strategy
		want     string // verbs, pools and revisions
		phases   string
		stopped  bool
	}{
		"the first begins":                                {pools: "a:r0 b:r0", want: "update a r2", phases: "Updating Waiting"},
		"a pool that is refused stops the rollout":        {pools: "a:r0x b:r0", phases: "Failed Held", stopped: true},
		"it does not stop with Continue":                  {pools: "a:r0x b:r0", strategy: Strategy{Continue: true}, want: "update b r2", phases: "Failed Updating"},
		"nor if it was never complete":                    {pools: "a:-r0x b:r0", want: "update b r2", phases: "Failed Updating"},
		"nor if it has no workload":                       {pools: "ax b:r0", want: "update b r2", phases: "Failed Updating"},
		"a busy pool goes on although another is refused": {pools: "a:r0x b:r1!", want: "update b r2", phases: "Failed Updating"},
		"but not if the new revision has failed":          {pools: "a:r2? b:r1! c:r0", strategy: Strategy{MaxUpdating: 3}, phases: "Failed Held Held", stopped: true},
		"a failed pool with Continue, and a busy one":     {pools: "a:r2? b:r2! c:r0", strategy: Strategy{Continue: true}, phases: "Failed Updating Waiting"},
		"two at a time, one of them busy already":         {pools: "a:r0 b:r0 c:r1!", strategy: Strategy{MaxUpdating: 2}, want: "update a r2, update c r2", phases: "Updating Waiting Updating"},
		"a busy pool waits for its turn":                  {pools: "a:r2! b:r1!", phases: "Updating Waiting"},
		"a busy pool is updated before others":            {pools: "a:r1! b:r0", want: "update a r2", phases: "Updating Waiting"},

		"a new pool before the rollout reaches it":    {pools: "a:r0 b", want: "update a r2, create b r0", phases: "Updating Pending"},
		"a new pool while the one before it is busy":  {pools: "a:r2! b c:r0", want: "create b r0", phases: "Updating Pending Waiting"},
		"a new pool that the rollout has passed":      {pools: "a:r2 b c:r0", want: "create b r2, update c r2", phases: "Ready Pending Updating"},
		"a new pool if no other has the old revision": {pools: "a:r2! b", want: "create b r2", phases: "Updating Pending"},
		"a new pool that the partition holds":         {pools: "a:r2 b c:r0", strategy: Strategy{Partition: 2}, want: "create b r0", phases: "Ready Pending Held"},
		"a new pool while the rollout is paused":      {pools: "a:r2 b c:r0", strategy: Strategy{Paused: true}, want: "create b r0", phases: "Ready Pending Held"},
		"a new pool while the rollout is stopped":     {pools: "a:r2x b c:r0", want: "create b r0", phases: "Failed Pending Held", stopped: true},
	} {
		t.Run(name, func(t *testing.T) {
			pools, children := read(tc.pools)
			tc.strategy.MaxUpdating = max(1, tc.strategy.MaxUpdating)
			plan := State{Pools: pools, Children: children, Strategy: tc.strategy, Update: "r2", Current: "r0", Base: "r0", HasReplicas: true}.Plan()
			var actions, phases []string
			for _, a := range plan.Actions {
				actions = append(actions, string(a.Verb)+" "+a.Pool+" "+a.Revision)
			}
			for _, p := range plan.Pools {
				phases = append(phases, string(p.Phase))
			}
			if got := strings.Join(actions, ", "); got != tc.want {
				t.Errorf("it does %q, want %q", got, tc.want)
			}
			if got := strings.Join(phases, " "); got != tc.phases || plan.Stopped != tc.stopped {
				t.Errorf("phases are %s, stopped %t; want %s, %t", got, plan.Stopped, tc.phases, tc.stopped)
			}
		})
	}
}

// TestLeaving: our workloads of removed pools are drained, unless they are being deleted.
func TestLeaving(t *testing.T) {
	s := State{Pools: []Pool{{Name: "a"}, {Name: "b"}}, Children: []Child{
		{Name: "web-a", Pool: "a"}, {Name: "web-c", Pool: "c"}, {Name: "web-d", Pool: "d", Deleting: true}, {Name: "web-e", Pool: "e", Owner: Unowned}, {Name: "web-f", Pool: "f"},
	}}
	var got []string
	for _, c := range s.Leaving() {
		got = append(got, c.Name)
	}
	if want := []string{"web-c", "web-f"}; !slices.Equal(got, want) {
		t.Errorf("they are %v, want %v", got, want)
	}
}

// TestPlanSummary checks what the plan reports about all pools: the controller's
// conditions are made from it.
func TestPlanSummary(t *testing.T) {
	at := func(pool, revision string, changes ...func(*Child)) Child {
		c := Child{
			Name: "web-" + pool, Pool: pool, Revision: revision, PoolRevision: content(revision, pool), Replicas: 2,
			RolloutComplete: true, Available: true, Settled: true, Established: true,
		}
		for _, change := range changes {
			change(&c)
		}
		return c
	}
	partition := func(c *Child) { c.Partition = 1 }
	deleting := func(c *Child) { c.Deleting = true }
	unowned := func(c *Child) { c.Owner = Unowned }
	type summary struct {
		provisioned, updated                   string // names of pools
		draining, surplus                      string // names of workloads
		stopped, paused, partitioned, complete bool
	}
	for name, tc := range map[string]struct {
		children []Child
		strategy Strategy
		want     summary
	}{
		"every pool is updated": {
			children: []Child{at("a", "r2"), at("b", "r2")},
			want:     summary{provisioned: "a b", updated: "a b", complete: true},
		},
		"a pool has no workload": {
			children: []Child{at("a", "r2")},
			want:     summary{provisioned: "a", updated: "a"},
		},
		"a workload is being deleted": {
			children: []Child{at("a", "r2", deleting), at("b", "r2")},
			want:     summary{provisioned: "b", updated: "a b"},
		},
		"a workload has no owner": {
			children: []Child{at("a", "r2", unowned), at("b", "r2")},
			want:     summary{provisioned: "b", updated: "b", partitioned: true},
		},
		"the pods of a pool are not available": {
			children: []Child{at("a", "r2", func(c *Child) { c.Available = false }), at("b", "r2")},
			want:     summary{provisioned: "a b", updated: "a b"},
		},
		"a pool has an older revision": {
			children: []Child{at("a", "r2"), at("b", "r1")},
			want:     summary{provisioned: "a b", updated: "a"},
		},
		"the rollout is paused": {
			children: []Child{at("a", "r1"), at("b", "r1")}, strategy: Strategy{Paused: true},
			want: summary{provisioned: "a b", paused: true},
		},
		"a pool failed": {
			children: []Child{at("a", "r2", func(c *Child) { c.RolloutComplete, c.Settled, c.Failure = false, false, "no progress" }), at("b", "r1")},
			want:     summary{provisioned: "a b", stopped: true},
		},
		"the partition of the UnitedDeployment holds a pool": {
			children: []Child{at("a", "r2"), at("b", "r1")}, strategy: Strategy{Partition: 1},
			want: summary{provisioned: "a b", updated: "a", partitioned: true},
		},
		"the partition of a StatefulSet holds pods": {
			children: []Child{at("a", "r2"), at("b", "r2", partition)},
			want:     summary{provisioned: "a b", updated: "a", partitioned: true},
		},
		"a partition holds pods, and another pool is being updated": {
			children: []Child{at("a", "r2", partition), at("b", "r1")},
			want:     summary{provisioned: "a b"},
		},
		"workloads that no pool keeps": {
			children: []Child{
				at("a", "r2"), at("a", "r2", func(c *Child) { c.Name, c.Created = "younger", 1 }), at("b", "r2"),
				at("b", "r2", unowned, func(c *Child) { c.Name = "foreign" }),
				at("removed", "r2"), at("drained", "r2", func(c *Child) { c.Drained = true }), at("deleted", "r2", deleting),
			},
			want: summary{provisioned: "a b", updated: "a b", complete: true, draining: "web-drained web-removed", surplus: "web-deleted younger"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := State{Children: tc.children, Strategy: tc.strategy, Update: "r2", Current: "r1", Base: "r1", HasReplicas: true}
			s.Strategy.MaxUpdating = 1
			for _, pool := range []string{"a", "b"} {
				s.Pools = append(s.Pools, Pool{Name: pool, Replicas: 2, Contents: map[string]string{"r1": content("r1", pool), "r2": content("r2", pool)}})
			}
			plan := s.Plan()
			var provisioned, updated []string
			for i, out := range plan.Pools {
				if out.Provisioned {
					provisioned = append(provisioned, s.Pools[i].Name)
				}
				if out.Updated {
					updated = append(updated, s.Pools[i].Name)
				}
			}
			got := summary{
				provisioned: strings.Join(provisioned, " "), updated: strings.Join(updated, " "),
				draining: strings.Join(plan.Draining, " "), surplus: strings.Join(plan.Surplus, " "),
				stopped: plan.Stopped, paused: plan.Paused, partitioned: plan.Partitioned, complete: plan.Complete,
			}
			if got != tc.want {
				t.Errorf("the summary is %+v, want %+v", got, tc.want)
			}
		})
	}
}
