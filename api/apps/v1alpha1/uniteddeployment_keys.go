package v1alpha1

// Keys on the workloads of a UnitedDeployment. atoll-manager writes them and
// puts them back; what users write under them in a template is overwritten.
const (
	// PoolNameLabel names, on a workload and on its pods, the pool that they
	// are for. The workload's selector has it too.
	PoolNameLabel = "apps.openyurt.io/pool-name"

	// UnitedDeploymentLabel names, on a workload and on a ControllerRevision,
	// the UnitedDeployment that they belong to.
	UnitedDeploymentLabel = "apps.openyurt.io/uniteddeployment"

	// RevisionLabel names, on a workload, the ControllerRevision that its
	// template is from, without the name of the UnitedDeployment before it.
	// Pods do not carry it: a revision of another name replaces no pod.
	RevisionLabel = "atoll.dev/united-revision"

	// PoolRevisionAnnotation is put on a workload: a hash of what it was made
	// of, which is the shared revision and what its pool adds, without replicas.
	PoolRevisionAnnotation = "atoll.dev/pool-revision"

	// PoolTaintsAnnotation is put on a workload: the taints of its NodePool when
	// it was last seen, in JSON. They stay tolerated when the NodePool is gone.
	PoolTaintsAnnotation = "atoll.dev/pool-taints"

	// TemplateKeysAnnotation is put on a workload: the keys of its labels and
	// annotations that are from the template, so that they go with it.
	TemplateKeysAnnotation = "atoll.dev/template-keys"

	// PoolRemovedGate is the scheduling gate of the pods that the DaemonSet of a
	// removed pool makes in place of evicted ones. Nobody takes it off: they go
	// with the DaemonSet.
	PoolRemovedGate = "atoll.dev/pool-removed"

	// RollbackToAnnotation is written by users on a UnitedDeployment: the
	// revision whose template comes back, by the number or the name of its
	// ControllerRevision, or RollbackToPrevious. atoll-manager takes it off.
	RollbackToAnnotation = "atoll.dev/rollback-to"

	// RollbackToPrevious, as the value of RollbackToAnnotation, is the newest
	// revision before the one that the template is at.
	RollbackToPrevious = "previous"
)

// Condition types of a UnitedDeployment (docs/sources.md, P13). Its ConditionReady is True while
// all that is to be done is done, and sums the others up with the first problem found.
const (
	// PoolProvisioned means all the expected pools are provisioned and
	// unexpected pools are deleted.
	PoolProvisioned = "PoolProvisioned"
	// PoolUpdated means all the pools are updated.
	PoolUpdated = "PoolUpdated"
	// PoolFailure is true while one of the pools has a failure.
	PoolFailure = "PoolFailure"
)

// Reasons of ConditionReady, beside those of the other conditions.
const (
	// ReasonPodsReady: every pool has the pods that it is to have, updated as far as a
	// partition allows, and all are Ready.
	ReasonPodsReady = "PodsReady"
	// ReasonPodsNotReady: pods are missing, or not Ready.
	ReasonPodsNotReady = "PodsNotReady"
)

// Reasons of PoolProvisioned.
const (
	// ReasonProvisioned: every pool has its workload and its NodePool, and no
	// other workload is left.
	ReasonProvisioned = "Provisioned"
	// ReasonNodePoolMissing: there is no NodePool of a pool's name, and the pool's workload
	// stays. In an event on a node: the node's label names a NodePool that does not exist or
	// is being deleted, and the node is in no pool.
	ReasonNodePoolMissing = "NodePoolMissing"
	// ReasonProvisioning: workloads are being made or deleted.
	ReasonProvisioning = "Provisioning"
	// ReasonDraining: pods of removed pools are being evicted; their workloads
	// are deleted afterwards.
	ReasonDraining = "Draining"
)

// Reasons of PoolUpdated.
const (
	// ReasonUpdated: every pod of every pool is of the update revision.
	ReasonUpdated = "Updated"
	// ReasonUpdating: pools are being updated, or wait for their turn.
	ReasonUpdating = "Updating"
	// ReasonPaused: spec.updateStrategy.paused holds pools back.
	ReasonPaused = "Paused"
	// ReasonPartitioned: what is left to update is held by a partition.
	ReasonPartitioned = "Partitioned"
	// ReasonStopped: a pool failed, and spec.updateStrategy.onFailure is Stop.
	ReasonStopped = "Stopped"
)

// Reasons of PoolFailure, of the pools in status, and of events.
const (
	// ReasonNoFailure: no pool has a failure.
	ReasonNoFailure = "NoFailure"
	// ReasonRefused: the API server refused to write a pool's workload. It is
	// tried again.
	ReasonRefused = "Refused"
	// ReasonPatchInvalid: a pool's patch cannot be applied to the template.
	ReasonPatchInvalid = "PatchInvalid"
	// ReasonNameTaken: objects that are not ours have both names that the
	// pool's workload could have.
	ReasonNameTaken = "NameTaken"
	// ReasonProgressDeadlineExceeded: a pool did not become updated and
	// available within spec.updateStrategy.progressDeadlineSeconds.
	ReasonProgressDeadlineExceeded = "ProgressDeadlineExceeded"
	// ReasonPodsRefused: the pods of a pool's workload cannot be created.
	ReasonPodsRefused = "PodsRefused"
	// ReasonRevisionFailed: the ControllerRevisions cannot be read or written.
	ReasonRevisionFailed = "RevisionFailed"
	// ReasonObservationFailed: what there is could not be looked at.
	ReasonObservationFailed = "ObservationFailed"
)
