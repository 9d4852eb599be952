package chart

import (
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
)

// matcherOf compiles match conditions with the API server's own code. The failure policy is Fail, so that
// an error in an expression fails the test.
func matcherOf(t *testing.T, name string, expressions []admissionregistrationv1.MatchCondition) matchconditions.Matcher {
	t.Helper()
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	var conditions []cel.ExpressionAccessor
	for _, condition := range expressions {
		accessor := matchconditions.MatchCondition(condition)
		if compiled := compiler.CompileCELExpression(&accessor, cel.OptionalVariableDeclarations{HasAuthorizer: true}, environment.NewExpressions); compiled.Error != nil {
			t.Fatalf("match condition %s: %v", condition.Name, compiled.Error)
		}
		conditions = append(conditions, &accessor)
	}
	fail := admissionregistrationv1.Fail
	return matchconditions.NewMatcher(
		compiler.CompileCondition(conditions, cel.OptionalVariableDeclarations{HasAuthorizer: true}, environment.NewExpressions),
		&fail, "webhook", "admit", name)
}

// TestPodsThatReachTheWebhook evaluates the match conditions with the API server's own
// code: a pod that Atoll does not manage must not cause a call.
func TestPodsThatReachTheWebhook(t *testing.T) {
	got := render(t, load(t), nil)
	webhook := get[*admissionregistrationv1.MutatingWebhookConfiguration](t, got, "MutatingWebhookConfiguration/atoll-pods").Webhooks[0]
	matcher := matcherOf(t, webhook.Name, webhook.MatchConditions)

	owned := func(apiVersion, kind string, controller *bool) metav1.ObjectMeta {
		return metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{
			APIVersion: apiVersion, Kind: kind, Name: "owner", UID: "1", Controller: controller,
		}}}
	}
	labelled := func(m metav1.ObjectMeta, key, value string) metav1.ObjectMeta {
		m.Labels = map[string]string{"app": "web", key: value}
		return m
	}
	const required = "groupmanagement.kubeedge.io/required-propagationpolicy"
	replicaSets := owned("apps/v1", "ReplicaSet", new(true))
	manager := &user.DefaultInfo{Name: "system:serviceaccount:" + namespace + ":atoll-manager"}
	another := &user.DefaultInfo{Name: "system:serviceaccount:default:atoll-manager"}

	tests := map[string]struct {
		pod    metav1.ObjectMeta
		want   bool
		by     user.Info
		dryRun bool
	}{
		"a bare pod does not":                                       {pod: metav1.ObjectMeta{}, want: false},
		"a bare pod with other labels does not":                     {pod: labelled(metav1.ObjectMeta{}, "tier", "web"), want: false},
		"a bare pod with a required policy does":                    {pod: labelled(metav1.ObjectMeta{}, required, "p"), want: true},
		"a bare pod that forges our labels does":                    {pod: labelled(metav1.ObjectMeta{}, "groupmanagement.kubeedge.io/binding-overridepolicy", "p"), want: true},
		"a ReplicaSet's pod does":                                   {pod: owned("apps/v1", "ReplicaSet", new(true)), want: true},
		"a custom controller's pod does":                            {pod: owned("example.org/v1", "Node", new(true)), want: true},
		"a pod with an owner that does not control it does not":     {pod: owned("v1", "ConfigMap", nil), want: false},
		"a pod with an owner that says it does not control":         {pod: owned("v1", "ConfigMap", new(false)), want: false},
		"a mirror pod does not":                                     {pod: owned("v1", "Node", new(true)), want: false},
		"a mirror pod with a required policy does not":              {pod: labelled(owned("v1", "Node", new(true)), required, "p"), want: false},
		"a pod with an owner and a required policy of its own does": {pod: labelled(owned("v1", "ConfigMap", nil), required, "p"), want: true},
		"a dry run of a ReplicaSet's pod does":                      {pod: replicaSets, want: true, dryRun: true},
		"a trial by atoll-manager does not":                         {pod: replicaSets, want: false, by: manager, dryRun: true},
		"a pod that atoll-manager creates does":                     {pod: replicaSets, want: true, by: manager},
		"a dry run by another atoll-manager does":                   {pod: replicaSets, want: true, by: another, dryRun: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			test.pod.Name, test.pod.Namespace = "pod", "default"
			pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: test.pod}
			kind := corev1.SchemeGroupVersion.WithKind("Pod")
			attributes := admission.NewAttributesRecord(pod, nil, kind, "default", "pod", gvr("", "v1", "pods"), "",
				admission.Create, &metav1.CreateOptions{}, test.dryRun, test.by)
			versioned := &admission.VersionedAttributes{Attributes: attributes, VersionedKind: kind, VersionedObject: pod}
			result := matcher.Match(t.Context(), versioned, nil, nil)
			if result.Error != nil {
				t.Fatal(result.Error)
			}
			if result.Matches != test.want {
				t.Errorf("calls the webhook: %t, want %t (%s)", result.Matches, test.want, result.FailedConditionName)
			}
		})
	}
}

