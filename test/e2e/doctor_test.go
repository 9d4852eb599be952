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
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/kubectl/doctor"
	"github.com/atoll-k8s/atoll/internal/machinery/certs"
	"github.com/atoll-k8s/atoll/internal/pki"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// examine runs kubectl atoll doctor. faulty is whether it says by its exit code that something is wrong.
func (p person) examine() (report doctor.Report, faulty bool, err error) {
	p.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(p.ctx, p.program, "--kubeconfig", p.kubeconfig, "doctor", "-o", "json")
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	if exit, is := errors.AsType[*exec.ExitError](err); is && exit.ExitCode() == 2 {
		faulty, err = true, nil
	}
	if err != nil {
		return report, false, fmt.Errorf("%w: %s", err, errs.String())
	}
	return report, faulty, json.Unmarshal(out.Bytes(), &report)
}

// finds waits until a fault is found, and returns the command beside it. breaks is called before each look.
func (p person) finds(check, what string, breaks func()) (command string) {
	p.Helper()
	p.eventually(patience, "it finds "+what, func() error {
		breaks()
		report, faulty, err := p.examine()
		if err != nil {
			return err
		}
		for _, c := range report.Checks {
			for _, fault := range c.Faults {
				if c.Name == check && strings.Contains(fault.What, what) && faulty {
					command = fault.Command
					return nil
				}
			}
		}
		return fmt.Errorf("it says %+v", report.Checks)
	})
	return command
}

// findsNothing waits until nothing is wrong.
func (p person) findsNothing() {
	p.Helper()
	p.eventually(patience, "nothing is wrong", func() error {
		report, faulty, err := p.examine()
		if err != nil || faulty {
			return fmt.Errorf("%+v, %w", report.Checks, err)
		}
		for _, c := range report.Checks {
			if c.Good == "" {
				return fmt.Errorf("it knows nothing of %s", c.Name)
			}
		}
		return nil
	})
}

// shell runs a command that the program names, as an administrator.
func (f *fixture) shell(command string) {
	f.Helper()
	cmd := exec.CommandContext(f.ctx, "sh", "-c", command)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+f.cluster.KubeconfigPath(), "PATH="+filepath.Dir(f.cluster.BinaryPath("kubectl"))+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		f.Errorf("%s: %v: %s", command, err, out)
	}
}

