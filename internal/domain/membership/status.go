package membership

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// Reasons why a selected node is not a member. They contain no times and no counters, so
// that a status is written only when something changed.
const (
	reasonNodeMissing   = "node does not exist"
	reasonGroupDeleting = "NodeGroup is being deleted"
)

// Node is an existing node, as far as Group.Status needs it.
type Node struct {
	Name   string
	Labels map[string]string
	// Ready is the node's own Ready condition; empty counts as Unknown.
	Ready gm.NodeReadyStatus
	// Group is the group that the node is in; "" is no group.
	Group string
	// Problem is why the node's group cannot be changed, "" if it can.
	Problem string
}

// Status is the observed state of one group.
type Status struct {
	// Nodes has an entry for every node that the spec selects or names, and for every member,
	// sorted by name.
	Nodes []gm.NodeStatus
	// Contained has the names of the members, sorted.
	Contained []string
	// Ready is the number of members whose Ready condition is True.
	Ready int32
	// Failed is the number of entries in Nodes that are not members.
	Failed int32
}

// Status reports for every node that the group selects whether it is a member, and if not,
// why. nodes has the nodes that the group selects and those that are in it, in any order, each once.
func (g Group) Status(nodes []Node) Status {
	var status Status
	seen := sets.Set[string]{} // nodes that the spec names and that exist
	for i := range nodes {
		node := &nodes[i]
		if g.nodes.Has(node.Name) {
			seen.Insert(node.Name)
		}
		member := node.Group == g.Name && g.Name != ""
		if !member && !g.Selects(node.Name, node.Labels) {
			continue
		}
		entry := gm.NodeStatus{
			NodeName:        node.Name,
			ReadyStatus:     cmp.Or(node.Ready, gm.NodeUnknown),
			SelectionStatus: gm.SelectionSucceeded, SelectionStatusReason: node.Problem,
		}
		if member {
			status.Contained = append(status.Contained, node.Name)
			if node.Ready == gm.NodeReady {
				status.Ready++
			}
		} else {
			entry.SelectionStatus = gm.SelectionFailed
			entry.SelectionStatusReason = g.reasonNotMember(node)
			status.Failed++
		}
		status.Nodes = append(status.Nodes, entry)
	}
	for name := range g.nodes {
		if seen.Has(name) {
			continue
		}
		status.Failed++
		status.Nodes = append(status.Nodes, gm.NodeStatus{
			NodeName:              name,
			ReadyStatus:           gm.NodeUnknown,
			SelectionStatus:       gm.SelectionFailed,
			SelectionStatusReason: reasonNodeMissing,
		})
	}
	slices.SortFunc(status.Nodes, func(a, b gm.NodeStatus) int { return cmp.Compare(a.NodeName, b.NodeName) })
	slices.Sort(status.Contained)
	return status
}

func (g Group) reasonNotMember(node *Node) string {
	if node.Problem != "" {
		return node.Problem
	}
	if node.Group == "" && g.Deleting {
		return reasonGroupDeleting
	}
	if node.Group == "" {
		return fmt.Sprintf("node %q is not assigned yet", node.Name)
	}
	return fmt.Sprintf("node %q belongs to NodeGroup %q", node.Name, node.Group)
}
