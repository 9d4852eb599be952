package assign

import (
	"errors"
	"strings"
	"testing"

	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestNoReplicaOverridesWhatTheAPIServerRefuses: the one that leads has asked
// the API server; any other asks the one that leads.
func TestNoReplicaOverridesWhatTheAPIServerRefuses(t *testing.T) {
	deployment := build.Deployment("web", build.Bound("p", "o"), build.Replicas(2))
	objects := ground()[3:]
	objects = append(objects, deployment, build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(2)),
		build.OverridePolicy("o", build.Args("hz", "c", "--hz")))
	for name, onNode := range map[string]string{"a pod with a seat": "", "a pod of a DaemonSet": "node-hz"} {
		t.Run(name, func(t *testing.T) {
			leader, other := newReplica(t, true, objects...), newReplica(t, false, objects...)
			other.follow(leader)
			ask := askFor("t")
			ask.Node, ask.Overridden = onNode, true
			if answer, err := other.Assign(t.Context(), ask); err != nil || answer.Group != "hz" {
				t.Fatalf("before it is refused, the answer is %+v, error %v", answer, err)
			}
			leader.World.Book.SetTrial("web", policies.Trial{Refused: errors.New("duplicate volume")})
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
