package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	corev1 "k8s.io/api/core/v1"
)

// NodePoolType says where the nodes of a pool are.
// +kubebuilder:validation:Enum=Edge;Cloud
type NodePoolType string

const (
	// Edge nodes are at a site whose network connection may fail.
	Edge NodePoolType = "Edge"
	// Cloud nodes are next to the control plane.
	Cloud NodePoolType = "Cloud"
)

// LabelValue is a value that a label or a taint can have: at most 63 letters,
// digits, - _ and . between them, or nothing.
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`
type LabelValue string

// AnnotationValue is a value that a pool can give to an annotation: at most
// 1024 characters.
// +kubebuilder:validation:MaxLength=1024
type AnnotationValue string

// NodePool is a group of nodes with the same attributes. Its labels, annotations
// and taints are set on every node of the pool. When a node leaves the pool, the
// values that it had before are restored. A node is in one pool at a time.
//
// +genclient
// +genclient:nonNamespaced
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=nodepools,shortName=np,categories=all
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`,description="The type of nodepool"
// +kubebuilder:printcolumn:name="ReadyNodes",type=integer,JSONPath=`.status.readyNode`,description="The number of ready nodes in the pool"
// +kubebuilder:printcolumn:name="NotReadyNodes",type=integer,JSONPath=`.status.notReadyNode`,description="The number of nodes in the pool that are not ready"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,priority=1,description="Whether the pool has nodes, all of them Ready and as the pool wants them."
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1,description="Why the pool is Ready or not."
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="metadata.name: a NodePool's name becomes a node label's value: at most 63 characters"
type NodePool struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says which nodes are in the pool, and what is set on them. Unset: the
	// pool has the nodes whose label names it, and sets nothing on them.
	// +optional
	// +default={}
	Spec NodePoolSpec `json:"spec,omitempty"`

	// status is the most recently observed state of the pool. Written by
	// atoll-manager.
	// +optional
	Status NodePoolStatus `json:"status,omitempty"`
}

// NodePoolSpec is the desired state of a NodePool. A node is in the pool if selector
// matches it, or if its label apps.openyurt.io/nodepool has the name of the pool.
//
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.type) || (has(self.type) && self.type == oldSelf.type)",message="type cannot be changed once it is set: make another pool and move the nodes",fieldPath=".type"
type NodePoolSpec struct {
	// type says where the nodes are: Edge or Cloud. It cannot be changed once it is
	// set. Unset: unknown.
	// +optional
	Type NodePoolType `json:"type,omitempty"`

	// selector selects the nodes of the pool by their own labels; labels that a
	// NodePool has set do not count. A node on which somebody has set the label
	// apps.openyurt.io/nodepool is in the pool that the label names, whichever
	// selectors match it. Unset: the pool has only nodes with that label.
	// +optional
	Selector *NodeSelector `json:"selector,omitempty"`

	// labels are set on every node of the pool and replace values of the same keys.
	// The previous value is restored when the key is removed here, or when the node
	// leaves the pool. At most 64.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 317 && k.indexOf('/') <= 253 && k.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="a key is no label key: at most 63 letters, digits, - _ and . after an optional DNS name and a slash"
	// +kubebuilder:validation:XValidation:rule="!self.exists(k, k.startsWith('atoll.dev/') || k in ['kubernetes.io/hostname', 'kubernetes.io/os', 'kubernetes.io/arch', 'beta.kubernetes.io/os', 'beta.kubernetes.io/arch', 'apps.openyurt.io/nodepool', 'groupmanagement.kubeedge.io/nodegroup'])",message="a pool cannot give the labels kubernetes.io/hostname, os and arch, which the kubelet writes, apps.openyurt.io/nodepool and groupmanagement.kubeedge.io/nodegroup, which name what the node belongs to, and those under atoll.dev/"
	Labels map[string]LabelValue `json:"labels,omitempty"`

	// annotations are set on every node of the pool, in the same way as labels. At
	// most 64, each value at most 1024 characters.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 317 && k.indexOf('/') <= 253 && k.matches('^([A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?([.][A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="a key is no annotation key: at most 63 letters, digits, - _ and . after an optional DNS name and a slash"
	// +kubebuilder:validation:XValidation:rule="!self.exists(k, k.startsWith('atoll.dev/') || k in ['kubectl.kubernetes.io/last-applied-configuration', 'node.alpha.kubernetes.io/ttl', 'volumes.kubernetes.io/controller-managed-attach-detach', 'csi.volume.kubernetes.io/nodeid'])",message="a pool cannot give annotations that Kubernetes or kubectl write themselves, and those under atoll.dev/"
	Annotations map[string]AnnotationValue `json:"annotations,omitempty"`

	// taints are set on every node of the pool. A taint with the effect NoExecute is
	// set when the pods of UnitedDeployments in the pool tolerate it, but after 5
	// minutes at the latest; the condition TaintsTolerated shows that. A taint of
	// the same key and effect that a node had before is restored when the taint is
	// removed here, or when the node leaves the pool. At most 32, no two with the
	// same key and effect.
	// +optional
	// +listType=map
	// +listMapKey=key
	// +listMapKey=effect
	// +kubebuilder:validation:MaxItems=32
	Taints []NodePoolTaint `json:"taints,omitempty"`
}

