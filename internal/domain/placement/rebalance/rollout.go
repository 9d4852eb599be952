package rebalance

import (
	"hash/fnv"
	"slices"
	"time"
)

// Rollout is what was seen of a workload that has several revisions at once. The zero
// value has seen nothing.
//
// A rollout either goes on or stands still, because it is paused or partial. While it
// goes on no pod is moved, because the rollout may replace the pod a moment later. While
// it stands still the pods of all revisions are balanced together.
type Rollout struct {
	// pods is a hash of the UIDs of the workload's pods, and since is when the set of
	// pods changed last.
	pods  uint64
	since time.Time
	// evicted: a pod was evicted since Failed was called last, and surplus is the number
	// of surplus pods at that time.
	evicted bool
	surplus int
}

// Settled returns whether the rollout stands still: every owner has as many pods as it
// wants, all of them are available or in a group that is away, and none has come or
// gone for the time stabilization. left is what is left of that time; 0 if another of
// the conditions is not met.
func (r *Rollout) Settled(w *Workload, now time.Time, stabilization time.Duration) (ok bool, left time.Duration) {
	if pods := hashOfPods(w); r.pods != pods || r.since.IsZero() {
		r.pods, r.since = pods, now
	}
	if !w.Complete || !w.working() {
		return false, 0
	}
	left = r.since.Add(stabilization).Sub(now)
	return left <= 0, left
}

// Evicted records that a pod was evicted when there were so many surplus pods.
func (r *Rollout) Evicted(surplus int) { r.evicted, r.surplus = true, surplus }

// Failed returns whether there are no fewer surplus pods than before the last eviction:
// the successor of the evicted pod went to the same group. It returns true once for each
// eviction.
func (r *Rollout) Failed(surplus int) bool {
	failed := r.evicted && surplus >= r.surplus
	r.evicted = false
	return failed
}

func hashOfPods(w *Workload) uint64 {
	var uids []string
	for i := range w.Cohorts {
		for j := range w.Cohorts[i].Pods {
			uids = append(uids, string(w.Cohorts[i].Pods[j].UID))
		}
	}
	slices.Sort(uids)
	h := fnv.New64a()
	for _, uid := range uids {
		_, _ = h.Write([]byte(uid + "\n")) // a hash never fails
	}
	return h.Sum64()
}
