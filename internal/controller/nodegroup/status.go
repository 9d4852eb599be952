package nodegroup

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/membership"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
	"github.com/atoll-k8s/atoll/internal/machinery/members"
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
	case len(s.failed) > 0:
		ready, reason, message = metav1.ConditionFalse, gm.ReasonNodesNotSelected, members.Message(s.failed)
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
	conditions.SetReady(&status.Conditions, s.group.Generation, ready, reason, message, gm.IsStalled(reason))
	protected, reason, message := protection(s)
	conditions.Set(&status.Conditions, s.group.Generation, gm.ConditionMembershipProtected, protected, reason, message)
}

// protection returns the condition MembershipProtected.
func protection(s *scope) (is metav1.ConditionStatus, reason, message string) {
	const wayOut = ": select by labels below node-restriction.kubernetes.io/, or name the nodes in spec.nodes"
	keys, how := s.compiled.CanJoin()
	switch {
	case s.invalid != nil:
		return metav1.ConditionUnknown, gm.ReasonInvalidSelector, "the selector cannot be used"
	case how == membership.JoinsAlone && len(keys) == 0:
		return metav1.ConditionFalse, gm.ReasonNodesCanJoin, "a node without labels becomes a member" + wayOut
	case how == membership.JoinsAlone:
		return metav1.ConditionFalse, gm.ReasonNodesCanJoin, "a kubelet can make its node a member, because it may set these labels: " + conditions.List(keys) + wayOut
	case how == membership.JoinsWithOthers:
		return metav1.ConditionFalse, gm.ReasonNodesCanJoin, "a node that has the other labels can join by itself, because its kubelet may set these labels: " + conditions.List(keys) + wayOut
	case how == membership.JoinsUnguarded:
		return metav1.ConditionUnknown, gm.ReasonLabelGuardUnknown, "a kubelet can make its node a member by these labels, unless an admission policy of the cluster refuses that: " + conditions.List(keys) + ": check that the chart's policy atoll-node-labels is installed"
	}
	return metav1.ConditionTrue, gm.ReasonNodesCannotJoin, "no kubelet can make its node a member by labels that it may set"
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

// readyStatus returns the readiness of a node as the group's status shows it.
func readyStatus(node *corev1.Node) gm.NodeReadyStatus {
	switch members.Readiness(node) {
	case corev1.ConditionTrue:
		return gm.NodeReady
	case corev1.ConditionFalse:
		return gm.NodeNotReady
	}
	return gm.NodeUnknown
}
