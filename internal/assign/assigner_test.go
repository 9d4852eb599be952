package assign

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/leader"
	"github.com/atoll-k8s/atoll/internal/testing/build"
	"github.com/atoll-k8s/atoll/internal/testing/build/world"
	"github.com/atoll-k8s/atoll/internal/testing/turns"
)

// replica is an Assigner, the cluster that it reads, and its server.
type replica struct {
	*Assigner
	*world.World
	server   *httptest.Server
	requests int // received over HTTP
}

func newReplica(t *testing.T, leads bool, objects ...build.Object) *replica {
	t.Helper()
	r := &replica{World: world.New(t, objects...)}
	r.Assigner = &Assigner{
		Policies: r.World.Policies, Ledger: r.World.Ledger,
		Leading: func() bool { return leads }, Leader: leader.Leader{Address: func() string { return "" }},
	}
	mux := http.NewServeMux()
	mux.Handle(Path, http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		r.requests++
		r.ServeHTTP(w, request)
	}))
	r.server = httptest.NewTLSServer(mux)
	t.Cleanup(r.server.Close)
	return r
}

// follow makes a replica send its requests to leader.
func (r *replica) follow(first *replica) {
	r.Address = func() string { return strings.TrimPrefix(first.server.URL, "https://") }
	r.Transport = first.server.Client().Transport
}

// ground returns a Deployment of two pods and a policy by which group hz may have one of
// them, and bj none.
func ground() []build.Object {
	deployment := build.Deployment("web", build.Bound("p", ""), build.Replicas(2))
	return []build.Object{
		deployment, build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(2)), build.ReplicaSet("free"),
		build.PropagationPolicy("p", build.With(func(p *gm.PropagationPolicy) {
			p.Spec.NumRange = []gm.NodeGroupNumRange{{NodeGroupNames: []string{"hz"}, Max: new(intstr.FromInt(1))}}
		})),
		build.Node("node-hz", build.InGroup("hz")), build.Node("node-bj", build.InGroup("bj")), build.Node("node-out"),
	}
}

// pod returns a pod that is about to be created.
func pod(owner build.Object) *ownership.Object {
	o := build.Owner(build.Pod("", build.OwnedBy(owner)))
	o.UID = ""
	return o
}

func requestFor(token string) Request {
	return Request{Pod: pod(build.ReplicaSet("web-1")), Token: types.UID(token)}
}

func TestSeatRequestsAreAnsweredByTheLeader(t *testing.T) {
	type want struct {
		Answer Answer
		Err    error
	}
	onNode := func(node string) Request {
		ask := requestFor("t")
		ask.Node = node
		return ask
	}
	tests := map[string]struct {
		ask  Request
		want want
	}{
		"a seat":                    {requestFor("t"), want{Answer: Answer{Group: "hz", Cost: new(int32(999_999_999))}}},
		"a workload without groups": {Request{Pod: pod(build.ReplicaSet("free")), Token: "t"}, want{Answer{NoSeat: true}, ErrNoSeat}},
		"the group of a node":       {onNode("node-bj"), want{Answer: Answer{Group: "bj"}}},
		"a node without a group":    {onNode("node-out"), want{}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for how, ask := range map[string]func(*replica) *replica{
				"itself": func(r *replica) *replica { return r },
				"from another replica": func(r *replica) *replica {
					other := newReplica(t, false)
					other.follow(r)
					return other
				},
			} {
				first := newReplica(t, true, ground()...)
				answer, err := ask(first).Assign(t.Context(), tc.ask)
				if diff := cmp.Diff(tc.want.Answer, answer); diff != "" || !errors.Is(err, tc.want.Err) {
					t.Errorf("%s: error %v, want %v; wrong answer (-want +got):\n%s", how, err, tc.want.Err, diff)
				}
			}
		})
	}
}

