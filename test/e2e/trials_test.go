package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// restricted makes a template that Pod Security's level restricted admits.
func restricted(d *appsv1.Deployment) {
	spec := &d.Spec.Template.Spec
	spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
	spec.Containers[0].SecurityContext = &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

// requestsCPU sets the request of the container.
func requestsCPU(amount string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}
	}
}

func registryRule(group, registry string) gm.RuleWithNodeGroup {
	return gm.RuleWithNodeGroup{TargetNodeGroup: []string{group}, Overriders: &gm.Overriders{
		ImageOverrider: []gm.ImageOverrider{{Component: gm.Registry, Operator: gm.OverriderOpReplace, Value: registry}},
	}}
}

// quota creates a ResourceQuota and waits until it counts.
func (f *fixture) quota(hard corev1.ResourceList) {
	f.Helper()
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "quota"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	f.create(quota)
	f.eventually(patience, "the quota counts", func() error {
		if err := f.client.Get(f.ctx, client.ObjectKeyFromObject(quota), quota); err != nil || len(quota.Status.Hard) == 0 {
			return fmt.Errorf("its status is %+v: %w", quota.Status, err)
		}
		return nil
	})
}

// forbidRegistry refuses pods of the namespace with an image of the registry, in some
// operations. It returns when the refusal of new pods is in force, if those are refused.
func (f *fixture) forbidRegistry(registry string, operations ...admissionv1.OperationType) {
	f.Helper()
	fail := admissionv1.Fail
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "images-" + f.ns}, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		FailurePolicy: &fail,
		MatchConstraints: &admissionv1.MatchResources{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: f.ns}},
			ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: operations,
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}}},
		},
		Validations: []admissionv1.Validation{{
			Expression: fmt.Sprintf("object.spec.containers.all(c, !c.image.startsWith('%s/'))", registry), Message: "no image may come from " + registry,
		}},
	}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: policy.Name}, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: policy.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "probe", Namespace: f.ns}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "nginx"}}}}
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/probe"}}
	f.create(pod)
	for _, o := range []client.Object{policy, binding} {
		if err := f.client.Create(f.ctx, o); err != nil {
			f.Fatal(err)
		}
		f.Cleanup(func() {
			if err := client.IgnoreNotFound(f.client.Delete(context.Background(), o)); err != nil {
				f.Error(err)
			}
		})
	}
	f.eventually(patience, "the refusal is in force", func() error {
		var err error
		if slices.Contains(operations, admissionv1.Create) {
			forbidden := pod.DeepCopy()
			forbidden.ObjectMeta = metav1.ObjectMeta{Name: "forbidden", Namespace: f.ns}
			forbidden.Spec.Containers[0].Image = registry + "/nginx"
			err = f.client.Create(f.ctx, forbidden, client.DryRunAll)
		} else {
			forbidden := pod.DeepCopy()
			forbidden.Spec.Containers[0].Image = registry + "/nginx"
			err = f.client.Patch(f.ctx, forbidden, client.MergeFrom(pod), client.DryRunAll)
		}
		if err == nil || !strings.Contains(err.Error(), "no image may come from") {
			return fmt.Errorf("it is let pass: %w", err)
		}
		return nil
	})
	if err := f.client.Delete(f.ctx, pod, client.GracePeriodSeconds(0)); err != nil {
		f.Fatal(err)
	}
}

// stillRun returns an error unless exactly these pods of a workload are Ready.
func (f *fixture) stillRun(app string, uids []string) error {
	if now := f.uids(app); !slices.Equal(now, uids) {
		return fmt.Errorf("pods are %s, were %s", now, uids)
	}
	return f.allReady(app, len(uids))
}

