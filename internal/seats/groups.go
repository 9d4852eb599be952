package seats

// GroupsHandler is told which groups changed: a node joined or left them, or
// came to take pods, or to be Ready, or stopped to. It must not block.
type GroupsHandler func(groups ...string)

// OnGroups adds a handler. Call before the ledger is fed.
func (l *Ledger) OnGroups(h GroupsHandler) { l.groupsHandlers = append(l.groupsHandlers, h) }

// notifyGroups tells whom a change of a node concerns.
func (l *Ledger) notifyGroups(before, after Node) {
	var groups []string
	switch {
	case before.Group != after.Group:
		for _, group := range []string{before.Group, after.Group} {
			if group != "" {
				groups = append(groups, group)
			}
		}
	case (before.Open != after.Open || before.Ready != after.Ready) && after.Group != "":
		groups = []string{after.Group}
	}
	if len(groups) == 0 {
		return
	}
	for _, h := range l.groupsHandlers {
		h(groups...)
	}
}
