package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// OverridePolicy says how the pods of the workloads that require it differ
// from their template in each NodeGroup.
// A workload of the same namespace requires it with the label
// groupmanagement.kubeedge.io/required-overridepolicy.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=gop,categories=atoll
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether every pod of every workload that requires the policy is as it says."
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="Why the policy is Ready or not."
// +kubebuilder:printcolumn:name="Workloads",type=integer,JSONPath=`.status.workloads`,description="Number of workloads that require the policy."
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="metadata.name: a policy's name becomes a label's value: at most 63 characters"
type OverridePolicy struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec lists the differences, by NodeGroup.
	// +required
	Spec OverrideSpec `json:"spec"`

	// status is the most recently observed state of the pods. Written by
	// atoll-manager.
	// +optional
	Status OverrideStatus `json:"status,omitempty"`
}

// OverrideSpec lists how pods differ from their template.
type OverrideSpec struct {
	// overrideRules are applied in list order. All rules that match the group of a
	// pod are applied to the pod, each to the result of the one before. At most 100.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	OverrideRules []RuleWithNodeGroup `json:"overrideRules,omitempty"`
}

// RuleWithNodeGroup lists the differences in some groups. They are written under
// overriders or directly in the rule, but not both.
//
// +kubebuilder:validation:XValidation:rule="!has(self.overriders) || !(has(self.imageOverrider) || has(self.commandOverrider) || has(self.argsOverrider) || has(self.plaintext))",message="overriders stand both under overriders and directly in the rule: move them all to one place",fieldPath=".overriders"
type RuleWithNodeGroup struct {
	// targetNodeGroup are the names of the groups in which the rule applies. Case is
	// ignored. Unset or empty: every group. At most 100.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?$`
	TargetNodeGroup []string `json:"targetNodeGroup,omitempty"`

	// overriders are the differences. They can also be written directly in the rule.
	// +optional
	Overriders *Overriders `json:"overriders,omitempty"`

	// InlineOverriders are the differences, written directly in the rule.
	InlineOverriders `json:",inline"`
}

// InlineOverriders are Overriders that stand directly in a rule. Go's JSON
// flattens only what is embedded, and two embedded Overriders would clash.
type InlineOverriders Overriders

// Overriders are applied in the order image, command, args, plaintext.
type Overriders struct {
	// plaintext are JSON patch operations (RFC 6902) on the pod. They are applied as
	// one patch: all or none. At most 32.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Plaintext []PlaintextOverrider `json:"plaintext,omitempty"`

	// imageOverrider changes parts of container images. At most 32.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	ImageOverrider []ImageOverrider `json:"imageOverrider,omitempty"`

	// commandOverrider changes container commands. At most 32.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	CommandOverrider []CommandArgsOverrider `json:"commandOverrider,omitempty"`

	// argsOverrider changes container args. At most 32.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	ArgsOverrider []CommandArgsOverrider `json:"argsOverrider,omitempty"`
}

// ImageOverrider changes one component of container images.
//
// +kubebuilder:validation:XValidation:rule="self.operator == 'remove' || (has(self.value) && self.value.size() > 0)",message="value must not be empty when operator is add or replace",fieldPath=".value"
// +kubebuilder:validation:XValidation:rule="!(self.operator == 'remove' && self.component == 'Repository')",message="an image without a repository is no image: use replace",fieldPath=".operator"
// +kubebuilder:validation:XValidation:rule="!(self.component == 'Registry' && (self.operator == 'replace' || self.operator == 'update') && has(self.value)) || self.value.matches('^([A-Za-z\\\\d]+((-+|\\\\.)[A-Za-z\\\\d]+)*|\\\\[[a-fA-F\\\\d]*:[a-fA-F\\\\d:]*\\\\])(:\\\\d{1,5})?$') && !self.value.matches('^[^.:]*[A-Z][^.:]*$')",message="must be a host or host:port, without scheme and path, for example hangzhou.registry.io:5000",fieldPath=".value"
// +kubebuilder:validation:XValidation:rule="!(self.component == 'Registry' && self.operator == 'add' && has(self.value)) || self.value.matches('^([A-Za-z\\\\d]*((-+|\\\\.)[A-Za-z\\\\d]+)*|\\\\[[a-fA-F\\\\d]*:[a-fA-F\\\\d:]*\\\\])(:\\\\d{1,5})?$')",message="must be a part of a host or host:port, without scheme and path",fieldPath=".value"
// +kubebuilder:validation:XValidation:rule="!(self.component == 'Repository' && (self.operator == 'replace' || self.operator == 'update') && has(self.value)) || self.value.matches('^[a-z\\\\d]+(([._/]|__|-+)[a-z\\\\d]+)*$')",message="must be a part of an image path: lower case letters and digits, with one / between parts, and one of . _ __ or dashes between letters or digits",fieldPath=".value"
// +kubebuilder:validation:XValidation:rule="!(self.component == 'Repository' && self.operator == 'add' && has(self.value)) || self.value.matches('^[a-z\\\\d]*(([._/]|__|-+)[a-z\\\\d]+)*$')",message="must be a part of an image path: lower case letters and digits, with one / between parts, and one of . _ __ or dashes between letters or digits",fieldPath=".value"
// +kubebuilder:validation:XValidation:rule="!(self.component == 'Tag' && (self.operator == 'replace' || self.operator == 'update') && has(self.value)) || self.value.matches('^:?[A-Za-z0-9_][-A-Za-z0-9_.]{0,127}$') || self.value.matches('^@?sha256:[0-9a-f]{64}$')",message="must be a tag such as v1.2 or a digest such as sha256:<64 hexadecimal digits>",fieldPath=".value"
// +kubebuilder:validation:XValidation:rule="!(self.component == 'Tag' && self.operator == 'add' && has(self.value)) || self.value.matches('^:?[-A-Za-z0-9_.]{1,128}$')",message="must be a part of a tag: letters, digits and - _ .",fieldPath=".value"
type ImageOverrider struct {
	// predicate limits the change to one image. Unset: the images of all
	// containers and init containers of the pod are changed.
	// +optional
	Predicate *ImagePredicate `json:"predicate,omitempty"`

	// component is the part of the image name that changes. An image is
	// [registry/]repository[:tag][@digest]; its first part is a registry if it
	// holds a "." or ":" or is "localhost".
	// +required
	Component ImageComponent `json:"component"`

	// operator says how the component changes: add appends value to it, replace
	// (or its alias update) sets it to value, remove removes it. A digest stays if
	// Registry or Repository changes, and is removed if Tag changes.
	// +required
	Operator OverriderOperator `json:"operator"`

	// value is added or set. It is ignored if operator is remove. At most 255
	// characters.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Value string `json:"value,omitempty"`
}

