package devcluster

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KillContainer ends a running container of a pod on a real node with SIGKILL. The kubelet starts
// it again if the pod's restartPolicy says so.
func (c *Cluster) KillContainer(ctx context.Context, namespace, pod, container string) error {
	return c.onContainer(ctx, namespace, pod, container, "kill", "--signal=SIGKILL")
}

// PauseContainer freezes all processes of a container of a pod on a real node, and
// ResumeContainer lets them go on.
func (c *Cluster) PauseContainer(ctx context.Context, namespace, pod, container string) error {
	return c.onContainer(ctx, namespace, pod, container, "pause")
}

// ResumeContainer lets a container go on that [Cluster.PauseContainer] has frozen.
func (c *Cluster) ResumeContainer(ctx context.Context, namespace, pod, container string) error {
	return c.onContainer(ctx, namespace, pod, container, "resume")
}

// onContainer does something with the process of a container, by the id in the status of the pod.
func (c *Cluster) onContainer(ctx context.Context, namespace, pod, container, verb string, flags ...string) error {
	p, err := c.client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("finding container %s/%s/%s: %w", namespace, pod, container, err)
	}
	var names []string
	for _, s := range p.Status.ContainerStatuses {
		names = append(names, s.Name)
		if s.Name != container {
			continue
		}
		id, found := strings.CutPrefix(s.ContainerID, "containerd://")
		if !found || s.State.Running == nil {
			return fmt.Errorf("finding container %s/%s/%s: it does not run on a real node: its state is %s", namespace, pod, container, s.State.String())
		}
		if _, err := c.ctr(ctx, p.Spec.NodeName, append(append([]string{"tasks", verb}, flags...), id)...); err != nil {
			return fmt.Errorf("container %s/%s/%s: %w", namespace, pod, container, err)
		}
		return nil
	}
	return fmt.Errorf("finding container %s/%s/%s: the containers of this pod are %s", namespace, pod, container, strings.Join(names, ", "))
}

// ctr runs containerd's client on a real node.
func (c *Cluster) ctr(ctx context.Context, node string, args ...string) (string, error) {
	return c.RunOn(ctx, node, filepath.Join(c.record.NodesDir, "ctr"), append([]string{"--address=" + containerdSocket, "--namespace=k8s.io"}, args...)...)
}
