package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// argsRule adds an argument to the container "app" in one group.
func argsRule(group string, args ...string) gm.RuleWithNodeGroup {
	return gm.RuleWithNodeGroup{TargetNodeGroup: []string{group}, Overriders: &gm.Overriders{
		ArgsOverrider: []gm.CommandArgsOverrider{{ContainerName: "app", Operator: gm.OverriderOpAdd, Value: args}},
		ImageOverrider: []gm.ImageOverrider{
			{Component: gm.Registry, Operator: gm.OverriderOpReplace, Value: group + ".io"},
		},
	}}
}

func overrides(name string, rules ...gm.RuleWithNodeGroup) *gm.OverridePolicy {
	return &gm.OverridePolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: gm.OverrideSpec{OverrideRules: rules}}
}

func requiresOverride(name string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Labels[gm.RequiredOverridePolicyLabel] = name }
}

// setRules replaces the rules of an OverridePolicy.
func (f *fixture) setRules(name string, rules ...gm.RuleWithNodeGroup) {
	f.Helper()
	f.patch(&gm.OverridePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: name}}, map[string]any{"spec": map[string]any{"overrideRules": rules}})
}

// argsAre returns an error unless every bound pod of a workload has the arguments and the
// registry of its group, and has never been restarted.
func (f *fixture) argsAre(app string, want map[string]string) error {
	for _, pod := range f.pods(app) {
		group := pod.Labels[gm.NodeGroupLabel]
		if pod.Spec.NodeName == "" || !strings.HasPrefix(pod.Spec.NodeName, group+"-") {
			return fmt.Errorf("pod %s of group %q is on node %q", pod.Name, group, pod.Spec.NodeName)
		}
		c := pod.Spec.Containers[0]
		if got := strings.Join(c.Args, " "); got != want[group] {
			return fmt.Errorf("pod %s in %s has arguments %q, want %q", pod.Name, group, got, want[group])
		}
		if image := group + ".io/nginx:1.27"; c.Image != image {
			return fmt.Errorf("pod %s has image %s, want %s", pod.Name, c.Image, image)
		}
		for _, status := range pod.Status.ContainerStatuses {
			if status.RestartCount != 0 {
				return fmt.Errorf("pod %s was restarted", pod.Name)
			}
		}
	}
	return nil
}

// TestPodsAreCreatedWithTheArgumentsOfTheirGroup is scenarios 16 and 17: fields that
// cannot change on a pod are right from its creation, and pods are divided exactly.
// Changed rules replace pods one at a time. When a rule is removed the template's
// arguments return. No value is added twice.
func TestPodsAreCreatedWithTheArgumentsOfTheirGroup(t *testing.T) {
	f := newFixture(t)
	f.group("early-a", 2)
	f.group("early-b", 2)
	f.create(weights("policy", "early-a", 3, "early-b", 2))
	f.create(overrides("rules", argsRule("early-a", "--site=a"), argsRule("early-b", "--site=b")))
	deleted := f.watchDeletions("app")
	f.create(deployment("app", 20, "policy", requiresOverride("rules"), func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Containers[0].Args = []string{"serve"}
	}))
	is := func(n int, spread map[string]int, args map[string]string) func() error {
		return func() error {
			if err := f.allReady("app", n); err != nil {
				return err
			}
			if err := f.spreadIs("app", spread); err != nil {
				return err
			}
			return f.argsAre("app", args)
		}
	}
	f.eventually(patience, "12:8, each with the arguments of its group",
		is(20, map[string]int{"early-a": 12, "early-b": 8}, map[string]string{"early-a": "serve --site=a", "early-b": "serve --site=b"}))
	// Pods that the ReplicaSet created before the Deployment was bound wait at the gate
	// and are recreated.
	for _, pod := range f.pods("app") {
		if pod.Annotations[gm.SeatAnnotation] == "" {
			t.Errorf("pod %s has no seat from its creation", pod.Name)
		}
	}
	t.Logf("%d pods were recreated because they came before the policies were bound", deleted())

	f.scale("app", 5)
	f.eventually(patience, "3:2", func() error { return f.spreadIs("app", map[string]int{"early-a": 3, "early-b": 2}) })
	watch := f.watchAvailability("app", 5)
	f.setRules("rules", argsRule("early-a", "--site=a", "--new"), argsRule("early-b", "--site=b"))
	f.eventually(patience, "pods of a are replaced",
		is(5, map[string]int{"early-a": 3, "early-b": 2}, map[string]string{"early-a": "serve --site=a --new", "early-b": "serve --site=b"}))
	if worst, gone := watch(); worst < 4 || gone != 3 {
		t.Errorf("at the worst moment %d of 5 were available, %d were replaced, want 4 and 3", worst, gone)
	}
	f.setRules("rules")
	f.eventually(patience, "the template's arguments", func() error {
		for _, pod := range f.pods("app") {
			c := pod.Spec.Containers[0]
			if !slices.Equal(c.Args, []string{"serve"}) || c.Image != "nginx:1.27" {
				return fmt.Errorf("pod %s has %s %v", pod.Name, c.Image, c.Args)
			}
		}
		return f.allReady("app", 5)
	})
}

