package uplink

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/atoll-k8s/atoll/internal/testing/build"
)

func anyCertificate() (*tls.Certificate, error) { return &tls.Certificate{}, nil }

func noCertificate() (*tls.Certificate, error) { return nil, errors.New("there is none") }

// TestUnreadyServerStillCountsAsOnline: a failed check of /readyz does not mean offline while requests are
// answered. Writes are sent.
func TestUnreadyServerStillCountsAsOnline(t *testing.T) {
	c := newCloud(t)
	u := newUplink(t, c)
	await(t, u, Online)
	c.unready.Store(true)
	before, began := c.ready.Load(), time.Now()
	build.Eventually(t, "it was asked often for longer than the silence", func() bool {
		if _, err := ask(t, u, "/error"); err != nil { // so that the question is asked again at once
			t.Fatal(err)
		}
		return c.ready.Load() >= before+3*downAfter && time.Since(began) > 2*u.silence
	})
	if e, reason := u.Evidence(); e.State != Online || e.Failures > 0 {
		t.Fatalf("the state is %+v: %v", e, reason)
	}
	if err := send(t, u, http.MethodPut, "/", strings.NewReader("x")); err != nil || c.writes.Load() != 1 {
		t.Errorf("a write: %v, %d", err, c.writes.Load())
	}
	unready := u.Unready()
	if unready.Reason == nil || !strings.Contains(unready.Reason.Error(), "is not ready: it answers 500") || unready.Since.Before(began) {
		t.Errorf("it is told as %+v", unready)
	}
	c.unready.Store(false)
	u.ask(t.Context())
	if unready := u.Unready(); unready.Reason != nil || !unready.Since.IsZero() {
		t.Errorf("with a server that is ready it is told as %+v", unready)
	}
}

// TestAnswersOfAnUnreadyServerSetTheState: a server that starts may refuse what it will allow. Such a refusal
// neither begins nor ends an outage.
func TestAnswersOfAnUnreadyServerSetTheState(t *testing.T) {
	type states struct{ fromOnline, fromOffline State }
	serves, fails, undecided := states{Online, Online}, states{Offline, Offline}, states{Online, Offline}
	for _, tc := range []struct {
		code        int
		certificate func() (*tls.Certificate, error)
		want        states
	}{
		{http.StatusOK, anyCertificate, serves},
		{http.StatusNotFound, anyCertificate, serves}, // the node has no Lease yet
		{http.StatusUnauthorized, anyCertificate, serves},
		{http.StatusForbidden, anyCertificate, undecided},
		{http.StatusTooManyRequests, anyCertificate, undecided},
		{http.StatusInternalServerError, anyCertificate, fails},
		{http.StatusServiceUnavailable, anyCertificate, fails},
		{http.StatusUnauthorized, noCertificate, serves},
		{http.StatusForbidden, noCertificate, serves},
		{http.StatusServiceUnavailable, noCertificate, fails},
	} {
		_, err := tc.certificate()
		t.Run(fmt.Sprint(tc.code, ", certificate: ", err == nil), func(t *testing.T) {
			c := newCloud(t)
			u := newStill(t, tc.certificate, c)
			u.answerWithin, u.silence = 10*time.Second, 0
			several := func() {
				for range downAfter {
					u.ask(t.Context())
				}
			}
			state := func(want State) {
				t.Helper()
				if e, reason := u.Evidence(); e.State != want {
					t.Errorf("the state is %s, want %s: %v", e.State, want, reason)
				}
			}
			several()
			state(Online)
			c.unready.Store(true)
			c.refusal.Store(int32(tc.code))
			several()
			state(tc.want.fromOnline)
			c.refusal.Store(http.StatusServiceUnavailable)
			several()
			state(Offline)
			c.refusal.Store(int32(tc.code))
			several()
			state(tc.want.fromOffline)
		})
	}
}

