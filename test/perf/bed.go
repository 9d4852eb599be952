package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

const (
	namespace = "perf"
	// poolLabel is on every node: the group of the node.
	poolLabel = "pool"
	// classLabel is on every node: its class of capacity.
	classLabel = "node.kubernetes.io/capacity"
	poll       = 250 * time.Millisecond
	// stepWithin is the maximum time of each wait.
	stepWithin = 5 * time.Minute
	stopWithin = 30 * time.Second

	// idleShare is the share of one core that the cluster, and other processes, may use
	// when the machine is idle.
	idleShare = 0.25
	// idleWithin is the maximum wait until the cluster is idle, calmWithin until other
	// processes are idle too.
	idleWithin = time.Minute
	calmWithin = 90 * time.Second
)

// settings describe the bed to create.
type settings struct {
	options
	// second: a second kube-scheduler calls the extender, and the cluster's own does not.
	second bool
	// pinned: no scheduler calls the extender, and pods get their group at creation.
	pinned bool
	// gangs enables PodGroups.
	gangs bool
	// coordinators enables coordinators of pools.
	coordinators bool
	// limited gives kube-controller-manager its default client limits instead of
	// devcluster's higher ones.
	limited bool
	// managerArgs are further arguments of atoll-manager.
	managerArgs []string
	// excluded are namespaces whose pods do not pass Atoll's webhook.
	excluded []string
	log      io.Writer
}

func toAny(names []string) []any {
	out := make([]any, len(names))
	for i, name := range names {
		out[i] = name
	}
	return out
}

func (s settings) form() atoll.Form {
	switch {
	case s.pinned:
		return atoll.Pinned
	case s.second:
		return atoll.Isolated
	default:
		return atoll.Plain
	}
}

// bed is a cluster with simulated nodes and Atoll, where rounds are run.
type bed struct {
	options   options
	log       io.Writer
	cluster   *devcluster.Cluster
	client    kubernetes.Interface
	atoll     client.Client // of Atoll's own kinds
	installed *atoll.Installation
	// pool is the group of each node.
	pool map[string]string
}

// defaultQPS and defaultBurst are the defaults of kube-controller-manager's flags
// --kube-api-qps and --kube-api-burst.
const defaultQPS, defaultBurst = 20, 30

