package seats

import (
	"cmp"
	"slices"
	"sort"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/domain/capacity"
)

// disruptionTTL is how long an announced disruption counts when its effect is
// never seen, as after a lost answer.
const disruptionTTL = time.Minute

// CohortView is a cohort as it was at one moment.
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
	// Group is the NodeGroup of the seat; "" on a node of no group.
	Group string
	// Class is the class of capacity of the pod's node, or the one that it is kept to.
	Class capacity.Class
}

// View returns the cohorts with active pods of these owners, sorted by owner
// and revision.
func (l *Ledger) View(owners []types.UID) []CohortView {
	out := l.cohortsOf(owners)
	for _, v := range out { // others have the ledger meanwhile
		slices.SortFunc(v.Pods, func(a, b SeatView) int {
			return cmp.Or(a.Created.Compare(b.Created), strings.Compare(string(a.UID), string(b.UID)))
		})
	}
	slices.SortFunc(out, func(a, b CohortView) int {
		return cmp.Or(strings.Compare(string(a.Owner), string(b.Owner)), strings.Compare(a.Revision, b.Revision))
	})
	return out
}

func (l *Ledger) cohortsOf(owners []types.UID) (out []CohortView) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, owner := range owners {
		o := l.owners[owner]
		if o == nil {
			continue
		}
		for _, c := range o.cohorts {
			l.lapseLocked(c)
			v := CohortView{Cohort: c.key, Pods: make([]SeatView, 0, len(c.seats))}
			for _, s := range c.seats {
				if s.pod != nil && s.pod.Active {
					v.Pods = append(v.Pods, SeatView{Pod: s.pod, Seated: s.seated, Group: s.group, Class: s.class})
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

// Gated returns the pods that a scheduling gate of ours holds back.
func (l *Ledger) Gated() []*Pod {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []*Pod
	for _, s := range l.seats {
		if s.pod != nil && s.pod.Active && s.pod.Gated {
			out = append(out, s.pod)
		}
	}
	return out
}

// SeatNumber is the number of seats that a pod's group had when the pod took
// its own, itself included; 0 if it has none. Of pods that come in a burst each
// has another.
func (l *Ledger) SeatNumber(uid types.UID) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.seats[uid]; s != nil && s.seated {
		return s.number
	}
	return 0
}

// PodsOnNode returns the pods that are bound to a node, finished ones included.
func (l *Ledger) PodsOnNode(name string) []*Pod {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.nodes[name]
	if n == nil {
		return nil
	}
	pods := make([]*Pod, 0, len(n.pods))
	for _, s := range n.pods {
		pods = append(pods, s.pod)
	}
	return pods
}

// Disrupt announces that a pod is about to be evicted or restarted, unless
// it is available and that would leave more than maxUnavailable of the wanted
// pods of these owners missing or not available. Exactly one of two callers that ask at the same
// time gets the last permission. A refused caller asks again when pods change.
func (l *Ledger) Disrupt(uid types.UID, owners []types.UID, wanted, maxUnavailable int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calmLocked()
	target := l.seats[uid]
	if target == nil || target.pod == nil || l.disruptedLocked(uid) {
		return false
	}
	available := 0
	for _, uid := range owners {
		if o := l.owners[uid]; o != nil {
			available += o.available
		}
	}
	// A pod that is not available anyway costs nothing more, however many are missing.
	if target.pod.Available() && wanted-(available-1) > maxUnavailable {
		return false
	}
	until := l.clock.Now().Add(disruptionTTL)
	l.disrupted[uid] = until
	l.announced = append(l.announced, announcement{uid, until})
	l.countAvailableLocked(target)
	return true
}

// Undisrupt takes an announcement back: the disruption was refused.
func (l *Ledger) Undisrupt(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.disrupted, uid)
	if s := l.seats[uid]; s != nil {
		l.countAvailableLocked(s)
	}
}

// announcement is that a pod is about to be disrupted, and until when that counts.
type announcement struct {
	pod   types.UID
	until time.Time
}

// calmLocked ends announcements whose time is over. All count for as long, so
// the oldest end first; one that was taken back meanwhile, or made again, is
// another.
func (l *Ledger) calmLocked() {
	now, ended := l.clock.Now(), 0
	for _, a := range l.announced {
		if !now.After(a.until) {
			break
		}
		ended++
		if !l.disrupted[a.pod].Equal(a.until) {
			continue
		}
		delete(l.disrupted, a.pod)
		if s := l.seats[a.pod]; s != nil {
			l.countAvailableLocked(s)
		}
	}
	l.announced = l.announced[ended:]
	if len(l.announced) == 0 {
		l.announced = nil // let the array go
	}
}

func (l *Ledger) disruptedLocked(uid types.UID) bool {
	_, ok := l.disrupted[uid]
	return ok
}

// countAvailableLocked keeps the sum of a pod's owner. It belongs after every
// change of the pod, or of whether it is about to be disrupted.
func (l *Ledger) countAvailableLocked(s *seat) {
	available := s.pod != nil && s.pod.Available() && !l.disruptedLocked(s.uid)
	if available && !s.available {
		s.cohort.owner.available++
	} else if !available && s.available {
		s.cohort.owner.available--
	}
	s.available = available
}

// Open is the number of seats of the request's cohort that no pod holds.
func (l *Ledger) Open(r Request) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.cohorts[r.Cohort]
	if c == nil {
		return r.Total
	}
	return l.openSeatsLocked(c, r)
}

func (l *Ledger) openSeatsLocked(c *cohort, r Request) int {
	l.lapseLocked(c)
	desired := c.divide(r.Spread, max(r.Total, c.active))
	open := 0
	for i, g := range r.Spread.Groups() {
		open += max(0, desired[i]-c.counts[g])
	}
	return open
}

// Scores rates the groups that lack pods of the request's cohort, from 10 for
// the one that lacks most down to 1; others are not in the result. A seat that
// the pod holds itself is looked past, but for one that it got at creation: it
// goes to no other group.
func (l *Ledger) Scores(r Request) map[string]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	groups := r.Spread.Groups()
	counts := make([]int, len(groups))
	active := 1
	if c := l.cohorts[r.Cohort]; c != nil {
		l.lapseLocked(c)
		active = c.active
		own := l.seats[r.Pod]
		if own != nil && own.cohort == c && own.seated && l.fixedLocked(own) {
			return map[string]int64{own.group: 10} // on loan the group does not lack it
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
