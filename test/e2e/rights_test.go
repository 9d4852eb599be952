package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/manager"
)

// as returns a client with another identity.
func (f *fixture) as(user string, groups ...string) client.Client {
	f.Helper()
	c, err := client.New(f.impersonating(user, groups...), client.Options{Scheme: manager.Scheme()})
	if err != nil {
		f.Fatal(err)
	}
	return c
}

func (f *fixture) impersonating(user string, groups ...string) *rest.Config {
	config := f.cluster.AdminConfig()
	config.Impersonate.UserName = user
	config.Impersonate.Groups = slices.Concat(groups, []string{"system:authenticated"})
	return config
}

// barePod returns a pod without an owner that no scheduler places.
func barePod(namespace, name string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": "x"}}, Spec: podTemplate("x").Spec}
	pod.Spec.SchedulerName = "nobody"
	return pod
}

// refusal is what an error says; "" for none. It is an error of the test if the API server
// refuses a write for another reason than a ValidatingAdmissionPolicy of the chart.
func refusal(err error) string {
	if err == nil {
		return ""
	}
	_, text, ours := strings.Cut(err.Error(), "denied request: ")
	if !ours {
		return "not refused by a policy: " + err.Error()
	}
	return text
}

// TestRequestsOfAtollUseTheirFlowSchemas: the API server counts them for the FlowSchemas of the
// chart, so that requests of tenants' pods do not delay them.
func TestRequestsOfAtollUseTheirFlowSchemas(t *testing.T) {
	f := newFixture(t)
	for schema, level := range map[string]string{"atoll-leader-election": "leader-election", "atoll": "workload-high"} {
		counted := fmt.Sprintf("apiserver_flowcontrol_dispatched_requests_total{flow_schema=%q,priority_level=%q}", schema, level)
		f.eventually(patience, "requests are counted for FlowSchema "+schema, func() error {
			raw, err := f.kube.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(f.ctx)
			if err == nil && !strings.Contains(string(raw), counted) {
				err = errors.New("none is")
			}
			return err
		})
	}
}

