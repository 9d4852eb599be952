package propagationpolicy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// observed is what was seen of one workload.
type observed struct {
	app    *ownership.Object
	spread placement.Spread
	// replicas is the number of pods that the workload wants.
	replicas int
	cohorts  []seats.CohortView
	// evictable: the owner of an evicted pod makes a new one that can go elsewhere.
	evictable bool
	// divided is false for a DaemonSet: one pod a node, nothing to divide.
	divided bool
	// complete: every owner has as many pods as it wants. short are those that
	// have fewer, and refused is why the API server creates no more, if it says so.
	complete bool
	short    map[types.UID]bool
	refused  string
	// held is why pods at the gate cannot leave it, "" if they can.
	held string
	// balanced: there is one revision, or the rollout stands still.
	balanced bool
	// sticky: a pod that is evicted from a node that is away has no successor
	// until the node is back, as those of a StatefulSet.
	sticky bool
	mode   gm.ReschedulingMode
	// canTake tells whether a group could run the successor of a pod, and else
	// why not. The place that it finds for one pod is not there for the next.
	canTake func(group string, pod *seats.Pod) (bool, fit.Reason)
}

// plan is what is to be done about one workload, and what is to be said of it.
type plan struct {
	spread gm.AppSpread
	// evict are pods in the order in which they are to leave; the executor
	// evicts as many as may be disturbed now.
	evict []*seats.Pod
	// surplus is, by cohort, how many pods are to leave their groups.
	surplus map[seats.Cohort]int
	// reason is gm.ReasonSatisfied, or what keeps the workload from it.
	reason string
}

// groupCount gathers the numbers of one group over all cohorts.
type groupCount struct{ desired, current, ready, surplus, onLoan int }

// planFor decides for one workload. It is a pure function.
func planFor(o observed) plan {
	p := plan{reason: gm.ReasonSatisfied}
	p.spread.Ref = gm.AppReference{APIVersion: o.app.GroupVersion().String(), Kind: o.app.Kind, Name: o.app.Name}
	counts := map[string]*groupCount{}
	count := func(group string) *groupCount {
		if counts[group] == nil {
			counts[group] = &groupCount{}
		}
		return counts[group]
	}
	waiting, gated, surplus, onLoan := 0, 0, 0, 0
	var stays moves
	for i, n := range o.desired() {
		count(o.spread.Groups()[i]).desired = n
	}
	for _, c := range o.cohorts {
		for _, pod := range c.Pods {
			if pod.Node == "" {
				waiting++
				if pod.Gated {
					gated++
				}
				continue
			}
			group := count(pod.Group)
			group.current++
			if pod.Ready {
				group.ready++
			}
		}
	}
	if o.balanced && o.divided {
		p.surplus = map[seats.Cohort]int{}
		for _, c := range o.cohorts {
			of := movesOf(o, c)
			for group, n := range of.surplus {
				count(group).surplus += n
				p.surplus[c.Cohort] += n
				surplus += n
			}
			for group, n := range of.onLoan {
				count(group).onLoan += n
				onLoan += n
			}
			stays.merge(of)
			p.evict = append(p.evict, of.evict...)
			if severity[of.reason] > severity[p.reason] {
				p.reason = of.reason
			}
		}
	}
	for name, c := range counts {
		if !o.divided {
			c.desired = c.current
		}
		p.spread.Groups = append(p.spread.Groups, gm.GroupSpread{
			Name: name, Desired: int32(c.desired), Current: int32(c.current), Ready: int32(c.ready), Surplus: int32(c.surplus),
			OnLoan: int32(c.onLoan),
		})
	}
	sort.Slice(p.spread.Groups, func(i, j int) bool { return p.spread.Groups[i].Name < p.spread.Groups[j].Name })
	p.spread.Waiting = int32(waiting)
	if gated == 0 {
		o.held = ""
	}
	p.explain(o, waiting, surplus, onLoan, stays.stay())
	return p
}

func (o *observed) pods() int {
	n := 0
	for _, c := range o.cohorts {
		n += len(c.Pods)
	}
	return n
}

// desired is the number of pods that each group is to have: of every revision
// its own division.
func (o *observed) desired() []int {
	if len(o.cohorts) == 0 {
		return o.spread.Divide(o.replicas)
	}
	desired := make([]int, len(o.spread.Groups()))
	for _, c := range o.cohorts {
		_, division := o.divide(c)
		for i, n := range division {
			desired[i] += n
		}
	}
	return desired
}

