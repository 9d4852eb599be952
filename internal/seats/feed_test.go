package seats

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestRelistCountsPodsByTheirNewRevisions: what tells revisions apart may
// change while pods run, and no pod changes with it.
func TestRelistCountsPodsByTheirNewRevisions(t *testing.T) {
	labels := []build.Option{build.Label("pod-template-hash", "hash"), build.Label("cut", "deep"), build.OwnedBy(build.ReplicaSet("rs")), build.On("node-hz")}
	api := build.NewAPI(t, build.Pod("a", labels...), build.Pod("b", labels...))
	ledger := NewLedger(testingclock.NewFakeClock(time.Unix(1_000_000, 0)))
	ledger.ObserveNode(Node{Name: "node-hz", Group: "hz"})
	var label atomic.Pointer[string]
	label.Store(new(""))
	feed := NewFeed(ledger, api.Client(), func(_ *ownership.Reference, labels map[string]string) string {
		return ownership.Revision(labels, *label.Load())
	})
	expect := func(when, revision string, pods int) {
		t.Helper()
		build.Eventually(t, when, func() bool {
			return feed.HasSynced() && counts(ledger, Cohort{Owner: "rs", Revision: revision})["hz"] == pods
		})
	}
	feed.Relist() // nothing runs yet
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- feed.Start(ctx) }()
	expect("at first", "hash", 2)
	label.Store(new("cut"))
	feed.Relist()
	expect("after the label changed", "deep", 2)
	if got := counts(ledger, Cohort{Owner: "rs", Revision: "hash"}); len(got) != 0 {
		t.Errorf("%v pods are still counted as before", got)
	}
	api.Put(build.Pod("c", labels...))
	expect("a pod that came later", "deep", 3)
	for range 5 {
		feed.Relist()
	}
	expect("asked often", "deep", 3)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
