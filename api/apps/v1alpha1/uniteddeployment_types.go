package v1alpha1

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// UnitedDeployment runs one workload in each pool of nodes, all from one template.
// Each is a Deployment, a StatefulSet or a DaemonSet, named <name>-<pool>.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.labelSelector
// +kubebuilder:resource:shortName=ud,categories=all
// +kubebuilder:printcolumn:name="READY",type=integer,JSONPath=`.status.readyReplicas`,description="The number of pods ready."
// +kubebuilder:printcolumn:name="REPLICAS",type=integer,JSONPath=`.status.replicas`,description="The number of pods."
// +kubebuilder:printcolumn:name="UPDATED",type=integer,JSONPath=`.status.updatedReplicas`,description="The number of pods that are of the update revision."
// +kubebuilder:printcolumn:name="TemplateType",type=string,JSONPath=`.status.templateType`,description="The WorkloadTemplate Type."
// +kubebuilder:printcolumn:name="Failure",type=string,JSONPath=`.status.conditions[?(@.type=="PoolFailure")].status`,priority=1,description="Whether a pool has a failure."
// +kubebuilder:printcolumn:name="Revision",type=string,JSONPath=`.status.currentRevision`,priority=1,description="The revision that every pool has reached."
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="metadata.name: a UnitedDeployment's name becomes a label's value: at most 63 characters"
type UnitedDeployment struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state: the pools, and the workload that runs in each.
	// +required
	Spec UnitedDeploymentSpec `json:"spec"`

	// status is the most recently observed state of the UnitedDeployment. Written by
	// atoll-manager.
	// +optional
	Status UnitedDeploymentStatus `json:"status,omitempty"`
}

// TemplateType names the kind of a UnitedDeployment's workloads.
type TemplateType string

const (
	// StatefulSetTemplateType: each pool has a StatefulSet.
	StatefulSetTemplateType TemplateType = "StatefulSet"
	// DeploymentTemplateType: each pool has a Deployment.
	DeploymentTemplateType TemplateType = "Deployment"
	// DaemonSetTemplateType: each pool has a DaemonSet.
	DaemonSetTemplateType TemplateType = "DaemonSet"
)

