package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeGroup is a set of nodes that belong together: a site, a region, a pool.
// A node is a member of one NodeGroup at a time. If several NodeGroups select a
// node, it stays a member of the one that it is in; a node that is in none goes
// to the NodeGroup that was created first.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=ng,categories=atoll
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether the group has members and all of them are Ready."
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.total`,description="Number of member nodes."
// +kubebuilder:printcolumn:name="Ready Nodes",type=integer,JSONPath=`.status.ready`,description="Number of member nodes that are Ready."
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1,description="Why the group is Ready or not."
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="metadata.name: a NodeGroup's name becomes a node label's value: at most 63 characters"
type NodeGroup struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says which nodes belong to the group.
	// +required
	Spec NodeGroupSpec `json:"spec"`

	// status is the most recently observed state of the group. Written by
	// atoll-manager.
	// +optional
	Status NodeGroupStatus `json:"status,omitempty"`
}

// NodeGroupSpec selects nodes: the union of nodes, matchLabels and
// matchExpressions. If all three are unset, the group has no members.
type NodeGroupSpec struct {
	// nodes contains the names of nodes that belong to the group, whether they
	// exist yet or not. At most 5000.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=5000
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	Nodes []string `json:"nodes,omitempty"`

	// matchLabels selects the nodes that carry all of these labels. An empty
	// map selects none. At most 64.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	MatchLabels map[string]string `json:"matchLabels,omitempty"`

	// matchExpressions selects the nodes that satisfy all of these
	// expressions. An empty list selects none. At most 64.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	MatchExpressions []metav1.LabelSelectorRequirement `json:"matchExpressions,omitempty"`
}

// NodeGroupStatus is the most recently observed state of a NodeGroup.
type NodeGroupStatus struct {
	// observedGeneration is the metadata.generation that this status was computed for.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// containedNodes are the names of the member nodes, sorted. Nodes that spec
	// selects and that are not members are in nodeStatuses only.
	// +optional
	// +listType=atomic
	ContainedNodes []string `json:"containedNodes,omitempty"`

	// nodeStatuses has an entry for every node that spec selects, sorted by name.
	// +optional
	// +listType=map
	// +listMapKey=nodeName
	NodeStatuses []NodeStatus `json:"nodeStatuses,omitempty"`

	// total is the number of member nodes.
	// +optional
	// +default=0
	Total int32 `json:"total"`

	// ready is the number of member nodes whose Ready condition is True.
	// +optional
	// +default=0
	Ready int32 `json:"ready"`

	// conditions has the condition Ready: every selected node is a member, and
	// every member is Ready; and MembershipProtected: no kubelet can make its node
	// a member by labels that it sets itself.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NodeReadyStatus is the state of a node's own Ready condition.
// +kubebuilder:validation:Enum=Ready;NotReady;Unknown
type NodeReadyStatus string

// SelectionStatus says whether a selected node became a member.
// +kubebuilder:validation:Enum=Succeeded;Failed
type SelectionStatus string

const (
	// NodeReady: the node's Ready condition is True.
	NodeReady NodeReadyStatus = "Ready"
	// NodeNotReady: the node's Ready condition is False.
	NodeNotReady NodeReadyStatus = "NotReady"
	// NodeUnknown: the node does not exist, or its Ready condition is Unknown.
	NodeUnknown NodeReadyStatus = "Unknown"

	// SelectionSucceeded: the node is a member of this group.
	SelectionSucceeded SelectionStatus = "Succeeded"
	// SelectionFailed: the node is selected and is not a member; the reason says why.
	SelectionFailed SelectionStatus = "Failed"
)

// NodeStatus is the state of one selected node.
type NodeStatus struct {
	// nodeName is the name of the node.
	// +required
	NodeName string `json:"nodeName"`

	// readyStatus is the node's own Ready condition.
	// +required
	ReadyStatus NodeReadyStatus `json:"readyStatus"`

	// selectionStatus says whether the node is a member of this group.
	// +required
	SelectionStatus SelectionStatus `json:"selectionStatus"`

	// selectionStatusReason says why the node is not a member.
	// +optional
	SelectionStatusReason string `json:"selectionStatusReason,omitempty"`
}

// NodeGroupList is a list of NodeGroups.
//
// +kubebuilder:object:root=true
type NodeGroupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeGroup `json:"items"`
}
