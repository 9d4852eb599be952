package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
)

// sites creates NodePools of two simulated nodes each.
func (f *fixture) sites(names ...string) {
	f.Helper()
	for _, name := range names {
		f.nodes(map[string]string{apps.NodePoolLabel: name}, name+"-0", name+"-1")
		f.pools(poolOf(name, apps.NodePoolSpec{}))
	}
}

// pool returns a pool with the given number of pods.
func pool(name string, replicas any, modify ...func(*apps.Pool)) apps.Pool {
	p := apps.Pool{Name: name}
	switch n := replicas.(type) {
	case int:
		p.Replicas = new(intstr.FromInt32(int32(n)))
	case string:
		p.Replicas = new(intstr.FromString(n))
	}
	for _, m := range modify {
		m(&p)
	}
	return p
}

func patchedBy(patch string) func(*apps.Pool) {
	return func(p *apps.Pool) { p.Patch = &runtime.RawExtension{Raw: []byte(patch)} }
}

// podTemplate returns a minimal template of pods.
func podTemplate(app string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64),
			Containers:                    []corev1.Container{{Name: "app", Image: "nginx:1.27"}},
		},
	}
}

// united makes a UnitedDeployment of Deployments.
func united(name string, pools ...apps.Pool) *apps.UnitedDeployment {
	return &apps.UnitedDeployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: apps.UnitedDeploymentSpec{
			Selector:         &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			WorkloadTemplate: apps.WorkloadTemplate{DeploymentTemplate: &apps.DeploymentTemplateSpec{Spec: appsv1.DeploymentSpec{Template: podTemplate(name)}}},
			Topology:         apps.Topology{Pools: pools},
		},
	}
}

// ud reads a UnitedDeployment.
func (f *fixture) ud(name string) *apps.UnitedDeployment {
	f.Helper()
	ud := &apps.UnitedDeployment{}
	if err := f.client.Get(f.ctx, types.NamespacedName{Namespace: f.ns, Name: name}, ud); err != nil {
		f.Fatal(err)
	}
	return ud
}

// change changes a UnitedDeployment, with retries after conflicts.
func (f *fixture) change(name string, change func(*apps.UnitedDeployment)) {
	f.Helper()
	f.eventually(patience, "the change is taken", func() error {
		ud := f.ud(name)
		change(ud)
		return f.client.Update(f.ctx, ud)
	})
}

// setImage starts a release with another image.
func (f *fixture) setImage(name, image string) {
	f.Helper()
	f.change(name, func(ud *apps.UnitedDeployment) { podsOfTemplate(ud).Spec.Containers[0].Image = image })
}

func podsOfTemplate(ud *apps.UnitedDeployment) *corev1.PodTemplateSpec {
	switch t := &ud.Spec.WorkloadTemplate; {
	case t.DeploymentTemplate != nil:
		return &t.DeploymentTemplate.Spec.Template
	case t.StatefulSetTemplate != nil:
		return &t.StatefulSetTemplate.Spec.Template
	default:
		return &t.DaemonSetTemplate.Spec.Template
	}
}

// isDone returns an error unless every pool of a UnitedDeployment matches its spec.
func (f *fixture) isDone(name string) error {
	ud := f.ud(name)
	s := &ud.Status
	if s.ObservedGeneration != ud.Generation || s.CurrentRevision == "" || s.CurrentRevision != s.UpdateRevision || len(s.Pools) != len(ud.Spec.Topology.Pools) ||
		!meta.IsStatusConditionTrue(s.Conditions, apps.ConditionReady) || !meta.IsStatusConditionTrue(s.Conditions, apps.PoolUpdated) || !meta.IsStatusConditionTrue(s.Conditions, apps.PoolProvisioned) ||
		!meta.IsStatusConditionFalse(s.Conditions, apps.PoolFailure) {
		return fmt.Errorf("generation %d, status %s", ud.Generation, asJSON(s))
	}
	for _, p := range s.Pools {
		if p.Phase != apps.PoolReady || p.Replicas != p.DesiredReplicas || p.ReadyReplicas != p.DesiredReplicas {
			return fmt.Errorf("pool %s", asJSON(p))
		}
	}
	return nil
}

func (f *fixture) done(name string) {
	f.Helper()
	f.eventually(patience, name+" is done", func() error { return f.isDone(name) })
}

