package devcluster

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/atoll-k8s/atoll/devcluster/binaries"
)

const (
	// simulatedAnnotation marks the nodes for which kwok simulates the kubelet.
	simulatedAnnotation = "kwok.x-k8s.io/node"
	simulatedValue      = "fake"

	// createWorkers is the number of nodes that are created at a time.
	createWorkers = 32
	// nodeReadyInterval is the time between two checks of new nodes.
	nodeReadyInterval = 200 * time.Millisecond
)

var nodeNamePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

// NodeSpec describes a node to add.
type NodeSpec struct {
	// Name is a DNS subdomain that no other node or process of the cluster has.
	Name string
	// Labels and Annotations are on the node from its creation. The host name label is
	// added.
	Labels      map[string]string
	Annotations map[string]string
	// Taints are on the node from its creation.
	Taints []corev1.Taint
	// Capacity is both capacity and allocatable. What is unset defaults to
	// 32 cpu, 256Gi memory, 1Ti ephemeral-storage and 110 pods.
	Capacity corev1.ResourceList
	// Unschedulable cordons the node from its creation.
	Unschedulable bool
}

// NumberedNodes returns specs named prefix followed by a number from 0 to n-1,
// each changed by the modifiers in turn.
func NumberedNodes(prefix string, n int, modify ...func(i int, spec *NodeSpec)) []NodeSpec {
	specs := make([]NodeSpec, n)
	for i := range specs {
		specs[i].Name = prefix + strconv.Itoa(i)
		for _, m := range modify {
			m(i, &specs[i])
		}
	}
	return specs
}

// NextNodes is [NumberedNodes] with numbers that follow the highest that a node
// with the prefix has.
func (c *Cluster) NextNodes(ctx context.Context, prefix string, n int, modify ...func(i int, spec *NodeSpec)) ([]NodeSpec, error) {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	next := 0
	for i := range nodes.Items {
		suffix, ok := strings.CutPrefix(nodes.Items[i].Name, prefix)
		if number, err := strconv.Atoi(suffix); ok && err == nil {
			next = max(next, number+1)
		}
	}
	return NumberedNodes(prefix, next+n, modify...)[next:], nil
}

func defaultCapacity() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse("32"),
		corev1.ResourceMemory:           resource.MustParse("256Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"),
		corev1.ResourcePods:             resource.MustParse("110"),
	}
}

// AddNodes adds simulated nodes and returns when all are Ready and free of the taint that
// new nodes carry. Their pods become Ready after [Options.PodStartDelay]; no program
// listens at their addresses.
func (c *Cluster) AddNodes(ctx context.Context, specs ...NodeSpec) error {
	nodes := make([]*corev1.Node, 0, len(specs))
	for _, spec := range specs {
		node, err := c.newNode(spec)
		if err != nil {
			return err
		}
		c.makeSimulated(node)
		nodes = append(nodes, node)
	}
	err := forEach(ctx, createWorkers, nodes, func(ctx context.Context, node *corev1.Node) error {
		if err := c.createNode(ctx, node); err != nil {
			return err
		}
		return c.untaintNode(ctx, node)
	})
	if err != nil {
		return err
	}
	return c.waitNodesReady(ctx, specs)
}

// untaintNode removes the taint that the API server puts on every new node until the
// controller manager finds it Ready. The node is Ready already, and for a thousand nodes
// the controller manager would take ten seconds.
func (c *Cluster) untaintNode(ctx context.Context, node *corev1.Node) error {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": node.Spec.Taints}})
	if err != nil {
		return fmt.Errorf("encoding the taints of node %q: %w", node.Name, err)
	}
	_, err = c.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("taking the taint off node %q: %w", node.Name, err)
	}
	return nil
}

// newNode returns the part of a node that simulated and hollow nodes share.
func (c *Cluster) newNode(spec NodeSpec) (*corev1.Node, error) {
	if err := c.checkNewProcess(spec.Name); err != nil {
		return nil, err
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        spec.Name,
			Labels:      map[string]string{corev1.LabelHostname: spec.Name},
			Annotations: map[string]string{},
		},
		Spec: corev1.NodeSpec{
			Taints:        slices.Clone(spec.Taints),
			Unschedulable: spec.Unschedulable,
		},
		Status: corev1.NodeStatus{Capacity: defaultCapacity()},
	}
	maps.Copy(node.Labels, spec.Labels)
	maps.Copy(node.Annotations, spec.Annotations)
	maps.Copy(node.Status.Capacity, spec.Capacity)
	node.Status.Allocatable = node.Status.Capacity.DeepCopy()
	return node, nil
}

