package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The fields of the structs below are in the order of their JSON names, because the API
// server writes them in that order. decode then finds equal values by their bytes, and
// has to sort the keys of few.

// PodGroup is a group of pods that Volcano's scheduler places together: it binds
// none of them before enough of them fit. A pod names its PodGroup in the
// annotation scheduling.k8s.io/group-name.
//
// There is no status subresource: a write of the object writes spec and status.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=podgroups,shortName=pg;podgroup-v1beta1
// +kubebuilder:printcolumn:name="STATUS",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="minMember",type=integer,JSONPath=`.spec.minMember`
// +kubebuilder:printcolumn:name="RUNNINGS",type=integer,JSONPath=`.status.running`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="QUEUE",type=string,priority=1,JSONPath=`.spec.queue`
// +kubebuilder:printcolumn:name="OWNER",type=string,JSONPath=`.metadata.ownerReferences[0].name`
// +kubebuilder:printcolumn:name="OWNER KIND",type=string,priority=1,JSONPath=`.metadata.ownerReferences[0].kind`
type PodGroup struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec says how the pods are placed.
	// +optional
	Spec PodGroupSpec `json:"spec,omitzero"`

	// status is what Volcano's scheduler and controllers last observed.
	// +optional
	Status PodGroupStatus `json:"status,omitzero"`

	Preserved Preserved `json:"-"`
}

// PodGroupSpec says how the pods of a PodGroup are placed.
type PodGroupSpec struct {
	// minMember is the number of pods that have to fit before the first one is
	// bound. 0 or unset: no pod waits for another.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MinMember int32 `json:"minMember,omitempty"`

	// minResources are the resources that have to be free in the queue before the
	// group is admitted to it.
	// +optional
	MinResources corev1.ResourceList `json:"minResources,omitempty"`

	// minTaskMember is the number of pods of each task that have to fit before the
	// first one is bound, by the name of the task. subGroupPolicy can say the same
	// and more; using both is not recommended.
	// +optional
	MinTaskMember map[string]int32 `json:"minTaskMember,omitempty"`

	// networkTopology bounds how far apart, in the network, the nodes of the group
	// may be. Unset: there is no bound.
	// +optional
	NetworkTopology *NetworkTopologySpec `json:"networkTopology,omitempty"`

	// priorityClassName is the name of the PriorityClass of the group. Unset is the
	// cluster's default priority, or 0.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	PriorityClassName string `json:"priorityClassName,omitempty"`

	// queue is the name of the Queue that the pods take resources from. Pods of a
	// queue that does not exist are not scheduled.
	// +default="default"
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +optional
	Queue string `json:"queue,omitempty"`

	// subGroupPolicy divides the pods into subgroups, each with its own demands.
	// +optional
	SubGroupPolicy []SubGroupPolicySpec `json:"subGroupPolicy,omitempty"`

	Preserved Preserved `json:"-"`
}