func asJSON(o any) string {
	raw, err := json.Marshal(o)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// deploymentOf reads a pool's Deployment.
func (f *fixture) deploymentOf(name string) *appsv1.Deployment {
	f.Helper()
	d, err := f.kube.AppsV1().Deployments(f.ns).Get(f.ctx, name, metav1.GetOptions{})
	if err != nil {
		f.Fatal(err)
	}
	return d
}

// podsByPool counts a workload's bound pods by their pool. A pod on a node of another
// pool is an error.
func (f *fixture) podsByPool(app string) map[string]int {
	f.Helper()
	counts := map[string]int{}
	for _, pod := range f.pods(app) {
		p := pod.Labels[apps.PoolNameLabel]
		if node := pod.Spec.NodeName; node != "" && !strings.HasPrefix(node, p+"-") {
			f.Errorf("a pod of pool %s is on node %s", p, node)
		}
		counts[p]++
	}
	return counts
}

// uidsByPool returns the UIDs of the existing pods, by pool.
func (f *fixture) uidsByPool(app string) map[string][]types.UID {
	f.Helper()
	uids := map[string][]types.UID{}
	for _, pod := range f.pods(app) {
		p := pod.Labels[apps.PoolNameLabel]
		uids[p] = append(uids[p], pod.UID)
	}
	for _, list := range uids {
		slices.Sort(list)
	}
	return uids
}

// condition waits for a condition with a status and a reason, and returns its message.
func (f *fixture) condition(name, kind string, status metav1.ConditionStatus, reason string) string {
	f.Helper()
	var message string
	f.eventually(patience, fmt.Sprintf("%s is %s, %s", kind, status, reason), func() error {
		ud := f.ud(name)
		c := meta.FindStatusCondition(ud.Status.Conditions, kind)
		if c == nil || c.Status != status || c.Reason != reason || c.ObservedGeneration != ud.Generation {
			return fmt.Errorf("it is %s; pools %s", asJSON(c), asJSON(ud.Status.Pools))
		}
		message = c.Message
		return nil
	})
	return message
}

// phases returns the pools' phases.
func (f *fixture) phases(name string) map[string]apps.PoolPhase {
	f.Helper()
	out := map[string]apps.PoolPhase{}
	for _, p := range f.ud(name).Status.Pools {
		out[p.Name] = p.Phase
	}
	return out
}

func (f *fixture) phasesAre(name string, want map[string]apps.PoolPhase) {
	f.Helper()
	f.eventually(patience, fmt.Sprintf("the pools are %v", want), func() error {
		if got := f.phases(name); !maps.Equal(got, want) {
			return fmt.Errorf("they are %v: %s", got, asJSON(f.ud(name).Status))
		}
		return nil
	})
}

// revisions lists the ControllerRevisions of a UnitedDeployment, the oldest first.
func (f *fixture) revisions(name string) []appsv1.ControllerRevision {
	f.Helper()
	list, err := f.kube.AppsV1().ControllerRevisions(f.ns).List(f.ctx, metav1.ListOptions{LabelSelector: apps.UnitedDeploymentLabel + "=" + name})
	if err != nil {
		f.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b appsv1.ControllerRevision) int { return int(a.Revision - b.Revision) })
	return list.Items
}

// writes counts the write requests to the API server for Atoll's kinds and for workloads,
// without the statuses of workloads, which their controllers write.
func (f *fixture) writes() map[string]int {
	f.Helper()
	raw, err := f.kube.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(f.ctx)
	if err != nil {
		f.Fatal(err)
	}
	counts := map[string]int{}
	for line := range strings.SplitSeq(string(raw), "\n") {
		labels, count, found := strings.Cut(strings.TrimPrefix(line, "apiserver_request_total{"), "} ")
		if !found || !strings.HasPrefix(line, "apiserver_request_total{") {
			continue
		}
		l := map[string]string{}
		for pair := range strings.SplitSeq(labels, ",") {
			key, value, _ := strings.Cut(pair, "=")
			l[key] = strings.Trim(value, `"`)
		}
		read := slices.Contains([]string{"GET", "LIST", "WATCH"}, l["verb"])
		workload := slices.Contains([]string{"deployments", "statefulsets", "daemonsets", "controllerrevisions"}, l["resource"])
		if ours := l["resource"] == "uniteddeployments" || workload && l["subresource"] == ""; read || !ours {
			continue
		}
		if l["verb"] == "DELETE" && l["scope"] == "namespace" {
			continue // the namespace of an earlier test is being deleted
		}
		n := 0
		if _, err := fmt.Sscan(count, &n); err != nil {
			f.Fatal(err)
		}
		counts[l["verb"]+" "+l["resource"]+"/"+l["subresource"]] += n
	}
	return counts
}

// orphaning deletes an object and keeps its dependents.
func (f *fixture) orphaning(o client.Object) {
	f.Helper()
	if err := f.client.Delete(f.ctx, o, client.PropagationPolicy(metav1.DeletePropagationOrphan)); err != nil {
		f.Fatal(err)
	}
}
