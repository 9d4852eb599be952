package seats

import "time"

// rememberNotReadyLocked completes since when a node is not Ready: the condition
// says when it changed last, which from False to Unknown is later, and a node
// without a condition says nothing.
func (l *Ledger) rememberNotReadyLocked(node *Node, before Node) {
	switch {
	case node.Ready:
	case !before.Ready && !before.NotReadySince.IsZero() &&
		(node.NotReadySince.IsZero() || before.NotReadySince.Before(node.NotReadySince)):
		node.NotReadySince = before.NotReadySince
	case node.NotReadySince.IsZero():
		node.NotReadySince = l.clock.Now()
	}
	if node.Open && !before.Open && node.Group != "" {
		l.moved[node.Group] = l.clock.Now()
	}
}

// countReadyLocked counts a node that changed, and moves the epoch if that
// changes since when its groups have had no Ready node.
func (l *Ledger) countReadyLocked(before, after Node) {
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
		changed = changed || l.ready[group] == 0
		if change.node.Ready {
			l.ready[group] += change.by
		}
		changed = changed || l.ready[group] == 0
		if l.ready[group] == 0 {
			delete(l.ready, group)
		}
	}
	if changed {
		l.epoch++
	}
}

// NotReadySince is since when none of a group's nodes has been Ready; ok is
// false if one is, or if the group has no node.
func (l *Ledger) NotReadySince(group string) (since time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ready[group] > 0 {
		return time.Time{}, false
	}
	for _, n := range l.members[group] {
		if n.NotReadySince.After(since) {
			since = n.NotReadySince
		}
		ok = true
	}
	return since, ok
}
