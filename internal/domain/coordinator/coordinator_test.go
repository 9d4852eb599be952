package coordinator

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
)

func of(name, pool, version string, age int) apps.YurtCoordinator {
	return apps.YurtCoordinator{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(int64(1_000_000-age), 0)},
		Spec:       apps.YurtCoordinatorSpec{NodePool: pool, Version: version},
	}
}

func TestDecide(t *testing.T) {
	for name, tc := range map[string]struct {
		version  string
		pool     Pool
		missing  bool
		others   []apps.YurtCoordinator
		deployed bool
		cluster  string
		runs     string
		want     Decision
	}{
		"a pool of three nodes":                        {pool: Pool{Nodes: 3}, want: Decision{IsDeployed: true, Version: "v1.36.3"}},
		"a version":                                    {version: "v1.36.1", pool: Pool{Nodes: 3}, want: Decision{IsDeployed: true, Version: "v1.36.1"}},
		"a version without v":                          {version: "1.35.9", pool: Pool{Nodes: 3}, want: Decision{IsDeployed: true, Version: "v1.35.9"}},
		"the next minor version":                       {version: "v1.37.0", pool: Pool{Nodes: 3}, want: Decision{IsDeployed: true, Version: "v1.37.0"}},
		"the version of a distribution":                {cluster: "v1.36.3+k3s1", pool: Pool{Nodes: 3}, want: Decision{IsDeployed: true, Version: "v1.36.3"}},
		"the pool does not exist":                      {missing: true, deployed: true, want: Decision{Reason: apps.ReasonNodePoolMissing}},
		"two nodes":                                    {pool: Pool{Nodes: 2}, want: Decision{Reason: apps.ReasonFewNodes}},
		"two nodes are left of three":                  {pool: Pool{Nodes: 2}, deployed: true, want: Decision{IsDeployed: true, Version: "v1.36.3"}},
		"no node is left":                              {deployed: true, want: Decision{IsDeployed: true, Version: "v1.36.3"}},
		"an older one has the pool":                    {pool: Pool{Nodes: 3}, deployed: true, others: []apps.YurtCoordinator{of("z", "edge", "", 20)}, want: Decision{Reason: apps.ReasonAnotherCoordinator}},
		"a younger one wants the pool":                 {pool: Pool{Nodes: 3}, others: []apps.YurtCoordinator{of("a", "edge", "", 5)}, want: Decision{IsDeployed: true, Version: "v1.36.3"}},
		"one of the same age":                          {pool: Pool{Nodes: 3}, others: []apps.YurtCoordinator{of("a", "edge", "", 10)}, want: Decision{Reason: apps.ReasonAnotherCoordinator}},
		"one of another pool":                          {pool: Pool{Nodes: 3}, others: []apps.YurtCoordinator{of("a", "cloud", "", 20)}, want: Decision{IsDeployed: true, Version: "v1.36.3"}},
		"a node is autonomous":                         {pool: Pool{Nodes: 3, Autonomous: []string{"a"}}, want: Decision{Reason: apps.ReasonNodeAutonomy}},
		"a node becomes autonomous later":              {pool: Pool{Nodes: 3, Autonomous: []string{"a", "b", "c", "d"}}, deployed: true, want: Decision{IsDeployed: true, Version: "v1.36.3", Reason: apps.ReasonNodeAutonomy}},
		"one API server of several is older":           {cluster: "v1.35.9", runs: "v1.36.3", pool: Pool{Nodes: 3}, deployed: true, want: Decision{IsDeployed: true, Version: "v1.36.3"}},
		"the cluster is upgraded":                      {cluster: "v1.37.1", runs: "v1.36.3", pool: Pool{Nodes: 3}, deployed: true, want: Decision{IsDeployed: true, Version: "v1.37.1"}},
		"the cluster is made anew of an older version": {cluster: "v1.34.1", runs: "v1.36.3", pool: Pool{Nodes: 3}, deployed: true, want: Decision{IsDeployed: true, Version: "v1.34.1"}},
		"a cluster that is too old":                    {cluster: "v1.33.9", pool: Pool{Nodes: 3}, want: Decision{Reason: apps.ReasonVersionNotSupported}},
		"a version that is too old for the files":      {cluster: "v1.34.0", version: "v1.33.0", pool: Pool{Nodes: 3}, want: Decision{Reason: apps.ReasonVersionNotSupported}},
		"a version that is too old":                    {version: "v1.34.0", pool: Pool{Nodes: 3}, want: Decision{Reason: apps.ReasonVersionNotSupported}},
		"a version that is too new":                    {version: "v1.38.0", pool: Pool{Nodes: 3}, want: Decision{Reason: apps.ReasonVersionNotSupported}},
		"another major version":                        {version: "v2.36.0", pool: Pool{Nodes: 3}, want: Decision{Reason: apps.ReasonVersionNotSupported}},
		"a version that is too old for a running one":  {version: "v1.34.0", pool: Pool{Nodes: 3}, deployed: true, want: Decision{IsDeployed: true, Reason: apps.ReasonVersionNotSupported}},
		"a cluster without a version":                  {cluster: "main", pool: Pool{Nodes: 3}, want: Decision{Reason: apps.ReasonVersionNotSupported}},
	} {
		t.Run(name, func(t *testing.T) {
			c := of("one", "edge", tc.version, 10)
			c.Status.Version = tc.runs
			o := &Observed{ClusterVersion: "v1.36.3", Coordinators: append(tc.others, c), Pools: map[string]Pool{}, Deployed: map[string]bool{"edge": tc.deployed}}
			if tc.cluster != "" {
				o.ClusterVersion = tc.cluster
			}
			if !tc.missing {
				o.Pools["edge"] = tc.pool
			}
			got := Decide(&c, o)
			if (got.Reason == "") != (got.Message == "") {
				t.Errorf("the reason is %q with the message %q", got.Reason, got.Message)
			}
			got.Message = ""
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestOneForEachPool: of any coordinators, at most one is deployed for a pool, in whatever order they are listed.
func TestOneForEachPool(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pools := map[string]Pool{"a": {Nodes: 3}, "b": {Nodes: 5}, "c": {Nodes: 1}}
		all := make([]apps.YurtCoordinator, rapid.IntRange(1, 8).Draw(t, "coordinators"))
		for i := range all {
			all[i] = of(string(rune('a'+i)), rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "pool"), "", rapid.IntRange(0, 2).Draw(t, "age"))
		}
		all = rapid.Permutation(all).Draw(t, "order")
		o := &Observed{ClusterVersion: "v1.36.3", Coordinators: all, Pools: pools}
		deployed := map[string]int{}
		for i := range all {
			if Decide(&all[i], o).IsDeployed {
				deployed[all[i].Spec.NodePool]++
			}
		}
		for i := range all {
			pool := all[i].Spec.NodePool
			if want := min(pools[pool].Nodes/minNodes, 1); deployed[pool] != want {
				t.Fatalf("pool %s has %d coordinators, want %d", pool, deployed[pool], want)
			}
		}
	})
}

func TestVersionOfLongSuffix(t *testing.T) {
	if got, err := versionOf("", "v1.36.3-eks-abc123", ""); err != nil || got != "v1.36.3" {
		t.Errorf("the version is %s, %v", got, err)
	}
}
