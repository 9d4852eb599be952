package coordinator

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/atoll-k8s/atoll/internal/governance"
)

const (
	// silentAfter is how long a pulse is believed, from when the manager has received it: another hub leads within 8.5
	// seconds, and writes at once.
	silentAfter = 40 * time.Second
	// listenEvery is the time between two looks at which pools are silent.
	listenEvery = 5 * time.Second
	// stuckAfter is when the pod of a coordinator is made anew, because nobody speaks through it any more.
	stuckAfter = 2 * time.Minute
)

// pulses are those of all pools, as they were received. The zero value is useful. It is safe for concurrent use.
type pulses struct {
	mu sync.Mutex
	of map[string]*pulse
}

type pulse struct {
	renewed, received time.Time
	text              string
	isSilent          bool
}

// receive notes the Lease of a pool, and returns whether it says something else than before, or the pool was silent. The
// manager counts what it reads first as written now: a restart only delays what it concludes.
func (p *pulses) receive(pool string, lease *coordinationv1.Lease, now time.Time) (isNew bool) {
	if lease.Spec.RenewTime == nil {
		return false // it was just created
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	last, known := p.of[pool]
	if known && last.renewed.Equal(lease.Spec.RenewTime.Time) {
		return false
	}
	if p.of == nil {
		p.of = map[string]*pulse{}
	}
	text := lease.Annotations[governance.PulseAnnotation]
	p.of[pool] = &pulse{renewed: lease.Spec.RenewTime.Time, received: now, text: text}
	return !known || last.isSilent || last.text != text
}

// forget forgets a pool.
func (p *pulses) forget(pool string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.of, pool)
}

// silent returns the pools that are silent since the last call.
func (p *pulses) silent(now time.Time) (pools []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for pool, last := range p.of {
		if !last.isSilent && now.Sub(last.received) >= silentAfter {
			last.isSilent = true
			pools = append(pools, pool)
		}
	}
	return pools
}

// state returns how a pool is; nil if that is not known.
func (p *pulses) state(pool string, now time.Time) *governance.PoolState {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, known := p.of[pool]
	if !known || now.Sub(last.received) >= silentAfter || last.text == "" {
		return nil
	}
	state := &governance.PoolState{}
	if json.Unmarshal([]byte(last.text), state) != nil { // whoever speaks for the pool may write anything
		return nil
	}
	return state
}

// isStuck reports whether a pool has said something since then, and nothing for stuckAfter.
func (p *pulses) isStuck(pool string, since, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, known := p.of[pool]
	return known && last.received.After(since) && now.Sub(last.received) >= stuckAfter
}

// replace deletes the pod of the coordinator when no hub has spoken through it for a while, though the cloud hears from a
// node: one of its programs hangs, or the nodes do not reach it. The next pod is on whichever node the scheduler chooses. One
// that no hub ever spoke through stays.
func (r *Reconciler) replace(ctx context.Context, s *scope) error {
	if s.coordinator == nil || s.pod == nil || !slices.Contains(slices.Collect(maps.Values(s.heard)), true) ||
		!r.pulses.isStuck(s.coordinator.Spec.NodePool, s.pod.CreationTimestamp.Time, r.Clock.Now()) {
		return nil
	}
	if err := r.Client.Delete(ctx, s.pod, client.Preconditions{UID: &s.pod.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting Pod %s: %w", client.ObjectKeyFromObject(s.pod), err)
	}
	r.Recorder.Eventf(s.coordinator, s.pod, corev1.EventTypeWarning, "Stuck", "Replace", "No hub has used the coordinator for %s, though the cloud hears from the pool: its pod %q is deleted, and made anew", stuckAfter, s.pod.Name)
	return nil
}

// listen starts passes over coordinators whose pools are silent, until ctx is done.
func (r *Reconciler) listen(ctx context.Context) error {
	ticker := time.NewTicker(listenEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		for _, pool := range r.pulses.silent(r.Clock.Now()) {
			r.fallen.Add(r.havingPool(ctx, pool)...)
		}
	}
}

// onPulse starts passes over coordinators whose pools say something new.
func (r *Reconciler) onPulse() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[ctrl.Request]
	receive := func(ctx context.Context, o client.Object, q queue) {
		lease, is := o.(*coordinationv1.Lease)
		pool := governance.PoolOfPulse(o.GetName())
		if !is || pool == "" || !r.pulses.receive(pool, lease, r.Clock.Now()) {
			return
		}
		for _, request := range r.havingPool(ctx, pool) {
			q.Add(request)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { receive(ctx, e.Object, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { receive(ctx, e.ObjectNew, q) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			pool := governance.PoolOfPulse(e.Object.GetName())
			r.pulses.forget(pool)
			for _, request := range r.havingPool(ctx, pool) { // it is made anew
				q.Add(request)
			}
		},
	}
}
