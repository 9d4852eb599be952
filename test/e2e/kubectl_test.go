package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/kubectl/explain"
)

// person runs kubectl-atoll with the rights of one person.
type person struct {
	*fixture
	program, kubeconfig string
}

// people returns a function that makes persons.
func (f *fixture) people() func(name string) person {
	f.Helper()
	program := filepath.Join(f.TempDir(), "kubectl-atoll")
	build := exec.CommandContext(f.ctx, "go", "build", "-o", program, ".")
	build.Dir = "../../cmd/kubectl-atoll"
	if out, err := build.CombinedOutput(); err != nil {
		f.Fatalf("building kubectl-atoll: %v\n%s", err, out)
	}
	return func(name string) person {
		path, err := f.cluster.Kubeconfig(f.ctx, name)
		if err != nil {
			f.Fatal(err)
		}
		return person{f, program, path}
	}
}

// mayView gives somebody the roles of docs/install.md for people who look.
func (f *fixture) mayView(user string) {
	f.Helper()
	subjects := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}}
	role := func(name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}
	}
	all := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: f.ns + "-" + user}, RoleRef: role("atoll-view"), Subjects: subjects}
	if err := f.client.Create(f.ctx, all); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = f.client.Delete(f.Context(), all) })
	f.create(&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: user}, RoleRef: role("view"), Subjects: subjects})
}

// atoll runs the program, and returns what it prints.
func (p person) atoll(args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(p.ctx, p.program, append([]string{"-n", p.ns}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+p.kubeconfig)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// explains returns what is said of a workload's pod that waits, if any does.
func (p person) explains(app string) (e explain.Explanation) {
	p.Helper()
	for _, pod := range p.pods(app) {
		out, stderr, err := p.atoll("explain", "pod", pod.Name, "-o", "json")
		if err != nil {
			p.Fatalf("explaining %s: %v: %s", pod.Name, err, stderr)
		}
		e = explain.Explanation{}
		if err := json.Unmarshal([]byte(out), &e); err != nil {
			p.Fatalf("%v: %s", err, out)
		}
		if e.Waits != nil {
			break
		}
	}
	return e
}

// run runs a command that the program names, as an administrator.
func (f *fixture) run(command string) {
	f.Helper()
	words := strings.Fields(command)
	if words[0] != "kubectl" {
		f.Fatalf("%q is no command of kubectl", command)
	}
	cmd := exec.CommandContext(f.ctx, f.cluster.BinaryPath("kubectl"), append([]string{"--kubeconfig", f.cluster.KubeconfigPath()}, words[1:]...)...)
	cmd.Env = append(os.Environ(), "KUBE_EDITOR=true")
	if out, err := cmd.CombinedOutput(); err != nil {
		f.Errorf("%s: %v: %s", command, err, out)
	}
}

// TestKubectlAtollExplainsWhatPodsWaitFor: each cause is named, and the command beside it runs.
// Where it mends the cause, the pods run.
func TestKubectlAtollExplainsWhatPodsWaitFor(t *testing.T) {
	f := newFixture(t)
	admin := f.people()("nobody-else")
	admin.kubeconfig = f.cluster.KubeconfigPath()
	f.group("why", 1)
	f.group("why-cordoned", 1)
	f.cordon(true, "why-cordoned-0")
	f.create(weights("shop", "why", 1), weights("cordoned", "why-cordoned", 1), rangesOf("one-at-most", "why", 1))
	for _, c := range []struct {
		app, policy, why string
		modify           func(*appsv1.Deployment)
		mends            bool
	}{
		{app: "misspelt", policy: "shopp", why: `PropagationPolicy "shopp", which Deployment misspelt requires, is not in namespace`, mends: true},
		{app: "unknown", policy: "something-else", why: `PropagationPolicy "something-else", which Deployment unknown requires, is not in namespace`, mends: true},
		{app: "on-cordoned", policy: "cordoned", why: `all nodes of NodeGroup "why-cordoned" are cordoned`, mends: true},
		{app: "too-large", policy: "shop", why: "The pod requests cpu: 10k; the largest node of why has 32", modify: func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10k")}
		}},
		{app: "other-gate", policy: "shop", why: `scheduling gate "example.com/quota" of another program`, modify: func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/quota"}}
		}},
	} {
		f.part(c.app, func(f *fixture) {
			admin := person{f, admin.program, admin.kubeconfig}
			d := deployment(c.app, 1, c.policy)
			if c.modify != nil {
				c.modify(d)
			}
			f.create(d)
			var e explain.Explanation
			f.eventually(patience, "the cause is named", func() error {
				if out, stderr, err := admin.atoll("explain", "deployment/"+c.app); err != nil || !strings.Contains(out, c.why) {
					return fmt.Errorf("of the Deployment it says %s%s, %w", out, stderr, err)
				}
				if out, stderr, err := admin.atoll("status"); err != nil || !strings.Contains(out, fmt.Sprintf("kubectl atoll explain deployment/%s -n %s", c.app, f.ns)) {
					return fmt.Errorf("status says %s%s, %w", out, stderr, err)
				}
				if e = admin.explains(c.app); e.Waits == nil {
					return fmt.Errorf("nothing prevents it: %+v", e)
				} else if !strings.Contains(e.Waits.Why, c.why) {
					return fmt.Errorf("it waits because %q", e.Waits.Why)
				}
				return nil
			})
			f.run(e.Waits.Command)
			if c.mends {
				f.eventually(patience, "the command mends it", func() error { return f.allReady(c.app, 1) })
				if e := admin.explains(c.app); e.Waits != nil {
					f.Errorf("the pod runs, and is said to wait: %+v", e.Waits)
				}
			}
		})
	}
	f.part("a budget that allows no eviction", func(f *fixture) {
		admin := person{f, admin.program, admin.kubeconfig}
		f.group("why-a", 1)
		f.group("why-b", 1)
		policy := func(a, b int) *gm.PropagationPolicy {
			p := atOnce(weights("stays", "why-a", a, "why-b", b))
			p.Namespace = f.ns
			return p
		}
		f.create(policy(3, 1), deployment("stays", 4, "stays"), &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: "tight"},
			Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.IntOrString), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "stays"}}},
		})
		f.eventually(patience, "the policy is Satisfied", func() error { return errors.Join(f.allReady("stays", 4), f.reason("stays", gm.ReasonSatisfied)) })
		f.run("kubectl apply --server-side --force-conflicts -f " + f.file(policy(1, 3)))
		var w explain.Workload
		f.eventually(patience, "the budget is named", func() error {
			out, stderr, err := admin.atoll("explain", "deployment/stays", "-o", "json")
			if err != nil {
				return fmt.Errorf("%w: %s", err, stderr)
			}
			w = explain.Workload{}
			if err := json.Unmarshal([]byte(out), &w); err != nil || w.Stays == nil || !strings.Contains(w.Stays.Why, `PodDisruptionBudget "tight" allows no eviction`) {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
		f.run(w.Stays.Command)
	})
	f.part("more than the ranges take", func(f *fixture) {
		admin := person{f, admin.program, admin.kubeconfig}
		f.create(deployment("limited", 2, "one-at-most"))
		var e explain.Explanation
		f.eventually(patience, "the cause is named", func() error {
			if e = admin.explains("limited"); e.Waits == nil || !strings.Contains(e.Waits.Why, "the policy gives none of them more") {
				return fmt.Errorf("it waits for %+v", e.Waits)
			}
			return nil
		})
		f.run(e.Waits.Command)
	})
}