// divide is the number of pods of a cohort, and how they divide. Of several
// revisions each has what its own ReplicaSet wants: in a rollout that stands
// still these are the pods that there are.
func (o *observed) divide(c seats.CohortView) (total int, division []int) {
	total = max(len(c.Pods), o.replicas)
	if len(o.cohorts) == 1 {
		return total, o.spread.Divide(total)
	}
	return len(c.Pods), o.spread.First(len(c.Pods), total)
}

type moves struct {
	surplus map[string]int
	// onLoan are those of surplus that no group that lacks pods has room for.
	onLoan map[string]int
	evict  []*seats.Pod
	reason string
	// closed is why groups that lack pods could not take one.
	closed map[string]fit.Reason
	// tied are the pods, by group, whose volumes no group that lacks pods reaches.
	tied map[string][]string
}

// find tells whether a group that lacks pods can take one from another group,
// and else whether it may later: a pod whose volumes are elsewhere never can.
func (m *moves) find(o observed, lacking []string, from string, pod *seats.Pod) (can, later bool) {
	tied, unread := false, false
	for _, group := range lacking {
		can, why := o.canTake(group, pod)
		if can {
			return true, true
		}
		tied, unread = tied || why == fit.OutOfReach, unread || why == fit.Unread
		m.closed[group] = fit.Further(why, m.closed[group])
	}
	if tied {
		m.tied[from] = append(m.tied[from], pod.Name)
	}
	return false, !tied && !unread
}

// merge adds why pods of another cohort stay.
func (m *moves) merge(other moves) {
	if m.closed == nil {
		m.closed, m.tied = map[string]fit.Reason{}, map[string][]string{}
	}
	for group, why := range other.closed {
		m.closed[group] = fit.Further(why, m.closed[group])
	}
	for group, names := range other.tied {
		m.tied[group] = append(m.tied[group], names...)
	}
}

// stay says why surplus pods stay, "" if none had to.
func (m *moves) stay() string {
	var parts []string
	for _, group := range slices.Sorted(maps.Keys(m.closed)) {
		if why := m.closed[group]; why != fit.OutOfReach {
			parts = append(parts, fmt.Sprintf("NodeGroup %q can take none: %s", group, why))
		}
	}
	for _, group := range slices.Sorted(maps.Keys(m.tied)) {
		slices.Sort(m.tied[group])
		parts = append(parts, fmt.Sprintf("pods %s are tied to NodeGroup %q by their volumes", conditions.List(m.tied[group]), group))
	}
	const shown = 4
	if len(parts) > shown {
		parts = append(parts[:shown], "and more")
	}
	return strings.Join(parts, "; ")
}

// movesOf finds which pods of a cohort are to leave their groups. A pod leaves
// only if a group that lacks pods can take it, and only as many leave as other
// groups lack beyond the pods that have no seat yet.
func movesOf(o observed, c seats.CohortView) moves {
	m := moves{
		surplus: map[string]int{}, onLoan: map[string]int{}, reason: gm.ReasonSatisfied,
		closed: map[string]fit.Reason{}, tied: map[string][]string{},
	}
	byGroup := map[string][]*seats.Pod{}
	current := map[string]int{}
	for _, pod := range c.Pods {
		if pod.Seated {
			current[pod.Group]++
		}
		if pod.Node != "" || pod.Pinned() {
			byGroup[pod.Group] = append(byGroup[pod.Group], pod.Pod)
		}
	}
	var lacking []string
	desired := map[string]int{}
	total, division := o.divide(c)
	open := -total // seats that nobody is there to take
	for _, n := range current {
		open += n
	}
	for i, n := range division {
		group := o.spread.Groups()[i]
		desired[group] = n
		if lacks := n - current[group]; lacks > 0 {
			lacking = append(lacking, group)
			open += lacks
		}
	}
	groups := make([]string, 0, len(byGroup))
	for group, pods := range byGroup {
		if n := min(current[group]-desired[group], len(pods)); n > 0 {
			m.surplus[group] = n
			groups = append(groups, group)
		}
	}
	if len(groups) == 0 {
		return m
	}
	m.reason = gm.ReasonConverging
	sort.Slice(groups, func(i, j int) bool {
		if a, b := m.surplus[groups[i]], m.surplus[groups[j]]; a != b {
			return a > b
		}
		return groups[i] < groups[j]
	})
	for _, pod := range c.Pods { // those on their way take their places first
		switch {
		case pod.Node != "":
		case !pod.Seated:
			_ = slices.ContainsFunc(lacking, func(group string) bool { can, _ := o.canTake(group, pod.Pod); return can })
		case slices.Contains(lacking, pod.Group):
			o.canTake(pod.Group, pod.Pod)
		}
	}
	for _, group := range groups {
		if o.sticky && slices.Contains(o.spread.Away(), group) {
			continue
		}
		left, stay := m.surplus[group], 0
		for _, pod := range victims(byGroup[group]) {
			if left == 0 || len(m.evict) >= open {
				break
			}
			can, later := m.find(o, lacking, group, pod)
			if !can {
				if later && pod.Node != "" {
					stay++
				}
				continue
			}
			m.evict = append(m.evict, pod)
			left--
		}
		if len(lacking) > 0 && o.spread.Index(group) >= 0 {
			m.onLoan[group] = min(stay, left)
		}
	}
	// With seats that other pods are about to take, there is something to wait for.
	if len(m.evict) == 0 && (open > 0 || len(lacking) == 0) {
		m.reason = gm.ReasonNoFeasibleTarget
	}
	if !o.moved() {
		m.evict, m.onLoan = nil, map[string]int{}
	}
	return m
}

