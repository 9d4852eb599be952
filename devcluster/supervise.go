package devcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/atoll-k8s/atoll/devcluster/internal/process"
)

const (
	// goneInterval is the time between two checks of a killed process.
	goneInterval = 5 * time.Millisecond
	// readyInterval is the time between two probes of a starting process.
	readyInterval = 50 * time.Millisecond
	// startTimeout is the maximum time for one process to become healthy.
	startTimeout = 90 * time.Second
	// logTailBytes is the length of the part of a log that an error quotes.
	logTailBytes = 4096
)

// kind is the role of a process in the cluster.
type kind string

const (
	kindComponent kind = "component"
	kindScheduler kind = "scheduler" // a further kube-scheduler
	kindHollow    kind = "hollow-node"
	kindReal      kind = "real-node"
	kindExtra     kind = "extra"
)

// processRecord has all data that is needed to find a process and to restart it.
type processRecord struct {
	Name   string           `json:"name"`
	Kind   kind             `json:"kind"`
	Path   string           `json:"path"`
	Args   []string         `json:"args"`
	Env    []string         `json:"env,omitempty"`
	Dir    string           `json:"dir"`
	Log    string           `json:"log"`
	Health *healthCheck     `json:"health,omitempty"`
	ID     process.Identity `json:"id"`
	// Paused is true between Pause and Resume.
	Paused bool `json:"paused,omitempty"`
	// Again is ProcessSpec.Again, and Killed is true between Kill and Restart.
	Again  bool `json:"again,omitempty"`
	Killed bool `json:"killed,omitempty"`
}

// ProcessStatus is the state of one process of a cluster.
type ProcessStatus struct {
	Name string
	// Kind is component, scheduler, hollow-node, real-node or extra.
	Kind string
	// PID is the id that the process has or last had.
	PID int
	// Running is true if the process exists, Paused if it is stopped by [Cluster.Pause],
	// Healthy if it runs and its health check, if it has one, passes.
	Running, Paused, Healthy bool
	LogPath                  string
}

// Processes returns the state of each process of the cluster, by name.
func (c *Cluster) Processes(ctx context.Context) ([]ProcessStatus, error) {
	records, err := readProcesses(c.registryDir)
	if err != nil {
		return nil, err
	}
	var statuses []ProcessStatus
	for _, p := range records {
		status := ProcessStatus{
			Name: p.Name, Kind: string(p.Kind), PID: p.ID.PID,
			Running: p.ID.Alive(), Paused: p.Paused, LogPath: p.Log,
		}
		if status.Running && !status.Paused {
			status.Healthy = c.probe(ctx, p) == nil
		}
		statuses = append(statuses, status)
	}
	return statuses, nil
}

// readProcess returns the record of one process of the cluster.
func (c *Cluster) readProcess(name string) (processRecord, error) {
	var p processRecord
	err := readJSON(processPath(c.registryDir, name), &p)
	if errors.Is(err, fs.ErrNotExist) {
		return p, fmt.Errorf("finding process %q: cluster %q has none of that name; it has %s",
			name, c.record.Name, strings.Join(c.processNames(), ", "))
	}
	if err != nil {
		return p, fmt.Errorf("reading the record of process %q: %w", name, err)
	}
	return p, nil
}

func (c *Cluster) processNames() []string {
	records, _ := readProcesses(c.registryDir)
	var names []string
	for _, p := range records {
		names = append(names, p.Name)
	}
	return names
}

