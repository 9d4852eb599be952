// Package manager creates and connects the components of atoll-manager: caches, ledger,
// controllers, webhooks, extender. It decides nothing.
package manager

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/controller/coordinator"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/connectivity"
	"github.com/atoll-k8s/atoll/internal/policies"
)

// DefaultGangConfig is the namespace/name of Volcano's ConfigMap (docs/sources.md, V3).
const DefaultGangConfig = "volcano-system/volcano-controller-configmap"

// Values of --filter.
const (
	FilterNarrow = "Narrow"
	FilterWide   = "Wide"
)

// Values of --assignment.
const (
	AssignmentPolicy = "Policy"
	AssignmentEarly  = "Early"
)

// Config is the configuration of atoll-manager. Each field is a flag; see AddFlags for
// defaults and Validate for bounds.
type Config struct {
	// Namespace holds the manager's Secrets and Lease.
	Namespace string
	// WebhookAddress, ExtenderAddress, HealthAddress and MetricsAddress are the
	// host:port to listen on. A MetricsAddress of "0" serves no metrics.
	WebhookAddress, ExtenderAddress, HealthAddress, MetricsAddress string
	// ProfileAddress is the host:port of net/http/pprof; "" serves none.
	ProfileAddress string
	// Names are further DNS names and IP addresses for the server certificate, beside
	// those of the Service.
	Names []string
	// AdvertiseAddress is the host under which other replicas reach the extender of this
	// replica. Validate sets it to 127.0.0.1 if it is empty.
	AdvertiseAddress string
	// MemoryLimit is the memory, in bytes, above which the process is killed; 0 if there is
	// no such limit. Garbage is collected more often when nine tenths of it are in use.
	MemoryLimit int64
	// LeaderElect turns leader election on. Only the leader decides.
	LeaderElect bool
	// LeaseDuration is how long after its last renewal a Lease is valid.
	LeaseDuration time.Duration
	// Assignment is Early or Policy. With Early every pod gets its group at creation,
	// and no kube-scheduler calls the extender. With Policy the PropagationPolicy
	// decides when.
	Assignment string
	// Filter is Narrow or Wide: whether the extender's filter keeps the nodes of one
	// group or of every group that lacks pods.
	Filter string
	// EvictionsPerSecond bounds the evictions of all workloads together.
	EvictionsPerSecond float64
	// SchedulerName is the scheduler for managed pods if the cluster's own
	// kube-scheduler does not call the extender. "" changes no pod.
	SchedulerName string
	// MarkResource is the extended resource that is added to managed pods with a
	// quantity of 0, so that kube-scheduler calls the extender for these pods only.
	// "" adds none.
	MarkResource string
	// CapacityClasses defines on-demand and spot nodes: the name of a preset, or
	// capacity.Classes as JSON. "None" turns capacity classes off.
	CapacityClasses string
	// CapacityFallback is how long a class has to be without nodes before pods fall
	// back to the other class, if their workload allows it.
	CapacityFallback time.Duration
	// ExcludedNamespaces are namespaces that the webhooks do not see, beside
	// kube-system, kube-node-lease and Namespace. Their pods get no capacity class.
	ExcludedNamespaces []string
	// Gangs turns PodGroups on for the pods of GangSchedulers.
	Gangs bool
	// GangSchedulers are the schedulers whose pods get PodGroups; volcano if empty.
	GangSchedulers []string
	// GangConfig is the namespace/name of the ConfigMap with the rules for PodGroups.
	GangConfig string
	// GangMultiScheduler is true if several schedulers divide pods among themselves by
	// the name of the pods' controller. A PodGroup then belongs to that controller or to
	// the pod, never to an owner above.
	GangMultiScheduler bool
	// Coordinators turns the controller of YurtCoordinators on. It needs Pools.
	Coordinators bool
	// CoordinatorImages are those of the pods of coordinators.
	CoordinatorImages coordinator.Images
	// NodeGrace is the --node-monitor-grace-period of kube-controller-manager; at least 40 s if Coordinators is true.
	NodeGrace time.Duration
	// Pools turns the controllers of NodePools and UnitedDeployments on. If it is false
	// their CustomResourceDefinitions may be missing, or another program may reconcile
	// them.
	Pools bool
}

