package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

// ganged is a cluster with PodGroups, and two replicas of atoll-manager.
var ganged = lateCluster{options: atoll.Options{Replicas: 2, Gangs: true, ManagerArgs: []string{"--leader-elect-lease-duration=8s"}}, relayed: true}

// bothConfigs are the ConfigMaps of docs/sources.md, V3, in both spellings.
var bothConfigs = map[string]string{
	"podgroup-level-rules": `podgroup-level-rules:
- apiversion: apps/v1                    
  kind: deployment
  adjust-level: 0
- apiversion: batch/v1                    
  kind: job
  adjust-level: 0
- apiversion: argoproj.io/v1alpha1                   
  kind: workflow
  adjust-level: -1
`,
	"podgroupLevel": `podgroupLevel:
- apiversion: apps/v1                    
  kind: deployment
  adjust-level: 0
- apiversion: argoproj.io/v1alpha1
  kind: workflow
  adjust-level: -1
`,
}

const (
	rulesNamespace = "volcano-system"
	rulesName      = "volcano-controller-configmap"
	rulesKey       = "volcano-controller.conf"
)

// gangs returns a fixture in the cluster with PodGroups, in which the given rules are in
// force; "" means no ConfigMap.
func gangs(t *testing.T, rules string) *fixture {
	t.Helper()
	f := ganged.fixture(t)
	f.nodes(nil, "gang-0", "gang-1", "gang-2")
	f.kindWorkflow()
	f.rules(rules)
	return f
}

// kindWorkflow makes the API server serve Workflows, as Argo's definition does.
func (f *fixture) kindWorkflow() {
	f.Helper()
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "workflows.argoproj.io"},
		"spec": map[string]any{
			"group": "argoproj.io", "scope": "Namespaced",
			"names": map[string]any{"kind": "Workflow", "plural": "workflows", "singular": "workflow", "listKind": "WorkflowList"},
			"versions": []any{map[string]any{
				"name": "v1alpha1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
			}},
		},
	}}
	if err := f.client.Create(f.ctx, crd); err != nil && !apierrors.IsAlreadyExists(err) {
		f.Fatal(err)
	}
	f.eventually(patience, "Workflows are served", func() error {
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion("argoproj.io/v1alpha1")
		list.SetKind("WorkflowList")
		return f.client.List(f.ctx, list)
	})
}

// rules writes a text in place of the one before, and waits until it is in force.
func (f *fixture) rules(text string) {
	f.Helper()
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: rulesNamespace, Name: rulesName}}
	if err := f.client.Delete(f.ctx, config); client.IgnoreNotFound(err) != nil {
		f.Fatal(err)
	}
	f.eventually(patience, "no rule is in force", func() error { return f.rulesInForce(0) })
	if text == "" {
		return
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: rulesNamespace}}
	if err := f.client.Create(f.ctx, ns); err != nil && !apierrors.IsAlreadyExists(err) {
		f.Fatal(err)
	}
	config = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: rulesNamespace, Name: rulesName}, Data: map[string]string{rulesKey: text}}
	if err := f.client.Create(f.ctx, config); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := f.client.Delete(context.Background(), config); client.IgnoreNotFound(err) != nil {
			f.Error(err)
		}
	})
	f.rulesAreKept(text)
}

// rulesInForce returns an error unless each replica has as many rules.
func (f *fixture) rulesInForce(n int) error {
	f.Helper()
	for i, url := range f.atoll.MetricsURLs {
		values, err := f.metricsAt(url)
		if err != nil {
			return err
		}
		if have := values["atoll_podgroup_rules{}"]; have != float64(n) {
			return fmt.Errorf("replica %d has %v rules, want %d", i, have, n)
		}
	}
	return nil
}

// rulesAreKept waits until a text is in force on each replica, and kept in the annotation
// for replicas that start later.
func (f *fixture) rulesAreKept(text string) {
	f.Helper()
	began := time.Now()
	f.eventually(patience, "the rules are in force", func() error {
		var config corev1.ConfigMap
		if err := f.client.Get(f.ctx, types.NamespacedName{Namespace: rulesNamespace, Name: rulesName}, &config); err != nil {
			return err
		}
		if config.Annotations["atoll.dev/last-good-podgroup-rules"] != text {
			return errors.New("they are not")
		}
		return f.rulesInForce(strings.Count(text, "kind:"))
	})
	f.Logf("the rules are in force after %s", time.Since(began).Round(time.Millisecond))
}

// editRules writes another text.
func (f *fixture) editRules(text string) {
	f.Helper()
	f.patch(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: rulesNamespace, Name: rulesName}}, map[string]any{"data": map[string]any{rulesKey: text}})
}

