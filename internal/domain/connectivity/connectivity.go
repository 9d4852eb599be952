// Package connectivity decides what the cloud concludes about the nodes of a pool that has a coordinator
// (docs/sources.md, N11 to N14): which of them are dead, and which only cut off. It has three parts:
//
//   - Pool collects what the manager has heard, and Decide says in which state each node is.
//   - Steps says what a state makes of a Node and its pods, in which order.
//   - Held tells the other controllers which nodes are to be taken as present.
//
// Without a coordinator all of it is undone, and the cluster is plain Kubernetes (docs/sources.md, N14).
// The package must not know how heartbeats arrive, nor how objects are written.
package connectivity

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// Annotation is written on a Node: the Record of its state, as text.
	Annotation = "atoll.dev/connectivity"
	// TolerationsAnnotation is written on a pod whose tolerations are without limit for now: what they were, as JSON.
	TolerationsAnnotation = "atoll.dev/tolerations"
	// ExcludeLabel takes a Node out of the count by which kube-controller-manager stops evictions, when many nodes of
	// a zone are not Ready. It reads the key only, so that LabelValue can say that the label is ours.
	ExcludeLabel = "node.kubernetes.io/exclude-disruption"
	// LabelValue is the value of ExcludeLabel that Atoll writes. A label with another value is somebody else's.
	LabelValue = "atoll"
)

// All times are those of receipt by this manager, not those that a node writes: clocks of nodes may be wrong.
const (
	// DelegatedAfter is how long heartbeats must arrive through the pool before a node is Delegated.
	DelegatedAfter = 15 * time.Second
	// DoubtedFor is how long a pool is not believed that has spoken for a node whose kubelet wrote its status meanwhile: longer
	// than a kubelet waits that has nothing new to say, five minutes.
	DoubtedFor = 6 * time.Minute
	// Quiet is how long nothing may be heard of a pool before it counts as silent, and how old a pulse may be that
	// counts: pulses and heartbeats come each 10 s.
	Quiet = 25 * time.Second
	// inFlight is for how long the pool may go on to speak for a node that is back, because the hub that leads does not know it yet.
	inFlight = 15 * time.Second
	// UnobservedLimit is how long a node is kept that nobody in its pool can speak for, while its pool is heard.
	UnobservedLimit = 300 * time.Second
	// MinGrace is the shortest grace of kube-controller-manager with which heartbeats that are forwarded are in time.
	MinGrace = 40 * time.Second

	// pulsePeriod is the time between two pulses.
	pulsePeriod = 10 * time.Second
	// listen is how long a manager that has started listens before it concludes anything from a silence that an
	// earlier one noted, and after how much silence it notes one.
	listen = 15 * time.Second
	// noteEvery is after how much more silence it is noted again.
	noteEvery = 10 * time.Second
	// probeGap: when the manager's own probe was away for longer, nodes could not be heard either.
	probeGap = 15 * time.Second
	// freezeAfter is after how much silence a node of a silent pool is Frozen, with a grace of 45 s or more.
	freezeAfter = 30 * time.Second
)

// State is what the cloud concludes about a node.
type State string

const (
	// Direct: the node speaks for itself, or nothing of ours is done about its silence. All is plain Kubernetes.
	Direct State = "Direct"
	// Delegated: the node is cut off from the cloud, and its pool forwards its heartbeats.
	Delegated State = "Delegated"
	// Unobserved: the node was Delegated, and nobody in its pool can speak for it now.
	Unobserved State = "Unobserved"
	// Frozen: the whole pool is silent, so that nobody knows.
	Frozen State = "Frozen"
	// Lost: the node is silent, and somebody in its pool could have heard it; or a limit is over.
	Lost State = "Lost"
	// Released: the pool has no coordinator any more, and what was done to the node is being undone.
	Released State = "Released"
)

// Reasons of states, of events about them, and of the condition Ready that Atoll writes on a Node.
const (
	// ReasonHeard: the node's own heartbeat has arrived.
	ReasonHeard = "HeardDirectly"
	// ReasonDelegated: the node's heartbeats arrive through its pool.
	ReasonDelegated = "DelegatedByPool"
	// ReasonUnobserved: heartbeats have stopped together with the pulse of the pool.
	ReasonUnobserved = "PoolUnobserved"
	// ReasonFrozen: nothing of the pool is heard.
	ReasonFrozen = "PoolSilent"
	// ReasonLost: the node is silent, while its pool is observed.
	ReasonLost = "NodeLost"
	// ReasonUnobservedLimit: nobody could speak for the node for UnobservedLimit.
	ReasonUnobservedLimit = "UnobservedLimitOver"
	// ReasonFrozenLimit: spec.frozenLimit of the YurtCoordinator is over.
	ReasonFrozenLimit = "FrozenLimitOver"
	// ReasonReleased: the pool has no coordinator.
	ReasonReleased = "NoCoordinator"
)

// messages are what the reasons mean, in words for people.
var messages = map[string]string{
	ReasonHeard:           "the node reaches the cloud itself",
	ReasonDelegated:       "the node is cut off from the cloud, and its pool forwards its heartbeats; the pods of the node are kept",
	ReasonUnobserved:      "the node was cut off, and nobody in its pool can speak for it now; the pods of the node are kept for 300 s",
	ReasonFrozen:          "nothing is heard of the whole pool, so that nobody knows whether the node is dead; the pods of the node are kept",
	ReasonLost:            "the node is silent, and the others of its pool do not hear it either; the pods of the node are evicted when their tolerations end",
	ReasonUnobservedLimit: "nobody in its pool could speak for the node for 300 s; the pods of the node are evicted when their tolerations end",
	ReasonFrozenLimit:     "nothing was heard of the node for longer than spec.frozenLimit; the pods of the node are evicted when their tolerations end",
	ReasonReleased:        "the pool has no coordinator any more; Kubernetes alone decides about the node",
}

// Message returns what a reason of this package means, "" for another one.
func Message(reason string) string { return messages[reason] }

// CheckGrace returns an error if Atoll cannot work with a grace of kube-controller-manager that short.
func CheckGrace(grace time.Duration) error {
	if grace < MinGrace {
		return fmt.Errorf("--node-monitor-grace-period: %s is shorter than %s, in which heartbeats that travel through a pool are not in time: set that flag of kube-controller-manager, and the same one here, to %s or longer", grace, MinGrace, MinGrace)
	}
	return nil
}

// HasMarks reports whether a Node has something of ours.
func HasMarks(node *corev1.Node) bool {
	_, has := node.Annotations[Annotation]
	return has || hasOurLabel(node) || isReadyOurs(node) || conditionOf(node, PodNotWritten) != nil
}

// Held reports whether a node that may be NotReady is to be taken as present: its pods keep their seats, nothing fails
// over, and nothing is evicted from it by us.
func Held(node *corev1.Node) bool {
	record := Parse(node.Annotations[Annotation])
	ready := readyOf(node)
	// Until its kubelet writes again, a node that is back has the Ready that we or Kubernetes wrote when it was cut off.
	return record.State.isHeld() || record.State == Direct && !record.Since.IsZero() && ready != nil && ready.Status == corev1.ConditionUnknown
}

func (s State) isHeld() bool { return s == Delegated || s == Unobserved || s == Frozen }

// isForwarded reports whether Ready of the node and its pods is Atoll's to write.
func (s State) isForwarded() bool { return s == Delegated || s == Unobserved }