// victims sorts pods by who is to leave first.
func victims(pods []*seats.Pod) []*seats.Pod {
	candidates := make([]placement.Candidate, len(pods))
	for i, pod := range pods {
		candidates[i] = placement.Candidate{
			UID: pod.UID, Node: pod.Node, Bound: pod.Node != "", Ready: pod.Ready,
			DeletionCost: pod.DeletionCost, Created: pod.Created,
		}
	}
	sorted := make([]*seats.Pod, len(pods))
	for rank, i := range placement.Victims(candidates) {
		sorted[rank] = pods[i]
	}
	return sorted
}

// explain sums up, the first problem first. Messages hold no number that moves.
func (p *plan) explain(o observed, waiting, surplus, onLoan int, stay string) {
	missing := conditions.List(o.spread.Missing())
	switch {
	case len(o.spread.Groups()) == 0 && missing != "":
		p.reason = gm.ReasonGroupsMissing
		p.spread.Message = "no NodeGroup of the policy has a node: " + missing
	case !o.divided && waiting > 0:
		p.reason = gm.ReasonPodsWaiting
		p.spread.Message = "pods for nodes of no NodeGroup of the policy wait, and count as unavailable in a rollout: give the DaemonSet node affinity on " + gm.NodeGroupLabel
	case !o.divided:
		p.spread.Message = "one pod a node: pods are kept to the policy's NodeGroups and wait on all other nodes"
	case o.refused != "" && !o.complete:
		p.reason = gm.ReasonPodsRefused
		p.spread.Message = conditions.Bounded("the API server creates no pods: " + o.refused)
	case o.held != "":
		p.reason = gm.ReasonPodsWaiting
		p.spread.Message = conditions.Bounded("pods wait at the scheduling gate: " + o.held)
	case !o.balanced:
		p.reason = gm.ReasonConverging
		p.spread.Message = "a rollout is in progress"
		if waiting > 0 {
			p.spread.Message += ", and pods wait for a node: " + lackingGroups(p.spread.Groups)
		}
	case waiting > 0:
		p.reason = gm.ReasonPodsWaiting
		p.spread.Message = "pods wait for a node: " + lackingGroups(p.spread.Groups)
	case surplus > 0 && !o.evictable:
		p.spread.Message = fmt.Sprintf("pods of a %s are not moved", o.app.Kind)
	case surplus > 0 && o.mode != gm.ReschedulingEvict:
		p.spread.Message = fmt.Sprintf("pods are surplus and stay: rescheduling.mode is %s", o.mode)
	case p.reason == gm.ReasonNoFeasibleTarget && onLoan == surplus:
		p.spread.Message = "pods are on loan: " + stay
	case p.reason == gm.ReasonNoFeasibleTarget:
		p.spread.Message = "pods are surplus and stay: " + cmp.Or(stay, "no NodeGroup may have more")
	case p.reason == gm.ReasonConverging:
		p.spread.Message = "surplus pods are being moved"
		if stay != "" {
			p.spread.Message += ", but for some: " + stay
		}
	case missing != "":
		p.reason = gm.ReasonGroupsMissing
		p.spread.Message = "left out, because they do not exist or have no node: " + missing
	case len(o.spread.Away()) > 0:
		p.reason = gm.ReasonGroupsAway
		p.spread.Message = "the others have the share of NodeGroups that have had no Ready node for failover.afterSeconds: " + conditions.List(o.spread.Away())
	case o.pods() < o.replicas:
		p.reason = gm.ReasonConverging
		p.spread.Message = "pods are missing: if it stays so, the events of their owner say why"
	case unready(p.spread.Groups):
		p.reason = gm.ReasonConverging
		p.spread.Message = "pods are not Ready yet"
	}
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
	return "NodeGroup " + conditions.List(names)
}

func unready(groups []gm.GroupSpread) bool {
	for _, g := range groups {
		if g.Current != g.Desired || g.Ready < g.Current {
			return true
		}
	}
	return false
}
