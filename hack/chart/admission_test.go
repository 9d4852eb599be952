package chart

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	celgo "github.com/google/cel-go/cel"
	celtypes "github.com/google/cel-go/common/types"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"

	"github.com/atoll-k8s/atoll/internal/governance"
)

// write is a request to the API server about one object.
type write struct {
	// by is the user; the zero value is atoll-manager.
	by user.Info
	// resource is group/resource or group/resource/subresource; the group of the core is "".
	resource string
	// now and before are the object after and before the write, in YAML; "" for none.
	now, before string
	dryRun      bool
	namespace   string
	name        string // x by default
}

func (w write) operation() admission.Operation {
	switch {
	case w.before == "":
		return admission.Create
	case w.now == "":
		return admission.Delete
	}
	return admission.Update
}

// policies evaluates the ValidatingAdmissionPolicies of a rendered chart with the API
// server's own compiler of expressions.
type policies []*compiledPolicy

type compiledPolicy struct {
	*admissionregistrationv1.ValidatingAdmissionPolicy
	conditions, validations, messages cel.ConditionEvaluator
}

// expression is one expression of a policy; name is that of a variable.
type expression struct {
	name, text string
	types      []*celgo.Type
}

func (e *expression) GetExpression() string      { return e.text }
func (e *expression) GetName() string            { return e.name }
func (e *expression) ReturnTypes() []*celgo.Type { return e.types }

// policiesOf compiles the policies of a chart, as the API server does when they are created.
func policiesOf(t *testing.T, rendered objects) (all policies) {
	t.Helper()
	for _, object := range rendered {
		p, ok := object.(*admissionregistrationv1.ValidatingAdmissionPolicy)
		if !ok {
			continue
		}
		get[*admissionregistrationv1.ValidatingAdmissionPolicyBinding](t, rendered, "ValidatingAdmissionPolicyBinding/"+p.Name)
		compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
		if err != nil {
			t.Fatal(err)
		}
		declared := cel.OptionalVariableDeclarations{HasAuthorizer: true, HasParams: p.Spec.ParamKind != nil}
		for _, v := range p.Spec.Variables {
			e := &expression{v.Name, v.Expression, []*celgo.Type{celgo.AnyType, celgo.DynType}}
			if result := compiler.CompileAndStoreVariable(e, declared, environment.NewExpressions); result.Error != nil {
				t.Fatalf("variable %s of %s: %v", v.Name, p.Name, result.Error)
			}
		}
		evaluator := func(declared cel.OptionalVariableDeclarations, returns *celgo.Type, texts []string) cel.ConditionEvaluator {
			var all []cel.ExpressionAccessor
			for _, text := range texts {
				e := &expression{text: text, types: []*celgo.Type{returns}}
				if result := compiler.CompileCELExpression(e, declared, environment.NewExpressions); result.Error != nil {
					t.Fatalf("%s of %s: %v", text, p.Name, result.Error)
				}
				all = append(all, e)
			}
			return compiler.CompileCondition(all, declared, environment.NewExpressions)
		}
		var conditions, validations, messages []string
		for _, c := range p.Spec.MatchConditions {
			conditions = append(conditions, c.Expression)
		}
		for _, v := range p.Spec.Validations {
			validations = append(validations, v.Expression)
			message := v.MessageExpression
			if message == "" {
				message = strconv.Quote(v.Message)
			}
			messages = append(messages, message)
		}
		all = append(all, &compiledPolicy{
			p, evaluator(declared, celgo.BoolType, conditions), evaluator(declared, celgo.BoolType, validations),
			evaluator(cel.OptionalVariableDeclarations{HasParams: p.Spec.ParamKind != nil}, celgo.StringType, messages),
		})
	}
	return all
}

// governed is the YurtCoordinator of the cluster, for policies about them.
var governed = &unstructured.Unstructured{Object: map[string]any{
	"apiVersion": "apps.openyurt.io/v1alpha1", "kind": "YurtCoordinator", "metadata": map[string]any{"name": "c"}, "spec": map[string]any{"nodePool": "edge"},
}}

// refusals returns the messages of the policies that do not allow a write. It fails the test
// if an expression fails. rights answers the expressions that ask for the rights of the user.
func (all policies) refusals(t *testing.T, w write, rights authorizer.Authorizer) (messages []string) {
	t.Helper()
	attributes, resource := w.attributes(t)
	versioned := &admission.VersionedAttributes{
		Attributes: attributes, VersionedKind: attributes.GetKind(), VersionedObject: attributes.GetObject(), VersionedOldObject: attributes.GetOldObject(),
	}
	request := cel.CreateAdmissionRequest(attributes, metav1.GroupVersionResource(resource), metav1.GroupVersionKind(attributes.GetKind()))
	for _, p := range all {
		if !p.selects(w) {
			continue
		}
		evaluate := func(evaluator cel.ConditionEvaluator, bindings cel.OptionalVariableBindings) []cel.EvaluationResult {
			results, _, err := evaluator.ForInput(t.Context(), versioned, request, bindings, nil, celconfig.RuntimeCELCostBudget)
			if err != nil {
				t.Fatalf("%s: %v", p.Name, err)
			}
			return results
		}
		isFalse := func(result cel.EvaluationResult) bool {
			if result.Error != nil {
				t.Errorf("%s fails: %v", p.Name, result.Error)
			}
			return result.EvalResult != celtypes.True
		}
		bindings := cel.OptionalVariableBindings{Authorizer: rights, VersionedParams: governed}
		if slices.ContainsFunc(evaluate(p.conditions, bindings), isFalse) {
			continue
		}
		texts := evaluate(p.messages, cel.OptionalVariableBindings{VersionedParams: governed})
		for i, result := range evaluate(p.validations, bindings) {
			if !isFalse(result) {
				continue
			}
			if texts[i].Error != nil {
				t.Errorf("%s: its message fails: %v", p.Name, texts[i].Error)
				continue
			}
			text, _ := texts[i].EvalResult.Value().(string)
			messages = append(messages, text)
		}
	}
	slices.Sort(messages)
	return messages
}

