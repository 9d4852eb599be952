package seats

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
)

// Node is what the decisions need to know of a node.
type Node struct {
	Name string
	// Group is the node's NodeGroup, as its label says; "" is none.
	Group string
	// Created is when the node joined the cluster.
	Created time.Time
	// Open: Ready and not cordoned.
	Open bool
	// Ready: cordoned or not.
	Ready bool
	// NotReadySince is when it was Ready last, as far as is known; the zero time
	// while it is.
	NotReadySince time.Time
	// Offer is what pods find there. Its labels and taints are the cached
	// object's: they are read only.
	Offer fit.Node
}

// SlimNode keeps of a node what the decisions need.
func SlimNode(n *corev1.Node) Node {
	node := Node{
		Name: n.Name, Group: n.Labels[gm.NodeGroupLabel], Created: n.CreationTimestamp.Time,
		Offer: fit.Node{Name: n.Name, Labels: n.Labels, Taints: n.Spec.Taints, Allocatable: fit.AmountsOf(n.Status.Allocatable)},
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			node.Open = c.Status == corev1.ConditionTrue && !n.Spec.Unschedulable && n.DeletionTimestamp == nil
			if node.Ready = c.Status == corev1.ConditionTrue; !node.Ready {
				node.NotReadySince = c.LastTransitionTime.Time
			}
		}
	}
	return node
}

// hasFreed tells whether a pod may find room in the node's group now that it
// did not find before.
func (n Node) hasFreed(before Node) bool {
	return n.Open && (!before.Open || n.Group != before.Group || n.Offer.Roomier(&before.Offer))
}

// ObserveNode records what a node is now.
func (l *Ledger) ObserveNode(node Node) {
	before, classes := l.observeNode(node)
	l.notifyGroups(before, node)
	l.notifyClasses(classes)
}

func (l *Ledger) observeNode(node Node) (before Node, classes classChange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.nodeLocked(node.Name)
	before = n.Node
	l.rememberNotReadyLocked(&node, before)
	l.moveLocked(n, node.Group)
	n.Node, n.exists = node, true
	classes = l.classifyNodeLocked(n, before)
	l.countReadyLocked(before, node)
	if node.hasFreed(before) {
		l.clearAvoidedLocked(node.Group)
	}
	return before, classes
}

// ForgetNode records that a node is gone. Its pods count in no group.
func (l *Ledger) ForgetNode(name string) {
	before, classes := l.forgetNode(name)
	l.notifyGroups(before, Node{Name: name})
	l.notifyClasses(classes)
}

func (l *Ledger) forgetNode(name string) (before Node, classes classChange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.nodes[name]
	if n == nil {
		return Node{Name: name}, classes
	}
	before = n.Node
	l.moveLocked(n, "")
	n.Node, n.exists = Node{Name: name}, false
	classes = l.classifyNodeLocked(n, before)
	l.countReadyLocked(before, n.Node)
	l.leaveLocked(n)
	return before, classes
}

// leaveLocked forgets a node that is gone, with its last pod.
func (l *Ledger) leaveLocked(n *node) {
	if !n.exists && len(n.pods) == 0 {
		delete(l.nodes, n.Name)
	}
}

// moveLocked moves a node, and the seats of its pods, to another group.
func (l *Ledger) moveLocked(n *node, group string) {
	if n.Group == group {
		return
	}
	l.countMemberLocked(n, n.Group, false)
	l.countMemberLocked(n, group, true)
	n.Group = group
	for _, s := range n.pods {
		if s.seated {
			l.seatLocked(s, group)
			l.settleLocked(s)
		}
	}
}

// newcomerTTL is how long after a node has joined the cluster its label may
// come at the latest, for pods that are pinned to its group and come before it.
const newcomerTTL = time.Minute

// newcomerLocked tells whether the pod may be on a node of its group that is not
// labelled yet.
func (l *Ledger) newcomerLocked(pod *Pod, n *node) bool {
	return pod.Pinned() && n.Group == "" && (!n.exists || l.clock.Now().Before(n.Created.Add(newcomerTTL)))
}

func (l *Ledger) countMemberLocked(n *node, group string, joins bool) {
	if group == "" {
		return
	}
	l.moved[group] = l.clock.Now()
	members := l.members[group]
	if joins {
		if members == nil {
			members = map[string]*node{}
			l.members[group] = members
			l.epoch++
		}
		members[n.Name] = n
		return
	}
	delete(members, n.Name)
	if len(members) == 0 {
		delete(l.members, group)
		l.epoch++
	}
}

// movedTTL is how long is kept when a group changed. Nobody stabilizes for longer
// (stabilizationSeconds of a PropagationPolicy is 3600 at most).
const movedTTL = time.Hour

// MovedAt is when a node joined or left one of the groups last, as far as this
// ledger has seen; the zero time if never, or more than movedTTL ago.
func (l *Ledger) MovedAt(groups ...string) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	var last time.Time
	for _, group := range groups {
		if at := l.moved[group]; at.After(last) {
			last = at
		}
	}
	return last
}

// HasMembers tells whether a group has a node.
func (l *Ledger) HasMembers(group string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.members[group]) > 0
}

// GroupsEpoch changes whenever HasMembers or NotReadySince changes its answer
// for some group.
func (l *Ledger) GroupsEpoch() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epoch
}

// NodeGroup returns the group of a node; "" is none.
func (l *Ledger) NodeGroup(name string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.nodes[name]; n != nil {
		return n.Group
	}
	return ""
}

// NodeGroups returns the groups of the named nodes, in their order, in the room
// that into has.
func (l *Ledger) NodeGroups(into, names []string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	groups := slices.Grow(into[:0], len(names))
	for _, name := range names {
		group := ""
		if n := l.nodes[name]; n != nil {
			group = n.Group
		}
		groups = append(groups, group)
	}
	return groups
}
