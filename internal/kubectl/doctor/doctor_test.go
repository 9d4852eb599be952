package doctor

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/atoll-k8s/atoll/internal/machinery/certs"
)

var now = time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)

func lease(name string, renewed time.Time) coordinationv1.Lease {
	return coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To(name + "-1"), LeaseDurationSeconds: ptr.To[int32](15), RenewTime: &metav1.MicroTime{Time: renewed}},
	}
}

func deployment(name, image string, args ...string) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app.kubernetes.io/version": "0.1.0", "app.kubernetes.io/part-of": "atoll"}},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](2),
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: image, Args: args}}}},
		},
		Status: appsv1.DeploymentStatus{ReadyReplicas: 2, UpdatedReplicas: 2},
	}
}

// add adds an object to those that the chart has installed, and that exist.
func (o *Observed) add(t *testing.T, kind string, object metav1.Object) {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		t.Fatal(err)
	}
	want := Object{Kind: kind, Namespace: object.GetNamespace(), Name: object.GetName()}
	o.Objects = append(o.Objects, want)
	o.There[want] = &unstructured.Unstructured{Object: content}
}

// healthy is an installation in a form, of which nothing is wrong.
func healthy(t *testing.T, mode string) *Observed {
	t.Helper()
	ca, err := certs.NewCA(now)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := certs.Issue(ca, certs.Leaf{CommonName: "x"}, now)
	if err != nil {
		t.Fatal(err)
	}
	leader, second := lease(manager, now.Add(-2*time.Second)), lease(scheduler, now.Add(-2*time.Second))
	o := &Observed{
		Namespace: "atoll-system", Version: "0.1.0", Own: "devel", Mode: mode, Server: "v1.35.2+k3s1", Release: "atoll", Now: now,
		There: map[Object]*unstructured.Unstructured{}, Unread: map[Object]bool{}, Hidden: map[any]bool{}, Unprobed: true,
		Secret: &corev1.Secret{Data: map[string][]byte{"ca.crt": ca.Cert, "tls.crt": leaf.Cert}},
		Leader: &leader, Scheduler: &second,
		Nodes: corev1.NodeList{Items: []corev1.Node{{
			ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		}}},
		Heartbeats: coordinationv1.LeaseList{Items: []coordinationv1.Lease{lease("n", now.Add(-5*time.Second)), lease("gone", now.Add(time.Hour))}},
	}
	args := map[string][]string{"Pinned": {"--assignment=Early"}, "Isolated": {"--scheduler-name=atoll-scheduler"}}
	o.add(t, "Deployment", deployment(manager, "atoll-manager:0.1.0", args[mode]...))
	if mode == "Isolated" {
		o.add(t, "Deployment", deployment(scheduler, "registry.example:5000/kube-scheduler:v1.35.9"))
	}
	return o
}

// change changes a Deployment of an installation.
func (o *Observed) change(t *testing.T, name string, to *appsv1.Deployment) {
	t.Helper()
	to.Name = name
	o.Objects, o.There = nil, map[Object]*unstructured.Unstructured{}
	o.add(t, "Deployment", to)
}