func (w write) attributes(t *testing.T) (admission.Attributes, schema.GroupVersionResource) {
	t.Helper()
	decode := func(text string) *unstructured.Unstructured {
		if text == "" {
			return nil
		}
		o := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict([]byte(text), &o.Object); err != nil {
			t.Fatalf("decoding %s: %v", text, err)
		}
		return o
	}
	now, before := decode(w.now), decode(w.before)
	group, rest, _ := strings.Cut(w.resource, "/")
	resource, subresource, _ := strings.Cut(rest, "/")
	gvr := schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}
	by := w.by
	if by == nil {
		by = &user.DefaultInfo{Name: "system:serviceaccount:" + namespace + ":atoll-manager", Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	}
	where := w.namespace
	if where == "" && resource != "nodes" && resource != "nodegroups" && resource != "nodepools" {
		where = "default"
	}
	kind := schema.GroupVersionKind{Group: group, Version: "v1", Kind: "Any"}
	// A nil pointer in an interface would not be nil.
	switch w.operation() {
	case admission.Create:
		return admission.NewAttributesRecord(now, nil, kind, where, cmp.Or(w.name, "x"), gvr, subresource, admission.Create, &metav1.CreateOptions{}, w.dryRun, by), gvr
	case admission.Delete:
		return admission.NewAttributesRecord(nil, before, kind, where, cmp.Or(w.name, "x"), gvr, subresource, admission.Delete, &metav1.DeleteOptions{}, w.dryRun, by), gvr
	default:
		return admission.NewAttributesRecord(now, before, kind, where, cmp.Or(w.name, "x"), gvr, subresource, admission.Update, &metav1.UpdateOptions{}, w.dryRun, by), gvr
	}
}

// selects reports whether the rules of a policy select a write.
func (p *compiledPolicy) selects(w write) bool {
	group, rest, _ := strings.Cut(w.resource, "/")
	resource, _, isSub := strings.Cut(rest, "/")
	return slices.ContainsFunc(p.Spec.MatchConstraints.ResourceRules, func(rule admissionregistrationv1.NamedRuleWithOperations) bool {
		return slices.Contains(rule.APIGroups, group) && (slices.Contains(rule.Resources, rest) || isSub && slices.Contains(rule.Resources, resource+"/*")) &&
			slices.Contains(rule.Operations, admissionregistrationv1.OperationType(w.operation()))
	})
}

// expect fails unless exactly one refusal starts with want, or there is none and want is "".
func expect(t *testing.T, refusals []string, want string) {
	t.Helper()
	switch {
	case want == "" && len(refusals) > 0:
		t.Errorf("refused: %q", refusals)
	case want != "" && (len(refusals) != 1 || !strings.HasPrefix(refusals[0], want)):
		t.Errorf("the refusals are %q, want %q", refusals, want)
	}
}

// with returns an object in YAML: a line of metadata and the rest of the object.
func with(metadata, rest string) string {
	return fmt.Sprintf("metadata: {name: x, %s}\n%s", metadata, rest)
}

// said returns an object with conditions: of each, its type and its status.
func said(conditions ...string) string {
	text := "status: {conditions: ["
	for c := range slices.Chunk(conditions, 2) {
		text += fmt.Sprintf("{type: %s, status: '%s'},", c[0], c[1])
	}
	return with("", text+"]}")
}

// waiting is the rest of a pod at our gate and at another.
const waiting = "spec: {schedulingGates: [{name: groupmanagement.kubeedge.io/policy}, {name: other}], containers: [{name: c, image: a}]}"

