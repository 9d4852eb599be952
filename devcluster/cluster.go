package devcluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-k8s/atoll/devcluster/binaries"
	"github.com/atoll-k8s/atoll/devcluster/internal/pki"
	"github.com/atoll-k8s/atoll/devcluster/internal/process"
)

// Cluster is a running cluster. Its methods may be called from several goroutines.
type Cluster struct {
	record      record
	registryDir string // the cluster's own directory in the registry
	options     Options
	ca          *pki.CA
	config      *rest.Config
	client      kubernetes.Interface

	verbs sync.Mutex // serialises kill, pause, resume and restart

	mu        sync.Mutex // guards the fields below
	launching *process.Launcher
	ready     map[string]func(context.Context) error
	stopped   bool
}

// Start starts a cluster and returns when its API server is ready, its
// controller manager and scheduler are healthy and pods can be created in the
// namespace default. The context bounds the start, not the cluster's life.
// The first start on a machine builds the programs, which takes minutes.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	if err := options.setDefaults(); err != nil {
		return nil, err
	}
	if swept, err := Sweep(ctx); err != nil {
		fmt.Fprintln(options.Log, "devcluster: some leftovers of earlier runs could not be cleared:", err)
	} else if len(swept) > 0 {
		fmt.Fprintln(options.Log, "devcluster: cleared leftovers of earlier runs:", swept)
	}
	set, err := binaries.Ensure(ctx, options.Kubernetes, options.Log)
	if err != nil {
		return nil, err
	}
	var nodes binaries.Set
	if options.RealNodes {
		if err := RealNodesMissing(); err != nil {
			return nil, err
		}
		if nodes, err = binaries.EnsureNodes(ctx, options.Kubernetes, options.Log); err != nil {
			return nil, err
		}
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultStartTimeout)
		defer cancel()
	}
	c, err := create(ctx, options, set, nodes)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := c.start(ctx); err != nil {
		c.record.KeepDir = true // its logs say why
		stopErr := c.Stop(context.WithoutCancel(ctx))
		return nil, errors.Join(fmt.Errorf("starting cluster %q (its logs stay in %s): %w", options.Name, c.record.Dir, err), stopErr)
	}
	fmt.Fprintf(options.Log, "devcluster: cluster %s is ready after %s\n", options.Name, time.Since(began).Round(10*time.Millisecond))
	return c, nil
}

// create reserves the name and creates the directory.
func create(ctx context.Context, options Options, set, nodes binaries.Set) (*Cluster, error) {
	// What is in the cache is left from a cluster of this name that is gone: start removes it.
	if entries, err := os.ReadDir(options.Dir); err == nil && len(entries) > 0 && !options.dirInCache {
		return nil, fmt.Errorf("making the cluster's directory: %s is not empty; choose another or remove it", options.Dir)
	}
	owner, err := process.Self()
	if err != nil {
		return nil, err
	}
	r := record{
		Name: options.Name, Kubernetes: options.Kubernetes, Dir: options.Dir, KeepDir: options.KeepDir,
		Persistent: options.Persistent, Owner: owner, Created: time.Now(), BinDir: set.Dir, NodesDir: nodes.Dir,
	}
	for _, port := range []*int{&r.APIServerPort, &r.EtcdPort, &r.EtcdPeerPort} {
		if *port, err = FreePort(); err != nil {
			return nil, err
		}
	}
	if err := claim(ctx, r); err != nil {
		return nil, err
	}
	registry, err := registryDir()
	if err != nil {
		return nil, err
	}
	return &Cluster{record: r, registryDir: filepath.Join(registry, r.Name), options: options}, nil
}

// start runs the components: etcd and the API server side by side, and the
// others once there is an API to talk to.
func (c *Cluster) start(ctx context.Context) error {
	if c.options.dirInCache {
		if err := os.RemoveAll(c.record.Dir); err != nil {
			return fmt.Errorf("removing what an earlier cluster of this name has left: %w", err)
		}
	}
	if err := os.MkdirAll(c.record.Dir, 0o700); err != nil {
		return fmt.Errorf("making the cluster's directory: %w", err)
	}
	if c.options.RealNodes {
		if err := c.startNetwork(ctx); err != nil {
			return err
		}
	}
	if err := c.makeCredentials(); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	apiServer, err := c.apiServerProcess()
	if err != nil {
		return err
	}
	if err := c.startTogether(ctx, c.etcdProcess(), apiServer); err != nil {
		return err
	}
	controllerManager, err := c.controllerManagerProcess()
	if err != nil {
		return err
	}
	scheduler, err := c.schedulerProcess(Scheduler, c.kubeconfigPath("system:"+Scheduler), c.options.SchedulerConfig)
	if err != nil {
		return err
	}
	kwok, err := c.kwokProcess()
	if err != nil {
		return err
	}
	if err := c.startTogether(ctx, controllerManager, scheduler, kwok); err != nil {
		return err
	}
	return c.waitUsable(ctx)
}