// makeBed starts the cluster, installs Atoll and adds the nodes.
func makeBed(ctx context.Context, s settings) (*bed, error) {
	// While kwok is stopped the Leases of the nodes are not renewed.
	args := []string{"--node-monitor-grace-period=24h"}
	if s.limited {
		args = append(args, fmt.Sprintf("--kube-api-qps=%d", defaultQPS), fmt.Sprintf("--kube-api-burst=%d", defaultBurst))
	}
	cluster, err := devcluster.Start(ctx, devcluster.Options{
		Log: s.log, KeepDir: s.keep, ComponentArgs: map[string][]string{devcluster.ControllerManager: args},
	})
	if err != nil {
		return nil, err
	}
	b := &bed{options: s.options, log: s.log, cluster: cluster, pool: map[string]string{}}
	if err := b.fill(ctx, s); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// fill installs Atoll and adds the nodes and the namespace.
func (b *bed) fill(ctx context.Context, s settings) error {
	config := b.cluster.AdminConfig()
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	var err error
	if b.client, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := gm.AddToScheme(scheme); err != nil {
		return fmt.Errorf("making a scheme: %w", err)
	}
	if b.atoll, err = client.New(b.cluster.AdminConfig(), client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	options := atoll.Options{
		// The benchmark starts the scheduler itself, because each side has another
		// configuration.
		KeepScheduler: true, Form: s.form(), Managed: !s.second, Gangs: s.gangs, Log: s.log,
		// As in production: the manager must not lose its Lease on a busy machine.
		Values:      map[string]any{"webhooks": map[string]any{"excludedNamespaces": toAny(s.excluded)}},
		ManagerArgs: append([]string{"--leader-elect-lease-duration=15s", "--profile-address=" + s.profile}, s.managerArgs...),
	}
	if s.coordinators {
		options = options.WithCoordinators()
	}
	if b.installed, err = atoll.Install(ctx, b.cluster, options); err != nil {
		return err
	}
	if err := b.addNodes(ctx); err != nil {
		return err
	}
	namespaced := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := b.client.CoreV1().Namespaces().Create(ctx, namespaced, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating namespace %q: %w", namespace, err)
	}
	return nil
}

func (b *bed) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
	defer cancel()
	if err := b.cluster.Stop(ctx); err != nil {
		return fmt.Errorf("stopping the cluster: %w", err)
	}
	return nil
}

// addNodes adds the simulated nodes. Unless pods are to run, kwok is stopped
// afterwards: it would spend the measured time on Leases and the status of pods.
func (b *bed) addNodes(ctx context.Context) error {
	specs := devcluster.NumberedNodes(nodePrefix, b.options.nodes, func(i int, spec *devcluster.NodeSpec) {
		// One group after the other, not in turns, as sites are added in practice.
		group := b.groupName(i * b.options.groups / b.options.nodes)
		// A group is a zone, because kube-scheduler spreads pods over zones by default.
		spec.Labels = map[string]string{poolLabel: group, corev1.LabelTopologyZone: group, classLabel: classNames[i%2]}
		b.pool[spec.Name] = group
	})
	fmt.Fprintf(b.log, "adding %d simulated nodes\n", len(specs))
	if err := b.cluster.AddNodes(ctx, specs...); err != nil {
		return err
	}
	if b.options.runPods {
		return nil
	}
	return b.cluster.Kill(ctx, devcluster.Kwok)
}

// classNames are the classes of capacity of the nodes, in turns.
var classNames = []string{"on-demand", "spot"}

// nodePrefix is the part of a node's name before its number.
const nodePrefix = "node-"

func nodeName(i int) string { return nodePrefix + strconv.Itoa(i) }

func (b *bed) groupName(i int) string { return "pool-" + strconv.Itoa(i) }

// workload describes the pods of a round.
type workload struct {
	// name is the name of its Deployment and, if it is not the default, of the
	// kube-scheduler that binds its pods.
	name string
	// policy names the PropagationPolicy that they require, if any.
	policy string
	// spread gives them Kubernetes' own hard topology spread over the groups.
	spread bool
	// zone is the only one that they may go to, if any.
	zone string
	// onDemand is the number of on-demand pods; all others are spot. With 0 they are not
	// divided.
	onDemand int
	// atOnce sets their grace period to 0, for evictions.
	atOnce bool
}

const loadName = "load"

// deployed is the name of the workload's Deployment.
func (w workload) deployed() string { return cmp.Or(w.name, loadName) }

// labels are on the workload's pods.
func (w workload) labels() map[string]string { return map[string]string{"app": w.deployed()} }

func (b *bed) deployment(w workload) *appsv1.Deployment {
	labels := w.labels()
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: w.deployed(), Namespace: namespace},
		Spec: appsv1.DeploymentSpec{
			// Pods are created after the policy is bound, all at once.
			Replicas: new(int32(0)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					SchedulerName: w.name,
					Containers:    []corev1.Container{{Name: "main", Image: "nginx:1.27"}},
				},
			},
		},
	}
	if w.policy != "" {
		d.Labels = map[string]string{gm.RequiredPropagationPolicyLabel: w.policy}
	}
	if w.onDemand > 0 {
		d.Annotations = map[string]string{gm.CapacitySwitchKey: "true", gm.CapacityCountKey: strconv.Itoa(w.onDemand)}
	}
	if w.zone != "" {
		d.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: w.zone}
	}
	if w.atOnce {
		d.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64(0))
	}
	if w.spread {
		d.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: labels},
		}}
	}
	return d
}

// createPods creates the pods of a round and returns when all exist and the cluster is
// idle. No scheduler may run.
func (b *bed) createPods(ctx context.Context, w workload) error {
	deployments := b.client.AppsV1().Deployments(namespace)
	if _, err := deployments.Create(ctx, b.deployment(w), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating Deployment %q: %w", w.deployed(), err)
	}
	if err := b.waitBound(ctx, w.deployed(), w); err != nil {
		return err
	}
	if err := b.scale(ctx, w, b.options.pods); err != nil {
		return err
	}
	return b.waitIdle(ctx)
}