// TestAnOverrideThatAdmissionOfPodsRefusesLosesNoPod: what refuses pods, and not PodTemplates,
// is found before a running pod is evicted. The condition has the rule and the API server's
// message; once the rule is repaired, all pods match it.
func TestAnOverrideThatAdmissionOfPodsRefusesLosesNoPod(t *testing.T) {
	tier.All(t, "waits for trials that are repeated with growing pauses: 20 s")
	resources := func(group, value string) gm.RuleWithNodeGroup {
		return plaintextRule(group, gm.OverriderOpReplace, "/spec/containers/0/resources", value)
	}
	tests := map[string]struct {
		prepare  func(f *fixture)
		template func(*appsv1.Deployment)
		refused  func(group string) gm.RuleWithNodeGroup
		says     string
	}{
		"pod-security": {
			func(f *fixture) {
				f.label(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: f.ns}}, map[string]any{"pod-security.kubernetes.io/enforce": "restricted"})
			}, restricted,
			func(group string) gm.RuleWithNodeGroup {
				return plaintextRule(group, gm.OverriderOpReplace, "/spec/containers/0/securityContext", `{"privileged":true}`)
			}, `violates PodSecurity "restricted:latest": privileged`,
		},
		"limit-range": {
			func(f *fixture) {
				f.create(&corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "limits"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
					Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")},
				}}}})
			}, requestsCPU("50m"),
			func(group string) gm.RuleWithNodeGroup { return resources(group, `{"limits":{"cpu":"2"}}`) },
			"maximum cpu usage per Container is 100m, but limit is 2",
		},
		"quota": {
			func(f *fixture) {
				f.quota(corev1.ResourceList{corev1.ResourceRequestsCPU: resource.MustParse("500m")})
			}, requestsCPU("100m"),
			func(group string) gm.RuleWithNodeGroup { return resources(group, `{"requests":{"cpu":"400m"}}`) },
			"exceeded quota: quota, requested: requests.cpu=400m",
		},
		"images": {
			func(f *fixture) { f.forbidRegistry("foreign.io", admissionv1.Create, admissionv1.Update) }, func(*appsv1.Deployment) {},
			func(group string) gm.RuleWithNodeGroup { return registryRule(group, "foreign.io") },
			"no image may come from foreign.io",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			group := "trial-" + name
			f.group(group, 1)
			tc.prepare(f)
			f.create(weights("policy", group, 1), overrides("rules", argsRule(group, "--site=a")))
			f.create(deployment("app", 2, "policy", requiresOverride("rules"), tc.template))
			f.eventually(patience, "both run as the first rule wants it", func() error {
				return errors.Join(f.allReady("app", 2), f.overrideIs("rules", gm.ReasonSatisfied))
			})
			running := f.uids("app")

			f.setRules("rules", argsRule(group, "--site=a"), tc.refused(group))
			refused := func() error {
				return f.overrideIs("rules", gm.ReasonOverrideRefused, `Deployment "app": spec.overrideRules[1].overriders: the API server refuses the pod with its changes`, tc.says)
			}
			f.eventually(patience, "the policy has the rule and the API server's words", refused)
			f.eventually(patience, "the workload is unbound", func() error { return f.bindingIs("app", false) })
			f.create(deployment("new", 1, "policy", requiresOverride("rules"), tc.template))
			f.eventually(patience, "the pod of a new workload is created and waits", func() error { return f.waitAtTheGate("new", 1) })
			f.always(5*time.Second, "both go on", func() error { return f.stillRun("app", running) })

			f.setRules("rules", argsRule(group, "--site=b"))
			f.eventually(2*time.Minute, "everything runs as the repaired rule wants it", func() error {
				want := map[string]string{group: "--site=b"}
				return errors.Join(f.allReady("app", 2), f.allReady("new", 1), f.argsAre("app", want), f.argsAre("new", want), f.overrideIs("rules", gm.ReasonSatisfied))
			})
		})
	}
}

