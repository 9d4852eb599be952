package united

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
)

// away are the pools that an update took away and that have not come back.
// Those that failed count unless they are left behind.
func (w *world) away() int {
	n := 0
	for _, p := range w.state.Pools {
		if c := w.children["web-"+p.Name]; c != nil && c.Established && !c.Settled && (!w.state.Strategy.Continue || c.Failure == "") {
			n++
		}
	}
	return n
}

// TestRolloutsStayWithinBounds plays rollouts with pools that come and go, are
// scaled, edited, break and refuse: at no step are more pools taken away than
// allowed, and in the end every pool has one workload, as the last release says.
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

// check is one step. It may take pools away that are there only as long as no
// more of them are away than allowed, and writes to each workload once.
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
		children []Child
		want     []string
		phase    apps.PoolPhase
		complete bool
	}{
		"as it is to be": {
			pool: Pool{Replicas: 2}, children: []Child{at("r1")}, phase: apps.PoolReady, complete: true,
		},
		"A8: no replicas and none wanted is complete": {
			pool: Pool{Replicas: 0}, children: []Child{with(at("r1"), func(c *Child) { c.Replicas = 0 })}, phase: apps.PoolReady, complete: true,
		},
		"A1: scaling is no update": {
			pool: Pool{Replicas: 3}, children: []Child{at("r1")}, phase: apps.PoolReady,
			want: []string{"scale a (web-a): 3 replicas, not 2 replicas"},
		},
		"A4: of two the older is kept": {
			pool: Pool{Replicas: 2}, children: []Child{second, at("r1")}, phase: apps.PoolReady, complete: true,
			want: []string{"delete a (other): the pool has web-a too"},
		},
		"of two the one that is up is kept": {
			pool: Pool{Replicas: 2}, children: []Child{second, with(at("r1"), func(c *Child) { c.Available = false })}, phase: apps.PoolReady, complete: true,
			want: []string{"delete a (web-a): the pool has other too"},
		},
		"A9: what was edited is put back, while it waits too": {
			pool: Pool{Replicas: 2}, strategy: Strategy{Paused: true}, children: []Child{with(at("r0"), func(c *Child) { c.Edited = true })},
			want: []string{"restore a (web-a) at r0: it was edited by hand"}, phase: apps.PoolHeld,
		},
		"a partition is scaled, not updated": {
			pool: Pool{Replicas: 2, Partition: 1}, children: []Child{at("r1")}, phase: apps.PoolReady,
			want: []string{"scale a (web-a): 2 replicas, partition 1, not 2 replicas"},
		},
		"held in part, it is not complete": {
			pool: Pool{Replicas: 2, Partition: 1}, children: []Child{with(at("r1"), func(c *Child) { c.Partition = 1 })}, phase: apps.PoolReady,
		},
		"held whole": {
			pool: Pool{Replicas: 2}, strategy: Strategy{Partition: 1}, children: []Child{at("r0")}, phase: apps.PoolHeld,
		},
		"held whole, its patch goes on": {
			pool: Pool{Replicas: 2, Contents: map[string]string{"r0": "r0/a-patched"}}, strategy: Strategy{Partition: 1}, children: []Child{at("r0")}, phase: apps.PoolUpdating,
			want: []string{"update a (web-a) at r0: its turn, 1 of at most 1"},
		},
		"being deleted, its name is waited for": {
			pool: Pool{Replicas: 2}, children: []Child{with(at("r1"), func(c *Child) { c.Deleting = true })}, phase: apps.PoolPending,
		},
		"refused, nothing is tried again in the same pass": {
			pool: Pool{Replicas: 3, Refused: true}, children: []Child{at("r0")}, phase: apps.PoolFailed,
		},
		"its pods went away long after": {
			pool: Pool{Replicas: 2}, children: []Child{with(at("r1"), func(c *Child) { c.Available = false })}, phase: apps.PoolUnavailable,
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.pool.Name = "a"
			if tc.pool.Contents == nil {
				tc.pool.Contents = map[string]string{"r0": "r0/a", "r1": "r1/a"}
			}
			tc.strategy.MaxUpdating = 1
			s := State{Pools: []Pool{tc.pool}, Children: tc.children, Strategy: tc.strategy, Update: "r1", Current: "r1", Base: "r1", HasReplicas: true}
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