// rulesEvent waits for an event on the ConfigMap.
func (f *fixture) rulesEvent(reason, text string) {
	f.Helper()
	f.eventually(patience, "an event "+reason+" with "+text, func() error {
		list, err := f.kube.EventsV1().Events(rulesNamespace).List(f.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var last string
		for _, e := range list.Items {
			if e.Regarding.Name == rulesName && e.Reason == reason {
				if last = e.Note; strings.Contains(e.Note, text) {
					return nil
				}
			}
		}
		return fmt.Errorf("the last is %q", last)
	})
}

// volcanos sets Volcano as the scheduler of a Deployment's pods.
func volcanos(d *appsv1.Deployment) { d.Spec.Template.Spec.SchedulerName = "volcano" }

// groups returns the PodGroups of the namespace, by name.
func (f *fixture) groups() []scheduling.PodGroup {
	f.Helper()
	var list scheduling.PodGroupList
	if err := f.client.List(f.ctx, &list, client.InNamespace(f.ns)); err != nil {
		f.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b scheduling.PodGroup) int { return strings.Compare(a.Name, b.Name) })
	return list.Items
}

// gangOf returns the PodGroup that a pod names; "" means none.
func gangOf(pod *corev1.Pod) string { return pod.Annotations[scheduling.GroupNameAnnotation] }

// ownedBy returns an error unless the namespace has exactly these PodGroups, each with
// one owner, which exists.
func (f *fixture) ownedBy(owners ...client.Object) error {
	groups := f.groups()
	if len(groups) != len(owners) {
		var names []string
		for _, g := range groups {
			names = append(names, fmt.Sprintf("%s of %v", g.Name, g.OwnerReferences))
		}
		return fmt.Errorf("there are %d PodGroups, want %d: %v", len(groups), len(owners), names)
	}
	for _, owner := range owners {
		i := slices.IndexFunc(groups, func(g scheduling.PodGroup) bool {
			return g.Name == scheduling.PodGroupNamePrefix+string(owner.GetUID())
		})
		if i < 0 {
			return fmt.Errorf("%s has no PodGroup", owner.GetName())
		}
		refs := groups[i].OwnerReferences
		if len(refs) != 1 || refs[0].UID != owner.GetUID() || refs[0].Name != owner.GetName() || refs[0].BlockOwnerDeletion != nil {
			return fmt.Errorf("the owners of %s are %v", groups[i].Name, refs)
		}
	}
	return nil
}

// named returns an error unless every pod of a workload names a PodGroup that an owner has.
func (f *fixture) named(app string, n int, owner client.Object) error {
	pods := f.pods(app)
	if len(pods) != n {
		return fmt.Errorf("%s has %d pods, want %d", app, len(pods), n)
	}
	for _, pod := range pods {
		want := scheduling.PodGroupNamePrefix + string(pod.UID)
		if owner != nil {
			want = scheduling.PodGroupNamePrefix + string(owner.GetUID())
		}
		if got := gangOf(&pod); got != want {
			return fmt.Errorf("pod %s names %q, want %s", pod.Name, got, want)
		}
	}
	return nil
}

// gangScheduler simulates Volcano's scheduler: it binds the pods of a PodGroup once there
// are minMember of them, and writes its phase, always as an update of the whole object
// from its cache.
type gangScheduler struct {
	f *fixture
	// busy writes the status all the time, as with a full queue.
	busy bool
	// admit reports whether a PodGroup may be enqueued; nil means always.
	admit func(*unstructured.Unstructured) bool

	mu     sync.Mutex
	writes int
	errs   []string
}

