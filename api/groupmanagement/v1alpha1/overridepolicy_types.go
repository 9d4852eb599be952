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
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says what differs, group by group.
	// +required
	Spec OverrideSpec `json:"spec"`

	// status says how far pods are as spec wants them. Written by atoll-manager.
	// +optional
	Status OverrideStatus `json:"status,omitempty"`
}

// OverrideSpec is the list of differences.
type OverrideSpec struct {
	// overrideRules are applied in list order; of each pod, all rules that
	// match its group, each on what the one before it left. At most 100.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	OverrideRules []RuleWithNodeGroup `json:"overrideRules,omitempty"`
}

// RuleWithNodeGroup is what differs in some groups. The overriders stand
// nested under overriders, or directly in the rule (docs/sources.md, G17);
// not both.
//
// +kubebuilder:validation:XValidation:rule="!has(self.overriders) || !(has(self.imageOverrider) || has(self.commandOverrider) || has(self.argsOverrider) || has(self.plaintext))",message="overriders stand both under overriders and directly in the rule: move them all to one place",fieldPath=".overriders"
type RuleWithNodeGroup struct {
	// targetNodeGroup names the groups in which the rule applies, in any case.
	// Unset or empty: every group. At most 100.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?$`
	TargetNodeGroup []string `json:"targetNodeGroup,omitempty"`

	// overriders is the nested form.
	// +optional
	Overriders *Overriders `json:"overriders,omitempty"`

	// InlineOverriders is the form without nesting.
	InlineOverriders `json:",inline"`
}

// InlineOverriders are Overriders that stand directly in a rule. Go's JSON
// flattens only what is embedded, and two embedded Overriders would clash.
type InlineOverriders Overriders

// Overriders are applied in the order image, command, args, plaintext.
type Overriders struct {
	// plaintext are JSON patch operations (RFC 6902) on the pod, applied as
	// one: all or none. At most 32.
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
	// predicate narrows the rule to one image. Unset: the images of all
	// containers and init containers of the pod.
	// +optional
	Predicate *ImagePredicate `json:"predicate,omitempty"`

	// component is the part of the image name that changes. An image is
	// [registry/]repository[:tag][@digest]; its first part is a registry if it
	// holds a "." or ":" or is "localhost".
	// +required
	Component ImageComponent `json:"component"`

	// operator says what happens to the component: add appends value to it,
	// replace (or its alias update) sets it, remove drops it. Changes of
	// Registry and Repository keep a digest; changes of Tag drop it.
	// +required
	Operator OverriderOperator `json:"operator"`

	// value is what is added or set; ignored when operator is remove.
	// At most 255 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Value string `json:"value,omitempty"`
}

// ImagePredicate narrows an image overrider.
type ImagePredicate struct {
	// path points to the image: a JSON pointer into the pod, for example
	// /spec/containers/0/image. A leading /spec/template is dropped, the
	// leading / may be missing, * stands for every index. At most 255 characters.
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

	// operator: add appends value, remove drops every element that is in
	// value, replace (or its alias update) sets value.
	// +required
	Operator OverriderOperator `json:"operator"`

	// value is the list of elements. Empty: nothing changes. At most 64.
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

	// value is any JSON value; must be unset when operator is remove, and set
	// otherwise.
	// +optional
	Value *apiextensionsv1.JSON `json:"value,omitempty"`
}

// OverriderOperator is what an overrider does.
// +kubebuilder:validation:Enum=add;remove;replace;update
type OverriderOperator string

const (
	// OverriderOpAdd adds value to what is there.
	OverriderOpAdd OverriderOperator = "add"
	// OverriderOpRemove takes away.
	OverriderOpRemove OverriderOperator = "remove"
	// OverriderOpReplace puts value in the place of what is there.
	OverriderOpReplace OverriderOperator = "replace"
	// OverriderOpUpdate is another spelling of OverriderOpReplace.
	OverriderOpUpdate OverriderOperator = "update"
)

// OverrideStatus is what atoll-manager saw last.
type OverrideStatus struct {
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
	Apps []AppOverrides `json:"apps,omitempty"`

	// conditions: Ready.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AppOverrides is how far the pods of one workload are as the policy says.
type AppOverrides struct {
	// ref names the workload.
	// +required
	Ref AppReference `json:"ref"`
	// pods is the number of active pods on nodes of some group.
	// +required
	Pods int32 `json:"pods"`
	// updated is the number of those that are as the policy says.
	// +required
	Updated int32 `json:"updated"`
	// message says which rule fails and why, or what is waited for; empty when
	// all pods are updated.
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
