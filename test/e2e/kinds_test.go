package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/controller/workloadkind"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// part runs a part of a test. The next part continues with the state that it left.
func (f *fixture) part(name string, run func(f *fixture)) {
	f.Helper()
	ok := f.Run(name, func(t *testing.T) {
		part := *f
		part.T = t
		run(&part)
	})
	if !ok {
		f.FailNow()
	}
}

// template returns a template for pods of a workload that stay Pending after they are
// bound, because pods of Jobs would complete within moments.
func template(app string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}, Annotations: map[string]string{devcluster.StartDelayAnnotation: "1h"}},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: new(int64),
			Containers:                    []corev1.Container{{Name: "app", Image: "nginx:1.27"}},
		},
	}
}

// restarted sets the restart policy of a template to Always, as all kinds except Jobs
// need it.
func restarted(t corev1.PodTemplateSpec) corev1.PodTemplateSpec {
	t.Spec.RestartPolicy = corev1.RestartPolicyAlways
	t.Annotations = nil
	return t
}

// requiring returns the metadata of an object that requires the policy "policy".
func requiring(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: map[string]string{gm.RequiredPropagationPolicyLabel: "policy"}}
}

func selecting(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

func job(completions, parallelism int32, pods corev1.PodTemplateSpec) batchv1.JobSpec {
	return batchv1.JobSpec{Completions: &completions, Parallelism: &parallelism, Template: pods}
}

// TestEveryBuiltInKind is scenario 41 for the kinds that are always on: each is divided
// exactly, or limited to the groups if it cannot be divided. Pods of StatefulSets return
// to their claims, and pods of Jobs are never moved.
func TestEveryBuiltInKind(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fixture) {
		f.group("kinds-a", 2)
		f.group("kinds-b", 2)
		f.nodes(nil, "kinds-out")
		f.create(weights("policy", "kinds-a", 3, "kinds-b", 2))
		threeTwo := map[string]int{"kinds-a": 3, "kinds-b": 2}
		f.create(&batchv1.CronJob{ObjectMeta: requiring("cron"), Spec: batchv1.CronJobSpec{
			Schedule: "* * * * *", ConcurrencyPolicy: batchv1.ForbidConcurrent, JobTemplate: batchv1.JobTemplateSpec{Spec: job(50, 5, template("cron"))},
		}})
		for app, o := range map[string]client.Object{
			"stateful": &appsv1.StatefulSet{ObjectMeta: requiring("stateful"), Spec: appsv1.StatefulSetSpec{
				Replicas: new(int32(5)), Selector: selecting("stateful"), Template: restarted(template("stateful")),
			}},
			"replicas": &appsv1.ReplicaSet{ObjectMeta: requiring("replicas"), Spec: appsv1.ReplicaSetSpec{
				Replicas: new(int32(5)), Selector: selecting("replicas"), Template: restarted(template("replicas")),
			}},
		} {
			f.part(app, func(f *fixture) {
				f.create(o)
				f.eventually(patience, "3:2", func() error {
					if err := f.allReady(app, 5); err != nil {
						return err
					}
					return f.spreadIs(app, threeTwo)
				})
			})
		}
		f.part("a StatefulSet with claims", func(f *fixture) {
			f.localVolumes("claims", "kinds-a-0", "kinds-a-1", "kinds-a-1", "kinds-b-0", "kinds-b-1")
			set := &appsv1.StatefulSet{ObjectMeta: requiring("claims"), Spec: appsv1.StatefulSetSpec{
				Replicas: new(int32(5)), Selector: selecting("claims"), Template: restarted(template("claims")),
				VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
					StorageClassName: new(f.ns), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse("1Gi")}},
				}}},
			}}
			f.create(set)
			where := func() map[string]string {
				nodes := map[string]string{}
				for _, pod := range f.pods("claims") {
					nodes[pod.Name] = pod.Spec.NodeName
				}
				return nodes
			}
			exact := func() error {
				if err := f.allReady("claims", 5); err != nil {
					return err
				}
				return f.spreadIs("claims", threeTwo)
			}
			f.eventually(patience, "3:2", exact)
			before := where()
			evicted := f.watchEvictions("claims")
			for range 3 {
				err := f.kube.CoreV1().Pods(f.ns).DeleteCollection(f.ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app=claims"})
				if err != nil {
					f.Fatal(err)
				}
				f.eventually(patience, "3:2 again", exact)
				if now := where(); fmt.Sprint(now) != fmt.Sprint(before) {
					f.Errorf("the pods are on %v, their claims on %v", now, before)
				}
			}
			if n := evicted(); n != 0 {
				f.Errorf("%d pods were evicted", n)
			}
			if err := f.client.Delete(f.ctx, set); err != nil {
				f.Fatal(err)
			}
		})
		f.part("a Job: the total is its parallelism", func(f *fixture) {
			f.create(&batchv1.Job{ObjectMeta: requiring("job"), Spec: job(50, 5, template("job"))})
			counts := func(n int, want map[string]int) {
				f.Helper()
				f.eventually(patience, fmt.Sprint(want), func() error {
					if now := len(f.pods("job")); now != n {
						return fmt.Errorf("%d pods, want %d", now, n)
					}
					return f.spreadIs("job", want)
				})
			}
			set := func(spec map[string]any) {
				f.patch(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "job"}}, map[string]any{"spec": spec})
			}
			deleted := f.watchDeletions("job")
			counts(5, threeTwo)
			set(map[string]any{"parallelism": 10})
			counts(10, map[string]int{"kinds-a": 6, "kinds-b": 4})
			if n := deleted(); n != 0 {
				f.Errorf("%d pods were deleted while the Job grew", n)
			}
			set(map[string]any{"suspend": true})
			counts(0, map[string]int{})
			set(map[string]any{"suspend": false, "parallelism": 5})
			counts(5, threeTwo)
		})
		f.part("a Job with fewer completions than its parallelism", func(f *fixture) {
			indexed := job(3, 5, template("few"))
			indexed.CompletionMode = new(batchv1.IndexedCompletion)
			f.create(&batchv1.Job{ObjectMeta: requiring("few"), Spec: indexed})
			f.eventually(patience, "2:1", func() error { return f.spreadIs("few", map[string]int{"kinds-a": 2, "kinds-b": 1}) })
		})
		f.part("a DaemonSet has a pod on each node of the groups and on no other", func(f *fixture) {
			f.create(&appsv1.DaemonSet{ObjectMeta: requiring("daemon"), Spec: appsv1.DaemonSetSpec{
				Selector: selecting("daemon"), Template: restarted(template("daemon")),
			}})
			waits := func() error {
				if n := f.unschedulable("daemon") + f.atTheGate("daemon"); n != 1 { // at the gate in forms without an extender
					return fmt.Errorf("%d pods wait, want that of the node of no group", n)
				}
				return f.spreadIs("daemon", map[string]int{"kinds-a": 2, "kinds-b": 2})
			}
			f.eventually(patience, "one pod a node, the fifth waits", waits)
			f.always(time.Second, "the fifth pod waits", waits)
		})
		f.part("a pod without an owner is a workload of one", func(f *fixture) {
			pods := restarted(template("bare"))
			for i := range 3 {
				pod := &corev1.Pod{ObjectMeta: requiring(fmt.Sprint("bare-", i)), Spec: pods.Spec}
				pod.Labels["app"] = "bare"
				f.create(pod)
			}
			f.eventually(patience, "each goes where the first of many would", func() error {
				return f.spreadIs("bare", map[string]int{"kinds-a": 3})
			})
		})
		f.part("the Job of a CronJob", func(f *fixture) {
			f.eventually(2*time.Minute, "3:2", func() error { return f.spreadIs("cron", threeTwo) })
		})
		f.part("a policy that changes moves all but pods of Jobs and pods without an owner", func(f *fixture) {
			still := map[string]func() int{}
			for _, app := range []string{"job", "few", "cron", "bare", "daemon"} {
				still[app] = f.watchDeletions(app)
			}
			f.edit(weights("policy", "kinds-a", 2, "kinds-b", 3))
			for _, app := range []string{"stateful", "replicas"} {
				f.settled(app, map[string]int{"kinds-a": 2, "kinds-b": 3})
			}
			for app, deleted := range still {
				if n := deleted(); n != 0 {
					f.Errorf("%d pods of %s were deleted", n, app)
				}
			}
			jobs, err := f.kube.BatchV1().Jobs(f.ns).List(f.ctx, metav1.ListOptions{})
			if err != nil {
				f.Fatal(err)
			}
			for _, j := range jobs.Items {
				if j.Status.Failed != 0 {
					f.Errorf("Job %s counts %d failed pods", j.Name, j.Status.Failed)
				}
			}
			if len(jobs.Items) != 3 {
				f.Errorf("there are %d Jobs, want 3", len(jobs.Items))
			}
			f.patch(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "job"}}, map[string]any{"spec": map[string]any{"parallelism": 10}})
			f.eventually(patience, "a Job grows as the policy is now", func() error {
				return f.spreadIs("job", map[string]int{"kinds-a": 4, "kinds-b": 6})
			})
		})
	})
}

