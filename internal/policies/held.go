package policies

import "k8s.io/apimachinery/pkg/types"

// OnHeld adds a handler that is told when SetHeld changes something. It must not
// block. Call before anything runs.
func (b *Resolver) OnHeld(h func(app types.UID)) { b.onHeld = append(b.onHeld, h) }

// SetHeld records why pods of a workload stay at the gate although every policy
// is there: the API server refuses what would let them go. "" is that it does not.
func (b *Resolver) SetHeld(app types.UID, why string) {
	b.mu.Lock()
	if b.held[app] == why {
		b.mu.Unlock()
		return
	}
	if why == "" {
		delete(b.held, app)
	} else {
		b.held[app] = why
	}
	b.mu.Unlock()
	for _, h := range b.onHeld {
		h(app)
	}
}

// Held is what SetHeld recorded of the first of the objects that it did of.
func (b *Resolver) Held(uids []types.UID) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, uid := range uids {
		if why := b.held[uid]; why != "" {
			return why
		}
	}
	return ""
}
