// Package manager puts the parts of atoll-manager together: caches, ledger,
// controllers, webhooks, extender. It holds no decisions.
package manager

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/policies"
)

// DefaultGangConfig is Volcano's ConfigMap (docs/sources.md, V3).
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

// Config is what the command line of atoll-manager says.
type Config struct {
	// Namespace is where the manager's Secrets and Lease are.
	Namespace string
	// WebhookAddress, ExtenderAddress, HealthAddress and MetricsAddress are
	// host:port to listen on.
	WebhookAddress, ExtenderAddress, HealthAddress, MetricsAddress string
	// ProfileAddress is host:port of net/http/pprof; "" is off.
	ProfileAddress string
	// Names are DNS names and IP addresses, beside those of the Service, under
	// which the webhooks and the extender are reached.
	Names []string
	// AdvertiseAddress is the host under which other replicas reach this one's
	// extender.
	AdvertiseAddress string
	// LeaderElect makes replicas agree on one that decides.
	LeaderElect bool
	// LeaseDuration is how long a leader that is not heard of keeps its place.
	LeaseDuration time.Duration
	// Assignment is Early or Policy: whether every pod gets its seat at creation,
	// because nobody asks the extender, or as its PropagationPolicy says.
	Assignment string
	// Filter is Narrow or Wide: whether the extender's filter keeps one group or
	// every group that lacks pods.
	Filter string
	// EvictionsPerSecond bounds the evictions of all workloads together.
	EvictionsPerSecond float64
	// SchedulerName is the scheduler that managed pods are given where the
	// cluster's own does not ask the extender. Unset leaves them to theirs.
	SchedulerName string
	// MarkResource is the extended resource by which a kube-scheduler that asks
	// the extender only about managed pods knows them. Unset marks no pod.
	MarkResource string
	// CapacityClasses say how on-demand and spot nodes are known: the name of a
	// preset, or capacity.Classes as JSON. "None" leaves classes of capacity alone.
	CapacityClasses string
	// CapacityFallback is after how long without a node pods of a class fall back to
	// the other one, where their workload says so.
	CapacityFallback time.Duration
	// ExcludedNamespaces are those whose pods no webhook of ours sees, beside
	// kube-system, kube-node-lease and Namespace. Their pods are not divided.
	ExcludedNamespaces []string
	// Gangs: pods of GangSchedulers get PodGroups.
	Gangs bool
	// GangSchedulers are the schedulers whose pods get PodGroups.
	GangSchedulers []string
	// GangConfig is the ConfigMap that holds the rules for PodGroups, as namespace/name.
	GangConfig string
	// GangMultiScheduler: several schedulers share pods out by the name of their
	// controller, so that no PodGroup may be above it.
	GangMultiScheduler bool
	// Pools: NodePools and UnitedDeployments are reconciled. Without, their kinds
	// need not exist, or are another program's.
	Pools bool
}