// localVolumes creates a volume on each of the nodes, of a StorageClass that is named
// after the namespace. They are deleted with the test.
func (f *fixture) localVolumes(name string, nodes ...string) {
	f.Helper()
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: f.ns}, Provisioner: "kubernetes.io/no-provisioner",
		VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	if _, err := f.kube.StorageV1().StorageClasses().Create(f.ctx, class, metav1.CreateOptions{}); err != nil {
		f.Fatal(err)
	}
	volumes := f.kube.CoreV1().PersistentVolumes()
	remove := func(err error) {
		if err != nil && !apierrors.IsNotFound(err) {
			f.Error(err)
		}
	}
	f.Cleanup(func() {
		remove(f.kube.StorageV1().StorageClasses().Delete(context.Background(), class.Name, metav1.DeleteOptions{}))
	})
	for i, node := range nodes {
		volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%s-%d", f.ns, name, i)}, Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{"storage": resource.MustParse("1Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: class.Name, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/" + name}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		}}
		if _, err := volumes.Create(f.ctx, volume, metav1.CreateOptions{}); err != nil {
			f.Fatal(err)
		}
		f.Cleanup(func() { remove(volumes.Delete(context.Background(), volume.Name, metav1.DeleteOptions{})) })
	}
}

// TestFinishedPodsHoldNoSeat is scenario 43.
func TestFinishedPodsHoldNoSeat(t *testing.T) {
	tier.All(t, "waits until a node is not Ready: 1.5 min")
	t.Parallel()
	inBothWays(t, func(t *testing.T, f *fixture) {
		f.group("over-a", 2)
		f.group("over-b", 1)
		f.create(weights("policy", "over-a", 1, "over-b", 1))
		f.part("completed pods of a Job", func(f *fixture) {
			pods := template("job")
			delete(pods.Annotations, devcluster.StartDelayAnnotation)
			f.create(&batchv1.Job{ObjectMeta: requiring("job"), Spec: job(8, 2, pods)})
			f.eventually(patience, "all 8 pods complete, one of each group at a time", func() error {
				running := map[string]int{}
				list := f.pods("job")
				for _, pod := range list {
					if pod.Spec.NodeName != "" && pod.Status.Phase != corev1.PodSucceeded {
						running[pod.Spec.NodeName[:len("over-a")]]++
					}
				}
				for group, n := range running {
					if n > 1 {
						f.Fatalf("%d pods are in %s, want no more than one", n, group)
					}
				}
				var j batchv1.Job
				if err := f.client.Get(f.ctx, types.NamespacedName{Namespace: f.ns, Name: "job"}, &j); err != nil {
					return err
				}
				if j.Status.Succeeded != 8 {
					return fmt.Errorf("%d pods have completed", j.Status.Succeeded)
				}
				return nil
			})
		})
		f.part("terminating pods on a node that is offline", func(f *fixture) {
			f.create(deployment("app", 4, "policy", func(d *appsv1.Deployment) {
				d.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64(600))
			}))
			even := map[string]int{"over-a": 2, "over-b": 2}
			f.eventually(patience, "2:2", func() error {
				if err := f.allReady("app", 4); err != nil {
					return err
				}
				return f.spreadIs("app", even)
			})
			var offline string
			for _, pod := range f.pods("app") {
				if strings.HasPrefix(pod.Spec.NodeName, "over-a") {
					offline = pod.Spec.NodeName
				}
			}
			restart := f.silence(offline)
			deleted := 0
			for _, pod := range f.pods("app") {
				if pod.Spec.NodeName == offline {
					deleted++
					if err := f.kube.CoreV1().Pods(f.ns).Delete(f.ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
						f.Fatal(err)
					}
				}
			}
			f.eventually(patience, "others take the seats on the group's other node", func() error {
				if err := f.allReady("app", 4); err != nil {
					return err
				}
				return f.spreadIs("app", even)
			})
			list, err := f.kube.CoreV1().Pods(f.ns).List(f.ctx, metav1.ListOptions{LabelSelector: "app=app"})
			if err != nil {
				f.Fatal(err)
			}
			f.Logf("%d of %d pods on %s still terminate", len(list.Items)-4, deleted, offline)
			restart()
			// A grace period of ten minutes is longer than the test.
			if err := f.client.Delete(f.ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "app"}}); err != nil {
				f.Fatal(err)
			}
			f.eventually(patience, "the pods go", func() error {
				all := metav1.ListOptions{LabelSelector: "app=app"}
				if err := f.kube.CoreV1().Pods(f.ns).DeleteCollection(f.ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, all); err != nil {
					return err
				}
				list, err := f.kube.CoreV1().Pods(f.ns).List(f.ctx, all)
				if err != nil || len(list.Items) > 0 {
					return fmt.Errorf("%d are left: %w", len(list.Items), err)
				}
				return nil
			})
		})
	})
}

