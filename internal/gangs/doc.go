// Package gangs finds the PodGroups of the pods of gang schedulers (docs/sources.md, V1 to
// V9). It holds the rules in force, these pods, and all PodGroups.
//
//	Resolver: pod ─► owners ─► rules ─► the owner that has the PodGroup
//	Store:    pods of the schedulers, by the PodGroup that they name; PodGroups
//
// The pod webhook and the podgroup controller read it. It writes nothing. If PodGroups are
// not served or cannot be read, Store.Served is false, and neither readiness nor leader
// election waits for them.
package gangs
