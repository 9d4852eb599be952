package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// creation is the creation of a pod by the API server, from its audit log.
type creation struct {
	Name string
	// Mutated reports that Atoll's webhook changed the pod, Bypassed that it did not
	// answer and failed open.
	Mutated, Bypassed bool
	// Received is when the API server had the request, and Took how long it took.
	Received time.Time
	Took     time.Duration
}

// creations returns the creations of pods in the test's namespace since a time, with a
// prefix of the name. The audit log does not have names that the API server generated.
func (f *fixture) creations(since time.Time) []creation {
	f.Helper()
	log, err := os.Open(f.cluster.AuditLogPath())
	if err != nil {
		f.Fatal(err)
	}
	defer log.Close()
	var all []creation
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if !strings.Contains(lines.Text(), f.ns) {
			continue
		}
		var event struct {
			Verb        string
			ObjectRef   struct{ Resource, Subresource, Namespace, Name string }
			Annotations map[string]string
			Received    time.Time `json:"requestReceivedTimestamp"`
			Stage       time.Time `json:"stageTimestamp"`
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			continue // the line is still being written
		}
		o := event.ObjectRef
		if event.Verb != "create" || o.Resource != "pods" || o.Subresource != "" || o.Namespace != f.ns || event.Received.Before(since) {
			continue
		}
		c := creation{Name: o.Name, Received: event.Received, Took: event.Stage.Sub(event.Received)}
		for key, value := range event.Annotations {
			switch {
			case !strings.Contains(value, "pods.groupmanagement.kubeedge.io"):
			case strings.HasPrefix(key, "failed-open.mutation.webhook.admission.k8s.io/"):
				c.Bypassed = true
			case strings.HasPrefix(key, "mutation.webhook.admission.k8s.io/"):
				c.Mutated = strings.Contains(value, `"mutated":true`)
			}
		}
		all = append(all, c)
	}
	return all
}

// TestFaultWebhookSlowOrHanging: a webhook that is slow, but within its timeout, changes
// only the duration of a creation. One that hangs fails open: every pod is created, with
// or without a policy, and so are policies; pods without a configured webhook are not
// affected. Pods that were placed against the policy meanwhile are moved when the webhook
// answers again. Pods that name the scheduler that calls the extender are placed exactly
// at once.
func TestFaultWebhookSlowOrHanging(t *testing.T) {
	tier.All(t, "compares durations of creations, and waits for timeouts: minutes")
	f := newFaultyFixture(t)
	f.group("hook-a", 1)
	f.group("hook-b", 1)
	f.create(restless(weights("policy", "hook-a", 1, "hook-b", 1)))
	named := deployment("named", 2, "policy")
	named.Spec.Template.Spec.SchedulerName = atoll.Scheduler
	f.create(deployment("app", 2, "policy"), named, deployment("free", 2, ""))
	even := func(n int) map[string]int { return map[string]int{"hook-a": n / 2, "hook-b": n / 2} }
	f.settled("app", even(2))
	f.settled("named", even(2))
	scale := func(n int) {
		for _, app := range []string{"app", "named", "free"} {
			f.scale(app, n)
		}
	}

	f.part("a slow one is waited for", func(f *fixture) {
		deleted := f.watchDeletions("app")
		since := time.Now()
		f.webhooks.slow(300 * time.Millisecond)
		scale(4)
		f.settled("app", even(4))
		f.settled("named", even(4))
		f.eventually(patience, "pods without a policy run", func() error { return f.allReady("free", 4) })
		f.webhooks.heal()
		f.scheduledBy("app", atoll.Scheduler)
		if n := deleted(); n != 0 {
			f.Errorf("%d pods were deleted", n)
		}
		for _, c := range f.creations(since) {
			if c.Bypassed {
				f.Errorf("pod %s was created past the webhook after %s", c.Name, c.Took)
			}
		}
	})

	f.part("a hanging one is passed by", func(f *fixture) {
		unseen := f.breaks("I5", "the cluster's own kube-scheduler places pods that no webhook saw")
		since := time.Now()
		f.webhooks.hang()
		bare := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bare", Labels: map[string]string{"app": "bare"}}, Spec: restarted(template("bare")).Spec}
		f.create(bare, weights("meanwhile", "hook-a", 1))
		f.cordon(true, "hook-b-0")
		scale(6)
		f.eventually(patience, "all pods are created, and bound where there is room", func() error {
			if n := len(f.pods("named")); n != 6 {
				return fmt.Errorf("named has %d pods, want 6", n)
			}
			return errors.Join(f.allReady("bare", 1), f.allReady("free", 6), f.spreadIs("app", map[string]int{"hook-a": 4, "hook-b": 2}))
		})
		// From here on pods are moved; what replaces one may find the webhook healed.
		scaled := time.Now()
		f.cordon(false, "hook-b-0")
		f.settled("named", even(6))
		f.webhooks.heal()
		bypassed := 0
		var longest time.Duration
		for _, c := range f.creations(since) {
			switch {
			case c.Name == "bare":
				if c.Bypassed || c.Mutated {
					f.Error("a pod without owner and policy was shown to the webhook")
				}
			case c.Received.After(scaled):
			case c.Bypassed:
				bypassed++
				longest = max(longest, c.Took)
			default:
				f.Errorf("pod %s was not created past the webhook", c.Name)
			}
		}
		f.Logf("%d pods were created past the webhook, each within %s", bypassed, longest)
		if bypassed < 3*2 {
			f.Errorf("%d pods were created past the webhook, want at least 6", bypassed)
		}
		f.settled("app", even(6))
		unseen()
	})

	f.part("it is asked again", func(f *fixture) {
		since := time.Now()
		evicted := f.watchEvictions("app")
		scale(8)
		f.settled("app", even(8))
		f.settled("named", even(8))
		mutated := 0
		for _, c := range f.creations(since) {
			if c.Bypassed {
				f.Errorf("pod %s was created past the webhook after %s", c.Name, c.Took)
			}
			if c.Mutated {
				mutated++
			}
		}
		if mutated < 2 {
			f.Errorf("the webhook changed %d pods, want 2 at least", mutated)
		}
		if n := evicted(); n != 0 {
			f.Errorf("%d pods were evicted", n)
		}
		f.eventually(patience, "the policy of that time is in force", func() error {
			if err := f.reason("meanwhile", "NotUsed"); err != nil {
				return fmt.Errorf("PropagationPolicy meanwhile: %w", err)
			}
			return nil
		})
	})
}