// UnitedDeploymentSpec is the desired state of a UnitedDeployment.
//
// +kubebuilder:validation:XValidation:rule="has(self.workloadTemplate)",message="set one of deploymentTemplate, statefulSetTemplate and daemonSetTemplate",fieldPath=".workloadTemplate",reason=FieldValueRequired
// +kubebuilder:validation:XValidation:rule="has(self.replicas) || (has(self.workloadTemplate) && has(self.workloadTemplate.daemonSetTemplate)) || !has(self.topology) || !has(self.topology.pools) || self.topology.pools.all(p, has(p.replicas) && type(p.replicas) == int)",message="without spec.replicas every pool needs a number of replicas",fieldPath=".topology.pools"
// +kubebuilder:validation:XValidation:rule="!has(self.replicas) || !has(self.topology) || !has(self.topology.pools) || self.topology.pools.exists(p, !has(p.replicas)) || self.topology.pools.exists(p, type(p.replicas) == string) || self.topology.pools.map(p, int(p.replicas)).sum() == self.replicas",message="every pool has a number of replicas, and their sum is another: leave replicas out here, or in the pool that takes the rest",fieldPath=".replicas"
// +kubebuilder:validation:XValidation:rule="!has(self.replicas) || !has(self.topology) || !has(self.topology.pools) || self.topology.pools.map(p, has(p.replicas) && type(p.replicas) == string && string(p.replicas).matches('^(100|[1-9]?[0-9])%$') ? int(string(p.replicas).split('%')[0]) : 0).sum() <= 100",message="the percentages of the pools are more than 100% together",fieldPath=".topology.pools"
// +kubebuilder:validation:XValidation:rule="!has(self.replicas) || !has(self.topology) || !has(self.topology.pools) || self.topology.pools.exists(p, !has(p.replicas)) || self.topology.pools.all(p, type(p.replicas) == int) || self.topology.pools.exists(p, type(p.replicas) == string && !string(p.replicas).matches('^(100|[1-9]?[0-9])%$')) || (self.topology.pools.all(p, type(p.replicas) == string) && self.topology.pools.map(p, int(string(p.replicas).split('%')[0])).sum() == 100)",message="nothing says who gets the rest: percentages have to be 100% together, or one pool without replicas takes what is left",fieldPath=".topology.pools"
// +kubebuilder:validation:XValidation:rule="!has(self.workloadTemplate) || !has(self.workloadTemplate.daemonSetTemplate) || !has(self.replicas)",message="a DaemonSet runs one pod a node: leave replicas out",fieldPath=".replicas",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="!has(self.workloadTemplate) || !has(self.workloadTemplate.daemonSetTemplate) || !has(self.topology) || !has(self.topology.pools) || self.topology.pools.all(p, !has(p.replicas))",message="a DaemonSet runs one pod a node: leave the pools' replicas out",fieldPath=".topology.pools",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="!has(self.workloadTemplate) || has(self.workloadTemplate.statefulSetTemplate) || !has(self.topology) || !has(self.topology.pools) || self.topology.pools.all(p, !has(p.partition))",message="only a StatefulSet can be updated in part: use updateStrategy.partition to hold whole pools",fieldPath=".topology.pools",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="!has(self.workloadTemplate) || !has(self.workloadTemplate.deploymentTemplate) || !has(self.workloadTemplate.deploymentTemplate.spec.selector) || dyn(self.workloadTemplate.deploymentTemplate.spec.selector) == dyn(self.selector)",message="leave it out: a pool's selector is spec.selector and the pool's name",fieldPath=".workloadTemplate.deploymentTemplate.spec.selector"
// +kubebuilder:validation:XValidation:rule="!has(self.workloadTemplate) || !has(self.workloadTemplate.statefulSetTemplate) || !has(self.workloadTemplate.statefulSetTemplate.spec.selector) || dyn(self.workloadTemplate.statefulSetTemplate.spec.selector) == dyn(self.selector)",message="leave it out: a pool's selector is spec.selector and the pool's name",fieldPath=".workloadTemplate.statefulSetTemplate.spec.selector"
// +kubebuilder:validation:XValidation:rule="!has(self.workloadTemplate) || !has(self.workloadTemplate.daemonSetTemplate) || !has(self.workloadTemplate.daemonSetTemplate.spec.selector) || dyn(self.workloadTemplate.daemonSetTemplate.spec.selector) == dyn(self.selector)",message="leave it out: a pool's selector is spec.selector and the pool's name",fieldPath=".workloadTemplate.daemonSetTemplate.spec.selector"
// +kubebuilder:validation:XValidation:rule="!has(self.workloadTemplate) || !has(self.workloadTemplate.deploymentTemplate) || (has(self.workloadTemplate.deploymentTemplate.spec.template.metadata) && has(self.workloadTemplate.deploymentTemplate.spec.template.metadata.labels) && (!has(self.selector.matchLabels) || self.selector.matchLabels.all(k, k in self.workloadTemplate.deploymentTemplate.spec.template.metadata.labels && self.workloadTemplate.deploymentTemplate.spec.template.metadata.labels[k] == self.selector.matchLabels[k])) && (!has(self.selector.matchExpressions) || self.selector.matchExpressions.all(e, e.operator == 'In' ? e.key in self.workloadTemplate.deploymentTemplate.spec.template.metadata.labels && self.workloadTemplate.deploymentTemplate.spec.template.metadata.labels[e.key] in e.values : e.operator == 'NotIn' ? !(e.key in self.workloadTemplate.deploymentTemplate.spec.template.metadata.labels) || !(self.workloadTemplate.deploymentTemplate.spec.template.metadata.labels[e.key] in e.values) : e.operator == 'Exists' ? e.key in self.workloadTemplate.deploymentTemplate.spec.template.metadata.labels : !(e.key in self.workloadTemplate.deploymentTemplate.spec.template.metadata.labels))))",message="spec.selector does not match the labels of the template's pods",fieldPath=".workloadTemplate.deploymentTemplate.spec.template.metadata.labels"
// +kubebuilder:validation:XValidation:rule="!has(self.workloadTemplate) || !has(self.workloadTemplate.statefulSetTemplate) || (has(self.workloadTemplate.statefulSetTemplate.spec.template.metadata) && has(self.workloadTemplate.statefulSetTemplate.spec.template.metadata.labels) && (!has(self.selector.matchLabels) || self.selector.matchLabels.all(k, k in self.workloadTemplate.statefulSetTemplate.spec.template.metadata.labels && self.workloadTemplate.statefulSetTemplate.spec.template.metadata.labels[k] == self.selector.matchLabels[k])) && (!has(self.selector.matchExpressions) || self.selector.matchExpressions.all(e, e.operator == 'In' ? e.key in self.workloadTemplate.statefulSetTemplate.spec.template.metadata.labels && self.workloadTemplate.statefulSetTemplate.spec.template.metadata.labels[e.key] in e.values : e.operator == 'NotIn' ? !(e.key in self.workloadTemplate.statefulSetTemplate.spec.template.metadata.labels) || !(self.workloadTemplate.statefulSetTemplate.spec.template.metadata.labels[e.key] in e.values) : e.operator == 'Exists' ? e.key in self.workloadTemplate.statefulSetTemplate.spec.template.metadata.labels : !(e.key in self.workloadTemplate.statefulSetTemplate.spec.template.metadata.labels))))",message="spec.selector does not match the labels of the template's pods",fieldPath=".workloadTemplate.statefulSetTemplate.spec.template.metadata.labels"
// +kubebuilder:validation:XValidation:rule="!has(self.workloadTemplate) || !has(self.workloadTemplate.daemonSetTemplate) || (has(self.workloadTemplate.daemonSetTemplate.spec.template.metadata) && has(self.workloadTemplate.daemonSetTemplate.spec.template.metadata.labels) && (!has(self.selector.matchLabels) || self.selector.matchLabels.all(k, k in self.workloadTemplate.daemonSetTemplate.spec.template.metadata.labels && self.workloadTemplate.daemonSetTemplate.spec.template.metadata.labels[k] == self.selector.matchLabels[k])) && (!has(self.selector.matchExpressions) || self.selector.matchExpressions.all(e, e.operator == 'In' ? e.key in self.workloadTemplate.daemonSetTemplate.spec.template.metadata.labels && self.workloadTemplate.daemonSetTemplate.spec.template.metadata.labels[e.key] in e.values : e.operator == 'NotIn' ? !(e.key in self.workloadTemplate.daemonSetTemplate.spec.template.metadata.labels) || !(self.workloadTemplate.daemonSetTemplate.spec.template.metadata.labels[e.key] in e.values) : e.operator == 'Exists' ? e.key in self.workloadTemplate.daemonSetTemplate.spec.template.metadata.labels : !(e.key in self.workloadTemplate.daemonSetTemplate.spec.template.metadata.labels))))",message="spec.selector does not match the labels of the template's pods",fieldPath=".workloadTemplate.daemonSetTemplate.spec.template.metadata.labels"
type UnitedDeploymentSpec struct {
	// selector selects the pods of all pools. It must match the labels of the pod
	// template and cannot change. The workload of each pool selects its pods by
	// this selector and by the label apps.openyurt.io/pool-name. At most 32 labels
	// and 32 expressions.
	// +required
	// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && self.matchLabels.size() > 0) || (has(self.matchExpressions) && self.matchExpressions.size() > 0)",message="an empty selector would select every pod"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot change: workloads keep the selector that they were made with"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn'] ? has(e.values) && e.values.size() > 0 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || e.values.size() == 0))",message="operator is In or NotIn, with values, or Exists or DoesNotExist, without",fieldPath=".matchExpressions"
	// +kubebuilder:validation:XValidation:rule="!(has(self.matchLabels) && 'apps.openyurt.io/pool-name' in self.matchLabels) && !(has(self.matchExpressions) && self.matchExpressions.exists(e, e.key == 'apps.openyurt.io/pool-name'))",message="apps.openyurt.io/pool-name is added to the selector of each pool: leave it out"
	Selector *metav1.LabelSelector `json:"selector"`

	// workloadTemplate is the template of the workloads of all pools. Exactly one of
	// its fields must be set.
	// +optional
	WorkloadTemplate WorkloadTemplate `json:"workloadTemplate,omitempty"`

	// replicas is the number of pods of all pools together. Unset: each pool must
	// have its own number. 0 to 1,000,000. The scale subresource writes it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	Replicas *int32 `json:"replicas,omitempty"`

	// topology lists the pools.
	// +optional
	Topology Topology `json:"topology,omitempty"`

	// updateStrategy says in which order and how fast pools are updated.
	// +optional
	// +default={}
	UpdateStrategy UnitedDeploymentUpdateStrategy `json:"updateStrategy,omitempty"`

	// revisionHistoryLimit is the number of old ControllerRevisions that are kept,
	// in addition to those that pools use. 0 to 1000. Default 10.
	// +optional
	// +default=10
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty"`
}

