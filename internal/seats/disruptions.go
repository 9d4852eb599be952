package seats

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// disruptionTTL is how long an announced disruption counts if the watch never shows its
// effect, for example because the answer of the eviction was lost.
const disruptionTTL = time.Minute

// disruptions counts the available pods of each owner. Pods that are about to be evicted or
// restarted do not count. The Ledger's mutex guards it.
type disruptions struct {
	clock clock.PassiveClock
	// available is the number of pods of an owner for which counts is true. Owners that have
	// no such pod are not in it.
	available map[types.UID]int
	// until holds the pods that are about to be evicted or restarted, and when their
	// announcement expires. An entry is removed when the watch shows the effect.
	until map[types.UID]time.Time
	// announced holds an announcement for each entry of until, oldest first. It may also hold
	// announcements that were taken back or whose effect was seen.
	announced []announcement
}

// announcement is that a pod is about to be evicted or restarted.
type announcement struct {
	pod   types.UID
	until time.Time
}

func newDisruptions(clock clock.PassiveClock) *disruptions {
	return &disruptions{clock: clock, available: map[types.UID]int{}, until: map[types.UID]time.Time{}}
}

// counts returns whether a pod is counted in available. pod may be nil.
func (d *disruptions) counts(pod *Pod) bool {
	return pod != nil && pod.Available() && !d.isAnnounced(pod.UID)
}

func (d *disruptions) isAnnounced(uid types.UID) bool {
	_, ok := d.until[uid]
	return ok
}

func (d *disruptions) add(owner types.UID, n int) {
	if d.available[owner] += n; d.available[owner] == 0 {
		delete(d.available, owner)
	}
}

// replacePod records that before is after now: nil for a pod that is not, or no longer, in
// the ledger. before must be what the last call had as after.
func (d *disruptions) replacePod(before, after *Pod) {
	was := d.counts(before)
	if after != nil && (!after.Active || after.Restarting()) {
		delete(d.until, after.UID) // the pod's own state shows the effect from now on
	}
	is := d.counts(after)
	if was && is && before.Owner() == after.Owner() {
		return
	}
	if was {
		d.add(before.Owner(), -1)
	}
	if is {
		d.add(after.Owner(), 1)
	}
}

// forget removes the announcement of a pod that is not in the ledger any more.
func (d *disruptions) forget(uid types.UID) { delete(d.until, uid) }

// announce records that a pod is about to be evicted or restarted, if the budget allows it.
func (d *disruptions) announce(pod *Pod, owners []types.UID, wanted, maxUnavailable int) bool {
	if pod == nil || d.isAnnounced(pod.UID) {
		return false
	}
	available := 0
	for _, owner := range owners {
		available += d.available[owner]
	}
	// Disrupting a pod that is not available costs nothing, however many pods are missing.
	if pod.Available() && wanted-(available-1) > maxUnavailable {
		return false
	}
	if d.counts(pod) {
		d.add(pod.Owner(), -1)
	}
	until := d.clock.Now().Add(disruptionTTL)
	d.until[pod.UID] = until
	d.announced = append(d.announced, announcement{pod.UID, until})
	return true
}

// withdraw removes the announcement of a pod. pod is nil if the ledger does not have it.
func (d *disruptions) withdraw(uid types.UID, pod *Pod) {
	was := d.counts(pod)
	delete(d.until, uid)
	if !was && d.counts(pod) {
		d.add(pod.Owner(), 1)
	}
}

// expire ends the announcements that have expired. All last equally long, so the oldest
// expire first. An announcement whose time is not the one in until was taken back, or
// replaced by a later one. pod returns the last observed state of a pod, or nil.
func (d *disruptions) expire(pod func(types.UID) *Pod) {
	now, ended := d.clock.Now(), 0
	for _, a := range d.announced {
		if !now.After(a.until) {
			break
		}
		ended++
		if d.until[a.pod].Equal(a.until) {
			d.withdraw(a.pod, pod(a.pod))
		}
	}
	d.announced = d.announced[ended:]
	if len(d.announced) == 0 {
		d.announced = nil // frees the array
	}
}

// Disrupt announces that a pod is about to be evicted or restarted, and returns whether that
// is allowed. It is not allowed if the pod is available and more than maxUnavailable of the
// wanted pods of these owners would then be missing or not available, if the pod is announced
// already, or if the ledger does not have it. Of two callers that call at the same time,
// exactly one gets the last permission. A caller that got none calls again when pods change.
// An announcement ends when the watch shows the effect, with Undisrupt, or after
// disruptionTTL.
func (l *Ledger) Disrupt(uid types.UID, owners []types.UID, wanted, maxUnavailable int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.disruptions.expire(l.cohorts.pod)
	return l.disruptions.announce(l.cohorts.pod(uid), owners, wanted, maxUnavailable)
}

// Undisrupt takes an announcement back, because the eviction or restart was refused.
func (l *Ledger) Undisrupt(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.disruptions.withdraw(uid, l.cohorts.pod(uid))
}