// TestAdmissionPoliciesBoundManagerWrites: of the writes that RBAC allows to atoll-manager, the policies refuse
// those that its code does not need. The same table is tried on a real API server
// (test/e2e, TestManagerWritesNoMoreThanItNeeds), with fewer rows.
func TestAdmissionPoliciesBoundManagerWrites(t *testing.T) {
	p := policiesOf(t, render(t, load(t), everything()))
	const (
		pod    = "spec: {containers: [{name: c, image: a}], terminationGracePeriodSeconds: 30}"
		node   = "spec: {podCIDR: 10.0.0.0/24, taints: [{key: node.kubernetes.io/unreachable, effect: NoExecute}]}"
		owned  = "labels: {apps.openyurt.io/pool-name: a}, ownerReferences: [{apiVersion: apps.openyurt.io/v1alpha1, kind: UnitedDeployment, name: u, uid: 1, controller: true}]"
		others = "labels: {apps.openyurt.io/pool-name: a}, ownerReferences: [{apiVersion: v1, kind: Other, name: u, uid: 1, controller: true}]"
		orphan = "labels: {apps.openyurt.io/pool-name: a}"
		rev    = "labels: {apps.openyurt.io/uniteddeployment: u}, ownerReferences: [{apiVersion: apps.openyurt.io/v1alpha1, kind: UnitedDeployment, name: u, uid: 1, controller: true}]"

		podLabels    = "atoll-manager may not change these labels of a pod: "
		podFields    = "atoll-manager may not change these fields of a pod's spec in namespace "
		nodeFields   = "atoll-manager may not change these fields of a node's spec: "
		workload     = "atoll-manager may not change these "
		poolsOnly    = "atoll-manager may create and delete only the workloads and ControllerRevisions of UnitedDeployments"
		secretsOnly  = "atoll-manager may create only the Secrets "
		settingsOnly = "atoll-manager may not change these fields: "

		conditionsOnly = "atoll-manager may change no status of a node or pod but its condition Ready"
	)
	update := func(resource, before, now string) write { return write{resource: resource, before: before, now: now} }
	in := func(namespace string, w write) write { w.namespace = namespace; return w }
	for name, tc := range map[string]struct {
		write write
		want  string
	}{
		// Pods.
		"an image":                                     {update("/pods", with("", pod), with("", "spec: {containers: [{name: c, image: b}], terminationGracePeriodSeconds: 30}")), ""},
		"an image in kube-system":                      {in("kube-system", update("/pods", with("", pod), with("", "spec: {containers: [{name: c, image: b}], terminationGracePeriodSeconds: 30}"))), podFields + "kube-system: containers"},
		"an image of our own pods":                     {in(namespace, update("/pods", with("", pod), with("", "spec: {containers: [{name: c, image: b}], terminationGracePeriodSeconds: 30}"))), podFields + namespace},
		"our labels":                                   {update("/pods", with("labels: {atoll.dev/capacity-class: spot}", pod), with("labels: {groupmanagement.kubeedge.io/nodegroup: g}", pod)), ""},
		"the deletion cost":                            {update("/pods", with("", pod), with("annotations: {controller.kubernetes.io/pod-deletion-cost: '1', atoll.dev/deletion-cost: '1'}", pod)), ""},
		"the deletion cost in kube-system":             {in("kube-system", update("/pods", with("", pod), with("annotations: {controller.kubernetes.io/pod-deletion-cost: '1'}", pod))), ""},
		"the name of the PodGroup":                     {update("/pods", with("", pod), with("annotations: {scheduling.k8s.io/group-name: g}", pod)), ""},
		"a label of others, new":                       {update("/pods", with("", pod), with("labels: {app: x}", pod)), podLabels + "app"},
		"a label of others, changed":                   {update("/pods", with("labels: {app: y, a: b}", pod), with("labels: {app: x, a: b}", pod)), podLabels + "app"},
		"a label of others, removed":                   {update("/pods", with("labels: {app: y}", pod), with("", pod)), podLabels + "app"},
		"an annotation of others":                      {update("/pods", with("", pod), with("annotations: {a: x}", pod)), "atoll-manager may not change these annotations of a pod: a"},
		"an owner":                                     {update("/pods", with("", pod), with("ownerReferences: [{name: x}]", pod)), "atoll-manager may not change owners and finalizers of a pod"},
		"a finalizer":                                  {update("/pods", with("finalizers: [a/b]", pod), with("", pod)), "atoll-manager may not change owners and finalizers of a pod"},
		"the grace period":                             {update("/pods", with("", pod), with("", "spec: {containers: [{name: c, image: a}], terminationGracePeriodSeconds: 1}")), podFields + "default: terminationGracePeriodSeconds"},
		"a deadline":                                   {update("/pods", with("", pod), with("", pod[:len(pod)-1]+", activeDeadlineSeconds: 1}")), podFields + "default: activeDeadlineSeconds"},
		"a toleration of a running pod":                {update("/pods", with("", pod), with("", pod[:len(pod)-1]+", tolerations: [{operator: Exists}]}")), ""}, // while its node is cut off; the API server lets nobody take one away
		"a toleration of a running pod in kube-system": {in("kube-system", update("/pods", with("", pod), with("annotations: {atoll.dev/tolerations: '[]'}", pod[:len(pod)-1]+", tolerations: [{operator: Exists}]}"))), ""},
		"a toleration of our own pods":                 {in(namespace, update("/pods", with("", pod), with("", pod[:len(pod)-1]+", tolerations: [{operator: Exists}]}"))), ""},
		"what a pod at the gate gets":                  {update("/pods", with("", waiting), with("", "spec: {schedulingGates: [{name: other}], affinity: {nodeAffinity: {}}, tolerations: [{key: spot}], containers: [{name: c, image: b}]}")), ""},
		"a gate of others":                             {update("/pods", with("", waiting), with("", "spec: {schedulingGates: [{name: groupmanagement.kubeedge.io/policy}], containers: [{name: c, image: a}]}")), "atoll-manager may remove no scheduling gate of a pod but its own"},
		"a Binding":                                    {write{resource: "/pods/binding", now: with("labels: {atoll.dev/x: a}, annotations: {controller.kubernetes.io/pod-deletion-cost: '1'}", "target: {name: n}")}, ""},
		"a Binding with what the API server adds":      {write{resource: "/pods/binding", now: with("labels: {topology.kubernetes.io/zone: z, topology.kubernetes.io/region: r}", "target: {name: n}")}, ""},
		"a Binding with a label of others":             {write{resource: "/pods/binding", now: with("labels: {app: a}", "target: {name: n}")}, podLabels + "app"},

		// Nodes.
		"what a NodePool gives":           {update("/nodes", with("", node), with("labels: {a: b, node-restriction.kubernetes.io/site: x}, annotations: {c: d}", "spec: {podCIDR: 10.0.0.0/24, taints: [{key: node.kubernetes.io/unreachable, effect: NoExecute}, {key: a, effect: NoSchedule}]}")), ""},
		"a node is cordoned":              {update("/nodes", with("", node), with("", node[:len(node)-1]+", unschedulable: true}")), nodeFields + "unschedulable"},
		"a node's addresses":              {update("/nodes", with("", node), with("", strings.Replace(node, "10.0.0.0", "10.1.0.0", 1))), nodeFields + "podCIDR"},
		"a node's name":                   {update("/nodes", with("labels: {kubernetes.io/hostname: n}", node), with("labels: {kubernetes.io/hostname: m}", node)), "atoll-manager may not change these labels of a node: kubernetes.io/hostname"},
		"a taint of Kubernetes, removed":  {update("/nodes", with("", node), with("", "spec: {podCIDR: 10.0.0.0/24}")), "atoll-manager may not change the taints of a node that Kubernetes adds and removes"},
		"a taint of Kubernetes, added":    {update("/nodes", with("", "spec: {}"), with("", "spec: {taints: [{key: node.kubernetes.io/not-ready, effect: NoExecute}]}")), "atoll-manager may not change the taints of a node that Kubernetes adds and removes"},
		"an annotation of the kubelet":    {update("/nodes", with("", node), with("annotations: {volumes.kubernetes.io/controller-managed-attach-detach: 'true'}", node)), "atoll-manager may not change these annotations of a node: "},
		"a node's finalizer":              {update("/nodes", with("", node), with("finalizers: [a/b]", node)), "atoll-manager may not change owners and finalizers of a node"},
		"a node without a spec":           {update("/nodes", with("", ""), with("labels: {a: b}", "")), ""},
		"a node of another manager's own": {write{by: &user.DefaultInfo{Name: "somebody"}, resource: "/nodes", before: with("", node), now: with("", "spec: {unschedulable: true}")}, ""},
		"a user without a name":           {write{by: &user.DefaultInfo{}, resource: "/nodes", before: with("", node), now: with("", "spec: {unschedulable: true}")}, ""},

		// Statuses, of a node that is cut off.
		"a node is Unknown":                 {update("/nodes/status", said("Ready", "True"), said("Ready", "Unknown")), ""},
		"a node is Ready":                   {update("/nodes/status", said("Ready", "Unknown"), said("Ready", "True")), "atoll-manager may say of a node only that it is not known whether it is Ready"},
		"a pod of a node cannot be written": {update("/nodes/status", said("Ready", "True"), said("Ready", "True", "AtollPodNotWritten", "True")), ""},
		"it can again":                      {update("/nodes/status", said("Ready", "True", "AtollPodNotWritten", "True"), said("Ready", "True")), ""},
		"another condition of a node":       {update("/nodes/status", said("DiskPressure", "False"), said("DiskPressure", "True")), conditionsOnly},
		"a node's allocatable":              {update("/nodes/status", said("Ready", "True"), with("", "status: {allocatable: {cpu: 4}, conditions: [{type: Ready, status: 'True'}]}")), conditionsOnly},
		"a pod is Ready":                    {update("/pods/status", said("Ready", "False"), said("Ready", "True")), ""},
		"the condition of a node, of a pod": {update("/pods/status", said("Ready", "True"), said("Ready", "True", "AtollPodNotWritten", "True")), conditionsOnly},
		"another condition of a pod":        {update("/pods/status", said("Ready", "True"), said("Ready", "True", "PodScheduled", "False")), conditionsOnly},

		// Workloads.
		"the label of a policy":              {update("apps/deployments", with("labels: {app: x}", "spec: {replicas: 1}"), with("labels: {app: x, groupmanagement.kubeedge.io/binding-overridepolicy: p}", "spec: {replicas: 1}")), ""},
		"the mark of a ReplicaSet":           {update("apps/replicasets", with("", "spec: {replicas: 1}"), with("annotations: {atoll.dev/overrides-stopped: why}", "spec: {replicas: 1}")), ""},
		"a workload's replicas":              {update("apps/deployments", with("", "spec: {replicas: 1}"), with("", "spec: {replicas: 2}")), workload + "fields of a workload: replicas"},
		"a workload's template":              {update("batch/cronjobs", with("", "spec: {jobTemplate: {a: b}}"), with("", "spec: {jobTemplate: {a: c}}")), workload + "fields of a workload: jobTemplate"},
		"a workload's label":                 {update("apps/statefulsets", with("", "spec: {}"), with("labels: {app: x}", "spec: {}")), workload + "labels of a workload: app"},
		"a workload's owner":                 {update("apps/replicasets", with("", "spec: {}"), with("ownerReferences: [{name: x}]", "spec: {}")), "atoll-manager may not change owners and finalizers of a workload"},
		"a Job is suspended":                 {update("batch/jobs", with("", "spec: {suspend: false, parallelism: 1}"), with("annotations: {atoll.dev/restart: x}", "spec: {suspend: true, parallelism: 1}")), ""},
		"a Job's parallelism":                {update("batch/jobs", with("", "spec: {parallelism: 1}"), with("", "spec: {parallelism: 2}")), workload + "fields of a workload: parallelism"},
		"a CronJob is suspended":             {update("batch/cronjobs", with("", "spec: {}"), with("", "spec: {suspend: true}")), workload + "fields of a workload: suspend"},
		"the label of a further kind":        {update("apps.kruise.io/clonesets", with("", "spec: {}"), with("labels: {groupmanagement.kubeedge.io/binding-overridepolicy: p}", "spec: {}")), ""},
		"the template of a further kind":     {update("apps.kruise.io/clonesets", with("", "spec: {}\ndata: a"), with("", "spec: {template: {}}\ndata: b")), workload + "fields of a workload: data, template"},
		"a pool's workload is created":       {write{resource: "apps/deployments", now: with(owned, "spec: {}")}, ""},
		"in kube-system it is not":           {in("kube-system", write{resource: "apps/deployments", now: with(owned, "spec: {}")}), "atoll-manager may write no workloads of UnitedDeployments in namespace kube-system"},
		"in our namespace it is not":         {in(namespace, write{resource: "apps/daemonsets", now: with(owned, "spec: {}")}), "atoll-manager may write no workloads of UnitedDeployments in namespace " + namespace},
		"a pool's workload is written":       {update("apps/statefulsets", with(owned, "spec: {replicas: 1}"), with(owned, "spec: {replicas: 2, template: {}}")), ""},
		"a pool's workload is adopted":       {update("apps/statefulsets", with(orphan, "spec: {replicas: 1}"), with(owned, "spec: {replicas: 1}")), ""},
		"a pool's workload is deleted":       {write{resource: "apps/daemonsets", before: with(owned, "spec: {}")}, ""},
		"a workload of nobody is created":    {write{resource: "apps/deployments", now: with(orphan, "spec: {}")}, poolsOnly},
		"a workload of another is created":   {write{resource: "apps/deployments", now: with(others, "spec: {}")}, poolsOnly},
		"a workload of another is deleted":   {write{resource: "apps/deployments", before: with(others, "spec: {}")}, poolsOnly},
		"a workload is deleted":              {write{resource: "apps/statefulsets", before: with("", "spec: {}")}, poolsOnly},
		"the mark of a pool's workload":      {update("apps/deployments", with(strings.TrimPrefix(owned, "labels: {apps.openyurt.io/pool-name: a}, "), "spec: {replicas: 1}"), with(owned, "spec: {replicas: 2}")), ""},
		"a workload is made a pool's":        {update("apps/deployments", with("", "spec: {}"), with(orphan, "spec: {}")), workload + "labels of a workload: apps.openyurt.io/pool-name"},
		"a workload of another is taken":     {update("apps/deployments", with(others, "spec: {}"), with(owned, "spec: {}")), "atoll-manager may not change owners and finalizers of a workload"},
		"a revision is created":              {write{resource: "apps/controllerrevisions", now: with(rev, "revision: 1")}, ""},
		"a revision is renumbered":           {update("apps/controllerrevisions", with(rev, "revision: 1"), with(rev, "revision: 2")), ""},
		"a revision of another is deleted":   {write{resource: "apps/controllerrevisions", before: with("labels: {app: x}", "revision: 1")}, poolsOnly},
		"a revision of another is rewritten": {update("apps/controllerrevisions", with("", "revision: 1"), with("", "revision: 2")), workload + "fields of a workload: revision"},
		"a PodTemplate in a dry run":         {write{resource: "/podtemplates", now: with("", "template: {}"), dryRun: true}, ""},
		"a PodTemplate":                      {write{resource: "/podtemplates", now: with("", "template: {}")}, "atoll-manager may create PodTemplates only in a dry run"},

		// Secrets, and what users write for Atoll.
		"the certificate":                 {write{resource: "/secrets", now: "metadata: {name: atoll-manager-tls}\ntype: kubernetes.io/tls"}, ""},
		"another Secret":                  {write{resource: "/secrets", now: "metadata: {name: other}\ntype: kubernetes.io/tls"}, secretsOnly},
		"a Secret with a generated name":  {write{resource: "/secrets", now: "metadata: {generateName: atoll-manager-tls}\ntype: kubernetes.io/tls"}, secretsOnly},
		"a token of another":              {write{resource: "/secrets", now: "metadata: {name: atoll-manager-tls, annotations: {kubernetes.io/service-account.name: atoll-scheduler}}\ntype: kubernetes.io/service-account-token"}, secretsOnly},
		"the finalizer of a group":        {update("groupmanagement.kubeedge.io/nodegroups", with("", "spec: {nodes: [a]}"), with("finalizers: [groupmanagement.kubeedge.io/nodegroup]", "spec: {nodes: [a]}")), ""},
		"the nodes of a group":            {update("groupmanagement.kubeedge.io/nodegroups", with("", "spec: {nodes: [a]}"), with("", "spec: {nodes: [b]}")), settingsOnly + "spec"},
		"a finalizer of others":           {update("apps.openyurt.io/nodepools", with("finalizers: [a/b]", "spec: {}"), with("", "spec: {}")), "atoll-manager may change no owners here, and no finalizers but its own"},
		"the Secret of a coordinator":     {in("atoll-pools", write{resource: "/secrets", now: "metadata: {name: ca-edge}\ntype: Opaque"}), ""},
		"another Secret in its namespace": {in("atoll-pools", write{resource: "/secrets", now: "metadata: {name: other}\ntype: Opaque"}), secretsOnly},
		"a token in its namespace":        {in("atoll-pools", write{resource: "/secrets", now: "metadata: {name: ca-edge}\ntype: kubernetes.io/service-account-token"}), secretsOnly},
		"its Secret elsewhere":            {write{resource: "/secrets", now: "metadata: {name: ca-edge}\ntype: Opaque"}, secretsOnly},
		"the coordinators":                {in("atoll-pools", write{name: "coordinator", resource: "apps.openyurt.io/uniteddeployments", before: with("", "spec: {a: b}"), now: with("", "spec: {a: c}")}), ""},
		"another one beside them":         {in("atoll-pools", update("apps.openyurt.io/uniteddeployments", with("", "spec: {a: b}"), with("", "spec: {a: c}"))), settingsOnly + "spec"},
		"one of that name elsewhere":      {write{name: "coordinator", resource: "apps.openyurt.io/uniteddeployments", before: with("", "spec: {a: b}"), now: with("", "spec: {a: c}")}, settingsOnly + "spec"},
		"a rollback":                      {update("apps.openyurt.io/uniteddeployments", with("annotations: {atoll.dev/rollback-to: previous}", "spec: {a: b}"), with("", "spec: {a: c}")), ""},
		"a template without a rollback":   {update("apps.openyurt.io/uniteddeployments", with("", "spec: {a: b}"), with("", "spec: {a: c}")), settingsOnly + "spec"},
		"a list that was right":           {update("/configmaps", with("", "data: {a: b}"), with("annotations: {atoll.dev/last-good-workloads: b}", "data: {a: b}")), ""},
		"the list":                        {update("/configmaps", with("", "data: {a: b}"), with("", "data: {a: c}")), settingsOnly + "data"},
		"a label of what users write":     {update("/configmaps", with("", "data: {a: b}"), with("labels: {a: b}", "data: {a: b}")), "atoll-manager may change no labels here, and only annotations under atoll.dev/"},
		"an owner of what users write":    {update("/configmaps", with("", "data: {a: b}"), with("ownerReferences: [{name: x}]", "data: {a: b}")), "atoll-manager may change no owners here, and no finalizers but its own"},
		"a ConfigMap of somebody, by him": {write{by: &user.DefaultInfo{Name: "him"}, resource: "/configmaps", before: with("", "data: {a: b}"), now: with("", "data: {a: c}")}, ""},
	} {
		t.Run(name, func(t *testing.T) { expect(t, p.refusals(t, tc.write, nil), tc.want) })
	}
}

