// Package coordinator decides which NodePools get a coordinator, and of which version (docs/sources.md, N1).
// It must not know how a coordinator is deployed.
package coordinator

import (
	"cmp"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
)

const (
	// minNodes is the least number of nodes of a pool for which a coordinator is deployed (docs/sources.md, N2).
	minNodes = 3
	// maxNames bounds the nodes that a message names.
	maxNames = 3
)

// oldest is the first version whose API server reads the files of a coordinator.
var oldest = version.MustParseGeneric("1.34.0")

// Pool is what is known of a NodePool.
type Pool struct {
	// Nodes is the number of its nodes.
	Nodes int
	// Autonomous are those of its nodes that have OpenYurt's annotation for node autonomy, sorted.
	Autonomous []string
}

// Observed is what decides about all coordinators.
type Observed struct {
	// ClusterVersion is the version of the cluster's API server, such as v1.36.3.
	ClusterVersion string
	// Coordinators are all of the cluster.
	Coordinators []apps.YurtCoordinator
	// Pools are the NodePools of the cluster, by name.
	Pools map[string]Pool
	// Deployed has the pools whose coordinator is deployed now.
	Deployed map[string]bool
}

// Decision is what is done for one coordinator.
type Decision struct {
	// IsDeployed: its pool has a coordinator, because of this object.
	IsDeployed bool
	// Version is that of its API server, with a v in front. "" keeps the one that is deployed.
	Version string
	// Reason and Message are why it is not deployed, or not in the way that its spec wants; "" if nothing prevents it.
	Reason, Message string
}

// Decide decides about one coordinator. What prevents the deployment of a new one does not always end one that is
// deployed: a pool that shrinks, a node that becomes autonomous, and a version that is not possible, leave it as it is.
func Decide(c *apps.YurtCoordinator, o *Observed) Decision {
	pool, exists := o.Pools[c.Spec.NodePool]
	if !exists {
		return Decision{Reason: apps.ReasonNodePoolMissing, Message: fmt.Sprintf("there is no NodePool %q", c.Spec.NodePool)}
	}
	if first := firstOf(c, o.Coordinators); first != c.Name {
		return Decision{Reason: apps.ReasonAnotherCoordinator, Message: fmt.Sprintf("the YurtCoordinator %q, which is older, is for the NodePool %q: delete one of the two", first, c.Spec.NodePool)}
	}
	isDeployed := o.Deployed[c.Spec.NodePool]
	var autonomous Decision
	if n := len(pool.Autonomous); n > 0 {
		autonomous = Decision{Reason: apps.ReasonNodeAutonomy, Message: fmt.Sprintf("nodes have OpenYurt's annotation for node autonomy, which keeps the pods of dead nodes too; remove it: %s%s",
			strings.Join(pool.Autonomous[:min(n, maxNames)], ", "), more(n-maxNames))}
	}
	switch {
	case isDeployed:
	case autonomous.Reason != "":
		return autonomous
	case pool.Nodes < minNodes:
		return Decision{Reason: apps.ReasonFewNodes, Message: fmt.Sprintf("the NodePool %q has %d nodes, and a coordinator is deployed in a pool of %d or more", c.Spec.NodePool, pool.Nodes, minNodes)}
	}
	deployed := ""
	if isDeployed {
		deployed = c.Status.Version
	}
	wanted, err := versionOf(c.Spec.Version, o.ClusterVersion, deployed)
	if err != nil {
		return Decision{IsDeployed: isDeployed, Reason: apps.ReasonVersionNotSupported, Message: err.Error()}
	}
	return Decision{IsDeployed: true, Version: wanted, Reason: autonomous.Reason, Message: autonomous.Message}
}

func more(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf(" and %d more", n)
}

// firstOf returns the name of the coordinator that its pool has: the oldest one.
func firstOf(c *apps.YurtCoordinator, all []apps.YurtCoordinator) string {
	first := c
	for i := range all {
		other := &all[i]
		if other.Spec.NodePool == c.Spec.NodePool && cmp.Or(other.CreationTimestamp.Time.Compare(first.CreationTimestamp.Time), cmp.Compare(other.Name, first.Name)) < 0 {
			first = other
		}
	}
	return first.Name
}

// versionOf returns the version of a coordinator. wanted may be "", and deployed, which is the one that runs. The
// cluster's version may have a suffix of its distribution, of which there is no image.
func versionOf(wanted, cluster, deployed string) (string, error) {
	has, err := version.ParseGeneric(cluster)
	if err != nil {
		return "", fmt.Errorf("the version of the cluster, %q, cannot be read: set spec.version", cluster)
	}
	if wanted == "" && has.LessThan(oldest) {
		return "", fmt.Errorf("the version of the cluster is %s: set spec.version to %s or later", cluster, oldest)
	}
	if wanted == "" {
		// While the API servers of a cluster are upgraded, one after the other, they answer with two versions.
		if runs, err := version.ParseGeneric(deployed); err == nil && has.LessThan(runs) && runs.Major() == has.Major() && runs.Minor() <= has.Minor()+1 {
			has = runs
		}
		return "v" + has.String(), nil
	}
	wants, err := version.ParseGeneric(wanted)
	if err != nil {
		return "", fmt.Errorf("spec.version: %q is no version of Kubernetes", wanted)
	}
	if wants.Major() != has.Major() || wants.Minor()+1 < has.Minor() || wants.Minor() > has.Minor()+1 {
		return "", fmt.Errorf("spec.version: %s is too far from the version of the cluster, %s: its minor version must be the same, or the one before or after", wanted, cluster)
	}
	if wants.LessThan(oldest) {
		return "", fmt.Errorf("spec.version: %s is older than %s, the first with all that a coordinator needs", wanted, oldest)
	}
	return "v" + wants.String(), nil
}
