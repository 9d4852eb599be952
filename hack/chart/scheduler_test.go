package chart

import (
	"path"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulerv1 "k8s.io/kube-scheduler/config/v1"
)

// plain returns values of the form in which the cluster's own kube-scheduler calls the
// extender.
func plain(scheduler ...any) map[string]any { return form("Plain", scheduler) }

// isolated returns values of the form in which a second kube-scheduler calls the
// extender.
func isolated(scheduler ...any) map[string]any { return form("Isolated", scheduler) }

func form(name string, scheduler []any) map[string]any {
	values := map[string]any{"mode": name}
	for i := 0; i < len(scheduler); i += 2 {
		values[scheduler[i].(string)] = scheduler[i+1]
	}
	return map[string]any{"scheduler": values}
}

// schedulerConfig returns the rendered configuration of kube-scheduler, in either form.
func schedulerConfig(t *testing.T, from objects) *schedulerv1.KubeSchedulerConfiguration {
	t.Helper()
	key := "ConfigMap/atoll-scheduler"
	if from[key] == nil {
		key = "ConfigMap/atoll-kube-scheduler"
	}
	text := get[*corev1.ConfigMap](t, from, key).Data["config.yaml"]
	object, _, err := strict.Decode([]byte(text), nil, nil)
	if err != nil {
		t.Fatalf("decoding kube-scheduler's configuration: %v\n%s", err, text)
	}
	return object.(*schedulerv1.KubeSchedulerConfiguration)
}

func TestBothFormsConfigureTheExtenderAlike(t *testing.T) {
	for name, values := range map[string]map[string]any{"Isolated": isolated(), "Plain": plain()} {
		t.Run(name, func(t *testing.T) {
			config := schedulerConfig(t, render(t, load(t), values))
			if p := config.PercentageOfNodesToScore; p == nil || *p != 100 {
				t.Errorf("percentageOfNodesToScore is %v: kube-scheduler may never show us the group whose turn it is", p)
			}
			if len(config.Extenders) != 1 {
				t.Fatalf("%d extenders, want 1", len(config.Extenders))
			}
			extender := config.Extenders[0]
			if want := "https://atoll-manager." + namespace + ".svc:444/scheduler"; extender.URLPrefix != want {
				t.Errorf("the extender is at %q, want %q", extender.URLPrefix, want)
			}
			verbs := strings.Join([]string{extender.FilterVerb, extender.PrioritizeVerb, extender.PreemptVerb, extender.BindVerb}, ",")
			if verbs != "filter,,preempt,bind" {
				t.Errorf("verbs are %s", verbs)
			}
			if !extender.NodeCacheCapable || extender.Ignorable || !extender.EnableHTTPS || extender.HTTPTimeout.Seconds() != 5 {
				t.Errorf("extender is %+v", extender)
			}
			if tls := extender.TLSConfig; tls.CAFile != "/etc/atoll/extender/ca.crt" ||
				tls.CertFile != "/etc/atoll/extender/tls.crt" || tls.KeyFile != "/etc/atoll/extender/tls.key" {
				t.Errorf("certificates are looked for at %+v", tls)
			}
		})
	}
}

// TestPinnedForm: only atoll-manager is rendered, with the flag that no scheduler calls
// the extender. This is the default.
func TestPinnedForm(t *testing.T) {
	for name, values := range map[string]map[string]any{"by default": nil, "alone": form("Pinned", nil), "with values of the others": form("Pinned", []any{"filter", "Wide", "asks", "Managed"})} {
		t.Run(name, func(t *testing.T) {
			got := render(t, load(t), values)
			for _, key := range got.keys() {
				if strings.Contains(key, "scheduler") {
					t.Errorf("%s is rendered, though no scheduler asks", key)
				}
			}
			args := get[*appsv1.Deployment](t, got, "Deployment/atoll-manager").Spec.Template.Spec.Containers[0].Args
			if !slices.Equal(args, []string{"--assignment=Early"}) {
				t.Errorf("atoll-manager is started with %v", args)
			}
		})
	}
}