// AddFlags binds the configuration to flags and sets the defaults.
func (c *Config) AddFlags(fs *flag.FlagSet) {
	namespace := os.Getenv("POD_NAMESPACE")
	if namespace == "" {
		namespace = "atoll-system"
	}
	fs.StringVar(&c.Namespace, "namespace", namespace, "namespace of the manager's Secrets and Lease (default: $POD_NAMESPACE)")
	fs.StringVar(&c.WebhookAddress, "webhook-address", ":9443", "host:port of the admission webhooks")
	fs.StringVar(&c.ExtenderAddress, "extender-address", ":9444", "host:port of the scheduler extender")
	fs.StringVar(&c.HealthAddress, "health-address", ":8081", "host:port of /healthz and /readyz, plain HTTP")
	fs.StringVar(&c.MetricsAddress, "metrics-address", ":8080", `host:port of /metrics, HTTPS with Kubernetes authentication; "0" serves none`)
	fs.StringVar(&c.ProfileAddress, "profile-address", "", "host:port of /debug/pprof, plain HTTP without authentication, so use a loopback address; empty serves none")
	memory, _ := strconv.ParseInt(os.Getenv("MEMORY_LIMIT"), 10, 64) // a value that cannot be read is no limit
	fs.Int64Var(&c.MemoryLimit, "memory-limit", memory, "bytes of memory above which the process is killed: garbage is collected more often when nine tenths of them are in use (default: $MEMORY_LIMIT; 0: there is no limit; $GOMEMLIMIT, if it is set, has priority)")
	list := func(into *[]string) func(string) error {
		return func(s string) error {
			for name := range strings.SplitSeq(s, ",") {
				if name = strings.TrimSpace(name); name != "" {
					*into = append(*into, name)
				}
			}
			return nil
		}
	}
	fs.Func("names", "comma-separated DNS names and IP addresses, beside the Service's, under which the webhooks and the extender are reached", list(&c.Names))
	fs.Func("excluded-namespaces", "comma-separated namespaces, beside kube-system, kube-node-lease and the manager's own, that the webhooks do not see: their pods are not divided over capacity classes", list(&c.ExcludedNamespaces))
	fs.StringVar(&c.AdvertiseAddress, "advertise-address", os.Getenv("POD_IP"), "IP address or host name under which other replicas reach this one (default: $POD_IP, else 127.0.0.1)")
	fs.BoolVar(&c.LeaderElect, "leader-elect", true, "elect a leader among the replicas; only the leader decides")
	fs.DurationVar(&c.LeaseDuration, "leader-elect-lease-duration", 15*time.Second, "how long a leader that does not renew its Lease stays the leader; at least 3s")
	fs.StringVar(&c.Assignment, "assignment", AssignmentPolicy, "when pods get their NodeGroup: Policy, as spec.assignment of their PropagationPolicy says, which needs a kube-scheduler that calls the extender; or Early, always at creation, which needs none")
	fs.StringVar(&c.Filter, "filter", FilterNarrow, "nodes that the extender's filter keeps: Narrow, those of one group, in which it reserves the seat; or Wide, those of every group that lacks pods, which needs prioritizeVerb in kube-scheduler's configuration and makes kube-scheduler retry pods that find no seat left")
	fs.Float64Var(&c.EvictionsPerSecond, "evictions-per-second", 1, "maximum rate of the evictions of all workloads together; a burst may be as large as the evictions of ten seconds")
	fs.StringVar(&c.SchedulerName, "scheduler-name", "", "scheduler for the pods of workloads that require a policy, unless they name another than the default one; unset changes no pod")
	fs.StringVar(&c.MarkResource, "mark-resource", "", "extended resource that is added with a quantity of 0 to the pods of workloads that require a policy, for a kube-scheduler that calls the extender for pods with this resource only; unset adds none")
	fs.StringVar(&c.CapacityClasses, "capacity-classes", capacity.DefaultPreset, "how on-demand and spot nodes are recognized: cloudpilot, karpenter, eks, gke, aks, or a JSON object with onDemand and spot, each with demands and tolerations; None turns capacity classes off")
	fs.DurationVar(&c.CapacityFallback, "capacity-fallback-after", policies.DefaultFallback, "how long a capacity class has to be without nodes before pods of workloads with the annotation atoll.dev/capacity-on-empty-class: Fallback get the other class; set it longer than an autoscaler needs to create a node")
	fs.BoolVar(&c.Gangs, "gangs", false, "create PodGroups (scheduling.volcano.sh/v1beta1) for the pods of --gangs-schedulers that name none")
	fs.Func("gangs-schedulers", "comma-separated schedulers whose pods get PodGroups (default: volcano)", list(&c.GangSchedulers))
	fs.StringVar(&c.GangConfig, "gangs-config", DefaultGangConfig, "namespace/name of the ConfigMap with the rules for PodGroups, under the key volcano-controller.conf")
	fs.BoolVar(&c.GangMultiScheduler, "gangs-multi-scheduler", false, "several gang schedulers divide pods among themselves by the name of the pods' controller (MULTI_SCHEDULER_ENABLE), so no owner above the controller gets the PodGroup")
	fs.BoolVar(&c.Coordinators, "coordinators", false, "deploy a coordinator for each YurtCoordinator; it needs --pools")
	fs.StringVar(&c.CoordinatorImages.Own, "coordinator-image", "atoll-k8s/atoll-manager", "image of atoll-coordinator in the pods of coordinators: that of atoll-manager has it")
	fs.StringVar(&c.CoordinatorImages.Etcd, "coordinator-etcd-image", "gcr.io/etcd-development/etcd:v3.6.16", "image of etcd in the pods of coordinators")
	fs.StringVar(&c.CoordinatorImages.APIServer, "coordinator-apiserver-image", "registry.k8s.io/kube-apiserver", "image of kube-apiserver in the pods of coordinators, without a tag: spec.version is the tag")
	fs.Func("coordinator-pull-secrets", "comma-separated names of secrets, in the namespace of coordinators, for their images", func(s string) error {
		for name := range strings.SplitSeq(s, ",") {
			c.CoordinatorImages.PullSecrets = append(c.CoordinatorImages.PullSecrets, corev1.LocalObjectReference{Name: strings.TrimSpace(name)})
		}
		return nil
	})
	fs.DurationVar(&c.NodeGrace, "node-monitor-grace-period", 50*time.Second, "the flag of this name of kube-controller-manager: after how much silence it takes a node for dead; nodes of pools with a coordinator are judged by it, too")
	fs.BoolVar(&c.Pools, "pools", true, "reconcile NodePools and UnitedDeployments; set it to false if another program, such as OpenYurt, does")
}

