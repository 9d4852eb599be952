package pool

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-k8s/atoll/internal/governance"
)

func service(name, version string) governance.Item {
	return governance.Item{Ref: governance.Ref{Resource: "services", Namespace: "default", Name: name}, UID: name, Version: version}
}

// leader is a hub with one pod, in a pool with one Service.
type leader struct {
	*testing.T

	pool        *Pool
	wide        *wide
	coordinator *coordinator
	hasCloud    bool
}

func newLeaderRig(t *testing.T) *leader {
	n, w := node{}, &wide{node: node{}}
	n.put(pod("web", "1"))
	w.put(service("web", "1"))
	c := &coordinator{stored: map[governance.Ref]governance.Item{}, at: "a:1", leads: true}
	l := &leader{t, newLeader(n, w, c), w, c, true}
	l.pool.options.HasCloud = func() bool { return l.hasCloud }
	t.Cleanup(l.pool.lead.end)
	return l
}

// next is one round of Run, two seconds after the last.
func (l *leader) next() error {
	time.Sleep(governance.BeatEvery)
	_, err := l.pool.turn(l.Context())
	l.pool.lead.follow(l.Context())
	synctest.Wait()
	return err
}

func (l *leader) expect(leads bool, ofPool int) {
	l.Helper()
	if err := l.next(); err != nil {
		l.Error(err)
	}
	if is := l.pool.Status().Leads; is != leads || l.wide.following != leads || len(l.coordinator.ofPool) != ofPool {
		l.Errorf("the hub leads: %t, follows: %t, and the coordinator has %d objects of the pool; want %t and %d", is, l.wide.following, len(l.coordinator.ofPool), leads, ofPool)
	}
}

// TestOnlyTheLeadingHubUploadsPoolObjects: an object that is deleted in the cloud is removed from the
// coordinator.
func TestOnlyTheLeadingHubUploadsPoolObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeaderRig(t)
		l.coordinator.leads = false
		l.expect(false, 0)
		l.coordinator.leads = true
		l.expect(true, 0)
		l.expect(true, 1)
		l.wide.put(service("db", "2"))
		l.expect(true, 2)
		delete(l.wide.node, service("web", "1").Ref)
		l.expect(true, 1)
		l.coordinator.leads = false
		l.expect(false, 1)
		l.wide.put(service("new", "3"))
		l.expect(false, 1)
		if beat := l.coordinator.beats[len(l.coordinator.beats)-1]; beat.PoolDigest != "" {
			t.Errorf("the beat is %+v", beat)
		}
		l.coordinator.leads = true
		l.expect(true, 1)
		puts := len(l.coordinator.puts)
		l.expect(true, 2)
		if got := strings.Join(l.coordinator.puts[puts:], " "); got != "new" {
			t.Errorf("after another one has led %q are uploaded, want what the coordinator does not have", got)
		}
		l.hasCloud = false
		l.expect(false, 2)
	})
}

// TestNodeThatMovesReadsItsNewPool: also if its hub leads the new pool at once.
func TestNodeThatMovesReadsItsNewPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeaderRig(t)
		var pool atomic.Value
		pool.Store("edge")
		l.pool.options.Pool = func() string { return pool.Load().(string) } //nolint:forcetypeassert // see above
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			l.pool.Run(ctx)
		}()
		for want, name := range []string{"edge", "site"} {
			pool.Store(name)
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if !l.wide.following || l.wide.follows != want+1 {
				t.Errorf("in the pool %s it follows: %t, for the %d. time", name, l.wide.following, l.wide.follows)
			}
		}
		cancel()
		<-ended
	})
}

// TestLeadEndsIfNoBeatIsAnswered: by the hub's own clock, from when the last answered beat was sent.
func TestLeadEndsIfNoBeatIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeaderRig(t)
		l.pool.client.Transport = late{l.coordinator}
		l.expect(true, 0)
		sent := l.pool.beaten
		for time.Since(sent) < governance.LeadFor {
			if !l.pool.lead.Leads() {
				t.Fatalf("the hub does not lead any more %s after its beat", time.Since(sent))
			}
			time.Sleep(time.Second / 4)
		}
		if l.pool.lead.Leads() {
			t.Error("the hub still leads")
		}
		l.pool.lead.follow(t.Context())
		synctest.Wait()
		if l.wide.following {
			t.Error("the hub still reads what belongs to the pool")
		}
	})
}