// TestWebhookAndProbeTimeoutsAreShort: the creator of a pod waits for a hanging replica
// until the webhook's timeout, as long as the replica is in the Service.
func TestWebhookAndProbeTimeoutsAreShort(t *testing.T) {
	got := render(t, load(t), nil)
	for _, webhook := range get[*admissionregistrationv1.MutatingWebhookConfiguration](t, got, "MutatingWebhookConfiguration/atoll-pods").Webhooks {
		if webhook.TimeoutSeconds == nil || *webhook.TimeoutSeconds > 2 {
			t.Errorf("webhook %s is waited for %v seconds, want at most 2", webhook.Name, webhook.TimeoutSeconds)
		}
		if webhook.FailurePolicy == nil || *webhook.FailurePolicy != admissionregistrationv1.Ignore {
			t.Errorf("webhook %s refuses pods when it does not answer", webhook.Name)
		}
	}
	probe := get[*appsv1.Deployment](t, got, "Deployment/atoll-manager").Spec.Template.Spec.Containers[0].ReadinessProbe
	if out := probe.PeriodSeconds*probe.FailureThreshold + probe.TimeoutSeconds; probe.PeriodSeconds == 0 || probe.FailureThreshold == 0 || out > 10 {
		t.Errorf("a replica that hangs is out of the Service after %d seconds, want at most 10: %v", out, probe)
	}
}

// TestWorkloadsThatReachTheWebhook: others must not wait for it.
func TestWorkloadsThatReachTheWebhook(t *testing.T) {
	webhooks := get[*admissionregistrationv1.ValidatingWebhookConfiguration](t, render(t, load(t), nil), "ValidatingWebhookConfiguration/atoll-policies").Webhooks
	webhook := webhooks[len(webhooks)-1]
	if webhook.TimeoutSeconds == nil || *webhook.TimeoutSeconds > 1 || *webhook.FailurePolicy != admissionregistrationv1.Ignore {
		t.Errorf("webhook %s delays or refuses workloads when it does not answer", webhook.Name)
	}
	matcher := matcherOf(t, webhook.Name, webhook.MatchConditions)
	const required = "groupmanagement.kubeedge.io/required-overridepolicy"
	policy := map[string]string{"app": "web", required: "o"}
	person := &user.DefaultInfo{Name: "jane"}
	for name, test := range map[string]struct {
		workload appsv1.Deployment
		by       user.Info
		want     bool
	}{
		"without a label":                  {appsv1.Deployment{}, person, false},
		"with other labels":                {appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}}, person, false},
		"with a required policy":           {appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Labels: policy}}, person, true},
		"with an annotation":               {appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Annotations: policy}}, person, true},
		"with a label in the template":     {appsv1.Deployment{Spec: appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: policy}}}}, person, true},
		"by a deployer's ServiceAccount":   {appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Labels: policy}}, &user.DefaultInfo{Name: "system:serviceaccount:flux-system:kustomize-controller"}, true},
		"of another workload":              {appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Labels: policy, OwnerReferences: []metav1.OwnerReference{{Controller: new(true)}}}}, person, false},
		"by a controller of Kubernetes":    {appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Labels: policy}}, &user.DefaultInfo{Name: "system:serviceaccount:kube-system:deployment-controller"}, false},
		"by kube-controller-manager":       {appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Labels: policy}}, &user.DefaultInfo{Name: "system:kube-controller-manager"}, false},
		"by atoll-manager, which binds it": {appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Labels: policy}}, &user.DefaultInfo{Name: "system:serviceaccount:" + namespace + ":atoll-manager"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			kind := appsv1.SchemeGroupVersion.WithKind("Deployment")
			attributes := admission.NewAttributesRecord(&test.workload, nil, kind, "default", "web", gvr("apps", "v1", "deployments"), "", admission.Update, &metav1.UpdateOptions{}, false, test.by)
			result := matcher.Match(t.Context(), &admission.VersionedAttributes{Attributes: attributes, VersionedKind: kind, VersionedObject: &test.workload}, nil, nil)
			if result.Error != nil || result.Matches != test.want {
				t.Errorf("calls the webhook: %t, want %t (%s, error %v)", result.Matches, test.want, result.FailedConditionName, result.Error)
			}
		})
	}
}
