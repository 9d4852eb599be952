package rebalance

import (
	"slices"
	"sort"

	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
)

// Plan is what is to be done about one workload, and what the status shows of it.
type Plan struct {
	// Spread is the workload's entry in the policy's status.
	Spread gm.WorkloadSpread
	// Reason is gm.ReasonSatisfied, or why the workload is not as the policy wants it.
	Reason string
	// Evict are the pods that should leave their groups, in the order of eviction. The
	// caller evicts as many of them as may be disturbed now.
	Evict []*Pod
	// Surplus is how many pods are to leave their groups. It may be more than Evict has:
	// pods stay while no other group can take their successors.
	Surplus int
}

// Severity orders the reasons: the policy's condition shows the workload whose reason has
// the highest severity. Reasons that no plan has are 0.
func Severity(reason string) int { return severities[reason] }

var severities = map[string]int{
	gm.ReasonSatisfied: 0, gm.ReasonConverging: 1, gm.ReasonPodsWaiting: 2,
	gm.ReasonNoFeasibleTarget: 3, gm.ReasonBlockedByPDB: 4, gm.ReasonNodeGroupsAway: 5, gm.ReasonNodeGroupsMissing: 6,
	gm.ReasonPodsRefused: 7,
}

// groupCount holds the numbers of one group, over all cohorts.
type groupCount struct{ desired, current, ready, surplus, onLoan int }

// totals holds the numbers of the workload, over all groups.
type totals struct {
	// waiting is the number of pods without a node, gated of those at the scheduling gate.
	waiting, gated int
	// surplus is the number of pods that are to leave their groups.
	surplus int
	// lost: pods are on nodes that were deleted.
	lost bool
	// pinned are the groups of waiting pods that can run in no other, and otherGates the gates
	// of other programs that hold pods back.
	pinned, otherGates map[string]bool
	// unpinned: waiting pods have no group yet. atGate: they are at our scheduling gate.
	unpinned, atGate bool
}

// NewPlan plans for one workload.
func NewPlan(w *Workload) Plan {
	p := Plan{Reason: gm.ReasonSatisfied}
	p.Spread.Ref = w.Ref
	counts := map[string]*groupCount{}
	count := func(group string) *groupCount {
		if counts[group] == nil {
			counts[group] = &groupCount{}
		}
		return counts[group]
	}
	all := totals{pinned: map[string]bool{}, otherGates: map[string]bool{}}
	for i, n := range w.desired() {
		count(w.Spread.Groups()[i]).desired = n
	}
	for _, c := range w.Cohorts {
		for i := range c.Pods {
			pod := &c.Pods[i]
			if pod.Node == "" {
				all.waiting++
				switch {
				case pod.OtherGate != "":
					all.otherGates[pod.OtherGate] = true
				case pod.Gated:
					all.atGate = true
				case pod.Pinned:
					all.pinned[pod.Group] = true
				default:
					all.unpinned = true
				}
				if pod.Gated {
					all.gated++
				}
				continue
			}
			all.lost = all.lost || pod.Lost
			group := count(pod.Group)
			group.current++
			if pod.Ready {
				group.ready++
			}
		}
	}
	blocked := obstacles{}
	if w.Balanced && w.Divided && len(w.Cohorts) > 0 {
		for _, part := range w.parts() {
			m := part.moves(&blocked)
			for group, n := range m.surplus {
				count(group).surplus += n
				all.surplus += n
			}
			for group, n := range m.onLoan {
				count(group).onLoan += n
			}
			p.Evict = append(p.Evict, m.evict...)
			if Severity(m.reason) > Severity(p.Reason) {
				p.Reason = m.reason
			}
		}
		p.Surplus = all.surplus
	}
	for name, c := range counts {
		if !w.Divided {
			c.desired = c.current
		}
		p.Spread.Groups = append(p.Spread.Groups, gm.GroupSpread{
			Name: name, Desired: int32(c.desired), Current: int32(c.current), Ready: int32(c.ready), Surplus: int32(c.surplus),
			OnLoan: int32(c.onLoan),
		})
	}
	sort.Slice(p.Spread.Groups, func(i, j int) bool { return p.Spread.Groups[i].Name < p.Spread.Groups[j].Name })
	p.Spread.Waiting = int32(all.waiting)
	p.explain(w, all, blocked.String())
	return p
}

// moves is which pods are to leave their groups.
type moves struct {
	// surplus is, by group, how many pods are to leave; onLoan is how many of those stay
	// because no group that lacks pods has room for them.
	surplus, onLoan map[string]int
	evict           []*Pod
	reason          string
}