// DefaultRevisionHistoryLimit is the meaning of an unset revisionHistoryLimit.
const DefaultRevisionHistoryLimit int32 = 10

// WorkloadTemplate is the template of the workloads. Which of its fields is set
// cannot change.
//
// +kubebuilder:validation:XValidation:rule="(has(self.deploymentTemplate) ? 1 : 0) + (has(self.statefulSetTemplate) ? 1 : 0) + (has(self.daemonSetTemplate) ? 1 : 0) == 1",message="set exactly one of deploymentTemplate, statefulSetTemplate and daemonSetTemplate"
// +kubebuilder:validation:XValidation:rule="has(self.deploymentTemplate) == has(oldSelf.deploymentTemplate) && has(self.statefulSetTemplate) == has(oldSelf.statefulSetTemplate) && has(self.daemonSetTemplate) == has(oldSelf.daemonSetTemplate)",message="the kind of the workloads cannot change: make another UnitedDeployment"
type WorkloadTemplate struct {
	// statefulSetTemplate is the template if each pool has a StatefulSet.
	// +optional
	StatefulSetTemplate *StatefulSetTemplateSpec `json:"statefulSetTemplate,omitempty"`

	// deploymentTemplate is the template if each pool has a Deployment.
	// +optional
	DeploymentTemplate *DeploymentTemplateSpec `json:"deploymentTemplate,omitempty"`

	// daemonSetTemplate is the template if each pool has a DaemonSet.
	// +optional
	DaemonSetTemplate *DaemonSetTemplateSpec `json:"daemonSetTemplate,omitempty"`
}

