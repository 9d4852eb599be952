package devcluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/atoll-k8s/atoll/devcluster/internal/process"
)

// ProcessSpec describes a process that runs in addition to the cluster's own: a manager,
// a webhook, a proxy.
type ProcessSpec struct {
	// Name identifies the process for [Cluster.Kill] and similar methods: a DNS subdomain
	// that no other process or node of the cluster has.
	Name string
	// Path is the executable, Args its arguments.
	Path string
	Args []string
	// Env are entries "KEY=value" in addition to the environment of this process. They
	// are kept in the cluster's record, readable by this user only.
	Env []string
	// Dir is the working directory. Unset means the cluster's directory.
	Dir string
	// HealthURL answers 200 when the process is ready. The server of an https URL is
	// verified with HealthCAFile, or with the cluster's certificate authority if that is
	// unset.
	HealthURL    string
	HealthCAFile string
	// Ready replaces HealthURL: it returns nil when the process is ready. It is available
	// only in the process that started the extra process.
	Ready func(ctx context.Context) error
	// Again restarts the process when it ends by itself, as a kubelet restarts a
	// container, as long as the process that started it runs.
	Again bool
}

// StartProcess starts a process that is killed with the cluster. [Cluster.Kill] and
// similar methods take its name. It returns when the process is ready: at once if the
// spec has neither HealthURL nor Ready. Its output goes to [Cluster.LogPath].
func (c *Cluster) StartProcess(ctx context.Context, spec ProcessSpec) error {
	if err := c.checkNewProcess(spec.Name); err != nil {
		return err
	}
	if _, err := os.Stat(spec.Path); err != nil {
		return fmt.Errorf("starting process %q: %w", spec.Name, err)
	}
	p := processRecord{
		Name: spec.Name,
		Kind: kindExtra,
		Path: spec.Path,
		Args: spec.Args,
		Env:  spec.Env,
		Dir:  spec.Dir,
		Log:  c.LogPath(spec.Name),

		Again: spec.Again,
	}
	if p.Dir == "" {
		p.Dir = c.record.Dir
	}
	if spec.HealthURL != "" {
		p.Health = &healthCheck{URL: spec.HealthURL, CAFile: spec.HealthCAFile}
		if p.Health.CAFile == "" {
			p.Health.CAFile = c.pkiPath("ca.crt")
		}
	}
	c.mu.Lock()
	if c.ready == nil {
		c.ready = map[string]func(context.Context) error{}
	}
	c.ready[spec.Name] = spec.Ready
	c.mu.Unlock()
	return c.startNew(ctx, p)
}

// RemoveProcess kills a process that [Cluster.StartProcess] or [Cluster.StartScheduler]
// has started, and removes its record, so that another can be started under its name.
func (c *Cluster) RemoveProcess(ctx context.Context, name string) error {
	c.verbs.Lock()
	defer c.verbs.Unlock()
	p, err := c.readProcess(name)
	if err != nil {
		return err
	}
	if p.Kind != kindExtra && p.Kind != kindScheduler {
		return fmt.Errorf("removing process %q: it is a %s; kill it, or remove the node", name, p.Kind)
	}
	return c.forget(ctx, p)
}

// startNew starts a new process. If it does not become healthy, everything of it except
// its log is removed.
func (c *Cluster) startNew(ctx context.Context, p processRecord) error {
	err := c.startAndWait(ctx, p)
	if err == nil {
		return nil
	}
	if started, readErr := c.readProcess(p.Name); readErr == nil {
		err = errors.Join(err, c.forget(context.WithoutCancel(ctx), started))
	}
	return err
}

// forget kills the process and removes its record.
func (c *Cluster) forget(ctx context.Context, p processRecord) error {
	if err := killAll(ctx, []process.Identity{p.ID}); err != nil {
		return fmt.Errorf("killing %s: %w", p.Name, err)
	}
	if err := os.Remove(processPath(c.registryDir, p.Name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the record of %s: %w", p.Name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.ready, p.Name)
	return nil
}

func (c *Cluster) readyFunc(name string) func(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ready[name]
}
