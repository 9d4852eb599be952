package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// unitedDoc returns a UnitedDeployment from its spec without the template, and the
// template.
const unitedDoc = `apiVersion: apps.openyurt.io/v1alpha1
kind: UnitedDeployment
metadata: {name: %s}
spec:
  %s
  workloadTemplate: %s
`

const (
	podsOK    = "template: {metadata: {labels: {app: x}}, spec: {containers: [{name: c, image: i}]}}"
	selector  = "selector: {matchLabels: {app: x}}"
	deployOK  = "{deploymentTemplate: {spec: {" + podsOK + "}}}"
	statefuls = "{statefulSetTemplate: {spec: {serviceName: s, " + podsOK + "%s}}}"
	daemonsOK = "{daemonSetTemplate: {spec: {" + podsOK + "}}}"
	onePool   = selector + "\n  topology: {pools: [{name: a, replicas: 1%s}]}"
)

func poolsSpec(pools string) string { return selector + "\n  topology: {pools: [" + pools + "]}" }

func totalSpec(total int, pools string) string {
	return fmt.Sprintf("replicas: %d\n  %s", total, poolsSpec(pools))
}

// TestUnitedBadInputIsRefused: an invalid UnitedDeployment is refused when it is applied,
// with a message that names the field, and without a webhook.
func TestUnitedBadInputIsRefused(t *testing.T) {
	f := newFixture(t)
	ok := poolsSpec("{name: a, replicas: 1}")
	sts := func(more string) string { return fmt.Sprintf(statefuls, more) }
	for name, tc := range map[string]struct{ spec, template, want string }{
		"a Deployment a pool":               {ok, deployOK, ""},
		"a StatefulSet a pool":              {ok, sts(""), ""},
		"a DaemonSet a pool":                {poolsSpec("{name: a}"), daemonsOK, ""},
		"no pool at all":                    {selector, deployOK, ""},
		"A6: a selector of expressions":     {"selector: {matchExpressions: [{key: app, operator: In, values: [x, z]}]}\n  topology: {pools: [{name: a, replicas: 1}]}", deployOK, ""},
		"A7: an empty nodeSelectorTerm":     {fmt.Sprintf(onePool, ", nodeSelectorTerm: {}"), deployOK, ""},
		"the selector, repeated":            {ok, "{deploymentTemplate: {spec: {selector: {matchLabels: {app: x}}, " + podsOK + "}}}", ""},
		"the template's labels":             {ok, "{deploymentTemplate: {metadata: {labels: {a: b}, annotations: {c: d}}, spec: {" + podsOK + "}}}", ""},
		"no template":                       {ok, "{}", "workloadTemplate"},
		"two templates":                     {ok, "{deploymentTemplate: {spec: {" + podsOK + "}}, daemonSetTemplate: {spec: {" + podsOK + "}}}", "exactly one"},
		"a field that is none":              {ok, "{deploymentTemplate: {spec: {replica: 1, " + podsOK + "}}}", "unknown field"},
		"replicas in the template":          {ok, "{deploymentTemplate: {spec: {replicas: 1, " + podsOK + "}}}", "spec.workloadTemplate.deploymentTemplate.spec.replicas"},
		"replicas in a StatefulSet's":       {ok, sts(", replicas: 1"), "spec.workloadTemplate.statefulSetTemplate.spec.replicas"},
		"a partition in the template":       {ok, sts(", updateStrategy: {rollingUpdate: {partition: 1}}"), "partition"},
		"another selector in the template":  {ok, "{deploymentTemplate: {spec: {selector: {matchLabels: {app: z}}, " + podsOK + "}}}", "spec.workloadTemplate.deploymentTemplate.spec.selector"},
		"no selector":                       {"topology: {pools: [{name: a, replicas: 1}]}", deployOK, "selector"},
		"an empty selector":                 {"selector: {}\n  topology: {pools: [{name: a, replicas: 1}]}", deployOK, "an empty selector would select every pod"},
		"a selector that does not match":    {"selector: {matchLabels: {app: z}}", deployOK, "spec.workloadTemplate.deploymentTemplate.spec.template.metadata.labels"},
		"expressions that do not match":     {"selector: {matchExpressions: [{key: app, operator: NotIn, values: [x]}]}", sts(""), "does not match"},
		"an expression without values":      {"selector: {matchExpressions: [{key: app, operator: In}]}", deployOK, "spec.selector.matchExpressions"},
		"a selector of the pool's name":     {"selector: {matchLabels: {app: x, apps.openyurt.io/pool-name: a}}", deployOK, "pool-name"},
		"pods without labels":               {ok, "{daemonSetTemplate: {spec: {template: {spec: {containers: [{name: c, image: i}]}}}}}", "does not match"},
		"no number of replicas":             {poolsSpec("{name: a}"), deployOK, "without spec.replicas every pool needs a number"},
		"a percentage of nothing":           {poolsSpec("{name: a, replicas: 50%}"), deployOK, "without spec.replicas every pool needs a number"},
		"a percentage that is none":         {totalSpec(4, "{name: a, replicas: 101%}, {name: b}"), deployOK, "percentage from 0% to 100%"},
		"negative replicas":                 {poolsSpec("{name: a, replicas: -1}"), deployOK, "must be a number from 0"},
		"percentages of a total":            {totalSpec(4, "{name: a, replicas: 60%}, {name: b, replicas: 40%}"), deployOK, ""},
		"percentages above 100":             {totalSpec(4, "{name: a, replicas: 60%}, {name: b, replicas: 50%}"), deployOK, "more than 100%"},
		"percentages below 100":             {totalSpec(4, "{name: a, replicas: 60%}, {name: b, replicas: 30%}"), deployOK, "who gets the rest"},
		"a number beside percentages":       {totalSpec(4, "{name: a, replicas: 1}, {name: b, replicas: 100%}"), deployOK, "who gets the rest"},
		"a number, a percentage and a rest": {totalSpec(4, "{name: a, replicas: 1}, {name: b, replicas: 30%}, {name: c}"), deployOK, ""},
		"numbers of another sum":            {totalSpec(4, "{name: a, replicas: 1}, {name: b, replicas: 2}"), deployOK, "spec.replicas"},
		"numbers of that sum":               {totalSpec(3, "{name: a, replicas: 1}, {name: b, replicas: 2}"), deployOK, ""},
		"a DaemonSet's total":               {"replicas: 3\n  " + poolsSpec("{name: a}"), daemonsOK, "a DaemonSet runs one pod a node"},
		"a DaemonSet's replicas":            {ok, daemonsOK, "a DaemonSet runs one pod a node"},
		"a Deployment's partition":          {fmt.Sprintf(onePool, ", partition: 1"), deployOK, "only a StatefulSet can be updated in part"},
		"a pool twice":                      {poolsSpec("{name: a, replicas: 1}, {name: a, replicas: 1}"), deployOK, "Duplicate value"},
		"a pool's name that cannot be":      {poolsSpec("{name: A.b, replicas: 1}"), deployOK, "spec.topology.pools[0].name"},
		"a pool's name of 64 characters":    {poolsSpec("{name: " + strings.Repeat("x", 64) + ", replicas: 1}"), deployOK, "spec.topology.pools[0].name"},
		"a term's operator":                 {fmt.Sprintf(onePool, ", nodeSelectorTerm: {matchExpressions: [{key: a, operator: Is}]}"), deployOK, "nodeSelectorTerm"},
		"a term's values":                   {fmt.Sprintf(onePool, ", nodeSelectorTerm: {matchExpressions: [{key: a, operator: In}]}"), deployOK, "nodeSelectorTerm.matchExpressions"},
		"a term's number":                   {fmt.Sprintf(onePool, ", nodeSelectorTerm: {matchExpressions: [{key: a, operator: Gt, values: [x]}]}"), deployOK, "one number"},
		"a term's field":                    {fmt.Sprintf(onePool, ", nodeSelectorTerm: {matchFields: [{key: a, operator: In, values: [x]}]}"), deployOK, "metadata.name"},
		"a toleration's operator":           {fmt.Sprintf(onePool, ", tolerations: [{key: a, operator: Is}]"), deployOK, "tolerations"},
		"a toleration without a key":        {fmt.Sprintf(onePool, ", tolerations: [{value: a}]"), deployOK, "operator must be Exists"},
		"a toleration with a value":         {fmt.Sprintf(onePool, ", tolerations: [{key: a, operator: Exists, value: b}]"), deployOK, "there is no value"},
		"a toleration's effect":             {fmt.Sprintf(onePool, ", tolerations: [{key: a, effect: Never}]"), deployOK, "NoExecute"},
		"a toleration for seconds":          {fmt.Sprintf(onePool, ", tolerations: [{key: a, tolerationSeconds: 3}]"), deployOK, "needs the effect NoExecute"},
		"a patch that is no object":         {fmt.Sprintf(onePool, ", patch: [x]"), deployOK, "patch"},
		"a patch":                           {fmt.Sprintf(onePool, ", patch: {metadata: {labels: {a: b}}, spec: {template: {spec: {nodeName: null, containers: [{name: c, image: j}]}}}}"), deployOK, ""},
		"a patch of replicas":               {fmt.Sprintf(onePool, ", patch: {spec: {replicas: 3}}"), deployOK, "patch.spec.replicas"},
		"a patch of the selector":           {fmt.Sprintf(onePool, ", patch: {spec: {selector: {matchLabels: {a: b}}}}"), deployOK, "patch.spec.selector"},
		"a patch of the name":               {fmt.Sprintf(onePool, ", patch: {metadata: {name: x}}"), deployOK, "patch.metadata.name"},
		"a strategy":                        {ok + "\n  updateStrategy: {maxUpdatingPools: 2, onFailure: Continue, partition: 1, paused: true, progressDeadlineSeconds: 5}", deployOK, ""},
		"a strategy of no pool":             {ok + "\n  updateStrategy: {maxUpdatingPools: 0}", deployOK, "maxUpdatingPools"},
		"a policy that is none":             {ok + "\n  updateStrategy: {onFailure: Panic}", deployOK, "onFailure"},
	} {
		t.Run(name, func(t *testing.T) {
			wantError(t, f.dryRun(fmt.Appendf(nil, unitedDoc, "ud", tc.spec, tc.template)), tc.want)
		})
	}
	for _, replicas := range []string{"bad%", "%", "150%", "half"} {
		t.Run("replicas: "+replicas, func(t *testing.T) {
			err := f.dryRun(fmt.Appendf(nil, unitedDoc, "ud", totalSpec(4, "{name: a, replicas: '"+replicas+"'}, {name: b, replicas: 50%}"), deployOK))
			wantError(t, err, "must be a number from 0 to 1000000 or a percentage from 0% to 100%")
			var status apierrors.APIStatus
			if !errors.As(err, &status) || len(status.Status().Details.Causes) != 1 {
				t.Errorf("it says more than what is wrong: %v", err)
			}
		})
	}
	t.Run("a name of 64 characters", func(t *testing.T) {
		wantError(t, f.dryRun(fmt.Appendf(nil, unitedDoc, strings.Repeat("x", 64), ok, deployOK)), "at most 63 characters")
	})
}

