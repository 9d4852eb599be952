// Package v1alpha1 holds the kinds with which users give nodes of one pool the
// same attributes and run one workload a pool, and the label and annotation keys
// that go with them. Names and meanings are those of docs/sources.md, P1 to P14.
//
// It holds what users write and read, never how it is decided.
//
// +kubebuilder:object:generate=true
// +groupName=apps.openyurt.io
package v1alpha1
