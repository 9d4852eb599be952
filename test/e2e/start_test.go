package e2e

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// TestPodsStartWithTheImagesOfTheirGroup is scenario 21: a watch of a node's pods, like
// that of its kubelet, never shows a pod with another image than its group's, and no pod
// is restarted because of its image. That holds as well for workloads that are created before
// their OverridePolicy, or at the same moment: a replica may not have read it when it admits pods.
func TestPodsStartWithTheImagesOfTheirGroup(t *testing.T) {
	inEachForm(t, func(t *testing.T, f *fixture) {
		f.group("start-a", 2)
		f.group("start-b", 2)
		f.create(weights("policy", "start-a", 3, "start-b", 2))
		rules := []gm.RuleWithNodeGroup{registryRule("start-a", "start-a.io"), registryRule("start-b", "start-b.io")}
		f.create(overrides("rules", rules...))
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
		pods := template("later")
		pods.Spec.RestartPolicy = corev1.RestartPolicyNever
		later := &batchv1.Job{ObjectMeta: requiring("later"), Spec: job(5, 5, pods)}
		later.Labels[gm.RequiredOverridePolicyLabel] = "later"
		f.create(later, deployment("late", 5, "policy", requiresOverride("later")))
		for _, app := range []string{"later", "late"} {
			f.eventually(patience, app+" waits at the gate", func() error {
				if pods, gated := f.pods(app), f.behindGates(app); len(pods) != 5 || gated != 5 {
					return fmt.Errorf("%d pods are at the gate, of %d", gated, len(pods))
				}
				return nil
			})
		}
		f.create(overrides("later", rules...), overrides("same", rules...), deployment("same", 5, "policy", requiresOverride("same")))
		for _, app := range []string{"later", "late", "same"} {
			f.eventually(patience, app+" is 3:2", func() error {
				return f.spreadIs(app, map[string]int{"start-a": 3, "start-b": 2})
			})
		}
		kubelet.stopAfter("same")
		if bound < 35 {
			t.Errorf("the watch reported %d pods", bound)
		}
	})
}

// overridesReady returns an error unless an OverridePolicy has a status for its
// generation.
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

// TestSmallGroupInALargeClusterIsFound is scenario 23: the pods of a group of five nodes among
// a thousand others find them at the first attempt, because the chart makes
// kube-scheduler check every node before it calls the extender. With 5 percent, which is
// kube-scheduler's default for more than 5,600 nodes, it checks a hundred nodes for each
// pod, and others for the next one: then pods are refused.
func TestSmallGroupInALargeClusterIsFound(t *testing.T) {
	tier.All(t, "1,000 nodes")
	f := isolated.fixture(t)
	others := make([]string, 1000)
	for i := range others {
		others[i] = fmt.Sprintf("large-%d", i)
	}
	f.nodes(map[string]string{"test-group": "large"}, others...)
	f.group("small", 5)
	f.create(weights("policy", "small", 1))
	f.eventually(patience, "the policy is in force", func() error { return f.reason("policy", gm.ReasonNotUsed) })

	refused := f.watchRefusals("app")
	f.create(deployment("app", 5, "policy"))
	f.eventually(patience, "all five are bound", func() error { return f.spreadIs("app", map[string]int{"small": 5}) })
	f.scheduledBy("app", atoll.Scheduler)
	if n := refused(); n != 0 {
		t.Errorf("%d pods were refused at first", n)
	}

	t.Run("looking at some nodes only refuses pods", func(t *testing.T) {
		f := &fixture{T: t, ctx: f.ctx, ns: f.ns, environment: f.environment}
		const sampling = "atoll-scheduler-sampling"
		config := string(f.atoll.SchedulerConfig)
		for old, now := range map[string]string{
			"percentageOfNodesToScore: 100":     "percentageOfNodesToScore: 5",
			"schedulerName: " + atoll.Scheduler: "schedulerName: " + sampling,
			"leaderElect: true":                 "leaderElect: false",
		} {
			if strings.Count(config, old) != 1 {
				t.Fatalf("the chart's configuration does not say %q once:\n%s", old, config)
			}
			config = strings.Replace(config, old, now, 1)
		}
		kubeconfig, err := f.cluster.ServiceAccountKubeconfig(f.ctx, atoll.Namespace, atoll.Scheduler)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.cluster.StartSchedulerAs(f.ctx, sampling, kubeconfig, []byte(config)); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := f.cluster.RemoveProcess(f.ctx, sampling); err != nil {
				t.Error(err)
			}
		}()
		// For six pods six different sets of a hundred nodes are checked. The five nodes
		// are in at most five of these sets.
		const pods = 6
		refused := f.watchRefusals("sampled")
		f.create(deployment("sampled", pods, "policy", func(d *appsv1.Deployment) { d.Spec.Template.Spec.SchedulerName = sampling }))
		f.eventually(patience, "each pod was tried", func() error {
			if bound, waiting := f.bound("sampled"), f.unschedulable("sampled"); bound+waiting != pods {
				return fmt.Errorf("%d pods are bound, %d are refused", bound, waiting)
			}
			return nil
		})
		f.scheduledBy("sampled", sampling)
		n := refused()
		t.Logf("%d of %d pods were refused", n, pods)
		if n == 0 {
			t.Error("no pod was refused: this test cannot tell the settings apart")
		}
	})
}

