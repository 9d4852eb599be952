package chart

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiserver/pkg/authentication/user"
)

// TestKubeletCannotMoveItsNodeToAnotherGroup: a node may not change what decides about its groups; other
// users may.
func TestKubeletCannotMoveItsNodeToAnotherGroup(t *testing.T) {
	many := &strings.Builder{}
	for i := range 1000 {
		fmt.Fprintf(many, "a%d: '', ", i)
	}
	p := policiesOf(t, render(t, load(t), nil))
	node := &user.DefaultInfo{Name: "system:node:n", Groups: []string{"system:nodes", "system:authenticated"}}
	admin := &user.DefaultInfo{Name: "admin"}
	const label = "a node may not change its own label "
	for name, tc := range map[string]struct {
		write write
		want  string
	}{
		"its pool":                      {write{by: node, before: with("", ""), now: with("labels: {apps.openyurt.io/nodepool: a}", "")}, label + "apps.openyurt.io/nodepool"},
		"another pool":                  {write{by: node, before: with("labels: {apps.openyurt.io/nodepool: a}", ""), now: with("labels: {apps.openyurt.io/nodepool: b}", "")}, label + "apps.openyurt.io/nodepool"},
		"no pool":                       {write{by: node, before: with("labels: {apps.openyurt.io/nodepool: a}", ""), now: with("", "")}, label + "apps.openyurt.io/nodepool"},
		"its group":                     {write{by: node, before: with("", ""), now: with("labels: {groupmanagement.kubeedge.io/nodegroup: a}", "")}, label + "groupmanagement.kubeedge.io/nodegroup"},
		"a label that a selector reads": {write{by: node, before: with("labels: {atoll.dev/site: a}", ""), now: with("labels: {atoll.dev/site: b}", "")}, "a node may not change its own labels under atoll.dev/"},
		"the record of its pool":        {write{by: node, before: with("", ""), now: with("annotations: {atoll.dev/nodepool: a}", "")}, "a node may not change its own annotation atoll.dev/nodepool"},
		"what the cloud concludes":      {write{by: node, before: with("annotations: {atoll.dev/connectivity: Lost}", ""), now: with("annotations: {atoll.dev/connectivity: Frozen}", "")}, "a node may not change its own annotation atoll.dev/connectivity"},
		"a label of its own":            {write{by: node, before: with("labels: {a: b, apps.openyurt.io/nodepool: a}", ""), now: with("labels: {a: c, apps.openyurt.io/nodepool: a}", "")}, ""},
		"its status":                    {write{by: node, before: with("labels: {apps.openyurt.io/nodepool: a}", "status: {a: b}"), now: with("labels: {apps.openyurt.io/nodepool: a}", "status: {a: c}")}, ""},
		"1001 labels":                   {write{by: node, before: with("", ""), now: with("labels: {"+many.String()+"a: b}", "")}, "a node may not give itself more than 1000 labels"},
		"by an administrator":           {write{by: admin, before: with("", ""), now: with("labels: {apps.openyurt.io/nodepool: a}", "")}, ""},
		"by a user without groups":      {write{by: &user.DefaultInfo{}, before: with("", ""), now: with("labels: {apps.openyurt.io/nodepool: a}", "")}, ""},
		"by atoll-manager":              {write{before: with("", ""), now: with("labels: {apps.openyurt.io/nodepool: a}", "")}, ""},
	} {
		for _, resource := range []string{"/nodes", "/nodes/status"} {
			t.Run(name+resource, func(t *testing.T) {
				tc.write.resource = resource
				expect(t, p.refusals(t, tc.write, nil), tc.want)
			})
		}
	}
	for name, want := range map[string][]admissionregistrationv1.ValidationAction{
		"a warning": {admissionregistrationv1.Warn, admissionregistrationv1.Audit},
		"a refusal": {admissionregistrationv1.Deny},
	} {
		t.Run("it registers with a label: "+name, func(t *testing.T) {
			got := render(t, load(t), map[string]any{"nodes": map[string]any{"guardRegistration": name == "a refusal"}})
			if actions := get[*admissionregistrationv1.ValidatingAdmissionPolicyBinding](t, got, "ValidatingAdmissionPolicyBinding/atoll-node-registration").Spec.ValidationActions; !slices.Equal(actions, want) {
				t.Errorf("the API server answers with %v", actions)
			}
			w := write{by: node, resource: "/nodes", now: with("labels: {apps.openyurt.io/nodepool: a}", "")}
			expect(t, policiesOf(t, got).refusals(t, w, nil), "a node registers with the label apps.openyurt.io/nodepool")
		})
	}
}
