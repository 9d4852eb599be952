package chart

import (
	"slices"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
)

// TestFlowSchemas: Leases of the release are renewed at the level of leader elections, and
// every other request of Atoll has the level of the controllers of Kubernetes, behind the
// FlowSchemas of Kubernetes for these and before that for any ServiceAccount.
func TestFlowSchemas(t *testing.T) {
	chart := load(t)
	for _, tc := range []struct {
		mode  string
		names []string
	}{{"Pinned", []string{"atoll-manager"}}, {"Isolated", []string{"atoll-manager", "atoll-scheduler"}}} {
		got := render(t, chart, map[string]any{"scheduler": map[string]any{"mode": tc.mode}})
		leases := get[*flowcontrolv1.FlowSchema](t, got, "FlowSchema/atoll-leader-election").Spec
		rest := get[*flowcontrolv1.FlowSchema](t, got, "FlowSchema/atoll").Spec
		if leases.PriorityLevelConfiguration.Name != "leader-election" || rest.PriorityLevelConfiguration.Name != "workload-high" {
			t.Errorf("%s: Leases have level %s, and the rest %s", tc.mode, leases.PriorityLevelConfiguration.Name, rest.PriorityLevelConfiguration.Name)
		}
		if p := leases.MatchingPrecedence; p <= 100 || p >= rest.MatchingPrecedence || rest.MatchingPrecedence >= 9000 {
			t.Errorf("%s: precedences %d and %d", tc.mode, p, rest.MatchingPrecedence)
		}
		for _, spec := range []flowcontrolv1.FlowSchemaSpec{leases, rest} {
			if len(spec.Rules) != 1 {
				t.Fatalf("%s: %d rules", tc.mode, len(spec.Rules))
			}
			var names []string
			for _, s := range spec.Rules[0].Subjects {
				if s.ServiceAccount == nil || s.ServiceAccount.Namespace != namespace {
					t.Fatalf("%s: subject %+v", tc.mode, s)
				}
				names = append(names, s.ServiceAccount.Name)
			}
			if !slices.Equal(names, tc.names) {
				t.Errorf("%s: for %v, want %v", tc.mode, names, tc.names)
			}
		}
		if r := leases.Rules[0].ResourceRules; len(r) != 1 || !slices.Equal(r[0].Resources, []string{"leases"}) || !slices.Equal(r[0].Namespaces, []string{namespace}) {
			t.Errorf("%s: the level of leader elections is for %+v", tc.mode, r)
		}
	}
	off := render(t, chart, map[string]any{"flowSchemas": map[string]any{"enabled": false}})
	for _, name := range []string{"FlowSchema/atoll-leader-election", "FlowSchema/atoll"} {
		if off[name] != nil {
			t.Errorf("%s is rendered though it is off", name)
		}
	}
}
