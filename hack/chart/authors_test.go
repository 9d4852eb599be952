package chart

import (
	"context"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// rights are the verbs on resources that a user has.
type rights map[string]bool

// Authorize implements authorizer.Authorizer.
func (r rights) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if r[a.GetVerb()+" "+a.GetResource()+"."+a.GetAPIGroup()+" in "+a.GetNamespace()] {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// TestAuthorsCannotExceedTheirWorkloadRights: the author of a UnitedDeployment needs the right to create
// its workloads, and that of an OverridePolicy the right to change those of the namespace.
func TestAuthorsCannotExceedTheirWorkloadRights(t *testing.T) {
	p := policiesOf(t, render(t, load(t), nil))
	anna := &user.DefaultInfo{Name: "anna"}
	const (
		united   = "apps.openyurt.io/uniteddeployments"
		override = "groupmanagement.kubeedge.io/overridepolicies"
		daemons  = "spec: {workloadTemplate: {daemonSetTemplate: {a: b}}}"
		web      = "spec: {workloadTemplate: {deploymentTemplate: {a: b}}, topology: {pools: [{name: a}]}}"
		other    = "spec: {workloadTemplate: {deploymentTemplate: {a: c}}, topology: {pools: [{name: a}]}}"
		pools    = "spec: {workloadTemplate: {deploymentTemplate: {a: b}}, topology: {pools: [{name: b}]}}"
		scaled   = "spec: {replicas: 3, workloadTemplate: {deploymentTemplate: {a: b}}, topology: {pools: [{name: a}]}}"
		refused  = `spec.workloadTemplate.deploymentTemplate: user "anna" may not create deployments.apps in namespace default`
		unpatch  = `spec: user "anna" may not patch deployments.apps in namespace default`
	)
	for name, tc := range map[string]struct {
		write  write
		rights rights
		want   string
	}{
		"a UnitedDeployment without a right":      {write{by: anna, resource: united, now: with("", web)}, nil, refused},
		"with the right":                          {write{by: anna, resource: united, now: with("", web)}, rights{"create deployments.apps in default": true}, ""},
		"with the right elsewhere":                {write{by: anna, resource: united, now: with("", web)}, rights{"create deployments.apps in other": true}, refused},
		"with the right to another kind":          {write{by: anna, resource: united, now: with("", daemons)}, rights{"create deployments.apps in default": true}, `spec.workloadTemplate.daemonSetTemplate: user "anna" may not create daemonsets.apps in namespace default`},
		"a changed template":                      {write{by: anna, resource: united, before: with("", web), now: with("", other)}, nil, refused},
		"changed pools":                           {write{by: anna, resource: united, before: with("", web), now: with("", pools)}, nil, refused},
		"a rollback":                              {write{by: anna, resource: united, before: with("", web), now: with("annotations: {atoll.dev/rollback-to: previous}", web)}, nil, refused},
		"another total":                           {write{by: anna, resource: united, before: with("", web), now: with("", scaled)}, nil, ""},
		"a finalizer, by the garbage collector":   {write{by: anna, resource: united, before: with("finalizers: [a/b]", web), now: with("", web)}, nil, ""},
		"a rollback, by atoll-manager":            {write{resource: united, before: with("annotations: {atoll.dev/rollback-to: previous}", web), now: with("", other)}, nil, ""},
		"no template, which the schema refuses":   {write{by: anna, resource: united, now: with("", "spec: {}")}, nil, ""},
		"no spec, which the schema refuses":       {write{by: anna, resource: united, now: with("", "")}, nil, ""},
		"an OverridePolicy without a right":       {write{by: anna, resource: override, now: with("", "spec: {}")}, nil, unpatch},
		"an OverridePolicy with the right":        {write{by: anna, resource: override, now: with("", "spec: {}")}, rights{"patch deployments.apps in default": true}, ""},
		"a changed OverridePolicy":                {write{by: anna, resource: override, before: with("", "spec: {}"), now: with("", "spec: {a: b}")}, nil, unpatch},
		"a label of an OverridePolicy":            {write{by: anna, resource: override, before: with("", "spec: {}"), now: with("labels: {a: b}", "spec: {}")}, nil, ""},
		"a user without a name is asked as well":  {write{by: &user.DefaultInfo{}, resource: override, now: with("", "spec: {}")}, nil, `spec: user "" may not patch`},
		"a PropagationPolicy changes no pod":      {write{by: anna, resource: "groupmanagement.kubeedge.io/propagationpolicies", now: with("", "spec: {}")}, nil, ""},
		"a UnitedDeployment without its template": {write{by: anna, resource: united, before: with("", web), now: with("", "spec: {}")}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) { expect(t, p.refusals(t, tc.write, tc.rights), tc.want) })
	}
}
