// Package united decides about the workloads of a UnitedDeployment (docs/sources.md,
// P6 to P14): how many pods each pool has, what each workload is made of, and
// which of them is created, updated, scaled, adopted, drained or deleted now.
//
// Everything here is a function of what was observed. The package must not depend on how
// workloads are read or written, or on the current time.
package united