// The kind of these tests. The API server does not serve it before its
// CustomResourceDefinition is created.
var stageKind = schema.GroupVersionKind{Group: "e2e.example.com", Version: "v1", Kind: "Stage"}

const stageEntry = "- {group: e2e.example.com, version: v1, kind: Stage, replicasPath: .spec.size, podTemplatePath: .spec.template, revisionLabel: e2e.example.com/revision}\n"

func stageDefinition() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "stages.e2e.example.com"},
		"spec": map[string]any{
			"group": "e2e.example.com", "scope": "Namespaced",
			"names": map[string]any{"kind": "Stage", "plural": "stages", "singular": "stage", "listKind": "StageList"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
			}},
		},
	}}
}

// stage creates a Stage that requires a policy.
func (f *fixture) stage(name string, size int, policy string) *unstructured.Unstructured {
	f.Helper()
	s := stageOf(name, size)
	s.SetLabels(map[string]string{gm.RequiredPropagationPolicyLabel: policy})
	f.create(s)
	return s
}

func stageOf(name string, size int) *unstructured.Unstructured {
	s := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"size": int64(size)}}}
	s.SetGroupVersionKind(stageKind)
	s.SetName(name)
	return s
}

// createPods creates n pods of a Stage, as its controller would.
func (f *fixture) createPods(s *unstructured.Unstructured, revision string, n int) {
	f.Helper()
	pods := restarted(template(s.GetName()))
	for i := range n {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%s-%d", s.GetName(), revision, i), Labels: map[string]string{"app": s.GetName(), "e2e.example.com/revision": revision, "revision-" + revision: "yes"},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(s, stageKind)},
		}, Spec: pods.Spec}
		f.create(pod)
	}
}

