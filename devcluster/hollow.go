package devcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// hollowWorkers is the number of hollow nodes that start at a time.
const hollowWorkers = 4

// AddHollowNodes adds nodes that are kubelet processes with a fake container runtime: the
// real code for Leases, watches and restarts. Each takes about 90 MB of memory. It
// returns when all are Ready. The capacity of ephemeral storage is always 1Ti; the spec
// is ignored. The fake runtime loses its containers when the process ends, so a restarted
// node starts its pods again.
func (c *Cluster) AddHollowNodes(ctx context.Context, specs ...NodeSpec) error {
	return c.addHollowNodes(ctx, nil, specs)
}

// AddHollowNodesBehind is AddHollowNodes, with kubelets that reach the API server by an endpoint, such
// as a hub.
func (c *Cluster) AddHollowNodesBehind(ctx context.Context, e Endpoint, specs ...NodeSpec) error {
	return c.addHollowNodes(ctx, &e, specs)
}

func (c *Cluster) addHollowNodes(ctx context.Context, behind *Endpoint, specs []NodeSpec) error {
	err := forEach(ctx, hollowWorkers, specs, func(ctx context.Context, spec NodeSpec) error {
		return c.startHollowNode(ctx, behind, spec)
	})
	if err != nil {
		return err
	}
	return c.waitNodesReady(ctx, specs)
}

// startHollowNode creates the Node object first, so that it has from the beginning the
// labels and taints that a kubelet may not set itself.
func (c *Cluster) startHollowNode(ctx context.Context, behind *Endpoint, spec NodeSpec) error {
	node, err := c.newNode(spec)
	if err != nil {
		return err
	}
	capacity := formatCapacity(node.Status.Capacity)
	node.Status = corev1.NodeStatus{}
	kubeconfig, err := c.Kubeconfig(ctx, "system:node:"+spec.Name, "system:nodes")
	if err != nil {
		return err
	}
	if behind != nil {
		if kubeconfig, err = Behind(kubeconfig, *behind); err != nil {
			return err
		}
	}
	port, err := FreePort()
	if err != nil {
		return err
	}
	root := filepath.Join(c.record.Dir, "hollow", spec.Name)
	if err := os.MkdirAll(root, 0o700); err != nil {
		return fmt.Errorf("making the directory of node %q: %w", spec.Name, err)
	}
	if err := c.createNode(ctx, node); err != nil {
		return err
	}
	p := processRecord{
		Name: spec.Name,
		Kind: kindHollow,
		Path: c.BinaryPath("hollow-kubelet"),
		Args: []string{
			"--name=" + spec.Name,
			"--kubeconfig=" + kubeconfig,
			"--port=" + strconv.Itoa(port),
			"--root-dir=" + root,
			"--capacity=" + capacity,
		},
		Dir: root,
		Log: c.LogPath(spec.Name),
	}
	if err := c.startNew(ctx, p); err != nil {
		deleteErr := c.client.CoreV1().Nodes().Delete(context.WithoutCancel(ctx), spec.Name, metav1.DeleteOptions{})
		return errors.Join(err, deleteErr)
	}
	return nil
}

// formatCapacity formats a resource list for the flag of hollow-kubelet.
func formatCapacity(capacity corev1.ResourceList) string {
	pairs := make([]string, 0, len(capacity))
	for name, quantity := range capacity {
		pairs = append(pairs, string(name)+"="+quantity.String())
	}
	slices.Sort(pairs)
	return strings.Join(pairs, ",")
}
