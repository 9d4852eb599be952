package chart

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

// TestNodesMayReadPools, and nothing else, where nodes have hubs and there are pools.
func TestNodesMayReadPools(t *testing.T) {
	hub := map[string]any{"enabled": true, "config": map[string]any{"cloud": map[string]any{"servers": []any{"https://10.0.0.1:6443"}}}}
	for name, tc := range map[string]struct {
		values map[string]any
		want   []string
	}{
		"by default": {nil, nil},
		"with hubs": {map[string]any{"hub": hub}, []string{
			"get nodepools of apps.openyurt.io", "get yurtcoordinators of apps.openyurt.io", "list nodepools of apps.openyurt.io", "list yurtcoordinators of apps.openyurt.io",
			"watch nodepools of apps.openyurt.io", "watch yurtcoordinators of apps.openyurt.io",
		}},
		"with hubs and coordinators": {map[string]any{"hub": hub, "coordinator": map[string]any{"enabled": true}}, []string{
			"get endpointslices of discovery.k8s.io", "get namespaces of ", "get nodepools of apps.openyurt.io", "get yurtcoordinators of apps.openyurt.io",
			"list endpointslices of discovery.k8s.io", "list namespaces of ", "list nodepools of apps.openyurt.io", "list yurtcoordinators of apps.openyurt.io",
			"watch endpointslices of discovery.k8s.io", "watch namespaces of ", "watch nodepools of apps.openyurt.io", "watch yurtcoordinators of apps.openyurt.io",
		}},
		"hubs and no pools": {map[string]any{"hub": hub, "pools": map[string]any{"enabled": false}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := render(t, load(t), tc.values)
			var may []string
			for _, object := range got {
				binding, is := object.(*rbacv1.ClusterRoleBinding)
				if !is || !slices.ContainsFunc(binding.Subjects, func(s rbacv1.Subject) bool { return s.Kind == rbacv1.GroupKind && s.Name == "system:nodes" }) {
					continue
				}
				role, is := got["ClusterRole/"+binding.RoleRef.Name].(*rbacv1.ClusterRole)
				if !is {
					t.Fatalf("the role %s is not in the chart", binding.RoleRef.Name)
				}
				for grant := range grants(role.Rules) {
					may = append(may, grant)
				}
			}
			slices.Sort(may)
			if !slices.Equal(may, tc.want) {
				t.Errorf("nodes may %q, want %q", may, tc.want)
			}
		})
	}
}
