// Package v1alpha1 holds the kinds with which users group nodes and say how
// one workload differs between the groups: NodeGroup, PropagationPolicy and
// OverridePolicy, and the label and annotation keys that workloads and pods
// carry. Names and meanings are those of docs/sources.md, G1 to G24.
//
// It holds what users write and read, never how it is decided.
//
// +kubebuilder:object:generate=true
// +groupName=groupmanagement.kubeedge.io
package v1alpha1
