package e2e

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// TestNextReplicaCountsPodsThatBypassedTheWebhook: pods are created while no replica answers,
// and the next replica that starts counts them. Pods without a policy and pods that pass
// the webhook are not counted.
func TestNextReplicaCountsPodsThatBypassedTheWebhook(t *testing.T) {
	tier.All(t, "waits for the Lease of a killed leader, and for evictions: 1.5 min")
	f := newFixture(t)
	f.group("past", 2)
	f.create(weights("policy", "past", 1))
	f.create(deployment("app", 2, "policy"), deployment("free", 2, ""))
	f.settled("app", map[string]int{"past": 2})
	restart := f.killForNow(atoll.Manager)
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

// TestUnreachableWebhookLosesNoPod: the API server does not reach the pod webhook, while
// atoll-manager runs. Pods of a workload with a policy are created all the same. If a
// scheduler calls the extender for every pod, they wait for room in their group;
// otherwise they run where they are placed. The division is exact when the webhook is
// back.
func TestUnreachableWebhookLosesNoPod(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fixture) {
		if f.form != atoll.Pinned {
			tier.All(t, "as in Pinned: a minute more")
		}
		f.group("lost-a", 1)
		f.group("lost-b", 1)
		f.create(weights("policy", "lost-a", 1, "lost-b", 1))
		f.create(deployment("app", 4, "policy"), deployment("free", 1, ""))
		f.settled("app", map[string]int{"lost-a": 2, "lost-b": 2})
		unseen := f.breaks("I5", "pods that no webhook saw go anywhere")
		found := f.loseWebhook()
		f.cordon(true, "lost-b-0")
		f.scale("app", 8)
		f.scale("free", 2)
		inA := 6
		if f.form == atoll.Plain {
			inA = 4
		}
		f.eventually(patience, "pods are created, and bound", func() error {
			if n := len(f.pods("app")); n != 8 {
				return fmt.Errorf("%d pods", n)
			}
			if err := f.boundAre("free", 2); err != nil {
				return err
			}
			return f.spreadIs("app", map[string]int{"lost-a": inA, "lost-b": 2})
		})
		f.cordon(false, "lost-b-0")
		found()
		f.settled("app", map[string]int{"lost-a": 4, "lost-b": 4})
		unseen()
	})
}

// loseWebhook points the API server to an address without a webhook, until the returned
// function is called or the test ends.
func (f *fixture) loseWebhook() (found func()) {
	f.Helper()
	configurations := f.kube.AdmissionregistrationV1().MutatingWebhookConfigurations()
	var was string
	set := func(change func(u *url.URL)) {
		f.Helper()
		f.eventually(patience, "the webhook's address is changed", func() error {
			config, err := configurations.Get(f.ctx, "atoll-pods", metav1.GetOptions{})
			if err != nil {
				return err
			}
			for i := range config.Webhooks {
				u, err := url.Parse(*config.Webhooks[i].ClientConfig.URL)
				if err != nil {
					return err
				}
				change(u)
				config.Webhooks[i].ClientConfig.URL = new(u.String())
			}
			_, err = configurations.Update(f.ctx, config, metav1.UpdateOptions{})
			return err
		})
	}
	set(func(u *url.URL) {
		was = u.Host
		u.Host = u.Hostname() + ":1"
	})
	found = func() {
		if was != "" {
			set(func(u *url.URL) { u.Host = was })
			was = ""
		}
	}
	f.Cleanup(found)
	return found
}
