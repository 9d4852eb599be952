package seats

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestLoanRespectsTheMaxOfAGroup: group a is avoided and lacks pods.
func TestLoanRespectsTheMaxOfAGroup(t *testing.T) {
	l, _ := newTestLedger("a", "b")
	spread := atMost(t, 3, "a", "b") // of four pods, a has three and b one
	l.Avoid(podIn("avoids", ""), "a")
	for i := range 3 {
		if got := take(t, l, request(fmt.Sprint("t", i), 4, spread)); got != "b" {
			t.Fatalf("pod %d went to %q, want b: its max is 3", i, got)
		}
	}
	if got := take(t, l, request("t3", 4, spread)); got != "a" {
		t.Errorf("the fourth went to %q: b has its max, so it waits in a", got)
	}
}

// TestAGroupThatStaysClosedIsAvoidedForLonger: each time for twice as long, an hour at most.
// After an hour without a penalty, the first time is short again.
func TestAGroupThatStaysClosedIsAvoidedForLonger(t *testing.T) {
	l, clock := newTestLedger("a", "b")
	pod := podIn("p", "node-b")
	avoided := func() (d time.Duration) {
		for can, _ := l.CanTake("a", pod); !can; can, _ = l.CanTake("a", pod) {
			clock.Step(time.Minute)
			d += time.Minute
		}
		return d
	}
	for i, want := range []int{5, 10, 20, 40, 60, 60} {
		l.Avoid(podIn("avoids", ""), "a")
		l.Avoid(podIn("avoids", ""), "a") // for another of its pods
		if got := avoided(); got != time.Duration(want)*time.Minute {
			t.Errorf("time %d: avoided for %s, want %d minutes", i+1, got, want)
		}
	}
	clock.Step(2 * time.Hour)
	l.Avoid(podIn("avoids", ""), "a")
	if got := avoided(); got != AvoidTime {
		t.Errorf("after two hours: avoided for %s, want %s", got, AvoidTime)
	}
}

// TestLoansBetweenTwoGroupsBackOff: the pod finds a node in neither group.
// From time to time the other group gets a node, which is soon full.
func TestLoansBetweenTwoGroupsBackOff(t *testing.T) {
	for name, clears := range map[string]bool{"groups stay as they are": false, "the penalty on a group is cleared once": true} {
		t.Run(name, func(t *testing.T) {
			l, clock := newTestLedger("a", "b")
			pod := podIn("p", "")
			here, other, swings := "a", "b", 0
			for began := clock.Now(); clock.Since(began) < 6*time.Hour; {
				clock.Step(time.Minute) // it waits where it is
				for can, _ := l.CanTake(other, pod); !can; can, _ = l.CanTake(other, pod) {
					clock.Step(5 * time.Second)
					l.Lapse()
				}
				l.Avoid(podIn("avoids", ""), here)
				here, other = other, here
				if swings++; clears && swings == 6 {
					l.mu.Lock()
					l.waiting.clearAvoided(other)
					l.mu.Unlock()
				}
			}
			if swings > 20 {
				t.Errorf("the pod was recreated %d times in six hours, want 20 at most", swings)
			}
		})
	}
}

// refusedPod returns a pod with the condition that kube-scheduler writes when it finds no
// node.
func refusedPod(name, message string, options ...build.Option) *corev1.Pod {
	options = append([]build.Option{build.OwnedBy(build.ReplicaSet("rs")), build.With(func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: message,
			LastTransitionTime: metav1.NewTime(time.Unix(1_000_000, 0)),
		}}
	})}, options...)
	return build.Pod(name, options...)
}

