package chart

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
)

// TestFlowSchemas: Leases of the release are renewed at the level of leader elections, and
// every other request of Atoll has the level of kube-controller-manager and kube-scheduler. In
// Kubernetes the Leases of these have precedence 100, their other requests 800, ServiceAccounts
// of kube-system 900, and all others 9000.
func TestFlowSchemas(t *testing.T) {
	chart := load(t)
	for mode, names := range map[string][]string{"Pinned": {"atoll-manager"}, "Plain": {"atoll-manager"}, "Isolated": {"atoll-manager", "atoll-scheduler"}} {
		var subjects []flowcontrolv1.Subject
		for _, name := range names {
			subjects = append(subjects, flowcontrolv1.Subject{Kind: flowcontrolv1.SubjectKindServiceAccount, ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: namespace, Name: name}})
		}
		got := render(t, chart, map[string]any{"scheduler": map[string]any{"mode": mode}})
		all := []string{"*"}
		for name, want := range map[string]flowcontrolv1.FlowSchemaSpec{
			"atoll-leader-election": {
				MatchingPrecedence:         150,
				PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "leader-election"},
				DistinguisherMethod:        &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByUserType},
				Rules: []flowcontrolv1.PolicyRulesWithSubjects{{Subjects: subjects, ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
					APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Namespaces: []string{namespace}, Verbs: []string{"get", "create", "update"},
				}}}},
			},
			"atoll": {
				MatchingPrecedence:         850,
				PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "workload-high"},
				DistinguisherMethod:        &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByUserType},
				Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
					Subjects:         subjects,
					ResourceRules:    []flowcontrolv1.ResourcePolicyRule{{APIGroups: all, Resources: all, Namespaces: all, ClusterScope: true, Verbs: all}},
					NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{NonResourceURLs: all, Verbs: all}},
				}},
			},
		} {
			if diff := cmp.Diff(want, get[*flowcontrolv1.FlowSchema](t, got, "FlowSchema/"+name).Spec); diff != "" {
				t.Errorf("%s: FlowSchema %s: %s", mode, name, diff)
			}
		}
	}
	off := render(t, chart, map[string]any{"flowSchemas": map[string]any{"enabled": false}})
	for _, name := range []string{"FlowSchema/atoll-leader-election", "FlowSchema/atoll"} {
		if off[name] != nil {
			t.Errorf("%s is rendered though it is off", name)
		}
	}
}
