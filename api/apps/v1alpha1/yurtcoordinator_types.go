package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// YurtCoordinator runs a coordinator in a NodePool: an API server in which people see the
// nodes and pods of the pool while the cloud cannot be reached.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=yc,categories=all
// +kubebuilder:selectablefield:JSONPath=`.spec.nodePool`
// +kubebuilder:printcolumn:name="NodePool",type=string,JSONPath=`.spec.nodePool`,description="The pool that it is for."
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.nodeName`,description="The node on which it runs."
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether people can use it."
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="Why it is Ready or not."
// +kubebuilder:printcolumn:name="Delegated",type=string,JSONPath=`.status.delegatedNodes`,priority=1,description="Nodes that are cut off, and for which the pool speaks."
// +kubebuilder:printcolumn:name="Frozen",type=string,JSONPath=`.status.conditions[?(@.type=="Frozen")].status`,priority=1,description="Whether nothing is heard of the whole pool."
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`,priority=1,description="The version of its API server."
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type YurtCoordinator struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says for which pool the coordinator is.
	// +required
	Spec YurtCoordinatorSpec `json:"spec"`

	// status is the most recently observed state of the coordinator. Written by
	// atoll-manager.
	// +optional
	Status YurtCoordinatorStatus `json:"status,omitempty"`
}

// YurtCoordinatorSpec is the desired state of a YurtCoordinator.
type YurtCoordinatorSpec struct {
	// version is the Kubernetes version of the coordinator's API server, such as
	// v1.36.3. Its minor version must be that of the cluster, or the one before or after.
	// Unset: the version of the cluster.
	// +optional
	// +kubebuilder:validation:MinLength=5
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^v?[0-9]{1,3}[.][0-9]{1,4}[.][0-9]{1,4}$')",message="must be a version of Kubernetes, such as v1.36.3"
	Version string `json:"version,omitempty"`

	// frozenLimit is for how long the nodes of the pool are kept while nothing is heard of
	// the whole pool. After that they count as dead, and their pods are evicted. At least 1m.
	// Unset: until the pool is heard again.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m')",message="must be 1m or longer"
	FrozenLimit *metav1.Duration `json:"frozenLimit,omitempty"` //nolint:kubeapilinter // people write hours and days

	// nodePool is the name of the NodePool. It cannot change.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="must be the name of a NodePool: lower case letters, digits and -"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot change: make another YurtCoordinator for the other pool"
	NodePool string `json:"nodePool"`

	// upload has further kinds of objects that hubs upload to the coordinator, of which
	// there is one: Secrets, those that pods of the pool name. It has a cost. Who has
	// people's kubeconfig reads all of them, also while the cloud is away, and who has
	// the stolen certificate of a node of the pool can upload Secrets of its own making
	// under the names that pods bound to the node name. Once Secrets is removed here,
	// they are removed from the coordinator when its node learns of that: mostly within
	// two minutes, and not while the node is cut off.
	// Unset: none.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=1
	Upload []UploadKind `json:"upload,omitempty"`
}

// UploadKind is a kind of objects that hubs upload only where they are asked to.
// +kubebuilder:validation:Enum=Secrets
type UploadKind string

// UploadSecrets are the Secrets that pods of the pool name.
const UploadSecrets UploadKind = "Secrets"