// wantError fails unless an error contains the wanted text; "" means no error.
func wantError(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want != "" && err == nil:
		t.Error("accepted")
	case want != "" && !strings.Contains(err.Error(), want):
		t.Errorf("the refusal does not say %q: %v", want, err)
	}
}

// TestUnitedImmutableFieldsAreRefused is scenarios 50, 52 and a part of 53.
func TestUnitedImmutableFieldsAreRefused(t *testing.T) {
	f := newFixture(t)
	term := "nodeSelectorTerm: {matchExpressions: [{key: a, operator: Exists}]}"
	before := poolsSpec("{name: a, replicas: 1, " + term + ", tolerations: [{key: a, operator: Exists}]}, {name: b, replicas: 1}")
	sts := fmt.Sprintf(statefuls, ", volumeClaimTemplates: [{metadata: {name: d}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]")
	for name, tc := range map[string]struct{ spec, template, to, toTemplate, want string }{
		"nothing":              {before, deployOK, before, deployOK, ""},
		"replicas":             {before, deployOK, strings.Replace(before, "replicas: 1", "replicas: 2", 1), deployOK, ""},
		"a term":               {before, deployOK, strings.Replace(before, "key: a, operator: Exists}]}, tol", "key: b, operator: Exists}]}, tol", 1), deployOK, "nodeSelectorTerm"},
		"a term that was none": {before, deployOK, strings.Replace(before, "{name: b,", "{name: b, "+term+",", 1), deployOK, "nodeSelectorTerm"},
		"tolerations":          {before, deployOK, strings.Replace(before, "tolerations: [{key: a", "tolerations: [{key: b", 1), deployOK, "tolerations"},
		"tolerations gone":     {before, deployOK, strings.Replace(before, ", tolerations: [{key: a, operator: Exists}]", "", 1), deployOK, "tolerations"},
		"a pool gone":          {before, deployOK, poolsSpec("{name: b, replicas: 1}"), deployOK, ""},
		"pools in other order": {before, deployOK, poolsSpec("{name: b, replicas: 1}, {name: a, replicas: 1, " + term + ", tolerations: [{key: a, operator: Exists}]}"), deployOK, ""},
		"the selector":         {before, deployOK, strings.Replace(before, "selector: {matchLabels: {app: x}}", "selector: {matchExpressions: [{key: app, operator: Exists}]}", 1), deployOK, "spec.selector"},
		"the kind":             {before, deployOK, before, sts, "the kind of the workloads cannot change"},
		"a StatefulSet's pods": {before, sts, before, strings.Replace(sts, "image: i", "image: j", 1), ""},
		"its claims":           {before, sts, before, strings.Replace(sts, "1Gi", "2Gi", 1), "volumeClaimTemplates"},
		"its service":          {before, sts, before, strings.Replace(sts, "serviceName: s", "serviceName: t", 1), "serviceName"},
		"its management":       {before, sts, before, strings.Replace(sts, "serviceName: s", "serviceName: s, podManagementPolicy: Parallel", 1), "podManagementPolicy"},
	} {
		t.Run(name, func(t *testing.T) {
			name := fmt.Sprintf("ud-%d", len(name)*1000+len(tc.to)+len(tc.toTemplate))
			create, change := &unstructured.Unstructured{}, &unstructured.Unstructured{}
			for o, doc := range map[*unstructured.Unstructured]string{
				create: fmt.Sprintf(unitedDoc, name, tc.spec, tc.template), change: fmt.Sprintf(unitedDoc, name, tc.to, tc.toTemplate),
			} {
				if err := yaml.UnmarshalStrict([]byte(doc), &o.Object); err != nil {
					t.Fatal(err)
				}
				o.SetNamespace(f.ns)
			}
			if err := f.client.Create(f.ctx, create); err != nil {
				t.Fatal(err)
			}
			var err error
			f.eventually(patience, "it is tried", func() error {
				there := create.DeepCopy()
				if err := f.client.Get(f.ctx, client.ObjectKeyFromObject(create), there); err != nil {
					return err
				}
				change.SetResourceVersion(there.GetResourceVersion())
				if err = f.client.Update(f.ctx, change); apierrors.IsConflict(err) {
					return err
				}
				return nil
			})
			wantError(t, err, tc.want)
		})
	}
}
