// Package invariants watches all writes of a test run and finds what must never
// happen, whatever a test is about.
//
// I1: whenever a pod becomes on-demand, created so or at our gate, its workload has
// no more such pods, of all its revisions together, than its count and maxSurge
// allow; a StatefulSet's has one of the first ordinals. Pods count until they finish
// or begin to terminate. What a workload says alone is looked at.
//
// I2: atoll-manager deletes no pod and no owner of pods, whether it would be let
// or not. It asks for evictions, which a PodDisruptionBudget may refuse. Every
// request of its identity to delete one is a breach.
//
// I12, as far as it is about deletions: what a UnitedDeployment does without, it
// may delete. That is a workload of a pool that its spec does not have, or one
// of several for a pool. And as far as it is about replicas: when its status
// says that every pool has its workload and none a failure, the workloads have,
// together, as many replicas as its spec says.
//
// I5: a pod whose application requires a PropagationPolicy gets a node only
//   - while that policy is bound to the application, and
//   - of a NodeGroup that the policy gives pods: that a range or a weight above
//     zero names, all weights being zero counting as equal, and
//   - if the pod's cohort (the active pods of one revision of one owner) then has
//     no more pods in that NodeGroup than the max of its range, of the larger of
//     the replicas that are wanted and the pods that are there.
//
// Pods of DaemonSets are not counted, for nothing is divided. Applications that
// ignore a missing policy are let go without.
//
// I10: every eviction that atoll-manager asked for and got has a reason of its
// own. The pod was
//   - surplus: its cohort had more pods in the pod's NodeGroup than the policy's
//     division gives it; one surplus pod is a reason for one eviction, so that
//     what moves there and back is found; or
//   - stuck: without a node, in the NodeGroup or of the class of capacity that it got
//     at creation; or
//   - stale: created otherwise than its OverridePolicy wants it; or
//   - misplaced: its workload had more pods of its class of capacity than it is to
//     have, or its ordinal is of the other class; or
//   - leaving: its workload is of a pool that its UnitedDeployment does not have.
//
// No pod is evicted twice, and no more pods that have a node within any minute
// than the pace that atoll-manager was told.
//
// A breach is judged by what was the case when it was written, or within
// Limits.Lag before: who decides reads caches. What is the case at one
// resourceVersion comes from a Recorder, which keeps all versions of all objects
// as a History; there is one etcd, and versions of different kinds can be
// compared. A watch that ends goes on where it was. Only when the API server does
// not remember that far is there a Gap, what happened in it is not judged, and
// the Report counts it. The audit log says who did it. Check replays both; it is
// a pure function, and knows no client.
//
// It must not ask atoll-manager anything, nor read what it says of itself. The
// division of pods and the meaning of overrides are read from internal/domain,
// which have tests of their own; what I5 allows is written down here once more.
package invariants
