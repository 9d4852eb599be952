package seats

import (
	"iter"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
)

const (
	// newcomerTTL is how long a node may take, after it was created, to get the label of
	// its group. Until then a pod that is pinned to the group keeps its seat there on such
	// a node.
	newcomerTTL = time.Minute
	// movedTTL is how long MovedAt returns a change of a group. It is as long as the longest
	// stabilizationSeconds of a PropagationPolicy, which is 3600.
	movedTTL = time.Hour
)

// nodes holds the nodes, the groups that they are in, their capacity classes, and what the
// pods on them use. The Ledger's mutex guards it.
//
// Invariants: a node in byName exists or has pods. The members, ready and openOfClass are
// those of the nodes in byName.
type nodes struct {
	clock  clock.PassiveClock
	byName map[string]*node
	// members are the nodes of each group, by name. Groups without nodes are not in it.
	members map[string]map[string]*node
	// moved is the last time when a node joined or left the group, or became open. Entries
	// are removed after movedTTL.
	moved map[string]time.Time
	// epoch increases whenever hasMembers or notReadySince changes its result for a group.
	epoch uint64
	// ready is the number of Ready nodes of each group. Groups without any are not in it.
	ready map[string]int
	// openOfClass is the number of open nodes of each capacity class.
	openOfClass [3]int
	// emptySince is when a class was first seen without an open node. It is zero while the
	// class has one, and until emptyClass is called the first time if it never had one.
	emptySince [3]time.Time
}

type node struct {
	Node
	// exists is false for a node that was deleted, or not observed yet, and has pods; deleted
	// distinguishes the two.
	exists, deleted bool
	class           capacity.Class
	// pods are the observed pods on the node, finished ones included.
	pods map[types.UID]*Pod
	// used is the sum of the demands of those pods that are not finished, and leaving is
	// minus the sum of those of them that are terminating.
	used, leaving fit.Use
}

// nodeChange is what observing or deleting a node has changed.
type nodeChange struct {
	before, after Node
	reclassified  bool
	// firstOrLast: a class got its first open node, or lost its last one.
	firstOrLast bool
	// pods are the pods on the node; nil if nothing has changed.
	pods iter.Seq[types.UID]
}

func (c *nodeChange) regrouped() bool { return c.before.Group != c.after.Group }

func newNodes(clock clock.PassiveClock) *nodes {
	return &nodes{
		clock:   clock,
		byName:  map[string]*node{},
		members: map[string]map[string]*node{},
		moved:   map[string]time.Time{},
		ready:   map[string]int{},
	}
}

// observe records the current state of a node and its class.
func (ns *nodes) observe(now Node, class capacity.Class) nodeChange {
	n := ns.ensure(now.Name)
	ns.setNotReadySince(&now, n.Node)
	if now.Open && !n.Open && now.Group != "" {
		ns.moved[now.Group] = ns.clock.Now()
	}
	change := ns.set(n, now, class)
	n.exists, n.deleted = true, false
	return change
}

// forget records that a node is deleted. Its pods stay on it until they are deleted.
func (ns *nodes) forget(name string) nodeChange {
	n := ns.byName[name]
	if n == nil {
		return nodeChange{before: Node{Name: name}, after: Node{Name: name}}
	}
	change := ns.set(n, Node{Name: name}, capacity.None)
	n.exists, n.deleted = false, true
	ns.removeUnused(n)
	return change
}

// set replaces a node's state and class, and updates all that is counted of it.
func (ns *nodes) set(n *node, now Node, class capacity.Class) nodeChange {
	change := nodeChange{before: n.Node, after: now, reclassified: class != n.class, pods: maps.Keys(n.pods)}
	if change.regrouped() {
		ns.countMember(n, n.Group, false)
		ns.countMember(n, now.Group, true)
	}
	change.firstOrLast = ns.countOpen(n, now.Open, class)
	ns.countReady(n.Node, now)
	n.Node, n.class = now, class
	return change
}

