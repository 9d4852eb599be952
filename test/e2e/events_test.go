package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// eventsAbout returns atoll-manager's events about a node, and how often they happened.
func (f *fixture) eventsAbout(node string) (events []eventsv1.Event, times int) {
	f.Helper()
	list, err := f.kube.EventsV1().Events(metav1.NamespaceDefault).List(f.ctx, metav1.ListOptions{})
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Regarding.Kind != "Node" || e.Regarding.Name != node || !strings.Contains(e.ReportingController, "atoll") {
			continue
		}
		events = append(events, e)
		times++
		if e.Series != nil {
			times += int(e.Series.Count) - 1
		}
	}
	return events, times
}

// TestFlappingNodeWritesFewEvents: a node that moves between two pools a hundred times has
// ten events at once, and then one in half a minute, which tells how many were not written.
// (Seen before: 207 events.)
func TestFlappingNodeWritesFewEvents(t *testing.T) {
	tier.All(t, "lets a node change, and counts by the time that this took: 15 s")
	f := newFixture(t)
	f.nodes(nil, "flips-0")
	pools := []string{"flips-a", "flips-b"}
	f.pools(poolOf(pools[0], given("a")), poolOf(pools[1], given("b")))
	began := time.Now()
	flip := func(i int) {
		f.Helper()
		f.join("flips-0", pools[i%2])
		f.becomes("flips-0", pools[i%2], carrying([]string{"a", "b"}[i%2]))
	}
	for i := range 100 {
		flip(i)
	}
	f.eventually(patience, "the first events are written", func() error {
		if events, _ := f.eventsAbout("flips-0"); len(events) < 10 {
			return fmt.Errorf("there are %d", len(events))
		}
		return nil
	})
	few := func() {
		f.Helper()
		took := time.Since(began)
		events, times := f.eventsAbout("flips-0")
		if most := 20 + int(took/(15*time.Second)); len(events) > most || times > most {
			t.Errorf("there are %d events, which happened %d times in %s, want at most %d", len(events), times, took.Round(time.Second), most)
		}
	}
	few()
	next := 100
	f.eventually(patience, "an event tells how many were not written", func() error {
		flip(next)
		next++
		events, _ := f.eventsAbout("flips-0")
		for _, e := range events {
			if strings.HasSuffix(e.Note, "more events with this reason were not written)") {
				return nil
			}
		}
		return fmt.Errorf("none of %d does", len(events))
	})
	few()
	f.checkLog(atoll.Manager)
}

// checkLog reports entries of the log of a replica that are not one JSON object of bounded
// length: libraries that write with a logger of their own would leave such entries.
func (f *fixture) checkLog(process string) {
	f.Helper()
	raw, err := os.ReadFile(f.cluster.LogPath(process))
	if err != nil {
		f.Fatal(err)
	}
	entries := strings.SplitAfter(string(raw), "\n")
	for _, entry := range entries[:len(entries)-1] { // the last one may not be complete
		if !json.Valid([]byte(entry)) || len(entry) > 50_000 {
			f.Errorf("the log of %s has an entry of %d bytes: %.300q", process, len(entry), entry)
		}
	}
	if len(entries) < 10 {
		f.Errorf("the log of %s has %d entries", process, len(entries))
	}
}