// TestKubectlAtollShowsWhatAPersonMayRead: somebody with the roles for people who look sees all but
// nodes, and is told which right is missing; somebody without any right is told which role has it.
func TestKubectlAtollShowsWhatAPersonMayRead(t *testing.T) {
	f := newFixture(t)
	as := f.people()
	viewer, stranger := as("viewer"), as("stranger")
	f.mayView("viewer")
	f.group("seen", 1)
	f.create(weights("shop", "seen", 1))
	f.create(overrides("registry", argsRule("seen", "-v")))
	f.create(deployment("app", 2, "shop", requiresOverride("registry")))
	f.eventually(patience, "the pods run", func() error { return f.allReady("app", 2) })
	pod := f.pods("app")[0]
	checks := []struct {
		args []string
		want []string
	}{
		{[]string{"explain", "pod/" + pod.Name}, []string{
			"Deployment app › ReplicaSet app-", "PropagationPolicy shop: weights seen 1", "seen has 2, wants 2", "seen.io/", "OverridePolicy registry, spec.overrideRules[0]",
			"More could be said: you may not get nodes: no role that is always there has the right; kubectl create clusterrole",
		}},
		{[]string{"explain", "deployment/app"}, []string{"PropagationPolicy shop: weights seen 1", "OverridePolicy registry: rules for seen", "seen has 2, wants 2", "2 of 2 are Ready"}},
		{[]string{"top", "groups"}, []string{"NODEGROUP", "seen", "you may not list nodes"}},
		{[]string{"__complete", "explain", "deployment/"}, []string{"deployment/app"}},
		{[]string{"__complete", "tree", "deploy", "a"}, []string{"app"}},
		{[]string{"tree", "deployment", "app"}, []string{"Deployment app  2 of 2 pods Ready", "NodeGroup seen  2 of 2", "Node seen-0  2 of 2", "Pod " + pod.Name}},
		{[]string{"status"}, []string{"Namespace " + f.ns, "Workloads            1 of 1 good", "PropagationPolicies  1 of 1 good", "OverridePolicies     1 of 1 good", "seen 1 of 1 nodes Ready", "you may not list nodes"}},
	}
	for _, c := range checks {
		f.eventually(patience, strings.Join(c.args, " "), func() error {
			out, stderr, err := viewer.atoll(c.args...)
			if err != nil {
				return fmt.Errorf("%w: %s", err, stderr)
			}
			for _, want := range c.want {
				if !strings.Contains(out, want) {
					return fmt.Errorf("it does not say %q:\n%s", want, out)
				}
			}
			return nil
		})
	}
	for _, args := range [][]string{{"explain", "pod", pod.Name}, {"tree", "deploy/app"}} {
		out, stderr, err := stranger.atoll(args...)
		if err == nil || out != "" || !strings.Contains(stderr, "error: you may not get ") || !strings.Contains(stderr, "ClusterRole view has the right") {
			t.Errorf("%v: %v\n%s%s", args, err, out, stderr)
		}
	}
	for want, args := range map[string][]string{
		"error: there is no pod no-such-pod in namespace " + f.ns + ": kubectl --kubeconfig=" + viewer.kubeconfig + " get pods": {"--kubeconfig", viewer.kubeconfig, "explain", "pod", "no-such-pod"},
		"error: a Node has no pods of its own": {"explain", "node/seen-0"},
	} {
		if _, stderr, err := viewer.atoll(args...); err == nil || !strings.Contains(stderr, want) {
			t.Errorf("%v: %s, want %q", err, stderr, want)
		}
	}
	var left appsv1.DeploymentList
	if err := f.client.List(f.ctx, &left, client.InNamespace(f.ns)); err != nil || len(left.Items) != 1 {
		t.Errorf("%d Deployments, %v", len(left.Items), err)
	}
}
