package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

// patience is the default time limit without progress.
const patience = 2 * time.Minute

// namespacePrefix is the prefix of the names of the tests' namespaces.
const namespacePrefix = "e2e-"

// fixture is one test's part of a cluster: a namespace, nodes and clients.
type fixture struct {
	*testing.T
	ctx context.Context
	ns  string
	environment
}

// newFixture returns a fixture in the cluster with the chart's default installation.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	return common.fixture(t)
}

// newFixtureOfItsOwn returns a fixture in a cluster of its own.
func newFixtureOfItsOwn(t *testing.T, o atoll.Options) *fixture {
	t.Helper()
	own, done, err := newEnvironment(t.Context(), o, false)
	t.Cleanup(func() {
		if err := done(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return newFixtureIn(t, own)
}

func newFixtureIn(t *testing.T, e environment) *fixture {
	t.Helper()
	f := &fixture{T: t, environment: e}
	f.lastsUpTo(10 * time.Minute)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: namespacePrefix}}
	f.create(ns)
	f.ns = ns.Name
	f.watch.owns(t.Name(), f.ns)
	began := time.Now()
	f.Cleanup(func() {
		if f.Failed() {
			f.showLog(atoll.Manager, began)
		}
		f.ctx = context.Background()
		f.clear()
		if err := f.kube.CoreV1().Namespaces().Delete(f.ctx, ns.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return f
}

// showLog logs the last entries that a process of the cluster has written since a time,
// without those for debugging, because the log is deleted with the cluster. Entries without
// a time that can be read are logged too.
func (f *fixture) showLog(process string, since time.Time) {
	f.Helper()
	const most = 60
	raw, err := os.ReadFile(f.cluster.LogPath(process))
	if err != nil {
		f.Log(err)
		return
	}
	var lines []string
	for line := range strings.Lines(string(raw)) {
		var entry struct {
			Level string    `json:"level"`
			Time  time.Time `json:"ts"`
		}
		if json.Unmarshal([]byte(line), &entry) == nil && (entry.Level == "debug" || entry.Time.Before(since.Truncate(time.Second))) {
			continue
		}
		lines = append(lines, line)
	}
	f.Logf("the last entries of the log of %s:\n%s", process, strings.Join(lines[max(0, len(lines)-most):], ""))
}

// lastsUpTo sets the remaining time limit of the test.
func (f *fixture) lastsUpTo(d time.Duration) {
	var cancel context.CancelFunc
	f.ctx, cancel = context.WithTimeout(f.T.Context(), d)
	f.Cleanup(cancel)
}

// clear deletes the workloads and pods of the namespace, so that they do not disturb
// other tests while the namespace is deleted: Kubernetes waits 5 s before it begins.
func (f *fixture) clear() {
	f.Helper()
	for _, kind := range []client.Object{
		&apps.UnitedDeployment{}, &appsv1.Deployment{}, &appsv1.StatefulSet{}, &appsv1.DaemonSet{}, &appsv1.ReplicaSet{}, &batchv1.CronJob{}, &batchv1.Job{},
	} {
		f.eventually(patience, fmt.Sprintf("every %T is deleted", kind), func() error { // deleting thousands takes longer than the timeout of one request
			return f.client.DeleteAllOf(f.ctx, kind, client.InNamespace(f.ns), client.PropagationPolicy(metav1.DeletePropagationBackground))
		})
	}
	f.eventually(patience, "the pods go", func() error {
		if err := f.client.DeleteAllOf(f.ctx, &corev1.Pod{}, client.InNamespace(f.ns), client.GracePeriodSeconds(0)); err != nil {
			return err
		}
		var pods corev1.PodList
		if err := f.client.List(f.ctx, &pods, client.InNamespace(f.ns), client.Limit(1)); err != nil || len(pods.Items) > 0 {
			return fmt.Errorf("there are some: %w", err)
		}
		return nil
	})
}

// namespacesGo reports the namespaces of tests that are not deleted: Atoll must not block
// the deletion of one.
func (e environment) namespacesGo(ctx context.Context) error {
	var left []string
	err := wait.PollUntilContextTimeout(ctx, time.Second, patience, true, func(ctx context.Context) (bool, error) {
		list, err := e.kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, nil //nolint:nilerr // it is tried again
		}
		left = nil
		for i := range list.Items {
			if strings.HasPrefix(list.Items[i].Name, namespacePrefix) {
				left = append(left, list.Items[i].Name)
			}
		}
		return len(left) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("namespaces do not go: %v: %w", left, err)
	}
	return nil
}

// eventually polls with growing intervals until check returns nil, because most checks
// list pods and the clusters share few cores. A check with the limit patience may take
// four times as long if it makes progress, as on a busy machine.
func (f *fixture) eventually(within time.Duration, what string, check func() error) {
	f.Helper()
	began := time.Now()
	end, atMost := began.Add(within), began.Add(within)
	if within >= patience {
		atMost = began.Add(4 * within)
	}
	pause := wait.Backoff{Duration: 50 * time.Millisecond, Factor: 1.2, Cap: 300 * time.Millisecond, Steps: math.MaxInt}
	for before := ""; ; {
		asked := time.Now()
		last := check()
		if last == nil {
			return
		}
		now := time.Now()
		if is := last.Error(); is != before {
			before, end = is, now.Add(within)
		}
		if now.After(end) || now.After(atMost) {
			f.Fatalf("%s: not within %s: %v", what, now.Sub(began).Round(time.Second), last)
		}
		select {
		case <-time.After(max(pause.Step(), restAfter(now.Sub(asked)))):
		case <-f.ctx.Done():
			f.Fatalf("%s: %v: %v", what, context.Cause(f.ctx), last)
		}
	}
}

// restAfter returns how long a test rests after a check that took so long. On a busy machine
// checks take longer, and without rests they would make it busier.
func restAfter(check time.Duration) time.Duration { return min(3*check, 2*time.Second) }

// always polls for the given time and fails when check fails.
func (f *fixture) always(during time.Duration, what string, check func() error) {
	f.Helper()
	_ = wait.PollUntilContextTimeout(f.ctx, 100*time.Millisecond, during, true, func(ctx context.Context) (bool, error) {
		asked := time.Now()
		if err := check(); err != nil {
			f.Fatalf("%s: %v", what, err)
		}
		select {
		case <-time.After(restAfter(time.Since(asked))):
		case <-ctx.Done():
		}
		return false, nil
	})
}

// create creates an object that is deleted with the test. In forms with an extender,
// policies without an assignment become Late, so that the extender is tested.
func (f *fixture) create(objects ...client.Object) {
	f.Helper()
	for _, o := range objects {
		if o.GetNamespace() == "" && f.ns != "" && !clusterScoped(o) {
			o.SetNamespace(f.ns)
		}
		if p, ok := o.(*gm.PropagationPolicy); ok && p.Spec.Assignment == "" && f.form != atoll.Pinned {
			p.Spec.Assignment = gm.AssignmentLate
		}
		if err := f.client.Create(f.ctx, o); err != nil {
			f.Fatalf("creating %T %s: %v", o, o.GetName(), err)
		}
	}
}

func clusterScoped(o client.Object) bool {
	switch o.(type) {
	case *corev1.Namespace, *gm.NodeGroup, *apps.NodePool, *corev1.Node:
		return true
	}
	return false
}

// nodes adds simulated nodes that are removed with the test.
func (f *fixture) nodes(labels map[string]string, names ...string) {
	f.Helper()
	specs := make([]devcluster.NodeSpec, len(names))
	for i, name := range names {
		specs[i] = devcluster.NodeSpec{Name: name, Labels: labels}
	}
	if err := f.cluster.AddNodes(f.ctx, specs...); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		var workers sync.WaitGroup
		for part := range slices.Chunk(names, max(1, len(names)/16)) {
			workers.Go(func() {
				for _, name := range part {
					err := f.kube.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{})
					if err != nil && !apierrors.IsNotFound(err) {
						f.Error(err)
					}
				}
			})
		}
		workers.Wait()
	})
}

// group creates a NodeGroup of n new simulated nodes, which are named after it.
func (f *fixture) group(name string, n int) {
	f.Helper()
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", name, i)
	}
	f.nodes(map[string]string{"test-group": name}, names...)
	f.nodeGroup(&gm.NodeGroup{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       gm.NodeGroupSpec{MatchLabels: map[string]string{"test-group": name}},
	})
	f.eventually(patience, "the NodeGroup has its nodes", func() error {
		if err := f.contains(name, names...); err != nil {
			return err
		}
		groups := f.groupsOfNodes() // the status may be there before the last label is
		for _, node := range names {
			if groups[node] != name {
				return fmt.Errorf("node %s has the NodeGroup %q", node, groups[node])
			}
		}
		return nil
	})
}

