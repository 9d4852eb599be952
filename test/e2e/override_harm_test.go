package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// plaintextRule is one JSON patch operation in one group.
func plaintextRule(group string, operator gm.OverriderOperator, path, value string) gm.RuleWithNodeGroup {
	overrider := gm.PlaintextOverrider{Path: path, Operator: operator}
	if value != "" {
		overrider.Value = &apiextensionsv1.JSON{Raw: []byte(value)}
	}
	return gm.RuleWithNodeGroup{TargetNodeGroup: []string{group}, Overriders: &gm.Overriders{Plaintext: []gm.PlaintextOverrider{overrider}}}
}

// overrideIs returns an error unless an OverridePolicy's condition Ready has a reason and
// its message each of the parts.
func (f *fixture) overrideIs(name, reason string, parts ...string) error {
	var policy gm.OverridePolicy
	if err := f.client.Get(f.ctx, types.NamespacedName{Namespace: f.ns, Name: name}, &policy); err != nil {
		return err
	}
	for _, c := range policy.Status.Conditions {
		if c.Type != gm.ConditionReady || c.Reason != reason {
			continue
		}
		for _, part := range parts {
			if !strings.Contains(c.Message, part) {
				return fmt.Errorf("the message is %q, without %q", c.Message, part)
			}
		}
		return nil
	}
	return fmt.Errorf("conditions are %+v, want %s", policy.Status.Conditions, reason)
}

// waitAtTheGate returns an error unless the workload has exactly n pods, each at the gate
// and equal to its template.
func (f *fixture) waitAtTheGate(app string, n int) error {
	pods := f.pods(app)
	for _, pod := range pods {
		if pod.Spec.NodeName != "" || len(pod.Spec.SchedulingGates) != 1 || pod.Spec.SchedulingGates[0].Name != gm.PolicyGate {
			return fmt.Errorf("pod %s is on node %q, with gates %v", pod.Name, pod.Spec.NodeName, pod.Spec.SchedulingGates)
		}
		if metav1.GetControllerOf(&pod) == nil || pod.Annotations[gm.OverridesAnnotation] != "" {
			return fmt.Errorf("pod %s has no owner, or changed: %v", pod.Name, pod.Annotations)
		}
	}
	if len(pods) != n {
		return fmt.Errorf("%d pods, want %d", len(pods), n)
	}
	return nil
}

// countPods counts, until the returned function is called, the largest number of pods in
// the namespace at any moment, and the number of created pods.
func (f *fixture) countPods() (stop func() (most, created int)) {
	f.Helper()
	var most, created int
	now := map[types.UID]bool{}
	w := f.watchPods(metav1.ListOptions{}, func(kind watch.EventType, pod *corev1.Pod) {
		switch {
		case kind == watch.Deleted || pod.DeletionTimestamp != nil:
			delete(now, pod.UID)
		case !now[pod.UID]:
			created++
			now[pod.UID] = true
		}
		most = max(most, len(now))
	})
	return func() (int, int) {
		w.stop()
		return most, created
	}
}

// TestOverrideOfASelectorLabelCreatesNoExtraPods: a Deployment of 2 never has
// more than 2 pods and those of its surge, whatever label a rule names. Its pods are
// created and wait; the condition names rule, path and selector; once the rule is
// repaired they run.
func TestOverrideOfASelectorLabelCreatesNoExtraPods(t *testing.T) {
	f := newFixture(t)
	f.group("label-a", 1)
	f.create(weights("policy", "label-a", 1))
	for _, key := range []string{"pod-template-hash", "controller-revision-hash", "statefulset.kubernetes.io~1pod-name", "batch.kubernetes.io~1job-name", "job-name"} {
		err := f.client.Create(f.ctx, overridesIn(f.ns, "refused", plaintextRule("label-a", gm.OverriderOpReplace, "/metadata/labels/"+key, `"mine"`)))
		if err == nil || !strings.Contains(err.Error(), "a controller finds its pods by the label") {
			t.Errorf("an override of the label %s is accepted: %v", key, err)
		}
	}
	f.create(overrides("rules", plaintextRule("label-a", gm.OverriderOpReplace, "/metadata/labels/app", `"mine"`)))
	count := f.countPods()
	f.create(deployment("app", 2, "policy", requiresOverride("rules")))
	f.eventually(patience, "both pods are created and wait", func() error { return f.waitAtTheGate("app", 2) })
	f.eventually(patience, "the policy names rule, path and selector", func() error {
		return f.overrideIs("rules", gm.ReasonInvalid, `Deployment "app": spec.overrideRules[0].overriders.plaintext[0]: must not change the label app`, "finds its pods by app")
	})
	f.setRules("rules", plaintextRule("label-a", gm.OverriderOpAdd, "/metadata/labels/tier", `"edge"`))
	f.eventually(patience, "both run as the mended rule wants them", func() error {
		for _, pod := range f.pods("app") {
			if pod.Labels["tier"] != "edge" {
				return fmt.Errorf("pod %s has labels %v", pod.Name, pod.Labels)
			}
		}
		return f.allReady("app", 2)
	})
	most, created := count()
	if most > 3 {
		t.Errorf("%d pods at a time, want at most 3", most)
	}
	t.Logf("%d pods at a time, %d ever", most, created)
}