// TestAFullQuotaUnbindsNoOverride: the API server refuses a further pod, with and without the
// override. It accepts a successor, because that takes the place of a pod.
func TestAFullQuotaUnbindsNoOverride(t *testing.T) {
	tier.All(t, "waits for trials that are repeated: 10 s")
	f := newFixture(t)
	f.group("full-a", 1)
	f.quota(corev1.ResourceList{corev1.ResourcePods: resource.MustParse("2")})
	f.create(weights("policy", "full-a", 1), overrides("rules", argsRule("full-a", "--site=a")))
	f.create(deployment("app", 2, "policy", requiresOverride("rules")))
	f.eventually(patience, "both run as the first rule wants it", func() error {
		return errors.Join(f.allReady("app", 2), f.argsAre("app", map[string]string{"full-a": "--site=a"}))
	})
	f.setRules("rules", argsRule("full-a", "--site=b"))
	f.eventually(3*time.Minute, "both run as the second rule wants it", func() error {
		if err := f.bindingIs("app", true); err != nil {
			f.Fatal(err)
		}
		return errors.Join(f.allReady("app", 2), f.argsAre("app", map[string]string{"full-a": "--site=b"}), f.overrideIs("rules", gm.ReasonSatisfied))
	})
}

// TestImagesThatAreRefusedOnRunningPodsAreNamed: an image policy refuses changes of pods, and
// not new pods. The condition has rule, pod and message; the pods keep their images and run.
func TestImagesThatAreRefusedOnRunningPodsAreNamed(t *testing.T) {
	f := newFixture(t)
	f.group("inplace-a", 1)
	f.forbidRegistry("foreign.io", admissionv1.Update)
	f.create(weights("policy", "inplace-a", 1), overrides("rules", registryRule("inplace-a", "ours.io")))
	f.create(deployment("app", 2, "policy", requiresOverride("rules")))
	f.eventually(patience, "both run", func() error {
		return errors.Join(f.allReady("app", 2), f.overrideIs("rules", gm.ReasonSatisfied))
	})
	running := f.uids("app")
	f.setRules("rules", registryRule("inplace-a", "foreign.io"))
	f.eventually(patience, "the policy has the rule, the pod and the API server's words", func() error {
		return f.overrideIs("rules", gm.ReasonOverrideRefused, `spec.overrideRules[0].overriders: the API server refuses the images of pod "app-`, "no image may come from foreign.io")
	})
	f.always(5*time.Second, "both go on", func() error { return f.stillRun("app", running) })
	f.setRules("rules", registryRule("inplace-a", "better.io"))
	f.eventually(2*time.Minute, "both have the repaired image", func() error {
		for _, pod := range f.pods("app") {
			if image := pod.Spec.Containers[0].Image; image != "better.io/nginx:1.27" {
				return fmt.Errorf("pod %s has image %s", pod.Name, image)
			}
		}
		return errors.Join(f.stillRun("app", running), f.overrideIs("rules", gm.ReasonSatisfied))
	})
}

// TestTheManagerCreatesNoPods: the holder of atoll-manager's token may create pods as dry
// runs only, in any namespace. Its own webhook changes no such pod.
func TestTheManagerCreatesNoPods(t *testing.T) {
	f := newFixture(t)
	f.group("token-a", 1)
	f.create(weights("policy", "token-a", 1), overrides("rules", argsRule("token-a", "--site=a")))
	f.create(deployment("app", 1, "policy", requiresOverride("rules")))
	f.eventually(patience, "the pod runs", func() error { return f.allReady("app", 1) })
	of := *metav1.GetControllerOf(&f.pods("app")[0])
	of.BlockOwnerDeletion = nil
	manager := f.asManager()
	for _, namespace := range []string{f.ns, "kube-system", "default"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "mine", Namespace: namespace, OwnerReferences: []metav1.OwnerReference{of}}}
		pod.Spec.Containers = []corev1.Container{{Name: "app", Image: "mine"}}
		err := manager.Create(f.ctx, pod.DeepCopy())
		if err == nil || !strings.Contains(err.Error(), "atoll-manager creates pods as dry runs only") {
			t.Errorf("atoll-manager may create a pod in %s: %v", namespace, err)
		}
		if err := manager.Create(f.ctx, pod, client.DryRunAll); err != nil {
			t.Errorf("atoll-manager may not try a pod in %s: %v", namespace, err)
		}
		if len(pod.Annotations) > 0 || pod.Spec.Affinity != nil || len(pod.Spec.Containers[0].Args) > 0 {
			t.Errorf("its own webhook changed a trial in %s: %v", namespace, pod)
		}
	}
	if n := len(f.pods("app")); n != 1 {
		t.Errorf("%d pods", n)
	}
}
