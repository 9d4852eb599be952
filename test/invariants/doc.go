// Package invariants records all writes of a test run and finds what must never
// happen, in any test.
//
// I1: whenever a pod becomes on-demand, at its creation or at Atoll's scheduling gate,
// its workload has at most as many on-demand pods, over all its revisions, as its count
// and maxSurge allow; a pod of a StatefulSet has one of the first ordinals. Pods count
// until they finish or begin to terminate. Only the settings on the workload itself are
// checked, not those of its template and namespace. A Deployment that selects its pods by
// the label of the class is not checked: the label is its author's.
//
// I2: atoll-manager deletes no pod and no owner of pods, whether or not it has the
// permission. It requests evictions, which a PodDisruptionBudget may refuse. Every
// delete request of its identity is a violation.
//
// I12, for deletions: atoll-manager may delete a workload that its UnitedDeployment
// does not need: one of a pool that the spec does not have, or one of several for a
// pool. I12, for replicas: when the status of a UnitedDeployment reports that every
// pool has its workload and none a failure, the workloads together have as many
// replicas as its spec.
//
// I5: a pod whose workload requires a PropagationPolicy gets a node only
//   - while that policy is bound to the workload, and
//   - of a NodeGroup to which the policy gives pods: one that a range or a weight above
//     zero names (if all weights are zero they count as equal), and
//   - if the pod's cohort (the active pods of one revision of one owner) then has at
//     most as many pods in that NodeGroup as the max of its range. Percentages are of
//     the wanted replicas or of the existing pods, whichever is larger.
//
// Pods of DaemonSets are not counted, because they are not divided. Pods of workloads
// that ignore a missing policy may be placed without it.
//
// I10: every eviction that atoll-manager requested and got has a reason of its own. The
// pod was
//   - surplus: its cohort had more pods in the pod's NodeGroup than the policy's
//     division gives it. One surplus pod is a reason for one eviction only, so that
//     pods that move back and forth are found; or
//   - stuck: without a node, in the NodeGroup or of the class of capacity that it got
//     at creation; or
//   - stale: created with other overrides than its OverridePolicy has now; or
//   - misplaced: its workload had more pods of its class of capacity than it should
//     have, or its ordinal is of the other class; or
//   - leaving: its workload is of a pool that its UnitedDeployment does not have.
//
// No pod is evicted twice. Within any minute, at most as many pods with a node are
// evicted as the rate limit of atoll-manager allows.
//
// A write is judged by the state at its resourceVersion, or at any moment within
// Limits.Lag before, because atoll-manager decides by its caches. A Recorder keeps all
// versions of all objects as a History, from which the state at a resourceVersion is
// read. There is one etcd, so versions of different kinds can be compared. A watch that
// ends is continued from its last version. Only if the API server does not have that
// version any more is there a Gap: writes in it are not judged, and the Report counts
// them. The audit log shows which user sent a request. Check replays both. It is a pure
// function without a client.
//
// The package must not call atoll-manager, nor read its status and metrics, except for
// I12. The division of pods and the meaning of overrides come from internal/domain,
// which has tests of its own; what I5 allows is implemented here a second time.
package invariants