// SubGroupPolicySpec divides the pods that it selects into subgroups.
type SubGroupPolicySpec struct {
	// labelSelector selects the pods, among those of the PodGroup.
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`

	// matchLabelKeys are keys of labels. Selected pods with equal values of all of
	// them are of one subgroup.
	// +listType=atomic
	// +optional
	MatchLabelKeys []string `json:"matchLabelKeys,omitempty"`

	// minSubGroups is the number of subgroups that have to fit before the first pod
	// is bound.
	// +default=0
	// +kubebuilder:validation:Minimum=0
	// +optional
	MinSubGroups *int32 `json:"minSubGroups,omitempty"`

	// name of the policy.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Name string `json:"name,omitempty"`

	// networkTopology bounds how far apart, in the network, the nodes of one subgroup
	// may be. Unset: there is no bound.
	// +optional
	NetworkTopology *NetworkTopologySpec `json:"networkTopology,omitempty"`

	// subGroupSize is the number of pods of one subgroup. A subgroup is placed only
	// if that many of its pods fit.
	// +default=1
	// +kubebuilder:validation:Minimum=1
	// +optional
	SubGroupSize *int32 `json:"subGroupSize,omitempty"`

	Preserved Preserved `json:"-"`
}

// NetworkTopologySpec bounds how far apart, in the network, nodes may be.
type NetworkTopologySpec struct {
	// highestTierAllowed is the number of the highest tier of HyperNodes that the pods
	// may spread over. Set this or highestTierName.
	// +kubebuilder:validation:Minimum=0
	// +optional
	HighestTierAllowed *int `json:"highestTierAllowed,omitempty"`

	// highestTierName is the name of that tier.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	HighestTierName string `json:"highestTierName,omitempty"`

	// mode is hard if pods that exceed the bound have to wait, and soft if they may
	// be placed nevertheless.
	// +default="hard"
	// +kubebuilder:validation:Enum=hard;soft
	// +optional
	Mode NetworkTopologyMode `json:"mode,omitempty"`

	Preserved Preserved `json:"-"`
}

// NetworkTopologyMode says whether a bound must hold.
type NetworkTopologyMode string

// Values of NetworkTopologyMode.
const (
	NetworkTopologyHard NetworkTopologyMode = "hard"
	NetworkTopologySoft NetworkTopologyMode = "soft"
)

// PodGroupStatus is what was observed of a PodGroup. Volcano writes it.
type PodGroupStatus struct {
	// conditions say why the group is where it is.
	// +optional
	Conditions []PodGroupCondition `json:"conditions,omitempty"`

	// failed is the number of pods in the phase Failed.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Failed int32 `json:"failed,omitempty"`

	// phase is where the group is on its way from waiting to done.
	// +kubebuilder:validation:Enum=Pending;Running;Unknown;Inqueue;Completed
	// +optional
	Phase PodGroupPhase `json:"phase,omitempty"`

	// running is the number of pods that run.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Running int32 `json:"running,omitempty"`

	// succeeded is the number of pods in the phase Succeeded.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Succeeded int32 `json:"succeeded,omitempty"`

	Preserved Preserved `json:"-"`
}

// PodGroupPhase is where a PodGroup is on its way from waiting to done.
type PodGroupPhase string

// Values of PodGroupPhase.
const (
	// PhasePending: the group has not been admitted to its queue.
	PhasePending PodGroupPhase = "Pending"
	// PhaseInqueue: the group has been admitted to its queue, and its pods may be
	// created and placed.
	PhaseInqueue PodGroupPhase = "Inqueue"
	// PhaseRunning: at least spec.minMember pods run.
	PhaseRunning PodGroupPhase = "Running"
	// PhaseUnknown: some pods run, but fewer than spec.minMember, and the others
	// cannot be placed.
	PhaseUnknown PodGroupPhase = "Unknown"
	// PhaseCompleted: all pods have ended.
	PhaseCompleted PodGroupPhase = "Completed"
)

// PodGroupCondition is one observation about a PodGroup. It is not a
// metav1.Condition: all fields are optional.
type PodGroupCondition struct {
	// lastTransitionTime is when the condition changed.
	// +optional
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitzero"`

	// message says the same to a person.
	// +optional
	Message string `json:"message,omitempty"`

	// reason is one word that says why it changed.
	// +optional
	Reason string `json:"reason,omitempty"`

	// status is True, False or Unknown.
	// +optional
	Status corev1.ConditionStatus `json:"status,omitempty"`

	// transitionID is the scheduler's own identifier of the transition: the UID of
	// its scheduling session.
	// +optional
	TransitionID string `json:"transitionID,omitempty"`

	// type of the condition.
	// +optional
	Type string `json:"type,omitempty"`

	Preserved Preserved `json:"-"`
}

// PodGroupList is a list of PodGroups.
//
// +kubebuilder:object:root=true
type PodGroupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PodGroup `json:"items"`
}