func TestPlainForm(t *testing.T) {
	got := render(t, load(t), plain("filter", "Wide", "tlsDir", "/x", "kubeconfig", ""))
	config := schedulerConfig(t, got)
	if config.Extenders[0].PrioritizeVerb != "prioritize" || config.Extenders[0].TLSConfig.CAFile != "/x/ca.crt" || config.ClientConnection.Kubeconfig != "" {
		t.Errorf("values are not honoured: %+v", config.Extenders[0])
	}
	for _, key := range got.keys() {
		if strings.Contains(key, "atoll-scheduler") {
			t.Errorf("%s is rendered, though there is no second scheduler", key)
		}
	}
	args := func(r objects) []string {
		return get[*appsv1.Deployment](t, r, "Deployment/atoll-manager").Spec.Template.Spec.Containers[0].Args
	}
	if !slices.Equal(args(got), []string{"--filter=Wide"}) {
		t.Errorf("atoll-manager is started with %v, its scheduler asks for scores", args(got))
	}
	got = render(t, load(t), plain())
	if len(args(got)) != 0 {
		t.Errorf("atoll-manager is started with %v: pods would be given to a scheduler that is not there", args(got))
	}
	config = schedulerConfig(t, got)
	if config.ClientConnection.Kubeconfig != "/etc/kubernetes/scheduler.conf" || len(config.Profiles) != 0 || config.LeaderElection.LeaderElect != nil {
		t.Errorf("more is said than the cluster's own kube-scheduler needs: %+v", config)
	}
}

func TestPlainFormCanBeLimitedToManagedPods(t *testing.T) {
	const mark = "atoll.dev/managed"
	args := func(r objects) string {
		return strings.Join(get[*appsv1.Deployment](t, r, "Deployment/atoll-manager").Spec.Template.Spec.Containers[0].Args, " ")
	}
	got := render(t, load(t), plain("asks", "Managed"))
	managed := schedulerConfig(t, got).Extenders[0].ManagedResources
	if len(managed) != 1 || managed[0].Name != mark || !managed[0].IgnoredByScheduler {
		t.Errorf("the extender manages %+v", managed)
	}
	if want := "--mark-resource=" + mark; args(got) != want {
		t.Errorf("atoll-manager is started with %q, want %q: no pod would be asked about", args(got), want)
	}
	for name, values := range map[string]map[string]any{
		"all pods are asked about": plain(), "the second kube-scheduler has its own pods": isolated("asks", "Managed"),
	} {
		got := render(t, load(t), values)
		if managed := schedulerConfig(t, got).Extenders[0].ManagedResources; len(managed) != 0 || strings.Contains(args(got), "mark") {
			t.Errorf("%s: the extender manages %+v, and atoll-manager is started with %q", name, managed, args(got))
		}
	}
}

