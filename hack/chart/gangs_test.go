package chart

import (
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// podGroups is the key of Volcano's definition among the rendered objects.
const podGroups = "CustomResourceDefinition/podgroups.scheduling.volcano.sh"

// gangs returns values with PodGroups enabled, and with further values of gangs.
func gangs(values map[string]any) map[string]any {
	block := map[string]any{"enabled": true}
	for key, value := range values {
		block[key] = value
	}
	return map[string]any{"gangs": block}
}

// TestVolcanosPodGroupCRDIsKept: the chart installs the definition of PodGroups only
// if the cluster has none, or the chart's own. If Volcano's is installed there is no
// error, and the definition is not rendered.
func TestVolcanosPodGroupCRDIsKept(t *testing.T) {
	const name = "podgroups.scheduling.volcano.sh"
	ours := defined(name, "app.kubernetes.io/part-of", "atoll")
	with := func(values map[string]any, crds map[string]any) map[string]any {
		values["crds"] = crds
		return values
	}
	for title, tc := range map[string]struct {
		values map[string]any
		there  []runtime.Object
		want   bool
	}{
		"gangs are off":                        {},
		"gangs are off, and Atoll's is there":  {there: []runtime.Object{ours}},
		"a cluster without":                    {values: gangs(nil), want: true},
		"Atoll's own":                          {values: gangs(nil), there: []runtime.Object{ours}, want: true},
		"Volcano's":                            {values: gangs(nil), there: []runtime.Object{defined(name)}},
		"Volcano's, with labels":               {values: gangs(nil), there: []runtime.Object{defined(name, "app.kubernetes.io/part-of", "volcano")}},
		"Volcano's, though named to be taken":  {values: with(gangs(nil), map[string]any{"adopt": []any{name}}), there: []runtime.Object{defined(name)}},
		"a cluster without, and Never":         {values: gangs(map[string]any{"crd": "Never"})},
		"Atoll's own, and Never":               {values: gangs(map[string]any{"crd": "Never"}), there: []runtime.Object{ours}},
		"definitions are not ours to install":  {values: with(gangs(nil), map[string]any{"install": false})},
		"a definition of Volcano's Jobs alone": {values: gangs(nil), there: []runtime.Object{defined("jobs.batch.volcano.sh")}, want: true},
	} {
		t.Run(title, func(t *testing.T) {
			files, err := renderBeside(t, tc.values, tc.there...)
			if err != nil {
				t.Fatal(err)
			}
			rendered := files["atoll/templates/crds.yaml"]
			if got := strings.Contains(rendered, "\n  name: "+name+"\n"); got != tc.want {
				t.Errorf("the definition is rendered: %v, want %v", got, tc.want)
			}
			installs := tc.values == nil || tc.values["crds"] == nil || tc.values["crds"].(map[string]any)["install"] != false
			if got := strings.Contains(rendered, "\n  name: nodegroups.groupmanagement.kubeedge.io\n"); got != installs {
				t.Errorf("the other definitions are rendered: %v, want %v", got, installs)
			}
		})
	}
}

// TestPodGroupExceptionCoversNoOtherCRD: the exception for PodGroups applies to no other kind.
func TestPodGroupExceptionCoversNoOtherCRD(t *testing.T) {
	_, err := renderBeside(t, gangs(nil), defined("podgroups.scheduling.volcano.sh"), defined("nodepools.apps.openyurt.io"))
	if err == nil || strings.Contains(err.Error(), "podgroups") || !strings.Contains(err.Error(), "nodepools.apps.openyurt.io") {
		t.Errorf("the error is %v", err)
	}
}

// TestGangsValuesBecomeManagerFlags: with a flag for each value that is not its default.
func TestGangsValuesBecomeManagerFlags(t *testing.T) {
	for name, tc := range map[string]struct {
		values map[string]any
		want   []string
	}{
		"off":                            {nil, []string{"--assignment=Early"}},
		"off, with values":               {gangs(map[string]any{"enabled": false, "multiScheduler": true}), []string{"--assignment=Early"}},
		"on":                             {gangs(nil), []string{"--assignment=Early", "--gangs"}},
		"defaults that are written down": {gangs(map[string]any{"schedulerNames": []any{"volcano"}, "multiScheduler": false}), []string{"--assignment=Early", "--gangs"}},
		"every value": {
			gangs(map[string]any{
				"schedulerNames": []any{"volcano", "volcano-2"}, "multiScheduler": true,
				"config": map[string]any{"namespace": "batch", "name": "rules"},
			}),
			[]string{"--assignment=Early", "--gangs", "--gangs-schedulers=volcano,volcano-2", "--gangs-config=batch/rules", "--gangs-multi-scheduler"},
		},
		"another namespace": {
			gangs(map[string]any{"config": map[string]any{"namespace": "batch"}}),
			[]string{"--assignment=Early", "--gangs", "--gangs-config=batch/volcano-controller-configmap"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			deployment := get[*appsv1.Deployment](t, render(t, load(t), tc.values), "Deployment/atoll-manager")
			if got := deployment.Spec.Template.Spec.Containers[0].Args; !slices.Equal(got, tc.want) {
				t.Errorf("the arguments are %q, want %q", got, tc.want)
			}
		})
	}
}

// grants returns the rules of a role, one line for each verb on each resource.
func grants(rules []rbacv1.PolicyRule) map[string]bool {
	out := map[string]bool{}
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				if names := strings.Join(rule.ResourceNames, ","); names != "" {
					resource += " named " + names
				}
				for _, verb := range rule.Verbs {
					out[verb+" "+resource+" of "+group] = true
				}
			}
		}
	}
	return out
}

