// Package v1alpha1 holds the kind that shows how the pods of a workload are
// divided over on-demand and spot nodes (docs/sources.md, C1 to C14). What users write are two
// keys on the workload; they are groupmanagement/v1alpha1's.
//
// +kubebuilder:object:generate=true
// +groupName=capacity.atoll.dev
package v1alpha1