// TestKubectlAtollFindsWhatIsWrong breaks an installation in ten ways, one after the other. Each is
// named, and nothing is wrong any more once it is mended: by the command beside it, where that mends it.
func TestKubectlAtollFindsWhatIsWrong(t *testing.T) {
	tier.All(t, "a cluster of its own, broken in ten ways: two minutes")
	f := newFixtureOfItsOwn(t, atoll.Options{Form: atoll.Isolated})
	as := f.people()
	admin := as("nobody-else")
	admin.kubeconfig = f.cluster.KubeconfigPath()
	once := func() {}
	part := func(name string, run func(f *fixture, admin person)) {
		f.part(name, func(f *fixture) {
			run(f, person{f, admin.program, admin.kubeconfig})
		})
	}
	admin.findsNothing()

	part("the CA of the webhooks is wrong", func(f *fixture, admin person) {
		other, err := certs.NewCA(time.Now())
		if err != nil {
			f.Fatal(err)
		}
		m := &admissionv1.MutatingWebhookConfiguration{}
		wrong := func() {
			if err := f.client.Get(f.ctx, client.ObjectKey{Name: pki.MutatingWebhooks}, m); err != nil {
				f.Fatal(err)
			}
			m.Webhooks[0].ClientConfig.CABundle = other.Cert
			if err := f.client.Update(f.ctx, m); err != nil {
				f.Fatal(err)
			}
		}
		f.shell(admin.finds("Webhooks", "mutatingwebhookconfiguration atoll-pods: caBundle is not the CA of atoll-manager", wrong))
		admin.findsNothing()
	})
	part("webhooks are taken out, changed and led elsewhere", func(f *fixture, admin person) {
		m := &admissionv1.MutatingWebhookConfiguration{}
		if err := f.client.Get(f.ctx, client.ObjectKey{Name: pki.MutatingWebhooks}, m); err != nil {
			f.Fatal(err)
		}
		before := m.DeepCopy()
		for name, change := range map[string]func(*admissionv1.MutatingWebhookConfiguration){
			"none is left": func(m *admissionv1.MutatingWebhookConfiguration) { m.Webhooks = nil },
			"led elsewhere": func(m *admissionv1.MutatingWebhookConfiguration) {
				m.Webhooks[0].ClientConfig.URL = new("https://127.0.0.1:1/x")
			},
			"for no namespace": func(m *admissionv1.MutatingWebhookConfiguration) {
				m.Webhooks[0].NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"never": "x"}}
			},
			"for no pod at all": func(m *admissionv1.MutatingWebhookConfiguration) {
				m.Webhooks[0].Rules[0].Resources = []string{"services"}
			},
		} {
			m.Webhooks = before.DeepCopy().Webhooks
			change(m)
			if err := f.client.Update(f.ctx, m); err != nil {
				f.Fatal(err)
			}
			f.Log(name)
			admin.finds("Objects", "not as they were installed: MutatingWebhookConfiguration atoll-pods", once)
		}
		m.Webhooks = before.Webhooks
		if err := f.client.Update(f.ctx, m); err != nil {
			f.Fatal(err)
		}
		admin.findsNothing()
	})
	part("an admission policy is bound to another", func(f *fixture, admin person) {
		b := &admissionv1.ValidatingAdmissionPolicyBinding{}
		if err := f.client.Get(f.ctx, client.ObjectKey{Name: "atoll-manager-nodes"}, b); err != nil {
			f.Fatal(err)
		}
		before := b.Spec.PolicyName
		b.Spec.PolicyName = "gone"
		if err := f.client.Update(f.ctx, b); err != nil {
			f.Fatal(err)
		}
		admin.finds("Objects", "not as they were installed: ValidatingAdmissionPolicyBinding atoll-manager-nodes", once)
		b.Spec.PolicyName = before
		if err := f.client.Update(f.ctx, b); err != nil {
			f.Fatal(err)
		}
		admin.findsNothing()
	})
	part("the Service of the webhooks has no endpoints", func(f *fixture, admin person) {
		service := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: atoll.Namespace, Name: atoll.Manager},
			Spec:       corev1.ServiceSpec{Selector: map[string]string{"no": "pod"}, Ports: []corev1.ServicePort{{Port: 443}}},
		}
		f.create(service)
		v := &admissionv1.ValidatingWebhookConfiguration{}
		if err := f.client.Get(f.ctx, client.ObjectKey{Name: pki.ValidatingWebhooks}, v); err != nil {
			f.Fatal(err)
		}
		before := v.DeepCopy()
		for i := range v.Webhooks {
			v.Webhooks[i].ClientConfig.URL = nil
			v.Webhooks[i].ClientConfig.Service = &admissionv1.ServiceReference{Namespace: atoll.Namespace, Name: atoll.Manager}
		}
		if err := f.client.Update(f.ctx, v); err != nil {
			f.Fatal(err)
		}
		admin.finds("Webhooks", "Service atoll-system/atoll-manager has no endpoint that is Ready", once)
		admin.finds("Webhooks", "the API server does not reach them", once)
		v.Webhooks = before.Webhooks
		if err := f.client.Update(f.ctx, v); err != nil {
			f.Fatal(err)
		}
		admin.findsNothing()
	})
	part("a definition is another owner's, and one of another version", func(f *fixture, admin person) {
		crd := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "nodepools.apps.openyurt.io"}}
		crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
		f.label(crd, map[string]any{"app.kubernetes.io/part-of": "openyurt"})
		admin.finds("Definitions", `nodepools.apps.openyurt.io is another owner's: its label app.kubernetes.io/part-of is "openyurt"`, once)
		is := crd.Labels["app.kubernetes.io/version"]
		f.label(crd, map[string]any{"app.kubernetes.io/part-of": "atoll", "app.kubernetes.io/version": "0.0.9"})
		admin.finds("Versions", "nodepools.apps.openyurt.io is of version 0.0.9, and Atoll of "+is, once)
		f.label(crd, map[string]any{"app.kubernetes.io/version": is})
		admin.findsNothing()
	})
	part("an admission policy is deleted", func(f *fixture, admin person) {
		p := &admissionv1.ValidatingAdmissionPolicy{}
		if err := f.client.Get(f.ctx, client.ObjectKey{Name: "atoll-manager-nodes"}, p); err != nil {
			f.Fatal(err)
		}
		if err := f.client.Delete(f.ctx, p); err != nil {
			f.Fatal(err)
		}
		admin.finds("Objects", "missing: ValidatingAdmissionPolicy atoll-manager-nodes", once)
		p.ResourceVersion, p.UID = "", ""
		if err := f.client.Create(f.ctx, p); err != nil {
			f.Fatal(err)
		}
		admin.findsNothing()
	})
	part("rights of atoll-manager are cut", func(f *fixture, admin person) {
		role := &rbacv1.ClusterRole{}
		if err := f.client.Get(f.ctx, client.ObjectKey{Name: atoll.Manager}, role); err != nil {
			f.Fatal(err)
		}
		before := role.Rules
		role.Rules = role.Rules[1:]
		if err := f.client.Update(f.ctx, role); err != nil {
			f.Fatal(err)
		}
		admin.finds("Rights", "not as they were installed: ClusterRole atoll-manager", once)
		role.Rules = before
		if err := f.client.Update(f.ctx, role); err != nil {
			f.Fatal(err)
		}
		admin.findsNothing()
	})
	part("the scheduler of the form does not run", func(f *fixture, admin person) {
		restart := f.killForNow(atoll.Scheduler)
		admin.finds("Scheduling", "the second kube-scheduler, atoll-scheduler, does not run", once)
		restart()
		admin.findsNothing()
	})
	part("no replica leads, and the certificate for the extender expired meanwhile", func(f *fixture, admin person) {
		restart := f.killForNow(atoll.Manager)
		admin.finds("Leader", "no replica of atoll-manager leads", once)
		admin.finds("Webhooks", "the API server does not reach them", once)
		ca, err := certs.NewCA(time.Now().AddDate(-2, 0, 0))
		if err != nil {
			f.Fatal(err)
		}
		expired, err := certs.Issue(ca, certs.Leaf{CommonName: pki.ClientName}, time.Now().AddDate(-2, 0, 0))
		if err != nil {
			f.Fatal(err)
		}
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: atoll.Namespace, Name: pki.ClientSecret}}
		f.patch(secret, map[string]any{"data": map[string]any{corev1.TLSCertKey: expired.Cert}})
		command := admin.finds("Certificates", "tls.crt: it expired at", once)
		restart()
		f.shell(command)
		admin.findsNothing()
	})
	part("a kubelet reports, and what it reads is old", func(f *fixture, admin person) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "reads-what-is-old"}}
		f.create(node)
		f.Cleanup(func() { _ = f.client.Delete(f.Context(), node) })
		now := metav1.Now()
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: now, LastTransitionTime: now, Reason: "KubeletReady"}}
		if err := f.client.Status().Update(f.ctx, node); err != nil {
			f.Fatal(err)
		}
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "not-taken"},
			Spec: corev1.PodSpec{
				NodeName: node.Name, Containers: []corev1.Container{{Name: "c", Image: "app"}},
				Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			},
		}
		f.create(pod)
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-3 * time.Minute))}}
		if err := f.client.Status().Update(f.ctx, pod); err != nil {
			f.Fatal(err)
		}
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: node.Name}}
		if err := f.client.Create(f.ctx, lease); err != nil {
			f.Fatal(err)
		}
		f.Cleanup(func() { _ = f.client.Delete(f.Context(), lease) })
		admin.finds("Nodes", "node reads-what-is-old reports, and has not seen pod "+f.ns+"/not-taken", func() {
			lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
			if err := f.client.Update(f.ctx, lease); err != nil {
				f.Fatal(err)
			}
		})
		if err := f.client.Delete(f.ctx, pod, client.GracePeriodSeconds(0)); err != nil {
			f.Fatal(err)
		}
		admin.findsNothing()
	})
	part("what a person may not read is said", func(f *fixture, admin person) {
		f.mayView("looks")
		if _, _, err := as("looks").examine(); err == nil || !strings.Contains(err.Error(), "you may not get configmaps in namespace atoll-system: ClusterRole view has the right") {
			f.Errorf("without the right to read the namespace: %v", err)
		}
		view := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: atoll.Namespace, Name: "looks"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "looks"}},
		}
		f.create(view)
		f.eventually(patience, "the rest is shown", func() error {
			report, faulty, err := as("looks").examine()
			if err != nil || faulty || !strings.Contains(strings.Join(report.Unread, "\n"), "you may not get clusterroles.rbac.authorization.k8s.io: ClusterRole cluster-admin has the right") {
				return fmt.Errorf("%+v, %w", report, err)
			}
			return nil
		})
	})
}
