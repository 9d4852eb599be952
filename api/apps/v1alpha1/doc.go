// Package v1alpha1 holds the kinds with which users give nodes of one pool the
// same attributes and run one workload a pool, as document 001 ("NodePool and
// UnitedDeployment") names them, and the label and annotation keys that go with them.
//
// It holds what users write and read, never how it is decided.
//
// +kubebuilder:object:generate=true
// +groupName=apps.openyurt.io
package v1alpha1
