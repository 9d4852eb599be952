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
// +kubebuilder:printcolumn:name="Strategy",type=string,JSONPath=`.status.strategy`,priority=1,description="StaticWeight or NumRange."
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="metadata.name: a policy's name becomes a label's value: at most 63 characters"
type PropagationPolicy struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired division of pods over NodeGroups.
	// +required
	Spec PropagationSpec `json:"spec"`

	// status is the most recently observed division. Written by atoll-manager.
	// +optional
	Status PropagationStatus `json:"status,omitempty"`
}

// PropagationStrategy says which list of a PropagationPolicy is used.
// +kubebuilder:validation:Enum="";StaticWeight;NumRange
type PropagationStrategy string

const (
	// StaticWeightPropagationStrategy divides pods in proportion to staticWeightList.
	StaticWeightPropagationStrategy PropagationStrategy = "StaticWeight"
	// NumRangePropagationStrategy fills groups between the bounds of numRange.
	NumRangePropagationStrategy PropagationStrategy = "NumRange"
)

// PropagationSpec is the desired division of pods over NodeGroups.
//
// +kubebuilder:validation:XValidation:rule="(has(self.propagationStrategy) && self.propagationStrategy.size() > 0) || !(has(self.staticWeightList) && self.staticWeightList.size() > 0 && has(self.numRange) && self.numRange.size() > 0)",message="staticWeightList and numRange are both set: say which is meant with propagationStrategy",fieldPath=".propagationStrategy"
// +kubebuilder:validation:XValidation:rule="(has(self.staticWeightList) && self.staticWeightList.size() > 0) || (has(self.numRange) && self.numRange.size() > 0)",message="nothing says where pods go: set staticWeightList or numRange"
// +kubebuilder:validation:XValidation:rule="!has(self.propagationStrategy) || self.propagationStrategy != 'StaticWeight' || (has(self.staticWeightList) && self.staticWeightList.size() > 0)",message="propagationStrategy is StaticWeight: set staticWeightList, or change the strategy",fieldPath=".propagationStrategy"
// +kubebuilder:validation:XValidation:rule="!has(self.propagationStrategy) || self.propagationStrategy != 'NumRange' || (has(self.numRange) && self.numRange.size() > 0)",message="propagationStrategy is NumRange: set numRange, or change the strategy",fieldPath=".propagationStrategy"
type PropagationSpec struct {
	// propagationStrategy says which list is used; the other list is ignored.
	// Unset: the one list that is set is used.
	// +optional
	PropagationStrategy PropagationStrategy `json:"propagationStrategy,omitempty"`

	// staticWeightList gives weights to groups. Pods are divided in proportion to
	// the weights, by Webster's method: scaling out never takes a pod from a group.
	// Groups that no rule names get no pods. At most 100 rules.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	StaticWeight []StaticNodeGroupWeight `json:"staticWeightList,omitempty"`

	// numRange gives a minimum and a maximum to groups. First each group gets its
	// min, in list order; then groups are filled up to their max, in list order.
	// Pods beyond the sum of all max stay Pending. At most 100 rules.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	NumRange []NodeGroupNumRange `json:"numRange,omitempty"`

	// assignment says when a pod gets its NodeGroup. Early: when the pod is
	// created. Late: when the pod is scheduled, by a kube-scheduler that calls
	// Atoll's extender. Auto, the default, means Early. If no kube-scheduler calls
	// the extender (the chart's form Pinned), Late means Early too.
	// +optional
	// +default="Auto"
	Assignment Assignment `json:"assignment,omitempty"`

	// rescheduleAfterSeconds is how long a pod may wait for a node in its group.
	// After that time it is replaced, if another group has room for it: new pods
	// of the workload avoid the group for five minutes or longer, and go to groups
	// that already have their share ("on loan"). No group gets more pods than its
	// max in this way. 0 to 86400; 0 means never. Default 60.
	// +optional
	// +default=60
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	RescheduleAfterSeconds *int32 `json:"rescheduleAfterSeconds,omitempty"`

	// rescheduling says what happens to running pods that are not in the group
	// where the policy wants them.
	// +optional
	// +default={}
	Rescheduling Rescheduling `json:"rescheduling,omitempty"`

	// failover says when the share of a group without a Ready node is divided
	// among the other groups. Unset: never.
	// +optional
	Failover *Failover `json:"failover,omitempty"`
}

// Failover divides the share of groups that are away among the other groups. A
// group that returns gets its share back: new pods go there at once, running pods
// are moved as rescheduling says. If all groups are away, each keeps its share.
type Failover struct {
	// afterSeconds is how long a group must have had no Ready node before it counts
	// as away. 1 to 604800 (a week).
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	AfterSeconds int32 `json:"afterSeconds"`
}

// After is afterSeconds as a duration.
func (f *Failover) After() time.Duration { return time.Duration(f.AfterSeconds) * time.Second }

// Assignment says when a pod gets its NodeGroup.
// +kubebuilder:validation:Enum=Auto;Early;Late
type Assignment string

