package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// patches returns a rule with plaintext overriders for the groups.
func patches(groups []string, overriders ...gm.PlaintextOverrider) gm.RuleWithNodeGroup {
	return gm.RuleWithNodeGroup{TargetNodeGroup: groups, Overriders: &gm.Overriders{Plaintext: overriders}}
}

// patchOf returns one plaintext overrider; value is nil for a remove.
func patchOf(operator gm.OverriderOperator, path string, value any) gm.PlaintextOverrider {
	fields := map[string]any{"operator": operator, "path": path}
	if value != nil {
		fields["value"] = value
	}
	var o gm.PlaintextOverrider
	raw, err := json.Marshal(fields)
	if err == nil {
		err = json.Unmarshal(raw, &o)
	}
	if err != nil {
		panic(err) // the test is wrong
	}
	return o
}

// commandRule changes the command of the container "app" in one group.
func commandRule(group string, operator gm.OverriderOperator, value ...string) gm.RuleWithNodeGroup {
	return gm.RuleWithNodeGroup{TargetNodeGroup: []string{group}, Overriders: &gm.Overriders{
		CommandOverrider: []gm.CommandArgsOverrider{{ContainerName: "app", Operator: operator, Value: value}},
	}}
}

// looks returns the fields that the overrides of these tests change, in one line.
func looks(pod *corev1.Pod) string {
	c := pod.Spec.Containers[0]
	env := make([]string, 0, len(c.Env))
	for _, e := range c.Env {
		env = append(env, e.Name+"="+e.Value)
	}
	keys := make([]string, 0, len(pod.Annotations))
	for key := range pod.Annotations {
		if strings.HasPrefix(key, "e2e.example.com/") {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return fmt.Sprintf("command %v, env %v, tier %q, grace %d, annotations %v",
		c.Command, env, pod.Labels["tier"], *pod.Spec.TerminationGracePeriodSeconds, keys)
}

// TestPlaintextAndCommands is scenario 18, and 16 for commands: pods are created with the
// plaintext and command rules of their group. Add, replace, remove, the "-" at the end of
// a list and an escaped key all follow RFC 6902. A changed rule replaces the pods of its
// group, one at a time, and when rules are removed the template's values return.
func TestPlaintextAndCommands(t *testing.T) {
	f := newFixture(t)
	f.group("plain-a", 2)
	f.group("plain-b", 2)
	f.create(weights("policy", "plain-a", 3, "plain-b", 2))
	everywhere := patches(nil,
		patchOf(gm.OverriderOpAdd, "/spec/containers/0/env/-", map[string]string{"name": "SITE", "value": "edge"}),
		patchOf(gm.OverriderOpReplace, "/spec/containers/0/env/0/value", "debug"),
		patchOf(gm.OverriderOpAdd, "/metadata/labels/tier", "edge"),
		patchOf(gm.OverriderOpRemove, "/metadata/annotations/e2e.example.com~1drop", nil),
	)
	onlyB := patches([]string{"plain-b"}, patchOf(gm.OverriderOpReplace, "/spec/terminationGracePeriodSeconds", 1))
	inA, inB := commandRule("plain-a", gm.OverriderOpReplace, "/bin/a"), commandRule("plain-b", gm.OverriderOpRemove, "--verbose")
	f.create(overrides("rules", everywhere, onlyB, inA, inB))
	template := `command [/bin/app --verbose], env [LEVEL=info], tier "", grace 0, annotations [e2e.example.com/drop e2e.example.com/keep]`
	want := map[string]string{
		"plain-a": `command [/bin/a], env [LEVEL=debug SITE=edge], tier "edge", grace 0, annotations [e2e.example.com/keep]`,
		"plain-b": `command [/bin/app], env [LEVEL=debug SITE=edge], tier "edge", grace 1, annotations [e2e.example.com/keep]`,
	}
	// A kubelet must never get a pod without its group's overrides.
	first := f.watchPods(metav1.ListOptions{LabelSelector: "app=app"}, func(_ watch.EventType, pod *corev1.Pod) {
		if pod.Spec.NodeName == "" {
			return
		}
		if got, is := looks(pod), want[pod.Spec.NodeName[:len("plain-a")]]; got != is {
			t.Errorf("pod %s on %s was bound with %s, want %s", pod.Name, pod.Spec.NodeName, got, is)
		}
	})
	f.create(deployment("app", 5, "policy", requiresOverride("rules"), func(d *appsv1.Deployment) {
		d.Spec.Template.Annotations = map[string]string{"e2e.example.com/drop": "x", "e2e.example.com/keep": "x"}
		d.Spec.Template.Spec.Containers[0].Command = []string{"/bin/app", "--verbose"}
		d.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "LEVEL", Value: "info"}}
	}))
	are := func(want map[string]string) func() error {
		return func() error {
			pods := f.pods("app") // read once, because the state may change between two reads
			if err := readyOf("app", pods, 5); err != nil {
				return err
			}
			for _, pod := range pods {
				if got, is := looks(&pod), want[pod.Spec.NodeName[:len("plain-a")]]; got != is {
					return fmt.Errorf("pod %s on %s has %s, want %s", pod.Name, pod.Spec.NodeName, got, is)
				}
			}
			return f.spreadIs("app", map[string]int{"plain-a": 3, "plain-b": 2})
		}
	}
	f.eventually(patience, "3:2, each as its group wants it", are(want))
	first.stopAfter("app")
	f.eventually(patience, "the policy is satisfied", func() error { return f.overridesReady("rules") })

	of := map[types.UID]string{}
	for _, pod := range f.pods("app") {
		of[pod.UID] = pod.Labels[gm.NodeGroupLabel]
	}
	availability := f.watchAvailability("app", 5)
	f.setRules("rules", everywhere, onlyB, inA, commandRule("plain-b", gm.OverriderOpAdd, "--site=b"))
	want["plain-b"] = strings.Replace(want["plain-b"], "[/bin/app]", "[/bin/app --verbose --site=b]", 1)
	f.eventually(patience, "pods of b are replaced", are(want))
	if worst, gone := availability(); worst < 4 || gone != 2 {
		t.Errorf("at the worst moment %d of 5 were available, %d were replaced, want 4 and 2", worst, gone)
	}
	kept := 0
	for _, pod := range f.pods("app") {
		if of[pod.UID] == "plain-a" {
			kept++
		}
	}
	if kept != 3 {
		t.Errorf("%d of 3 pods of a are still there: the rule was not about them", kept)
	}

	f.setRules("rules")
	f.eventually(2*patience, "the template's values", are(map[string]string{"plain-a": template, "plain-b": template}))
}