// Validate returns an error for the first flag whose value cannot be used. It sets the
// default of AdvertiseAddress.
func (c *Config) Validate() error {
	if c.EvictionsPerSecond <= 0 {
		return fmt.Errorf("--evictions-per-second is %v: it must be above 0 (to stop evictions, set spec.rescheduling.mode of the policies)", c.EvictionsPerSecond)
	}
	if c.LeaseDuration < 3*time.Second {
		return fmt.Errorf("--leader-elect-lease-duration is %s: it must be at least 3s", c.LeaseDuration)
	}
	if _, err := c.classes(); err != nil {
		return err
	}
	if c.CapacityFallback <= 0 {
		return fmt.Errorf("--capacity-fallback-after is %s: it must be above 0 (to make pods wait, leave %s unset)", c.CapacityFallback, gm.CapacityOnEmptyKey)
	}
	if namespace, name, ok := strings.Cut(c.GangConfig, "/"); c.Gangs && (!ok || namespace == "" || name == "" || strings.Contains(name, "/")) {
		return fmt.Errorf("--gangs-config is %.300q: it must be the namespace and the name of a ConfigMap, as in %s", c.GangConfig, DefaultGangConfig)
	}
	for _, name := range c.GangSchedulers {
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
			return fmt.Errorf("--gangs-schedulers has %q: %s", name, problems[0])
		}
	}
	if c.Assignment != AssignmentPolicy && c.Assignment != AssignmentEarly {
		return fmt.Errorf("--assignment is %q: it must be %s or %s", c.Assignment, AssignmentPolicy, AssignmentEarly)
	}
	if c.Assignment == AssignmentEarly && (c.SchedulerName != "" || c.MarkResource != "" || c.Filter != FilterNarrow) {
		return errors.New("--assignment is Early, so no kube-scheduler calls the extender: --scheduler-name, --mark-resource and --filter must be unset")
	}
	if c.Filter != FilterNarrow && c.Filter != FilterWide {
		return fmt.Errorf("--filter is %q: it must be %s or %s", c.Filter, FilterNarrow, FilterWide)
	}
	if c.Coordinators && !c.Pools {
		return errors.New("--coordinators needs --pools: coordinators are of NodePools, and a UnitedDeployment deploys them")
	}
	if err := connectivity.CheckGrace(c.NodeGrace); c.Coordinators && err != nil {
		return err
	}
	if c.AdvertiseAddress == "" {
		c.AdvertiseAddress = "127.0.0.1"
	}
	if c.Namespace == "" {
		return errors.New("--namespace is empty: name the namespace of the manager's Secrets and Lease")
	}
	if c.SchedulerName == corev1.DefaultSchedulerName {
		return fmt.Errorf("--scheduler-name is %s: leave it unset if that scheduler calls the extender", c.SchedulerName)
	}
	if problems := validation.IsDNS1123Subdomain(c.SchedulerName); c.SchedulerName != "" && len(problems) > 0 {
		return fmt.Errorf("--scheduler-name is %q: %s", c.SchedulerName, problems[0])
	}
	if c.MarkResource != "" && (len(validation.IsQualifiedName(c.MarkResource)) > 0 || !strings.Contains(c.MarkResource, "/") || strings.Contains(c.MarkResource, "kubernetes.io/")) {
		return fmt.Errorf("--mark-resource is %q: it must be the name of an extended resource, such as example.com/managed", c.MarkResource)
	}
	return nil
}

