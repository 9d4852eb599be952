package pool

import (
	"context"
	"sync"
	"time"

	"github.com/atoll-k8s/atoll/internal/governance"
)

// lead records whether the hub leads its pool, and runs the work of the leader.
type lead struct {
	// do is called when the hub begins to lead; its context ends when the hub stops leading.
	do  func(ctx context.Context)
	now func() time.Time

	mu    sync.Mutex
	until time.Time // with a monotonic clock reading
	// cancel ends do, and done is closed when do has ended; nil if do was never called.
	cancel context.CancelFunc
	done   chan struct{}
}

// Leads reports whether the hub leads its pool now. At most one hub leads.
func (l *lead) Leads() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now().Before(l.until)
}

// answered records the answer to a beat, and when the beat was sent.
func (l *lead) answered(sent time.Time, leads bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.until = sent.Add(governance.LeadFor); !leads {
		l.until = time.Time{}
	}
}

// follow starts or stops the work of the leader, and returns whether the hub leads.
func (l *lead) follow(ctx context.Context) (leads bool) {
	leads = l.Leads() && ctx.Err() == nil
	switch {
	case leads && l.cancel == nil:
		inner, cancel := context.WithCancel(ctx)
		before, done := l.done, make(chan struct{})
		l.cancel, l.done = cancel, done
		go func() {
			defer close(done)
			if before != nil {
				<-before
			}
			l.do(inner)
		}()
	case !leads && l.cancel != nil:
		l.cancel()
		l.cancel = nil
	}
	return leads
}

// end stops the work of the leader, and waits until it has ended.
func (l *lead) end() {
	l.answered(time.Time{}, false)
	l.follow(context.Background())
	if l.done != nil {
		<-l.done
	}
}