func TestSeatIsAssignedOnceAcrossReplicas(t *testing.T) {
	first, other := newReplica(t, true, ground()...), newReplica(t, false)
	other.follow(first)
	dry := requestFor("dry")
	dry.DryRun = true
	for range 2 {
		if answer, err := other.Assign(t.Context(), dry); err != nil || answer.Group != "hz" {
			t.Errorf("a dry run gets %+v, %v", answer, err)
		}
	}
	if _, err := other.Assign(t.Context(), requestFor("first")); err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]*replica{"the leader": first, "another": other} {
		if answer, err := r.Assign(t.Context(), requestFor("second")); !errors.Is(err, ErrNoSeat) {
			t.Errorf("%s hands out a seat that is taken: %+v, %v", name, answer, err)
		}
	}
	created := build.Pod("web-1-0", build.OwnedBy(build.ReplicaSet("web-1")), build.Label(gm.NodeGroupLabel, "hz"), build.Annotation(gm.SeatAnnotation, "first"))
	first.See(created)
	if got := first.World.Ledger.Pod("web-1-0"); !got.Pinned() {
		t.Errorf("the pod is %+v", got)
	}
	first.World.Ledger.Forget("web-1-0")
	if _, err := other.Assign(t.Context(), requestFor("third")); err != nil {
		t.Errorf("the pod is deleted and its seat is not handed out: %v", err)
	}
}

func TestInvalidSeatRequestIsAnError(t *testing.T) {
	gone := Request{Pod: pod(build.ReplicaSet("gone")), Token: "t"}
	for name, ask := range map[string]Request{"no token": {Pod: requestFor("").Pod}, "no pod": {Token: "t"}, "an owner that does not exist": gone} {
		t.Run(name, func(t *testing.T) {
			first, other := newReplica(t, true, ground()...), newReplica(t, false)
			other.follow(first)
			for _, r := range []*replica{first, other} {
				if answer, err := r.Assign(t.Context(), ask); err == nil || errors.Is(err, ErrNoSeat) || errors.Is(err, leader.ErrNone) {
					t.Errorf("answer %+v, error %v", answer, err)
				}
			}
		})
	}
}

func TestNoSeatIsAssignedWithoutALeader(t *testing.T) {
	t.Run("no leader is known", func(t *testing.T) {
		if _, err := newReplica(t, false).Assign(t.Context(), requestFor("t")); !errors.Is(err, leader.ErrNone) {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("the replica at that address does not lead, and forwards nothing", func(t *testing.T) {
		first, lost, other := newReplica(t, true, ground()...), newReplica(t, false), newReplica(t, false)
		lost.follow(first)
		other.follow(lost)
		if answer, err := other.Assign(t.Context(), requestFor("t")); err == nil || !strings.Contains(err.Error(), "503") {
			t.Errorf("answer %+v, error %v", answer, err)
		}
		if lost.requests != 1 || first.requests != 0 {
			t.Errorf("it got %d requests, want 1; the leader got %d, want 0", lost.requests, first.requests)
		}
	})
	t.Run("the leader cannot be reached", func(t *testing.T) {
		first, other := newReplica(t, true), newReplica(t, false)
		other.follow(first)
		first.server.Close()
		if answer, err := other.Assign(t.Context(), requestFor("t")); err == nil {
			t.Errorf("answer %+v", answer)
		}
	})
	t.Run("the response is not valid", func(t *testing.T) {
		odd := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) }))
		t.Cleanup(odd.Close)
		other := newReplica(t, false)
		other.follow(&replica{server: odd})
		if answer, err := other.Assign(t.Context(), requestFor("t")); err == nil {
			t.Errorf("answer %+v", answer)
		}
	})
}

func TestServeHTTP(t *testing.T) {
	good, err := json.Marshal(requestFor("t"))
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		method  string
		body    []byte
		follows bool
		want    int
	}{
		"a request":                        {http.MethodPost, good, false, http.StatusOK},
		"a read":                           {http.MethodGet, nil, false, http.StatusMethodNotAllowed},
		"no body":                          {http.MethodPost, nil, false, http.StatusBadRequest},
		"half a body":                      {http.MethodPost, good[:len(good)/2], false, http.StatusBadRequest},
		"a body without end":               {http.MethodPost, append([]byte(`"`), bytes.Repeat([]byte("a"), maxBody)...), false, http.StatusBadRequest},
		"a replica that is not the leader": {http.MethodPost, good, true, http.StatusServiceUnavailable},
		"a request without a pod":          {http.MethodPost, []byte("{}"), false, http.StatusInternalServerError},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r, w := newReplica(t, !tc.follows, ground()...), httptest.NewRecorder()
			r.ServeHTTP(w, httptest.NewRequest(tc.method, Path, bytes.NewReader(tc.body)))
			if w.Code != tc.want {
				t.Errorf("answered %d, want %d: %s", w.Code, tc.want, w.Body)
			}
			if got := w.Header().Get("Allow"); (got == http.MethodPost) != (tc.want == http.StatusMethodNotAllowed) {
				t.Errorf("allows %q", got)
			}
		})
	}
}

