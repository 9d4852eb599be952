package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CapacitySplit shows how the pods of one workload are divided over on-demand and
// spot nodes. atoll-manager writes it for each workload that is divided and deletes
// it when that ends. Nothing reads what anybody else writes into it, but for the count:
// where the workload's own cannot be used, it is the last one that could.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=split
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.status.workload.kind`
// +kubebuilder:printcolumn:name="Workload",type=string,JSONPath=`.status.workload.name`
// +kubebuilder:printcolumn:name="On-Demand",type=integer,JSONPath=`.status.onDemand.have`,description="Pods on on-demand nodes."
// +kubebuilder:printcolumn:name="Want",type=integer,JSONPath=`.status.onDemand.want`,description="How many on-demand pods there are to be."
// +kubebuilder:printcolumn:name="Spot",type=integer,JSONPath=`.status.spot.have`,description="Pods on spot nodes."
// +kubebuilder:printcolumn:name="Want",type=integer,JSONPath=`.status.spot.want`,description="How many spot pods there are to be."
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CapacitySplit struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// status is the most recently observed division. Written by atoll-manager.
	// +optional
	Status CapacitySplitStatus `json:"status,omitempty"`
}

// CapacitySplitStatus is what was observed of the workload.
type CapacitySplitStatus struct {
	// observedGeneration is metadata.generation of the CapacitySplit.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// workloadGeneration is metadata.generation of the workload that was looked at.
	// +optional
	WorkloadGeneration int64 `json:"workloadGeneration,omitempty"`

	// workload is the one whose pods are divided.
	// +optional
	Workload WorkloadReference `json:"workload,omitempty"`

	// count is the number of on-demand pods that the workload is to have, if it has
	// as many; absent where all are to be on-demand.
	// +optional
	Count *int32 `json:"count,omitempty"`

	// onDemand counts the on-demand pods.
	// +optional
	// +default={}
	OnDemand ClassStatus `json:"onDemand"`

	// spot counts the spot pods.
	// +optional
	// +default={}
	Spot ClassStatus `json:"spot"`

	// other is the number of pods on nodes of neither class.
	// +optional
	Other int32 `json:"other,omitempty"`

	// conditions has Ready: whether the pods are divided as they are to be.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ClassStatus counts the pods of one class.
type ClassStatus struct {
	// want is the number of pods that there are to be.
	// +optional
	// +default=0
	Want int32 `json:"want"`

	// have is the number of pods on nodes of the class.
	// +optional
	// +default=0
	Have int32 `json:"have"`

	// reserved is the number of pods that were given the class when they were
	// created and have not been seen since: about ten seconds for those that were refused.
	// +optional
	Reserved int32 `json:"reserved,omitempty"`

	// waiting is the number of pods of the class that have no node.
	// +optional
	Waiting int32 `json:"waiting,omitempty"`
}

// WorkloadReference names a workload in the namespace of the object.
type WorkloadReference struct {
	// apiVersion of the workload, for example apps/v1.
	// +required
	// +kubebuilder:validation:MaxLength=320
	APIVersion string `json:"apiVersion"`
	// kind of the workload, for example Deployment.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// name of the workload.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// CapacitySplitList is a list of CapacitySplits.
//
// +kubebuilder:object:root=true
type CapacitySplitList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []CapacitySplit `json:"items"`
}

// ConditionReady is True while the pods are divided as they are to be.
const ConditionReady = "Ready"

// IsStalled returns whether Ready with this reason stays as it is until a person changes what the
// workload says. The condition Stalled is True then, with the same reason and message, and absent
// otherwise: tools that wait for objects read it (kstatus).
func IsStalled(reason string) bool { return reason == ReasonInvalid }

// Reasons of the condition Ready.
const (
	// ReasonSatisfied: each class has as many pods as it is to have.
	ReasonSatisfied = "Satisfied"
	// ReasonConverging: pods are created, or moved from one class to the other.
	ReasonConverging = "Converging"
	// ReasonPodsWaiting: pods have no node, or wait at the scheduling gate of atoll-manager.
	ReasonPodsWaiting = "PodsWaiting"
	// ReasonNoNodes: a class that is wanted has no node that is Ready and not cordoned.
	ReasonNoNodes = "NoNodes"
	// ReasonFellBack: a class has had no node for five minutes, and the workload does
	// without it.
	ReasonFellBack = "FellBack"
	// ReasonNoRoom: pods of the wrong class stay, because no node could take their
	// successors.
	ReasonNoRoom = "NoRoom"
	// ReasonBlockedByPDB: pods of the wrong class stay, because a PodDisruptionBudget
	// allows no eviction.
	ReasonBlockedByPDB = "BlockedByPDB"
	// ReasonPinned: the pods' own node selector or affinity, or their owner, leaves them
	// one class only.
	ReasonPinned = "Pinned"
	// ReasonNotAdmitted: successors of moved pods were created without the webhook, so
	// that moving more would help nothing.
	ReasonNotAdmitted = "NotAdmitted"
	// ReasonPodsRefused: the API server refuses pods of the workload.
	ReasonPodsRefused = "PodsRefused"
	// ReasonInvalid: what the workload or its namespace says cannot be used.
	ReasonInvalid = "Invalid"
	// ReasonObservationFailed: it could not be looked at.
	ReasonObservationFailed = "ObservationFailed"
)
