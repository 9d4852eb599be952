package uniteddeployment

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// freeRestores is how often a workload is restored without delay. More edits than that
	// are made by a program, not a person: from then on the delay is restoreFirst, and
	// doubles with each restore up to restoreLast.
	freeRestores = 10
	restoreFirst = time.Second
	restoreLast  = 5 * time.Minute
	// restoreForgotten is the time after the last restore at which the count starts at 0
	// again.
	restoreForgotten = 10 * time.Minute
)

// pace slows down the repair of workloads that another program changes again and again:
// each change and each repair may replace pods. It is lost when the process ends. It is
// safe for concurrent use.
type pace struct {
	mu       sync.Mutex
	restores map[types.UID]restores
}

// restores are the restores of one workload.
type restores struct {
	count int
	last  time.Time
}

// earlyError means that a workload must not be restored before a delay.
type earlyError struct{ after time.Duration }

func (e *earlyError) Error() string {
	return fmt.Sprintf("another program changes it again and again: the next repair is in %s", e.after)
}

// check returns an earlyError if a workload must not be restored yet.
func (p *pace) check(workload types.UID, now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid, r := range p.restores {
		if now.Sub(r.last) > restoreForgotten {
			delete(p.restores, uid)
		}
	}
	r := p.restores[workload]
	if over := r.count - freeRestores; over >= 0 {
		wait := min(restoreFirst<<min(over, 20), restoreLast)
		if left := wait - now.Sub(r.last); left > 0 {
			return &earlyError{left}
		}
	}
	return nil
}

// restored counts a restore that was written.
func (p *pace) restored(workload types.UID, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.restores == nil {
		p.restores = map[types.UID]restores{}
	}
	p.restores[workload] = restores{p.restores[workload].count + 1, now}
}
