package propagationpolicy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

func namesOf(requests []ctrl.Request) (names []string) {
	for _, request := range requests {
		names = append(names, request.Name)
	}
	return names
}

func TestChangesOfOwnersThatEnqueue(t *testing.T) {
	owner := func(options ...build.Option) *ownership.Object {
		return build.Owner(build.Deployment("web", options...))
	}
	p, q := build.Requires("p", ""), build.Requires("q", "")
	tests := map[string]struct {
		old, new *ownership.Object
		want     []string
	}{
		"created without a policy":       {nil, owner(), nil},
		"created with an OverridePolicy": {nil, owner(build.Requires("", "o")), nil},
		"created with a policy":          {nil, owner(p), []string{"p"}},
		"changed, whatever the change":   {owner(p), owner(p), []string{"p", "p"}},
		"requires another policy":        {owner(p), owner(q), []string{"p", "q"}},
		"requires none any more":         {owner(p), owner(), []string{"p"}},
		"deleted":                        {owner(p), nil, []string{"p"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, namesOf(requestsForOwner(tc.old, tc.new))); diff != "" {
				t.Errorf("wrong requests (-want +got):\n%s", diff)
			}
		})
	}
}

// TestChangesOfPodsThatEnqueue has two Deployments with a ReplicaSet each: web requires the
// policy p, and plain requires none.
func TestChangesOfPodsThatEnqueue(t *testing.T) {
	web, plain := build.Deployment("web", build.Requires("p", "")), build.Deployment("plain")
	set, plainSet := build.ReplicaSet("web-1", build.OwnedBy(web)), build.ReplicaSet("plain-1", build.OwnedBy(plain))
	s := newFixture(t, web, set, plain, plainSet)
	pod := func(options ...build.Option) *seats.Pod { return seats.Slim(build.Pod("pod", options...)) }
	mine, others := build.OwnedBy(set), build.OwnedBy(plainSet)
	tests := map[string]struct {
		old, new *seats.Pod
		want     []string
	}{
		"created":                       {nil, pod(mine), []string{"p"}},
		"created without a policy":      {nil, pod(others), nil},
		"deleted":                       {pod(mine), nil, []string{"p"}},
		"released by its owner":         {pod(mine), pod(), []string{"p"}},
		"adopted by a Deployment's set": {pod(), pod(mine), []string{"p"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, namesOf(s.requestsForPod(tc.old, tc.new))); diff != "" {
				t.Errorf("wrong requests (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPodsThatAreHeldEnqueue(t *testing.T) {
	web := build.Deployment("web", build.Requires("p", ""))
	set := build.ReplicaSet("web-1", build.OwnedBy(web))
	s := newFixture(t, web, set)
	for owner, want := range map[types.UID][]string{"web-1": {"p"}, "unknown": nil} {
		if diff := cmp.Diff(want, namesOf(s.requestsFor(owner))); diff != "" {
			t.Errorf("wrong requests for pods of %s (-want +got):\n%s", owner, diff)
		}
	}
}
