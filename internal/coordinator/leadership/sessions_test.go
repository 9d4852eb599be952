package leadership

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/atoll-k8s/atoll/internal/governance"
)

// TestSessions: who is silent for 20 seconds is outside, and nobody is before each hub had the time to come.
func TestSessions(t *testing.T) {
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
	expect(20, "[] [b]") // c is looked for since 1 s
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