// boundTo returns an error unless a Stage carries the binding label of a policy.
func (f *fixture) boundTo(s *unstructured.Unstructured, policy string) error {
	now := s.DeepCopy()
	if err := f.client.Get(f.ctx, client.ObjectKeyFromObject(s), now); err != nil {
		return err
	}
	if got := now.GetLabels()[gm.BindingPropagationPolicyLabel]; got != policy {
		return fmt.Errorf("Stage %s is bound to %q, want %q", s.GetName(), got, policy)
	}
	return nil
}

// configure writes the list of kinds.
func (f *fixture) configure(text string) {
	f.Helper()
	f.patch(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: atoll.Namespace, Name: workloadkind.ConfigMapName}},
		map[string]any{"data": map[string]any{"workloads.yaml": text}})
}

// eventuallyEvent waits for an event on the ConfigMap.
func (f *fixture) eventuallyEvent(reason, text string) {
	f.Helper()
	f.eventually(patience, "the event "+reason, func() error {
		list, err := f.kube.EventsV1().Events(atoll.Namespace).List(f.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var notes []string
		for _, e := range list.Items {
			if e.Regarding.Kind == "ConfigMap" && e.Regarding.Name == workloadkind.ConfigMapName {
				notes = append(notes, e.Reason+": "+e.Note)
			}
		}
		if !slices.ContainsFunc(notes, func(n string) bool { return strings.HasPrefix(n, reason+": ") && strings.Contains(n, text) }) {
			return fmt.Errorf("none says %q; there are %q", text, notes)
		}
		return nil
	})
}

// TestKindsOfTheConfigMap is scenarios 41 and 42 for a kind that is configured, and
// permitted, by the chart's value: it becomes a workload with its definition, and stops
// being one with its entry, while atoll-manager runs.
func TestKindsOfTheConfigMap(t *testing.T) {
	tier.All(t, "a cluster of its own, in which kinds come and go: 2 min")
	t.Parallel()
	f := newFixtureOfItsOwn(t, atoll.Options{Values: map[string]any{"workloads": []any{map[string]any{
		"group": "e2e.example.com", "version": "v1", "kind": "Stage",
		"replicasPath": ".spec.size", "podTemplatePath": ".spec.template", "revisionLabel": "e2e.example.com/revision",
	}}}})
	f.eventuallyEvent(workloadkind.ReasonWorkloadsRejected, "workloads.yaml (Stage.e2e.example.com): the API server does not serve e2e.example.com/v1, kind Stage: install its CustomResourceDefinition")
	if err := f.client.Create(f.ctx, stageDefinition()); err != nil {
		t.Fatal(err)
	}
	f.eventuallyEvent(workloadkind.ReasonWorkloadsInForce, "Stage.e2e.example.com")

	f.group("site-a", 2)
	f.group("site-b", 2)
	f.create(weights("policy", "site-a", 3, "site-b", 2))
	threeTwo := map[string]int{"site-a": 3, "site-b": 2}
	main := f.stage("main", 5, "policy")
	f.eventually(patience, "the Stage is bound", func() error { return f.boundTo(main, "policy") })
	f.createPods(main, "one", 5)
	f.eventually(patience, "3:2", func() error { return f.spreadIs("main", threeTwo) })
	f.eventually(patience, "the policy reports it", func() error { return f.reason("policy", gm.ReasonSatisfied) })

	f.part("each revision by the label that the entry names is divided on its own", func(f *fixture) {
		for _, pod := range f.pods("main") {
			// The old revision is now 1:2. Counted together with it, five more pods would
			// be divided 4:1.
			if strings.HasPrefix(pod.Spec.NodeName, "site-a") && len(f.pods("main")) > 3 {
				if err := f.client.Delete(f.ctx, &pod); err != nil {
					f.Fatal(err)
				}
			}
		}
		f.eventually(patience, "1:2 of the old revision", func() error { return f.spreadIs("main", map[string]int{"site-a": 1, "site-b": 2}) })
		f.createPods(main, "two", 5)
		f.eventually(patience, "3:2 of the new", func() error { return f.spreadIs("main", map[string]int{"site-a": 4, "site-b": 4}) })
	})
	f.part("the Stage is found above a ReplicaSet", func(f *fixture) {
		above := f.stage("above", 5, "policy")
		f.eventually(patience, "the Stage is bound", func() error { return f.boundTo(above, "policy") })
		f.create(&appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Name: "above", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(above, stageKind)}},
			Spec:       appsv1.ReplicaSetSpec{Replicas: new(int32(5)), Selector: selecting("above"), Template: restarted(template("above"))},
		})
		f.eventually(patience, "3:2", func() error { return f.spreadIs("above", threeTwo) })
	})
	f.part("its pods are divided over classes of capacity, with and without a ReplicaSet", func(f *fixture) {
		f.classes(1, 1)
		divided := func(name string) *unstructured.Unstructured {
			s := stageOf(name, 5)
			s.SetAnnotations(map[string]string{gm.CapacitySwitchKey: "true", gm.CapacityCountKey: "2"})
			f.create(s)
			return s
		}
		f.createPods(divided("by-class"), "one", 5)
		f.eventuallyDivided("by-class", 2, 3)
		byClass := divided("by-class-above")
		f.create(&appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Name: "by-class-above", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(byClass, stageKind)}},
			Spec:       appsv1.ReplicaSetSpec{Replicas: new(int32(5)), Selector: selecting("by-class-above"), Template: restarted(template("by-class-above"))},
		})
		f.eventuallyDivided("by-class-above", 2, 3)
	})
	works := func(f *fixture, name string) {
		f.Helper()
		s := f.stage(name, 5, "policy")
		f.eventually(patience, "a new Stage is bound", func() error { return f.boundTo(s, "policy") })
		f.createPods(s, "one", 5)
		f.eventually(patience, "3:2", func() error { return f.spreadIs(name, threeTwo) })
	}
	f.part("a kind without a permission is named, and what was in force stays", func(f *fixture) {
		f.configure("- {version: v1, kind: ReplicationController}\n")
		f.eventuallyEvent(workloadkind.ReasonWorkloadsRejected, "workloads.yaml (ReplicationController): atoll-manager is not allowed to get, list, watch, patch replicationcontrollers in every namespace: ")
		works(f, "permitted")
	})
	f.part("a bad text is named, and what was in force stays", func(f *fixture) {
		f.configure(stageEntry + "- {kind")
		f.eventuallyEvent(workloadkind.ReasonWorkloadsRejected, "workloads.yaml: the text is not valid YAML: ")
		works(f, "written")
		if err := f.cluster.Restart(f.ctx, atoll.Manager); err != nil {
			f.Fatal(err)
		}
		works(f, "started")
	})
	f.part("an entry that goes ends it, and lets pods go that wait for it", func(f *fixture) {
		waits := f.stage("waits", 1, "missing")
		f.createPods(waits, "one", 1)
		f.eventually(patience, "the pod is gated", func() error {
			if gates := f.pods("waits")[0].Spec.SchedulingGates; len(gates) != 1 {
				return fmt.Errorf("gates are %v", gates)
			}
			return nil
		})
		f.configure("[]")
		f.eventuallyEvent(workloadkind.ReasonWorkloadsInForce, "Workloads beside the built-in kinds: none")
		f.eventually(patience, "the pod that waited is bound", func() error { return f.bindings("waits", 1) })
		late := f.stage("late", 5, "policy")
		f.createPods(late, "one", 5)
		f.eventually(patience, "kube-scheduler alone places the pods", func() error { return f.bindings("late", 5) })
		for _, pod := range f.pods("late") {
			if _, stamped := pod.Labels[gm.NodeGroupLabel]; stamped || len(pod.Labels) != 3 {
				f.Errorf("pod %s was placed by a policy: labels %v", pod.Name, pod.Labels)
			}
		}
		f.always(2*time.Second, "the Stage is not bound", func() error { return f.boundTo(late, "") })
	})
	f.part("an entry that comes back finds what is there", func(f *fixture) {
		f.configure(stageEntry)
		late := &unstructured.Unstructured{}
		late.SetGroupVersionKind(stageKind)
		late.SetNamespace(f.ns)
		late.SetName("late")
		f.eventually(patience, "the Stage is bound", func() error { return f.boundTo(late, "policy") })
		works(f, "back")
	})
}

// bindings returns an error unless n pods of a workload are bound, on any node.
func (f *fixture) bindings(app string, n int) error {
	if got := f.bound(app); got != n {
		return fmt.Errorf("%d pods of %s are bound, want %d", got, app, n)
	}
	return nil
}