// TestDoctor: what is wrong is named, beside a command. The e2e tests break a real installation;
// here are the faults that need other clusters.
func TestDoctor(t *testing.T) {
	pod := func(change func(*corev1.Pod)) corev1.PodList {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))}}
		change(&p)
		return corev1.PodList{Items: []corev1.Pod{p}}
	}
	kubeScheduler := func(args ...string) corev1.PodList {
		return pod(func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{{Command: args}} })
	}
	for name, c := range map[string]struct {
		mode   string
		breaks func(*Observed)
		// what and command are "" if nothing is wrong.
		what, command string
	}{
		"nothing, Pinned":   {mode: "Pinned"},
		"nothing, Isolated": {mode: "Isolated"},
		"nothing, Plain":    {mode: "Plain", breaks: func(o *Observed) { o.Schedulers = kubeScheduler("kube-scheduler", "--config=/etc/x.yaml") }},
		"a replica is not Ready": {
			"Pinned", func(o *Observed) {
				d := deployment("", "x", "--assignment=Early")
				d.Status.ReadyReplicas = 1
				o.change(t, manager, d)
			}, "1 of 2 replicas are Ready", "kubectl -n atoll-system describe pods -l app.kubernetes.io/name=atoll-manager",
		},
		"scaled to nothing": {
			"Pinned", func(o *Observed) {
				d := deployment("", "x", "--assignment=Early")
				d.Spec.Replicas = ptr.To[int32](0)
				o.change(t, manager, d)
			}, "it has 0 replicas", "kubectl -n atoll-system scale deployment atoll-manager --replicas=2",
		},
		"an old revision runs": {
			"Pinned", func(o *Observed) {
				d := deployment("", "x", "--assignment=Early")
				d.Status.UpdatedReplicas = 1
				o.change(t, manager, d)
			}, "1 of 2 replicas are of the newest revision", "kubectl -n atoll-system rollout status deployment atoll-manager",
		},
		"the leader ended": {
			"Pinned", func(o *Observed) { o.Leader.Spec.HolderIdentity = ptr.To("") }, "nobody holds the Lease", "kubectl -n atoll-system logs deployment/atoll-manager --tail=50",
		},
		"atoll-manager is of another form": {
			"Isolated", func(o *Observed) { o.change(t, manager, deployment("", "x", "--assignment=Early")) },
			"atoll-manager runs with --assignment=Early, which is for the form Pinned and not for Isolated", "helm -n atoll-system get manifest atoll | kubectl apply",
		},
		"kube-scheduler has no extender": {
			"Plain", func(o *Observed) { o.Schedulers = kubeScheduler("kube-scheduler", "--leader-elect=true") },
			"runs without --config, so it does not call the extender", "get configmap atoll-kube-scheduler",
		},
		"a pod waits for a scheduler that the form does not have": {
			"Pinned", func(o *Observed) { o.Pods = pod(func(p *corev1.Pod) { p.Spec.SchedulerName = scheduler }) },
			"pod shop/web-1 waits for atoll-scheduler, which the form Pinned does not have", "kubectl -n shop get pod web-1",
		},
		"this program is older": {
			"Pinned", func(o *Observed) { o.Own = "0.0.9" }, "this kubectl-atoll is of version 0.0.9, and Atoll of 0.1.0", "kubectl krew upgrade atoll",
		},
		"the second kube-scheduler is newer than the API server": {
			"Isolated", func(o *Observed) { o.Server = "v1.34.7-eks-abc" },
			"atoll-scheduler is kube-scheduler v1.35.9, newer than the API server, v1.34.7-eks-abc", "set image deployment/atoll-scheduler kube-scheduler=registry.example:5000/kube-scheduler:v1.34.7",
		},
		"the second kube-scheduler is of the API server's own minor version": {mode: "Isolated", breaks: func(o *Observed) { o.Server = "v1.35.2-gke.7" }},
		"what may not be read is not wrong": {mode: "Isolated", breaks: func(o *Observed) {
			o.Leader, o.Scheduler, o.Secret, o.Nodes.Items, o.Heartbeats.Items = nil, nil, nil, nil, nil
			for _, field := range []any{&o.Leader, &o.Scheduler, &o.Secret, &o.Nodes, &o.Heartbeats, &o.Endpoints, &o.Pods} {
				o.Hidden[field] = true
			}
		}},
		"the Secret is deleted": {"Pinned", func(o *Observed) { o.Secret = nil }, "there is no Secret atoll-system/atoll-extender-client", "get secrets"},
		"a clock is ahead": {
			"Pinned", func(o *Observed) { o.Heartbeats.Items[0] = lease("n", now.Add(25*time.Second)) },
			"the clock of node n is 25s ahead of that of the API server", "timedatectl",
		},
		"a certificate was not renewed": {
			"Isolated", func(o *Observed) { o.Now = now.AddDate(0, 0, 360) }, "it expires at 2027-11-30, and was not renewed", "delete secret atoll-extender-client",
		},
		"no certificate": {
			"Isolated", func(o *Observed) { o.Secret.Data["tls.crt"] = []byte("x") }, "Secret atoll-system/atoll-extender-client, tls.crt: ", "delete secret atoll-extender-client",
		},
		"a pod that its kubelet has seen": {
			mode: "Pinned", breaks: func(o *Observed) {
				o.Pods = pod(func(p *corev1.Pod) { p.Spec.NodeName, p.Status.StartTime = "n", ptr.To(metav1.NewTime(now)) })
			},
		},
		"a pod of a node that is silent": {
			mode: "Pinned", breaks: func(o *Observed) {
				o.Pods = pod(func(p *corev1.Pod) { p.Spec.NodeName = "n" })
				o.Heartbeats.Items[0] = lease("n", now.Add(-time.Minute))
			},
		},
		"a pod that was bound just now": {
			mode: "Pinned", breaks: func(o *Observed) {
				o.Pods = pod(func(p *corev1.Pod) {
					p.Spec.NodeName = "n"
					p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-time.Minute))}}
				})
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := healthy(t, c.mode)
			if c.breaks != nil {
				c.breaks(o)
			}
			report := Of(o)
			if report.Faulty() != (c.what != "") {
				t.Errorf("faulty: %+v", report.Checks)
			}
			found := c.what == ""
			for _, check := range report.Checks {
				for _, fault := range check.Faults {
					found = found || strings.Contains(fault.What, c.what) && strings.Contains(fault.Command, c.command)
				}
			}
			if !found {
				t.Errorf("it does not say %q: %+v", c.what, report.Checks)
			}
		})
	}
}

// TestWhatIsInstalled: what is missing, what was changed, and what the person may not read.
func TestWhatIsInstalled(t *testing.T) {
	o := healthy(t, "Pinned")
	role := &unstructured.Unstructured{Object: map[string]any{"rules": []any{map[string]any{"verbs": []any{"get"}}}}}
	content, err := contentOf(role)
	if err != nil {
		t.Fatal(err)
	}
	const rbac = "rbac.authorization.k8s.io/v1"
	kept := Object{APIVersion: rbac, Kind: "ClusterRole", Name: "kept", Content: content}
	changed := Object{APIVersion: rbac, Kind: "Role", Namespace: "atoll-pools", Name: "changed", Content: "0123"}
	hidden := Object{APIVersion: rbac, Kind: "ClusterRole", Name: "hidden", Content: content}
	o.Objects = append(o.Objects, kept, changed, hidden, Object{APIVersion: "v1", Kind: "Service", Namespace: "atoll-system", Name: "gone"}, Object{Kind: definition, Name: "gone.example.com"})
	o.There[kept], o.There[changed], o.Unread[hidden] = role, role, true
	var have []string
	for _, check := range Of(o).Checks {
		for _, fault := range check.Faults {
			have = append(have, check.Name+": "+fault.What)
		}
	}
	want := "Objects: missing: Service atoll-system/gone\nRights: not as they were installed: Role atoll-pools/changed\nDefinitions: CustomResourceDefinition gone.example.com is missing"
	if got := strings.Join(have, "\n"); got != want {
		t.Errorf("it says\n%s\nwant\n%s", got, want)
	}
}