// makeSimulated fills in the status that a kubelet would report, so that kwok only has to
// renew the Lease.
func (c *Cluster) makeSimulated(node *corev1.Node) {
	node.Annotations[simulatedAnnotation] = simulatedValue
	labels := map[string]string{
		corev1.LabelArchStable: "amd64",
		corev1.LabelOSStable:   "linux",
	}
	maps.Copy(labels, node.Labels)
	node.Labels = labels
	now := metav1.Now()
	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string) corev1.NodeCondition {
		return corev1.NodeCondition{
			Type: kind, Status: status, Reason: reason,
			LastHeartbeatTime: now, LastTransitionTime: now,
		}
	}
	node.Status.Conditions = []corev1.NodeCondition{
		condition(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady"),
		condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory"),
		condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure"),
		condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID"),
	}
	node.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: simulatedAddress(node.Name)},
		{Type: corev1.NodeHostName, Address: node.Name},
	}
	node.Status.NodeInfo = corev1.NodeSystemInfo{
		Architecture: "amd64", OperatingSystem: "linux",
		KubeletVersion:          c.KubernetesVersion(),
		ContainerRuntimeVersion: "kwok://" + binaries.KwokVersion,
		OSImage:                 "simulated", KernelVersion: "simulated",
	}
}

// simulatedAddress derives an address from the name, in the network 198.18.0.0/15, which
// is reserved for benchmarks. Two nodes may have the same address by chance.
func simulatedAddress(name string) string {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(name))
	sum := hash.Sum32()
	return fmt.Sprintf("198.%d.%d.%d", 18+sum>>16&1, sum>>8&0xff, sum&0xff)
}

func (c *Cluster) createNode(ctx context.Context, node *corev1.Node) error {
	_, err := c.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating node %q: %w", node.Name, err)
	}
	return nil
}

// waitNodesReady returns when all nodes are Ready and the control plane has removed the
// taint that it puts on new nodes.
func (c *Cluster) waitNodesReady(ctx context.Context, specs []NodeSpec) error {
	waiting := sets.New[string]()
	for _, spec := range specs {
		waiting.Insert(spec.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout+time.Duration(len(specs))*10*time.Millisecond)
	defer cancel()
	err := wait.PollUntilContextCancel(ctx, nodeReadyInterval, true, func(ctx context.Context) (bool, error) {
		if waiting.Len() == 0 {
			return true, nil
		}
		nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return false, err
		}
		for i := range nodes.Items {
			if isNodeUsable(&nodes.Items[i]) {
				waiting.Delete(nodes.Items[i].Name)
			}
		}
		return waiting.Len() == 0, nil
	})
	if err != nil {
		name := first(sets.List(waiting))
		return fmt.Errorf("waiting for nodes to become Ready (%d are not, such as %q): %w%s", waiting.Len(), name, err, c.kubeletSays(name))
	}
	return nil
}

// kubeletSays returns the end of the log of a node's kubelet; empty for a simulated node.
func (c *Cluster) kubeletSays(name string) string {
	for _, path := range []string{filepath.Join(c.nodeDir(name), "logs", Kubelet+".log"), c.LogPath(name)} {
		if _, err := os.Stat(path); err == nil {
			return fmt.Sprintf("; the log of its kubelet %s ends with:\n%s", path, logTail(path))
		}
	}
	return ""
}

func first(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return names[0]
}

func isNodeUsable(node *corev1.Node) bool {
	for _, taint := range node.Spec.Taints {
		if taint.Key == corev1.TaintNodeNotReady || taint.Key == corev1.TaintNodeUnreachable {
			return false
		}
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// RemoveNode deletes a node, with its process if it is a hollow one, and with its processes, its
// disk and its addresses if it is a real one. The control plane deletes its pods.
func (c *Cluster) RemoveNode(ctx context.Context, name string) error {
	c.verbs.Lock()
	defer c.verbs.Unlock()
	if p, err := c.readProcess(name); err == nil {
		if p.Kind != kindHollow && p.Kind != kindReal {
			return fmt.Errorf("removing node %q: that is the %s of this name", name, p.Kind)
		}
		if err := c.forget(ctx, p); err != nil {
			return err
		}
	}
	if err := c.clearRealNode(ctx, name); err != nil {
		return err
	}
	err := c.client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting node %q: %w", name, err)
	}
	return nil
}

// forEach calls the function for all items, some at a time, and stops early
// after a failure.
func forEach[T any](ctx context.Context, workers int, items []T, do func(context.Context, T) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	queue := make(chan T)
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		failed []error
	)
	for range min(workers, len(items)) {
		wg.Go(func() {
			for item := range queue {
				if err := do(ctx, item); err != nil {
					mu.Lock()
					failed = append(failed, err)
					mu.Unlock()
					cancel()
				}
			}
		})
	}
feed:
	for _, item := range items {
		select {
		case queue <- item:
		case <-ctx.Done():
			break feed
		}
	}
	close(queue)
	wg.Wait()
	if len(failed) > 0 {
		return failed[0]
	}
	return ctx.Err()
}
