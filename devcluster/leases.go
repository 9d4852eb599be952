package devcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// nodeLeaseSeconds is the duration of a simulated node's Lease; it is renewed after a
	// quarter of that time. Both are the values of a kubelet.
	nodeLeaseSeconds = 40
	// silencer is the holder of the Leases of silenced nodes: kwok does not touch nodes
	// whose Lease has another holder, nor their pods.
	silencer = "devcluster-paused"
	// reviveTimeout bounds how long a revived node takes to become Ready.
	reviveTimeout = time.Minute
)

// isSimulatedNode reports whether the name is that of a simulated node.
func (c *Cluster) isSimulatedNode(ctx context.Context, name string) (bool, error) {
	_, err := os.Stat(processPath(c.registryDir, name))
	if err == nil {
		return false, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("finding process %q: %w", name, err)
	}
	node, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("finding %q, which is no process, among the nodes: %w", name, err)
	}
	return node.Annotations[simulatedAnnotation] == simulatedValue, nil
}

// silenceNode takes the node's Lease away from kwok, until reviveNode.
func (c *Cluster) silenceNode(ctx context.Context, name string) error {
	return c.patchLease(ctx, name, map[string]any{
		"holderIdentity":       silencer,
		"leaseDurationSeconds": math.MaxInt32,
		"renewTime":            metav1.NowMicro(),
	})
}

// reviveNode gives the Lease back to kwok and waits until the node is Ready.
func (c *Cluster) reviveNode(ctx context.Context, name string) error {
	if err := c.patchLease(ctx, name, map[string]any{
		"holderIdentity":       nil,
		"leaseDurationSeconds": nodeLeaseSeconds,
	}); err != nil {
		return err
	}
	err := wait.PollUntilContextTimeout(ctx, nodeReadyInterval, reviveTimeout, true, func(ctx context.Context) (bool, error) {
		lease, err := c.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, name, metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil {
			return false, err
		}
		node, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return isNodeUsable(node), nil
	})
	if err != nil {
		return fmt.Errorf("waiting for node %q to become Ready again: %w", name, err)
	}
	return nil
}

func (c *Cluster) patchLease(ctx context.Context, name string, spec map[string]any) error {
	patch, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return fmt.Errorf("encoding the patch of a Lease: %w", err)
	}
	_, err = c.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).
		Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("patching the Lease of node %q: %w", name, err)
	}
	return nil
}

// releaseLeases clears the holder of the Leases of simulated nodes after kwok has ended:
// the next kwok has another identity and would wait until they expire. Errors are
// ignored, because the API server may be down.
func (c *Cluster) releaseLeases(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	leases, err := c.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return
	}
	_ = forEach(ctx, createWorkers, leases.Items, func(ctx context.Context, lease coordinationv1.Lease) error {
		holder := lease.Spec.HolderIdentity
		if holder == nil || *holder == silencer || *holder == lease.Name {
			return nil // free, silenced, or a hollow kubelet's
		}
		return c.patchLease(ctx, lease.Name, map[string]any{"holderIdentity": nil})
	})
}
