package chart

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// TestLint runs what `helm lint --strict` runs.
func TestLint(t *testing.T) {
	linter := lint.All(chartDir, nil, namespace, true)
	for _, message := range linter.Messages {
		// An icon is needed only in a public catalogue.
		if message.Severity >= support.WarningSev {
			t.Errorf("%s: %v", message.Path, message.Err)
		}
	}
}

func TestDefaultObjects(t *testing.T) {
	got := render(t, load(t, withFile("files/rbac/role.yaml", "")), nil)
	for _, want := range []string{
		"ServiceAccount/atoll-manager",
		"Role/atoll-manager-release", "RoleBinding/atoll-manager-release",
		"ClusterRoleBinding/atoll-manager-auth-delegator", "ClusterRole/atoll-metrics-reader",
		"ClusterRole/atoll-view", "ClusterRole/atoll-edit",
		"Deployment/atoll-manager", "PodDisruptionBudget/atoll-manager", "Service/atoll-manager",
		"MutatingWebhookConfiguration/atoll-pods", "ValidatingWebhookConfiguration/atoll-policies",
		"CustomResourceDefinition/nodegroups.groupmanagement.kubeedge.io",
		"CustomResourceDefinition/propagationpolicies.groupmanagement.kubeedge.io",
		"CustomResourceDefinition/overridepolicies.groupmanagement.kubeedge.io",
		"CustomResourceDefinition/nodepools.apps.openyurt.io",
		"CustomResourceDefinition/uniteddeployments.apps.openyurt.io",
	} {
		if got[want] == nil {
			t.Errorf("%s is missing; there are %v", want, got.keys())
		}
	}
}

func TestCRDsComeFromFilesAndStay(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(chartDir, "files/crds/*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs in the chart: %v", err)
	}
	count := func(from objects) (n int) {
		for _, object := range from {
			crd, ok := object.(*apiextensionsv1.CustomResourceDefinition)
			if !ok {
				continue
			}
			n++
			if crd.Annotations["helm.sh/resource-policy"] != "keep" {
				t.Errorf("CRD %s would be deleted with the release, and every object with it", crd.Name)
			}
			if crd.Annotations["controller-gen.kubebuilder.io/version"] == "" {
				t.Errorf("CRD %s has lost its own annotations", crd.Name)
			}
		}
		return n
	}
	if n := count(render(t, load(t), gangs(nil))); n != len(files) {
		t.Errorf("%d CRDs are rendered, %d are in files/crds", n, len(files))
	}
	byDefault := render(t, load(t), nil)
	if n := count(byDefault); n != len(files)-1 || byDefault[podGroups] != nil {
		t.Errorf("by default %d CRDs are rendered of %d; all but that of PodGroups are ours", n, len(files))
	}
	without := map[string]any{"crds": map[string]any{"install": false}}
	if n := count(render(t, load(t), without)); n != 0 {
		t.Errorf("crds.install=false renders %d CRDs", n)
	}
}

func TestPodsRunUnderRestrictedPodSecurity(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	restricted := podsecurity.LevelVersion{Level: podsecurity.LevelRestricted, Version: podsecurity.LatestVersion()}
	got := render(t, load(t), isolated())
	for _, key := range []string{"Deployment/atoll-manager", "Deployment/atoll-scheduler"} {
		pod := get[*appsv1.Deployment](t, got, key).Spec.Template
		result := policy.AggregateCheckResults(evaluator.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec))
		if !result.Allowed {
			t.Errorf("%s is refused: %s", key, result.ForbiddenDetail())
		}
		for _, container := range pod.Spec.Containers {
			if s := container.SecurityContext; s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
				t.Errorf("container %s can write to its image", container.Name)
			}
		}
	}
}

