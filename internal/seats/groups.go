package seats

// GroupsHandler is called with the groups that a change of a node concerns: a node joined or
// left them, became open or Ready, or stopped being so. It is called without the ledger's
// mutex, and it must not block.
type GroupsHandler func(groups ...string)

// OnGroups adds a handler. Call it before the first ObserveNode.
func (l *Ledger) OnGroups(h GroupsHandler) { l.groupsHandlers = append(l.groupsHandlers, h) }

// notifyGroups calls the handlers with the groups that a change of a node concerns.
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