// late answers after a second.
type late struct{ http.RoundTripper }

func (l late) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(time.Second)
	return l.RoundTripper.RoundTrip(r)
}

// TestAHubWithoutTheCloudDoesNotLead: from its first beat without the cloud, whether or not that beat is
// answered.
func TestAHubWithoutTheCloudDoesNotLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeaderRig(t)
		l.expect(true, 0)
		l.hasCloud, l.coordinator.at = false, "nowhere:1"
		if err := l.next(); err == nil || l.pool.lead.Leads() || l.wide.following {
			t.Errorf("the hub leads: %t, and follows: %t, %v", l.pool.lead.Leads(), l.wide.following, err)
		}
	})
}

// TestHubBeatsDuringALongUpload: so it still leads afterwards.
func TestHubBeatsDuringALongUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeaderRig(t)
		l.pool.client.Transport = late{l.coordinator}
		l.expect(true, 0)
		l.coordinator.most = 1 // for others there is no time in a second
		for i := range 20 {
			l.wide.put(service(fmt.Sprint(i), "2"))
		}
		for range 3 { // rounds of up to half a minute
			_ = l.next()
		}
		l.expect(true, 21)
		last := l.coordinator.beats[0]
		for _, beat := range l.coordinator.beats[1:] {
			if beat.Session != last.Session || beat.Number <= last.Number {
				t.Errorf("the beat %+v follows %+v", beat, last)
			}
			last = beat
		}
		if len(l.coordinator.beats) < 8 {
			t.Errorf("there were %d beats in %d uploads of a second", len(l.coordinator.beats), len(l.coordinator.puts))
		}
	})
}

// TestLostLeadIsNoRefusalOfAnObject: a 403 for pool objects then means that another hub leads.
func TestLostLeadIsNoRefusalOfAnObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeaderRig(t)
		l.expect(true, 0)
		l.coordinator.code, l.coordinator.failing = http.StatusForbidden, func(ref governance.Ref) bool { return ref.Resource == "services" }
		if err := l.next(); err == nil || l.pool.Status().Refused > 0 {
			t.Errorf("the error is %v, and the status %+v", err, l.pool.Status())
		}
		l.coordinator.code = 0
		l.expect(true, 1)
	})
}

// TestPoolObjectsAreBounded: the last ones are left out, and the status says so.
func TestPoolObjectsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeaderRig(t)
		l.expect(true, 0)
		for i := range governance.MaxPoolItems {
			l.wide.put(service(fmt.Sprintf("a-%05d", i), "2"))
		}
		err := l.next()
		if _, has := l.coordinator.ofPool[service("web", "").Ref]; has || len(l.coordinator.ofPool) != governance.MaxPoolItems {
			t.Errorf("there are %d objects, with the last one: %t", len(l.coordinator.ofPool), has)
		}
		if err == nil || !strings.Contains(l.pool.Status().Reason, "accepts only the first 10000") {
			t.Errorf("the error is %v, and the status %+v", err, l.pool.Status())
		}
	})
}

func TestUnreadablePoolObjectsDelayNoNodeObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeaderRig(t)
		l.pool.options.PoolSource = refused{l.wide}
		l.expect(true, 0)
		if err := l.next(); err == nil || !strings.Contains(l.pool.Status().Reason, "forbidden") || len(l.coordinator.stored) != 1 || !l.pool.lead.Leads() {
			t.Errorf("the error is %v, the status %+v, and the coordinator has %v", err, l.pool.Status(), l.coordinator.stored)
		}
	})
}

type refused struct{ *wide }

func (refused) Items() ([]governance.Item, error) { return nil, errors.New("forbidden") }

func (r refused) Follow(ctx context.Context) { r.wide.Follow(ctx) }