// TestAffinityFromValuesKeepsTheZoneSpread: it is used, and one without a pod anti-affinity keeps the spread over
// zones.
func TestAffinityFromValuesKeepsTheZoneSpread(t *testing.T) {
	node := map[string]any{"requiredDuringSchedulingIgnoredDuringExecution": map[string]any{"nodeSelectorTerms": []any{
		map[string]any{"matchExpressions": []any{map[string]any{"key": "a", "operator": "Exists"}}},
	}}}
	for _, tc := range []struct {
		name  string
		value map[string]any
		terms int
	}{
		{"none", map[string]any{}, 1},
		{"of nodes", map[string]any{"nodeAffinity": node}, 1},
		{"of pods", map[string]any{"nodeAffinity": node, "podAntiAffinity": map[string]any{}}, 0},
	} {
		values := isolated("affinity", tc.value)
		values["manager"] = map[string]any{"affinity": tc.value}
		got := render(t, load(t), values)
		for _, key := range []string{"Deployment/atoll-manager", "Deployment/atoll-scheduler"} {
			affinity := get[*appsv1.Deployment](t, got, key).Spec.Template.Spec.Affinity
			if n := len(affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution); n != tc.terms || (affinity.NodeAffinity != nil) != (tc.value["nodeAffinity"] != nil) {
				t.Errorf("%s, affinity %s: %d terms for pods, for nodes %v", key, tc.name, n, affinity.NodeAffinity)
			}
		}
	}
}

// TestDrainsTakeOneReplicaAtATime: each Deployment has a disruption budget that selects
// its pods, and spreads them.
func TestDrainsTakeOneReplicaAtATime(t *testing.T) {
	got := render(t, load(t), isolated())
	for _, name := range []string{"atoll-manager", "atoll-scheduler"} {
		deployment := get[*appsv1.Deployment](t, got, "Deployment/"+name)
		budget := get[*policyv1.PodDisruptionBudget](t, got, "PodDisruptionBudget/"+name)
		pod := labels.Set(deployment.Spec.Template.Labels)
		selectors := map[string]*metav1.LabelSelector{"the Deployment": deployment.Spec.Selector, "the budget": budget.Spec.Selector}
		spec := deployment.Spec.Template.Spec
		for _, spread := range spec.TopologySpreadConstraints {
			selectors["the spread over "+spread.TopologyKey] = spread.LabelSelector
			if !slices.Equal(spread.MatchLabelKeys, []string{appsv1.DefaultDeploymentUniqueLabelKey}) {
				t.Errorf("%s: pods of other revisions count for the spread over %s", name, spread.TopologyKey)
			}
		}
		// With a second key kube-scheduler would score no node that lacks its label.
		if len(spec.TopologySpreadConstraints) != 1 || spec.TopologySpreadConstraints[0].TopologyKey != corev1.LabelHostname {
			t.Errorf("%s: pods are spread by %+v, want hosts only", name, spec.TopologySpreadConstraints)
		}
		for _, term := range spec.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			selectors["the anti-affinity for "+term.PodAffinityTerm.TopologyKey] = term.PodAffinityTerm.LabelSelector
		}
		if selectors["the anti-affinity for "+corev1.LabelTopologyZone] == nil {
			t.Errorf("%s: pods are not spread over zones", name)
		}
		for what, s := range selectors {
			selector, err := metav1.LabelSelectorAsSelector(s)
			if err != nil || selector.Empty() || !selector.Matches(pod) {
				t.Errorf("%s: %s selects %v (%v), the pods carry %v", name, what, s, err, pod)
			}
		}
		if *deployment.Spec.Replicas != 2 || budget.Spec.MaxUnavailable.IntValue() != 1 {
			t.Errorf("%s: %d replicas, %s may be away", name, *deployment.Spec.Replicas, budget.Spec.MaxUnavailable)
		}
		// By default a replica that is not Ready is evicted only while another is Ready, so a
		// drain would wait without end for an installation of which none is.
		if p := budget.Spec.UnhealthyPodEvictionPolicy; p == nil || *p != policyv1.AlwaysAllow {
			t.Errorf("%s: a drain waits for replicas that are not Ready", name)
		}
	}
}