// Type is the kind of the workloads; "" if no template is set.
func (t *WorkloadTemplate) Type() TemplateType {
	switch {
	case t.DeploymentTemplate != nil:
		return DeploymentTemplateType
	case t.StatefulSetTemplate != nil:
		return StatefulSetTemplateType
	case t.DaemonSetTemplate != nil:
		return DaemonSetTemplateType
	}
	return ""
}

// StatefulSetTemplateSpec defines the template of a pool's StatefulSet.
type StatefulSetTemplateSpec struct {
	// metadata has the labels and annotations of the StatefulSet.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the spec of the StatefulSet, without replicas, selector and partition:
	// those come from the pool. Fields that cannot change in a StatefulSet cannot
	// change here.
	// +required
	// +kubebuilder:validation:XValidation:rule="!has(self.replicas)",message="the pools have the replicas: set them there, or spec.replicas",fieldPath=".replicas",reason=FieldValueForbidden
	// +kubebuilder:validation:XValidation:rule="!has(self.updateStrategy) || !has(self.updateStrategy.rollingUpdate) || !has(self.updateStrategy.rollingUpdate.partition)",message="set partition in the pool",fieldPath=".updateStrategy.rollingUpdate.partition",reason=FieldValueForbidden
	// +kubebuilder:validation:XValidation:rule="(has(self.serviceName) && self.serviceName.size() > 0) == (has(oldSelf.serviceName) && oldSelf.serviceName.size() > 0) && (!has(self.serviceName) || !has(oldSelf.serviceName) || self.serviceName == oldSelf.serviceName)",message="cannot change: a StatefulSet keeps its serviceName",fieldPath=".serviceName"
	// +kubebuilder:validation:XValidation:rule="(has(self.podManagementPolicy) ? self.podManagementPolicy : 'OrderedReady') == (has(oldSelf.podManagementPolicy) ? oldSelf.podManagementPolicy : 'OrderedReady')",message="cannot change: a StatefulSet keeps its podManagementPolicy",fieldPath=".podManagementPolicy"
	// +kubebuilder:validation:XValidation:rule="(has(self.volumeClaimTemplates) && self.volumeClaimTemplates.size() > 0) == (has(oldSelf.volumeClaimTemplates) && oldSelf.volumeClaimTemplates.size() > 0) && (!has(self.volumeClaimTemplates) || !has(oldSelf.volumeClaimTemplates) || self.volumeClaimTemplates == oldSelf.volumeClaimTemplates)",message="cannot change: a StatefulSet keeps its volumeClaimTemplates",fieldPath=".volumeClaimTemplates"
	Spec appsv1.StatefulSetSpec `json:"spec"`
}