func overridesIn(namespace, name string, rules ...gm.RuleWithNodeGroup) *gm.OverridePolicy {
	o := overrides(name, rules...)
	o.Namespace = namespace
	return o
}

// TestAnOverrideThatTheAPIServerRefusesKeepsNoPodFromBeingCreated: two volumes of one
// name. The pods of a new workload are created and wait; those of a running workload keep
// running; the condition has the rule and the API server's answer; once the rule is
// repaired, all pods match it.
func TestAnOverrideThatTheAPIServerRefusesKeepsNoPodFromBeingCreated(t *testing.T) {
	tier.All(t, "waits for trials that are repeated: 10 s")
	f := newFixture(t)
	f.group("volume-a", 1)
	f.create(weights("policy", "volume-a", 1))
	volumes := func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	}
	volume := func(name string) gm.RuleWithNodeGroup {
		return plaintextRule("volume-a", gm.OverriderOpAdd, "/spec/volumes/-", fmt.Sprintf(`{"name":%q,"emptyDir":{}}`, name))
	}
	f.create(overrides("rules", argsRule("volume-a", "--site=a")))
	f.create(deployment("runs", 2, "policy", requiresOverride("rules"), volumes))
	f.eventually(patience, "both run", func() error { return f.allReady("runs", 2) })
	running := f.uids("runs")

	f.setRules("rules", argsRule("volume-a", "--site=a"), volume("data"))
	refused := func() error {
		return f.overrideIs("rules", gm.ReasonOverrideRefused, "spec.overrideRules[1].overriders: the API server refuses the pod with its changes", `spec.volumes[1].name: Duplicate value: "data"`)
	}
	f.eventually(patience, "the policy has the rule and the API server's words", refused)
	count := f.countPods()
	f.create(deployment("new", 2, "policy", requiresOverride("rules"), volumes))
	f.eventually(patience, "the pods of a new workload are created and wait", func() error { return f.waitAtTheGate("new", 2) })
	f.eventually(patience, "the policy goes on saying so", refused)
	f.scale("runs", 3)
	f.eventually(patience, "a third pod is created and waits", func() error {
		if n := len(f.pods("runs")); n != 3 {
			return fmt.Errorf("%d pods", n)
		}
		return f.bindingIs("runs", false)
	})
	now := f.uids("runs")
	for _, uid := range running {
		if !slices.Contains(now, uid) {
			t.Errorf("pod %s ran and is gone", uid)
		}
	}
	if err := refused(); err != nil {
		t.Error(err)
	}
	f.setRules("rules", argsRule("volume-a", "--site=a"), volume("more"))
	f.eventually(2*time.Minute, "everything runs as the mended rule wants it", func() error {
		for app, n := range map[string]int{"runs": 3, "new": 2} {
			if err := f.allReady(app, n); err != nil {
				return err
			}
			for _, pod := range f.pods(app) {
				if len(pod.Spec.Volumes) < 2 || pod.Spec.Volumes[0].Name != "data" || !hasVolume(&pod, "more") {
					return fmt.Errorf("pod %s has volumes %v", pod.Name, pod.Spec.Volumes)
				}
			}
		}
		return f.overrideIs("rules", gm.ReasonSatisfied)
	})
	most, created := count()
	t.Logf("%d pods at a time, %d ever", most, created)
}

func hasVolume(pod *corev1.Pod, name string) bool {
	for _, volume := range pod.Spec.Volumes {
		if volume.Name == name {
			return true
		}
	}
	return false
}

// bindingIs returns an error unless a Deployment carries the label that binds it to its
// OverridePolicy.
func (f *fixture) bindingIs(app string, want bool) error {
	var d appsv1.Deployment
	if err := f.client.Get(f.ctx, types.NamespacedName{Namespace: f.ns, Name: app}, &d); err != nil {
		return err
	}
	if is := d.Labels[gm.BindingOverridePolicyLabel] != ""; is != want {
		return errors.New("the binding label is wrong")
	}
	return nil
}