// transport is an http.RoundTripper.
type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// TestRequestToTheLeaderTimesOutAfterASecond: the API server waits two seconds for the
// webhook, and then creates the pod without its policy.
func TestRequestToTheLeaderTimesOutAfterASecond(t *testing.T) {
	r := newReplica(t, false)
	r.Address = func() string { return "leader:9444" }
	r.Transport = transport(func(request *http.Request) (*http.Response, error) {
		if deadline, bounded := request.Context().Deadline(); !bounded || time.Until(deadline) > time.Second {
			t.Errorf("the request ends at %s, has a deadline: %t", deadline, bounded)
		}
		return nil, context.DeadlineExceeded
	})
	if answer, err := r.Assign(context.Background(), requestFor("t")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("answer %+v, error %v", answer, err)
	}
}

// TestSeatRequestReleasesItsTurnWhileWaiting: for the first, and for watches that are behind.
func TestSeatRequestReleasesItsTurnWhileWaiting(t *testing.T) {
	ctx, free := turns.Last(t)
	follower := newReplica(t, false)
	follower.Address = func() string { return "leader:9444" }
	asked := false
	follower.Transport = transport(func(*http.Request) (*http.Response, error) {
		asked = true
		if !free() {
			t.Error("while the leader is asked, no other request can be answered")
		}
		return nil, context.DeadlineExceeded
	})
	if _, err := follower.Assign(ctx, requestFor("t")); !asked || err == nil {
		t.Errorf("the leader was asked: %t, error %v", asked, err)
	}
	caughtUp := false
	catchUp(ctx, func(context.Context) bool {
		caughtUp = true
		if !free() {
			t.Error("while watches are behind, no other request can be answered")
		}
		return true
	})
	if !caughtUp {
		t.Error("nobody looked whether the watches have caught up")
	}
}

// TestSeatRequestWaitsForObservedDeletion: the owner has seen that a pod was deleted, and the
// ledger has not yet. A seat that is given before that would be in a group that lacks no
// pod.
func TestSeatRequestWaitsForObservedDeletion(t *testing.T) {
	for name, tc := range map[string]struct {
		deleted bool
		want    string
	}{
		"the deletion is observed":     {deleted: true, want: "bj"},
		"the deletion is not observed": {want: "hz"},
	} {
		t.Run(name, func(t *testing.T) {
			deployment := build.Deployment("web", build.Bound("p", ""), build.Replicas(3))
			replicaSet := build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(3))
			r := newReplica(t, true, deployment, replicaSet,
				build.PropagationPolicy("p", build.Weight(2, "hz"), build.Weight(1, "bj")),
				build.Node("node-hz", build.InGroup("hz")), build.Node("node-bj", build.InGroup("bj")),
				build.Pod("a", build.OwnedBy(replicaSet), build.On("node-hz")), build.Pod("b", build.OwnedBy(replicaSet), build.On("node-hz")),
				build.Pod("c", build.OwnedBy(replicaSet), build.On("node-bj")))
			observed := make(chan struct{})
			if tc.deleted {
				go func() {
					<-observed
					r.World.Ledger.Forget("c")
				}()
			}
			time.AfterFunc(4*catchUpInterval, func() { close(observed) })
			answer, err := r.Assign(t.Context(), requestFor("t"))
			if err != nil || answer.Group != tc.want {
				t.Errorf("it gets a seat in %q, want %q (error %v)", answer.Group, tc.want, err)
			}
		})
	}
}