// DeploymentTemplateSpec defines the template of a pool's Deployment.
type DeploymentTemplateSpec struct {
	// metadata has the labels and annotations of the Deployment.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the spec of the Deployment, without replicas and selector: those come
	// from the pool.
	// +required
	// +kubebuilder:validation:XValidation:rule="!has(self.replicas)",message="the pools have the replicas: set them there, or spec.replicas",fieldPath=".replicas",reason=FieldValueForbidden
	Spec appsv1.DeploymentSpec `json:"spec"`
}

// DaemonSetTemplateSpec defines the template of a pool's DaemonSet.
type DaemonSetTemplateSpec struct {
	// metadata has the labels and annotations of the DaemonSet.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the spec of the DaemonSet, without selector: that comes from the pool.
	// +required
	Spec appsv1.DaemonSetSpec `json:"spec"`
}

// Topology lists the pools of a UnitedDeployment.
type Topology struct {
	// pools are the pools, in the order in which they are updated. At most 1000.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=1000
	Pools []Pool `json:"pools,omitempty"`
}

// Pool describes the workload of one pool.
//
// +kubebuilder:validation:XValidation:rule="self.nodeSelectorTerm == oldSelf.nodeSelectorTerm",message="cannot change: remove the pool and add it again",fieldPath=".nodeSelectorTerm"
// +kubebuilder:validation:XValidation:rule="(has(self.tolerations) && self.tolerations.size() > 0) == (has(oldSelf.tolerations) && oldSelf.tolerations.size() > 0) && (!has(self.tolerations) || !has(oldSelf.tolerations) || self.tolerations == oldSelf.tolerations)",message="cannot change: remove the pool and add it again",fieldPath=".tolerations"
type Pool struct {
	// name is the name of the pool, and of the NodePool whose nodes it uses: a DNS
	// label, unique in the UnitedDeployment. The workload is named
	// <UnitedDeployment>-<pool>; a name of more than 52 characters is shortened and
	// ends with a hash.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// nodeSelectorTerm selects the nodes of the pool. It is added to every required
	// term of the template's node affinity. Empty: the nodes with the label
	// apps.openyurt.io/nodepool=<name>. It cannot change. At most 16 expressions and
	// 16 fields.
	// +optional
	// +default={}
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn'] ? has(e.values) && e.values.size() > 0 : e.operator in ['Exists', 'DoesNotExist'] ? !has(e.values) || e.values.size() == 0 : e.operator in ['Gt', 'Lt'] && has(e.values) && e.values.size() == 1 && e.values[0].matches('^-?[0-9]{1,18}$'))",message="operator is In or NotIn with values, Exists or DoesNotExist without, Gt or Lt with one number",fieldPath=".matchExpressions"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchFields) || self.matchFields.all(e, e.key == 'metadata.name' && e.operator in ['In', 'NotIn'] && has(e.values) && e.values.size() == 1)",message="the one field is metadata.name, the operator In or NotIn, with one value",fieldPath=".matchFields"
	NodeSelectorTerm corev1.NodeSelectorTerm `json:"nodeSelectorTerm,omitempty"`

	// tolerations are added to the pods of this pool, in addition to those of the
	// template and to those for the taints of the NodePool. They cannot change. At
	// most 32.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:XValidation:rule="!has(self.operator) || self.operator in ['', 'Exists', 'Equal']",message="operator is Exists or Equal",fieldPath=".operator"
	// +kubebuilder:validation:items:XValidation:rule="!has(self.operator) || self.operator != 'Exists' || !has(self.value) || self.value.size() == 0",message="with operator Exists there is no value",fieldPath=".value"
	// +kubebuilder:validation:items:XValidation:rule="(has(self.key) && self.key.size() > 0) || (has(self.operator) && self.operator == 'Exists')",message="without a key, operator must be Exists",fieldPath=".operator"
	// +kubebuilder:validation:items:XValidation:rule="!has(self.effect) || self.effect in ['', 'NoSchedule', 'PreferNoSchedule', 'NoExecute']",message="effect is NoSchedule, PreferNoSchedule or NoExecute",fieldPath=".effect"
	// +kubebuilder:validation:items:XValidation:rule="!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",message="tolerationSeconds needs the effect NoExecute",fieldPath=".effect"
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// replicas is the number of pods of this pool: a number from 0 to 1,000,000, or
	// a percentage of spec.replicas from 0% to 100%. A percentage is rounded down
	// or up, so that the sum of all pools is spec.replicas. Unset: an equal share of
	// the rest of spec.replicas.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=7
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? (int(self) >= 0 && int(self) <= 1000000) : string(self).matches('^(100|[1-9]?[0-9])%$')",message="must be a number from 0 to 1000000 or a percentage from 0% to 100%"
	Replicas *intstr.IntOrString `json:"replicas,omitempty"`

	// partition is the partition of this pool's StatefulSet: pods with a lower
	// ordinal keep their revision. 0 to 1,000,000. Default 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	Partition *int32 `json:"partition,omitempty"`

	// patch is a strategic merge patch that is applied to this pool's Deployment,
	// StatefulSet or DaemonSet: {spec: {template: {spec: …}}}. It cannot change
	// names, selectors, owners and replicas.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.replicas)",message="set replicas of the pool",fieldPath=".spec.replicas",reason=FieldValueForbidden
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.selector)",message="the selector is spec.selector and the pool's name",fieldPath=".spec.selector",reason=FieldValueForbidden
	// +kubebuilder:validation:XValidation:rule="!has(self.metadata) || !has(self.metadata.name)",message="the workload's name is <name>-<pool>",fieldPath=".metadata.name",reason=FieldValueForbidden
	Patch *runtime.RawExtension `json:"patch,omitempty"`
}

