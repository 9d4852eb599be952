package pool

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/internal/governance"
)

// tokens is a cloud that has the Secret with the token of the pool's delegate, and takes pulses with it.
type tokens struct {
	mu sync.Mutex
	// token is what the Secret has, and accepted the one that is valid.
	token, accepted string
	// code is the answer to pulses; 0 takes them. hangs: nothing is answered.
	code  int
	hangs bool
	asked []string
}

func (c *tokens) send(r *http.Request, asNode bool) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	authorization := r.Header.Get("Authorization")
	c.asked = append(c.asked, strings.TrimSpace(fmt.Sprintf("%s %s %s", r.Method, r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:], body)))
	if c.hangs {
		c.mu.Unlock()
		<-r.Context().Done()
		c.mu.Lock()
		return nil, r.Context().Err()
	}
	answer := func(code int, content any) (*http.Response, error) {
		text, err := json.Marshal(content)
		return &http.Response{StatusCode: code, Body: io.NopCloser(strings.NewReader(string(text)))}, err
	}
	switch {
	case r.Method == http.MethodGet && asNode && authorization == "" && r.URL.Path == "/api/v1/namespaces/atoll-pools/secrets/delegate-edge":
		return answer(http.StatusOK, corev1.Secret{Data: map[string][]byte{"token": []byte(c.token)}})
	case asNode && authorization == "" && r.URL.Path == "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a" && r.Header.Get("Content-Type") == "application/merge-patch+json":
		return answer(http.StatusOK, struct{}{})
	case asNode || r.URL.Path != "/apis/coordination.k8s.io/v1/namespaces/atoll-pools/leases/pool-edge" || r.Header.Get("Content-Type") != "application/merge-patch+json":
		return answer(http.StatusBadRequest, map[string]string{"message": "unexpected"})
	case authorization != "Bearer "+c.accepted:
		return answer(http.StatusUnauthorized, map[string]string{"message": "Unauthorized"})
	case c.code != 0:
		return answer(c.code, map[string]string{"message": "no"})
	}
	return answer(http.StatusOK, struct{}{})
}

// set changes how the cloud answers.
func (c *tokens) set(token, accepted string, code int, hangs bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.token, c.accepted, c.code, c.hangs = token, accepted, code, hangs
}

// take returns what was asked since the last call.
func (c *tokens) take() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := strings.Join(c.asked, "\n")
	c.asked = nil
	return all
}

// TestOnlyTheLeaderRenewsThePoolsLease: every ten seconds, with the state of the pool that the coordinator gives.
// A token that is not valid any more is read again.
func TestOnlyTheLeaderRenewsThePoolsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := newLeaderRig(t), &tokens{token: "first", accepted: "first"}
		l.pool.options.Send = c.send
		run := func(seconds int) string {
			t.Helper()
			for range seconds / 2 {
				if err := l.next(); err != nil {
					t.Error(err)
				}
			}
			return c.take()
		}
		l.coordinator.leads = false
		if got := run(30); got != "" {
			t.Errorf("a hub that does not lead asks %s", got)
		}
		l.coordinator.leads = true
		got := run(4) // it looks whether anything is taken in each second
		if !strings.HasPrefix(got, "GET delegate-edge\nPATCH pool-edge {\"spec\":{\"holderIdentity\":\"a\",\"renewTime\":\"") || strings.Count(got, "\n") != 1 {
			t.Errorf("a hub that begins to lead asks %s", got)
		}
		l.coordinator.pool = governance.NewPoolState([]string{"b"}, []string{"a"})
		if got := run(20); strings.Count(got, "PATCH") != 2 || strings.Contains(got, "GET") || !strings.Contains(got, `"atoll.dev/pool-state":"{\"outside\":[\"b\"],\"refused\":[\"a\"]}"`) {
			t.Errorf("in 20 s it asks %s", got)
		}
		c.set("second", "second", 0, false)
		if got := run(10); strings.Count(got, "PATCH") != 2 || strings.Count(got, "GET") != 1 || l.pool.Status().Pulse != "" {
			t.Errorf("with another token it asks %s, and says %q", got, l.pool.Status().Pulse)
		}
		c.set("second", "third", 0, false)
		if got := run(10); strings.Count(got, "PATCH") != 2 || strings.Count(got, "GET") != 1 || !strings.Contains(l.pool.Status().Pulse, "the cloud returned 401: Unauthorized") {
			t.Errorf("with a token that is not taken it asks %s, and says %q", got, l.pool.Status().Pulse)
		}
		c.set("third", "third", http.StatusForbidden, false)
		if run(10); !strings.Contains(l.pool.Status().Pulse, "as delegate-edge: the cloud returned 403: no") {
			t.Errorf("a pulse that is refused is told as %q", l.pool.Status().Pulse)
		}
		c.set("", "fourth", 0, false)
		if run(10); !strings.Contains(l.pool.Status().Pulse, "the Secret has no token yet") {
			t.Errorf("a token that is missing is told as %q", l.pool.Status().Pulse)
		}
		c.set("fourth", "fourth", 0, true)
		if run(20); !strings.Contains(l.pool.Status().Pulse, "deadline exceeded") || !l.pool.lead.Leads() {
			t.Errorf("a cloud that hangs is told as %q; the hub leads: %t", l.pool.Status().Pulse, l.pool.lead.Leads())
		}
		c.set("fourth", "fourth", 0, false)
		if run(20); l.pool.Status().Pulse != "" {
			t.Errorf("later it says %q", l.pool.Status().Pulse)
		}
		l.hasCloud = false
		run(2)
		if got := run(30); got != "" || l.pool.Status().Pulse != "" {
			t.Errorf("a hub that does not lead any more asks %s", got)
		}
	})
}

// TestNodeConfirmsItsOutageOnceOnline: once for each outage in which the pool could report for it, and again
// until the cloud has answered.
func TestNodeConfirmsItsOutageOnceOnline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := newLeaderRig(t), &tokens{token: "x", accepted: "x"}
		l.pool.options.Send = c.send
		l.coordinator.leads = false
		rounds := func(n int, hasCloud bool) string {
			t.Helper()
			l.hasCloud = hasCloud
			for range n {
				if err := l.next(); err != nil {
					t.Error(err)
				}
			}
			return c.take()
		}
		if got := rounds(3, true) + rounds(3, false); got != "" {
			t.Errorf("a node that is not back asks %s", got)
		}
		if got := rounds(3, true); !strings.HasPrefix(got, `PATCH a {"metadata":{"annotations":{"atoll.dev/cut-off-until":"2000-01-01T00:00:`) || strings.Contains(got, "\n") {
			t.Errorf("a node that is back asks %s", got)
		}
		rounds(1, false)
		c.set("x", "x", 0, true)
		if got := rounds(2, true); strings.Count(got, "PATCH a") != 2 {
			t.Errorf("while the cloud hangs it asks %s", got)
		}
		c.set("x", "x", 0, false)
		if got := rounds(3, true); strings.Count(got, "PATCH a") != 1 {
			t.Errorf("then it asks %s", got)
		}
	})
}

func TestBeatReportsAKubeletRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, isRefused := newLeaderRig(t), false
		l.pool.options.IsRefused = func() bool { return isRefused }
		for _, isRefused = range []bool{false, true, false} {
			if err := l.next(); err != nil {
				t.Error(err)
			}
			if beat := l.coordinator.beats[len(l.coordinator.beats)-1]; beat.IsRefused != isRefused {
				t.Errorf("the beat is %+v", beat)
			}
		}
	})
}