// scale scales a Deployment without pods, and returns when the pods exist.
func (b *bed) scale(ctx context.Context, w workload, pods int) error {
	others, err := b.countPods(ctx)
	if err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, pods)
	if _, err := b.client.AppsV1().Deployments(namespace).Patch(ctx, w.deployed(), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("scaling Deployment %q: %w", w.deployed(), err)
	}
	return b.eventually(ctx, "the pods to be created", func(ctx context.Context) (bool, error) {
		n, err := b.countPods(ctx)
		return n == others+pods, err
	})
}

// countPods counts pods by a LIST of one pod, whose answer has the number of the others.
func (b *bed) countPods(ctx context.Context) (int, error) {
	pods, err := b.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, fmt.Errorf("counting pods: %w", err)
	}
	n := len(pods.Items)
	if pods.RemainingItemCount != nil {
		n += int(*pods.RemainingItemCount)
	}
	return n, nil
}

// selecting selects the pods of a workload.
func selecting(w workload) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: w.labels()})}
}

// uids returns a map from the UID of each pod of a workload to its node, from a LIST.
func (b *bed) uids(ctx context.Context, w workload) (map[types.UID]string, error) {
	pods, err := b.client.CoreV1().Pods(namespace).List(ctx, selecting(w))
	if err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	nodes := make(map[types.UID]string, len(pods.Items))
	for i := range pods.Items {
		nodes[pods.Items[i].UID] = pods.Items[i].Spec.NodeName
	}
	return nodes, nil
}

// deletePods deletes the objects that createPods created, and returns when the cluster is
// idle. Pods are deleted without a grace period, because no real kubelet runs them.
func (b *bed) deletePods(ctx context.Context, workloads ...workload) error {
	background := metav1.DeletePropagationBackground
	options := metav1.DeleteOptions{PropagationPolicy: &background}
	for _, w := range workloads {
		err := b.client.AppsV1().Deployments(namespace).Delete(ctx, w.deployed(), options)
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting Deployment %q: %w", w.deployed(), err)
		}
	}
	if err := b.client.AppsV1().ReplicaSets(namespace).DeleteCollection(ctx, options, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("deleting ReplicaSets: %w", err)
	}
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	err := b.eventually(ctx, "the pods to be gone", func(ctx context.Context) (bool, error) {
		if err := b.client.CoreV1().Pods(namespace).DeleteCollection(ctx, now, metav1.ListOptions{}); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return false, fmt.Errorf("deleting pods: %w", err)
		}
		n, err := b.countPods(ctx)
		return n == 0, err
	})
	if err != nil {
		return err
	}
	return b.waitIdle(ctx)
}

// waitIdle returns when the processes of the cluster and other processes use little CPU,
// or after a time limit: a busy machine costs accuracy, equally on both sides. A quick
// run does not wait for other processes.
func (b *bed) waitIdle(ctx context.Context) error {
	before, err := usageOf(ctx, b.cluster)
	if err != nil {
		return err
	}
	for began := time.Now(); time.Since(began) < calmWithin; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
		now, err := usageOf(ctx, b.cluster)
		if err != nil {
			return err
		}
		used, limit := now.since(before), idleShare*now.at.Sub(before.at).Seconds()
		idle := used.cluster() < limit || time.Since(began) > idleWithin
		if idle && (b.options.quick || used.others() < limit) {
			return nil
		}
		before = now
	}
	return nil
}

// alive returns an error if a process that should run has ended: it is not restarted, and
// a round would wait for it until its timeout.
func (b *bed) alive(ctx context.Context, names ...string) error {
	processes, err := b.cluster.Processes(ctx)
	if err != nil {
		return err
	}
	for _, p := range processes {
		if !p.Running && slices.Contains(names, p.Name) {
			return fmt.Errorf("%s has ended; its log ends with:\n%s", p.Name, tail(p.LogPath))
		}
	}
	return nil
}

// scheduling returns an error if pods cannot be bound because a process has ended.
func (b *bed) scheduling(ctx context.Context) error {
	return b.alive(ctx, devcluster.APIServer, devcluster.Etcd, devcluster.Scheduler, atoll.Manager)
}

// tail returns the end of a log.
func tail(path string) string {
	const most = 2000
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-most):])
}

func (b *bed) eventually(ctx context.Context, what string, is func(context.Context) (bool, error)) error {
	err := wait.PollUntilContextTimeout(ctx, poll, stepWithin, true, is)
	if err != nil {
		return fmt.Errorf("waiting for %s: %w", what, err)
	}
	return nil
}