// TestAnUpgradeStopsNoReplicaBeforeAnotherIsReady: an upgrade that stops one of two replicas
// first leaves one, and a node that fails meanwhile leaves none.
func TestAnUpgradeStopsNoReplicaBeforeAnotherIsReady(t *testing.T) {
	got := render(t, load(t), isolated())
	for _, name := range []string{"atoll-manager", "atoll-scheduler"} {
		strategy := get[*appsv1.Deployment](t, got, "Deployment/"+name).Spec.Strategy
		rolling := strategy.RollingUpdate
		if strategy.Type != appsv1.RollingUpdateDeploymentStrategyType || rolling == nil || rolling.MaxUnavailable == nil || rolling.MaxSurge == nil {
			t.Fatalf("%s: the strategy is %+v", name, strategy)
		}
		if *rolling.MaxUnavailable != intstr.FromInt32(0) || *rolling.MaxSurge != intstr.FromInt32(1) {
			t.Errorf("%s: %s may be away and %s may be added, want 0 and 1", name, rolling.MaxUnavailable, rolling.MaxSurge)
		}
	}
}

// TestOnlyReadinessProbeUsesReadyz: atoll-manager may wait for its definitions, or
// for caches, for longer than the other probes allow. They ask /healthz, which answers
// meanwhile, so the kubelet does not restart the replica.
func TestOnlyReadinessProbeUsesReadyz(t *testing.T) {
	container := get[*appsv1.Deployment](t, render(t, load(t), nil), "Deployment/atoll-manager").Spec.Template.Spec.Containers[0]
	for _, probe := range []struct {
		name string
		*corev1.Probe
		path string
	}{
		{"startup", container.StartupProbe, "/healthz"},
		{"liveness", container.LivenessProbe, "/healthz"},
		{"readiness", container.ReadinessProbe, "/readyz"},
	} {
		if probe.Probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != probe.path || probe.HTTPGet.Port != intstr.FromString("probes") {
			t.Errorf("the %s probe is %v, want one of %s", probe.name, probe.Probe, probe.path)
		}
	}
}

func TestServiceReachesThePodsPorts(t *testing.T) {
	got := render(t, load(t), nil)
	deployment := get[*appsv1.Deployment](t, got, "Deployment/atoll-manager")
	service := get[*corev1.Service](t, got, "Service/atoll-manager")

	for key, value := range service.Spec.Selector {
		if deployment.Spec.Template.Labels[key] != value {
			t.Errorf("the Service selects %s=%s, which the pods do not carry", key, value)
		}
	}
	named := map[string]int32{}
	for _, port := range deployment.Spec.Template.Spec.Containers[0].Ports {
		named[port.Name] = port.ContainerPort
	}
	reached := map[int32]int32{}
	for _, port := range service.Spec.Ports {
		reached[port.Port] = named[port.TargetPort.StrVal]
	}
	for port, want := range map[int32]int32{443: 9443, 444: 9444, 8080: 8080} {
		if reached[port] != want {
			t.Errorf("port %d of the Service leads to %d, want %d", port, reached[port], want)
		}
	}
}

func TestManagerOutsideOfTheCluster(t *testing.T) {
	got := render(t, load(t), map[string]any{
		"manager":   map[string]any{"deploy": false},
		"scheduler": map[string]any{"mode": "Isolated"},
		"endpoints": map[string]any{
			"webhook":  "https://localhost:9443",
			"extender": "https://localhost:9444",
		},
	})
	for _, key := range []string{"Deployment/atoll-manager", "Service/atoll-manager", "PodDisruptionBudget/atoll-manager"} {
		if got[key] != nil {
			t.Errorf("%s is rendered, though nothing of it runs in the cluster", key)
		}
	}
	for path, config := range clientConfigs(t, got) {
		if config.Service != nil || config.URL == nil || *config.URL != "https://localhost:9443"+path {
			t.Errorf("the API server does not call https://localhost:9443%s: %+v", path, config)
		}
	}
	extender := schedulerConfig(t, got).Extenders[0]
	if want := "https://localhost:9444/scheduler"; extender.URLPrefix != want {
		t.Errorf("the extender is at %q, want %q", extender.URLPrefix, want)
	}
	if want := "atoll-manager." + namespace + ".svc"; extender.TLSConfig.ServerName != want {
		t.Errorf("the certificate is checked for %q, want %q whatever the URL", extender.TLSConfig.ServerName, want)
	}
}