// TestNodeAutonomyAndCoordinatorExcludeEachOther: also a kubelet, which writes annotations through its status, cannot turn
// autonomy on in a pool with a coordinator. Everything else about its node it can.
func TestNodeAutonomyAndCoordinatorExcludeEachOther(t *testing.T) {
	p := policiesOf(t, render(t, load(t), everything()))
	const (
		plain      = "labels: {apps.openyurt.io/nodepool: edge}"
		autonomous = plain + ", annotations: {node.beta.openyurt.io/autonomy: 'true'}"
		refused    = "node autonomy and the coordinator of a pool exclude each other: delete the YurtCoordinator c first"
	)
	for name, tc := range map[string]struct{ resource, before, now, want string }{
		"it is turned on":                 {"/nodes", with(plain, ""), with(autonomous, ""), refused},
		"it is turned on by status":       {"/nodes/status", with(plain, ""), with(autonomous, ""), refused},
		"for a time":                      {"/nodes", with(plain, ""), with(plain+", annotations: {node.openyurt.io/autonomy-duration: 1h}", ""), refused},
		"a node registers with it":        {"/nodes", "", with(autonomous, ""), refused},
		"it is turned off":                {"/nodes", with(autonomous, ""), with(plain+", annotations: {node.beta.openyurt.io/autonomy: 'false'}", ""), ""},
		"an autonomous node is written":   {"/nodes/status", with(autonomous, ""), with(autonomous, "status: {}"), ""},
		"a node of another pool":          {"/nodes", with("", ""), with("labels: {apps.openyurt.io/nodepool: cloud}, annotations: {node.beta.openyurt.io/autonomy: 'true'}", ""), ""},
		"a node of no pool":               {"/nodes", with("", ""), with("annotations: {node.beta.openyurt.io/autonomy: 'true'}", ""), ""},
		"another annotation in the pool":  {"/nodes", with(plain, ""), with(plain+", annotations: {a: b}", ""), ""},
		"a node without any metadata yet": {"/nodes", with("", ""), with("", ""), ""},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, p.refusals(t, write{by: &user.DefaultInfo{Name: "admin"}, resource: tc.resource, before: tc.before, now: tc.now}, nil), tc.want)
		})
	}
}