// FailurePolicy says whether a rollout goes on after a pool has failed.
// +kubebuilder:validation:Enum=Stop;Continue
type FailurePolicy string

const (
	// FailureStop: no further pool is updated until the failed pool has recovered.
	FailureStop FailurePolicy = "Stop"
	// FailureContinue: the next pool is updated.
	FailureContinue FailurePolicy = "Continue"
)

// UnitedDeploymentUpdateStrategy says how pools are updated after a change of the
// template, of a patch, or of the taints of a NodePool. A changed number of
// replicas is applied to all pools at once.
type UnitedDeploymentUpdateStrategy struct {
	// paused stops the rollout: no further pool is updated. Pools whose update has
	// begun finish it.
	// +optional
	Paused bool `json:"paused,omitempty"`

	// partition is the number of pools, counted from the end of the list, that keep
	// their revision. 0 to 1000. Default 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Partition *int32 `json:"partition,omitempty"`

	// maxUpdatingPools is the number of pools that may be updated at the same time.
	// 1 to 1000. Default 1: one after the other, in the order of the list.
	// +optional
	// +default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxUpdatingPools *int32 `json:"maxUpdatingPools,omitempty"`

	// onFailure says whether the rollout goes on after a pool has failed: Stop or
	// Continue. Default Stop.
	// +optional
	// +default="Stop"
	OnFailure FailurePolicy `json:"onFailure,omitempty"`

	// progressDeadlineSeconds is how long the update of a pool may make no progress
	// before the pool counts as failed. 1 to 604800. Default 600.
	// +optional
	// +default=600
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds,omitempty"`
}

// DefaultProgressDeadlineSeconds is the meaning of an unset progressDeadlineSeconds.
const DefaultProgressDeadlineSeconds int32 = 600

