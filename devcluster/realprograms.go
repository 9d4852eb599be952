package devcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/atoll-k8s/atoll/devcluster/internal/process"
	"github.com/atoll-k8s/atoll/devcluster/internal/realnode"
)

// KillOn ends a program of a real node with SIGKILL. It is not started again before
// [Cluster.RestartOn].
func (c *Cluster) KillOn(ctx context.Context, node, program string) error {
	n, err := c.readNode(node)
	if err != nil {
		return err
	}
	if _, err := n.program(program); err != nil {
		return err
	}
	if err := os.WriteFile(n.Hold(program), nil, 0o600); err != nil {
		return fmt.Errorf("holding %s of node %q: %w", program, node, err)
	}
	id, err := c.onNode(node, program)
	if err != nil {
		return err
	}
	return killAll(ctx, []process.Identity{id})
}

// RestartOn ends a program of a real node, if it runs, and lets it be started again. It returns
// when the program runs, and containerd answers.
func (c *Cluster) RestartOn(ctx context.Context, node, program string) error {
	n, err := c.readNode(node)
	if err != nil {
		return err
	}
	if _, err := n.program(program); err != nil {
		return err
	}
	if err := os.Remove(n.Hold(program)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("starting %s of node %q: %w", program, node, err)
	}
	if id, err := c.onNode(node, program); err == nil {
		if err := killAll(ctx, []process.Identity{id}); err != nil {
			return err
		}
	}
	var last error
	err = wait.PollUntilContextTimeout(ctx, readyInterval, startTimeout, true, func(context.Context) (bool, error) {
		if _, last = c.onNode(node, program); last == nil && program == Containerd {
			_, last = c.ctr(ctx, node, "version")
		}
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for %s of node %q: %w: %w", program, node, err, last)
	}
	return nil
}

// program returns a program of the node.
func (n *realNode) program(name string) (*realnode.Program, error) {
	for i := range n.Programs {
		if n.Programs[i].Name == name {
			return &n.Programs[i], nil
		}
	}
	var names []string
	for _, p := range n.Programs {
		names = append(names, p.Name)
	}
	return nil, fmt.Errorf("finding %q of node %q: its programs are %s", name, n.Name, strings.Join(names, ", "))
}

// PauseOn stops a program of a real node with SIGSTOP, and ResumeOn continues it.
func (c *Cluster) PauseOn(_ context.Context, node, program string) error {
	id, err := c.onNode(node, program)
	if err != nil {
		return err
	}
	if err := id.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return waitStopped(id)
}

// ResumeOn continues a program of a real node that was paused.
func (c *Cluster) ResumeOn(_ context.Context, node, program string) error {
	id, err := c.onNode(node, program)
	if err != nil {
		return err
	}
	return id.Signal(syscall.SIGCONT)
}

// onNode finds the process of a program among the children of a node's first process.
func (c *Cluster) onNode(node, program string) (process.Identity, error) {
	p, err := c.readProcess(node)
	if err != nil {
		return process.Identity{}, err
	}
	n, err := c.readNode(node)
	if err != nil {
		return process.Identity{}, err
	}
	is, err := n.program(program)
	if err != nil {
		return process.Identity{}, err
	}
	id, found := process.ChildOf(p.ID, is.Path, is.Args)
	if !found {
		return id, fmt.Errorf("finding %s of node %q: it does not run; its log %s ends with:\n%s", program, node, is.Log, logTail(is.Log))
	}
	return id, nil
}

// NodeLogPath returns the log file of a program of a real node.
func (c *Cluster) NodeLogPath(node, program string) string {
	return filepath.Join(c.nodeDir(node), "logs", program+".log")
}

// LocalVolume makes a directory on the disk of a real node, in which any user may write, and
// returns its path on the node, for a volume that is local to it.
func (c *Cluster) LocalVolume(node, name string) (string, error) {
	n, err := c.readNode(node)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(n.Dir, "local-volumes", name)
	err = os.MkdirAll(dir, 0o700)
	if err == nil {
		err = os.Chmod(dir, 0o777) //nolint:gosec // pods run as any user; the directories above are closed to others
	}
	if err != nil {
		return "", fmt.Errorf("making volume %q of node %q: %w", name, node, err)
	}
	return filepath.Join(realnode.Mount, "local-volumes", name), nil
}

// RunOn runs a program in the namespaces of a real node and returns its output.
func (c *Cluster) RunOn(ctx context.Context, node, path string, args ...string) (string, error) {
	p, err := c.readProcess(node)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, c.nodeProgram(), append([]string{"enter", fmt.Sprint(p.ID.PID), path}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("running %s on node %q: %w: %s", filepath.Base(path), node, err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}
