package united

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden logs in testdata")

// TestRollouts simulates whole rollouts. People review the logs like prose.
func TestRollouts(t *testing.T) {
	stop := Strategy{MaxUpdating: 1}
	for name, play := range map[string]func(t *testing.T) *world{
		"in-order": func(t *testing.T) *world {
			w := newWorld(t, 1, stop, "a", "b", "c")
			w.release("r1")
			w.run(50)
			w.release("r2")
			w.run(50)
			return w
		},
		"two-at-once": func(t *testing.T) *world {
			w := newWorld(t, 2, Strategy{MaxUpdating: 2}, "a", "b", "c", "d", "e")
			w.release("r1")
			w.run(50)
			w.release("r2")
			w.run(80)
			return w
		},
		"a-failure-stops-then-rollback": func(t *testing.T) *world {
			w := newWorld(t, 3, stop, "a", "b", "c")
			w.release("r1")
			w.run(50)
			w.broken["b"] = []string{"r2"}
			w.release("r2")
			w.run(80)
			w.release("r1")
			w.run(80)
			return w
		},
		"a-failure-stops-then-fix": func(t *testing.T) *world {
			w := newWorld(t, 4, stop, "a", "b", "c")
			w.release("r1")
			w.run(50)
			w.broken["*"] = []string{"r2"}
			w.release("r2")
			w.run(80)
			w.release("r3")
			w.run(80)
			return w
		},
		"a-failure-and-on-with-it": func(t *testing.T) *world {
			w := newWorld(t, 5, Strategy{MaxUpdating: 1, Continue: true}, "a", "b", "c")
			w.release("r1")
			w.run(50)
			w.broken["b"] = []string{"r2"}
			w.release("r2")
			w.run(80)
			return w
		},
		"a-pool-is-added-and-one-removed-midway": func(t *testing.T) *world {
			w := newWorld(t, 6, stop, "a", "b", "c")
			w.release("r1")
			w.run(50)
			w.release("r2")
			w.step()
			w.add("d")
			w.logf("-- d is added, b removed")
			w.state.Pools = slices.DeleteFunc(w.state.Pools, func(p Pool) bool { return p.Name == "b" })
			w.run(80)
			return w
		},
		"a-removed-pool-comes-back": func(t *testing.T) *world {
			w := newWorld(t, 12, stop, "a", "b")
			w.release("r1")
			w.run(50)
			w.logf("-- b is removed")
			b := w.state.Pools[1]
			w.state.Pools = w.state.Pools[:1]
			w.step()
			w.logf("-- b is added back")
			w.state.Pools = append(w.state.Pools, b)
			w.run(50)
			return w
		},
		"partition-then-pause-then-on": func(t *testing.T) *world {
			w := newWorld(t, 7, Strategy{MaxUpdating: 1, Partition: 2}, "a", "b", "c")
			w.release("r1")
			w.run(50)
			w.release("r2")
			w.run(50)
			w.logf("-- the partition is lowered, and it is paused")
			w.state.Strategy = Strategy{MaxUpdating: 1, Partition: 1, Paused: true}
			w.run(50)
			w.logf("-- on")
			w.state.Strategy = stop
			w.run(50)
			return w
		},
		"a-new-release-midway": func(t *testing.T) *world {
			w := newWorld(t, 8, stop, "a", "b", "c")
			w.release("r1")
			w.run(50)
			w.release("r2")
			for range 4 {
				w.step()
			}
			w.release("r3")
			w.run(80)
			return w
		},
		"a-pool-that-was-never-up-stops-nobody": func(t *testing.T) *world {
			w := newWorld(t, 9, stop, "a", "b", "c")
			w.broken["a"] = []string{"r1", "r2"}
			w.release("r1")
			w.run(50)
			w.release("r2")
			w.run(80)
			return w
		},
		"scaled-and-edited-in-the-middle": func(t *testing.T) *world {
			w := newWorld(t, 10, stop, "a", "b", "c")
			w.release("r1")
			w.run(50)
			w.release("r2")
			w.step()
			w.logf("-- c is scaled to 5, b edited by hand")
			w.state.Pools[2].Replicas = 5
			w.children["web-b"].Edited = true
			w.run(80)
			return w
		},
		"leftovers-and-orphans": func(t *testing.T) *world {
			w := newWorld(t, 11, stop, "a", "b")
			w.children["web-a"] = &child{Child: Child{Name: "web-a", Pool: "a", Owner: Unowned, Replicas: 2, Revision: "r0", PoolRevision: "?"}}
			w.children["web-a-2"] = &child{Child: Child{Name: "web-a-2", Pool: "a", Owner: Unowned, Created: 9}}
			w.children["old"] = &child{Child: Child{Name: "old", Pool: "gone", Created: 1}}
			w.children["strange"] = &child{Child: Child{Name: "strange", Pool: "gone", Owner: Unowned}}
			w.release("r1")
			w.run(50)
			w.logf("-- a second workload of b")
			w.children["web-b-2"] = &child{Child: Child{Name: "web-b-2", Pool: "b", Created: 5, Revision: "r1", PoolRevision: "r1/b", Replicas: 2}}
			w.run(50)
			return w
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := play(t).log.String()
			file := filepath.Join("testdata", name+".log")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("another rollout (-want +got):\n%s", diff)
			}
		})
	}
}
