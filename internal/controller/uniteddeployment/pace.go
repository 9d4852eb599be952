package uniteddeployment

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// freeRestores is how often a workload is put back at once. Somebody who
	// edits it again and again is no person; from then on each time waits twice
	// as long, up to restoreLast.
	freeRestores = 10
	restoreFirst = time.Second
	restoreLast  = 5 * time.Minute
	// restoreForgotten is how long nobody has to touch a workload until it is
	// put back at once again.
	restoreForgotten = 10 * time.Minute
)

// pace slows down repairs of workloads that something else insists on changing:
// each repair may replace pods, and so may each change. What it remembers is
// lost with the process.
type pace struct {
	mu       sync.Mutex
	restores map[types.UID]restores
}

type restores struct {
	count int
	last  time.Time
}

// pacedError says that it is too early to put a workload back.
type pacedError struct{ after time.Duration }

func (e *pacedError) Error() string {
	return fmt.Sprintf("it is changed again and again, and is put back in %s", e.after)
}

// early is an error while it is too early to put a workload back.
func (p *pace) early(workload types.UID, now time.Time) error {
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
			return &pacedError{left}
		}
	}
	return nil
}

// restored counts a repair that was written.
func (p *pace) restored(workload types.UID, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.restores == nil {
		p.restores = map[types.UID]restores{}
	}
	p.restores[workload] = restores{p.restores[workload].count + 1, now}
}
