package manager

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// fakeLease answers requests about the Lease.
type fakeLease struct {
	resourcelock.Interface
	answer error
	during func()
}

func (*fakeLease) Identity() string { return "we" }

func (f *fakeLease) Update(context.Context, resourcelock.LeaderElectionRecord) error {
	if f.during != nil {
		f.during()
	}
	return f.answer
}

func (f *fakeLease) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return f.Update(ctx, r)
}

// TestATenureEndsByTheClock: it does not wait for the election.
func TestATenureEndsByTheClock(t *testing.T) {
	const duration = 15 * time.Second
	now := time.Now()
	held := &tenure{bounded: true, duration: duration, now: func() time.Time { return now }}
	lease := &fakeLease{}
	l := lock{lease, held}
	hold := func(holder string) {
		_ = l.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: holder})
	}
	expect := func(when string, holds, over bool) {
		t.Helper()
		if held.holds() != holds || held.over() != over {
			t.Errorf("%s: holds %t, over %t, want %t and %t", when, held.holds(), held.over(), holds, over)
		}
	}
	expect("before it leads", false, false)
	lease.answer = errors.New("conflict")
	hold("we")
	expect("when another replica got the Lease", false, false)
	lease.answer = nil
	hold("we")
	expect("when it leads", true, false)
	now = now.Add(duration - time.Second)
	expect("just before the end", true, false)
	lease.during = func() { now = now.Add(10 * time.Second) } // a slow answer
	hold("we")
	lease.during = nil
	expect("the time counts from when the renewal was sent", true, false)
	now = now.Add(6 * time.Second)
	expect("a stopped process goes on", false, true)
	if hold("we"); !held.holds() {
		t.Error("renewed after all, it leads")
	}
	now = now.Round(0).Add(time.Hour) // the machine was suspended: one of its clocks stood still
	expect("after a suspension", false, true)
	hold("we")
	hold("")
	expect("after the release", false, true)
}

func TestWithoutAnElectionAReplicaLeads(t *testing.T) {
	if always := (&tenure{}); !always.holds() || always.over() {
		t.Error("a replica without an election does not lead")
	}
}

// TestAReplicaWhoseTenureIsOverWritesNothing except what every replica writes.
func TestAReplicaWhoseTenureIsOverWritesNothing(t *testing.T) {
	now := time.Now()
	held := &tenure{bounded: true, duration: time.Second, now: func() time.Time { return now }}
	requests := 0
	client := held.fence(roundTripper(func(*http.Request) (*http.Response, error) { requests++; return &http.Response{}, nil }))
	try := func(method, path string) error {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, "https://api"+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.RoundTrip(request)
		if err == nil && response.Body != nil {
			_ = response.Body.Close()
		}
		return err
	}
	const pods = "/api/v1/namespaces/ns/pods"
	for _, when := range []string{"a replica that never led", "the one that leads"} {
		if err := try(http.MethodPost, pods); err != nil {
			t.Errorf("%s cannot write: %v", when, err)
		}
		held.record(now, true)
	}
	now = now.Add(2 * time.Second)
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		if err := try(method, pods); !errors.Is(err, errTenureOver) {
			t.Errorf("%s goes through: %v", method, err)
		}
	}
	if requests != 2 {
		t.Errorf("%d requests reached the API server", requests)
	}
	for method, path := range map[string]string{
		http.MethodGet: pods, http.MethodPut: "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l", http.MethodPost: "/apis/authentication.k8s.io/v1/tokenreviews",
	} {
		if err := try(method, path); err != nil {
			t.Errorf("%s %s: %v", method, path, err)
		}
	}
}