// UnitedDeploymentStatus is the most recently observed state of a UnitedDeployment.
type UnitedDeploymentStatus struct {
	// observedGeneration is the metadata.generation that this status was computed for.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// collisionCount is the number of hash collisions. It makes the name of the newest
	// ControllerRevision unique.
	// +optional
	CollisionCount *int32 `json:"collisionCount,omitempty"`

	// currentRevision is the name of the newest ControllerRevision that was rolled
	// out to every pool: all pods updated and available. Empty if there is none.
	// +optional
	CurrentRevision string `json:"currentRevision"`

	// updateRevision is the name of the ControllerRevision that is rolled out.
	// +optional
	UpdateRevision string `json:"updateRevision,omitempty"`

	// conditions has Ready, PoolProvisioned, PoolUpdated and PoolFailure.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// poolReplicas is the number of existing pods of each pool, by its name.
	// +optional
	// +mapType=atomic
	PoolReplicas map[string]int32 `json:"poolReplicas,omitempty"`

	// Atomic, because only atoll-manager writes it, as a whole: the API server need not record who
	// owns each field of each pool.

	// pools is the state of each pool, in the order of spec.
	// +optional
	// +listType=atomic
	Pools []PoolStatus `json:"pools,omitempty"`

	// readyReplicas is the number of pods that are Ready.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas"`

	// replicas is the number of existing pods.
	// +optional
	Replicas int32 `json:"replicas"`

	// updatedReplicas is the number of pods of the update revision.
	// +optional
	UpdatedReplicas int32 `json:"updatedReplicas"`

	// labelSelector selects the pods of all pools, for the scale subresource.
	// +optional
	LabelSelector string `json:"labelSelector,omitempty"`

	// templateType is the type of the workloads: StatefulSet, Deployment or DaemonSet.
	// +optional
	TemplateType TemplateType `json:"templateType"`
}

// PoolPhase is the state of a pool in one word.
type PoolPhase string

const (
	// PoolPending: the pool has no workload yet.
	PoolPending PoolPhase = "Pending"
	// PoolWaiting: the pool will be updated after the pools before it.
	PoolWaiting PoolPhase = "Waiting"
	// PoolHeld: the pool is not updated because of a partition, a pause or a failed
	// pool before it.
	PoolHeld PoolPhase = "Held"
	// PoolUpdating: the pool's pods are being created or replaced.
	PoolUpdating PoolPhase = "Updating"
	// PoolFailed: the workload cannot be written, or its update made no progress in
	// time.
	PoolFailed PoolPhase = "Failed"
	// PoolUnavailable: the workload is updated, but not all pods are available.
	PoolUnavailable PoolPhase = "Unavailable"
	// PoolReady: the workload is updated, and all pods are available.
	PoolReady PoolPhase = "Ready"
)

// PoolStatus is the state of one pool.
type PoolStatus struct {
	// name is the name of the pool.
	// +required
	Name string `json:"name"`

	// workload is the name of the pool's Deployment, StatefulSet or DaemonSet.
	// +optional
	Workload string `json:"workload,omitempty"`

	// revision is the name of the ControllerRevision that the workload was built from.
	// +optional
	Revision string `json:"revision,omitempty"`

	// phase is one of Pending, Waiting, Held, Updating, Failed, Unavailable, Ready.
	// +optional
	Phase PoolPhase `json:"phase,omitempty"`

	// reason says why the phase is Failed, in one word.
	// +optional
	Reason string `json:"reason,omitempty"`

	// message says why the phase is Failed.
	// +optional
	Message string `json:"message,omitempty"`

	// desiredReplicas is the desired number of pods.
	// +optional
	DesiredReplicas int32 `json:"desiredReplicas"`

	// replicas is the number of existing pods.
	// +optional
	Replicas int32 `json:"replicas"`

	// readyReplicas is the number of pods that are Ready.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas"`

	// updatedReplicas is the number of pods that have the workload's current template.
	// +optional
	UpdatedReplicas int32 `json:"updatedReplicas"`

	// availableReplicas is the number of pods that have been Ready for minReadySeconds.
	// +optional
	AvailableReplicas int32 `json:"availableReplicas"`

	// lastProgressTime is when an update of the pool last made progress.
	// +optional
	LastProgressTime *metav1.Time `json:"lastProgressTime,omitempty"`

	// settled is true if all pods have been updated and available at the same time
	// since the workload was updated last.
	// +optional
	Settled bool `json:"settled,omitempty"`

	// established is true if that was ever so in this pool.
	// +optional
	Established bool `json:"established,omitempty"`

	// written is a hash of the workload as it was after our last write. If the
	// workload differs from it, somebody has edited it, and the edit is undone.
	// +optional
	Written string `json:"written,omitempty"`
}

// UnitedDeploymentList is a list of UnitedDeployments.
//
// +kubebuilder:object:root=true
type UnitedDeploymentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []UnitedDeployment `json:"items"`
}