// poolRights are those of the delegate of the pool edge, which has the nodes a and c; a is delegated.
type poolRights struct{}

func (poolRights) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	isOf := a.GetName() == "a" || a.GetName() == "c" && a.GetSubresource() == ""
	if a.GetAPIGroup() == "atoll.dev" && a.GetResource() == "delegations" && a.GetNamespace() == "atoll-pools" && a.GetVerb() == "update" && isOf {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// TestAPoolSpeaksForItsNodesOnly: its delegate forwards heartbeats, whose times grow, and statuses of pods, and can write
// nothing else, whatever RBAC allows it.
func TestAPoolSpeaksForItsNodesOnly(t *testing.T) {
	p := policiesOf(t, render(t, load(t), everything()))
	lease := func(metadata, renewed, rest string) string {
		return fmt.Sprintf("metadata: {name: a%s}\nspec: {holderIdentity: a, leaseDurationSeconds: 40, renewTime: %q%s}", metadata, renewed, rest)
	}
	delegated := func(renewed string) string {
		return ", annotations: {kept: '1', atoll.dev/delegated: '" + renewed + "'}"
	}
	const t1, t2, kept = "2030-01-01T00:00:00.000000Z", "2030-01-01T00:00:00.000001Z", ", annotations: {kept: '1'}"
	pod := func(metadata, node, phase string) string {
		return fmt.Sprintf("metadata: {name: web%s}\nspec: {nodeName: %s}\nstatus: {phase: %s}", metadata, node, phase)
	}
	const (
		other    = "a pool may update Leases of its nodes and statuses of their pods, and nothing else"
		foreign  = "the node is not in the pool"
		direct   = governance.NotDelegated
		metadata = "a pool may change no metadata but the annotation atoll.dev/delegated of a Lease, and atoll.dev/pool-state of its pulse"
		time     = "renewTime must grow, and atoll.dev/delegated must be equal to it"
		fields   = "a pool may change nothing of a Lease but when it was renewed"
		over     = "a pool may not say that a pod is over, nor write the status of one that is"
		leases   = "coordination.k8s.io/leases"
		status   = "/pods/status"
	)
	for name, tc := range map[string]struct{ resource, before, now, want string }{
		"a heartbeat":                            {leases, lease(kept, t1, ""), lease(delegated(t2), t2, ""), ""},
		"the next one":                           {leases, lease(delegated(t1), t1, ""), lease(delegated(t2), t2, ""), ""},
		"the first of a Lease without one":       {leases, "metadata: {name: a}\nspec: {holderIdentity: a}", "metadata: {name: a, annotations: {atoll.dev/delegated: '" + t1 + "'}}\nspec: {holderIdentity: a, renewTime: '" + t1 + "'}", ""},
		"a heartbeat that does not say who says": {leases, lease(kept, t1, ""), lease(kept, t2, ""), time},
		"one that says another time":             {leases, lease(kept, t1, ""), lease(delegated(t1), t2, ""), time},
		"one that goes back":                     {leases, lease(kept, t2, ""), lease(delegated(t1), t1, ""), time},
		"one that stays":                         {leases, lease(kept, t1, ""), lease(delegated(t1), t1, ""), time},
		"one without a time":                     {leases, lease(kept, t1, ""), "metadata: {name: a, annotations: {kept: '1'}}\nspec: {holderIdentity: a, leaseDurationSeconds: 40}", time},
		"one of another pool's node":             {leases, strings.ReplaceAll(lease(kept, t1, ""), "name: a", "name: b"), strings.ReplaceAll(lease(delegated(t2), t2, ""), "name: a", "name: b"), foreign},
		"another holder":                         {leases, lease(kept, t1, ""), strings.Replace(lease(delegated(t2), t2, ""), "holderIdentity: a", "holderIdentity: b", 1), fields},
		"a longer duration":                      {leases, lease(kept, t1, ""), strings.Replace(lease(delegated(t2), t2, ""), "40", "40000", 1), fields},
		"an acquireTime":                         {leases, lease(kept, t1, ""), lease(delegated(t2), t2, ", acquireTime: '"+t1+"'"), fields},
		"a strategy":                             {leases, lease(kept, t1, ""), lease(delegated(t2), t2, ", strategy: OldestEmulationVersion"), fields},
		"another annotation":                     {leases, lease(kept, t1, ""), lease(strings.Replace(delegated(t2), "kept: '1'", "kept: '2'", 1), t2, ""), metadata},
		"an annotation more":                     {leases, lease(kept, t1, ""), lease(strings.Replace(delegated(t2), "kept: '1'", "kept: '1', more: ''", 1), t2, ""), metadata},
		"an annotation less":                     {leases, lease(kept, t1, ""), lease(strings.Replace(delegated(t2), "kept: '1', ", "", 1), t2, ""), metadata},
		"an owner less":                          {leases, lease(kept+", ownerReferences: [{apiVersion: v1, kind: Node, name: a, uid: '1'}]", t1, ""), lease(delegated(t2), t2, ""), metadata},
		"a Lease is created":                     {leases, "", lease(delegated(t2), t2, ""), other},
		"a Lease is deleted":                     {leases, lease(kept, t1, ""), "", other},
		"a status":                               {status, pod("", "a", "Running"), pod("", "a", "Pending"), ""},
		"a status of a pod elsewhere":            {status, pod("", "b", "Running"), pod("", "b", "Pending"), foreign},
		"a status of a pod of a node that the cloud hears": {status, pod("", "c", "Running"), pod("", "c", "Pending"), direct},
		"a status of a pod on no node":                     {status, "metadata: {name: web}\nspec: {}", "metadata: {name: web}\nspec: {}\nstatus: {phase: Running}", foreign},
		"a pod is said to be over":                         {status, pod("", "a", "Running"), pod("", "a", "Failed"), over},
		"a pod that is over runs":                          {status, pod("", "a", "Succeeded"), pod("", "a", "Running"), over},
		"a label of a pod":                                 {status, pod("", "a", "Running"), pod(", labels: {app: web}", "a", "Running"), metadata},
		"an annotation of a pod":                           {status, pod("", "a", "Running"), pod(", annotations: {atoll.dev/delegated: x}", "a", "Running"), metadata},
		"an empty annotation of a pod":                     {status, pod("", "a", "Running"), pod(", annotations: {more: ''}", "a", "Running"), metadata},
		"a finalizer less":                                 {status, pod(", finalizers: [a]", "a", "Running"), pod("", "a", "Running"), metadata},
		"a pod itself":                                     {"/pods", pod("", "a", "Running"), pod("", "a", "Pending"), other},
		"a pod is created":                                 {"/pods", "", pod("", "a", "Running"), other},
		"a node":                                           {"/nodes", "metadata: {name: a}", "metadata: {name: a, labels: {a: b}}", other},
		"a node's status":                                  {"/nodes/status", "metadata: {name: a}", "metadata: {name: a}\nstatus: {}", other},
	} {
		t.Run(name, func(t *testing.T) {
			where := map[bool]string{true: "kube-node-lease", false: "default"}[tc.resource == leases]
			for _, by := range []string{"delegate-edge", "default"} { // also who is no delegate, but in that namespace
				w := write{by: &user.DefaultInfo{Name: "system:serviceaccount:atoll-pools:" + by, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:atoll-pools"}}, resource: tc.resource, before: tc.before, now: tc.now, namespace: where}
				got := p.refusals(t, w, poolRights{})
				if tc.want != "" && tc.want != other && len(got) > 0 {
					got = slices.DeleteFunc(got, func(text string) bool { return text != tc.want })
				}
				if tc.want == other && len(got) > 0 {
					got = []string{other}
				}
				expect(t, got, tc.want)
			}
			expect(t, p.refusals(t, write{by: &user.DefaultInfo{Name: "system:serviceaccount:kube-system:default", Groups: []string{"system:serviceaccounts:kube-system"}}, resource: "coordination.k8s.io/leases", before: tc.before, now: tc.now, namespace: where}, poolRights{}), "")
		})
	}
	for name, tc := range map[string]struct{ before, now, want string }{
		"a pulse":                  {lease("", t1, ""), lease("", t2, ""), ""},
		"a pulse with a state":     {lease(kept, t1, ""), lease(", annotations: {kept: '1', atoll.dev/pool-state: '{}'}", t2, ""), ""},
		"a pulse with a finalizer": {lease("", t1, ""), lease(", finalizers: [a/b]", t2, ""), metadata},
		"a pulse with a label":     {lease("", t1, ""), lease(", labels: {a: b}", t2, ""), metadata},
		"a pulse that says more":   {lease("", t1, ""), lease(", annotations: {more: ''}", t2, ""), metadata},
		"a pulse is deleted":       {lease("", t1, ""), "", other},
	} {
		t.Run(name, func(t *testing.T) {
			pulse := write{by: &user.DefaultInfo{Name: "system:serviceaccount:atoll-pools:delegate-edge", Groups: []string{"system:serviceaccounts:atoll-pools"}}, resource: leases, before: tc.before, now: tc.now, namespace: "atoll-pools"}
			expect(t, p.refusals(t, pulse, poolRights{}), tc.want)
		})
	}
}

// TestFailClosedPoliciesMatchAtollOnly: the policies are about our own identity, our own kinds and nodes,
// and a value turns each of them off. One that is about other users' writes to other kinds
// must let them pass when it fails.
func TestFailClosedPoliciesMatchAtollOnly(t *testing.T) {
	ours := map[string]bool{"atoll-united-authors": true, "atoll-override-authors": true, "atoll-delegates": true} // the last one's subjects are ours
	for key, object := range render(t, load(t), everything()) {
		p, ok := object.(*admissionregistrationv1.ValidatingAdmissionPolicy)
		if !ok || *p.Spec.FailurePolicy == admissionregistrationv1.Ignore || ours[p.Name] {
			continue
		}
		const fromUs = "has(request.userInfo.username) && request.userInfo.username == 'system:serviceaccount:" + namespace + ":atoll-manager'"
		if len(p.Spec.MatchConditions) != 1 || p.Spec.MatchConditions[0].Expression != fromUs {
			t.Errorf("%s may refuse writes of others: %+v", key, p.Spec.MatchConditions)
		}
	}
	off := render(t, load(t), map[string]any{
		"rbac": map[string]any{"bounds": "None", "checkAuthors": false}, "nodes": map[string]any{"guardLabels": false}, "capacity": map[string]any{"preset": "None"}, "overrides": map[string]any{"tryPods": false},
	})
	for key := range off {
		if strings.HasPrefix(key, "ValidatingAdmissionPolicy") {
			t.Errorf("%s is rendered though it is off", key)
		}
	}
}

// TestPolicyExpressionsHandleSparseObjects: a policy that fails refuses the write, or lets it pass, whatever its
// rules say. So each has an answer for the objects with the fewest fields, in every operation.
func TestPolicyExpressionsHandleSparseObjects(t *testing.T) {
	p := policiesOf(t, render(t, load(t), everything()))
	least := []string{
		"metadata: {name: x}",
		"metadata: {generateName: x}\nspec: {}",
		"metadata: {name: x, labels: {}, annotations: {}, finalizers: [], ownerReferences: [{apiVersion: v1, kind: A, name: a, uid: 1}]}\nspec: {taints: [], schedulingGates: []}",
		"metadata: {name: x, labels: {a: ''}, annotations: {a: ''}, finalizers: [a], ownerReferences: [{apiVersion: v1, kind: A, name: a, uid: 1, controller: false}]}\nspec: {taints: [{key: a, effect: NoExecute}], schedulingGates: [{name: a}]}",
	}
	tried := 0
	for _, one := range p {
		for _, rule := range one.Spec.MatchConstraints.ResourceRules {
			for _, now := range append(least, "") {
				for _, before := range append(least, "") {
					if now == "" && before == "" {
						continue
					}
					for _, by := range []user.Info{nil, &user.DefaultInfo{}, &user.DefaultInfo{Name: "system:node:x", Groups: []string{"system:nodes"}}} {
						w := write{by: by, resource: rule.APIGroups[0] + "/" + rule.Resources[0], now: withSpec(rule.Resources[0], now), before: withSpec(rule.Resources[0], before)}
						if one.selects(w) {
							tried++
							policies{one}.refusals(t, w, rights{})
						}
					}
				}
			}
		}
	}
	if tried < 100 {
		t.Errorf("only %d writes were tried", tried)
	}
}

// withSpec adds the field spec, which every pod has.
func withSpec(resource, object string) string {
	if resource == "pods" && object != "" && !strings.Contains(object, "spec:") {
		return object + "\nspec: {}"
	}
	return object
}

// everything are values with every feature, and a further kind of workloads.
func everything() map[string]any {
	values := gangs(nil)
	values["scheduler"] = map[string]any{"mode": "Isolated"}
	values["coordinator"] = map[string]any{"enabled": true}
	values["workloads"] = []any{map[string]any{"group": "apps.kruise.io", "version": "v1alpha1", "kind": "CloneSet"}}
	return values
}
