package nodegroup

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
)

// setStatus sets the group's status from what was observed.
func setStatus(s *scope) {
	observed := s.compiled.Status(s.nodes)
	status := &s.group.Status
	status.ObservedGeneration = s.group.Generation
	status.ContainedNodes = observed.Contained
	status.NodeStatuses = observed.Nodes
	status.Total = int32(len(observed.Contained))
	status.Ready = observed.Ready

	ready, reason, message := metav1.ConditionTrue, gm.ReasonMembersReady, "every member node is Ready"
	switch {
	case s.invalid != nil:
		ready, reason, message = metav1.ConditionFalse, gm.ReasonInvalidSelector, s.invalid.Error()
	case status.Total == 0 && observed.Failed == 0:
		ready, reason, message = metav1.ConditionFalse, gm.ReasonNoMembers, "no node is selected by spec.nodes, spec.matchLabels or spec.matchExpressions"
	case observed.Failed > 0:
		ready, reason, message = metav1.ConditionFalse, gm.ReasonNodesNotSelected, "selected, but not members, see status.nodeStatuses: "+conditions.List(named(observed.Nodes, func(n gm.NodeStatus) bool {
			return n.SelectionStatus == gm.SelectionFailed
		}))
	case observed.Ready < status.Total:
		ready, reason, message = metav1.ConditionFalse, gm.ReasonMembersNotReady, "member nodes that are not Ready: "+conditions.List(named(observed.Nodes, func(n gm.NodeStatus) bool {
			return n.SelectionStatus == gm.SelectionSucceeded && n.ReadyStatus != gm.NodeReady
		}))
	}
	conditions.Set(&status.Conditions, s.group.Generation, gm.ConditionReady, ready, reason, message)
}

// named returns the names of the nodes that satisfy want.
func named(nodes []gm.NodeStatus, want func(gm.NodeStatus) bool) []string {
	var names []string
	for _, n := range nodes {
		if want(n) {
			names = append(names, n.NodeName)
		}
	}
	return names
}
