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

// errTenureOver: this replica led, and another may lead by now.
var errTenureOver = errors.New("the Lease was not renewed in time: another replica may lead")

// tenure is the time for which this replica holds the Lease. The election notices
// only at its next attempts that it lost it: a process that was stopped, or whose
// machine was, would go on as before for that long, beside the one that leads. So the
// time is looked at with each answer and each write.
type tenure struct {
	// bounded: there is an election. Without one a replica always leads.
	bounded bool
	// lasts is how long a renewal counts: nobody else takes over before.
	lasts time.Duration
	// now is the time; time.Now but in tests.
	now func() time.Time

	mu      sync.Mutex
	renewed time.Time // before the last request that renewed the Lease was sent
	ever    bool      // this replica has led
}

// holds tells whether no other replica can lead. Both clocks are looked at: the one
// that cannot be set stands still while a machine is suspended.
func (t *tenure) holds() bool {
	if !t.bounded {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	return t.ever && now.Sub(t.renewed) < t.lasts && now.Round(0).Sub(t.renewed.Round(0)) < t.lasts
}

// over tells whether this replica led, and another may lead now.
func (t *tenure) over() bool {
	t.mu.Lock()
	ever := t.ever
	t.mu.Unlock()
	return ever && !t.holds()
}

// note takes note of an answered request about the Lease that was sent at a time.
func (t *tenure) note(sent time.Time, ours bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case ours:
		t.renewed, t.ever = sent, true
	case t.ever: // given back
		t.renewed = time.Time{}
	}
}

// lock is the Lease's lock, which says when it was renewed.
type lock struct {
	resourcelock.Interface
	tenure *tenure
}

func (l lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.noted(record, func() error { return l.Interface.Create(ctx, record) })
}

func (l lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.noted(record, func() error { return l.Interface.Update(ctx, record) })
}

func (l lock) noted(record resourcelock.LeaderElectionRecord, write func() error) error {
	sent := l.tenure.now()
	ours := record.HolderIdentity == l.Identity()
	if !ours {
		l.tenure.note(sent, false) // whatever becomes of the write
	}
	err := write()
	if err == nil && ours {
		l.tenure.note(sent, true)
	}
	return err
}

// fence lets a replica whose tenure is over write nothing any more: what it is about
// to write was decided by what was the case long ago.
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

// ofEveryReplica: who leads or does not writes there, the Lease itself among it.
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
