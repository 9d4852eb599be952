// Package invariants watches all writes of a test run and finds what must never
// happen, whatever a test is about:
//
//	I2   atoll-manager deletes no pod: it only asks for evictions, which a
//	     PodDisruptionBudget may refuse
//	I5   no pod gets a node outside of its policy's groups, and by no binding has
//	     a group more pods of a cohort than its range allows
//	I10  every eviction has a reason in what the cluster was at that moment, no
//	     pod is evicted twice, and the pace is kept
//
// A Recorder keeps what it sees of the API server as a History, in which every
// object can be asked for as it was at any resourceVersion: there is one etcd,
// and versions of different kinds can be compared. The audit log says who did
// it. Check replays both; it is a pure function, and knows no client.
//
// It must not ask atoll-manager anything, nor read what it says of itself.
package invariants