// moves finds which pods of a part are to leave their groups, and adds what is in the way to
// blocked. A pod leaves only if a group that lacks pods can take its successor. No more pods
// leave than other groups lack beyond the pods that have no seat yet. A pod that only reserves a
// seat makes no other pod surplus: it may get its node in another group, as the policy wants it
// by then.
func (w *Workload) moves(blocked *obstacles) moves {
	m := moves{surplus: map[string]int{}, onLoan: map[string]int{}, reason: gm.ReasonSatisfied}
	counted := map[string]int{} // pods that may make others surplus
	current := map[string]int{}
	for i := range w.Cohorts {
		for j := range w.Cohorts[i].Pods {
			pod := &w.Cohorts[i].Pods[j]
			if pod.Seated {
				current[pod.Group]++
			}
			if pod.counts() {
				counted[pod.Group]++
			}
		}
	}
	var lacking []string
	desired := map[string]int{}
	open := -w.total() // becomes the number of seats that no pod without a seat will take
	for _, n := range current {
		open += n
	}
	for i, n := range w.desired() {
		group := w.Spread.Groups()[i]
		desired[group] = n
		if lacks := n - current[group]; lacks > 0 {
			lacking = append(lacking, group)
			open += lacks
		}
	}
	groups := make([]string, 0, len(counted))
	for group, pods := range counted {
		if n := pods - desired[group]; n > 0 {
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
	w.reserveForWaiting(lacking)
	costs := w.wantedCosts()
	for _, group := range groups {
		if w.Sticky && slices.Contains(w.Spread.Away(), group) {
			continue
		}
		left, stay := m.surplus[group], 0
		for _, pod := range w.inOrderOfLeaving(group, costs) {
			if left == 0 || len(m.evict) >= open {
				break
			}
			if pod.NamesNode {
				blocked.named = true
				continue
			}
			can, later := w.findGroup(blocked, lacking, group, pod)
			if !can {
				if later && pod.Node != "" {
					stay++
				}
				continue
			}
			m.evict = append(m.evict, pod)
			left--
		}
		if len(lacking) > 0 && w.Spread.Index(group) >= 0 {
			m.onLoan[group] = min(stay, left)
		}
	}
	// Where waiting pods will take all seats that are lacking, no target was looked for.
	if len(m.evict) == 0 && (open > 0 || len(lacking) == 0) {
		m.reason = gm.ReasonNoFeasibleTarget
	}
	if !w.Movable() {
		m.evict, m.onLoan = nil, map[string]int{}
	}
	return m
}

// counts returns whether the pod runs in its group, or can run in no other.
func (p *Pod) counts() bool { return p.Node != "" || p.Pinned }

// reserveForWaiting reserves room in the groups that lack pods for the pods that have
// no node yet, before successors of running pods get what is left.
func (w *Workload) reserveForWaiting(lacking []string) {
	for i := range w.Cohorts {
		for j := range w.Cohorts[i].Pods {
			pod := &w.Cohorts[i].Pods[j]
			switch {
			case pod.Node != "":
			case !pod.Seated:
				_ = slices.ContainsFunc(lacking, func(group string) bool { can, _ := w.CanTake(group, pod); return can })
			case slices.Contains(lacking, pod.Group):
				w.CanTake(pod.Group, pod)
			}
		}
	}
}

// findGroup returns whether a group that lacks pods can take the successor of a pod of
// group from. If none can, later returns whether one may be able to later: never if the
// pod's volumes are out of reach, or its own node selector allows none of them. It adds what is in the way to blocked.
func (w *Workload) findGroup(blocked *obstacles, lacking []string, from string, pod *Pod) (can, later bool) {
	tied, unread, wanted := false, false, false
	for _, group := range lacking {
		can, obstacle := w.CanTake(group, pod)
		if can {
			return true, true
		}
		tied, unread, wanted = tied || obstacle.OutOfReach, unread || obstacle.Unread, wanted || !obstacle.Unwanted
		blocked.closed(w, group, obstacle)
	}
	if tied {
		blocked.tie(from, pod.Name)
	}
	return false, !tied && !unread && wanted
}

// wantedCosts returns the deletion costs that pods are to have, where those differ from what
// they have. The order of leaving is by these, so that it does not depend on when they are
// written: the pods that NewPlan names are those that leave, one after the other.
func (w *Workload) wantedCosts() map[types.UID]int32 {
	costs := map[types.UID]int32{}
	for _, c := range CostsDue(w) {
		costs[c.Pod] = c.Cost
	}
	return costs
}

// inOrderOfLeaving returns the pods of one group, the first to leave first. While there
// are several revisions, pods beyond their own revision's share leave before the others.
func (w *Workload) inOrderOfLeaving(group string, costs map[types.UID]int32) []*Pod {
	var pods []*Pod
	var candidates []placement.Candidate
	excess := map[*Cohort]int{}
	cohorts := map[*Pod]*Cohort{}
	for i := range w.Cohorts {
		c := &w.Cohorts[i]
		for j := range c.Pods {
			if pod := &c.Pods[j]; pod.Group == group && pod.counts() {
				candidate := pod.Candidate
				if cost, differs := costs[pod.UID]; differs {
					candidate.DeletionCost = cost
				}
				pods, candidates = append(pods, pod), append(candidates, candidate)
				excess[c]++
				cohorts[pod] = c
			}
		}
		if at := w.Spread.Index(group); at >= 0 {
			excess[c] -= w.share(c)[at]
		}
	}
	var first, others []*Pod
	for _, i := range placement.Victims(candidates) {
		c := cohorts[pods[i]]
		if excess[c]--; excess[c] >= 0 {
			first = append(first, pods[i])
		} else {
			others = append(others, pods[i])
		}
	}
	return append(first, others...)
}