// run schedules until the returned function is called.
func (s *gangScheduler) run() (stop func()) {
	ctx, cancel := context.WithCancel(s.f.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			if err := s.pass(ctx); err != nil && ctx.Err() == nil {
				s.mu.Lock()
				s.errs = append(s.errs, err.Error())
				s.mu.Unlock()
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	once := sync.OnceFunc(func() { cancel(); <-ended })
	s.f.Cleanup(once)
	return once
}

func (s *gangScheduler) pass(ctx context.Context) error {
	groups := &unstructured.UnstructuredList{}
	groups.SetAPIVersion("scheduling.volcano.sh/v1beta1")
	groups.SetKind("PodGroupList")
	if err := s.f.client.List(ctx, groups, client.InNamespace(s.f.ns)); err != nil {
		return err
	}
	pods, err := s.f.kube.CoreV1().Pods(s.f.ns).List(ctx, metav1.ListOptions{FieldSelector: "spec.schedulerName=volcano"})
	if err != nil {
		return err
	}
	for i := range groups.Items {
		if err := s.schedule(ctx, &groups.Items[i], pods.Items); err != nil {
			return err
		}
	}
	return nil
}

func (s *gangScheduler) schedule(ctx context.Context, group *unstructured.Unstructured, pods []corev1.Pod) error {
	var members, waiting []*corev1.Pod
	for i := range pods {
		pod := &pods[i]
		if gangOf(pod) != group.GetName() || pod.Status.Phase == corev1.PodFailed || pod.DeletionTimestamp != nil {
			continue
		}
		members = append(members, pod)
		if pod.Spec.NodeName == "" {
			waiting = append(waiting, pod)
		}
	}
	minMember, _, _ := unstructured.NestedInt64(group.Object, "spec", "minMember")
	phase, _, _ := unstructured.NestedString(group.Object, "status", "phase")
	next := phase
	switch {
	case (phase == "" || phase == "Pending") && (s.admit == nil || s.admit(group)):
		next = "Inqueue"
	case phase == "Inqueue" && len(members) > 0 && int64(len(members)) >= minMember:
		next = "Running"
	}
	running := int64(len(members) - len(waiting))
	was, _, _ := unstructured.NestedInt64(group.Object, "status", "running")
	if s.busy || next != phase || was != running {
		written := group.DeepCopy()
		if err := unstructured.SetNestedField(written.Object, next, "status", "phase"); err != nil {
			return err
		}
		count := running
		if s.busy {
			s.mu.Lock()
			s.writes++
			count = int64(s.writes)
			s.mu.Unlock()
		}
		if err := unstructured.SetNestedField(written.Object, count, "status", "running"); err != nil {
			return err
		}
		if err := s.f.client.Update(ctx, written); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
	}
	if phase != "Inqueue" && phase != "Running" || int64(len(members)) < minMember {
		return nil
	}
	for i, pod := range waiting {
		err := s.f.kube.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, UID: pod.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: fmt.Sprintf("gang-%d", i%3)},
		}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// object is an object of any kind in the namespace.
func object(apiVersion, kind, name string, owner client.Object) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetAPIVersion(apiVersion)
	u.SetKind(kind)
	u.SetName(name)
	if owner != nil {
		u.SetOwnerReferences(controlledBy(owner))
	}
	return u
}

// controlledBy is a reference to a controller.
func controlledBy(owner client.Object) []metav1.OwnerReference {
	gvk := owner.GetObjectKind().GroupVersionKind()
	return []metav1.OwnerReference{{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind, Name: owner.GetName(), UID: owner.GetUID(), Controller: new(true)}}
}

// workflow is a Workflow.
func workflow(name string) *unstructured.Unstructured {
	return object("argoproj.io/v1alpha1", "Workflow", name, nil)
}

// gangPod is a pod for Volcano.
func gangPod(name, app string, owner client.Object) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app}, Annotations: map[string]string{}},
		Spec: corev1.PodSpec{
			SchedulerName: "volcano", TerminationGracePeriodSeconds: new(int64),
			Containers: []corev1.Container{{Name: "app", Image: "nginx:1.27"}},
		},
	}
	if owner != nil {
		pod.OwnerReferences = controlledBy(owner)
	}
	return pod
}

// typed sets the kind of an object, which clients remove.
func typed[T client.Object](f *fixture, o T) T {
	gvk, err := f.client.GroupVersionKindFor(o)
	if err != nil {
		f.Fatal(err)
	}
	o.GetObjectKind().SetGroupVersionKind(gvk)
	return o
}

// watchGroups collects all versions of the PodGroups of the namespace until the returned
// function is called, including those that exist then.
func (f *fixture) watchPodGroups() func() []*unstructured.Unstructured {
	f.Helper()
	list := func() *unstructured.UnstructuredList {
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion("scheduling.volcano.sh/v1beta1")
		list.SetKind("PodGroupList")
		if err := f.client.List(f.ctx, list, client.InNamespace(f.ns)); err != nil {
			f.Fatal(err)
		}
		return list
	}
	ctx, cancel := context.WithCancel(f.ctx)
	events := f.follow(ctx, list().GetResourceVersion(), func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		of := &unstructured.UnstructuredList{}
		of.SetAPIVersion("scheduling.volcano.sh/v1beta1")
		of.SetKind("PodGroupList")
		return f.client.Watch(ctx, of, client.InNamespace(f.ns), &client.ListOptions{Raw: &o})
	})
	var states []*unstructured.Unstructured
	var seen sync.Map // versions
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e := range events {
			if u, ok := e.Object.(*unstructured.Unstructured); ok && e.Type != watch.Bookmark {
				states = append(states, u)
				seen.Store(u.GetResourceVersion(), true)
			}
		}
	}()
	before := list()
	return func() []*unstructured.Unstructured {
		f.Helper()
		now := list()
		f.eventually(patience, "the watch is up to date", func() error {
			for i := range now.Items {
				version := now.Items[i].GetResourceVersion()
				if _, ok := seen.Load(version); !ok && !slices.ContainsFunc(before.Items, func(u unstructured.Unstructured) bool { return u.GetResourceVersion() == version }) {
					return fmt.Errorf("version %s was not seen", version)
				}
			}
			return nil
		})
		cancel()
		<-ended
		return states
	}
}
