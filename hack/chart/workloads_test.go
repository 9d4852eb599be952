package chart

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// TestWorkloadsAreConfiguredAndAllowedTogether: one value sets both the ConfigMap that
// the manager reads and its permissions.
func TestWorkloadsAreConfiguredAndAllowedTogether(t *testing.T) {
	got := render(t, load(t), map[string]any{"workloads": []any{
		map[string]any{
			"group": "apps.kruise.io", "version": "v1alpha1", "kind": "CloneSet",
			"replicasPath": ".spec.replicas", "podTemplatePath": ".spec.template", "revisionLabel": "controller-revision-hash",
		},
		map[string]any{"group": "example.com", "version": "v1", "kind": "Ferry"},
		map[string]any{"group": "example.com", "version": "v1", "kind": "Bus"},
		map[string]any{"group": "example.com", "version": "v1", "kind": "Sheep", "resource": "sheep"},
		map[string]any{"version": "v1", "kind": "ReplicationController"},
	}})
	var rules []string
	for _, rule := range get[*rbacv1.ClusterRole](t, got, "ClusterRole/atoll-manager-workloads").Rules {
		rules = append(rules, strings.Join(rule.APIGroups, "+")+"/"+strings.Join(rule.Resources, "+")+" "+strings.Join(rule.Verbs, ","))
	}
	want := []string{
		"apps.kruise.io/clonesets get,list,watch,patch",
		"example.com/ferries get,list,watch,patch",
		"example.com/buses get,list,watch,patch",
		"example.com/sheep get,list,watch,patch",
		"/replicationcontrollers get,list,watch,patch",
	}
	if !slices.Equal(rules, want) {
		t.Errorf("rules are %q, want %q", rules, want)
	}
	binding := get[*rbacv1.ClusterRoleBinding](t, got, "ClusterRoleBinding/atoll-manager-workloads")
	if binding.RoleRef.Name != "atoll-manager-workloads" || len(binding.Subjects) != 1 ||
		binding.Subjects[0].Name != "atoll-manager" || binding.Subjects[0].Namespace != namespace {
		t.Errorf("bound to %+v", binding)
	}
	config := get[*corev1.ConfigMap](t, got, "ConfigMap/groupmanagement-config")
	begin := `- group: apps.kruise.io
  kind: CloneSet
  podTemplatePath: .spec.template
  replicasPath: .spec.replicas
  revisionLabel: controller-revision-hash
  version: v1alpha1
- group: example.com
  kind: Ferry
  version: v1
`
	if text := config.Data["workloads.yaml"]; !strings.HasPrefix(text, begin) || config.Namespace != namespace {
		t.Errorf("the manager reads, in namespace %s:\n%s", config.Namespace, text)
	}
}

func TestNoWorkloadsLeaveTheConfigMapToOthers(t *testing.T) {
	got := render(t, load(t), nil)
	for _, key := range []string{"ConfigMap/groupmanagement-config", "ClusterRole/atoll-manager-workloads", "ClusterRoleBinding/atoll-manager-workloads"} {
		if got[key] != nil {
			t.Errorf("%s is rendered", key)
		}
	}
}

// TestBadWorkloadsAreRefused: in particular, no entry may become a rule for more
// resources than its own.
func TestBadWorkloadsAreRefused(t *testing.T) {
	for name, change := range map[string]map[string]any{
		"no kind":              {"kind": nil},
		"no version":           {"version": nil},
		"every group":          {"group": "*"},
		"every resource":       {"resource": "*"},
		"a subresource":        {"resource": "stages/status"},
		"two groups":           {"group": `a","b`},
		"an unknown field":     {"replicaPath": ".spec.replicas"},
		"a path into a list":   {"replicasPath": ".spec.sets[0]"},
		"a path of dots":       {"podTemplatePath": ".."},
		"a kind in lower case": {"kind": "stage"},
	} {
		t.Run(name, func(t *testing.T) {
			entry := map[string]any{"group": "example.com", "version": "v1", "kind": "Stage"}
			for key, value := range change {
				if value == nil {
					delete(entry, key)
					continue
				}
				entry[key] = value
			}
			if _, err := renderText(load(t), map[string]any{"workloads": []any{entry}}); err == nil {
				t.Error("accepted")
			}
		})
	}
}
