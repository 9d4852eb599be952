package seats

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestAHeldNodeIsPresent: it is no reason to fail over, but takes no new pods.
func TestAHeldNodeIsPresent(t *testing.T) {
	l, _ := newTestLedger()
	see := func(name string, options ...build.Option) {
		l.ObserveNode(SlimNode(build.Node(name, append(options, build.InGroup("a"))...)))
	}
	is := func(what string, lost, held bool) {
		t.Helper()
		if _, got := l.NotReadySince("a"); got != lost {
			t.Errorf("%s: the group is lost: %t", what, got)
		}
		if got := l.IsGroupHeld("a"); got != held {
			t.Errorf("%s: the group is held: %t", what, got)
		}
	}
	is("no node", false, false)
	see("one", build.Held())
	is("one is held", false, true)
	if n := SlimNode(build.Node("one", build.Held())); n.Open || !n.Ready || !n.NotReadySince.IsZero() || !l.IsHeld("one") {
		t.Errorf("the node is %+v", n)
	}
	see("two")
	is("another one is open", false, false)
	see("two", build.With(func(n *corev1.Node) { n.Spec.Unschedulable = true }))
	is("another one is cordoned", false, true)
	l.ForgetNode("two")
	see("one", build.Lost())
	is("it is known to be dead", true, false)
	if l.IsHeld("one") || l.IsHeld("two") || l.IsHeld("") {
		t.Error("nodes that are dead, gone or none are held")
	}
}