const (
	// AssignmentAuto means Early.
	AssignmentAuto Assignment = "Auto"
	// AssignmentEarly: when the pod is created. The pod is pinned to its group by
	// node affinity and has every override from the start.
	AssignmentEarly Assignment = "Early"
	// AssignmentLate: when the pod is scheduled by a kube-scheduler that calls the
	// extender. kube-scheduler's view of free capacity takes part in the choice.
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
	// several rules name a group, the largest weight counts. 1 to 100 names. Case
	// is ignored, because names of objects are lower case: "Beijing" is the
	// NodeGroup beijing.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?$`
	NodeGroupNames []string `json:"nodeGroupNames"`

	// weight is the share of each of the groups, relative to the other groups.
	// 0 to 1,000,000. A group of weight 0 gets no pods, unless all weights are 0:
	// then all groups get equal shares.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	Weight int64 `json:"weight"`
}

// NodeGroupNumRange bounds the number of pods in each of the named groups.
//
// +kubebuilder:validation:XValidation:rule="!has(self.min) || !has(self.max) || type(self.min) != int || type(self.max) != int || int(self.min) <= int(self.max)",message="min is greater than max: no number of pods is in the range",fieldPath=".min"
type NodeGroupNumRange struct {
	// nodeGroupNames are the groups. The range applies to each of them. 1 to 100
	// names.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?$`
	NodeGroupNames []string `json:"nodeGroupNames"`

	// min is the number of pods that each of the groups gets before any group gets
	// more: a number from 0 to 1,000,000, or a percentage of the workload's
	// replicas from 0% to 100%, rounded up. Unset: 0.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=7
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? (int(self) >= 0 && int(self) <= 1000000) : string(self).matches('^(100|[1-9]?[0-9])%$')",message="must be a number from 0 to 1000000 or a percentage from 0% to 100%"
	Min *intstr.IntOrString `json:"min,omitempty"`

	// max is the largest number of pods of one revision in each of the groups, in
	// the units of min. During a rollout, pods of the old and of the new revision
	// are counted separately: a group may have max pods of each. Unset: no limit.
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
	// ReschedulingEvict evicts surplus pods one after the other, through the
	// Eviction API.
	ReschedulingEvict ReschedulingMode = "Evict"
	// ReschedulingOnRollout leaves running pods where they are. Pods that a rollout
	// creates go where the policy wants them.
	ReschedulingOnRollout ReschedulingMode = "OnRollout"
	// ReschedulingNever means the same as ReschedulingOnRollout. Deprecated.
	ReschedulingNever ReschedulingMode = "Never"
)

// Rescheduling limits how running pods are disturbed.
type Rescheduling struct {
	// mode says when running pods are moved or restarted. Evict: as soon as the
	// policies want them in another group or with other fields, one after the
	// other. OnRollout: never; only pods that are created by a rollout, by scaling
	// or after a failure follow the policies. Never is deprecated and means
	// OnRollout. Default Evict.
	// +optional
	// +default="Evict"
	Mode ReschedulingMode `json:"mode,omitempty"`

	// maxUnavailable is the largest number of pods of a workload that may be
	// missing or not Ready, for any reason, including the pod that is disturbed
	// next. 1 to 1000. Default 1: a pod is disturbed only if all pods are Ready.
	// +optional
	// +default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxUnavailable int32 `json:"maxUnavailable,omitempty"`

	// stabilizationSeconds is how long the policy and the members of its NodeGroups
	// must have been unchanged before a running pod is disturbed. It keeps
	// NodeGroups that are created one after the other, or a label that changes to
	// and fro, from moving pods twice. 0 to 3600. Default 5.
	// +optional
	// +default=5
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

// PropagationStatus is the most recently observed state of a PropagationPolicy.
type PropagationStatus struct {
	// observedGeneration is the metadata.generation that this status was computed for.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// strategy is spec.propagationStrategy or, if that is empty, the one whose list is set.
	// Empty if spec is invalid.
	// +optional
	Strategy PropagationStrategy `json:"strategy,omitempty"`

	// workloads is the number of workloads that require the policy.
	// +optional
	Workloads int32 `json:"workloads"`

	// apps has an entry for each workload that requires the policy: first those
	// that do not satisfy it yet, each part sorted by kind and name. At most 50, and as
	// many as have 2,000 groups together; the first is always there.
	// +optional
	// +listType=atomic
	Apps []WorkloadSpread `json:"apps,omitempty"`

	// conditions has the condition Ready: all pods are in the groups that the
	// policy wants.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// WorkloadReference names a workload in the policy's namespace.
type WorkloadReference struct {
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

// WorkloadSpread is how the pods of one workload are divided over NodeGroups.
type WorkloadSpread struct {
	// ref names the workload.
	// +required
	Ref WorkloadReference `json:"ref"`

	// groups has an entry for each group of the policy and for each other group in
	// which the workload has pods, sorted by name. Pods on nodes that are in no
	// group are counted under the name "".
	// +optional
	// +listType=atomic
	Groups []GroupSpread `json:"groups,omitempty"`

	// waiting is the number of pods that are not bound to a node yet.
	// +optional
	Waiting int32 `json:"waiting"`

	// message says why the workload does not satisfy the policy yet; empty if it does.
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
	// surplus is the number of pods that the group has too many.
	// +optional
	Surplus int32 `json:"surplus,omitempty"`
	// onLoan is the number of surplus pods that stay for now, because no group that
	// lacks pods has a node that could run them.
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
