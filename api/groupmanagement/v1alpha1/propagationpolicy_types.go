package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// PropagationPolicy says how the pods of the workloads that require it are
// divided over NodeGroups. A workload of the same namespace requires it with the label
// groupmanagement.kubeedge.io/required-propagationpolicy.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=gpp,categories=atoll
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether every workload that requires the policy is spread as it says."
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="Why the policy is Ready or not."
// +kubebuilder:printcolumn:name="Workloads",type=integer,JSONPath=`.status.workloads`,description="Number of workloads that require the policy."
// +kubebuilder:printcolumn:name="Strategy",type=string,JSONPath=`.spec.propagationStrategy`,priority=1,description="StaticWeight or NumRange; empty when inferred from the list that is set."
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="metadata.name: a policy's name becomes a label's value: at most 63 characters"
type PropagationPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says how pods divide over groups.
	// +required
	Spec PropagationSpec `json:"spec"`

	// status says how they do. Written by atoll-manager.
	// +optional
	Status PropagationStatus `json:"status,omitempty"`
}

// PropagationStrategy names the list of a PropagationPolicy that is in force.
// +kubebuilder:validation:Enum="";StaticWeight;NumRange
type PropagationStrategy string

const (
	// StaticWeightPropagationStrategy divides pods in proportion to staticWeightList.
	StaticWeightPropagationStrategy PropagationStrategy = "StaticWeight"
	// NumRangePropagationStrategy fills groups between the bounds of numRange.
	NumRangePropagationStrategy PropagationStrategy = "NumRange"
)

// PropagationSpec is the desired spread.
//
// +kubebuilder:validation:XValidation:rule="(has(self.propagationStrategy) && self.propagationStrategy.size() > 0) || !(has(self.staticWeightList) && self.staticWeightList.size() > 0 && has(self.numRange) && self.numRange.size() > 0)",message="staticWeightList and numRange are both set: say which is meant with propagationStrategy",fieldPath=".propagationStrategy"
// +kubebuilder:validation:XValidation:rule="(has(self.staticWeightList) && self.staticWeightList.size() > 0) || (has(self.numRange) && self.numRange.size() > 0)",message="nothing says where pods go: set staticWeightList or numRange"
// +kubebuilder:validation:XValidation:rule="!has(self.propagationStrategy) || self.propagationStrategy != 'StaticWeight' || (has(self.staticWeightList) && self.staticWeightList.size() > 0)",message="propagationStrategy is StaticWeight: set staticWeightList, or change the strategy",fieldPath=".propagationStrategy"
// +kubebuilder:validation:XValidation:rule="!has(self.propagationStrategy) || self.propagationStrategy != 'NumRange' || (has(self.numRange) && self.numRange.size() > 0)",message="propagationStrategy is NumRange: set numRange, or change the strategy",fieldPath=".propagationStrategy"
type PropagationSpec struct {
	// propagationStrategy names the list that is in force; the other is
	// ignored. Unset: the one list that is set.
	// +optional
	PropagationStrategy PropagationStrategy `json:"propagationStrategy,omitempty"`

	// staticWeightList gives groups weights. Pods divide in proportion to them
	// by Webster's method, so that growth never takes a pod from a group.
	// Groups that no rule names get no pod. At most 100 rules.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	StaticWeight []StaticNodeGroupWeight `json:"staticWeightList,omitempty"`

	// numRange gives groups bounds: first every group gets its min in list
	// order, then groups are filled to their max in list order. Pods above the
	// sum of all max wait. At most 100 rules.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	NumRange []NodeGroupNumRange `json:"numRange,omitempty"`

	// assignment says when a pod gets its NodeGroup: Early is when it is created,
	// Late when it is scheduled, by a kube-scheduler that asks Atoll's extender.
	// Auto, the default, is Early. Where no kube-scheduler asks (the chart's
	// form Pinned) Late is Early too.
	// +optional
	// +kubebuilder:default=Auto
	Assignment Assignment `json:"assignment,omitempty"`

	// rescheduleAfterSeconds is how long a pod may wait for a node in the group
	// whose turn it is. Then it is replaced, if another group has room for it:
	// its workload avoids the group for five minutes or longer, and new pods go
	// on loan to groups that have their share already. A group never gets more
	// than its max for that. 0 to 86400; 0 is never. Default 60.
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	RescheduleAfterSeconds *int32 `json:"rescheduleAfterSeconds,omitempty"`

	// rescheduling says what becomes of running pods that are not where the
	// policy wants them.
	// +optional
	// +kubebuilder:default={}
	Rescheduling Rescheduling `json:"rescheduling,omitempty"`

	// failover says when a group whose nodes are all not Ready leaves its share
	// to the others. Unset: never.
	// +optional
	Failover *Failover `json:"failover,omitempty"`
}

