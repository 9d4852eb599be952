// Package v1beta1 holds Atoll's own Go types of Volcano's kind PodGroup, so that
// Volcano's code is no dependency. Volcano defines the kind: its scheduler reads
// the spec and writes the status, and the definition in a cluster may be a newer
// one than this package knows. Every type here therefore writes back all fields
// that it was read from (see Preserved).
//
// +kubebuilder:object:generate=true
// +groupName=scheduling.volcano.sh
package v1beta1
