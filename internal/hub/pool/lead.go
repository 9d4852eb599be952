package pool

import (
	"context"
	"sync"
	"time"

	"github.com/atoll-k8s/atoll/internal/governance"
)

// lead is whether the hub leads its pool, and what it does meanwhile.
type lead struct {
	// do is called when the hub begins to lead; its context ends when the hub does not lead any more.
	do  func(ctx context.Context)
	now func() time.Time

	mu    sync.Mutex
	until time.Time // it has the reading of a clock that only goes on
	// cancel ends do, and done is closed when that has ended; nil if it never began.
	cancel context.CancelFunc
	done   chan struct{}
}

// Leads reports whether the hub leads its pool now. Nobody else does then.
func (l *lead) Leads() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now().Before(l.until)
}

// answered notes what was answered to a beat that was sent at a time.
func (l *lead) answered(sent time.Time, leads bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.until = sent.Add(governance.LeadFor); !leads {
		l.until = time.Time{}
	}
}

// follow begins or ends what the hub does while it leads, and returns whether it leads.
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

// end ends what the hub does while it leads, and waits for it.
func (l *lead) end() {
	l.answered(time.Time{}, false)
	l.follow(context.Background())
	if l.done != nil {
		<-l.done
	}
}