// NodeSelector is a label selector over nodes. All of matchLabels and
// matchExpressions must match.
//
// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && self.matchLabels.size() > 0) || (has(self.matchExpressions) && self.matchExpressions.size() > 0)",message="an empty selector would take every node of the cluster: name a label or an expression, or leave selector out"
// +kubebuilder:validation:XValidation:rule="!(has(self.matchLabels) && 'groupmanagement.kubeedge.io/nodegroup' in self.matchLabels) && !(has(self.matchExpressions) && self.matchExpressions.exists(e, e.key == 'groupmanagement.kubeedge.io/nodegroup'))",message="a NodeGroup may select the nodes of a pool, so a pool cannot select those of a NodeGroup: the label groupmanagement.kubeedge.io/nodegroup cannot be used here"
type NodeSelector struct {
	// matchLabels are labels that a node must have. At most 64.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 317 && k.indexOf('/') <= 253 && k.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="a key is no label key: at most 63 letters, digits, - _ and . after an optional DNS name and a slash"
	MatchLabels map[string]LabelValue `json:"matchLabels,omitempty"`

	// matchExpressions are expressions that must match. At most 64.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	MatchExpressions []NodeSelectorRequirement `json:"matchExpressions,omitempty"`
}

// NodeSelectorRequirement is an expression about one label.
//
// +kubebuilder:validation:XValidation:rule="!(self.operator in ['In', 'NotIn']) || (has(self.values) && self.values.size() > 0)",message="In and NotIn need at least one value",fieldPath=".values"
// +kubebuilder:validation:XValidation:rule="!(self.operator in ['Exists', 'DoesNotExist']) || !has(self.values) || self.values.size() == 0",message="Exists and DoesNotExist take no value",fieldPath=".values"
type NodeSelectorRequirement struct {
	// key is the key of the label.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	Key string `json:"key"`

	// operator is In, NotIn, Exists or DoesNotExist.
	// +required
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	Operator metav1.LabelSelectorOperator `json:"operator"`

	// values has at least one value if operator is In or NotIn, and none otherwise.
	// At most 256.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Values []LabelValue `json:"values,omitempty"`
}

// NodePoolTaint is a node taint.
//
// +kubebuilder:validation:XValidation:rule="!self.key.startsWith('node.kubernetes.io/') && !self.key.startsWith('node.cloudprovider.kubernetes.io/')",message="Kubernetes puts taints under this prefix on nodes and takes them off; they are not a pool's to give",fieldPath=".key"
type NodePoolTaint struct {
	// key is the taint's key. It has the format of a label key.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	Key string `json:"key"`

	// value is the taint's value. It has the format of a label value. Unset: empty.
	// +optional
	Value LabelValue `json:"value,omitempty"`

	// effect is what happens to pods that do not tolerate the taint:
	// NoSchedule, PreferNoSchedule or NoExecute.
	// +required
	// +kubebuilder:validation:Enum=NoSchedule;PreferNoSchedule;NoExecute
	Effect corev1.TaintEffect `json:"effect"`

	// timeAdded is copied to the taint on each node. Unset: the value on a node is
	// left as it is.
	// +optional
	TimeAdded *metav1.Time `json:"timeAdded,omitempty"`
}

// NodePoolStatus is the most recently observed state of a NodePool.
type NodePoolStatus struct {
	// readyNode is the number of nodes in the pool whose Ready condition is True.
	// +optional
	// +default=0
	ReadyNode int32 `json:"readyNode"`

	// notReadyNode is the number of the other nodes in the pool.
	// +optional
	// +default=0
	NotReadyNode int32 `json:"notReadyNode"`

	// nodes are the names of the nodes in the pool, sorted.
	// +optional
	// +listType=atomic
	Nodes []string `json:"nodes,omitempty"`

	// observedGeneration is the metadata.generation that this status was computed for.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions has Ready, AttributesSynced, TaintsTolerated, Uncontested and
	// MembershipProtected.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NodePoolList is a list of NodePools.
//
// +kubebuilder:object:root=true
type NodePoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodePool `json:"items"`
}
