// Package gangs knows which PodGroup the pods of gang schedulers belong to (docs/sources.md,
// V1 to V9): the rules in force, those pods, and the PodGroups that there are.
//
//	Resolver: pod ─► owners ─► rules ─► the owner that has the PodGroup
//	Store:    pods of the schedulers, by the PodGroup that they name; PodGroups
//
// The pod webhook and the controller of PodGroups ask it. It writes nothing. Where
// PodGroups are not served, or cannot be read, it says so and nobody waits for it.
package gangs
