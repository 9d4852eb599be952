package extender

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/atoll-k8s/atoll/internal/machinery/leader"
)

// replicas is the transport between replicas: the handlers by host.
type replicas map[string]http.Handler

func (r replicas) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Scheme != "https" {
		return nil, errors.New("not encrypted")
	}
	handler, ok := r[request.URL.Host]
	if !ok {
		return nil, errors.New("no such host")
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, request)
	return w.Result(), nil
}

func TestFollowerForwardsRequestsToTheLeader(t *testing.T) {
	first := newFixture(t, ground()...)
	calls := 0
	leads := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		first.mux.ServeHTTP(w, r)
	})
	lost := newFixture(t)
	lost.Leading = func() bool { return false }
	network := replicas{"leader:9444": leads, "lost:9444": lost.mux}
	lost.Leader = &leader.Leader{Address: func() string { return "leader:9444" }, Transport: network}

	const request = `{"Pod":{"metadata":{"name":"bare"}},"NodeNames":["a","b"]}`
	tests := map[string]struct {
		forwarder *leader.Leader
		forwarded bool
		body      string
		want      int
		calls     int
	}{
		"no forwarder: retry":                              {want: http.StatusServiceUnavailable, body: request},
		"no leader: retry":                                 {forwarder: &leader.Leader{Address: func() string { return "" }, Transport: network}, want: http.StatusServiceUnavailable, body: request},
		"the leader answers":                               {forwarder: lost.Leader, want: http.StatusOK, body: request, calls: 1},
		"the leader refuses a malformed request":           {forwarder: lost.Leader, want: http.StatusBadRequest, body: "{", calls: 1},
		"the leader cannot be reached: retry":              {forwarder: &leader.Leader{Address: func() string { return "gone:9444" }, Transport: network}, want: http.StatusServiceUnavailable, body: request},
		"the replica at that address does not lead: retry": {forwarder: &leader.Leader{Address: func() string { return "lost:9444" }, Transport: network}, want: http.StatusServiceUnavailable, body: request},
		"a forwarded request is not forwarded again":       {forwarder: lost.Leader, forwarded: true, want: http.StatusServiceUnavailable, body: request},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			calls = 0
			d := newFixture(t)
			d.Leading, d.Leader = func() bool { return false }, tc.forwarder
			r := httptest.NewRequest(http.MethodPost, "/scheduler/filter", strings.NewReader(tc.body))
			if tc.forwarded {
				r.Header.Set("X-Atoll-Forwarded", "1")
			}
			w := httptest.NewRecorder()
			d.mux.ServeHTTP(w, r)
			if w.Code != tc.want || calls != tc.calls {
				t.Errorf("answered %d after %d calls of the leader, want %d after %d: %s", w.Code, calls, tc.want, tc.calls, w.Body)
			}
			if tc.want != http.StatusOK {
				return
			}
			direct := first.send("filter", []byte(tc.body))
			if w.Body.String() != direct.Body.String() || w.Header().Get("Content-Length") != direct.Header().Get("Content-Length") {
				t.Errorf("answered %s, the leader itself answers %s", w.Body, direct.Body)
			}
		})
	}
}
