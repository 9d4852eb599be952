package seats

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/connectivity"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
)

// Node is the part of a node that decisions need.
type Node struct {
	Name string
	// Group is the node's NodeGroup, from its label; "" if it has none.
	Group string
	// Created is when the node joined the cluster.
	Created time.Time
	// Open: the node is Ready, not cordoned and not being deleted.
	Open bool
	// Ready: the node is Ready, cordoned or not; or Held.
	Ready bool
	// Held: the node is cut off from the cloud and not known to be dead (connectivity.Held). Its
	// pods are kept, so that it is present, but takes no new ones.
	Held bool
	// NotReadySince is when the node was last Ready, as far as is known; zero while it is
	// Ready or Held.
	NotReadySince time.Time
	// Offer is what the node offers to pods. Its labels and taints are those of the cached
	// object: they must not be changed.
	Offer fit.Node
}

// SlimNode returns the part of a node that decisions need.
func SlimNode(n *corev1.Node) Node {
	node := Node{
		Name: n.Name, Held: connectivity.Held(n), Group: n.Labels[gm.NodeGroupLabel], Created: n.CreationTimestamp.Time,
		Offer: fit.Node{Name: n.Name, Labels: n.Labels, Taints: n.Spec.Taints, Allocatable: fit.AmountsOf(n.Status.Allocatable)},
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			node.Open = c.Status == corev1.ConditionTrue && !n.Spec.Unschedulable && n.DeletionTimestamp == nil
			if node.Ready = c.Status == corev1.ConditionTrue || node.Held; !node.Ready {
				node.NotReadySince = c.LastTransitionTime.Time
			}
		}
	}
	return node
}

// hasFreed returns whether the node's group may have room for a pod that it had no room for
// before this change of the node.
func (n Node) hasFreed(before Node) bool {
	return n.Open && (!before.Open || n.Group != before.Group || n.Offer.Roomier(&before.Offer))
}

// ObserveNode records the current state of a node.
func (l *Ledger) ObserveNode(node Node) {
	change, classes := l.observeNode(node)
	l.notifyGroups(change.before, change.after)
	l.notifyClasses(classes)
}

func (l *Ledger) observeNode(node Node) (nodeChange, classChange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	class := capacity.None
	if l.classes != nil {
		class = l.classes.OfNode(node.Offer.Labels)
	}
	change := l.nodes.observe(node, class)
	if node.hasFreed(change.before) {
		l.waiting.clearAvoided(node.Group)
	}
	return change, l.nodeChangedLocked(&change)
}

// ForgetNode records that a node is deleted. The seats of its pods are in no group from now
// on.
func (l *Ledger) ForgetNode(name string) {
	change, classes := l.forgetNode(name)
	l.notifyGroups(change.before, change.after)
	l.notifyClasses(classes)
}

func (l *Ledger) forgetNode(name string) (nodeChange, classChange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change := l.nodes.forget(name)
	return change, l.nodeChangedLocked(&change)
}

// nodeChangedLocked gives the pods on a node the node's new group and class, and returns what
// the ClassesHandlers have to be called with.
func (l *Ledger) nodeChangedLocked(change *nodeChange) classChange {
	classes := classChange{everybody: change.firstOrLast}
	if !change.regrouped() && !change.reclassified {
		return classes
	}
	for uid := range change.pods {
		owner := l.cohorts.nodeChanged(uid, change)
		if change.reclassified {
			classes.owners = append(classes.owners, owner)
		}
	}
	return classes
}

// MovedAt returns the last time when a node joined or left one of the groups, or became open
// in it; zero if this ledger has seen none in the last hour.
func (l *Ledger) MovedAt(groups ...string) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nodes.movedAt(groups)
}

// HasMembers returns whether a group has a node.
func (l *Ledger) HasMembers(group string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nodes.hasMembers(group)
}

// NotReadySince returns since when none of a group's nodes has been Ready. ok is false if one
// is Ready or Held, or if the group has no node.
func (l *Ledger) NotReadySince(group string) (since time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nodes.notReadySince(group)
}

// IsHeld returns whether a node is Held.
func (l *Ledger) IsHeld(node string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.nodes.byName[node]
	return n != nil && n.Held
}

// IsGroupHeld returns whether a group has a node that is Held, and none that is open.
func (l *Ledger) IsGroupHeld(group string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nodes.isGroupHeld(group)
}

// GroupsEpoch increases whenever HasMembers or NotReadySince changes its result for a group.
func (l *Ledger) GroupsEpoch() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nodes.epoch
}

// NodeGroup returns the group of a node; "" if it has none.
func (l *Ledger) NodeGroup(name string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nodes.group(name)
}

// NodeGroups returns the groups of the named nodes, in the same order. It writes them into
// the array of into, if that is large enough.
func (l *Ledger) NodeGroups(into, names []string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	groups := slices.Grow(into[:0], len(names))
	for _, name := range names {
		groups = append(groups, l.nodes.group(name))
	}
	return groups
}

// PodsOnNode returns the pods that are bound to a node, finished ones included.
func (l *Ledger) PodsOnNode(name string) []*Pod {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nodes.podsOn(name)
}
