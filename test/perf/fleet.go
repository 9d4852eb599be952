package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

const (
	// writers is the number of concurrent requests when many objects are written.
	writers = 16
	// lonely is the workload of the pod without a policy.
	lonely = "lonely"
)

// fleet is a bed in which all pods except one are bound and no pod moves.
type fleet struct {
	*bed
	// waiting has no node yet; its seat is in the first group, which lacks one pod.
	waiting *corev1.Pod
	// plain has no node yet, and its Deployment no policy.
	plain *corev1.Pod
}

// makeFleet creates a cluster with nodes and pods, divided evenly as the policy demands.
func makeFleet(ctx context.Context, s settings) (*fleet, error) {
	b, err := makeBed(ctx, s)
	if err != nil {
		return nil, err
	}
	f := &fleet{bed: b}
	if err := f.populate(ctx); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

func (f *fleet) populate(ctx context.Context) error {
	if err := f.createGroups(ctx); err != nil {
		return err
	}
	// Pods can be created only after this ServiceAccount exists.
	err := f.eventually(ctx, "the ServiceAccount of the namespace", func(ctx context.Context) (bool, error) {
		accounts, err := f.client.CoreV1().ServiceAccounts(namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(accounts.Items) > 0, err
	})
	if err != nil {
		return err
	}
	// Only this program may create, bind or delete pods.
	for _, name := range []string{devcluster.ControllerManager, devcluster.Scheduler} {
		if err := f.cluster.Kill(ctx, name); err != nil {
			return err
		}
	}
	fmt.Fprintf(f.log, "adding %d bound pods\n", f.options.pods-1)
	set, err := f.createOwners(ctx, loadName, workload{policy: evenPolicy}, f.options.pods)
	if err != nil {
		return err
	}
	pods := make([]*corev1.Pod, f.options.pods)
	for i := range pods {
		pods[i] = podOf(set, i)
		if i > 0 {
			pods[i].Spec.NodeName = f.nodeFor(i)
		}
	}
	err = inParallel(ctx, writers, pods, func(ctx context.Context, pod *corev1.Pod) error {
		created, err := f.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("creating pod %q: %w", pod.Name, err)
		}
		if pod == pods[0] {
			f.waiting = created
		}
		return nil
	})
	if err != nil {
		return err
	}
	if set, err = f.createOwners(ctx, lonely, workload{}, 1); err != nil {
		return err
	}
	if f.plain, err = f.client.CoreV1().Pods(namespace).Create(ctx, podOf(set, 0), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating a pod without a policy: %w", err)
	}
	return f.waitIdle(ctx)
}

// nodeFor assigns pods to the groups in turns, and within a group to its nodes in turns.
func (f *fleet) nodeFor(i int) string {
	group, size := i%f.options.groups, f.options.nodes/f.options.groups
	return nodeName(group*size + i/f.options.groups%size)
}

// createOwners creates a Deployment and its ReplicaSet, as the controller
// manager would, and waits until the Deployment is bound to its policy.
func (b *bed) createOwners(ctx context.Context, name string, w workload, replicas int) (*appsv1.ReplicaSet, error) {
	d := b.deployment(w)
	d.Name, d.Spec.Replicas = name, new(int32(replicas))
	furnish(&d.Spec.Template.Spec.Containers[0])
	d, err := b.client.AppsV1().Deployments(namespace).Create(ctx, d, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating Deployment %q: %w", name, err)
	}
	if err := b.waitBound(ctx, name, w); err != nil {
		return nil, err
	}
	set := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name: name + "-1", Namespace: namespace, Labels: d.Labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))},
		},
		Spec: appsv1.ReplicaSetSpec{Replicas: d.Spec.Replicas, Selector: d.Spec.Selector.DeepCopy(), Template: *d.Spec.Template.DeepCopy()},
	}
	// With a label of its own the ReplicaSet would be a workload in addition to the
	// Deployment.
	set.Labels = map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: "1"}
	set.Spec.Selector.MatchLabels[appsv1.DefaultDeploymentUniqueLabelKey] = "1"
	set.Spec.Template.Labels[appsv1.DefaultDeploymentUniqueLabelKey] = "1"
	if set, err = b.client.AppsV1().ReplicaSets(namespace).Create(ctx, set, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("creating ReplicaSet %q: %w", name, err)
	}
	return set, nil
}

// furnish gives a container probes, variables and requests, as most workloads have.
func furnish(c *corev1.Container) {
	for _, name := range []string{"LOG_LEVEL", "DATABASE_HOST", "DATABASE_NAME", "CACHE_ADDRESS", "REGION", "FEATURES"} {
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: "value-of-" + name})
	}
	c.Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}
	c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")}
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromString("http")}}}
	c.LivenessProbe, c.ReadinessProbe = probe, probe
}

// waitBound waits until a Deployment is bound to the policy that it requires, if any.
func (b *bed) waitBound(ctx context.Context, name string, w workload) error {
	if w.policy == "" {
		return nil
	}
	return b.eventually(ctx, "the policy to be bound", func(ctx context.Context) (bool, error) {
		d, err := b.client.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
		return err == nil && d.Labels[gm.BindingPropagationPolicyLabel] == w.policy, err
	})
}

// podOf returns the i-th pod of a ReplicaSet.
func podOf(set *appsv1.ReplicaSet, i int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%05d", set.Name, i), Namespace: set.Namespace, Labels: set.Spec.Template.Labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))},
		},
		Spec: *set.Spec.Template.Spec.DeepCopy(),
	}
}

// restartManager kills atoll-manager and deletes its Lease; there is no other replica
// that could hold it. The returned start starts the manager.
func (b *bed) restartManager(ctx context.Context) (start func(context.Context) error, err error) {
	if err := b.cluster.Kill(ctx, atoll.Manager); err != nil {
		return nil, err
	}
	if err := b.client.CoordinationV1().Leases(atoll.Namespace).Delete(ctx, atoll.Manager, metav1.DeleteOptions{}); err != nil {
		return nil, fmt.Errorf("deleting the manager's Lease: %w", err)
	}
	return func(ctx context.Context) error { return b.cluster.Restart(ctx, atoll.Manager) }, nil
}

// inParallel calls a function for every item, several at a time, and returns the first
// error.
func inParallel[T any](ctx context.Context, workers int, items []T, do func(context.Context, T) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	done := make(chan struct{})
	for range workers {
		go func() {
			defer func() { done <- struct{}{} }()
			for i := int(next.Add(1)) - 1; i < len(items) && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := do(ctx, items[i]); err != nil {
					cancel(err)
				}
			}
		}()
	}
	for range workers {
		<-done
	}
	return context.Cause(ctx)
}