func TestRefusalIsReadFromPodConditions(t *testing.T) {
	tests := map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"the groups with room have their share": {refusedPod("p", "0/2 nodes are available: 1 Insufficient cpu, 1 "+TextOtherGroup+"."), true},
		"only nodes of no group have room":      {refusedPod("p", "0/2 nodes are available: 1 Insufficient cpu, 1 "+TextOutsideGroups+"."), true},
		"no node at all has room":               {refusedPod("p", "0/2 nodes are available: 2 Insufficient cpu."), false},
		"it waits in the group that it got":     {refusedPod("p", "0/2 nodes are available: 2 Insufficient cpu.", build.Seated("a")), true},
		"it has its node":                       {refusedPod("p", TextOtherGroup, build.On("n")), false},
		"it is over":                            {refusedPod("p", TextOtherGroup, build.Deleting("x/y")), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l, clock := newTestLedger("a")
			l.Observe(Slim(tc.pod))
			if got := l.Refused("rs"); got != tc.want {
				t.Errorf("refused: %t, want %t", got, tc.want)
			}
			if l.Refused("another") {
				t.Error("another owner's pods were refused")
			}
			l.Forget(tc.pod.UID) // recreated
			if got := l.Refused("rs"); got != tc.want {
				t.Error("forgotten with the pod: its successor would wait in the same way")
			}
			clock.Step(refusedTime - 1)
			if held := l.ExtendRefused("rs"); held != tc.want {
				t.Errorf("held: %t, want %t", held, tc.want)
			}
			clock.Step(refusedTime - 1)
			if got := l.Refused("rs"); got != tc.want {
				t.Error("it does not last although it was held")
			}
			clock.Step(2)
			if l.Refused("rs") {
				t.Error("it never ends")
			}
			l.Lapse()
			if len(l.waiting.refused) != 0 {
				t.Errorf("never removed: %v", l.waiting.refused)
			}
		})
	}
}

// TestPodIsRecreatedOncePerRound: a pod may be recreated once, however often
// MayRecreateUnschedulable is called. Its successor may be recreated in the next round, even
// if it gets no group.
func TestPodIsRecreatedOncePerRound(t *testing.T) {
	l, clock := newTestLedger("a")
	created := clock.Now().Add(-10 * time.Second)
	made := 0
	for range 3600 { // an hour in which every pod that comes is refused within five seconds
		if clock.Since(created) >= 5*time.Second {
			may, after := l.MayRecreateUnschedulable("rs", created)
			switch {
			case may:
				made++
				created = clock.Now()
			case after <= 0 || after > refusedTime:
				t.Fatalf("comes back after %s", after)
			}
		}
		clock.Step(time.Second)
	}
	if made < 1 || made > 13 {
		t.Errorf("a pod was recreated %d times in an hour, want once in five minutes", made)
	}
	clock.Step(2 * refusedTime)
	l.Lapse()
	if len(l.waiting.remade) != 0 {
		t.Errorf("never removed: %v", l.waiting.remade)
	}
}

// TestAPodOnLoanScoresInItsGroupAlone: the group does not lack the pod, and is scored all the
// same.
func TestAPodOnLoanScoresInItsGroupAlone(t *testing.T) {
	l, _ := newTestLedger("a", "b")
	for i := range 2 {
		l.Observe(podIn(fmt.Sprint("p", i), "node-b"))
	}
	l.Observe(pinned("loan", "token", "b", ""))
	scores := l.Scores(request("loan", 3, weights("a", 2, "b", 1)))
	if len(scores) != 1 || scores["b"] != 10 {
		t.Errorf("scores are %v, want 10 for b: the pod can go nowhere else", scores)
	}
}

// TestRecreationRoundsAreForgotten: nothing is stored of an owner whose pods do not wait at the gate any more.
func TestRecreationRoundsAreForgotten(t *testing.T) {
	l, clock := newTestLedger("a")
	if may, _ := l.MayRecreateGated(Request{Cohort: cohortOne}, clock.Now().Add(-firstRound)); !may || len(l.waiting.rounds) != 1 {
		t.Fatalf("may %t, kept %v", may, l.waiting.rounds)
	}
	clock.Step(firstRound + maxRound)
	if l.Lapse(); len(l.waiting.rounds) != 1 {
		t.Error("the next round would be as soon as the first")
	}
	clock.Step(time.Second)
	if l.Lapse(); len(l.waiting.rounds) != 0 {
		t.Errorf("never removed: %v", l.waiting.rounds)
	}
}
