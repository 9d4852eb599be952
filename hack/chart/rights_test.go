package chart

import (
	"maps"
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

// managersGrants returns what atoll-manager is granted by all the roles of a rendered chart
// that are bound to it, in the format of grants.
func managersGrants(t *testing.T, got objects) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, object := range got {
		var subjects []rbacv1.Subject
		var role rbacv1.RoleRef
		switch binding := object.(type) {
		case *rbacv1.ClusterRoleBinding:
			subjects, role = binding.Subjects, binding.RoleRef
		case *rbacv1.RoleBinding:
			subjects, role = binding.Subjects, binding.RoleRef
		}
		if !slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool { return s.Name == "atoll-manager" && s.Namespace == namespace }) {
			continue
		}
		switch role := got[role.Kind+"/"+role.Name].(type) {
		case *rbacv1.ClusterRole:
			maps.Copy(all, grants(role.Rules))
		case *rbacv1.Role:
			maps.Copy(all, grants(role.Rules))
		}
	}
	return all
}

// TestRightsOnlyWhereTheFeatureIsOn: a value that turns a feature off takes the rights back
// that only this feature needs. Each row names rights of the feature, and rights that others
// need.
func TestRightsOnlyWhereTheFeatureIsOn(t *testing.T) {
	for name, tc := range map[string]struct {
		on, off     map[string]any
		gone, stays []string
	}{
		"without pools no workload is created, changed as a whole or deleted": {
			off: map[string]any{"pools": map[string]any{"enabled": false}},
			gone: []string{
				"create deployments of apps", "update deployments of apps", "delete deployments of apps",
				"create statefulsets of apps", "update statefulsets of apps", "delete statefulsets of apps",
				"create daemonsets of apps", "update daemonsets of apps", "delete daemonsets of apps",
				"create controllerrevisions of apps", "list controllerrevisions of apps",
				"patch nodepools of apps.openyurt.io", "list uniteddeployments of apps.openyurt.io",
			},
			stays: []string{"patch deployments of apps", "watch nodes of ", "patch nodes of ", "create events of events.k8s.io"},
		},
		"without classes of capacity no CapacitySplit is created and no namespace read": {
			off: map[string]any{"capacity": map[string]any{"preset": "None"}},
			gone: []string{
				"list namespaces of ", "watch namespaces of ",
				"create capacitysplits of capacity.atoll.dev", "patch capacitysplits/status of capacity.atoll.dev",
			},
			stays: []string{"delete capacitysplits of capacity.atoll.dev"},
		},
		"no kube-scheduler calls the extender in the form Pinned, so no pod is bound": {
			on:    isolated(),
			gone:  []string{"create pods/binding of "},
			stays: []string{"patch pods of ", "create pods/eviction of "},
		},
		"no webhook configuration is written while the CA stays the same": {
			off:   map[string]any{"rbac": map[string]any{"writeCABundle": false}},
			gone:  []string{"patch mutatingwebhookconfigurations named atoll-pods of admissionregistration.k8s.io", "patch validatingwebhookconfigurations named atoll-policies of admissionregistration.k8s.io"},
			stays: []string{"get mutatingwebhookconfigurations named atoll-pods of admissionregistration.k8s.io", "get validatingwebhookconfigurations named atoll-policies of admissionregistration.k8s.io"},
		},
		"without gangs no PodGroup is written": {
			on:   gangs(nil),
			gone: []string{"create podgroups of scheduling.volcano.sh", "patch podgroups of scheduling.volcano.sh", "patch configmaps named volcano-controller-configmap of "},
		},
	} {
		t.Run(name, func(t *testing.T) {
			on := managersGrants(t, render(t, load(t), tc.on))
			without := managersGrants(t, render(t, load(t), tc.off))
			for _, grant := range tc.gone {
				if !on[grant] {
					t.Errorf("with the feature it is not granted: %s", grant)
				}
				if without[grant] {
					t.Errorf("without the feature it is granted: %s", grant)
				}
			}
			for _, grant := range tc.stays {
				if !on[grant] || !without[grant] {
					t.Errorf("it is not granted in both cases: %s", grant)
				}
			}
		})
	}
}