// TestManagerWritesNoMoreThanItNeeds: the holder of atoll-manager's token may write only what
// atoll-manager writes. The API server refuses the rest, although RBAC cannot.
func TestManagerWritesNoMoreThanItNeeds(t *testing.T) {
	f := newFixture(t)
	f.nodes(nil, "rights-0")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "rights-0"}}
	pod, system := barePod(f.ns, "rights"), barePod(metav1.NamespaceSystem, "rights-"+f.ns)
	web := deployment("rights", 0, "")
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "rights"}, Spec: batchv1.JobSpec{Suspend: new(true), Template: podTemplate("job")}}
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	group := &gm.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "rights"}, Spec: gm.NodeGroupSpec{Nodes: []string{"rights-none"}}}
	systemJob := job.DeepCopy()
	systemJob.Namespace, systemJob.Name = metav1.NamespaceSystem, "rights-"+f.ns
	f.create(pod, system, web, job, systemJob)
	f.nodeGroup(group)
	f.Cleanup(func() {
		_ = client.IgnoreNotFound(f.client.Delete(context.Background(), system, client.GracePeriodSeconds(0)))
		_ = client.IgnoreNotFound(f.client.Delete(context.Background(), systemJob))
	})
	asManager := f.asManager()

	const (
		merge     = types.MergePatchType
		strategic = types.StrategicMergePatchType
		image     = `{"spec":{"containers":[{"name":"app","image":"other"}]}}`
	)
	patched := func(o client.Object, kind types.PatchType, patch string) func() error {
		return func() error {
			return asManager.Patch(f.ctx, o.DeepCopyObject().(client.Object), client.RawPatch(kind, []byte(patch)), client.DryRunAll)
		}
	}
	created := func(o client.Object) func() error {
		return func() error { return asManager.Create(f.ctx, o, client.DryRunAll) }
	}
	child := func(namespace string, owner string) *appsv1.Deployment {
		d := deployment("rights-child", 1, "")
		d.Namespace, d.Labels = namespace, map[string]string{apps.PoolNameLabel: "a"}
		d.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps.openyurt.io/v1alpha1", Kind: owner, Name: "u", UID: "1", Controller: new(true)}}
		return d
	}
	secret := func(name string, kind corev1.SecretType) *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: atoll.Namespace, Name: name, Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}}, Type: kind,
			Data: map[string][]byte{corev1.TLSCertKey: nil, corev1.TLSPrivateKeyKey: nil},
		}
	}
	// The garbage collector deletes no object whose owner is of a version that is not served.
	ofVersion9 := child(f.ns, "UnitedDeployment")
	ofVersion9.OwnerReferences[0].APIVersion = "apps.openyurt.io/v9"
	evicted := func(pod *corev1.Pod) func() error {
		return func() error {
			return asManager.SubResource("eviction").Create(f.ctx, pod, &policyv1.Eviction{DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}})
		}
	}
	labelled := metav1.ObjectMeta{Namespace: f.ns, Name: pod.Name, Labels: map[string]string{"app": "y"}}
	rows := map[string]struct {
		write func() error
		want  string
	}{
		"an image":                       {patched(pod, strategic, image), ""},
		"our labels":                     {patched(pod, merge, `{"metadata":{"labels":{"groupmanagement.kubeedge.io/nodegroup":"a"}}}`), ""},
		"the deletion cost":              {patched(pod, merge, `{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"1"}}}`), ""},
		"an image in kube-system":        {patched(system, strategic, image), "atoll-manager may not change these fields of a pod's spec in namespace kube-system: containers"},
		"a label of others":              {patched(pod, merge, `{"metadata":{"labels":{"app":"y"}}}`), "atoll-manager may not change these labels of a pod: app"},
		"an annotation of others":        {patched(pod, merge, `{"metadata":{"annotations":{"a":"b"}}}`), "atoll-manager may not change these annotations of a pod: a"},
		"a finalizer of a pod":           {patched(pod, merge, `{"metadata":{"finalizers":["a.io/b"]}}`), "atoll-manager may not change owners and finalizers of a pod"},
		"a deadline":                     {patched(pod, merge, `{"spec":{"activeDeadlineSeconds":1}}`), "atoll-manager may not change these fields of a pod's spec in namespace " + f.ns + ": activeDeadlineSeconds"},
		"a label of a node":              {patched(node, merge, `{"metadata":{"labels":{"a":"b"}}}`), ""},
		"a cordoned node":                {patched(node, merge, `{"spec":{"unschedulable":true}}`), "atoll-manager may not change these fields of a node's spec: unschedulable"},
		"a node's hostname":              {patched(node, merge, `{"metadata":{"labels":{"kubernetes.io/hostname":"other"}}}`), "atoll-manager may not change these labels of a node: kubernetes.io/hostname"},
		"a taint of Kubernetes":          {patched(node, merge, `{"spec":{"taints":[{"key":"node.kubernetes.io/unreachable","effect":"NoExecute"}]}}`), "atoll-manager may not change the taints of a node that Kubernetes adds and removes"},
		"the label of a workload":        {patched(web, merge, `{"metadata":{"labels":{"groupmanagement.kubeedge.io/binding-overridepolicy":"a"}}}`), ""},
		"a workload's template":          {patched(web, strategic, `{"spec":{"template":`+image+`}}`), "atoll-manager may not change these fields of a workload: template"},
		"a workload's replicas":          {patched(web, merge, `{"spec":{"replicas":5}}`), "atoll-manager may not change these fields of a workload: replicas"},
		"a Job resumes":                  {patched(job, merge, `{"spec":{"suspend":false}}`), ""},
		"a Job's backoff":                {patched(job, merge, `{"spec":{"backoffLimit":1}}`), "atoll-manager may not change these fields of a workload: backoffLimit"},
		"a pool's workload":              {created(child(f.ns, "UnitedDeployment")), ""},
		"a pool's workload, kube-system": {created(child(metav1.NamespaceSystem, "UnitedDeployment")), "atoll-manager may write no workloads of UnitedDeployments in namespace kube-system"},
		"a pool's workload, ours":        {created(child(atoll.Namespace, "UnitedDeployment")), "atoll-manager may write no workloads of UnitedDeployments in namespace " + atoll.Namespace},
		"a pool's workload, v9":          {created(ofVersion9), "atoll-manager may create and delete only the workloads and ControllerRevisions of UnitedDeployments"},
		"an eviction":                    {evicted(pod), ""},
		"an eviction in kube-system":     {evicted(system), "atoll-manager may evict no pods in the namespaces of the system"},
		"a Job resumes in kube-system":   {patched(systemJob, merge, `{"spec":{"suspend":false}}`), "atoll-manager may suspend and resume no Jobs in the namespaces of the system"},
		"a workload of another":          {created(child(f.ns, "Other")), "atoll-manager may create and delete only the workloads and ControllerRevisions of UnitedDeployments"},
		"a workload goes":                {func() error { return asManager.Delete(f.ctx, web, client.DryRunAll) }, "atoll-manager may create and delete only the workloads and ControllerRevisions of UnitedDeployments"},
		"a PodTemplate, tried":           {created(&corev1.PodTemplate{ObjectMeta: labelled, Template: podTemplate("x")}), ""},
		"a PodTemplate": {func() error {
			return asManager.Create(f.ctx, &corev1.PodTemplate{ObjectMeta: labelled, Template: podTemplate("x")})
		}, "atoll-manager may create PodTemplates only in a dry run"},
		"another Secret":           {created(secret("other", corev1.SecretTypeTLS)), "atoll-manager may create only the Secrets atoll-manager-tls and atoll-extender-client, of type kubernetes.io/tls"},
		"the token of another":     {created(secret("atoll-extender-client-2", corev1.SecretTypeServiceAccountToken)), "atoll-manager may create only the Secrets atoll-manager-tls and atoll-extender-client, of type kubernetes.io/tls"},
		"the nodes of a NodeGroup": {patched(group, merge, `{"spec":{"nodes":["rights-0"]}}`), "atoll-manager may not change these fields: spec"},
	}
	f.eventually(patience, "the policies are in force", func() error {
		if err := rows["a workload's replicas"].write(); err == nil {
			return fmt.Errorf("a write is allowed")
		}
		return nil
	})
	for name, tc := range rows {
		t.Run(name, func(t *testing.T) {
			if got := refusal(tc.write()); got != tc.want {
				t.Errorf("the refusal is %q, want %q", got, tc.want)
			}
		})
	}
}