// YurtCoordinatorStatus is the most recently observed state of a YurtCoordinator.
type YurtCoordinatorStatus struct {
	// observedGeneration is the metadata.generation that this status was computed for.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// nodeName is the node on which the coordinator runs.
	// +optional
	NodeName string `json:"nodeName,omitempty"`

	// version is the version of the coordinator's API server.
	// +optional
	Version string `json:"version,omitempty"`

	// conditions has Pending, CertsReady, Ready, PodAccess and Frozen.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// delegatedNodes are nodes of the pool that are disconnected from the cloud, and
	// whose heartbeats other nodes forward, or did until they were cut off, too.
	// +optional
	// +listType=atomic
	DelegatedNodes []string `json:"delegatedNodes,omitempty"`

	// outsidePoolNodes are nodes of the pool from which the cloud hears, and the
	// coordinator has not heard for 20 seconds. Empty while the pool is silent, which
	// PodAccess says.
	// +optional
	// +listType=atomic
	OutsidePoolNodes []string `json:"outsidePoolNodes,omitempty"`

	// addresses are the IP addresses at which hubs look for the coordinator: that of
	// its node first, then those of the other nodes of the pool. A hub that is cut off
	// finds a coordinator that has moved by them.
	// +optional
	// +listType=atomic
	Addresses []string `json:"addresses,omitempty"`

	// caBundle has the CAs of the pool, in PEM. The first one signs.
	// +optional
	CABundle []byte `json:"caBundle,omitempty"`

	// kubeconfigSecret is the name of the Secret with people's kubeconfig, in the
	// namespace atoll-pools.
	// +optional
	KubeconfigSecret string `json:"kubeconfigSecret,omitempty"`
}

// YurtCoordinatorList is a list of YurtCoordinators.
//
// +kubebuilder:object:root=true
type YurtCoordinatorList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []YurtCoordinator `json:"items"`
}

// Condition types of a YurtCoordinator (docs/sources.md, N3). Its Ready is ConditionReady.
const (
	// ConditionPending: the coordinator is not deployed, and the reason says why.
	ConditionPending = "Pending"
	// ConditionCertsReady: the certificates of the coordinator are there, for the node on
	// which it runs.
	ConditionCertsReady = "CertsReady"
	// ConditionPodAccess: logs and exec work on all nodes of the pool that the coordinator
	// hears from. Unknown while no hub of the pool says so.
	ConditionPodAccess = "PodAccess"
	// ConditionFrozen: nothing is heard of the pool, and its pods are kept because nobody
	// knows which of its nodes are dead.
	ConditionFrozen = "Frozen"
)

// Reasons of conditions of a YurtCoordinator.
const (
	// ReasonDeployed: nothing prevents the coordinator.
	ReasonDeployed = "Deployed"
	// ReasonFewNodes: the pool has fewer than three nodes. A coordinator that is deployed
	// stays when its pool shrinks.
	ReasonFewNodes = "FewNodes"
	// ReasonAnotherCoordinator: an older YurtCoordinator is for the same pool.
	ReasonAnotherCoordinator = "AnotherCoordinator"
	// ReasonNodeAutonomy: nodes of the pool have OpenYurt's annotation for node autonomy,
	// which contradicts the coordinator: it keeps all pods, also those of dead nodes.
	ReasonNodeAutonomy = "NodeAutonomy"
	// ReasonVersionNotSupported: spec.version is too far from the cluster's version.
	ReasonVersionNotSupported = "VersionNotSupported"
	// ReasonUnitedDeploymentMissing: the cluster does not have the kind of the workload that coordinators are deployed by.
	ReasonUnitedDeploymentMissing = "UnitedDeploymentMissing"
	// ReasonWriteFailed: the API server does not take what the coordinator needs.
	ReasonWriteFailed = "WriteFailed"
	// ReasonNotScheduled: the pod of the coordinator is on no node yet.
	ReasonNotScheduled = "NotScheduled"
	// ReasonIssued: the certificates are there.
	ReasonIssued = "Issued"
	// ReasonPodNotReady: the pod of the coordinator is not Ready.
	ReasonPodNotReady = "PodNotReady"
	// ReasonPodReady: the pod of the coordinator is Ready.
	ReasonPodReady = "PodReady"
	// ReasonPoolSilent: no hub of the pool reaches both the cloud and the coordinator.
	ReasonPoolSilent = "PoolSilent"
	// ReasonNotFrozen: no node is kept without anybody who knows whether it is dead.
	ReasonNotFrozen = "NotFrozen"
	// ReasonKubeletsAccept: no kubelet of the pool refuses its hub.
	ReasonKubeletsAccept = "KubeletsAccept"
	// ReasonKubeletsRefuse: kubelets of the pool refuse their hubs.
	ReasonKubeletsRefuse = "KubeletsRefuse"
)
