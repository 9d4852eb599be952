package seats

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// readyIs makes a node say since when it is Ready or not.
func readyIs(status corev1.ConditionStatus, since time.Time) build.Option {
	return build.With(func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.NewTime(since)}}
	})
}

func TestNotReadySince(t *testing.T) {
	l, clock := newTestLedger()
	start := clock.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	see := func(name string, options ...build.Option) {
		l.ObserveNode(SlimNode(build.Node(name, append(options, build.InGroup("a"))...)))
	}
	is := func(what string, want time.Time, lost bool) {
		t.Helper()
		if since, ok := l.NotReadySince("a"); ok != lost || !since.Equal(want) {
			t.Errorf("%s: not Ready since %s (%t), want %s (%t)", what, since, ok, want, lost)
		}
	}
	is("a group without a node", time.Time{}, false)
	see("one")
	see("two")
	is("both are Ready", time.Time{}, false)
	see("one", readyIs(corev1.ConditionFalse, at(-100)))
	is("one of two is", time.Time{}, false)
	see("two", readyIs(corev1.ConditionUnknown, at(-50)))
	is("none is: since the last one was", at(-50), true)
	see("two", readyIs(corev1.ConditionFalse, at(-10)))
	is("Unknown became False, and it was not Ready before", at(-50), true)
	see("two", readyIs(corev1.ConditionTrue, at(-5)), build.With(func(n *corev1.Node) { n.Spec.Unschedulable = true }))
	is("a cordoned node is Ready", time.Time{}, false)
	see("two", readyIs(corev1.ConditionFalse, at(-1)))
	is("it was Ready in between", at(-1), true)
	l.ForgetNode("two")
	is("it is gone, and the other has long not been Ready", at(-100), true)
	see("three", build.With(func(n *corev1.Node) { n.Status.Conditions = nil }))
	is("a node that says nothing was Ready last when we saw it", start, true)
	clock.Step(time.Minute)
	see("three", build.With(func(n *corev1.Node) { n.Status.Conditions = nil }))
	is("and still", start, true)
	l.ForgetNode("one")
	l.ForgetNode("three")
	is("all are gone", time.Time{}, false)
}

// TestTheEpochMovesWheneverAGroupComesOrGoes: what was computed of NotReadySince
// and HasMembers may be kept for as long as the epoch stays.
func TestTheEpochMovesWheneverAGroupComesOrGoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, clock := newTestLedger()
		groups := []string{"a", "b"}
		type facts struct {
			members, lost bool
			since         time.Time
		}
		known := func() (all [2]facts) {
			for i, group := range groups {
				all[i].members = l.HasMembers(group)
				all[i].since, all[i].lost = l.NotReadySince(group)
			}
			return all
		}
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			before, epoch := known(), l.GroupsEpoch()
			clock.Step(time.Second)
			name := rapid.SampledFrom([]string{"one", "two", "three"}).Draw(t, "node")
			if rapid.IntRange(0, 4).Draw(t, "gone") == 0 {
				l.ForgetNode(name)
			} else {
				node := Node{Name: name, Group: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "group"), Ready: rapid.Bool().Draw(t, "ready")}
				if !node.Ready && rapid.Bool().Draw(t, "says since when") {
					node.NotReadySince = clock.Now()
				}
				l.ObserveNode(node)
			}
			if after := known(); after != before && l.GroupsEpoch() == epoch {
				t.Fatalf("%+v became %+v in the same epoch", before, after)
			}
		}
	})
}