func TestSecondScheduler(t *testing.T) {
	values := isolated()
	values["manager"] = map[string]any{"extraArgs": []any{"-v=2"}}
	got := render(t, load(t), values)
	args := get[*appsv1.Deployment](t, got, "Deployment/atoll-manager").Spec.Template.Spec.Containers[0].Args
	if strings.Join(args, " ") != "--scheduler-name=atoll-scheduler -v=2" {
		t.Errorf("atoll-manager is started with %v", args)
	}
	config := schedulerConfig(t, got)
	if len(config.Profiles) != 1 || *config.Profiles[0].SchedulerName != "atoll-scheduler" {
		t.Errorf("it serves %+v: pods that are none of ours", config.Profiles)
	}
	if config.ClientConnection.Kubeconfig != "" {
		t.Errorf("it looks for %s, which no pod has", config.ClientConnection.Kubeconfig)
	}
	if e := config.LeaderElection; !*e.LeaderElect || e.ResourceLock != "leases" || e.ResourceName != "atoll-scheduler" || e.ResourceNamespace != namespace {
		t.Errorf("leaders are elected by %+v", e)
	}

	pod := get[*appsv1.Deployment](t, got, "Deployment/atoll-scheduler").Spec.Template
	container := pod.Spec.Containers[0]
	if container.Image != "registry.k8s.io/kube-scheduler:v1.36.3" || container.Command[0] != "kube-scheduler" || pod.Spec.ServiceAccountName != "atoll-scheduler" {
		t.Errorf("it runs %s %v as %s", container.Image, container.Command, pod.Spec.ServiceAccountName)
	}
	if pod.Spec.SecurityContext.FSGroup == nil || *pod.Spec.SecurityContext.FSGroup != *pod.Spec.SecurityContext.RunAsUser {
		t.Errorf("it cannot read the key of its certificate: %+v", pod.Spec.SecurityContext)
	}
	mounted := map[string]corev1.Volume{}
	for _, mount := range container.VolumeMounts {
		for _, volume := range pod.Spec.Volumes {
			if volume.Name == mount.Name {
				mounted[mount.MountPath] = volume
			}
		}
	}
	extender := config.Extenders[0].TLSConfig
	for _, file := range []string{extender.CAFile, extender.CertFile, extender.KeyFile} {
		if secret := mounted[path.Dir(file)].Secret; secret == nil || secret.SecretName != "atoll-extender-client" {
			t.Errorf("%s is looked for where no certificate is mounted", file)
		}
	}
	i := slices.IndexFunc(container.Args, func(arg string) bool { return strings.HasPrefix(arg, "--config=") })
	if i < 0 {
		t.Fatalf("it is given no configuration: %v", container.Args)
	}
	if file := strings.TrimPrefix(container.Args[i], "--config="); mounted[path.Dir(file)].ConfigMap == nil ||
		mounted[path.Dir(file)].ConfigMap.Name != "atoll-scheduler" || path.Base(file) != "config.yaml" {
		t.Errorf("its configuration is looked for at %s, where none is mounted", file)
	}
}

// TestSecondSchedulerIsNotAdmin: it has the roles of every kube-scheduler, its
// own Lease, and nothing else.
func TestSecondSchedulerIsNotAdmin(t *testing.T) {
	got := render(t, load(t), isolated())
	bound := map[string]string{}
	note := func(key string, subjects []rbacv1.Subject, role rbacv1.RoleRef) {
		for _, s := range subjects {
			if s.Name == "atoll-scheduler" && s.Namespace == namespace {
				bound[role.Kind+"/"+role.Name] = key
			}
		}
	}
	for key, object := range got {
		switch binding := object.(type) {
		case *rbacv1.ClusterRoleBinding:
			note(key, binding.Subjects, binding.RoleRef)
		case *rbacv1.RoleBinding:
			note(key, binding.Subjects, binding.RoleRef)
		}
	}
	want := []string{
		"ClusterRole/system:kube-scheduler", "ClusterRole/system:volume-scheduler",
		"Role/atoll-scheduler", "Role/extension-apiserver-authentication-reader",
	}
	if len(bound) != len(want) {
		t.Errorf("it is bound to %v, want %v", bound, want)
	}
	for _, role := range want {
		if bound[role] == "" {
			t.Errorf("it is not bound to %s", role)
		}
	}
	if key := bound["Role/extension-apiserver-authentication-reader"]; key != "RoleBinding/kube-system/atoll-scheduler-authentication-reader" {
		t.Errorf("that Role is in kube-system, the binding is %s", key)
	}
	lease := schedulerConfig(t, got).LeaderElection.ResourceName
	rules := get[*rbacv1.Role](t, got, "Role/atoll-scheduler").Rules
	if len(rules) != 1 || strings.Join(rules[0].ResourceNames, ",") != lease || strings.Join(rules[0].Resources, ",") != "leases" {
		t.Errorf("it may touch more than its Lease %q: %+v", lease, rules)
	}
}

