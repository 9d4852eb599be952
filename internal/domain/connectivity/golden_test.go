package connectivity

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden logs in testdata")

// TestOutages simulates whole outages. People review the logs like prose.
func TestOutages(t *testing.T) {
	for name, play := range map[string]func(w *world){
		"one-node-is-cut-and-back": func(w *world) {
			w.cut("n2", true)
			w.run(10 * time.Minute)
			w.cut("n2", false)
			w.run(5 * time.Minute)
		},
		"one-node-dies": func(w *world) {
			w.die("n2")
			w.run(10 * time.Minute)
		},
		"one-node-is-cut-then-dies": func(w *world) {
			w.cut("n2", true)
			w.run(5 * time.Minute)
			w.die("n2")
			w.run(8 * time.Minute)
		},
		"the-leader-is-cut": func(w *world) {
			w.cut("n1", true)
			w.run(3 * time.Minute)
			w.cut("n1", false)
			w.run(3 * time.Minute)
		},
		"the-coordinators-node-dies-while-another-is-cut": func(w *world) {
			w.cut("n2", true)
			w.run(2 * time.Minute)
			w.die("n1")
			w.run(4 * time.Minute)
			w.coordinator = "n3"
			w.logf("-- the coordinator is on n3")
			w.run(8 * time.Minute)
		},
		"the-coordinators-node-dies-and-nobody-observes": func(w *world) {
			w.cut("n2", true)
			w.run(2 * time.Minute)
			w.die("n1")
			w.run(12 * time.Minute)
		},
		"the-pool-is-cut-one-was-dead": func(w *world) {
			w.die("n2")
			w.run(2 * time.Minute)
			w.cutAll(true)
			w.run(10 * time.Minute)
			w.cutAll(false)
			w.run(3 * time.Minute)
		},
		"the-pool-is-back-with-one-dead": func(w *world) {
			w.cutAll(true)
			w.run(5 * time.Minute)
			w.die("n2")
			w.run(5 * time.Minute)
			w.cutAll(false)
			w.run(8 * time.Minute)
		},
		"the-pool-is-cut-for-longer-than-frozenlimit": func(w *world) {
			limit := 5 * time.Minute
			w.frozenLimit, w.pool.FrozenLimit = &limit, &limit
			w.cutAll(true)
			w.run(11 * time.Minute)
		},
		"the-manager-restarts-each-20-s-a-node-dies": func(w *world) {
			w.die("n2")
			w.restarts(8 * time.Minute)
		},
		"the-manager-restarts-each-20-s-the-pool-is-cut": func(w *world) {
			w.cutAll(true)
			w.restarts(8 * time.Minute)
		},
		"the-api-server-is-away-for-10-minutes": func(w *world) {
			w.apiAway = true
			w.logf("-- the API server is away")
			w.run(10 * time.Minute)
			w.apiAway = false
			w.logf("-- the API server is back")
			w.run(5 * time.Minute)
		},
		"a-link-flaps": func(w *world) {
			w.logf("-- the link of n2 is off for 5 s, on for 5 s, and so on")
			for range 60 {
				w.nodes["n2"].isCut = true
				w.run(5 * time.Second)
				w.nodes["n2"].isCut = false
				w.run(5 * time.Second)
			}
			if w.writes > 0 {
				w.t.Errorf("%d writes", w.writes)
			}
		},
		"the-coordinator-is-deleted-while-a-node-is-cut": func(w *world) {
			w.cut("n2", true)
			w.run(2 * time.Minute)
			w.coordinator, w.pool.HasCoordinator = "", false
			w.logf("-- the YurtCoordinator is deleted")
			w.run(6 * time.Minute)
			w.cut("n2", false)
			w.run(2 * time.Minute)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "n1", "n2", "n3", "n4")
			w.run(time.Minute)
			play(w)
			got := w.log.String()
			file := filepath.Join("testdata", name+".golden")
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
				t.Errorf("another outage (-want +got):\n%s", diff)
			}
		})
	}
}

func (w *world) cut(name string, isCut bool) {
	w.nodes[name].isCut = isCut
	w.logf("-- %s %s", name, map[bool]string{true: "is cut off from the cloud", false: "has the cloud again"}[isCut])
}

func (w *world) cutAll(isCut bool) {
	for _, name := range w.names() {
		w.nodes[name].isCut = isCut
	}
	w.logf("-- the whole pool %s", map[bool]string{true: "is cut off from the cloud", false: "has the cloud again"}[isCut])
}

func (w *world) die(name string) {
	w.nodes[name].isDead = true
	w.logf("-- %s dies", name)
}

func (w *world) restarts(d time.Duration) {
	w.logf("-- from now on the manager restarts each 20 s")
	for end := w.now.Add(d); w.now.Before(end); {
		w.run(20 * time.Second)
		w.restart()
	}
}