// replacePod records that before is after now: nil for a pod that is not, or no longer, in
// the ledger. before must be what the last call had as after.
func (ns *nodes) replacePod(before, after *Pod) {
	if before != nil && after != nil && before.Node == after.Node && before.Finished == after.Finished && before.Active == after.Active && before.demand() == after.demand() {
		if after.Node != "" {
			ns.ensure(after.Node).pods[after.UID] = after
		}
		return
	}
	if before != nil && before.Node != "" {
		n := ns.ensure(before.Node)
		delete(n.pods, before.UID)
		if !before.Finished {
			n.used.Remove(before.demand())
		}
		if before.terminating() {
			n.leaving.Add(before.demand())
		}
		if after == nil || after.Node != before.Node {
			ns.removeUnused(n)
		}
	}
	if after != nil && after.Node != "" {
		n := ns.ensure(after.Node)
		n.pods[after.UID] = after
		if !after.Finished {
			n.used.Add(after.demand())
		}
		if after.terminating() {
			n.leaving.Remove(after.demand())
		}
	}
}

// ensure returns the node, and adds it if it is not there.
func (ns *nodes) ensure(name string) *node {
	n := ns.byName[name]
	if n == nil {
		n = &node{Node: Node{Name: name}, pods: map[types.UID]*Pod{}}
		ns.byName[name] = n
	}
	return n
}

// removeUnused removes a node that was deleted and has no pods any more.
func (ns *nodes) removeUnused(n *node) {
	if !n.exists && len(n.pods) == 0 {
		delete(ns.byName, n.Name)
	}
}

// setNotReadySince completes since when a node is not Ready. The condition has the time of
// its last change, and from False to Unknown is a change too: the earlier time counts. Of a
// node without the condition, the time is now.
func (ns *nodes) setNotReadySince(now *Node, before Node) {
	switch {
	case now.Ready:
	case !before.Ready && !before.NotReadySince.IsZero() &&
		(now.NotReadySince.IsZero() || before.NotReadySince.Before(now.NotReadySince)):
		now.NotReadySince = before.NotReadySince
	case now.NotReadySince.IsZero():
		now.NotReadySince = ns.clock.Now()
	}
}

// countReady updates ready. It increases the epoch if notReadySince has another result for
// the node's groups now.
func (ns *nodes) countReady(before, after Node) {
	if before.Group == after.Group && before.Ready == after.Ready && before.NotReadySince.Equal(after.NotReadySince) {
		return
	}
	changed := false
	for _, change := range []struct {
		node Node
		by   int
	}{{before, -1}, {after, 1}} {
		group := change.node.Group
		if group == "" {
			continue
		}
		changed = changed || ns.ready[group] == 0
		if change.node.Ready {
			ns.ready[group] += change.by
		}
		changed = changed || ns.ready[group] == 0
		if ns.ready[group] == 0 {
			delete(ns.ready, group)
		}
	}
	if changed {
		ns.epoch++
	}
}

// countMember adds a node to the members of a group, or removes it.
func (ns *nodes) countMember(n *node, group string, joins bool) {
	if group == "" {
		return
	}
	ns.moved[group] = ns.clock.Now()
	members := ns.members[group]
	if joins {
		if members == nil {
			members = map[string]*node{}
			ns.members[group] = members
			ns.epoch++
		}
		members[n.Name] = n
		return
	}
	delete(members, n.Name)
	if len(members) == 0 {
		delete(ns.members, group)
		ns.epoch++
	}
}

// forgetMoved removes changes of groups that are older than movedTTL.
func (ns *nodes) forgetMoved() {
	now := ns.clock.Now()
	maps.DeleteFunc(ns.moved, func(_ string, at time.Time) bool { return now.Sub(at) > movedTTL })
}

// group returns the group of a node; "" if it has none.
func (ns *nodes) group(name string) string {
	if n := ns.byName[name]; n != nil {
		return n.Group
	}
	return ""
}

// class returns the capacity class of a node.
func (ns *nodes) class(name string) capacity.Class {
	if n := ns.byName[name]; n != nil {
		return n.class
	}
	return capacity.None
}

