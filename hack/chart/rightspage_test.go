package chart

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

var update = flag.Bool("update", false, "write the generated part of docs/rights.md")

// TestRightsPage: docs/rights.md lists the rights of each identity as the roles of the chart
// give them.
func TestRightsPage(t *testing.T) {
	const (
		page       = "../../docs/rights.md"
		begin, end = "<!-- begin of the generated part -->\n", "<!-- end of the generated part -->\n"
	)
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(raw), begin)
	_, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		t.Fatalf("%s has no generated part", page)
	}
	want := before + begin + lists(t) + end + after
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil { //nolint:gosec // a page that everybody reads
			t.Fatal(err)
		}
		return
	}
	if want != string(raw) {
		t.Errorf("%s is out of date; in hack/chart: go test -run TestRightsPage -update", page)
	}
}

// lists returns the generated part of the page.
func lists(t *testing.T) string {
	t.Helper()
	out := &strings.Builder{}
	byDefault := rightsOf(t, "atoll-manager", nil)
	fmt.Fprintf(out, "### atoll-manager\nWith the default values:\n\n%s", table(byDefault))
	for _, value := range []struct {
		set    string
		values map[string]any
	}{
		{"pools.enabled=false", map[string]any{"pools": map[string]any{"enabled": false}}},
		{"coordinator.enabled=true", map[string]any{"coordinator": map[string]any{"enabled": true}}},
		{"capacity.preset=None", map[string]any{"capacity": map[string]any{"preset": "None"}}},
		{"scheduler.mode=Isolated", isolated()},
		{"gangs.enabled=true", gangs(nil)},
		{"workloads=[CloneSet]", map[string]any{"workloads": everything()["workloads"]}},
	} {
		with := rightsOf(t, "atoll-manager", value.values)
		for _, difference := range []struct {
			word     string
			from, to map[right]map[string]bool
		}{{"also", byDefault, with}, {"not", with, byDefault}} {
			if more := without(difference.to, difference.from); len(more) > 0 {
				fmt.Fprintf(out, "\nWith `%s` %s:\n\n%s", value.set, difference.word, table(more))
			}
		}
	}
	fmt.Fprintf(out, "\n### atoll-scheduler\nIn the form Isolated. It also has Kubernetes' own roles `system:kube-scheduler`, `system:volume-scheduler` and, in `kube-system`, `extension-apiserver-authentication-reader`, as the cluster's own kube-scheduler does.\n\n%s",
		table(rightsOf(t, "atoll-scheduler", isolated())))
	return out.String()
}

// right is a resource that a role is about, and where it counts.
type right struct{ where, resource string }

// rightsOf returns the verbs that a ServiceAccount of the chart has for each resource.
func rightsOf(t *testing.T, account string, values map[string]any) map[right]map[string]bool {
	t.Helper()
	got := render(t, load(t), values)
	all := map[right]map[string]bool{}
	add := func(where string, rules []rbacv1.PolicyRule) {
		for grant := range grants(rules) {
			verb, resource, _ := strings.Cut(grant, " ")
			key := right{where, strings.TrimSuffix(resource, " of ")}
			if all[key] == nil {
				all[key] = map[string]bool{}
			}
			all[key][verb] = true
		}
	}
	for _, object := range got {
		switch b := object.(type) {
		case *rbacv1.ClusterRoleBinding:
			if !binds(b.Subjects, account) {
				continue
			}
			role, ours := got["ClusterRole/"+b.RoleRef.Name].(*rbacv1.ClusterRole)
			switch {
			case !ours && b.RoleRef.Name == "system:auth-delegator":
				all[right{"everywhere", "tokenreviews of authentication.k8s.io"}] = map[string]bool{"create": true}
				all[right{"everywhere", "subjectaccessreviews of authorization.k8s.io"}] = map[string]bool{"create": true}
			case ours && role.AggregationRule != nil:
				for _, other := range got {
					if other, is := other.(*rbacv1.ClusterRole); is && other.Labels["atoll.dev/podgroup-owner-reader"] == "true" {
						add("everywhere", other.Rules)
					}
				}
			case ours:
				add("everywhere", role.Rules)
			}
		case *rbacv1.RoleBinding:
			key := strings.Replace(keyOf(t, b), "RoleBinding/", "Role/", 1) // a role has the name of its binding
			if role, ours := got[key].(*rbacv1.Role); ours && binds(b.Subjects, account) {
				add("in `"+strings.Replace(b.Namespace, namespace, "atoll-system", 1)+"`", role.Rules)
			}
		}
	}
	return all
}

func binds(subjects []rbacv1.Subject, account string) bool {
	return slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool { return s.Name == account && s.Namespace == namespace })
}

// without returns the rights of all that are not in other.
func without(all, other map[right]map[string]bool) map[right]map[string]bool {
	left := map[right]map[string]bool{}
	for key, verbs := range all {
		for verb := range verbs {
			if !other[key][verb] {
				if left[key] == nil {
					left[key] = map[string]bool{}
				}
				left[key][verb] = true
			}
		}
	}
	return left
}

// table returns rights as a table, sorted.
func table(all map[right]map[string]bool) string {
	rows := make([]string, 0, len(all))
	for key, verbs := range all {
		resource, group, _ := strings.Cut(key.resource, " of ")
		resource, names, named := strings.Cut(resource, " named ")
		if group != "" {
			resource += "." + group
		}
		if named {
			resource += "`, only `" + strings.ReplaceAll(names, ",", "` and `")
		}
		rows = append(rows, fmt.Sprintf("| %s | `%s` | %s |\n", key.where, resource, strings.Join(slices.Sorted(maps.Keys(verbs)), ", "))) //nolint:gocritic // resource has such quotes inside
	}
	slices.Sort(rows)
	return "| where | resource | verbs |\n|---|---|---|\n" + strings.Join(rows, "")
}
