package manager

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// errTenureOver is returned for a write of a replica that led and did not renew the
// Lease in time. Another replica may lead by now.
var errTenureOver = errors.New("the Lease was not renewed in time: another replica may lead")

// tenure is the time for which this replica holds the Lease. The leader election notices
// the loss of the Lease only at its next attempt to renew it. A process that was paused, or
// whose machine was suspended, would continue as a second leader until then. So tenure is
// checked before each answer to a webhook or extender request, and before each write.
type tenure struct {
	// bounded is true if there is a leader election. Without one this replica always
	// leads.
	bounded bool
	// duration is how long after a renewal no other replica can take over.
	duration time.Duration
	// now is time.Now, replaced in tests.
	now func() time.Time

	mu      sync.Mutex
	renewed time.Time // when the last successful renewal was sent; zero after a release
	hasLed  bool
}

// holds returns true if this replica leads and no other replica can lead now. It compares the monotonic clock
// and the wall clock: the monotonic clock stands still while a machine is suspended, and
// the wall clock may be set back.
func (t *tenure) holds() bool {
	if !t.bounded {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	return t.hasLed && now.Sub(t.renewed) < t.duration && now.Round(0).Sub(t.renewed.Round(0)) < t.duration
}

// over returns true if this replica has led and another may lead now.
func (t *tenure) over() bool {
	t.mu.Lock()
	hasLed := t.hasLed
	t.mu.Unlock()
	return hasLed && !t.holds()
}

// record records a write of the Lease that was sent at the given time. ours is true if
// it names this replica as the holder.
func (t *tenure) record(sent time.Time, ours bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case ours:
		t.renewed, t.hasLed = sent, true
	case t.hasLed: // this replica releases the Lease
		t.renewed = time.Time{}
	}
}

// lock is the lock of the Lease. It records renewals and releases in the tenure.
type lock struct {
	resourcelock.Interface
	tenure *tenure
}

func (l lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(record, func() error { return l.Interface.Create(ctx, record) })
}

func (l lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(record, func() error { return l.Interface.Update(ctx, record) })
}

// write sends the record and updates the tenure. A renewal counts after the request has
// succeeded. A release counts before the request is sent, because it may take effect although
// the response is lost.
func (l lock) write(record resourcelock.LeaderElectionRecord, send func() error) error {
	sent := l.tenure.now()
	ours := record.HolderIdentity == l.Identity()
	if !ours {
		l.tenure.record(sent, false)
	}
	err := send()
	if err == nil && ours {
		l.tenure.record(sent, true)
	}
	return err
}

// fence wraps a transport so that all writes fail while the tenure of this replica is
// over: they would be based on old observations. See ofEveryReplica for exceptions.
func (t *tenure) fence(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodGet && t.over() && !ofEveryReplica(r.URL.Path) {
			if r.Body != nil {
				_ = r.Body.Close()
			}
			return nil, errTenureOver
		}
		return next.RoundTrip(r)
	})
}

// ofEveryReplica returns true for paths to which replicas write whether they lead or
// not: the Lease, and reviews of tokens and permissions.
func ofEveryReplica(path string) bool {
	for _, group := range []string{"coordination.k8s.io", "authentication.k8s.io", "authorization.k8s.io"} {
		if strings.HasPrefix(path, "/apis/"+group+"/") {
			return true
		}
	}
	return false
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