// launch starts the process and records it. It does not wait for health.
func (c *Cluster) launch(p processRecord) (processRecord, <-chan struct{}, error) {
	p.Paused, p.Killed = false, false
	p.ID = process.Identity{}
	if err := os.MkdirAll(filepath.Dir(p.Log), 0o700); err != nil {
		return p, nil, fmt.Errorf("making the directory of logs: %w", err)
	}
	id, done, err := c.launcher().Start(process.Command{
		Path: p.Path, Args: p.Args, Env: c.environment(p), Dir: p.Dir, LogPath: p.Log, Apart: p.Kind == kindReal,
	})
	if err != nil {
		return p, nil, fmt.Errorf("starting %s: %w", p.Name, err)
	}
	p.ID = id
	if err := writeJSON(processPath(c.registryDir, p.Name), p); err != nil {
		return p, done, errors.Join(err, id.Signal(syscall.SIGKILL))
	}
	if p.Kind == kindReal {
		if err := c.connectNode(p); err != nil {
			return p, done, errors.Join(err, id.Signal(syscall.SIGKILL))
		}
	}
	if p.Again {
		go c.startAgain(p, done)
	}
	return p, done, nil
}

// againAfter is the delay before a process that has ended by itself is restarted.
const againAfter = time.Second

// startAgain restarts a process when it ends, unless it was killed by [Cluster.Kill] or
// started again since.
func (c *Cluster) startAgain(p processRecord, done <-chan struct{}) {
	<-done
	time.Sleep(againAfter)
	c.verbs.Lock()
	defer c.verbs.Unlock()
	c.mu.Lock()
	stopped := c.stopped
	c.mu.Unlock()
	now, err := c.readProcess(p.Name)
	if stopped || err != nil || now.ID != p.ID || now.Killed {
		return
	}
	last := logTail(p.Log)
	if _, _, err := c.launch(now); err == nil && c.options.Log != nil {
		fmt.Fprintf(c.options.Log, "devcluster: %s had ended by itself, and was started again; its log %s ended with:\n%s\n", p.Name, p.Log, last)
	}
}

// environment returns a minimal environment for components, and the whole environment of
// this process for extra processes.
func (c *Cluster) environment(p processRecord) []string {
	var env []string
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		keep := p.Kind == kindExtra && name != clusterMark
		if keep || name == "PATH" || name == "HOME" || name == "TMPDIR" {
			env = append(env, entry)
		}
	}
	env = append(env, p.Env...)
	return append(env, clusterMark+"="+c.registryDir)
}

// startAndWait starts the process and returns when it is healthy.
func (c *Cluster) startAndWait(ctx context.Context, p processRecord) error {
	p, done, err := c.launch(p)
	if err != nil {
		return err
	}
	return c.waitReady(ctx, p, done)
}

// waitReady returns nil when the process is healthy, or an error with the reason why it
// cannot become healthy.
func (c *Cluster) waitReady(ctx context.Context, p processRecord, done <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ticker := time.NewTicker(readyInterval)
	defer ticker.Stop()
	for {
		err := c.probe(ctx, p)
		if err == nil {
			return nil
		}
		select {
		case <-done:
			return fmt.Errorf("starting %s: it ended; its log %s ends with:\n%s", p.Name, p.Log, logTail(p.Log))
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s to become healthy (%w): %w; its log %s ends with:\n%s",
				p.Name, ctx.Err(), err, p.Log, logTail(p.Log))
		case <-ticker.C:
		}
	}
}

// probe checks the process's health once. A process without a check is healthy
// while it runs.
func (c *Cluster) probe(ctx context.Context, p processRecord) error {
	if !p.ID.Alive() {
		return errors.New("the process does not run")
	}
	if ready := c.readyFunc(p.Name); ready != nil {
		return ready(ctx)
	}
	if p.Name == networkProcess {
		return c.networkReady(ctx)
	}
	if p.Health == nil {
		return nil
	}
	return p.Health.probe(ctx)
}

func logTail(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if len(data) > logTailBytes {
		data = data[len(data)-logTailBytes:]
	}
	return string(bytes.TrimSpace(data))
}