// Failover divides the share of groups that are away among the others. A group
// that returns gets its share back: new pods go there at once, running ones are
// moved as rescheduling says. If every group that could get a pod is away, all
// keep their share.
type Failover struct {
	// afterSeconds is how long none of a group's nodes must have been Ready
	// before the group counts as away. 1 to 604800 (a week).
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	AfterSeconds int32 `json:"afterSeconds"`
}

// After is how long none of a group's nodes must have been Ready before it
// counts as away.
func (f *Failover) After() time.Duration { return time.Duration(f.AfterSeconds) * time.Second }

// Assignment says when a pod gets its NodeGroup.
// +kubebuilder:validation:Enum=Auto;Early;Late
type Assignment string

const (
	// AssignmentAuto is Early.
	AssignmentAuto Assignment = "Auto"
	// AssignmentEarly: at creation. The pod is pinned to its group, and carries
	// every override from the start.
	AssignmentEarly Assignment = "Early"
	// AssignmentLate: when a kube-scheduler that asks the extender places the pod,
	// with its view of where there is room.
	AssignmentLate Assignment = "Late"
)

// DefaultRescheduleAfter is the meaning of an unset rescheduleAfterSeconds.
const DefaultRescheduleAfter = time.Minute

// RescheduleAfter is rescheduleAfterSeconds, or its default; 0 is never.
func (s *PropagationSpec) RescheduleAfter() time.Duration {
	if s.RescheduleAfterSeconds == nil {
		return DefaultRescheduleAfter
	}
	return time.Duration(*s.RescheduleAfterSeconds) * time.Second
}

// StaticNodeGroupWeight gives each of the named groups one weight.
type StaticNodeGroupWeight struct {
	// nodeGroupNames are the groups, each of which gets the full weight. Where
	// several rules name a group, the largest weight counts. 1 to 100 names. Object names are always lower case, so
	// upper case is folded: "Beijing" is the NodeGroup beijing.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?$`
	NodeGroupNames []string `json:"nodeGroupNames"`

	// weight is the share of each of the groups, relative to the others' .
	// 0 to 1,000,000; 0 means never, unless every weight is 0, which means equal.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	Weight int64 `json:"weight"`
}

// NodeGroupNumRange bounds the number of pods in each of the named groups.
//
// +kubebuilder:validation:XValidation:rule="!has(self.min) || !has(self.max) || type(self.min) != int || type(self.max) != int || int(self.min) <= int(self.max)",message="min is greater than max: no number of pods is in the range",fieldPath=".min"
type NodeGroupNumRange struct {
	// nodeGroupNames are the groups, each of which gets the range. 1 to 100 names.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?$`
	NodeGroupNames []string `json:"nodeGroupNames"`

	// min is the number of pods that each group gets before any gets more: a
	// number from 0 to 1,000,000, or a percentage of the workload's replicas
	// from 0% to 100%, rounded up. Unset: 0.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=7
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? (int(self) >= 0 && int(self) <= 1000000) : string(self).matches('^(100|[1-9]?[0-9])%$')",message="must be a number from 0 to 1000000 or a percentage from 0% to 100%"
	Min *intstr.IntOrString `json:"min,omitempty"`

	// max is the number of pods of one revision that each of the groups does not
	// exceed, in the units of min. While a rollout runs, old and new pods are
	// counted apart: a group may hold as many of each. Unset: no limit.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=7
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? (int(self) >= 0 && int(self) <= 1000000) : string(self).matches('^(100|[1-9]?[0-9])%$')",message="must be a number from 0 to 1000000 or a percentage from 0% to 100%"
	Max *intstr.IntOrString `json:"max,omitempty"`
}

// ReschedulingMode says when running pods are moved.
// +kubebuilder:validation:Enum=Evict;OnRollout;Never
type ReschedulingMode string

