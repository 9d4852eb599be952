package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	decide "github.com/atoll-k8s/atoll/internal/domain/connectivity"
	"github.com/atoll-k8s/atoll/internal/governance"
)

// connectivity measures what nodes that are cut off cost atoll-manager.
var connectivity = benchmark{
	name: "connectivity", nodes: 200, pods: 2000,
	about: `What a pool of which all nodes are [cut off](pools.md#when-nodes-are-cut-off) costs atoll-manager ÷ a limit.

- The pool has 200 nodes with 2,000 pods. This program renews their Leases, and the pulse of the pool, as the hub that leads does: each ten seconds.
- ` + "`concludes`" + `: from the first heartbeats through the pool until the last node is Delegated, and Ready of it Unknown, in seconds ÷ a minute. Each pod gets other tolerations meanwhile.
- ` + "`rests`" + `: the CPU in the minute after that ÷ a quarter of a core. The manager looks at the pods of each node every five seconds.`,
	variants: []variant{
		{name: "concludes", unit: "s", ideal: "≤ 1", a: "from the first heartbeat until all nodes are Delegated", b: "the limit"},
		{name: "rests", unit: "cores", ideal: "≤ 1", a: "atoll-manager, with all nodes Delegated", b: "the limit"},
	},
	open: openConnectivity,
}

const (
	concludesLimit, restsLimit = time.Minute, 0.25
	// restsFor is for how long the manager is measured.
	restsFor = time.Minute
)

// connectivityBench has a pool whose nodes are all cut off.
type connectivityBench struct {
	*bed

	apps    client.Client
	took    time.Duration
	stop    context.CancelFunc
	running sync.WaitGroup
}

func openConnectivity(ctx context.Context, o options, log io.Writer) (bench, error) {
	b, err := makeBed(ctx, settings{options: o, log: log, coordinators: true})
	if err != nil {
		return nil, err
	}
	c := &connectivityBench{bed: b, stop: func() {}}
	if err := c.prepare(ctx); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *connectivityBench) close() error {
	c.stop()
	c.running.Wait()
	return c.bed.close()
}

// prepare makes the pool and its pods, and lets the heartbeats of all nodes come through the pool.
func (c *connectivityBench) prepare(ctx context.Context) (err error) {
	scheme := c.atoll.Scheme()
	if err := apps.AddToScheme(scheme); err != nil {
		return fmt.Errorf("making a scheme: %w", err)
	}
	if c.apps, err = client.New(c.cluster.AdminConfig(), client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	if err := c.apps.Create(ctx, &apps.NodePool{ObjectMeta: metav1.ObjectMeta{Name: edgePool}}); err != nil {
		return err
	}
	if err := c.addPods(ctx); err != nil {
		return err
	}
	if err := c.ofNodes(ctx, func(ctx context.Context, node string) error {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, apps.NodePoolLabel, edgePool)
		_, err := c.client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}); err != nil {
		return err
	}
	if err := c.apps.Create(ctx, &apps.YurtCoordinator{ObjectMeta: metav1.ObjectMeta{Name: edgePool}, Spec: apps.YurtCoordinatorSpec{NodePool: edgePool}}); err != nil {
		return err
	}
	if err := c.eventually(ctx, "the pool to have a coordinator, and its pulse", func(ctx context.Context) (bool, error) {
		var coordinator apps.YurtCoordinator
		if err := c.apps.Get(ctx, client.ObjectKey{Name: edgePool}, &coordinator); err != nil {
			return false, err
		}
		_, err := c.client.CoordinationV1().Leases(governance.Namespace).Get(ctx, governance.Pulse(edgePool), metav1.GetOptions{})
		return err == nil && len(coordinator.Status.CABundle) > 0, client.IgnoreNotFound(err)
	}); err != nil {
		return err
	}
	if err := c.waitIdle(ctx); err != nil {
		return err
	}
	began := time.Now()
	all, stop := context.WithCancel(ctx)
	c.stop = stop
	c.running.Go(func() {
		for all.Err() == nil {
			_ = c.renew(all) // what is not renewed is not Delegated
			_ = pause(all, kubeletBeats)
		}
	})
	err = c.eventually(ctx, "all nodes to be Delegated", c.areDelegated)
	c.took = time.Since(began)
	return err
}

