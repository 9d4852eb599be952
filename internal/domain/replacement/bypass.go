package replacement

import "time"

// TryTime is how long no pod of a workload is replaced after the last replacement, if
// its successor did not pass the pod webhook.
const TryTime = 5 * time.Minute

// Bypass finds out whether the new pods of a workload pass the pod webhook:
//
//	passes ──after a replacement, a pod is created without the webhook──► bypassed
//	bypassed ──a newer pod passed the webhook──► passes
//	bypassed ──TryTime since the last replacement──► one more pod is replaced
//
// It compares times of creation with each other only: the API server writes them, and
// its clock may differ from ours. The zero value has seen no replacement.
type Bypass struct {
	// replaced: a pod of the workload was replaced.
	replaced bool
	// replacedAt is when the last pod was replaced, by our clock; zero once a new pod has
	// passed the webhook since.
	replacedAt time.Time
	// missedAt is the creation of the newest known pod that did not pass the webhook.
	// While bypassed is false, pods that old are older than the first replacement, so they
	// are no evidence about the webhook.
	missedAt time.Time
	// admittedAt is the creation of the newest known pod that passed the webhook.
	admittedAt time.Time
	bypassed   bool
}

// See takes the creation of the newest pods that did not pass the webhook, and that did;
// zero if there is none.
func (b *Bypass) See(missedAt, admittedAt time.Time) {
	if !b.replaced {
		return
	}
	if admittedAt.After(b.admittedAt) {
		b.admittedAt, b.replacedAt = admittedAt, time.Time{}
	}
	if missedAt.After(b.missedAt) {
		b.missedAt, b.bypassed = missedAt, true
	}
	if admittedAt.After(b.missedAt) {
		b.bypassed = false
	}
}

// Replaced records that a pod of the workload was replaced. missedAt and admittedAt are
// as for See, from before the replacement.
func (b *Bypass) Replaced(missedAt, admittedAt, now time.Time) {
	if !b.replaced {
		b.replaced, b.missedAt, b.admittedAt = true, missedAt, admittedAt
	}
	b.replacedAt = now
}

// Pause returns whether new pods bypass the webhook, so that no more than one pod may be
// replaced, and how long none may.
func (b *Bypass) Pause(now time.Time) (onlyOne bool, left time.Duration) {
	if !b.bypassed {
		return false, 0
	}
	return true, max(0, b.replacedAt.Add(TryTime).Sub(now))
}