// isDeleted returns whether a node was deleted and still has pods.
func (ns *nodes) isDeleted(name string) bool {
	n := ns.byName[name]
	return n != nil && n.deleted
}

// intern returns the stored name of a node, so that one copy stays in memory.
func (ns *nodes) intern(name string) string {
	if n := ns.byName[name]; n != nil {
		return n.Name
	}
	return name
}

// isNewcomer returns whether a bound pod may be on a node of its group that does not have
// the group's label yet.
func (ns *nodes) isNewcomer(pod *Pod) bool {
	n := ns.ensure(pod.Node)
	return pod.Pinned() && n.Group == "" && !n.deleted && (!n.exists || ns.clock.Now().Before(n.Created.Add(newcomerTTL)))
}

// hasMembers returns whether a group has a node.
func (ns *nodes) hasMembers(group string) bool { return len(ns.members[group]) > 0 }

// hasOpen reports whether a group has an open node.
func (ns *nodes) hasOpen(group string) bool {
	for _, n := range ns.members[group] {
		if n.Open {
			return true
		}
	}
	return false
}

// movedAt is MovedAt of the Ledger.
func (ns *nodes) movedAt(groups []string) (last time.Time) {
	for _, group := range groups {
		if at := ns.moved[group]; at.After(last) {
			last = at
		}
	}
	return last
}

// notReadySince is NotReadySince of the Ledger.
func (ns *nodes) notReadySince(group string) (since time.Time, ok bool) {
	if ns.ready[group] > 0 {
		return time.Time{}, false
	}
	for _, n := range ns.members[group] {
		if n.NotReadySince.After(since) {
			since = n.NotReadySince
		}
		ok = true
	}
	return since, ok
}

// isGroupHeld is IsGroupHeld of the Ledger.
func (ns *nodes) isGroupHeld(group string) (isHeld bool) {
	for _, n := range ns.members[group] {
		if n.Open {
			return false
		}
		isHeld = isHeld || n.Held
	}
	return isHeld
}

// podsOn returns the pods on a node, finished ones included; nil if the node is not known.
func (ns *nodes) podsOn(name string) []*Pod {
	n := ns.byName[name]
	if n == nil {
		return nil
	}
	return slices.AppendSeq(make([]*Pod, 0, len(n.pods)), maps.Values(n.pods))
}

// look adds what the named nodes, of those that are still members of a group, have for the
// pod that is checked, until f has all that it looks for.
func (ns *nodes) look(f *found, group string, check *fit.Check, names iter.Seq[string]) {
	for name := range names {
		n := ns.members[group][name]
		if n == nil {
			continue
		}
		if check.Reaches(&n.Offer) {
			f.reached = true
			if n.Open {
				f.open[n.class]++
			}
		}
		if n.Open && check.Of(&n.Offer, &n.used, &n.leaving) == fit.Fits && (f.apart == nil || f.apart.Take(&n.Offer)) {
			f.room[n.class]++
		}
		if f.done() {
			return
		}
	}
}

// found is what look has found so far in one group: whether the pod may go to one of its nodes at
// all, and by class how many of these are open, and how many have room for it, once their
// terminating pods are gone. apart, if it is not nil, are the nodes that are too close to other
// pods of the workload.
type found struct {
	reached    bool
	open, room byClass
	// need is how many nodes with room are looked for.
	need  int
	apart *fit.Domains
}

func (f *found) done() bool { return f.reached && f.room.sum() >= f.need }

// byClass are numbers of pods or nodes by capacity.Class.
type byClass [3]int

func (n byClass) sum() int { return n[capacity.None] + n[capacity.OnDemand] + n[capacity.Spot] }

// without returns how many nodes are left if each of these pods has one, of its class if it has
// one.
func (n byClass) without(pods byClass) int {
	left := -pods[capacity.None]
	for class, nodes := range n {
		if class != int(capacity.None) {
			nodes = max(0, nodes-pods[class])
		}
		left += nodes
	}
	return left
}
