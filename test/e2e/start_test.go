package e2e

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// TestPodsStartWithTheImagesOfTheirGroup is scenario 21: whoever watches pods of
// a node, as its kubelet does, never sees one with another image than its
// group's, and none is restarted for it.
func TestPodsStartWithTheImagesOfTheirGroup(t *testing.T) {
	f := newFixture(t)
	f.group("start-a", 2)
	f.group("start-b", 2)
	f.create(weights("policy", "start-a", 3, "start-b", 2))
	rules := overrides("rules")
	for _, group := range []string{"start-a", "start-b"} {
		rules.Spec.OverrideRules = append(rules.Spec.OverrideRules, gm.RuleWithNodeGroup{
			TargetNodeGroup: []string{group}, Overriders: &gm.Overriders{ImageOverrider: []gm.ImageOverrider{
				{Component: gm.Registry, Operator: gm.OverriderOpReplace, Value: group + ".io"},
			}},
		})
	}
	f.create(rules)
	f.eventually(patience, "the rules are read", func() error { return f.overridesReady("rules") })

	bound := 0
	kubelet := f.watchPods(metav1.ListOptions{FieldSelector: "spec.nodeName!="}, func(_ watch.EventType, pod *corev1.Pod) {
		bound++
		want := pod.Spec.NodeName[:len("start-a")] + ".io/nginx:1.27"
		if got := pod.Spec.Containers[0].Image; got != want {
			t.Errorf("a kubelet sees pod %s with image %s, want %s", pod.Name, got, want)
		}
		for _, status := range pod.Status.ContainerStatuses {
			if status.RestartCount != 0 {
				t.Errorf("pod %s was restarted", pod.Name)
			}
		}
	})
	f.create(deployment("app", 20, "policy", requiresOverride("rules")))
	f.eventually(patience, "12:8", func() error {
		if err := f.allReady("app", 20); err != nil {
			return err
		}
		return f.spreadIs("app", map[string]int{"start-a": 12, "start-b": 8})
	})
	kubelet.stopAfter("app")
	if bound < 20 {
		t.Errorf("the watch told of %d pods", bound)
	}
}

// overridesReady tells whether an OverridePolicy has been looked at.
func (f *fixture) overridesReady(name string) error {
	var p gm.OverridePolicy
	if err := f.client.Get(f.ctx, types.NamespacedName{Namespace: f.ns, Name: name}, &p); err != nil {
		return err
	}
	for _, c := range p.Status.Conditions {
		if c.Type == gm.ConditionReady && c.Status == metav1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("conditions are %v", p.Status.Conditions)
}

// TestASmallGroupOfALargeCluster is scenario 23: the pods of a group of five
// nodes among a thousand others find them at once, because kube-scheduler is
// configured to look at every node before it asks.
func TestASmallGroupOfALargeCluster(t *testing.T) {
	f := newFixture(t)
	others := make([]string, 1000)
	for i := range others {
		others[i] = fmt.Sprintf("large-%d", i)
	}
	f.nodes(map[string]string{"test-group": "large"}, others...)
	f.group("small", 5)
	f.create(weights("policy", "small", 1))
	f.eventually(patience, "the policy is in force", func() error { return f.reason("policy", gm.ReasonNotUsed) })
	began := time.Now()
	f.create(deployment("app", 5, "policy"))
	f.eventually(patience, "all five are bound", func() error { return f.spreadIs("app", map[string]int{"small": 5}) })
	t.Logf("bound %s after the Deployment was created", time.Since(began).Round(time.Millisecond))
}

// TestMetricsTellWhatIsGoingOn: seats by state, waiting pods by reason, and how
// kube-scheduler was answered, as the dashboard reads them.
func TestMetricsTellWhatIsGoingOn(t *testing.T) {
	f := newFixture(t)
	f.group("metrics-a", 1)
	seatsBefore := f.metric("atoll_seats_held", `state="observed"`)
	seatedBefore := f.metric("atoll_extender_filter_total", `result="seated"`)
	policy := weights("policy", "metrics-a", 1)
	f.create(policy, deployment("app", 3, "policy"))
	f.eventually(patience, "three are placed", func() error { return f.spreadIs("app", map[string]int{"metrics-a": 3}) })
	f.cordon(true, "metrics-a-0")
	f.scale("app", 5)
	f.eventually(patience, "the metrics say so", func() error {
		for _, m := range []struct {
			name, labels string
			least        float64
		}{
			{"atoll_seats_held", `state="observed"`, seatsBefore + 3},
			{"atoll_extender_filter_total", `result="seated"`, seatedBefore + 3},
			{"atoll_propagationpolicy_waiting_pods", `reason="` + gm.ReasonPodsWaiting + `"`, 2},
			{"atoll_propagationpolicy_workloads", `reason="` + gm.ReasonPodsWaiting + `"`, 1},
			{"atoll_extender_request_seconds_count", `verb="bind"`, 3},
		} {
			if got := f.metric(m.name, m.labels); got < m.least {
				return fmt.Errorf("%s{%s} is %v, want %v", m.name, m.labels, got, m.least)
			}
		}
		return nil
	})
}
