package leadership

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/atoll-k8s/atoll/internal/governance"
)

// TestSilentHubIsOutsideAfter20Seconds: the writer reports none until each hub had the time to send a beat.
func TestSilentHubIsOutsideAfter20Seconds(t *testing.T) {
	start := time.Now()
	s, pool := NewSessions(start), sets.New("a", "b", "c")
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	expect := func(seconds int, want string) {
		t.Helper()
		got := "nothing"
		if state := s.State(pool, at(seconds)); state != nil {
			got = fmt.Sprint(state.Outside, state.Refused)
		}
		if got != want {
			t.Errorf("after %d s the pool is %s, want %s", seconds, got, want)
		}
	}
	expect(1, "nothing")
	s.Beat("a", &governance.Beat{}, at(10))
	s.Beat("b", &governance.Beat{IsRefused: true}, at(10))
	expect(19, "nothing")
	expect(20, "[c] [b]") // nobody is taken for there that was not heard
	expect(21, "[c] [b]")
	s.Beat("b", &governance.Beat{}, at(22))
	expect(29, "[c] []")
	expect(30, "[a c] []")
	pool.Insert("d")
	pool.Delete("c")
	expect(31, "[a] []")
	s.Beat("a", &governance.Beat{}, at(32))
	expect(41, "[] []")
	pool.Insert("c") // again: it has its time again
	expect(52, "[a b d] []")
	s.Beat("x", &governance.Beat{IsRefused: true}, at(53)) // it has just left the pool
	expect(53, "[a b d] []")
}

// TestReportCountsUntilItIsOldOrTheNodeIsOnline: its age is that of its last change. Its statuses are requested
// once.
func TestReportCountsUntilItIsOldOrTheNodeIsOnline(t *testing.T) {
	start := time.Now()
	s := NewSessions(start)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	statuses := &governance.Statuses{Pods: []governance.PodStatus{{Namespace: "default", Name: "web", UID: "1"}}}
	beat := func(seconds, renewed int, digest string) bool {
		return s.Beat("a", &governance.Beat{Report: &governance.Report{Renewed: metav1.NewMicroTime(at(renewed)), Digest: digest}}, at(seconds))
	}
	reports := func(seconds int) string {
		var all []string
		for node, r := range s.Reports(at(seconds)) {
			all = append(all, fmt.Sprint(node, " ", r.Renewed.Sub(start), " ", r.Digest != ""))
		}
		return strings.Join(all, ", ")
	}
	if s.Put("a", statuses, 10); s.bytes != 0 || s.Statuses("a") != nil {
		t.Error("the statuses of a node that reports nothing are kept")
	}
	if beat(1, -300, "") { // its clock is slow
		t.Error("statuses are missing that there are none of")
	}
	if got := reports(15); got != "a -5m0s false" {
		t.Errorf("the reports are %s", got)
	}
	beat(15, -300, "")
	if got := reports(16); got != "" {
		t.Errorf("15 s after a heartbeat the reports are %s, although it was said again", got)
	}
	if !beat(17, -290, statuses.Digest()) || !s.Put("a", statuses, 10) || beat(18, -290, statuses.Digest()) || s.Statuses("a") != statuses || s.bytes != 10 {
		t.Error("the statuses are not asked for once")
	}
	if got := reports(18); got != "a -4m50s true" {
		t.Errorf("the reports are %s", got)
	}
	if s.Put("a", statuses, maxStatuses+1) || s.bytes != 10 {
		t.Error("there is no bound")
	}
	if !beat(19, -280, "another") || s.Reports(at(19))["a"].Digest != statuses.Digest() {
		t.Error("the digest is not that of the statuses that are there")
	}
	s.Beat("a", &governance.Beat{HasCloud: true}, at(20))
	if got := reports(20); got != "" || s.bytes != 0 || s.Statuses("a") != nil {
		t.Errorf("of a node that reaches the cloud the reports are %s, %d bytes", got, s.bytes)
	}
	beat(21, -270, statuses.Digest())
	s.Put("a", statuses, 10)
	s.State(sets.New("b"), at(22))
	if s.bytes != 0 || len(s.Reports(at(22))) != 0 {
		t.Error("something is left of a node that has left the pool")
	}
}