// watchRefusals counts a workload's pods for which kube-scheduler finds no node from now
// on, until the returned function is called.
func (f *fixture) watchRefusals(app string) func() int {
	f.Helper()
	refused := map[types.UID]bool{}
	w := f.watchPods(metav1.ListOptions{LabelSelector: "app=" + app}, func(_ watch.EventType, pod *corev1.Pod) {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
				refused[pod.UID] = true
			}
		}
	})
	return func() int {
		w.stopAfter(app)
		return len(refused)
	}
}

// TestMetricsShowSeatsPodsAndEvictions is scenario 52: seats by state, waiting pods by reason,
// surplus pods, evictions by result, and answers to kube-scheduler, as the dashboard
// reads them.
func TestMetricsShowSeatsPodsAndEvictions(t *testing.T) {
	tier.All(t, "breadth: every metric after some activity: 15 s")
	f := isolated.fixture(t)
	f.group("metrics-a", 1)
	f.group("metrics-b", 1)
	before := f.metrics()
	read := func(name, labels string) float64 { return f.metric(name, labels) - before[name+"{"+labels+"}"] }
	are := func(what string, want ...metricIs) {
		t.Helper()
		f.eventually(patience, "the metrics tell of "+what, func() error {
			for _, m := range want {
				if got := read(m.name, m.labels); got != m.value && (!m.least || got < m.value) {
					return fmt.Errorf("%s{%s} grew by %v, want %v", m.name, m.labels, got, m.value)
				}
			}
			return nil
		})
	}
	const (
		evictions = "atoll_propagationpolicy_evictions_total"
		surplus   = "atoll_propagationpolicy_surplus_pods"
		seats     = "atoll_seats_held"
	)
	f.create(weights("policy", "metrics-a", 1), deployment("app", 3, "policy"))
	f.eventually(patience, "three run", func() error {
		if err := f.allReady("app", 3); err != nil {
			return err
		}
		return f.spreadIs("app", map[string]int{"metrics-a": 3})
	})
	are("pods that are placed",
		metricIs{seats, `state="observed"`, 3, false},
		metricIs{seats, `state="reserved"`, 0, false},
		metricIs{surplus, "", 0, false},
		metricIs{"atoll_extender_filter_total", `result="seated"`, 3, true},
		metricIs{"atoll_extender_request_seconds_count", `verb="filter"`, 3, true},
		metricIs{"atoll_extender_request_seconds_count", `verb="bind"`, 3, true},
	)
	f.cordon(true, "metrics-a-0")
	f.scale("app", 5)
	are("pods that wait",
		metricIs{"atoll_propagationpolicy_waiting_pods", `reason="` + gm.ReasonPodsWaiting + `"`, 2, false},
		metricIs{"atoll_propagationpolicy_workloads", `reason="` + gm.ReasonPodsWaiting + `"`, 1, false},
	)
	f.cordon(false, "metrics-a-0")
	f.eventually(patience, "five run", func() error { return f.allReady("app", 5) })

	f.budget("none", "app", "100%", 5)
	f.edit(weights("policy", "metrics-a", 2, "metrics-b", 3))
	are("surplus pods that may not be evicted",
		metricIs{surplus, "", 3, false},
		metricIs{evictions, `result="refused"`, 1, true},
		metricIs{evictions, `result="evicted"`, 0, false},
		metricIs{"atoll_propagationpolicy_workloads", `reason="` + gm.ReasonBlockedByPDB + `"`, 1, false},
	)
	if err := f.kube.PolicyV1().PodDisruptionBudgets(f.ns).Delete(f.ctx, "none", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.eventually(patience, "2:3", func() error { return f.spreadIs("app", map[string]int{"metrics-a": 2, "metrics-b": 3}) })
	are("surplus pods that were evicted",
		metricIs{surplus, "", 0, false},
		metricIs{evictions, `result="evicted"`, 3, false},
		metricIs{seats, `state="observed"`, 5, false},
	)
}

// metricIs is a metric that has grown by a value, or by at least that.
type metricIs struct {
	name, labels string
	value        float64
	least        bool
}