// capacityNone is the value of --capacity-classes that turns capacity classes off.
const capacityNone = "None"

// classes returns the classes of --capacity-classes; nil if they are off.
func (c *Config) classes() (*capacity.Classes, error) {
	if c.CapacityClasses == "" || c.CapacityClasses == capacityNone {
		return nil, nil
	}
	classes, known := capacity.Presets()[c.CapacityClasses]
	if !known {
		decoder := json.NewDecoder(strings.NewReader(c.CapacityClasses))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&classes); err != nil {
			return nil, fmt.Errorf("--capacity-classes is %.200q: it must be %s, %s or a JSON object: %w",
				c.CapacityClasses, strings.Join(slices.Sorted(maps.Keys(capacity.Presets())), ", "), capacityNone, err)
		}
	}
	ready, err := classes.Ready()
	if err != nil {
		return nil, fmt.Errorf("--capacity-classes: %w", err)
	}
	return &ready, nil
}

// extenderInUse returns true if some kube-scheduler calls the extender.
func (c *Config) extenderInUse() bool { return c.Assignment != AssignmentEarly }

// gangConfig returns the name of the ConfigMap of --gangs-config.
func (c *Config) gangConfig() types.NamespacedName {
	namespace, name, _ := strings.Cut(c.GangConfig, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// gangSchedulers returns the schedulers of --gangs-schedulers, or the default.
func (c *Config) gangSchedulers() []string {
	if len(c.GangSchedulers) == 0 {
		return []string{scheduling.DefaultSchedulerName}
	}
	return c.GangSchedulers
}
