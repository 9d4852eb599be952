package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// rollout measures rollouts of workloads that have one pod on each node.
var rollout = benchmark{
	name: "rollout", unit: "s", nodes: 20, pods: 20,
	about: `Time of a rollout with a policy ÷ without one, of workloads that have one pod on every node: a new pod fits only where an old one has left.

- 20 simulated nodes in 10 NodeGroups, and 20 pods. kwok runs the pods. The scheduler is a plain one: the form is Pinned.
- ` + "`host port`" + `: a Deployment whose pods have a host port, with maxSurge 0 and maxUnavailable 1. ` + "`anti-affinity`" + `: a StatefulSet with required anti-affinity between nodes.
- The time is that from the change of the image until the status of the workload says that all pods are updated and available.
- After each rollout with a policy every group has exactly its share, or the benchmark fails.`,
	variants: []variant{
		{name: "host port", ideal: "≤ 1.5", a: "a Deployment with a policy", b: "the same without a policy"},
		{name: "anti-affinity", ideal: "≤ 1.5", a: "a StatefulSet with a policy", b: "the same without a policy"},
	},
	open: openRollout,
}

type rolloutBench struct {
	*bed
	workloads client.Client
}

func openRollout(ctx context.Context, o options, log io.Writer) (bench, error) {
	o.runPods = true
	b, err := makeBed(ctx, settings{options: o, pinned: true, log: log})
	if err != nil {
		return nil, err
	}
	r := &rolloutBench{bed: b}
	if r.workloads, err = client.New(b.cluster.AdminConfig(), client.Options{}); err != nil {
		return nil, errors.Join(fmt.Errorf("making a client: %w", err), b.close())
	}
	if err := errors.Join(r.createGroups(ctx), r.cluster.RestartScheduler(ctx, []byte(bare))); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return r, nil
}

func (b *rolloutBench) sides(_ context.Context, variant string) (a, peer side, err error) {
	build := b.hostPort
	if variant == "anti-affinity" {
		build = b.apart
	}
	measure := func(policy string) func(context.Context) (sample, error) {
		return func(ctx context.Context) (sample, error) {
			ctx, cancel := context.WithTimeout(ctx, 2*stepWithin)
			defer cancel()
			return b.measure(ctx, build(workload{policy: policy}), policy != "")
		}
	}
	return side{variant, measure(evenPolicy)}, side{variant + ", no policy", measure("")}, nil
}

// hostPort returns a Deployment whose pods need a node each, because of a host port.
func (b *rolloutBench) hostPort(w workload) client.Object {
	d := b.deployment(w)
	d.Spec.Replicas = new(int32(b.options.nodes))
	d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: new(intstr.FromInt32(0)), MaxUnavailable: new(intstr.FromInt32(1))}
	d.Spec.Template.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 18090}}
	return d
}

// apart returns a StatefulSet whose pods need a node each, because of anti-affinity.
func (b *rolloutBench) apart(w workload) client.Object {
	d := b.deployment(w)
	d.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, LabelSelector: d.Spec.Selector}},
	}}
	return &appsv1.StatefulSet{ObjectMeta: d.ObjectMeta, Spec: appsv1.StatefulSetSpec{
		Replicas: new(int32(b.options.nodes)), Selector: d.Spec.Selector, Template: d.Spec.Template, ServiceName: d.Name,
	}}
}

// measure creates a workload, changes its image, and measures the time until all pods are new. It
// is an error if a workload with a policy is not divided exactly afterwards.
func (b *rolloutBench) measure(ctx context.Context, w client.Object, managed bool) (s sample, err error) {
	if err := b.workloads.Create(ctx, w); err != nil {
		return s, fmt.Errorf("creating %q: %w", w.GetName(), err)
	}
	if err := b.rolledOut(ctx, w); err != nil {
		return s, err
	}
	s, err = b.timed(ctx, func(ctx context.Context) (string, error) {
		patch := fmt.Appendf(nil, `[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":%q}]`, updated)
		if err := b.workloads.Patch(ctx, w, client.RawPatch(types.JSONPatchType, patch)); err != nil {
			return "", fmt.Errorf("updating %q: %w", w.GetName(), err)
		}
		return fmt.Sprint(b.options.nodes, " pods"), b.rolledOut(ctx, w)
	})
	if err != nil {
		return s, err
	}
	if err := b.waitIdle(ctx); err != nil { // corrections by the controllers happen now
		return s, err
	}
	placed, err := b.uids(ctx, workload{})
	if err != nil {
		return s, err
	}
	if where := check(placed, placed, b.pool, b.options.groups); managed && where.off > 0 {
		return s, fmt.Errorf("checking where the pods of %q are: %s", w.GetName(), where)
	}
	return s, b.remove(ctx, w)
}

// rolledOut waits until the status of a workload says that all pods are updated and available.
func (b *rolloutBench) rolledOut(ctx context.Context, w client.Object) error {
	return b.eventually(ctx, "the rollout to end", func(ctx context.Context) (bool, error) {
		if err := b.workloads.Get(ctx, client.ObjectKeyFromObject(w), w); err != nil {
			return false, fmt.Errorf("reading %q: %w", w.GetName(), err)
		}
		want := int32(b.options.nodes)
		switch w := w.(type) {
		case *appsv1.Deployment:
			is := &w.Status
			return is.ObservedGeneration == w.Generation && is.Replicas == want && is.UpdatedReplicas == want && is.AvailableReplicas == want, nil
		case *appsv1.StatefulSet:
			is := &w.Status
			return is.ObservedGeneration == w.Generation && is.Replicas == want && is.UpdatedReplicas == want && is.AvailableReplicas == want, nil
		}
		return false, fmt.Errorf("waiting for %T", w)
	})
}

func (b *rolloutBench) remove(ctx context.Context, w client.Object) error {
	if err := b.workloads.Delete(ctx, w, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		return fmt.Errorf("deleting %q: %w", w.GetName(), err)
	}
	return b.deletePods(ctx)
}