// AddFlags binds the configuration to flags, with defaults.
func (c *Config) AddFlags(fs *flag.FlagSet) {
	namespace := os.Getenv("POD_NAMESPACE")
	if namespace == "" {
		namespace = "atoll-system"
	}
	fs.StringVar(&c.Namespace, "namespace", namespace, "namespace of the manager's Secrets and Lease (default: $POD_NAMESPACE)")
	fs.StringVar(&c.WebhookAddress, "webhook-address", ":9443", "host:port of the admission webhooks")
	fs.StringVar(&c.ExtenderAddress, "extender-address", ":9444", "host:port of the scheduler extender")
	fs.StringVar(&c.HealthAddress, "health-address", ":8081", "host:port of /healthz and /readyz, plain HTTP")
	fs.StringVar(&c.MetricsAddress, "metrics-address", ":8080", `host:port of /metrics, HTTPS with Kubernetes authentication; "0" is off`)
	fs.StringVar(&c.ProfileAddress, "profile-address", "", "host:port of /debug/pprof, plain HTTP without authentication: use a loopback address; empty is off")
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
	fs.Func("names", "comma-separated DNS names and IP addresses, beside the Service's, under which webhooks and extender are reached", list(&c.Names))
	fs.Func("excluded-namespaces", "comma-separated namespaces, beside kube-system, kube-node-lease and the manager's own, whose pods are kept from the webhooks: they are not divided over classes of capacity", list(&c.ExcludedNamespaces))
	fs.StringVar(&c.AdvertiseAddress, "advertise-address", os.Getenv("POD_IP"), "IP address or host name under which other replicas reach this one (default: $POD_IP, else 127.0.0.1)")
	fs.BoolVar(&c.LeaderElect, "leader-elect", true, "agree with other replicas on one that decides")
	fs.DurationVar(&c.LeaseDuration, "leader-elect-lease-duration", 15*time.Second, "how long a leader that is not heard of keeps its place; at least 3s")
	fs.StringVar(&c.Assignment, "assignment", AssignmentPolicy, "when pods get their NodeGroup: Policy is as spec.assignment of their PropagationPolicy says, and needs a kube-scheduler that asks the extender; Early is at creation, all of them, and needs none")
	fs.StringVar(&c.Filter, "filter", FilterNarrow, "what the extender's filter keeps: Narrow is the group whose turn it is, and reserves the seat; Wide is every group that lacks pods: needs prioritizeVerb in kube-scheduler's configuration, and tries pods again that come too late")
	fs.Float64Var(&c.EvictionsPerSecond, "evictions-per-second", 1, "bound on the evictions of all workloads together; bursts of as many as ten seconds' worth")
	fs.StringVar(&c.SchedulerName, "scheduler-name", "", "scheduler of the pods whose workload requires a policy, if they name none but the default one; unset leaves them to theirs")
	fs.StringVar(&c.MarkResource, "mark-resource", "", "extended resource of which the pods whose workload requires a policy ask for none, for a kube-scheduler whose extender manages it; unset marks no pod")
	fs.StringVar(&c.CapacityClasses, "capacity-classes", capacity.DefaultPreset, "how on-demand and spot nodes are known: cloudpilot, karpenter, eks, gke, aks, or a JSON object with onDemand and spot, each with demands and tolerations; None leaves all pods alone")
	fs.DurationVar(&c.CapacityFallback, "capacity-fallback-after", policies.DefaultFallback, "how long a class of capacity has no node before pods of workloads with the annotation atoll.dev/capacity-on-empty-class: Fallback get the other one: longer than it takes to make nodes")
	fs.BoolVar(&c.Gangs, "gangs", false, "give PodGroups (scheduling.volcano.sh/v1beta1) to the pods of --gangs-schedulers that name none")
	fs.Func("gangs-schedulers", "comma-separated schedulers whose pods get PodGroups (default: volcano)", list(&c.GangSchedulers))
	fs.StringVar(&c.GangConfig, "gangs-config", DefaultGangConfig, "namespace/name of the ConfigMap that says which owner has the PodGroup, under the key volcano-controller.conf")
	fs.BoolVar(&c.GangMultiScheduler, "gangs-multi-scheduler", false, "several gang schedulers share pods out by the name of their controller (MULTI_SCHEDULER_ENABLE): no PodGroup is above it")
	fs.BoolVar(&c.Pools, "pools", true, "reconcile NodePools and UnitedDeployments; false where another program does, such as OpenYurt's")
}

// Validate names what cannot be.
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
		return errors.New("--assignment is Early, so nobody asks the extender: --scheduler-name, --mark-resource and --filter must be unset")
	}
	if c.Filter != FilterNarrow && c.Filter != FilterWide {
		return fmt.Errorf("--filter is %q: it must be %s or %s", c.Filter, FilterNarrow, FilterWide)
	}
	if c.AdvertiseAddress == "" {
		c.AdvertiseAddress = "127.0.0.1"
	}
	if c.Namespace == "" {
		return errors.New("--namespace is empty: name the namespace of the manager's Secrets and Lease")
	}
	if c.SchedulerName == corev1.DefaultSchedulerName {
		return fmt.Errorf("--scheduler-name is %s: leave it unset where that scheduler asks the extender", c.SchedulerName)
	}
	if problems := validation.IsDNS1123Subdomain(c.SchedulerName); c.SchedulerName != "" && len(problems) > 0 {
		return fmt.Errorf("--scheduler-name is %q: %s", c.SchedulerName, problems[0])
	}
	if c.MarkResource != "" && (len(validation.IsQualifiedName(c.MarkResource)) > 0 || !strings.Contains(c.MarkResource, "/") || strings.Contains(c.MarkResource, "kubernetes.io/")) {
		return fmt.Errorf("--mark-resource is %q: it must be the name of an extended resource, such as example.com/managed", c.MarkResource)
	}
	return nil
}

// capacityNone is the value of --capacity-classes that leaves all pods alone.
const capacityNone = "None"

// classes are those of --capacity-classes; nil for none.
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

// asked tells whether some kube-scheduler asks the extender.
func (c *Config) asked() bool { return c.Assignment != AssignmentEarly }

// gangConfig names the ConfigMap of --gangs-config.
func (c *Config) gangConfig() types.NamespacedName {
	namespace, name, _ := strings.Cut(c.GangConfig, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// gangSchedulers are those of --gangs-schedulers.
func (c *Config) gangSchedulers() []string {
	if len(c.GangSchedulers) == 0 {
		return []string{scheduling.DefaultSchedulerName}
	}
	return c.GangSchedulers
}
