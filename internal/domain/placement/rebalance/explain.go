package rebalance

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// explain sets the message and the final reason: those of the first problem that
// applies. Messages hold no number that changes while pods move, so that the status is
// not written with every pod.
func (p *Plan) explain(w *Workload, all totals, blocked string) {
	missing := list(w.Spread.Missing())
	switch {
	case len(w.Spread.Groups()) == 0 && missing != "":
		p.Reason = gm.ReasonNodeGroupsMissing
		p.Spread.Message = "no NodeGroup of the policy has a node: " + missing
	case !w.Divided && all.waiting > 0:
		p.Reason = gm.ReasonPodsWaiting
		p.Spread.Message = "pods for nodes of no NodeGroup of the policy wait, and count as unavailable in a rollout: give the DaemonSet node affinity on " + gm.NodeGroupLabel
	case !w.Divided:
		p.Spread.Message = "pods of a DaemonSet run on nodes of the policy's NodeGroups, and wait for all other nodes"
	case w.Refused != "" && !w.Complete:
		p.Reason = gm.ReasonPodsRefused
		p.Spread.Message = "the API server creates no pods: " + w.Refused
	case w.Held != "" && all.gated > 0:
		p.Reason = gm.ReasonPodsWaiting
		p.Spread.Message = "pods wait at the scheduling gate: " + w.Held
	case all.lost:
		p.Reason = gm.ReasonConverging
		p.Spread.Message = "pods are on nodes that were deleted, and count in no NodeGroup: Kubernetes deletes them"
	case !w.Balanced:
		p.Reason = gm.ReasonConverging
		p.Spread.Message = "a rollout is in progress"
		if all.waiting > 0 {
			p.Spread.Message += ", and " + all.waits(p.Spread.Groups)
		}
	case all.waiting > 0:
		p.Reason = gm.ReasonPodsWaiting
		p.Spread.Message = all.waits(p.Spread.Groups)
	case all.surplus > 0 && !w.Evictable:
		p.Spread.Message = fmt.Sprintf("pods of a %s are not moved", w.Ref.Kind)
	case all.surplus > 0 && w.Mode != gm.ReschedulingEvict:
		p.Spread.Message = fmt.Sprintf("pods are surplus and stay: rescheduling.mode is %s", w.Mode)
	case p.Reason == gm.ReasonNoFeasibleTarget:
		p.Spread.Message = "pods are surplus and stay: " + cmp.Or(blocked, "no NodeGroup may have more")
	case p.Reason == gm.ReasonConverging:
		p.Spread.Message = "surplus pods are being moved"
		if blocked != "" {
			p.Spread.Message += ", but for some: " + blocked
		}
	case missing != "":
		p.Reason = gm.ReasonNodeGroupsMissing
		p.Spread.Message = leftOut + missing
	case len(w.Spread.Away()) > 0:
		p.Reason = gm.ReasonNodeGroupsAway
		p.Spread.Message = "the other NodeGroups get the share of those that have had no Ready node for failover.afterSeconds: " + list(w.Spread.Away())
	case w.pods() < w.Replicas:
		p.Reason = gm.ReasonConverging
		p.Spread.Message = "pods are missing: if this lasts, see the events of their owner"
	case unready(p.Spread.Groups):
		p.Reason = gm.ReasonConverging
		p.Spread.Message = "pods are not Ready yet"
	}
	if missing != "" && p.Reason != gm.ReasonNodeGroupsMissing && w.Divided { // it may be the cause
		p.Spread.Message += "; " + leftOut + missing
	}
}

const leftOut = "NodeGroups are left out, because they do not exist or have no node: "

// waits returns what the pods without a node wait for.
func (t *totals) waits(groups []gm.GroupSpread) string {
	var parts []string
	if len(t.otherGates) > 0 {
		parts = append(parts, "pods wait at scheduling gates of other programs, which have to remove them: "+list(slices.Sorted(maps.Keys(t.otherGates))))
	}
	full := !slices.ContainsFunc(groups, func(g gm.GroupSpread) bool { return g.Current < g.Desired })
	if t.atGate && !full {
		parts = append(parts, "pods wait at the scheduling gate of atoll-manager: if this lasts, see the events of their owner")
	}
	switch {
	case t.unpinned || t.atGate && full:
		parts = append(parts, "pods wait for a node: "+lackingGroups(groups))
	case len(t.pinned) > 0:
		parts = append(parts, "pods wait for a node: NodeGroup "+list(slices.Sorted(maps.Keys(t.pinned))))
	}
	return strings.Join(parts, "; ")
}

func lackingGroups(groups []gm.GroupSpread) string {
	var names []string
	for _, g := range groups {
		if g.Current < g.Desired {
			names = append(names, g.Name)
		}
	}
	if len(names) == 0 {
		return "every NodeGroup has its share, and the policy gives none of them more"
	}
	return "NodeGroup " + list(names)
}

func unready(groups []gm.GroupSpread) bool {
	for _, g := range groups {
		if g.Current != g.Desired || g.Ready < g.Current {
			return true
		}
	}
	return false
}

// obstacles collects why surplus pods stay. The zero value is empty.
type obstacles struct {
	// byGroup is why groups that lack pods could not take one.
	byGroup map[string]Obstacle
	// tied are the names of the pods, by group, whose volumes no group that lacks pods
	// reaches.
	tied map[string][]string
	// named: there are pods whose owner names their node.
	named bool
}

// closed adds why a group could not take a pod.
func (o *obstacles) closed(w *Workload, group string, obstacle Obstacle) {
	if o.byGroup == nil {
		o.byGroup = map[string]Obstacle{}
	}
	o.byGroup[group] = w.Further(obstacle, o.byGroup[group])
}

// tie adds a pod whose volumes keep it in its group.
func (o *obstacles) tie(group string, pods ...string) {
	if o.tied == nil {
		o.tied = map[string][]string{}
	}
	o.tied[group] = append(o.tied[group], pods...)
}

// String returns why surplus pods stay, "" if there is no obstacle.
func (o *obstacles) String() string {
	var parts []string
	for _, group := range slices.Sorted(maps.Keys(o.byGroup)) {
		if obstacle := o.byGroup[group]; !obstacle.OutOfReach {
			parts = append(parts, fmt.Sprintf("NodeGroup %q can take none: %s", group, obstacle.Reason))
		}
	}
	for _, group := range slices.Sorted(maps.Keys(o.tied)) {
		slices.Sort(o.tied[group])
		parts = append(parts, fmt.Sprintf("pods %s are tied to NodeGroup %q by their volumes", list(o.tied[group]), group))
	}
	if o.named {
		parts = append(parts, "the template of some names their node (spec.nodeName)")
	}
	const shown = 4
	if len(parts) > shown {
		parts = append(parts[:shown], "and more")
	}
	return strings.Join(parts, "; ")
}

// list joins sorted names for a message: the first three, and how many more there are.
func list(names []string) string {
	const shown = 3
	var quoted []string
	for _, name := range names[:min(len(names), shown)] {
		quoted = append(quoted, fmt.Sprintf("%q", name))
	}
	text := strings.Join(quoted, ", ")
	if len(names) > shown {
		text += fmt.Sprintf(" and %d more", len(names)-shown)
	}
	return text
}