func TestWebhooksGoThroughTheServiceAndLeaveCABundleAlone(t *testing.T) {
	for path, config := range clientConfigs(t, render(t, load(t), nil)) {
		if config.URL != nil || config.Service == nil {
			t.Fatalf("%s is not reached through a Service: %+v", path, config)
		}
		if s := config.Service; s.Name != "atoll-manager" || s.Namespace != namespace || *s.Port != 443 || *s.Path != path {
			t.Errorf("%s is called at %+v", path, s)
		}
		if config.CABundle != nil {
			t.Errorf("%s: an upgrade would overwrite the caBundle that the manager wrote", path)
		}
	}
}

func clientConfigs(t *testing.T, from objects) map[string]admissionregistrationv1.WebhookClientConfig {
	t.Helper()
	return map[string]admissionregistrationv1.WebhookClientConfig{
		"/mutate-pods": get[*admissionregistrationv1.MutatingWebhookConfiguration](
			t, from, "MutatingWebhookConfiguration/atoll-pods").Webhooks[0].ClientConfig,
		"/validate-policies/nodegroup": get[*admissionregistrationv1.ValidatingWebhookConfiguration](
			t, from, "ValidatingWebhookConfiguration/atoll-policies").Webhooks[0].ClientConfig,
		"/validate-policies/override": get[*admissionregistrationv1.ValidatingWebhookConfiguration](
			t, from, "ValidatingWebhookConfiguration/atoll-policies").Webhooks[1].ClientConfig,
		"/validate-policies/propagation": get[*admissionregistrationv1.ValidatingWebhookConfiguration](
			t, from, "ValidatingWebhookConfiguration/atoll-policies").Webhooks[2].ClientConfig,
	}
}

func TestGeneratedRolesAreBoundInTheReleaseNamespace(t *testing.T) {
	const generated = `---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: atoll-manager
rules:
- apiGroups: [""]
  resources: [nodes]
  verbs: [list]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: atoll-manager
  namespace: atoll-system
rules:
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: atoll-manager
  namespace: kube-system
rules:
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get]
`
	got := render(t, load(t, withFile("files/rbac/role.yaml", generated)), nil)
	if rules := get[*rbacv1.ClusterRole](t, got, "ClusterRole/atoll-manager").Rules; len(rules) != 1 || rules[0].Resources[0] != "nodes" {
		t.Errorf("rules of the ClusterRole are %v", rules)
	}
	subjects := [][]rbacv1.Subject{
		get[*rbacv1.ClusterRoleBinding](t, got, "ClusterRoleBinding/atoll-manager").Subjects,
		get[*rbacv1.RoleBinding](t, got, "RoleBinding/atoll-manager").Subjects,
		get[*rbacv1.RoleBinding](t, got, "RoleBinding/kube-system/atoll-manager").Subjects,
	}
	get[*rbacv1.Role](t, got, "Role/atoll-manager")
	get[*rbacv1.Role](t, got, "Role/kube-system/atoll-manager")
	for _, s := range subjects {
		if len(s) != 1 || s[0].Name != "atoll-manager" || s[0].Namespace != namespace {
			t.Errorf("bound to %v", s)
		}
	}
}

// TestManagerHoldsNoDangerousPermission reads the rendered roles, including the
// permissions from markers in the code.
func TestManagerHoldsNoDangerousPermission(t *testing.T) {
	for key, object := range render(t, load(t), gangs(nil)) {
		var rules []rbacv1.PolicyRule
		clusterWide := false
		switch role := object.(type) {
		case *rbacv1.ClusterRole:
			rules, clusterWide = role.Rules, true
		case *rbacv1.Role:
			rules = role.Rules
		}
		for _, rule := range rules {
			for _, word := range append(append([]string{}, rule.Verbs...), append(rule.Resources, rule.APIGroups...)...) {
				switch word {
				case "*", "escalate", "bind", "impersonate":
					t.Errorf("%s grants %q", key, word)
				}
			}
			for _, resource := range rule.Resources {
				switch {
				case strings.HasSuffix(resource, "webhookconfigurations") && len(rule.ResourceNames) == 0:
					t.Errorf("%s opens everybody's %s", key, resource)
				case resource != "secrets":
				case clusterWide:
					t.Errorf("%s opens the secrets of every namespace", key)
				case len(rule.ResourceNames) == 0 && strings.Join(rule.Verbs, ",") != "create":
					t.Errorf("%s grants %v on every secret of its namespace", key, rule.Verbs)
				}
			}
		}
	}
}