// addPods adds pods that run.
func (c *connectivityBench) addPods(ctx context.Context) error {
	if err := c.awaitAccount(ctx); err != nil {
		return err
	}
	var pods []*corev1.Pod
	for i := range c.options.pods {
		pods = append(pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i), Namespace: namespace},
			Spec:       corev1.PodSpec{NodeName: nodeName(i % c.options.nodes), Containers: []corev1.Container{{Name: "main", Image: "nginx:1.27"}}},
		})
	}
	api := c.client.CoreV1().Pods(namespace)
	if err := createAll(ctx, pods, api.Create); err != nil {
		return err
	}
	now := metav1.Now()
	return inParallel(ctx, writers, pods, func(ctx context.Context, pod *corev1.Pod) error {
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &now, Conditions: []corev1.PodCondition{
			{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue},
		}}
		_, err := api.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		return err
	})
}

func (c *connectivityBench) ofNodes(ctx context.Context, do func(ctx context.Context, node string) error) error {
	var nodes []string
	for i := range c.options.nodes {
		nodes = append(nodes, nodeName(i))
	}
	return inParallel(ctx, writers, nodes, do)
}

// renew writes the pulse of the pool, and the heartbeat of each node, as the hub that leads does.
func (c *connectivityBench) renew(ctx context.Context) error {
	now := metav1.NowMicro()
	text := now.UTC().Format(metav1.RFC3339Micro)
	pulse := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"{}"}},"spec":{"holderIdentity":%q,"renewTime":%q}}`, governance.PulseAnnotation, nodeName(0), text)
	_, err := c.client.CoordinationV1().Leases(governance.Namespace).Patch(ctx, governance.Pulse(edgePool), types.MergePatchType, pulse, metav1.PatchOptions{})
	leases := c.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	return errors.Join(err, c.ofNodes(ctx, func(ctx context.Context, node string) error {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}},"spec":{"renewTime":%[2]q}}`, governance.DelegatedAnnotation, text)
		_, err := leases.Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
		if apierrors.IsNotFound(err) {
			_, err = leases.Create(ctx, &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Name: node, Annotations: map[string]string{governance.DelegatedAnnotation: text}}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &node, RenewTime: &now},
			}, metav1.CreateOptions{})
		}
		return err
	}))
}

// areDelegated reports whether the cloud has concluded it of all nodes, and has done what follows.
func (c *connectivityBench) areDelegated(ctx context.Context) (bool, error) {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: apps.NodePoolLabel + "=" + edgePool, ResourceVersion: "0"})
	if err != nil {
		return false, err
	}
	for i := range nodes.Items {
		if node := &nodes.Items[i]; decide.Parse(node.Annotations[decide.Annotation]).State != decide.Delegated || decide.IsReady(node) {
			return false, nil
		}
	}
	return len(nodes.Items) == c.options.nodes, nil
}

func (c *connectivityBench) sides(_ context.Context, variant string) (a, b side, err error) {
	limit := func(rate float64) side {
		return side{name: "limit of " + variant, measure: func(context.Context) (sample, error) { return sample{rate: rate, off: -1}, nil }}
	}
	if variant == "concludes" {
		return side{name: variant, measure: func(context.Context) (sample, error) { return sample{rate: c.took.Seconds(), off: -1}, nil }}, limit(concludesLimit.Seconds()), nil
	}
	return side{name: variant, measure: func(ctx context.Context) (s sample, err error) {
		before, err := usageOf(ctx, c.cluster)
		if err == nil {
			err = pause(ctx, restsFor)
		}
		if err != nil {
			return s, err
		}
		after, err := usageOf(ctx, c.cluster)
		if err != nil {
			return s, err
		}
		if is, err := c.areDelegated(ctx); err != nil || !is {
			return s, errors.Join(err, errors.New("not all nodes are Delegated any more"))
		}
		used := after.since(before)
		return sample{rate: used.by[atoll.Manager] / restsFor.Seconds(), off: -1, strangers: used.strangers(), facts: used.String()}, nil
	}}, limit(restsLimit), nil
}