// boundToTheManager fails unless the ClusterRole is bound to atoll-manager only, in every
// namespace.
func boundToTheManager(t *testing.T, got objects, name string) {
	t.Helper()
	binding := get[*rbacv1.ClusterRoleBinding](t, got, "ClusterRoleBinding/"+name)
	want := []rbacv1.Subject{{Kind: "ServiceAccount", Name: "atoll-manager", Namespace: namespace}}
	if binding.RoleRef.Kind != "ClusterRole" || binding.RoleRef.Name != name || !slices.Equal(binding.Subjects, want) {
		t.Errorf("%s binds %+v to %+v", name, binding.RoleRef, binding.Subjects)
	}
}

func TestGangsPermissions(t *testing.T) {
	got := render(t, load(t), gangs(map[string]any{"config": map[string]any{"namespace": "batch", "name": "rules"}}))
	granted := grants(get[*rbacv1.ClusterRole](t, got, "ClusterRole/atoll-manager-gangs").Rules)
	want := map[string]bool{}
	for _, verb := range []string{"get", "list", "watch", "create", "patch", "delete"} {
		want[verb+" podgroups of scheduling.volcano.sh"] = true
	}
	for _, verb := range []string{"get", "list", "watch", "patch"} {
		want[verb+" configmaps named rules of "] = true
	}
	if !maps.Equal(granted, want) {
		t.Errorf("granted is %v", slices.Sorted(maps.Keys(granted)))
	}
	boundToTheManager(t, got, "atoll-manager-gangs")
	for key, object := range got {
		if role, ok := object.(*rbacv1.Role); ok && role.Namespace == "batch" {
			t.Errorf("%s is in a namespace that need not exist", key)
		}
	}

	view := grants(get[*rbacv1.ClusterRole](t, got, "ClusterRole/atoll-view").Rules)
	edit := grants(get[*rbacv1.ClusterRole](t, got, "ClusterRole/atoll-edit").Rules)
	if !view["list podgroups of scheduling.volcano.sh"] || view["patch podgroups of scheduling.volcano.sh"] {
		t.Error("users who may view a namespace may not read its PodGroups, or may write them")
	}
	for grant := range edit {
		if strings.Contains(grant, "podgroups") {
			t.Errorf("users are granted: %s", grant)
		}
	}
}

// TestOwnersOfPodsCanBeAdded: the role with which atoll-manager reads owners has no rules
// of its own, and selects ClusterRoles by a label; the chart has one of these.
func TestOwnersOfPodsCanBeAdded(t *testing.T) {
	got := render(t, load(t), gangs(nil))
	reader := get[*rbacv1.ClusterRole](t, got, "ClusterRole/atoll-podgroup-owner-reader")
	if reader.Rules != nil {
		t.Errorf("an upgrade would write the rules %v over those of the control plane", reader.Rules)
	}
	if reader.AggregationRule == nil || len(reader.AggregationRule.ClusterRoleSelectors) != 1 {
		t.Fatalf("it selects %+v", reader.AggregationRule)
	}
	boundToTheManager(t, got, reader.Name)
	selector, err := metav1.LabelSelectorAsSelector(&reader.AggregationRule.ClusterRoleSelectors[0])
	if err != nil || !selector.Matches(labels.Set{"atoll.dev/podgroup-owner-reader": "true"}) {
		t.Errorf("it selects by %v (%v)", selector, err)
	}

	granted := map[string]bool{}
	for key, object := range got {
		role, ok := object.(*rbacv1.ClusterRole)
		if !ok || !selector.Matches(labels.Set(role.Labels)) {
			continue
		}
		if key != "ClusterRole/atoll-podgroup-owner-reader-default" {
			t.Errorf("it selects %s", key)
		}
		maps.Copy(granted, grants(role.Rules))
	}
	want := map[string]bool{}
	for group, resources := range map[string]string{
		"argoproj.io":              "workflows cronworkflows rollouts",
		"jobset.x-k8s.io":          "jobsets",
		"leaderworkerset.x-k8s.io": "leaderworkersets",
		"ray.io":                   "rayclusters rayjobs rayservices",
		"kubeflow.org":             "pytorchjobs tfjobs mpijobs xgboostjobs paddlejobs jaxjobs notebooks",
		"trainer.kubeflow.org":     "trainjobs",
		"sparkoperator.k8s.io":     "sparkapplications scheduledsparkapplications",
		"batch.volcano.sh":         "jobs cronjobs",
		"apps.kruise.io":           "clonesets statefulsets daemonsets",
		"workload.codeflare.dev":   "appwrappers",
	} {
		for resource := range strings.FieldsSeq(resources) {
			for _, verb := range []string{"get", "list", "watch"} {
				want[verb+" "+resource+" of "+group] = true
			}
		}
	}
	if !maps.Equal(granted, want) {
		t.Errorf("it grants %v", slices.Sorted(maps.Keys(granted)))
	}
}

// TestWithoutGangs: no part of gangs is rendered, not even in a role for users.
func TestWithoutGangs(t *testing.T) {
	for name, values := range map[string]map[string]any{"the default": nil, "off": gangs(map[string]any{"enabled": false})} {
		files, err := renderText(load(t), values)
		if err != nil {
			t.Fatal(err)
		}
		for file, text := range files {
			for _, word := range []string{"gangs", "podgroups", "podgroup-owner", "volcano"} {
				if strings.Contains(strings.ToLower(text), word) {
					t.Errorf("%s: %s speaks of %s", name, file, word)
				}
			}
		}
	}
}