// Kill ends a process with SIGKILL and returns when it has ended. It is not started again
// before [Cluster.Restart]. For a simulated node, see [Cluster.Pause].
func (c *Cluster) Kill(ctx context.Context, name string) error {
	if simulated, err := c.isSimulatedNode(ctx, name); err != nil {
		return err
	} else if simulated {
		return c.silenceNode(ctx, name)
	}
	c.verbs.Lock()
	defer c.verbs.Unlock()
	p, err := c.readProcess(name)
	if err != nil {
		return err
	}
	return c.killLocked(ctx, p)
}

func (c *Cluster) killLocked(ctx context.Context, p processRecord) error {
	p.Killed = true
	if err := writeJSON(processPath(c.registryDir, p.Name), p); err != nil {
		return fmt.Errorf("killing %s: %w", p.Name, err)
	}
	if p.Kind == kindReal {
		if err := c.unplug(ctx, p.Name); err != nil {
			return fmt.Errorf("killing %s: %w", p.Name, err)
		}
	}
	if err := killAll(ctx, []process.Identity{p.ID}); err != nil {
		return fmt.Errorf("killing %s: %w", p.Name, err)
	}
	return nil
}

// Pause stops a process with SIGSTOP: it keeps its connections and does not answer. A
// simulated node has no process of its own: pausing or killing it stops the renewal of
// its Lease and does not change its pods, so that it becomes NotReady after the
// controller manager's grace period (50 s unless ComponentArgs sets
// --node-monitor-grace-period).
func (c *Cluster) Pause(ctx context.Context, name string) error {
	if simulated, err := c.isSimulatedNode(ctx, name); err != nil {
		return err
	} else if simulated {
		return c.silenceNode(ctx, name)
	}
	return c.setPaused(name, true)
}

// Resume continues a paused process. It does not wait until the process is healthy, but
// for a simulated node it waits until the node is Ready.
func (c *Cluster) Resume(ctx context.Context, name string) error {
	if simulated, err := c.isSimulatedNode(ctx, name); err != nil {
		return err
	} else if simulated {
		return c.reviveNode(ctx, name)
	}
	return c.setPaused(name, false)
}

func (c *Cluster) setPaused(name string, paused bool) error {
	c.verbs.Lock()
	defer c.verbs.Unlock()
	p, err := c.readProcess(name)
	if err != nil {
		return err
	}
	if !p.ID.Alive() {
		return fmt.Errorf("signalling %s: it does not run; restart it first", name)
	}
	signal := syscall.SIGCONT
	if paused {
		signal = syscall.SIGSTOP
	}
	if err := p.ID.Signal(signal); err != nil {
		return err
	}
	if paused {
		if err := waitStopped(p.ID); err != nil {
			return fmt.Errorf("pausing %s: %w", name, err)
		}
	}
	p.Paused = paused
	return writeJSON(processPath(c.registryDir, name), p)
}

// waitStopped returns when all threads of the process are stopped.
func waitStopped(id process.Identity) error {
	return wait.PollUntilContextTimeout(context.Background(), time.Millisecond, 10*time.Second, true, func(context.Context) (bool, error) {
		return id.Stopped(), nil
	})
}

// Restart kills the process if it runs, starts it again with the same
// arguments and returns when it is healthy.
func (c *Cluster) Restart(ctx context.Context, name string) error {
	if simulated, err := c.isSimulatedNode(ctx, name); err != nil {
		return err
	} else if simulated {
		return c.reviveNode(ctx, name)
	}
	c.verbs.Lock()
	defer c.verbs.Unlock()
	p, err := c.readProcess(name)
	if err != nil {
		return err
	}
	return c.restartLocked(ctx, p)
}

func (c *Cluster) restartLocked(ctx context.Context, p processRecord) error {
	if err := c.killLocked(ctx, p); err != nil {
		return err
	}
	if p.Name == Kwok {
		c.releaseLeases(ctx)
	}
	if p.Name == networkProcess {
		return c.restartNetwork(ctx, p)
	}
	return c.startAndWait(ctx, p)
}
