package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

// TestPodsThatWentPastTheWebhookAreCounted: they are created while no replica
// answers, and found by the next that starts. Pods without a policy are not
// counted, nor those that pass.
func TestPodsThatWentPastTheWebhookAreCounted(t *testing.T) {
	f := newFixture(t)
	f.group("past", 2)
	f.create(weights("policy", "past", 1))
	f.create(deployment("app", 2, "policy"), deployment("free", 2, ""))
	f.settled("app", map[string]int{"past": 2})
	if err := f.cluster.Kill(f.ctx, atoll.Manager); err != nil {
		t.Fatal(err)
	}
	started := false
	restart := func() {
		if !started {
			started = true
			if err := f.cluster.Restart(f.ctx, atoll.Manager); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Cleanup(restart)
	killed := time.Now()
	f.eventually(patience, "a pod that is created now is younger than the last that passed", func() error {
		if now := time.Now(); now.Unix() <= killed.Unix()+1 { // ages are whole seconds
			return fmt.Errorf("it is %s, and atoll-manager went at %s", now, killed)
		}
		return nil
	})
	f.scale("app", 5)
	f.scale("free", 5)
	f.eventually(patience, "pods are created without us", func() error {
		if n, m := len(f.pods("app")), len(f.pods("free")); n != 5 || m != 5 {
			return fmt.Errorf("there are %d and %d", n, m)
		}
		return nil
	})
	restart()
	bypasses := func(want float64) func() error {
		return func() error {
			if n := f.metric("atoll_webhook_bypasses_total", ""); n != want {
				return fmt.Errorf("%v are counted, want %v", n, want)
			}
			return nil
		}
	}
	f.eventually(patience, "3 are counted", bypasses(3))
	f.settled("app", map[string]int{"past": 5})
	f.scale("app", 8)
	f.settled("app", map[string]int{"past": 8})
	f.always(5*time.Second, "those that pass are not", bypasses(3))
}
