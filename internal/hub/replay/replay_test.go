package replay

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/atoll-k8s/atoll/internal/hub/journal"
)

// slowCloud has just become reachable, takes long for a Lease, and reports other writes.
type slowCloud struct {
	pause  time.Duration
	others chan string
}

func (c *slowCloud) AwaitReachable(ctx context.Context) (spread time.Duration, err error) {
	spread, c.pause = c.pause, 0
	return spread, ctx.Err()
}

func (c *slowCloud) RoundTrip(r *http.Request, _ bool) (*http.Response, error) {
	if strings.Contains(r.URL.Path, "/leases/") {
		time.Sleep(50 * time.Millisecond)
	} else {
		c.others <- r.URL.Path
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("{}")), Header: http.Header{}}, nil
}

// TestTheRestFollowsALeaseThatTookLong: it is sent when the pause of the rest is over, also if that ends while the
// Lease is sent, and not at the next attempt, half a minute later.
func TestTheRestFollowsALeaseThatTookLong(t *testing.T) {
	j, err := journal.Open(t.TempDir(), journal.Options{Log: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	const lease, event = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a", "/api/v1/namespaces/d/events/e"
	now := time.Now()
	body := fmt.Sprintf(`{"spec":{"leaseDurationSeconds":40,"renewTime":%q}}`, now.UTC().Format("2006-01-02T15:04:05.000000Z07:00"))
	for _, e := range []journal.Entry{
		{Kind: journal.Lease, Object: lease, Body: []byte(body), At: now, Method: http.MethodPut},
		{Kind: journal.Event, Object: event, Target: event, Body: []byte("{}"), At: now, Method: http.MethodPut},
	} {
		if err := j.Keep(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	cloud := &slowCloud{pause: 20 * time.Millisecond, others: make(chan string, 1)}
	r := &Replayer{Cloud: cloud, Journal: j, Log: logr.Discard()}
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { defer close(done); r.Run(ctx) }()
	defer func() { cancel(); <-done }()
	select {
	case got := <-cloud.others:
		if got != event {
			t.Errorf("%s was sent", got)
		}
	case <-time.After(maxSendAgain - sendAgain):
		t.Error("the event waits for the next attempt")
	}
}