func TestANewConfigurationRestartsTheSecondScheduler(t *testing.T) {
	template := func(values map[string]any) map[string]string {
		return get[*appsv1.Deployment](t, render(t, load(t), values), "Deployment/atoll-scheduler").Spec.Template.Annotations
	}
	const key = "atoll.dev/config-hash"
	before, others := template(isolated())[key], isolated()
	others["manager"] = map[string]any{"replicas": 3}
	if before == "" || before != template(others)[key] {
		t.Errorf("the hash %q is none of the configuration alone", before)
	}
	if before == template(isolated("filter", "Wide"))[key] {
		t.Error("another configuration leaves the pods as they are")
	}
}

func TestSecondSchedulerOutsideOfTheCluster(t *testing.T) {
	got := render(t, load(t), isolated("deploy", false))
	for _, key := range []string{"Deployment/atoll-scheduler", "PodDisruptionBudget/atoll-scheduler"} {
		if got[key] != nil {
			t.Errorf("%s is rendered", key)
		}
	}
	for _, key := range []string{"ConfigMap/atoll-scheduler", "ServiceAccount/atoll-scheduler", "ClusterRoleBinding/atoll-scheduler-kube-scheduler"} {
		if got[key] == nil {
			t.Errorf("%s is missing", key)
		}
	}
}

func TestOptionalValuesOfTheSecondScheduler(t *testing.T) {
	got := render(t, load(t), map[string]any{
		"image": map[string]any{"pullSecrets": []any{"pull"}},
		"scheduler": map[string]any{
			"mode":     "Isolated",
			"image":    map[string]any{"registry": "registry.example:5000", "repository": "k8s/kube-scheduler", "tag": "v1.35.1"},
			"replicas": 3, "extraArgs": []any{"-v=4"}, "tlsDir": "/certificates",
			"nodeSelector":   map[string]any{"a": "b"},
			"tolerations":    []any{map[string]any{"key": "a", "operator": "Exists"}},
			"affinity":       map[string]any{"nodeAffinity": map[string]any{}},
			"podAnnotations": map[string]any{"a": "b"}, "podLabels": map[string]any{"a": "b"},
			"priorityClassName": "",
		},
	})
	deployment := get[*appsv1.Deployment](t, got, "Deployment/atoll-scheduler")
	template := deployment.Spec.Template
	container := template.Spec.Containers[0]
	if *deployment.Spec.Replicas != 3 || container.Image != "registry.example:5000/k8s/kube-scheduler:v1.35.1" ||
		!slices.Contains(container.Args, "-v=4") || len(template.Spec.Tolerations) != 1 || template.Spec.Affinity == nil ||
		template.Spec.PriorityClassName != "" || len(template.Spec.ImagePullSecrets) != 1 || template.Spec.NodeSelector["a"] != "b" ||
		template.Labels["a"] != "b" || template.Annotations["a"] != "b" {
		t.Errorf("values are not honoured: %+v", deployment.Spec)
	}
	if mounts := container.VolumeMounts; !slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/certificates" }) {
		t.Errorf("the certificates are mounted elsewhere: %v", mounts)
	}
}

func TestNotes(t *testing.T) {
	notes := func(values map[string]any) string {
		files, err := renderText(load(t), values)
		if err != nil {
			t.Fatal(err)
		}
		return files["atoll/templates/NOTES.txt"]
	}
	if text := notes(plain()); !strings.Contains(text, `{{index .data \"$key\" | base64decode}}`) {
		t.Errorf("the notes' command for the certificate is broken:\n%s", text)
	}
	if text := notes(form("Pinned", nil)); strings.Contains(text, "atoll-scheduler") || strings.Contains(text, "--config") {
		t.Errorf("the notes ask for what is not needed:\n%s", text)
	}
	if text := notes(isolated()); !strings.Contains(text, "rollout status deployment/atoll-scheduler") || strings.Contains(text, "--config") {
		t.Errorf("the notes ask for what is not needed:\n%s", text)
	}
}
