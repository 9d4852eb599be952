package devcluster

import (
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"time"

	"github.com/atoll-k8s/atoll/devcluster/binaries"
)

// Names of the components, for [Cluster.Kill] and similar methods, and for
// Options.ComponentArgs.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Kwok              = "kwok"
)

// AuditLevel is how much of each writing request is in the audit log.
type AuditLevel string

// Levels of the audit log.
const (
	AuditOff             AuditLevel = ""
	AuditMetadata        AuditLevel = "Metadata"
	AuditRequest         AuditLevel = "Request"
	AuditRequestResponse AuditLevel = "RequestResponse"
)

// DefaultStartTimeout bounds [Start], not including the building of binaries, if the
// context has no deadline.
const DefaultStartTimeout = 2 * time.Minute

// Options describe the cluster to start. The zero value is valid.
type Options struct {
	// Name of the cluster: a DNS label of at most 40 characters. Unset means a random
	// one. Several clusters can run at the same time under different names.
	Name string
	// Kubernetes is the version of the cluster, one of [binaries.KubernetesVersions], or its
	// minor version, such as 1.35. Unset means that of [binaries.KubernetesEnv], or else the
	// newest.
	Kubernetes string
	// Dir is the directory of the cluster's data, certificates and logs. It must be empty
	// or not exist yet. Unset means a directory in the cache.
	Dir string
	// KeepDir keeps Dir when the cluster is stopped, for its logs. In the cache
	// it is kept for a week, or until a cluster of the same name is started.
	KeepDir bool
	// SchedulerConfig is a KubeSchedulerConfiguration in YAML or JSON; unset means the
	// scheduler's default. The kubeconfig is always filled in; client limits and leader
	// election are filled in if they are unset.
	SchedulerConfig []byte
	// ComponentArgs are further command line arguments for each component, by its name.
	// They come last and have priority over the ones that this package sets.
	ComponentArgs map[string][]string
	// LowIdle makes the control plane use about half of the processor time while nothing
	// happens: each process has one processor, and the API server does not measure the sizes
	// of lists. It is for tests that run many clusters on a few processors, and not for measurements.
	LowIdle bool
	// PodStartDelay is the time from binding to Ready of pods on simulated nodes. Zero
	// means at once.
	PodStartDelay time.Duration
	// AuditLog makes the API server log every write to [Cluster.AuditLogPath].
	AuditLog AuditLevel
	// Log receives progress, a line at a time. Unset means none is shown.
	Log io.Writer
	// RealNodes lets the cluster have real nodes: see [Cluster.AddRealNodes]. [RealNodesMissing]
	// tells whether this machine can.
	RealNodes bool
	// Persistent clusters outlive the process that starts them, until a process attaches
	// and stops them. All others become leftovers when that process ends.
	Persistent bool

	// noDeathSignal starts the cluster's processes without a parent death signal, so that
	// only Sweep clears the cluster of a killed owner, as on systems without such
	// signals.
	noDeathSignal bool

	// dirInCache is true if Dir was unset.
	dirInCache bool
}

const maxNameLength = 40

var namePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// setDefaults fills in unset fields and refuses invalid ones.
func (o *Options) setDefaults() error {
	if o.Name == "" {
		o.Name = fmt.Sprintf("c%08x", rand.Uint32())
	}
	if len(o.Name) > maxNameLength || !namePattern.MatchString(o.Name) {
		return fmt.Errorf("checking the name of the cluster: %q is not a DNS label of at most %d characters", o.Name, maxNameLength)
	}
	version, err := binaries.FindKubernetes(o.Kubernetes)
	if err != nil {
		return err
	}
	o.Kubernetes = version
	if o.Log == nil {
		o.Log = io.Discard
	}
	if o.PodStartDelay < 0 {
		return fmt.Errorf("checking the pod start delay: %s is negative", o.PodStartDelay)
	}
	switch o.AuditLog {
	case AuditOff, AuditMetadata, AuditRequest, AuditRequestResponse:
	default:
		return fmt.Errorf("checking the audit level: %q is none of Metadata, Request, RequestResponse", o.AuditLog)
	}
	for name := range o.ComponentArgs {
		switch name {
		case Etcd, APIServer, ControllerManager, Scheduler, Kwok:
		default:
			return fmt.Errorf("checking the arguments of components: there is no component %q", name)
		}
	}
	if o.Dir == "" {
		data, err := dataDir()
		if err != nil {
			return err
		}
		o.Dir = filepath.Join(data, o.Name)
		o.dirInCache = true
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return fmt.Errorf("finding the directory of the cluster: %w", err)
	}
	o.Dir = dir
	return nil
}
