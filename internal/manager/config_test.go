package manager

import (
	"flag"
	"io"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/atoll-k8s/atoll/internal/controller/coordinator"
)

// parse parses a command line.
func parse(t *testing.T, args ...string) Config {
	t.Helper()
	var c Config
	fs := flag.NewFlagSet("atoll-manager", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	c.AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestFlags(t *testing.T) {
	defaults := Config{
		Namespace: "atoll-system", WebhookAddress: ":9443", ExtenderAddress: ":9444", HealthAddress: ":8081", MetricsAddress: ":8080",
		LeaderElect: true, LeaseDuration: 15 * time.Second, EvictionsPerSecond: 1, Assignment: AssignmentPolicy, Filter: FilterNarrow, CapacityClasses: "cloudpilot", CapacityFallback: 5 * time.Minute, NodeGrace: 50 * time.Second, Pools: true, GangConfig: DefaultGangConfig,
		CoordinatorImages: coordinator.Images{Own: "atoll-k8s/atoll-manager", Etcd: "gcr.io/etcd-development/etcd:v3.6.16", APIServer: "registry.k8s.io/kube-apiserver"},
	}
	changed := func(change func(*Config)) Config {
		c := defaults
		change(&c)
		return c
	}
	tests := map[string]struct {
		env  map[string]string
		args []string
		want Config
	}{
		"no flags": {want: defaults},
		"in a pod": {
			env:  map[string]string{"POD_NAMESPACE": "mine", "POD_IP": "10.0.0.1"},
			want: changed(func(c *Config) { c.Namespace, c.AdvertiseAddress = "mine", "10.0.0.1" }),
		},
		"a flag overrides the environment": {
			env: map[string]string{"POD_NAMESPACE": "mine"}, args: []string{"--namespace=other"},
			want: changed(func(c *Config) { c.Namespace = "other" }),
		},
		"names are split, trimmed and joined": {
			args: []string{"--names=a.example.com, 10.0.0.1 ,", "--names=b.example.com"},
			want: changed(func(c *Config) { c.Names = []string{"a.example.com", "10.0.0.1", "b.example.com"} }),
		},
		"another scheduler": {
			args: []string{"--scheduler-name=atoll-scheduler"},
			want: changed(func(c *Config) { c.SchedulerName = "atoll-scheduler" }),
		},
		"beside another program's pools": {
			args: []string{"--pools=false"},
			want: changed(func(c *Config) { c.Pools = false }),
		},
		"numbers": {
			args: []string{"--leader-elect=false", "--leader-elect-lease-duration=4s", "--evictions-per-second=0.5", "--capacity-fallback-after=90s"},
			want: changed(func(c *Config) {
				c.LeaderElect, c.LeaseDuration, c.EvictionsPerSecond, c.CapacityFallback = false, 4*time.Second, 0.5, 90*time.Second
			}),
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for _, key := range []string{"POD_NAMESPACE", "POD_IP"} {
				t.Setenv(key, tc.env[key])
			}
			if diff := cmp.Diff(tc.want, parse(t, tc.args...)); diff != "" {
				t.Errorf("wrong configuration (-want +got):\n%s", diff)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	tests := map[string]struct {
		change func(*Config)
		valid  bool
	}{
		"as it is by default":         {func(*Config) {}, true},
		"slow evictions":              {func(c *Config) { c.EvictionsPerSecond = 0.01 }, true},
		"no evictions":                {func(c *Config) { c.EvictionsPerSecond = 0 }, false},
		"a negative rate":             {func(c *Config) { c.EvictionsPerSecond = math.Inf(-1) }, false},
		"a lease of 3s":               {func(c *Config) { c.LeaseDuration = 3 * time.Second }, true},
		"a shorter lease":             {func(c *Config) { c.LeaseDuration = 3*time.Second - 1 }, false},
		"no namespace":                {func(c *Config) { c.Namespace = "" }, false},
		"another scheduler":           {func(c *Config) { c.SchedulerName = "atoll-scheduler" }, true},
		"a mark":                      {func(c *Config) { c.MarkResource = "atoll.dev/managed" }, true},
		"a mark without a domain":     {func(c *Config) { c.MarkResource = "managed" }, false},
		"a mark of Kubernetes":        {func(c *Config) { c.MarkResource = "node.kubernetes.io/managed" }, false},
		"a mark with a space":         {func(c *Config) { c.MarkResource = "atoll.dev/man aged" }, false},
		"a preset of classes":         {func(c *Config) { c.CapacityClasses = "gke" }, true},
		"pods that fall back at once": {func(c *Config) { c.CapacityFallback = 0 }, false},
		"no classes":                  {func(c *Config) { c.CapacityClasses = "None" }, true},
		"gangs":                       {func(c *Config) { c.Gangs, c.GangConfig = true, DefaultGangConfig }, true},
		"rules without a namespace":   {func(c *Config) { c.Gangs, c.GangConfig = true, "rules" }, false},
		"rules with two slashes":      {func(c *Config) { c.Gangs, c.GangConfig = true, "a/b/c" }, false},
		"an invalid scheduler name":   {func(c *Config) { c.GangSchedulers = []string{"Volcano!"} }, false},
		"an unknown preset":           {func(c *Config) { c.CapacityClasses = "aws" }, false},
		"classes as JSON": {func(c *Config) {
			c.CapacityClasses = `{"onDemand":{"demands":[{"key":"a","operator":"DoesNotExist"}]},"spot":{"demands":[{"key":"a","operator":"Exists"}]}}`
		}, true},
		"a class that is missing": {func(c *Config) {
			c.CapacityClasses = `{"onDemand":{"demands":[{"key":"a","operator":"DoesNotExist"}]}}`
		}, false},
		"a wide filter":          {func(c *Config) { c.Filter = FilterWide }, true},
		"another filter":         {func(c *Config) { c.Filter = "Open" }, false},
		"all seats at creation":  {func(c *Config) { c.Assignment = AssignmentEarly }, true},
		"another time for seats": {func(c *Config) { c.Assignment = "Late" }, false},
		"early assignment and a scheduler that calls the extender": {func(c *Config) { c.Assignment, c.SchedulerName = AssignmentEarly, "atoll-scheduler" }, false},
		"early assignment and a mark":                              {func(c *Config) { c.Assignment, c.MarkResource = AssignmentEarly, "atoll.dev/managed" }, false},
		"early assignment and a wide filter":                       {func(c *Config) { c.Assignment, c.Filter = AssignmentEarly, FilterWide }, false},
		"the default scheduler":                                    {func(c *Config) { c.SchedulerName = "default-scheduler" }, false},
		"a scheduler that no pod can name":                         {func(c *Config) { c.SchedulerName = "Atoll Scheduler" }, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("POD_NAMESPACE", "")
			t.Setenv("POD_IP", "")
			c := parse(t)
			tc.change(&c)
			if err := c.Validate(); (err == nil) != tc.valid {
				t.Errorf("error is %v, want none: %t", err, tc.valid)
			}
			if tc.valid && c.AdvertiseAddress == "" {
				t.Error("the advertised address is empty")
			}
		})
	}
}

func TestSplitAddress(t *testing.T) {
	tests := map[string]struct {
		address, host string
		port          int
		valid         bool
	}{
		"a port":                {":9443", "", 9443, true},
		"a host and a port":     {"127.0.0.1:9443", "127.0.0.1", 9443, true},
		"an IPv6 address":       {"[::1]:9443", "::1", 9443, true},
		"no port":               {"127.0.0.1", "", 0, false},
		"a port that is a word": {":https", "", 0, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			host, port, err := splitAddress(tc.address)
			if (err == nil) != tc.valid || host != tc.host || port != tc.port {
				t.Errorf("got %q, %d, %v", host, port, err)
			}
		})
	}
}

func TestServerNames(t *testing.T) {
	want := []string{"atoll-manager.mine.svc", "atoll-manager.mine.svc.cluster.local", "10.0.0.1"}
	if diff := cmp.Diff(want, serverNames(Config{Namespace: "mine", Names: []string{"10.0.0.1"}})); diff != "" {
		t.Errorf("wrong names (-want +got):\n%s", diff)
	}
}
