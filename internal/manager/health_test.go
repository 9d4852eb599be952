package manager

import (
	"testing"

	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestAReplicaWhoseLockIsHeldIsNotReady: requests to such a replica would wait without end.
func TestAReplicaWhoseLockIsHeldIsNotReady(t *testing.T) {
	p, _ := connected(t)
	for range 3 {
		if err := p.responsive(nil); err != nil {
			t.Fatal(err)
		}
	}
	release, held := make(chan struct{}), make(chan struct{})
	stuck := p.probe.begin(func() {
		close(held)
		<-release
	})
	<-held
	for range 2 { // a second probe starts no second attempt
		if err := p.responsive(nil); err == nil {
			t.Error("a replica whose lock is held is Ready")
		}
	}
	close(release)
	<-stuck
	if err := p.responsive(nil); err != nil {
		t.Error(err)
	}
}

// TestRelistLeavesAReplicaReady: otherwise an edit of the ConfigMap would
// make all replicas not Ready at once.
func TestRelistLeavesAReplicaReady(t *testing.T) {
	p, s := connected(t)
	if p.listed(nil) == nil {
		t.Fatal("Ready before anything was listed")
	}
	api := build.NewAPI(t)
	p.walker = owners.NewWalker(api.Client())
	p.informer = seats.NewInformer(p.ledger, api.Client(), p.walker.Revision)
	go func() { _ = p.walker.Start(t.Context()) }()
	go func() { _ = p.informer.Start(t.Context()) }()
	go func() { _ = s.informers.Start(t.Context()) }()
	build.Eventually(t, "everything is listed", func() bool { return p.listed(nil) == nil })
	p.informer.Relist()
	if err := p.listed(nil); err != nil {
		t.Error(err)
	}
}