// warned collects the warnings of the API server.
type warned struct {
	mu    sync.Mutex // guards texts
	texts []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (w *warned) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}

// TestKubeletCannotMoveItsNodeToAnotherGroup: a kubelet's credentials change no label that decides which
// NodeGroup or NodePool its node is in. It may register with one, and is warned.
func TestKubeletCannotMoveItsNodeToAnotherGroup(t *testing.T) {
	f := newFixture(t)
	f.nodes(map[string]string{apps.NodePoolLabel: "a"}, "moves-0")
	config := f.impersonating("system:node:moves-0", "system:nodes")
	warnings := &warned{}
	config.WarningHandler = warnings
	kubelet, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	patch := func(patch string, subresources ...string) error {
		_, err := kubelet.CoreV1().Nodes().Patch(f.ctx, "moves-0", types.MergePatchType, []byte(patch), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, subresources...)
		return err
	}
	const toB = `{"metadata":{"labels":{"apps.openyurt.io/nodepool":"b"}}}`
	f.eventually(patience, "the policy is in force", func() error {
		if err := patch(toB); err == nil {
			return fmt.Errorf("a write is allowed")
		}
		return nil
	})
	for name, tc := range map[string]struct{ patch, want string }{
		"to another pool":  {toB, "a node may not change its own label apps.openyurt.io/nodepool"},
		"out of its pool":  {`{"metadata":{"labels":{"apps.openyurt.io/nodepool":null}}}`, "a node may not change its own label apps.openyurt.io/nodepool"},
		"to a group":       {`{"metadata":{"labels":{"groupmanagement.kubeedge.io/nodegroup":"b"}}}`, "a node may not change its own label groupmanagement.kubeedge.io/nodegroup"},
		"an empty label":   {`{"metadata":{"labels":{"groupmanagement.kubeedge.io/nodegroup":""}}}`, "a node may not change its own label groupmanagement.kubeedge.io/nodegroup"},
		"a label of ours":  {`{"metadata":{"labels":{"atoll.dev/site":"b"}}}`, "a node may not change its own labels under atoll.dev/"},
		"its record":       {`{"metadata":{"annotations":{"atoll.dev/nodepool":"{}"}}}`, "a node may not change its own annotation atoll.dev/nodepool"},
		"its state":        {`{"metadata":{"annotations":{"atoll.dev/connectivity":"Frozen"}}}`, "a node may not change its own annotation atoll.dev/connectivity"},
		"a label of its":   {`{"metadata":{"labels":{"example.com/zone":"b"}}}`, ""},
		"its annotation":   {`{"metadata":{"annotations":{"example.com/zone":"b"}}}`, ""},
		"what it observes": {`{"status":{"nodeInfo":{"kernelVersion":"6"}}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for _, subresources := range [][]string{nil, {"status"}} {
				if got := refusal(patch(tc.patch, subresources...)); got != tc.want {
					t.Errorf("%v: the refusal is %q, want %q", subresources, got, tc.want)
				}
			}
		})
	}
	t.Run("a person moves it", func(t *testing.T) {
		f.join("moves-0", "c")
	})
	t.Run("it registers", func(t *testing.T) {
		config := f.impersonating("system:node:moves-1", "system:nodes")
		config.WarningHandler = warnings
		kubelet, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "moves-1", Labels: map[string]string{apps.NodePoolLabel: "b"}}}
		if _, err := kubelet.CoreV1().Nodes().Create(f.ctx, node, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			t.Fatal(err)
		}
		warnings.mu.Lock()
		defer warnings.mu.Unlock()
		if all := strings.Join(warnings.texts, "\n"); !strings.Contains(all, "a node registers with the label apps.openyurt.io/nodepool") {
			t.Errorf("the warnings are %q", warnings.texts)
		}
	})
}

// TestAuthorsCannotExceedTheirWorkloadRights: who may write UnitedDeployments and OverridePolicies but no
// workloads gets no workloads by them.
func TestAuthorsCannotExceedTheirWorkloadRights(t *testing.T) {
	f := newFixture(t)
	anna := f.as("anna")
	allow := func(name string, rules ...rbacv1.PolicyRule) {
		f.Helper()
		meta := metav1.ObjectMeta{Name: name}
		if _, err := f.kube.RbacV1().Roles(f.ns).Create(f.ctx, &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}); err != nil {
			f.Fatal(err)
		}
		if _, err := f.kube.RbacV1().RoleBindings(f.ns).Create(f.ctx, &rbacv1.RoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "anna"}},
		}, metav1.CreateOptions{}); err != nil {
			f.Fatal(err)
		}
	}
	writes := []string{"get", "create", "update", "patch"}
	allow("policies",
		rbacv1.PolicyRule{APIGroups: []string{"apps.openyurt.io"}, Resources: []string{"uniteddeployments"}, Verbs: writes},
		rbacv1.PolicyRule{APIGroups: []string{"groupmanagement.kubeedge.io"}, Resources: []string{"overridepolicies"}, Verbs: writes})
	unite := func() error {
		ud := united("authors", pool("a", 0))
		ud.Namespace = f.ns
		return anna.Create(f.ctx, ud, client.DryRunAll)
	}
	override := func() error {
		policy := &gm.OverridePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "authors"}}
		return anna.Create(f.ctx, policy, client.DryRunAll)
	}
	refused := func(what string, write func() error, parts ...string) {
		f.Helper()
		f.eventually(patience, what, func() error {
			err := write()
			for _, part := range parts {
				if err == nil || !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), part) {
					return fmt.Errorf("the refusal does not say %q: %w", part, err)
				}
			}
			return nil
		})
	}
	refused("she makes no UnitedDeployment", unite, `spec.workloadTemplate.deploymentTemplate: user "anna" may not create deployments.apps in namespace `+f.ns)
	refused("she makes no OverridePolicy", override, `spec: user "anna" may not patch deployments.apps in namespace `+f.ns)

	f.create(united("authors", pool("a", 0)))
	edit := func(patch string) func() error {
		return func() error {
			ud := &apps.UnitedDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "authors"}}
			return anna.Patch(f.ctx, ud, client.RawPatch(types.MergePatchType, []byte(patch)), client.DryRunAll)
		}
	}
	refused("she changes no template", edit(`{"spec":{"workloadTemplate":{"deploymentTemplate":{"spec":{"minReadySeconds":5}}}}}`), "may not create deployments.apps")
	refused("she changes no pools", edit(`{"spec":{"topology":{"pools":[{"name":"b","replicas":1}]}}}`), "may not create deployments.apps")
	refused("she rolls nothing back", edit(`{"metadata":{"annotations":{"atoll.dev/rollback-to":"previous"}}}`), "may not create deployments.apps")
	if err := edit(`{"metadata":{"labels":{"a":"b"}}}`)(); err != nil {
		t.Errorf("she may not label it: %v", err)
	}

	allow("workloads", rbacv1.PolicyRule{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"create", "patch"}})
	f.eventually(patience, "with the rights she does", func() error {
		return edit(`{"spec":{"workloadTemplate":{"deploymentTemplate":{"spec":{"minReadySeconds":5}}}}}`)()
	})
}
