package rebalance

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/domain/placement"
)

const (
	// firstPause is how long no pod of a workload is evicted after the successor of an
	// evicted pod came to a group that has its share already. The pause doubles each time
	// this happens again, and ends when a successor comes to a group that lacks pods.
	firstPause = time.Minute
	// longestPause bounds the pause.
	longestPause = time.Hour
)

// Returns finds out whether evictions of a workload of one revision are of use: whether
// the successors of evicted pods come to groups that lack pods. A scheduler that does
// not call the extender may put each successor where the evicted pod was. The zero value
// has seen no eviction.
type Returns struct {
	cohort   CohortKey
	spread   placement.Spread
	replicas int
	// leaving are evicted pods that the ledger may still show on their node. nil in the
	// zero value only.
	leaving map[types.UID]bool
	// coming is the number of pods without a node, and evicted is how many of them
	// replace evicted pods.
	coming, evicted int
	// misplaced is the result of count when coming or evicted changed last. An eviction
	// does not change that number, nor does a successor that comes to a group that has
	// its share. A successor that comes to a group that lacks pods makes it smaller.
	misplaced int
	// misplacedAtPause is that number when the last pause began; pause is how long that
	// pause is, 0 if there was none, and until is when it ends.
	misplacedAtPause int
	pause            time.Duration
	until            time.Time
}

// Evicted records that a pod with a node was evicted. It records nothing of a workload
// of several revisions.
func (r *Returns) Evicted(w *Workload, pod types.UID) {
	if len(w.Cohorts) != 1 {
		return
	}
	c := &w.Cohorts[0]
	if r.leaving == nil {
		*r = Returns{cohort: c.CohortKey, spread: w.Spread, replicas: w.Replicas, leaving: map[types.UID]bool{}}
	}
	r.leaving[pod] = true
	r.evicted++
	r.misplaced, r.coming = r.count(w, c)
}

// See looks where the successors of evicted pods are by now. It sets r to the zero value
// when every pod is where it is wanted, or when the workload has changed so that
// successors may come to other groups than before.
func (r *Returns) See(w *Workload, now time.Time) {
	if r.leaving == nil || len(w.Cohorts) == 0 {
		return
	}
	c := &w.Cohorts[0]
	if len(w.Cohorts) > 1 || r.cohort != c.CohortKey || !r.spread.Equal(w.Spread) {
		*r = Returns{}
		return
	}
	leaving := map[types.UID]bool{}
	for i := range c.Pods {
		if uid := c.Pods[i].UID; r.leaving[uid] {
			leaving[uid] = true
		}
	}
	r.leaving = leaving
	misplaced, coming := r.count(w, c)
	if misplaced == 0 {
		*r = Returns{}
		return
	}
	if r.replicas != w.Replicas { // numbers of before cannot be compared with those of now
		r.replicas, r.evicted, r.misplacedAtPause = w.Replicas, 0, misplaced
	}
	if r.pause > 0 && misplaced < r.misplacedAtPause {
		r.pause, r.until = 0, time.Time{}
	}
	came := max(0, r.coming-coming)
	switch {
	case r.evicted == 0 || came == 0:
	case misplaced >= r.misplaced && !now.Before(r.until):
		r.pause = min(max(firstPause, 2*r.pause), longestPause)
		r.until, r.misplacedAtPause = now.Add(r.pause), misplaced
		r.evicted = 0 // the pods that are still coming begin no pause of their own
	default:
		r.evicted = max(0, r.evicted-came)
	}
	if r.evicted == 0 || came > 0 || coming > r.coming {
		r.coming, r.misplaced = coming, misplaced
	}
}

// Pause returns whether the successor of the last evicted pod came back to a group that
// has its share. If so, no pod is to be evicted while left is above 0. After that one
// pod may be evicted at a time: underWay is true until its successor has a node.
func (r *Returns) Pause(now time.Time) (left time.Duration, underWay, cameBack bool) {
	return r.until.Sub(now), r.evicted > 0, r.pause > 0
}

// IsZero returns whether there is nothing to remember.
func (r *Returns) IsZero() bool { return r.leaving == nil }

// count returns the number of pods that are not where they are wanted, which are those
// above the share of a group and those without a node, and the number of the latter.
func (r *Returns) count(w *Workload, c *Cohort) (misplaced, coming int) {
	above := map[string]int{}
	coming = w.total()
	for i := range c.Pods {
		if pod := &c.Pods[i]; pod.Node != "" && !r.leaving[pod.UID] {
			above[pod.Group]++
			coming--
		}
	}
	for i, n := range w.desired() {
		above[w.Spread.Groups()[i]] -= n
	}
	misplaced = coming
	for _, n := range above {
		misplaced += max(0, n)
	}
	return misplaced, coming
}
