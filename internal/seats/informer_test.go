package seats

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
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
	informer := NewInformer(ledger, api.Client(), func(_ *ownership.Reference, labels map[string]string) string {
		return ownership.Revision(labels, *label.Load())
	})
	expect := func(when, revision string, pods int) {
		t.Helper()
		build.Eventually(t, when, func() bool {
			return informer.HasSynced() && counts(ledger, Cohort{Owner: "rs", Revision: revision})["hz"] == pods
		})
	}
	informer.Relist() // nothing runs yet
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- informer.Start(ctx) }()
	expect("at first", "hash", 2)
	label.Store(new("cut"))
	informer.Relist()
	expect("after the label changed", "deep", 2)
	if got := counts(ledger, Cohort{Owner: "rs", Revision: "hash"}); len(got) != 0 {
		t.Errorf("%v pods are still counted as before", got)
	}
	api.Put(build.Pod("c", labels...))
	expect("a pod that came later", "deep", 3)
	for range 5 {
		informer.Relist()
	}
	expect("asked often", "deep", 3)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestAReplicaThatComesToLeadTrustsNoListThatBeganBefore, and lists pods once
// more, not twice.
func TestAReplicaThatComesToLeadTrustsNoListThatBeganBefore(t *testing.T) {
	api := build.NewAPI(t, build.Pod("a", build.OwnedBy(build.ReplicaSet("rs")), build.On("node-hz")))
	ledger := NewLedger(testingclock.NewFakeClock(time.Unix(1_000_000, 0)))
	ledger.ObserveNode(Node{Name: "node-hz", Group: "hz"})
	listed, leads := make(chan struct{}), make(chan struct{})
	var once sync.Once
	informer := NewInformer(ledger, api.Client(), func(*ownership.Reference, map[string]string) string {
		once.Do(func() {
			close(listed)
			<-leads
		})
		return ""
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- informer.Start(ctx) }()
	<-listed
	caught := make(chan error)
	go func() { caught <- informer.CatchUp(ctx) }()
	build.Eventually(t, "it is asked to begin anew", func() bool {
		informer.mu.Lock()
		defer informer.mu.Unlock()
		return informer.asked > 0
	})
	close(leads)
	if err := <-caught; err != nil || !informer.HasSynced() || counts(ledger, Cohort{Owner: "rs"})["hz"] != 1 {
		t.Errorf("caught up with %v, error %v", counts(ledger, Cohort{Owner: "rs"}), err)
	}
	if n := api.Lists(); n != 2 {
		t.Errorf("%d lists, want the one that was under way and one more", n)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestAListIsGatheredSlim: what the reflector holds until a list is complete is
// what is kept, and the ledger comes to the same from it as from whole pods.
func TestAListIsGatheredSlim(t *testing.T) {
	ledger := NewLedger(testingclock.NewFakeClock(time.Unix(1_000_000, 0)))
	var store cache.ReflectorStore = NewInformer(ledger, nil, func(*ownership.Reference, map[string]string) string { return "r" })
	transforming, ok := store.(cache.TransformingStore)
	if !ok {
		t.Fatal("whole pods are gathered")
	}
	slim, err := transforming.Transformer()(build.Pod("slim", build.On("node")))
	if _, whole := slim.(*corev1.Pod); whole || err != nil {
		t.Errorf("gathered is %T, error %v", slim, err)
	}
	if err := store.Replace([]any{slim, build.Pod("whole", build.On("node"))}, "1"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"slim", "whole"} {
		if pod := ledger.Pod(types.UID(name)); pod == nil || pod.Node != "node" || pod.Revision != "r" {
			t.Errorf("%s pod is %+v", name, pod)
		}
	}
	if err := store.Replace(nil, "2"); err != nil || ledger.Pod("slim") != nil || ledger.Pod("whole") != nil {
		t.Errorf("what a list does not hold stays, error %v", err)
	}
}