// TestARuleThatCannotBeAppliedIsNamed is scenario 18: the workload's pods wait, and the
// policy's status names the rule; another workload of the same kind is not affected; once
// the rule is repaired the pods are created.
func TestARuleThatCannotBeAppliedIsNamed(t *testing.T) {
	f := newFixture(t)
	f.group("wrong", 1)
	f.create(weights("policy", "wrong", 1))
	wrong := argsRule("wrong", "--x")
	wrong.Overriders.ArgsOverrider[0].ContainerName = "nobody"
	f.create(overrides("bad", wrong), overrides("good", argsRule("wrong", "--y")))
	f.create(deployment("broken", 1, "policy", requiresOverride("bad")), deployment("whole", 1, "policy", requiresOverride("good")))
	f.eventually(patience, "the other workload runs", func() error {
		if err := f.allReady("whole", 1); err != nil {
			return err
		}
		return f.argsAre("whole", map[string]string{"wrong": "--y"})
	})
	f.eventually(patience, "the policy names the rule", func() error {
		var policy gm.OverridePolicy
		if err := f.client.Get(f.ctx, types.NamespacedName{Namespace: f.ns, Name: "bad"}, &policy); err != nil {
			return err
		}
		for _, c := range policy.Status.Conditions {
			if c.Type == gm.ConditionReady && c.Reason == gm.ReasonInvalid &&
				strings.Contains(c.Message, "spec.overrideRules[0].overriders.argsOverrider[0]") && strings.Contains(c.Message, "nobody") {
				return nil
			}
		}
		return fmt.Errorf("conditions are %+v", policy.Status.Conditions)
	})
	before := f.pods("broken")[0].UID
	f.always(3*time.Second, "the pod waits and is not recreated again and again", func() error {
		pods := f.pods("broken")
		if len(pods) != 1 || pods[0].UID != before || pods[0].Spec.NodeName != "" {
			return fmt.Errorf("pods are %d, the first is %s on %q", len(pods), pods[0].Name, pods[0].Spec.NodeName)
		}
		return nil
	})
	f.setRules("bad", argsRule("wrong", "--z"))
	f.eventually(patience, "the pod comes as the mended rule wants it", func() error {
		if err := f.allReady("broken", 1); err != nil {
			return err
		}
		return f.argsAre("broken", map[string]string{"wrong": "--z"})
	})
}

// TestUnschedulableEarlyPodAvoidsItsGroup: a pod that finds no node in the group that it got at
// creation is replaced, and the next one avoids the group; when the group has
// room again, the spread becomes exact again.
func TestUnschedulableEarlyPodAvoidsItsGroup(t *testing.T) {
	tier.All(t, "waits until a pod goes on loan: 10 s")
	f := newFixture(t)
	f.group("on-a", 1)
	f.group("on-b", 1)
	f.cordon(true, "on-a-0")
	policy := weights("policy", "on-a", 1, "on-b", 1)
	policy.Spec.Assignment = gm.AssignmentEarly
	soon := int32(2)
	policy.Spec.RescheduleAfterSeconds = &soon
	f.create(policy)
	f.create(deployment("app", 4, "policy"))
	f.eventually(patience, "all four run in b", func() error {
		if err := f.allReady("app", 4); err != nil {
			return err
		}
		return f.spreadIs("app", map[string]int{"on-b": 4})
	})
	f.cordon(false, "on-a-0")
	f.eventually(patience, "two move to a", func() error {
		if err := f.allReady("app", 4); err != nil {
			return err
		}
		return f.spreadIs("app", map[string]int{"on-a": 2, "on-b": 2})
	})
}

// TestDaemonSetsAreOverriddenByTheirNode: the pod of each node has the
// arguments of the node's group; on a node of no group, those of the template.
func TestDaemonSetsAreOverriddenByTheirNode(t *testing.T) {
	f := newFixture(t)
	f.group("ds-a", 1)
	f.group("ds-b", 1)
	f.nodes(nil, "ds-none-0")
	f.create(overrides("rules", argsRule("ds-a", "--site=a"), argsRule("ds-b", "--site=b")))
	labels := map[string]string{"app": "agent"}
	f.create(&appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "agent", Labels: map[string]string{gm.RequiredOverridePolicyLabel: "rules"}},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: new(int64),
					Containers:                    []corev1.Container{{Name: "app", Image: "nginx:1.27"}},
				},
			},
		},
	})
	want := map[string]string{"ds-a-0": "--site=a", "ds-b-0": "--site=b", "ds-none-0": ""}
	f.eventually(patience, "each node's pod has its arguments", func() error {
		seen := map[string]string{}
		for _, pod := range f.pods("agent") {
			if _, ours := want[pod.Spec.NodeName]; ours && podReady(&pod) {
				seen[pod.Spec.NodeName] = strings.Join(pod.Spec.Containers[0].Args, " ")
			}
		}
		if fmt.Sprint(seen) != fmt.Sprint(want) {
			return fmt.Errorf("arguments are %v, want %v", seen, want)
		}
		return nil
	})
}
