package propagationpolicy

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// playReturns plays some minutes in passes of five seconds, and returns the number of evictions.
// An evicted pod stays in the ledger for one more pass. Its successor has no node for the
// given number of passes, and then runs in the group that group returns.
func playReturns(t *testing.T, s *fixture, minutes, passes int, group func() string) (evicted int) {
	t.Helper()
	replicaSet := build.ReplicaSet("web-1")
	type successor struct{ left int }
	n, coming := 0, map[string]*successor{}
	var leaving []string
	for range minutes * 12 {
		s.World.Clock.Step(5 * time.Second)
		if _, err := s.pass(); err != nil {
			t.Fatal(err)
		}
		evicted += len(s.Evicted)
		for name, c := range coming {
			if c.left--; c.left <= 0 {
				delete(coming, name)
				s.World.Ledger.Observe(seats.Slim(runningPod(name, group(), 100+n, build.OwnedBy(replicaSet))))
			}
		}
		for _, name := range leaving {
			s.World.Ledger.Forget(types.UID(name))
			n++
			next := build.Pod(fmt.Sprint("next-", n, "-", s.World.Clock.Now().Unix()), build.OwnedBy(replicaSet), build.Created(s.World.Clock.Now()))
			s.World.Ledger.Observe(seats.Slim(next))
			coming[next.Name] = &successor{passes}
		}
		leaving = s.Evicted
		for len(s.events.Events) > 0 {
			<-s.events.Events
		}
	}
	return evicted
}

// TestMovesOfReturningPodsBackOff: the pod webhook is not called,
// and kube-scheduler binds each successor to the evicted pod's node.
func TestMovesOfReturningPodsBackOff(t *testing.T) {
	for _, unavailable := range []int32{1, 3} {
		for _, passes := range []int{0, 1, 7} {
			t.Run(fmt.Sprintf("maxUnavailable %d, a node after %d passes", unavailable, passes), func(t *testing.T) {
				if passes == 1 || unavailable > 1 {
					tier.All(t, "the same with other numbers")
				}
				s := newFixture(t, join(base(maxUnavailable(unavailable)), web("bj", "bj", "bj", "bj", "bj"))...)
				s.Settle(t)
				evicted := playReturns(t, s, 60, passes, func() string { return "bj" })
				if most := 7 + int(unavailable); evicted < 4 || evicted > most {
					t.Errorf("%d running pods were evicted in an hour, want 4 to %d", evicted, most)
				}
				if got := s.message(); got != `Deployment "web": `+returnedMessage {
					t.Errorf("message is %q", got)
				}
				// The webhook is called again: pods go where they are wanted.
				next := []string{"hz", "hz", "hz"}
				again := playReturns(t, s, 60, passes, func() string { group := next[0]; next = next[1:]; return group })
				if again != 3 || len(s.memory.returns) != 0 {
					t.Errorf("%d pods moved then, want 3; remembered: %v", again, s.memory.returns)
				}
			})
		}
	}
}

// TestSuccessfulMovesHaveNoDelay: there is no pause between moves if the successors reach their
// target group, however late they get their nodes, and even if one of many came back.
func TestSuccessfulMovesHaveNoDelay(t *testing.T) {
	for _, unavailable := range []int32{1, 2, 7, 15} {
		for _, passes := range []int{0, 1, 5} {
			t.Run(fmt.Sprintf("maxUnavailable %d, a node after %d passes", unavailable, passes), func(t *testing.T) {
				if passes == 1 || unavailable > 1 {
					tier.All(t, "the same with other numbers")
				}
				groups := make([]string, 25)
				for i := range groups {
					groups[i] = "bj"
				}
				s := newFixture(t, join(base(maxUnavailable(unavailable)), web(groups...))...)
				s.Settle(t)
				moved := playReturns(t, s, 20, passes, func() string {
					if left, _, cameBack := s.memory.pause("web", s.World.Clock.Now()); cameBack {
						t.Fatalf("paused for %s", left)
					}
					return "hz"
				})
				if moved != 15 || len(s.memory.returns) != 0 {
					t.Errorf("%d pods were moved, want 15; remembered: %v", moved, s.memory.returns)
				}
			})
		}
	}
	t.Run("one of many came back", func(t *testing.T) {
		s := newFixture(t, join(base(maxUnavailable(3)), web("bj", "bj", "bj", "bj", "bj"))...)
		s.Settle(t)
		next := []string{"bj", "hz", "hz", "hz"}
		if moved := playReturns(t, s, 60, 0, func() string { group := next[0]; next = next[1:]; return group }); moved != 4 {
			t.Errorf("%d pods were moved, want 4", moved)
		}
	})
}