// TestServerWithoutReadyzIsProbedAsTheNode: without anonymous requests /readyz is refused also by a server whose
// etcd hangs, so the answer to the node decides.
func TestServerWithoutReadyzIsProbedAsTheNode(t *testing.T) {
	for _, code := range []int32{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound} {
		c := newCloud(t)
		u := newStill(t, anyCertificate, c)
		u.answerWithin, u.silence = 10*time.Second, 0
		c.mute.Store(code)
		several := func() State {
			for range downAfter {
				u.ask(t.Context())
			}
			e, _ := u.Evidence()
			return e.State
		}
		if got := several(); got != Online || u.Unready().Reason != nil {
			t.Errorf("with %d, and an answer to the node, the state is %s, and told is %+v", code, got, u.Unready())
		}
		c.unready.Store(true)
		c.refusal.Store(http.StatusInternalServerError)
		if got := several(); got != Offline {
			t.Errorf("with %d, and no answer to the node, the state is %s", code, got)
		}
	}
}

// TestAServerThatIsReadyIsPreferred: if none is ready, a server that answers is preferred.
func TestAServerThatIsReadyIsPreferred(t *testing.T) {
	current := func(u *Uplink) int { return u.inTurn()[0] }
	first, second := newCloud(t), newCloud(t)
	u := newStill(t, anyCertificate, first, second)
	u.answerWithin = 10 * time.Second
	first.unready.Store(true)
	u.ask(t.Context())
	if got := current(u); got != 1 {
		t.Fatalf("server %d is asked first", got)
	}
	u.observe(0, 0, nil) // a late answer of the other one
	if got := current(u); got != 1 {
		t.Errorf("a late answer leads back to server %d", got)
	}
	if err := send(t, u, http.MethodPut, "/", nil); err != nil || second.writes.Load() != 1 {
		t.Errorf("a write: %v, %d", err, second.writes.Load())
	}
	second.unready.Store(true)
	second.refusal.Store(http.StatusServiceUnavailable)
	u.ask(t.Context())
	if got := current(u); got != 0 {
		t.Errorf("of two that are not ready, server %d is asked first, and it refuses all", got)
	}
	first.Close()
	second.refusal.Store(0)
	u.ask(t.Context())
	if e, reason := u.Evidence(); current(u) != 1 || e.State != Online {
		t.Errorf("server %d is asked first, the state is %s: %v", current(u), e.State, reason)
	}
	first = newCloud(t)
	u = newStill(t, anyCertificate, second, first)
	u.answerWithin = 10 * time.Second
	u.ask(t.Context())
	if got := current(u); got != 1 || u.Unready().Reason != nil {
		t.Errorf("server %d is asked first, and told is %+v", got, u.Unready())
	}
}

// TestStartingServerIsProbedAtAnInterval: a server that is starting is probed at an interval, however many
// requests it answers with 503.
func TestStartingServerIsProbedAtAnInterval(t *testing.T) {
	c := newCloud(t)
	c.unready.Store(true)
	c.refusal.Store(http.StatusServiceUnavailable)
	began := time.Now()
	u := newUplink(t, c)
	for e, _ := u.Evidence(); e.State != Offline; e, _ = u.Evidence() {
		_, _ = ask(t, u, "/")
		if time.Since(began) > time.Minute {
			t.Fatal("the cloud is not away")
		}
	}
	questions := c.ready.Load()
	if most := int32(time.Since(began)/u.askSoon) + 2; questions > most {
		t.Errorf("it was asked %d times whether it is ready, the most is %d", questions, most)
	}
	asked := c.asked.Load()
	for range 100 {
		if _, err := ask(t, u, "/"); !errors.Is(err, ErrOffline) {
			t.Fatalf("a request ends with %v", err)
		}
	}
	if more := c.asked.Load() - asked; more > int32(2*(time.Since(began)/u.askSoon))+4 {
		t.Errorf("100 requests of clients became %d", more)
	}
}