// startTogether starts the processes and returns when all are healthy.
func (c *Cluster) startTogether(ctx context.Context, processes ...processRecord) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make(chan error, len(processes))
	for _, p := range processes {
		go func() { errs <- c.startAndWait(ctx, p) }()
	}
	var first error
	for range processes {
		if err := <-errs; err != nil && first == nil {
			first = err
			cancel()
		}
	}
	return first
}

// waitUsable waits for the default service account, without which no pod can be created.
func (c *Cluster) waitUsable(ctx context.Context) error {
	err := wait.PollUntilContextCancel(ctx, readyInterval, true, func(ctx context.Context) (bool, error) {
		_, err := c.client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return fmt.Errorf("waiting for the default service account: %w", err)
	}
	return nil
}

// connect creates the administrator's client.
func (c *Cluster) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", c.KubeconfigPath())
	if err != nil {
		return fmt.Errorf("reading the administrator's kubeconfig: %w", err)
	}
	config.QPS = -1
	c.config = config
	compact := c.AdminConfig()
	compact.ContentType = runtime.ContentTypeProtobuf
	compact.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	c.client, err = kubernetes.NewForConfig(compact)
	if err != nil {
		return fmt.Errorf("making the administrator's client: %w", err)
	}
	return nil
}

// Attach returns a cluster that another process has started. Stop stops the cluster for
// all processes. The Ready functions of its extra processes are not available here.
func Attach(_ context.Context, name string) (*Cluster, error) {
	registry, err := registryDir()
	if err != nil {
		return nil, err
	}
	r, err := readRecord(registry, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("attaching to cluster %q: there is no cluster with this name: %w", name, fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	c := &Cluster{record: r, registryDir: filepath.Join(registry, name)}
	if c.ca, err = pki.LoadCA(c.pkiPath("ca.crt"), c.pkiPath("ca.key")); err != nil {
		return nil, fmt.Errorf("attaching to cluster %q (if its start has failed, take it down): %w", name, err)
	}
	return c, c.connect()
}

// Stop kills all processes of the cluster, hollow nodes and extra processes included, and
// removes its directory unless Options.KeepDir says otherwise. Stopping a cluster twice
// returns no error.
func (c *Cluster) Stop(ctx context.Context) error {
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	if err := c.removeIfCurrent(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.launching != nil {
		c.launching.Close()
	}
	return nil
}

func (c *Cluster) removeIfCurrent(ctx context.Context) error {
	registry, unlock, err := lockRegistry(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	current, err := readRecord(registry, c.record.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // stopped earlier, by this process or by another
	case err != nil:
		return err
	case current.Owner != c.record.Owner || !current.Created.Equal(c.record.Created):
		return nil // the name belongs to a newer cluster by now
	default:
		return remove(ctx, registry, c.record)
	}
}

// launcher returns the thread that this process starts the cluster's processes
// from. Only the owner's processes die with it.
func (c *Cluster) launcher() *process.Launcher {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.launching == nil {
		self, err := process.Self()
		owned := err == nil && self == c.record.Owner
		c.launching = process.NewLauncher(owned && !c.record.Persistent && !c.options.noDeathSignal)
		if c.stopped {
			c.launching.Close()
		}
	}
	return c.launching
}

// Name returns the cluster's name.
func (c *Cluster) Name() string { return c.record.Name }

// Dir returns the directory of the cluster's data, certificates and logs.
func (c *Cluster) Dir() string { return c.record.Dir }

// AdminConfig returns a client configuration of a cluster administrator
// without a client-side limit of requests. The caller may change it.
func (c *Cluster) AdminConfig() *rest.Config { return rest.CopyConfig(c.config) }

// KubeconfigPath returns the administrator's kubeconfig.
func (c *Cluster) KubeconfigPath() string { return c.kubeconfigPath("kubernetes-admin") }

// KubernetesVersion returns the cluster's version of Kubernetes, for example v1.36.3.
func (c *Cluster) KubernetesVersion() string { return c.record.Kubernetes }

// BinaryPath returns the path of a program of the cluster's version, for
// example "kubectl".
func (c *Cluster) BinaryPath(name string) string { return filepath.Join(c.record.BinDir, name) }

// LogPath returns the log file of a process. Restarts append to it.
func (c *Cluster) LogPath(name string) string {
	return filepath.Join(c.record.Dir, "logs", name+".log")
}

// FreePort returns a port of 127.0.0.1 without a listener, outside the range of outgoing
// connections, and never the same one twice in a process.
func FreePort() (int, error) { return process.FreePort() }
