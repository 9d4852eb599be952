package seats

import (
	"cmp"
	"slices"
	"sort"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/domain/capacity"
)

// CohortView is a copy of a cohort.
type CohortView struct {
	Cohort
	// Pods are the active pods, sorted by creation, then UID.
	Pods []SeatView
}

// SeatView is a pod and its seat.
type SeatView struct {
	*Pod
	// Seated: the pod has a seat in Group, reserved or observed.
	Seated bool
	// Group is the NodeGroup of the seat; "" on a node without a group.
	Group string
	// Lost: the pod's node was deleted, and the pod will be.
	Lost bool
	// Class is the capacity class of the pod's node, or the class that the pod is restricted
	// to.
	Class capacity.Class
}

// View returns the cohorts of these owners that have active pods, sorted by owner and
// revision.
func (l *Ledger) View(owners []types.UID) []CohortView {
	out := l.view(owners)
	for _, v := range out { // without the mutex
		slices.SortFunc(v.Pods, func(a, b SeatView) int {
			return cmp.Or(a.Created.Compare(b.Created), strings.Compare(string(a.UID), string(b.UID)))
		})
	}
	slices.SortFunc(out, func(a, b CohortView) int {
		return cmp.Or(strings.Compare(string(a.Owner), string(b.Owner)), strings.Compare(a.Revision, b.Revision))
	})
	return out
}

func (l *Ledger) view(owners []types.UID) []CohortView {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cohorts.view(owners)
}

// view is View of the Ledger, not sorted.
func (cs *cohorts) view(owners []types.UID) (out []CohortView) {
	for _, owner := range owners {
		o := cs.byOwner[owner]
		if o == nil {
			continue
		}
		for _, c := range o.cohorts {
			cs.lapse(c)
			v := CohortView{Cohort: c.key, Pods: make([]SeatView, 0, len(c.seats))}
			for _, s := range c.seats {
				if s.pod != nil && s.pod.Active {
					v.Pods = append(v.Pods, SeatView{Pod: s.pod, Seated: s.seated, Group: s.group, Lost: cs.nodes.isDeleted(s.pod.Node), Class: s.class})
				}
			}
			if len(v.Pods) == 0 {
				continue
			}
			out = append(out, v)
		}
	}
	return out
}

// Gated returns the active pods that have our scheduling gate.
func (l *Ledger) Gated() []*Pod {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cohorts.allGated()
}

func (cs *cohorts) allGated() (pods []*Pod) {
	for _, s := range cs.byPod {
		if s.pod != nil && s.pod.Active && s.pod.Gated {
			pods = append(pods, s.pod)
		}
	}
	return pods
}

// SeatNumber returns the number of seats that a pod's group had when the pod took its own,
// itself included; 0 if the pod has no seat. Pods that take seats of one cohort and group one
// after the other have different numbers.
func (l *Ledger) SeatNumber(uid types.UID) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cohorts.seatNumber(uid)
}

func (cs *cohorts) seatNumber(uid types.UID) int {
	if s := cs.byPod[uid]; s != nil && s.seated {
		return s.number
	}
	return 0
}

// Open returns the number of seats of the request's cohort that no pod holds.
func (l *Ledger) Open(r Request) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cohorts.open(r)
}

// Scores rates the groups that lack pods of the request's cohort: 10 for the group that
// lacks most, down to 1. Other groups are not in the result. A seat that the pod holds
// itself counts as open. If the pod cannot go to another group any more, only its group is
// in the result.
func (l *Ledger) Scores(r Request) map[string]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cohorts.scores(r)
}

func (cs *cohorts) scores(r Request) map[string]int64 {
	groups := r.Spread.Groups()
	counts := make([]int, len(groups))
	active := 1
	if c := cs.byKey[r.Cohort]; c != nil {
		cs.lapse(c)
		active = c.active
		own := cs.byPod[r.Pod]
		if own != nil && own.cohort == c && own.seated && cs.fixed(own) {
			return map[string]int64{own.group: 10} // a group in which the pod is on loan does not lack it
		}
		if own == nil || own.cohort != c {
			active++
			own = &seat{}
		}
		for i, g := range groups {
			counts[i] = c.counts[g]
			if own.seated && own.group == g {
				counts[i]--
			}
		}
	}
	desired := r.Spread.Divide(max(r.Total, active))
	open := make([]int, 0, len(groups))
	for i := range groups {
		if counts[i] < desired[i] {
			open = append(open, i)
		}
	}
	lack := func(i int) int { return desired[open[i]] - counts[open[i]] }
	sort.SliceStable(open, func(i, j int) bool { return lack(i) > lack(j) })
	scores := make(map[string]int64, len(open))
	for rank, i := range open {
		score := int64(max(10-rank, 1))
		if rank > 0 && lack(rank) == lack(rank-1) {
			score = scores[groups[open[rank-1]]]
		}
		scores[groups[i]] = score
	}
	return scores
}