// TestConditionNamesAMissingPlaintextPath is scenario 18: a rule whose path is missing in the
// pods of one workload makes these wait, and the condition names the workload, the rule
// and the missing path. Another workload of the same policy, which has the path, is not
// affected, nor is one of another policy. Paths that must not be overridden are refused
// when the policy is applied.
func TestConditionNamesAMissingPlaintextPath(t *testing.T) {
	tier.All(t, "as TestARuleThatCannotBeAppliedIsNamed, for plaintext")
	f := newFixture(t)
	f.group("fits", 1)
	f.create(weights("policy", "fits", 1))
	rules := func(path string) []gm.RuleWithNodeGroup {
		return []gm.RuleWithNodeGroup{
			patches(nil, patchOf(gm.OverriderOpAdd, "/metadata/labels/tier", "edge")),
			patches([]string{"fits"}, patchOf(gm.OverriderOpAdd, "/metadata/labels/rack", "7"), patchOf(gm.OverriderOpReplace, path, "debug")),
		}
	}
	f.create(overrides("shared", rules("/spec/containers/0/env/1/value")...), overrides("other", patches(nil, patchOf(gm.OverriderOpAdd, "/metadata/labels/tier", "other"))))
	env := func(names ...string) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) {
			for _, name := range names {
				d.Spec.Template.Spec.Containers[0].Env = append(d.Spec.Template.Spec.Containers[0].Env, corev1.EnvVar{Name: name, Value: "info"})
			}
		}
	}
	f.create(
		deployment("lacks", 1, "policy", requiresOverride("shared"), env("ONE")),
		deployment("has", 2, "policy", requiresOverride("shared"), env("ONE", "TWO")),
		deployment("other", 1, "policy", requiresOverride("other")),
	)
	looksLike := func(app string, n int, want string) func() error {
		return func() error {
			for _, pod := range f.pods(app) {
				if got := looks(&pod); got != want {
					return fmt.Errorf("pod %s has %s, want %s", pod.Name, got, want)
				}
			}
			return f.allReady(app, n)
		}
	}
	f.eventually(patience, "a workload that has the path runs", looksLike("has", 2, `command [], env [ONE=info TWO=debug], tier "edge", grace 0, annotations []`))
	f.eventually(patience, "a workload of another policy runs", looksLike("other", 1, `command [], env [], tier "other", grace 0, annotations []`))
	f.eventually(patience, "the policy names the workload, the rule and what is missing", func() error {
		var policy gm.OverridePolicy
		if err := f.client.Get(f.ctx, types.NamespacedName{Namespace: f.ns, Name: "shared"}, &policy); err != nil {
			return err
		}
		for _, c := range policy.Status.Conditions {
			if c.Type != gm.ConditionReady || c.Status != metav1.ConditionFalse || c.Reason != gm.ReasonInvalid {
				continue
			}
			for _, part := range []string{`Deployment "lacks"`, "spec.overrideRules[1].overriders.plaintext[1]", `no element "1" in a list of 1`} {
				if !strings.Contains(c.Message, part) {
					return fmt.Errorf("the condition does not name %s: %s", part, c.Message)
				}
			}
			if strings.Contains(c.Message, `"has"`) {
				return fmt.Errorf("the condition names a workload that has the path: %s", c.Message)
			}
			return nil
		}
		return fmt.Errorf("conditions are %+v", policy.Status.Conditions)
	})
	deleted := f.watchDeletions("has")
	before := f.pods("lacks")[0].UID
	f.always(2*time.Second, "the pod that lacks it waits and is not recreated again and again", func() error {
		pods := f.pods("lacks")
		if len(pods) != 1 || pods[0].UID != before || pods[0].Spec.NodeName != "" || pods[0].Labels["tier"] != "" {
			return fmt.Errorf("pods are %d, the first is %s on %q with labels %v", len(pods), pods[0].Name, pods[0].Spec.NodeName, pods[0].Labels)
		}
		return nil
	})
	if n := deleted(); n != 0 {
		t.Errorf("%d pods of the other workload were deleted", n)
	}
	f.setRules("shared", rules("/spec/containers/0/env/0/value")...)
	f.eventually(patience, "the pod comes as the mended rule wants it", looksLike("lacks", 1, `command [], env [ONE=debug], tier "edge", grace 0, annotations []`))

	for path, value := range map[string]any{
		"/metadata/name": "n", "/metadata/namespace": "n", "/metadata/ownerReferences": []any{}, "/metadata/ownerReferences/0/name": "n",
		"/metadata/labels/groupmanagement.kubeedge.io~1node-group": "n", "/metadata/annotations/atoll.dev~1seat": "n",
		"/spec/nodeName": "n", "/spec/serviceAccountName": "n", "/spec/serviceAccount": "n", "/spec/ephemeralContainers/-": map[string]any{},
		"/status/phase": "Running",
	} {
		for _, operator := range []gm.OverriderOperator{gm.OverriderOpAdd, gm.OverriderOpReplace, gm.OverriderOpRemove} {
			if operator == gm.OverriderOpRemove {
				value = nil
			}
			policy := overrides("forbidden", patches(nil, patchOf(gm.OverriderOpAdd, "/metadata/labels/tier", "x")), patches(nil, patchOf(operator, path, value)))
			policy.Namespace = f.ns
			err := f.client.Create(f.ctx, policy)
			if err == nil {
				err = errors.New("nothing: it was accepted")
			}
			if !strings.Contains(err.Error(), "must not be overridden") || !strings.Contains(err.Error(), "spec.overrideRules[1].overriders.plaintext[0]") {
				t.Errorf("%s of %s: the API server says %v", operator, path, err)
			}
		}
	}
}