// ImagePredicate limits an image overrider to one image.
type ImagePredicate struct {
	// path is a JSON pointer to the image in the pod, for example
	// /spec/containers/0/image. A leading /spec/template is ignored, the leading /
	// may be omitted, and * stands for every index. At most 255 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^/?(spec/template/)?spec/(containers|initContainers)/([0-9]{1,3}|\*)/image$`
	Path string `json:"path"`
}

// ImageComponent is a part of an image's name.
// +kubebuilder:validation:Enum=Registry;Repository;Tag
type ImageComponent string

const (
	// Registry is the registry component of an image '[registry/]repository[:tag]'.
	Registry ImageComponent = "Registry"
	// Repository is the repository component of an image '[registry/]repository[:tag]'.
	Repository ImageComponent = "Repository"
	// Tag is the tag component of an image '[registry/]repository[:tag]', a digest included.
	Tag ImageComponent = "Tag"
)

// CommandArgsOverrider changes the command or args of one container.
type CommandArgsOverrider struct {
	// containerName is the name of the container or init container.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	ContainerName string `json:"containerName"`

	// operator says how the list changes: add appends value, remove removes every
	// element that is in value, replace (or its alias update) sets the list to value.
	// +required
	Operator OverriderOperator `json:"operator"`

	// value is the list of elements. If it is empty nothing changes. At most 64.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=4096
	Value []string `json:"value,omitempty"`
}

// PlaintextOverrider is one JSON patch operation on the pod.
type PlaintextOverrider struct {
	// path is a JSON pointer into the pod. At most 255 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Path string `json:"path"`

	// operator is add, replace (or its alias update) or remove.
	// +required
	Operator OverriderOperator `json:"operator"`

	// value is any JSON value. It must be unset if operator is remove, and must be
	// set otherwise.
	// +optional
	Value *apiextensionsv1.JSON `json:"value,omitempty"`
}

// OverriderOperator says how an overrider changes a value.
// +kubebuilder:validation:Enum=add;remove;replace;update
type OverriderOperator string

const (
	// OverriderOpAdd adds value to the present value.
	OverriderOpAdd OverriderOperator = "add"
	// OverriderOpRemove removes the present value, or elements of it.
	OverriderOpRemove OverriderOperator = "remove"
	// OverriderOpReplace replaces the present value.
	OverriderOpReplace OverriderOperator = "replace"
	// OverriderOpUpdate is another spelling of OverriderOpReplace.
	OverriderOpUpdate OverriderOperator = "update"
)

// OverrideStatus is the most recently observed state of an OverridePolicy.
type OverrideStatus struct {
	// observedGeneration is the metadata.generation that this status was computed for.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// workloads is the number of workloads that require the policy.
	// +optional
	Workloads int32 `json:"workloads"`

	// apps has an entry for each workload that requires the policy: first those
	// that do not satisfy it yet, each part sorted by kind and name. At most 50.
	// +optional
	// +listType=atomic
	Apps []WorkloadOverrides `json:"apps,omitempty"`

	// conditions has the condition Ready: all pods are as the policy says.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// WorkloadOverrides counts the pods of one workload that are as the policy says.
type WorkloadOverrides struct {
	// ref names the workload.
	// +required
	Ref WorkloadReference `json:"ref"`
	// pods is the number of active pods on nodes that are in a NodeGroup.
	// +required
	Pods int32 `json:"pods"`
	// updated is the number of those pods that are as the policy says.
	// +required
	Updated int32 `json:"updated"`
	// message says which rule fails and why, or why pods are not updated yet; empty
	// if all pods are updated.
	// +optional
	Message string `json:"message,omitempty"`
}

// OverridePolicyList is a collection of OverridePolicies.
//
// +kubebuilder:object:root=true
type OverridePolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items holds a list of OverridePolicy.
	Items []OverridePolicy `json:"items"`
}