const (
	// ReschedulingEvict evicts surplus pods one by one, through the Eviction API.
	ReschedulingEvict ReschedulingMode = "Evict"
	// ReschedulingOnRollout leaves running pods alone; the next rollout places anew.
	ReschedulingOnRollout ReschedulingMode = "OnRollout"
	// ReschedulingNever is another name of ReschedulingOnRollout, kept for the
	// policies that have it.
	ReschedulingNever ReschedulingMode = "Never"
)

// Rescheduling bounds what is done to running pods.
type Rescheduling struct {
	// mode says when running pods are moved or restarted. Evict: as soon as the
	// policy wants them elsewhere or otherwise, one after the other. OnRollout:
	// not at all; pods that a rollout, scaling or a failure makes new go where
	// they should. Never is deprecated and means OnRollout. Default Evict.
	// +optional
	// +kubebuilder:default=Evict
	Mode ReschedulingMode `json:"mode,omitempty"`

	// maxUnavailable is how many pods of a workload may be missing or not
	// Ready, for whatever reason, when one more is disturbed. 1 to 1000.
	// Default 1: the next only when all are Ready.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxUnavailable int32 `json:"maxUnavailable,omitempty"`

	// stabilizationSeconds is how long the policy and the membership of its
	// NodeGroups must have been as they are before a running pod is disturbed
	// because of them: NodeGroups that are created one after the other, or a
	// label that flips, move nothing twice. 0 to 3600. Default 5.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	StabilizationSeconds *int32 `json:"stabilizationSeconds,omitempty"`
}

// DefaultStabilization is the meaning of an unset stabilizationSeconds.
const DefaultStabilization = 5 * time.Second

// Stabilization is stabilizationSeconds, or its default.
func (r Rescheduling) Stabilization() time.Duration {
	if r.StabilizationSeconds == nil {
		return DefaultStabilization
	}
	return time.Duration(*r.StabilizationSeconds) * time.Second
}

// PropagationStatus is what atoll-manager saw last.
type PropagationStatus struct {
	// observedGeneration is the generation of spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// workloads is the number of workloads that require the policy.
	// +optional
	Workloads int32 `json:"workloads"`

	// apps has an entry for each workload that requires the policy, sorted by
	// kind and name; those that are not as wanted first. At most 50 are shown.
	// +optional
	// +listType=atomic
	Apps []AppSpread `json:"apps,omitempty"`

	// conditions: Ready.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AppReference names a workload in the policy's namespace.
type AppReference struct {
	// apiVersion of the workload, for example apps/v1.
	// +required
	APIVersion string `json:"apiVersion"`
	// kind of the workload, for example Deployment.
	// +required
	Kind string `json:"kind"`
	// name of the workload.
	// +required
	Name string `json:"name"`
}

// AppSpread is how the pods of one workload are spread.
type AppSpread struct {
	// ref names the workload.
	// +required
	Ref AppReference `json:"ref"`

	// groups has an entry for each group of the policy, and one for each other
	// group in which the workload has pods, sorted by name. Pods on nodes of no
	// group are under the name "".
	// +optional
	// +listType=atomic
	Groups []GroupSpread `json:"groups,omitempty"`

	// waiting is the number of pods that have no node yet.
	// +optional
	Waiting int32 `json:"waiting"`

	// message says what keeps the workload from being as wanted; empty when it is.
	// +optional
	Message string `json:"message,omitempty"`
}

// GroupSpread is the number of a workload's pods in one group.
type GroupSpread struct {
	// name of the NodeGroup.
	// +required
	Name string `json:"name"`
	// desired is the number of pods that the policy gives to the group,
	// over all revisions.
	// +required
	Desired int32 `json:"desired"`
	// current is the number of active pods on the group's nodes: neither
	// finished nor terminating.
	// +required
	Current int32 `json:"current"`
	// ready is the number of those that are Ready.
	// +required
	Ready int32 `json:"ready"`
	// surplus is the number of pods that are to leave the group.
	// +optional
	Surplus int32 `json:"surplus,omitempty"`
	// onLoan is the number of surplus pods that stay for now, because no group
	// that lacks pods has room for them.
	// +optional
	OnLoan int32 `json:"onLoan,omitempty"`
}

// PropagationPolicyList is a list of PropagationPolicies.
//
// +kubebuilder:object:root=true
type PropagationPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []PropagationPolicy `json:"items"`
}
