package united

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
)

// world is a simulated cluster. A workload reaches the state of its spec a few ticks after a
// write.
type world struct {
	t        *testing.T
	log      strings.Builder
	random   *rand.Rand
	state    State
	children map[string]*child
	tick     int
	// broken are the revisions whose pods never become available, by pool; "*" is every pool.
	broken map[string][]string
	// refuses are the pools whose writes fail.
	refuses map[string]bool
	last    map[string]apps.PoolPhase
}

type child struct {
	Child
	// due is the tick at which the pods match the spec.
	due int
}

func newWorld(t *testing.T, seed uint64, strategy Strategy, pools ...string) *world {
	w := &world{
		t: t, random: rand.New(rand.NewPCG(seed, 0)), children: map[string]*child{},
		broken: map[string][]string{}, refuses: map[string]bool{}, last: map[string]apps.PoolPhase{},
	}
	w.state = State{Strategy: strategy, HasReplicas: true}
	for _, name := range pools {
		w.add(name)
	}
	return w
}

func (w *world) add(name string) {
	w.state.Pools = append(w.state.Pools, Pool{Name: name, Replicas: 2})
}

func (w *world) logf(format string, args ...any) {
	fmt.Fprintf(&w.log, "%3d  "+format+"\n", append([]any{w.tick}, args...)...)
}

// release sets the update revision.
func (w *world) release(revision string) {
	w.state.Update = revision
	w.logf("-- release %s", revision)
}

// observe sets the planner's input.
func (w *world) observe() {
	w.state.Children = nil
	for _, name := range slices.Sorted(maps.Keys(w.children)) {
		c := w.children[name]
		ok := !slices.Contains(w.broken[c.Pool], c.Revision) && !slices.Contains(w.broken["*"], c.Revision)
		c.RolloutComplete, c.Available = w.tick >= c.due && ok, w.tick >= c.due && ok
		if !ok && w.tick >= c.due+5 {
			c.Failure = "no progress"
		}
		c.Drained = c.Replicas == 0
		if c.RolloutComplete && c.Available {
			c.Settled, c.Established = true, true
		}
		w.state.Children = append(w.state.Children, c.Child)
	}
	for i := range w.state.Pools {
		p := &w.state.Pools[i]
		p.Refused, p.Contents = false, map[string]string{w.state.Update: content(w.state.Update, p.Name)}
		if c := w.children["web-"+p.Name]; c != nil {
			p.Contents[c.Revision] = content(c.Revision, p.Name)
		}
	}
	w.state.Base = w.state.Current
}

// content returns the PoolRevision of a pool at a revision.
func content(revision, pool string) string { return revision + "/" + pool }

// step is one pass of the controller, then one tick of time.
func (w *world) step() Plan {
	w.t.Helper()
	w.observe()
	plan := w.state.Plan()
	for i, out := range plan.Pools {
		name := w.state.Pools[i].Name
		if w.last[name] != out.Phase {
			w.logf("%-8s %s", name, out.Phase)
			w.last[name] = out.Phase
		}
	}
	for _, a := range plan.Actions {
		w.execute(a)
	}
	if plan.Complete && w.state.Current != w.state.Update {
		w.state.Current = w.state.Update
		w.logf("-- current is %s", w.state.Current)
	}
	w.tick++
	return plan
}

func (w *world) execute(a Action) {
	if w.refuses[a.Pool] {
		w.logf("REFUSED %s", a)
		return
	}
	w.logf("%s", a)
	late := 1 + w.random.IntN(3)
	pool := slices.IndexFunc(w.state.Pools, func(p Pool) bool { return p.Name == a.Pool })
	switch c := w.children[a.Child]; a.Verb {
	case Create:
		w.children["web-"+a.Pool] = &child{due: w.tick + late, Child: Child{
			Name: "web-" + a.Pool, Pool: a.Pool, Revision: a.Revision, PoolRevision: content(a.Revision, a.Pool),
			Replicas: w.state.Pools[pool].Replicas,
		}}
	case Update, Restore:
		if a.Verb == Update {
			c.Settled = false
		}
		c.Revision, c.PoolRevision, c.Edited, c.Failure, c.due = a.Revision, content(a.Revision, a.Pool), false, "", w.tick+late
		c.Replicas, c.Partition = w.state.Pools[pool].Replicas, w.state.Pools[pool].Partition
	case Scale:
		c.Replicas, c.Partition = w.state.Pools[pool].Replicas, w.state.Pools[pool].Partition
	case Drain:
		c.Replicas--
	case Adopt:
		c.Owner = Ours
	case Delete:
		delete(w.children, a.Child)
	}
}

// run steps until nothing is left to do, at most n times.
func (w *world) run(n int) {
	w.t.Helper()
	idle := 0
	for range n {
		plan := w.step()
		idle++
		if len(plan.Actions) > 0 || slices.ContainsFunc(plan.Pools, func(o Outlook) bool { return o.Phase == apps.PoolUpdating }) {
			idle = 0
		}
		if idle > 6 {
			w.logf("-- at rest")
			return
		}
	}
	w.t.Fatalf("not at rest after %d ticks:\n%s", n, w.log.String())
}
