package assign

import (
	"errors"
	"strings"
	"testing"

	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestRefusedTrialStopsOverridesOnEveryReplica: the leader has tried the overrides on the
// API server. Other replicas get the result from the leader.
func TestRefusedTrialStopsOverridesOnEveryReplica(t *testing.T) {
	deployment := build.Deployment("web", build.Bound("p", "o"), build.Replicas(2))
	objects := ground()[3:]
	objects = append(objects, deployment, build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(2)),
		build.OverridePolicy("o", build.Args("hz", "c", "--hz")))
	for name, onNode := range map[string]string{"a pod with a seat": "", "a pod of a DaemonSet": "node-hz"} {
		t.Run(name, func(t *testing.T) {
			leader, other := newReplica(t, true, objects...), newReplica(t, false, objects...)
			other.follow(leader)
			ask := requestFor("t")
			ask.Node, ask.Overridden = onNode, true
			if answer, err := other.Assign(t.Context(), ask); err != nil || answer.Group != "hz" {
				t.Fatalf("before it is refused, the answer is %+v, error %v", answer, err)
			}
			leader.World.Policies.SetTrial("web", policies.Trial{Refused: errors.New("duplicate volume")})
			ask.Token = "u"
			if answer, err := other.Assign(t.Context(), ask); err == nil || !strings.Contains(err.Error(), "duplicate volume") {
				t.Errorf("the answer is %+v, error %v", answer, err)
			}
			ask.Overridden, ask.Token = false, "v"
			if _, err := other.Assign(t.Context(), ask); err != nil && !errors.Is(err, ErrNoSeat) {
				t.Errorf("a pod that is not overridden: %v", err)
			}
		})
	}
}

// TestUntriedOverrideAppliesToBoundWorkloadsOnly: if a workload is not bound,
// another replica may have found that the API server refuses its pods.
func TestUntriedOverrideAppliesToBoundWorkloadsOnly(t *testing.T) {
	for name, tc := range map[string]struct {
		labels build.Option
		takes  bool
	}{"bound": {build.Bound("p", "o"), true}, "not bound": {build.Requires("p", "o"), false}} {
		t.Run(name, func(t *testing.T) {
			deployment := build.Deployment("web", tc.labels, build.Replicas(2))
			leader := newReplica(t, true, append(ground()[3:], deployment,
				build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(2)), build.OverridePolicy("o", build.Args("hz", "c", "--hz")))...)
			untried := errors.New("timeout")
			leader.World.Policies.SetTrial("web", policies.Trial{Untried: untried})
			ask := requestFor("t")
			ask.Overridden = true
			answer, err := leader.Assign(t.Context(), ask)
			if taken := err == nil && answer.Group == "hz"; taken != tc.takes || !tc.takes && !errors.Is(err, untried) {
				t.Errorf("the answer is %+v, error %v", answer, err)
			}
		})
	}
}