// TestTheManagerCreatesPodsAsDryRunsOnly: no role lets it create pods without the admission
// policy that limits it to dry runs, which a test of e2e tries.
func TestTheManagerCreatesPodsAsDryRunsOnly(t *testing.T) {
	for _, tried := range []bool{true, false} {
		got := render(t, load(t), map[string]any{"overrides": map[string]any{"tryPods": tried}})
		var roles []string
		for key, object := range got {
			role, ok := object.(*rbacv1.ClusterRole)
			if !ok || !strings.HasPrefix(role.Name, "atoll-manager") {
				continue
			}
			for _, rule := range role.Rules {
				if slices.Contains(rule.Resources, "pods") && slices.Contains(rule.Verbs, "create") {
					roles = append(roles, key)
				}
			}
		}
		var want []string
		if tried {
			want = []string{"ClusterRole/atoll-manager-trials"}
			policy := get[*admissionregistrationv1.ValidatingAdmissionPolicy](t, got, "ValidatingAdmissionPolicy/atoll-trials")
			if policy.Spec.FailurePolicy == nil || *policy.Spec.FailurePolicy != admissionregistrationv1.Fail {
				t.Errorf("the failure policy is %v", policy.Spec.FailurePolicy)
			}
			binding := get[*admissionregistrationv1.ValidatingAdmissionPolicyBinding](t, got, "ValidatingAdmissionPolicyBinding/atoll-trials")
			if binding.Spec.PolicyName != policy.Name || binding.Spec.MatchResources != nil || !slices.Contains(binding.Spec.ValidationActions, admissionregistrationv1.Deny) {
				t.Errorf("the binding is %+v", binding.Spec)
			}
		}
		if !slices.Equal(roles, want) {
			t.Errorf("with tryPods %v, these roles may create pods: %v, want %v", tried, roles, want)
		}
	}
}

func TestOptionalValues(t *testing.T) {
	got := render(t, load(t), map[string]any{
		"image": map[string]any{
			"registry": "registry.example:5000", "digest": "sha256:" + strings.Repeat("a", 64),
			"pullSecrets": []any{"pull"},
		},
		"manager": map[string]any{
			"replicas": 3, "extraArgs": []any{"-v=2"},
			"extraEnv":       []any{map[string]any{"name": "A", "value": "b"}},
			"nodeSelector":   map[string]any{"a": "b"},
			"tolerations":    []any{map[string]any{"key": "a", "operator": "Exists"}},
			"affinity":       map[string]any{"nodeAffinity": map[string]any{}},
			"podAnnotations": map[string]any{"a": "b"}, "podLabels": map[string]any{"a": "b"},
			"priorityClassName": "",
		},
		"serviceAccount": map[string]any{"annotations": map[string]any{"a": "b"}},
		"webhooks":       map[string]any{"excludedNamespaces": []any{"monitoring", "kube-system"}},
		"rbac":           map[string]any{"aggregate": false},
	})
	deployment := get[*appsv1.Deployment](t, got, "Deployment/atoll-manager")
	pod := deployment.Spec.Template.Spec
	if want := "registry.example:5000/atoll-k8s/atoll-manager@sha256:" + strings.Repeat("a", 64); pod.Containers[0].Image != want {
		t.Errorf("image is %s, want %s", pod.Containers[0].Image, want)
	}
	if *deployment.Spec.Replicas != 3 || len(pod.Tolerations) != 1 || pod.Affinity == nil || pod.PriorityClassName != "" ||
		len(pod.ImagePullSecrets) != 1 || pod.NodeSelector["a"] != "b" || deployment.Spec.Template.Labels["a"] != "b" {
		t.Errorf("values are not honoured: %+v", deployment.Spec)
	}
	if got["ClusterRole/atoll-view"] != nil {
		t.Error("rbac.aggregate=false renders roles for users")
	}
	webhook := get[*admissionregistrationv1.MutatingWebhookConfiguration](t, got, "MutatingWebhookConfiguration/atoll-pods").Webhooks[0]
	if values := webhook.NamespaceSelector.MatchExpressions[0].Values; strings.Join(values, ",") != "kube-system,kube-node-lease,"+namespace+",monitoring" {
		t.Errorf("excluded namespaces are %v", values)
	}
}
