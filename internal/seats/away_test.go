package seats

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// readyIs sets the Ready condition of a node and since when it has this value.
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

// TestEpochChangesWithGroupAvailability: callers may cache what they computed from
// NotReadySince and HasMembers for as long as the epoch stays the same.
func TestEpochChangesWithGroupAvailability(t *testing.T) {
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

// TestNodeStatusUpdatesAreNoGroupChange: a group changes when a node joins or leaves it, or becomes open.
// The status updates that a node sends every few seconds are no change: otherwise no workload
// would ever count as stable.
func TestNodeStatusUpdatesAreNoGroupChange(t *testing.T) {
	l, clock := newTestLedger()
	node := Node{Name: "n", Group: "a", Open: true, Ready: true}
	for _, step := range []struct {
		what    string
		change  func()
		changed bool
	}{
		{"it joins", func() {}, true},
		{"it says so again", func() {}, false},
		{"it is cordoned", func() { node.Open = false }, false},
		{"it stays cordoned", func() {}, false},
		{"it takes pods again", func() { node.Open = true }, true},
		{"it leaves", func() { node.Group = "" }, true},
		{"it says so again", func() {}, false},
	} {
		clock.Step(time.Minute)
		before := l.MovedAt("a", "b")
		step.change()
		l.ObserveNode(node)
		if at := l.MovedAt("a", "b"); at.Equal(clock.Now()) != step.changed || !step.changed && !at.Equal(before) {
			t.Errorf("%s: the group changed last at %s, now it is %s", step.what, at, clock.Now())
		}
	}
	last := l.MovedAt("a")
	clock.SetTime(last.Add(movedTTL))
	if l.Lapse(); !l.MovedAt("a").Equal(last) {
		t.Error("removed while a workload may still wait to be stable")
	}
	clock.Step(1)
	if l.Lapse(); !l.MovedAt("a").IsZero() {
		t.Error("never removed")
	}
}

// TestHandlerGetsGroupsOfChangedNodes: the handler gets the groups that a node joins or leaves, and the
// group of a node that becomes open or Ready or stops being so.
func TestHandlerGetsGroupsOfChangedNodes(t *testing.T) {
	l, _ := newTestLedger()
	var received [][]string
	l.OnGroups(func(groups ...string) { received = append(received, groups) })
	node := Node{Name: "n", Group: "a", Open: true, Ready: true}
	for _, step := range []struct {
		what   string
		change func()
		want   [][]string
	}{
		{"it joins", func() {}, [][]string{{"a"}}},
		{"nothing changes", func() {}, nil},
		{"it is cordoned", func() { node.Open = false }, [][]string{{"a"}}},
		{"it is not Ready", func() { node.Ready = false }, [][]string{{"a"}}},
		{"it is as it was", func() { node.Open, node.Ready = true, true }, [][]string{{"a"}}},
		{"it goes to another", func() { node.Group = "b" }, [][]string{{"a", "b"}}},
		{"it goes to none", func() { node.Group = "" }, [][]string{{"b"}}},
		{"it is cordoned, in none", func() { node.Open = false }, nil},
		{"it comes back", func() { node.Group = "b" }, [][]string{{"b"}}},
	} {
		received = nil
		step.change()
		l.ObserveNode(node)
		if diff := cmp.Diff(step.want, received); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.what, diff)
		}
	}
	received = nil
	l.ForgetNode("n")
	l.ForgetNode("n")
	if diff := cmp.Diff([][]string{{"b"}}, received); diff != "" {
		t.Errorf("it is gone (-want +got):\n%s", diff)
	}
}

// TestTheGroupsOfNodes: the group of a node is that of its label. An unknown node has none.
func TestTheGroupsOfNodes(t *testing.T) {
	l, _ := newTestLedger("a", "b")
	l.ObserveNode(Node{Name: "free"})
	names := []string{"node-b", "unknown", "free", "node-a"}
	want := []string{"b", "", "", "a"}
	if diff := cmp.Diff(want, l.NodeGroups([]string{"what", "was"}, names)); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
	for i, name := range names {
		if got := l.NodeGroup(name); got != want[i] {
			t.Errorf("%s is in group %q, want %q", name, got, want[i])
		}
	}
}