// nodeGroup creates a NodeGroup that is deleted with the test.
func (f *fixture) nodeGroup(group *gm.NodeGroup) {
	f.Helper()
	f.create(group)
	f.Cleanup(func() {
		f.ctx = context.Background()
		f.deleteNodeGroup(group.Name)
	})
}

func (f *fixture) deleteNodeGroup(name string) {
	f.Helper()
	group := &gm.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: name}}
	confirmed := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"true"}}}`, gm.ConfirmDeletionAnnotation)
	if err := f.client.Patch(f.ctx, group, client.RawPatch(types.MergePatchType, confirmed)); client.IgnoreNotFound(err) != nil {
		f.Fatal(err)
	}
	err := f.client.Delete(f.ctx, group)
	if client.IgnoreNotFound(err) != nil {
		f.Fatal(err)
	}
	f.eventually(patience, "the NodeGroup goes", func() error {
		err := f.client.Get(f.ctx, types.NamespacedName{Name: name}, &gm.NodeGroup{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("NodeGroup %q is still there: %w", name, err)
	})
}

func (f *fixture) contains(group string, want ...string) error {
	var g gm.NodeGroup
	if err := f.client.Get(f.ctx, types.NamespacedName{Name: group}, &g); err != nil {
		return err
	}
	if got := strings.Join(g.Status.ContainedNodes, " "); got != strings.Join(want, " ") {
		return fmt.Errorf("NodeGroup %q contains [%s], want %v", group, got, want)
	}
	return nil
}

// weights returns a PropagationPolicy from pairs of group and weight.
func weights(name string, pairs ...any) *gm.PropagationPolicy {
	p := &gm.PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.PropagationStrategy = gm.StaticWeightPropagationStrategy
	for i := 0; i < len(pairs); i += 2 {
		p.Spec.StaticWeight = append(p.Spec.StaticWeight, gm.StaticNodeGroupWeight{
			NodeGroupNames: []string{pairs[i].(string)}, Weight: int64(pairs[i+1].(int)),
		})
	}
	return p
}

// deployment returns a Deployment that requires a policy, or none if the name is "".
func deployment(name string, replicas int32, policy string, modify ...func(*appsv1.Deployment)) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: new(int64),
					Containers:                    []corev1.Container{{Name: "app", Image: "nginx:1.27"}},
				},
			},
		},
	}
	if policy != "" {
		d.Labels[gm.RequiredPropagationPolicyLabel] = policy
	}
	for _, m := range modify {
		m(d)
	}
	return d
}

// pods returns the active pods of a workload, by the label app.
func (f *fixture) pods(app string) []corev1.Pod {
	f.Helper()
	list, err := f.kube.CoreV1().Pods(f.ns).List(f.ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		f.Fatal(err)
	}
	active := list.Items[:0]
	for _, pod := range list.Items {
		if pod.DeletionTimestamp == nil {
			active = append(active, pod)
		}
	}
	return active
}

// groupsOfNodes are the NodeGroups of all nodes, by their labels.
func (f *fixture) groupsOfNodes() map[string]string {
	f.Helper()
	nodes, err := f.kube.CoreV1().Nodes().List(f.ctx, metav1.ListOptions{})
	if err != nil {
		f.Fatal(err)
	}
	group := map[string]string{}
	for _, n := range nodes.Items {
		group[n.Name] = n.Labels[gm.NodeGroupLabel]
	}
	return group
}

// spread counts a workload's bound pods by the group of their node.
func (f *fixture) spread(app string) map[string]int {
	f.Helper()
	group := f.groupsOfNodes()
	counts := map[string]int{}
	for _, pod := range f.pods(app) {
		if pod.Spec.NodeName != "" {
			counts[group[pod.Spec.NodeName]]++
		}
	}
	return counts
}

// spreadIs returns an error unless a workload's bound pods have exactly the given spread.
func (f *fixture) spreadIs(app string, want map[string]int) error {
	if got := f.spread(app); fmt.Sprint(got) != fmt.Sprint(want) {
		return fmt.Errorf("%s is spread %v, want %v", app, got, want)
	}
	return nil
}

// allReady returns an error unless a workload has n active pods, all of them Ready.
func (f *fixture) allReady(app string, n int) error {
	return readyOf(app, f.pods(app), n)
}

func readyOf(app string, pods []corev1.Pod, n int) error {
	ready := 0
	for i := range pods {
		if podReady(&pods[i]) {
			ready++
		}
	}
	if len(pods) != n || ready != n {
		return fmt.Errorf("%s has %d pods, %d Ready, want %d%s", app, len(pods), ready, n, notReady(pods))
	}
	return nil
}

// notReady describes a few pods that are not Ready, with the reasons.
func notReady(pods []corev1.Pod) string {
	var b strings.Builder
	shown := 0
	for i := range pods {
		pod := &pods[i]
		if podReady(pod) {
			continue
		}
		if shown++; shown > 3 {
			break
		}
		fmt.Fprintf(&b, "; %s on %q %s", pod.Name, pod.Spec.NodeName, pod.Status.Phase)
		if pod.DeletionTimestamp != nil {
			b.WriteString(" terminating")
		}
		for _, gate := range pod.Spec.SchedulingGates {
			b.WriteString(" gate " + gate.Name)
		}
		for _, c := range pod.Status.Conditions {
			if c.Status != corev1.ConditionTrue {
				fmt.Fprintf(&b, " %s=%s %s %.120s", c.Type, c.Status, c.Reason, c.Message)
			}
		}
	}
	return b.String()
}

func podReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// scale sets a workload's replicas.
func (f *fixture) scale(app string, replicas int) {
	f.Helper()
	f.patch(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: app, Namespace: f.ns}}, map[string]any{"spec": map[string]any{"replicas": replicas}})
}

// label sets labels of an object; nil values remove them.
func (f *fixture) label(o client.Object, labels map[string]any) {
	f.Helper()
	f.patch(o, map[string]any{"metadata": map[string]any{"labels": labels}})
}

func (f *fixture) patch(o client.Object, patch any) {
	f.Helper()
	raw, err := json.Marshal(patch)
	if err != nil {
		f.Fatal(err)
	}
	if err := f.client.Patch(f.ctx, o, client.RawPatch(types.MergePatchType, raw)); err != nil {
		f.Fatal(err)
	}
}

// cordon makes nodes unschedulable, or schedulable again.
func (f *fixture) cordon(unschedulable bool, names ...string) {
	f.Helper()
	for _, name := range names {
		f.patch(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, map[string]any{"spec": map[string]any{"unschedulable": unschedulable}})
	}
}

// remove deletes an object and waits until its pods are deleted.
func (f *fixture) remove(d *appsv1.Deployment) {
	f.Helper()
	if err := f.client.Delete(f.ctx, d, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
		f.Fatal(err)
	}
	f.eventually(patience, "the Deployment and its pods go", func() error {
		list, err := f.kube.CoreV1().Pods(f.ns).List(f.ctx, metav1.ListOptions{LabelSelector: "app=" + d.Name})
		if err != nil || len(list.Items) > 0 {
			return fmt.Errorf("%d pods are left: %w", len(list.Items), err)
		}
		err = f.client.Get(f.ctx, client.ObjectKeyFromObject(d), &appsv1.Deployment{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the Deployment is left: %w", err)
	})
}
