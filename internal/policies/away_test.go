package policies

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// silent makes a node whose Ready condition is Unknown since the given time.
func silent(since time.Time) build.Option {
	return build.With(func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: metav1.NewTime(since)}}
	})
}

func failsOver(seconds int32) build.Option {
	return build.With(func(p *gm.PropagationPolicy) { p.Spec.Failover = &gm.Failover{AfterSeconds: seconds} })
}

// TestAGroupIsAwayAfterTheTimeThatThePolicySays also if only the clock changes, and in
// the same way for each workload.
func TestAGroupIsAwayAfterTheTimeThatThePolicySays(t *testing.T) {
	l := newTestResolver(t, build.Node("n-a", build.InGroup("a")), build.Node("n-b", build.InGroup("b")))
	start := l.clock.Now()
	policy := build.PropagationPolicy("p", build.Weight(1, "a", "b"), failsOver(60))
	never := build.PropagationPolicy("never", build.Weight(1, "a", "b"))
	never.UID = "never"
	division := func(what string, want ...int) {
		t.Helper()
		for _, workload := range []types.UID{"one", "two"} {
			spread, err := l.Spread(policy, workload)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, spread.Divide(4)); diff != "" {
				t.Errorf("%s: wrong division for %s (-want +got):\n%s", what, workload, diff)
			}
		}
		if spread, _ := l.Spread(never, "one"); spread.Divide(4)[0] != 2 {
			t.Errorf("%s: a policy without failover divides %v", what, spread.Divide(4))
		}
	}
	changes := func(what string, want time.Time) {
		t.Helper()
		if at := l.ChangesAt(policy); !at.Equal(want) {
			t.Errorf("%s: changes at %s, want %s", what, at, want)
		}
	}
	division("all are Ready", 2, 2)
	changes("all are Ready", time.Time{})
	l.ledger.ObserveNode(seats.SlimNode(build.Node("n-a", build.InGroup("a"), silent(start.Add(-20*time.Second)))))
	division("a is silent for 20s", 2, 2)
	changes("a is silent for 20s", start.Add(40*time.Second))
	l.clock.Step(40*time.Second - 1)
	division("a moment before", 2, 2)
	l.clock.Step(1)
	division("a minute", 0, 4)
	changes("a minute", time.Time{})
	if at := l.SettlesAt(policy); !at.Equal(l.clock.Now().Add(gm.DefaultStabilization)) {
		t.Errorf("running pods may be moved at %s, want %s from now on", at, gm.DefaultStabilization)
	}
	l.ledger.ObserveNode(seats.SlimNode(build.Node("n-b", build.InGroup("b"), silent(start.Add(-time.Hour)))))
	division("both are silent", 2, 2)
	l.ledger.ObserveNode(seats.SlimNode(build.Node("n-b", build.InGroup("b"))))
	division("b is back", 0, 4)
	l.ledger.ObserveNode(seats.SlimNode(build.Node("n-a", build.InGroup("a"))))
	division("all are back", 2, 2)
	if at := l.SettlesAt(policy); !at.Equal(l.clock.Now().Add(gm.DefaultStabilization)) {
		t.Errorf("running pods may be moved back at %s, want %s from now on", at, gm.DefaultStabilization)
	}
}

// TestAwayGroupsStayOpenToDaemonSets: their pods may run in a group that is away.
func TestAwayGroupsStayOpenToDaemonSets(t *testing.T) {
	daemons := build.DaemonSet("agent", build.Bound("p", ""))
	policy := build.PropagationPolicy("p", build.Weight(1, "a", "b"), failsOver(1))
	l := newTestResolver(t, daemons, policy, build.Node("n-a", build.InGroup("a"), silent(time.Unix(0, 0))), build.Node("n-b", build.InGroup("b")))
	a, err := l.Assignment(t.Context(), build.Owner(build.Pod("x", build.OwnedBy(daemons))), "")
	if diff := cmp.Diff([]string{"a", "b"}, a.Spread.Taking()); diff != "" || err != nil {
		t.Errorf("error %v; wrong groups (-want +got):\n%s", err, diff)
	}
}
